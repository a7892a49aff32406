"""Features that lie in a store of the user's own: rows of a batch by a function from ids to rows.

Comes in: a batch and the functions. Goes out: the batch with its features. Called by the loaders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.loader.batch import Batch
from graphweft.storage.feature import SparseFeatures

Fetch = Callable[[Tensor], Any]
B = TypeVar("B", bound=Batch)


def as_fetch(who: str, graph: Graph, fetch: Any) -> Fetch | Mapping[str, Fetch] | None:
    """A function, or on a typed graph functions by type. Raises: ConfigError; GraphError for a type that is none."""
    if fetch is None:
        return None
    if not graph.is_typed:
        if not callable(fetch):
            raise ConfigError(f"{who}: expected fetch as a function from node ids to rows, got {type(fetch).__name__}")
        return fetch  # type: ignore[no-any-return]
    if not isinstance(fetch, Mapping) or not all(callable(function) for function in fetch.values()):
        raise ConfigError(f"{who}: expected fetch as a dict from type to function on a typed graph, got {fetch!r}")
    for node_type in fetch:
        graph.layout.node_range(node_type)
    return fetch


def fetched(batch: B, fetch: Fetch | Mapping[str, Fetch] | None) -> B:
    """The batch with its rows. Raises: ShapeError for another number of rows than was asked for."""
    if fetch is None:
        return batch
    if isinstance(fetch, Mapping):
        for node_type, function in fetch.items():
            view: Any = batch[node_type]
            view.x = _rows(function, view.n_id)
    else:
        batch.x = _rows(fetch, batch.n_id)
    return batch


def _rows(function: Fetch, ids: Tensor) -> Tensor:
    found = function(ids)
    rows = found if isinstance(found, SparseFeatures) else torch.as_tensor(found)
    if rows.dim() < 1 or rows.shape[0] != ids.numel():
        raise ShapeError(f"fetch: expected {ids.numel()} rows, one per id, got shape {tuple(rows.shape)}")
    return rows


def labels_of(ds: Any, rows: Tensor) -> Tensor | None:
    """Labels of some nodes, where the data has any."""
    if isinstance(ds, Graph):
        return None
    labels = getattr(ds, "y", None)
    if not isinstance(labels, Tensor) or labels.dim() == 0 or labels.shape[0] != ds.graph.num_nodes:
        return None
    return labels[rows]
