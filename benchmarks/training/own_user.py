"""User functions on GraphWeft, compiled or on its reference executor; and the built-in GAT in the same loop."""

from __future__ import annotations

import own_gat
import torch
import user_layers
from peer_model import dense_features, make_epoch

import graphweft as gw


class Convolution(gw.MessagePassing):
    """A layer of ``user_layers`` as a message-passing module, its transform and activation in ``forward``."""

    def __init__(self, layer, graph):
        super().__init__()
        self.layer, self.graph = layer, graph

    def message(self, edges):
        return self.layer.message(edges)

    def reduce(self, nodes):
        return self.layer.reduce(nodes)

    def forward(self, x):
        return self.layer(x, lambda _, fields: self.propagate(self.graph, ndata=fields)["h"])


def _graph(case):
    """The graph with one self-loop a node."""
    graph = gw.Graph.from_csc(torch.from_numpy(case.array("indptr")), torch.from_numpy(case.array("indices")))
    return graph.add_self_loops()


def build(case, variant):
    """``variant``: a model of ``user_layers``, perhaps with ``-reference``, ``-whole``, or ``-layer``: as modules.

    ``gat-module`` is the built-in one.
    """
    kind, _, how = variant.partition("-")
    graph, x = _graph(case), dense_features(case)
    if how == "module":
        model = own_gat.model(case, "8-elu")
        return make_epoch(case, list(model.parameters()), lambda: model(graph, x)), "built-in model"
    layers = user_layers.make(case, kind, graph.in_degrees(), how == "whole")

    def propagate(layer, fields):
        return gw.update_all(graph, layer.message, layer.reduce, layer.update, ndata=fields)["h"]

    convolutions = [Convolution(layer, graph) for layer in layers] if how == "layer" else []

    def forward():
        if convolutions:
            return torch.nn.Sequential(*convolutions)(x)
        with gw.config(**({"opt_level": 0} if how == "reference" else {})):
            return user_layers.forward(layers, x, propagate)

    return make_epoch(case, list(layers.parameters()), forward), how or "compiled"
