"""DGL's GraphConv on in-edges, dense or sparse input features. Run by the Python of DGL's own environment."""

from __future__ import annotations

import dgl
import torch
from dgl.nn import GraphConv
from peer_model import dense_features, first_product, initial_weights, make_epoch, sparse_features, transposed


def _graph(case):
    """The graph with self-loops in DGL, and the normalisation its GraphConv is to use.

    ``both`` divides by the roots of out- and in-degree, which is what the other systems do on symmetric graphs only;
    on others the roots of in-degrees are multiplied in as node factors and ``norm`` is ``none``.
    """
    n = case.meta.num_nodes
    source, destination = torch.from_numpy(case.array("edge_index"))
    graph = dgl.graph((source, destination), num_nodes=n, idtype=torch.int32)
    graph = dgl.add_self_loop(dgl.remove_self_loop(graph))
    balanced = bool((graph.in_degrees() == graph.out_degrees()).all())
    scale = None if balanced else graph.in_degrees().to(torch.float32).rsqrt()[:, None]
    graph = graph.formats(["csr", "csc"])
    graph.create_formats_()
    return graph, scale


def build(case, variant):
    """``dense``: GraphConv does it all; ``sparse``, ``tuned``: the first transform is a torch.sparse product."""
    graph, scale = _graph(case)
    sparse = variant != "dense" or not case.meta.has_dense
    x = sparse_features(case) if sparse else dense_features(case)
    x_t = transposed(x) if variant == "tuned" else None
    convs, parameters = [], []
    for place, (weight, bias) in enumerate(initial_weights(case)):
        outside = sparse and place == 0
        conv = GraphConv(*weight.shape, norm="both" if scale is None else "none", weight=not outside)
        if not outside:
            conv.weight = weight
        conv.bias = bias
        convs.append((conv, weight if outside else None))
        parameters += [weight, bias]

    def forward():
        h = x
        for place, (conv, weight) in enumerate(convs):
            if weight is not None:
                h = first_product(x, x_t, weight)
            if scale is None:
                h = conv(graph, h)
            else:  # D^-1/2 A D^-1/2 h W + b, with the bias after the second factor
                bias, conv.bias = conv.bias, None
                h = conv(graph, h * scale) * scale + bias
                conv.bias = bias
            if place + 1 < len(convs):
                h = h.relu()
        return h

    return make_epoch(case, parameters, forward), f"dgl {dgl.__version__}, torch {torch.__version__}"
