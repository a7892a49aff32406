"""GraphWeft's R-GCN and HGT as the trainer runs them, an embedding per node in place of features."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import typed_weights

from graphweft.data.dataset import Dataset
from graphweft.data.flat_features import with_flat_features
from graphweft.graph.graph import Graph
from graphweft.measure.bench import own_epoch
from graphweft.nn.hgt import HGT
from graphweft.nn.rgcn import RGCN


def dataset(case):
    """The case as a typed dataset that only trains."""
    src, dst = torch.from_numpy(case.array("edge_index"))
    count, nodes = typed_weights.relations(case), case.meta.num_nodes
    cuts = np.searchsorted(case.array("edge_type"), np.arange(count + 1)).tolist()  # edges lie relation after relation
    edges = {("n", f"r{r}", "n"): (src[a:b], dst[a:b]) for r, (a, b) in enumerate(pairwise(cuts))}
    train = torch.from_numpy(case.array("train_idx"))
    labels = torch.from_numpy(case.array("y"))
    parts = (train, train[:0], train[:0])
    graph = Graph.hetero(edges, {"n": nodes})
    return with_flat_features(Dataset(case.meta.name, graph, None, labels, *parts, case.meta.num_classes))


def build(case, variant):
    """``variant``: rgcn or hgt."""
    sizes = (case.meta.num_nodes, case.meta.hidden, case.meta.num_classes)
    count = typed_weights.relations(case)
    if variant == "rgcn":
        model = RGCN(*sizes, num_relations=count)
        pairs = [
            (p, w)
            for layer, values in zip(model.layers, typed_weights.rgcn(case), strict=True)
            for p, w in zip((layer.weight, layer.root), values, strict=True)
        ]
    else:
        model = HGT(*sizes, num_node_types=1, num_relations=count, heads=typed_weights.HEADS, bias=False)
        names = ("key", "query", "value", "out", "attention", "message")
        pairs = [
            (getattr(layer, name), w)
            for layer, values in zip(model.layers, typed_weights.hgt(case), strict=True)
            for name, w in zip(names, values, strict=True)
        ]
        pairs.append((model.head, typed_weights.head(case)))
    with torch.no_grad():
        for parameter, value in [(model.embedding, typed_weights.embedding(case)), *pairs]:
            parameter.copy_(torch.from_numpy(value).view(parameter.shape))
    epoch, _ = own_epoch(dataset(case), model, case.meta.lr, keep_features=False)
    return epoch, "embedding per node"
