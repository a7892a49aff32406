"""PyTorch Geometric's GATConv on an edge list."""

from __future__ import annotations

import gat_weights
import torch
import torch_geometric
from peer_model import dense_features, make_epoch
from torch.nn import functional
from torch_geometric.nn import GATConv


def build(case, variant):
    """``variant``: heads and activation of hidden layers, as ``8-elu``."""
    heads, activation = variant.split("-")
    edges, x = torch.from_numpy(case.array("edge_index")), dense_features(case)
    convs = torch.nn.ModuleList()
    for weight, src, dst, bias, count, _ in gat_weights.layers(case, int(heads)):
        conv = GATConv(weight.shape[0], weight.shape[1] // count, count)
        with torch.no_grad():
            conv.lin.weight.copy_(torch.from_numpy(weight).t())
            conv.att_src.copy_(torch.from_numpy(src)[None])
            conv.att_dst.copy_(torch.from_numpy(dst)[None])
            conv.bias.copy_(torch.from_numpy(bias))
        convs.append(conv)

    def forward():
        h = x
        for place, conv in enumerate(convs):
            h = conv(h, edges)
            if place + 1 < len(convs):
                h = getattr(functional, activation)(h)
        return h

    return make_epoch(case, list(convs.parameters()), forward), f"torch_geometric {torch_geometric.__version__}"
