"""User functions on DGL. Run by the Python of DGL's own environment."""

from __future__ import annotations

import dgl
import torch
import user_layers
from peer_model import dense_features, make_epoch


def build(case, variant):
    """``variant``: a model of ``user_layers``."""
    source, destination = torch.from_numpy(case.array("edge_index"))
    graph = dgl.graph((source, destination), num_nodes=case.meta.num_nodes, idtype=torch.int32)
    graph = dgl.add_self_loop(dgl.remove_self_loop(graph))
    graph.create_formats_()
    x = dense_features(case)
    layers = user_layers.make(case, variant, graph.in_degrees())

    def propagate(layer, fields):
        with graph.local_scope():
            graph.ndata.update(fields)
            graph.update_all(layer.message, layer.reduce)
            return graph.ndata["h"]

    epoch = make_epoch(case, list(layers.parameters()), lambda: user_layers.forward(layers, x, propagate))
    return epoch, f"dgl {dgl.__version__}, torch {torch.__version__}"
