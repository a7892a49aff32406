"""User functions on GraphWeft, compiled or on its reference executor; and the built-in GAT in the same loop."""

from __future__ import annotations

import own_gat
import torch
import user_layers
from peer_model import dense_features, make_epoch

import graphweft as gw


def _graph(case):
    """The graph with one self-loop a node."""
    graph = gw.Graph.from_csc(torch.from_numpy(case.array("indptr")), torch.from_numpy(case.array("indices")))
    return graph.add_self_loops()


def build(case, variant):
    """``variant``: a model of ``user_layers``, perhaps with ``-reference`` or ``-whole``; ``gat-module``: built in."""
    kind, _, how = variant.partition("-")
    graph, x = _graph(case), dense_features(case)
    if how == "module":
        model = own_gat.model(case, "8-elu")
        return make_epoch(case, list(model.parameters()), lambda: model(graph, x)), "built-in model"
    layers = user_layers.make(case, kind, graph.in_degrees(), how == "whole")

    def propagate(layer, fields):
        return gw.update_all(graph, layer.message, layer.reduce, layer.update, ndata=fields)["h"]

    def forward():
        with gw.config(**({"opt_level": 0} if how == "reference" else {})):
            return user_layers.forward(layers, x, propagate)

    return make_epoch(case, list(layers.parameters()), forward), how or "compiled"
