"""One graph of many with its data, and many joined to the parts of one set.

Comes in: graphs of ours or of PyTorch Geometric. Goes out: :class:`GraphSample`, or keywords of a dataset. Called by
:class:`graphweft.data.graph_dataset.GraphDataset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DataError, GraphWeftError
from graphweft.data.given import given_features, given_floats
from graphweft.graph.graph import Graph
from graphweft.graph.side_by_side import owners
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.gather import gather_rows

GRAPH_ID = "graph_id"  # the array of a dataset of several graphs with labelled nodes: the graph of each node


@dataclass(frozen=True, eq=False, repr=False)
class GraphSample:
    """One graph of a set.

    Attributes:
        graph: N nodes, E edges.
        x: (N, F) features, or None.
        y: Its label: an int64 class id or a float32 value of shape (), several labels (C,), or None; labels of its
            nodes, (N,) or (N, C), where those are predicted.
        edge_weight: (E,) float32, or None.
        edge_features: (E, K) float32, or None.
    """

    graph: Graph
    x: Any = None
    y: Any = None
    edge_weight: Any = None
    edge_features: Any = None

    def __repr__(self) -> str:
        width = "no features" if self.x is None else f"{self.x.shape[1]} features"
        told = "" if self.y is None else f", y={torch.as_tensor(self.y).tolist()}"
        return f"GraphSample({self.graph.num_nodes} nodes, {self.graph.num_edges} edges, {width}{told})"


def sample_of(ds: Any, number: int) -> GraphSample:
    """Graph ``number`` of a set of graphs."""
    taken = ds.side_by_side.take(torch.tensor([number]))
    weight, features = ds.edge_weight, ds.edge_features
    return GraphSample(
        taken.graph,
        None if ds.x is None else gather_rows(ds.x, taken.nodes),
        ds.y[number],
        None if weight is None else weight[taken.edges],
        None if features is None else features[taken.edges],
    )


_CONVERTED = ("networkx", "dgl", "scipy")  # libraries whose graphs gw.interop takes


def as_sample(item: Any, who: str) -> GraphSample:
    """``item``, a graph, a sample, or a ``Data`` of PyTorch Geometric, as a sample. Raises: DataError."""
    if isinstance(item, GraphSample):
        return item
    if isinstance(item, Graph):
        data, edges = item.stored("ndata"), item.stored("edata")
        return GraphSample(item, data.get("x"), None, edges.get("edge_weight"), edges.get("edge_attr"))
    edge_index = getattr(item, "edge_index", None)
    if edge_index is None or not hasattr(item, "num_nodes"):
        text = f"{who}: expected a gw.Graph, a sample, or a Data of PyTorch Geometric with edge_index"
        library, kind = type(item).__module__.split(".")[0], type(item).__name__
        remedy = f" of {library}; gw.interop.from_{library} makes one" if library in _CONVERTED else ""
        raise DataError(f"{text}, got {kind}{remedy}")
    try:
        graph = Graph(edge_index[0], edge_index[1], num_nodes=item.num_nodes)
    except GraphWeftError as error:
        raise DataError(f"{who}: {error}") from None
    named = {name: getattr(item, name, None) for name in ("x", "y", "edge_weight", "edge_attr")}
    return GraphSample(graph, named["x"], named["y"], named["edge_weight"], named["edge_attr"])


def of_parts(train: Sequence[Any], val: Sequence[Any], test: Sequence[Any]) -> dict[str, Any]:
    """Keywords of a dataset whose rows are the nodes of all graphs, split by graph.

    Raises: DataError naming the graph that does not fit.
    """
    parts = {"train": list(train), "val": list(val), "test": list(test)}
    if not parts["train"]:
        raise DataError("from_graphs: expected at least one graph to train on, got none")
    samples, who = [], []
    for part, graphs in parts.items():
        for i, item in enumerate(graphs):
            sample = as_sample(item, f"{part}[{i}]")
            known = item.stored("ndata").get("y") if isinstance(item, Graph) else sample.y
            samples.append(replace(sample, y=known))
            who.append(f"{part}[{i}]")
    out = joined(samples, of_nodes=True, who=who)
    owner = owners(out.pop("graph_ptr"))
    ends = torch.tensor([len(graphs) for graphs in parts.values()]).cumsum(0)
    for place, part in enumerate(parts):
        first = 0 if place == 0 else int(ends[place - 1])
        out[f"{part}_idx"] = ((owner >= first) & (owner < int(ends[place]))).nonzero().reshape(-1)
    return {**out, "arrays": {GRAPH_ID: owner}}


def joined(samples: Sequence[GraphSample], of_nodes: bool = False, who: Sequence[str] | None = None) -> dict[str, Any]:
    """Keywords of a dataset of all samples side by side. Raises: DataError naming the sample that does not fit.

    ``of_nodes``: labels are those of nodes.
    """
    who = who or [f"graphs[{i}]" for i in range(len(samples))]
    counts = torch.tensor([sample.graph.num_nodes for sample in samples])
    ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    ends = [torch.stack(sample.graph.edges()) for sample in samples]
    shift = ptr[:-1].repeat_interleave(torch.tensor([end.shape[1] for end in ends]))
    src, dst = torch.cat(ends, dim=1) + shift
    out: dict[str, Any] = {"graph": Graph(src, dst, num_nodes=int(ptr[-1])), "graph_ptr": ptr}
    for name in ("x", "edge_weight", "edge_features"):
        on_nodes = name == "x"
        out[name] = _column(samples, name, on_nodes, who)
    out["y"] = _node_labels(samples, who) if of_nodes else _labels(samples)
    return out


def _column(samples: Sequence[GraphSample], name: str, on_nodes: bool, places: Sequence[str]) -> Features | None:
    """A table of all samples, one under the other; None where none has it."""
    held = [getattr(sample, name) is not None for sample in samples]
    if not any(held):
        return None
    if not all(held):
        raise DataError(f"{places[held.index(False)]}: expected {name} as the others have, got none")
    parts: list[Tensor] = []
    for i, sample in enumerate(samples):
        who, value = f"{places[i]} {name}", getattr(sample, name)
        rows = given_features(who, value) if on_nodes else given_floats(who, value)
        dense = rows.to_dense() if isinstance(rows, SparseFeatures) else rows
        assert dense is not None  # a value was given
        if name != "edge_weight" and dense.dim() == 1:
            dense = dense[:, None]
        count = sample.graph.num_nodes if on_nodes else sample.graph.num_edges
        width = parts[0].shape[1:] if parts else dense.shape[1:]
        if dense.dim() != (1 if name == "edge_weight" else 2) or dense.shape[0] != count or dense.shape[1:] != width:
            expected = (count, *width) if name != "edge_weight" else (count,)
            raise DataError(f"{who}: expected shape {expected}, got {tuple(dense.shape)}")
        parts.append(dense)
    return torch.cat(parts)


def classes_by_name(y: Any) -> tuple[Any, dict[str, Any]]:
    """Class ids in the order of the names where labels are texts, with these names; other labels as they are.

    Example:
        >>> classes_by_name(["ring", None, "path"])
        ([1, -1, 0], {'class_names': ('path', 'ring')})
    """
    items = y.tolist() if hasattr(y, "tolist") and not isinstance(y, Tensor) else y
    if not isinstance(items, list | tuple) or not any(isinstance(item, str) for item in items):
        return y, {}
    other = next((item for item in items if not (item is None or isinstance(item, str))), None)
    if other is not None:
        raise DataError(f"y: expected names of classes, or None where unknown, got {other!r} among them")
    names = tuple(sorted({item for item in items if item is not None}))
    ids = {name: i for i, name in enumerate(names)}
    return [-1 if item is None else ids[item] for item in items], {"class_names": names}


def _labels(samples: Sequence[GraphSample]) -> Tensor | None:
    """Labels that the samples bring along: whole numbers as class ids, others as they are."""
    held = [sample.y is not None for sample in samples]
    if not any(held):
        return None
    if not all(held):
        raise DataError(f"graphs[{held.index(False)}]: expected a label y as the others have, got none")
    rows = [torch.as_tensor(sample.y).reshape(-1) for sample in samples]
    widths = {row.numel() for row in rows}
    if len(widths) > 1:
        raise DataError(f"from_list: expected labels of one width, got {min(widths)} and {max(widths)} columns")
    y = torch.stack(rows)
    return y.reshape(-1) if y.shape[1] == 1 else y


def _node_labels(samples: Sequence[GraphSample], who: Sequence[str]) -> Tensor:
    """Labels of the nodes of all samples, one under the other."""
    rows: list[Tensor] = []
    for place, sample in zip(who, samples, strict=True):
        if sample.y is None:
            raise DataError(f"{place}: expected labels y of its nodes, got none")
        row = torch.as_tensor(sample.y)
        count = sample.graph.num_nodes
        expected = (count, *(rows[0].shape[1:] if rows else row.shape[1:]))
        if row.dim() not in (1, 2) or tuple(row.shape) != expected:
            hint = "; gw.GraphDataset has one label a graph" if row.numel() == 1 else ""
            raise DataError(f"{place} y: expected labels of its nodes, shape {expected}, got {tuple(row.shape)}{hint}")
        rows.append(row)
    return torch.cat(rows)
