"""GraphWeft's GCN as the trainer runs it: one full-batch step on the features' faster layout."""

from __future__ import annotations

import numpy as np
import torch

from graphweft._memory import POOL, empty
from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.measure.bench import own_epoch
from graphweft.nn.gcn import GCN
from graphweft.storage.feature import SparseFeatures


def _read(path, shape):
    """A float32 matrix read into the library's own memory, as its readers do."""
    x = empty(shape)
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.readinto(memoryview(x.numpy()).cast("B"))
    return x


def _features(case):
    """In the form the dataset holds them."""
    if case.meta.own_form == "dense":
        return _read(case.folder / "x.npy", (case.meta.num_nodes, case.meta.num_features))
    parts = (torch.from_numpy(case.array(name)) for name in ("x_indptr", "x_indices", "x_values"))
    return SparseFeatures(*parts, (case.meta.num_nodes, case.meta.num_features))


def dataset(case):
    """The case as a dataset that only trains."""
    graph = Graph.from_csc(torch.from_numpy(case.array("indptr")), torch.from_numpy(case.array("indices")))
    train = torch.from_numpy(case.array("train_idx"))
    labels = torch.from_numpy(case.array("y"))
    none = train[:0]
    return Dataset(case.meta.name, graph, _features(case), labels, train, none, none, case.meta.num_classes)


def build(case, variant):
    """The only variant there is."""
    ds = dataset(case)
    model = GCN(case.meta.num_features, case.meta.hidden, case.meta.num_classes, num_layers=case.meta.layers)
    with torch.no_grad():
        for layer, (weight, bias) in zip(model.layers, case.weights(), strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    epoch, path = own_epoch(ds, model, case.meta.lr, keep_features=False)  # as `graphweft train` does
    return epoch, lambda: f"{path} features, {POOL.stats().maps} mappings"
