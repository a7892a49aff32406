"""DGL's RelGraphConv and HGTConv on edges sorted by relation. Run by the Python of DGL's own environment."""

from __future__ import annotations

import dgl
import torch
import typed_weights
from dgl.nn import HGTConv, RelGraphConv
from peer_model import make_epoch
from torch.nn import functional


def _parameter(value):
    return torch.nn.Parameter(torch.from_numpy(value))


class _GeluThenLinear(torch.nn.Module):
    """DGL's layer leaves out the activation that the paper has before the output matrix."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x, kinds, presorted):
        """As the layer that it stands for."""
        return self.linear(functional.gelu(x), kinds, presorted)


def _rgcn(case, graph, kinds, embedding):
    _, dst = graph.edges()
    pair = kinds * graph.num_nodes() + dst.long()
    counts = torch.unique(pair, return_inverse=True, return_counts=True)
    norm = (1.0 / counts[2][counts[1]]).float()[:, None]
    convs = torch.nn.ModuleList()
    for weight, root in typed_weights.rgcn(case):
        conv = RelGraphConv(weight.shape[1], weight.shape[2], weight.shape[0])
        with torch.no_grad():
            conv.linear_r.W.copy_(torch.from_numpy(weight))
            conv.loop_weight.copy_(torch.from_numpy(root))
        convs.append(conv)

    def forward():
        h = functional.relu(convs[0](graph, embedding, kinds, norm, presorted=True))
        return convs[1](graph, h, kinds, norm, presorted=True)

    return list(convs.parameters()), forward


def _hgt(case, graph, kinds, embedding):
    count, heads = typed_weights.relations(case), typed_weights.HEADS
    node_kinds = torch.zeros(case.meta.num_nodes, dtype=torch.int64)
    convs = torch.nn.ModuleList()
    for key, query, value, out, attention, message in typed_weights.hgt(case):
        conv = HGTConv(key.shape[0], key.shape[1] // heads, heads, 1, count, dropout=0.0)
        with torch.no_grad():
            linears = (conv.linear_k, conv.linear_q, conv.linear_v, conv.linear_a)
            for linear, weight in zip(linears, (key, query, value, out), strict=True):
                linear.W.copy_(torch.from_numpy(weight)[None])
            for h in range(heads):
                conv.relation_att[h].W.copy_(torch.from_numpy(attention[:, h]))
                conv.relation_msg[h].W.copy_(torch.from_numpy(message[:, h]))
        conv.linear_a = _GeluThenLinear(conv.linear_a)
        convs.append(conv)
    head, bias = _parameter(typed_weights.head(case)), torch.nn.Parameter(torch.zeros(case.meta.num_classes))

    def forward():
        h = functional.relu(embedding)
        for conv in convs:
            h = conv(graph, h, node_kinds, kinds, presorted=True)
        return h @ head + bias

    return [*(p for n, p in convs.named_parameters() if "residual_w" not in n), head, bias], forward


def build(case, variant):
    """``variant``: rgcn or hgt."""
    source, destination = torch.from_numpy(case.array("edge_index"))
    graph = dgl.graph((source, destination), num_nodes=case.meta.num_nodes, idtype=torch.int32)
    graph.create_formats_()
    embedding = _parameter(typed_weights.embedding(case))
    kinds = torch.from_numpy(case.array("edge_type"))
    parameters, forward = {"rgcn": _rgcn, "hgt": _hgt}[variant](case, graph, kinds, embedding)
    return make_epoch(case, [embedding, *parameters], forward), f"dgl {dgl.__version__}, torch {torch.__version__}"
