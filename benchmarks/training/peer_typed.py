"""PyTorch Geometric's RGCNConv and HGTConv, written as its users write them; an embedding per node."""

from __future__ import annotations

import torch
import torch_geometric
import typed_weights
from peer_model import make_epoch
from torch.nn import functional
from torch_geometric.nn import HGTConv, RGCNConv


def _parameter(value):
    return torch.nn.Parameter(torch.from_numpy(value))


def _rgcn(case, embedding):
    edges, kinds = torch.from_numpy(case.array("edge_index")), torch.from_numpy(case.array("edge_type"))
    convs = torch.nn.ModuleList()
    for weight, root in typed_weights.rgcn(case):
        conv = RGCNConv(weight.shape[1], weight.shape[2], weight.shape[0])
        with torch.no_grad():
            conv.weight.copy_(torch.from_numpy(weight))
            conv.root.copy_(torch.from_numpy(root))
        convs.append(conv)
    return list(convs.parameters()), lambda: convs[1](functional.relu(convs[0](embedding, edges, kinds)), edges, kinds)


def _hgt(case, embedding):
    """Biases stay zero: DGL's layer has none."""
    edges, kinds = torch.from_numpy(case.array("edge_index")), torch.from_numpy(case.array("edge_type"))
    count, heads = typed_weights.relations(case), typed_weights.HEADS
    names = [("n", f"r{r}", "n") for r in range(count)]
    parts = {name: edges[:, kinds == r] for r, name in enumerate(names)}
    convs = torch.nn.ModuleList()
    for key, query, value, out, attention, message in typed_weights.hgt(case):
        conv = HGTConv(key.shape[0], key.shape[1], (["n"], names), heads)
        tables = torch.from_numpy(attention), torch.from_numpy(message)
        with torch.no_grad():
            projection, output = conv.kqv_lin.lins["n"], conv.out_lin.lins["n"]
            projection.weight.copy_(torch.cat([torch.from_numpy(w) for w in (key, query, value)], 1).t())
            output.weight.copy_(torch.from_numpy(out).t())
            for linear in (projection, output):
                linear.bias.zero_().requires_grad_(False)
            for module, table in zip((conv.k_rel, conv.v_rel), tables, strict=True):
                module.weight.copy_(table.transpose(0, 1).reshape(-1, *table.shape[2:]))
        convs.append(conv)
    head, bias = _parameter(typed_weights.head(case)), torch.nn.Parameter(torch.zeros(case.meta.num_classes))

    def forward():
        h = {"n": functional.relu(embedding)}
        for conv in convs:
            h = conv(h, parts)
        return h["n"] @ head + bias

    return [*(p for p in convs.parameters() if p.requires_grad), head, bias], forward


def build(case, variant):
    """``variant``: rgcn or hgt."""
    embedding = _parameter(typed_weights.embedding(case))
    parameters, forward = {"rgcn": _rgcn, "hgt": _hgt}[variant](case, embedding)
    return make_epoch(case, [embedding, *parameters], forward), f"torch_geometric {torch_geometric.__version__}"
