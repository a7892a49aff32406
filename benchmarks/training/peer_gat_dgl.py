"""DGL's GATConv. Run by the Python of DGL's own environment."""

from __future__ import annotations

import dgl
import gat_weights
import torch
from dgl.nn import GATConv
from peer_model import dense_features, make_epoch
from torch.nn import functional


def build(case, variant):
    """``variant``: heads and activation of hidden layers, as ``8-elu``."""
    heads, activation = variant.split("-")
    source, destination = torch.from_numpy(case.array("edge_index"))
    graph = dgl.graph((source, destination), num_nodes=case.meta.num_nodes, idtype=torch.int32)
    graph = dgl.add_self_loop(dgl.remove_self_loop(graph))
    graph.create_formats_()
    x = dense_features(case)
    convs = torch.nn.ModuleList()
    for weight, src, dst, bias, count, _ in gat_weights.layers(case, int(heads)):
        conv = GATConv(weight.shape[0], weight.shape[1] // count, count)
        with torch.no_grad():
            conv.fc.weight.copy_(torch.from_numpy(weight).t())
            conv.attn_l.copy_(torch.from_numpy(src)[None])
            conv.attn_r.copy_(torch.from_numpy(dst)[None])
            conv.bias.copy_(torch.from_numpy(bias))
        convs.append(conv)

    def forward():
        h = x
        for place, conv in enumerate(convs):
            h = conv(graph, h).flatten(1)
            if place + 1 < len(convs):
                h = getattr(functional, activation)(h)
        return h

    return make_epoch(case, list(convs.parameters()), forward), f"dgl {dgl.__version__}, torch {torch.__version__}"
