"""GraphWeft's GAT as the trainer runs it."""

from __future__ import annotations

import gat_weights
import torch
from own import dataset

from graphweft.measure.bench import own_epoch
from graphweft.nn.gat import GAT


def model(case, variant):
    """``variant``: heads and activation of hidden layers, as ``8-elu``."""
    heads, activation = variant.split("-")
    sizes = (case.meta.num_features, case.meta.hidden, case.meta.num_classes, case.meta.layers)
    made = GAT(*sizes, heads=int(heads), activation=activation)
    with torch.no_grad():
        for layer, (weight, src, dst, bias, _, _) in zip(
            made.layers, gat_weights.layers(case, int(heads)), strict=True
        ):
            values = (weight, src, dst, bias)
            for p, value in zip((layer.weight, layer.att_src, layer.att_dst, layer.bias), values, strict=True):
                p.copy_(torch.from_numpy(value))
    return made


def build(case, variant):
    """``variant`` as for :func:`model`."""
    epoch, path = own_epoch(dataset(case), model(case, variant), case.meta.lr, keep_features=False)
    return epoch, f"{path} features"
