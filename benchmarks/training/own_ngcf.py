"""GraphWeft's NGCF as the trainer runs it, or with one order of Pull and Apply fixed in all layers."""

from __future__ import annotations

import ngcf_weights
import torch
from own import dataset

import graphweft as gw
from graphweft.ir.ops import Op
from graphweft.measure.bench import own_epoch
from graphweft.nn.ngcf import NGCF, NGCFConv


class _Fixed(NGCFConv):
    """Its linear term in one order, its products by element pulled first."""

    apply_first = False

    def define(self, frame, x):
        """As the layer it replaces."""
        graph, own = frame.add(Op.WITHOUT_LOOPS, frame.graph), frame.own(x)
        root = frame.degree_power(graph, -0.5, x)

        def pulled(rows):
            total = frame.aggregate(frame.add(Op.ROW_SCALE, rows, root), "sum", graph)
            return frame.add(Op.ROW_SCALE, total, root)

        near = pulled(x)
        alike = frame.matmul(frame.add(Op.MUL, near, own), self.affinity_weight)
        if self.apply_first:
            sent = frame.matmul(x, self.weight)
            plain = frame.add(Op.ADD, pulled(sent), sent)
        else:
            plain = frame.matmul(frame.add(Op.ADD, near, own), self.weight)
        return frame.bias(frame.add(Op.ADD, plain, alike), self.bias)


class _ApplyFirst(_Fixed):
    apply_first = True


class _PullFixed(NGCF):
    layer = _Fixed


class _ApplyFixed(NGCF):
    layer = _ApplyFirst


KINDS = {"": NGCF, "pull": _PullFixed, "apply": _ApplyFixed}
FREE = "placement,demand,hoist"  # what decides for the user


def build(case, variant):
    """``variant``: empty, ``pull`` or ``apply``."""
    sizes = (case.meta.num_features, case.meta.hidden, case.meta.num_classes, case.meta.layers)
    model = KINDS[variant](*sizes)
    with torch.no_grad():
        for layer, (weight, affinity, bias) in zip(model.layers, ngcf_weights.layers(case), strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.affinity_weight.copy_(torch.from_numpy(affinity))
            layer.bias.copy_(torch.from_numpy(bias))
    changes = {"disabled_passes": FREE} if variant else {}
    with gw.config(**changes):
        epoch, path = own_epoch(dataset(case), model, case.meta.lr, keep_features=False)

    def run():
        with gw.config(**changes):
            return epoch()

    return run, f"{path} features"
