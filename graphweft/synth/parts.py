"""Files of the parts of a dataset, one a rank, as MPI programs read them.

Comes in: a dataset and the rank of every node. Goes out: a folder of ``rank-R.npz``: own nodes, those without an edge
to another rank first; in-edges and out-edges in local numbers, own nodes before ghosts; which rows each rank borrows;
and features, labels and masks of the own nodes. Called by :mod:`graphweft.synthesis`. Source: Morphling, section IV-D.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphweft._errors import ConfigError
from graphweft.data.dataset import Dataset
from graphweft.partitioning.partition import partition
from graphweft.storage.feature import SparseFeatures

Array = NDArray[Any]


def owners(ds: Dataset, ranks: int) -> Array:
    """int64 (num_nodes,), the rank of every node, with few edges between ranks. Raises: ConfigError."""
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= ds.num_nodes:
        raise ConfigError(f"ranks: expected an integer from 1 to {ds.num_nodes}, got {ranks!r}")
    if ranks == 1:
        return np.zeros(ds.num_nodes, np.int64)
    found = partition(ds.graph, ranks).part.numpy().astype(np.int64)
    if np.bincount(found, minlength=ranks).min() == 0:
        raise ConfigError(f"ranks: expected fewer than {ranks}: the graph falls into fewer parts, got an empty one")
    return found


def write_parts(ds: Dataset, owner: Array, folder: Path, nonzeros: bool, weighted: bool = False) -> None:
    """Writes ``rank-0.npz`` and so on; features as compressed rows with ``nonzeros``, edges with their weights."""
    folder.mkdir(parents=True)
    ranks = int(owner.max()) + 1
    src, dst = (ends.numpy() for ends in ds.graph.edges())
    own = _own_nodes(owner, src, dst)
    number = np.empty(owner.size, np.int64)
    for nodes, _ in own:
        number[nodes] = np.arange(nodes.size)
    sides = {"in": (dst, src), "out": (src, dst)}
    borrowed = {name: [_ghosts(owner, rank, *ends) for rank in range(ranks)] for name, ends in sides.items()}
    masks = {part: np.zeros(owner.size, bool) for part in ("train", "val", "test")}
    for part, mask in masks.items():
        mask[ds.idx(part).numpy()] = True  # type: ignore[arg-type]
    train = int(ds.labelled("train").numel())
    for rank, (nodes, interior) in enumerate(own):
        arrays: dict[str, Array] = {"own": nodes, "y": ds.y.numpy()[nodes]}
        arrays |= {f"{part}_mask": mask[nodes] for part, mask in masks.items()}
        features = _features(ds, nodes, nonzeros)
        for name, (rows, cols) in sides.items():
            side = _side(name, owner, number, rank, rows, cols, borrowed[name], nodes.size)
            if weighted and ds.edge_weight is not None:
                side[f"{name}_edge_weight"] = ds.edge_weight.numpy()[side[f"{name}_edge_ids"]]
            arrays |= side
        count = features["x_indices"].size if nonzeros else 0
        sizes = (owner.size, src.size, train, ranks, nodes.size, interior, count)
        whole: dict[str, Any] = {"sizes": np.array(sizes, np.int64), **arrays, **features}
        np.savez(folder / f"rank-{rank}.npz", **whole)


def _own_nodes(owner: Array, src: Array, dst: Array) -> list[tuple[Array, int]]:
    """Nodes of each rank, the interior first, and how many those are."""
    is_edge = np.zeros(owner.size, bool)
    across = owner[src] != owner[dst]
    is_edge[src[across]] = is_edge[dst[across]] = True
    order = np.lexsort((np.arange(owner.size), is_edge, owner))
    ends = np.cumsum(np.bincount(owner))
    own = np.split(order, ends[:-1])
    return [(nodes, int((~is_edge[nodes]).sum())) for nodes in own]


def _ghosts(owner: Array, rank: int, rows: Array, cols: Array) -> Array:
    """Nodes of other ranks in the columns of a rank's rows, rank by rank, ascending within one."""
    found = np.unique(cols[(owner[rows] == rank) & (owner[cols] != rank)])
    return found[np.argsort(owner[found], kind="stable")]


def _side(
    name: str, owner: Array, number: Array, rank: int, rows: Array, cols: Array, borrowed: list[Array], count: int
) -> dict[str, Array]:
    """Edges by own row in local numbers, and what travels."""
    ranks, ghosts = len(borrowed), borrowed[rank]
    mine = np.flatnonzero(owner[rows] == rank)
    row, col = number[rows[mine]], cols[mine]
    local = number[col]
    outside = owner[col] != rank
    place = np.zeros(owner.size, np.int64)
    place[ghosts] = count + np.arange(ghosts.size)
    local[outside] = place[col[outside]]
    order = np.argsort(row, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))])
    lent = [number[ids[owner[ids] == rank]] for ids in borrowed]
    return {
        f"{name}_indptr": indptr.astype(np.int64),
        f"{name}_indices": local[order].astype(np.int32),
        f"{name}_edge_ids": mine[order].astype(np.int32),
        f"{name}_ghosts": ghosts,
        f"{name}_borrowed": np.bincount(owner[ghosts], minlength=ranks).astype(np.int64),
        f"{name}_lent": np.concatenate(lent).astype(np.int64),
        f"{name}_lent_ends": np.cumsum([ids.size for ids in lent]).astype(np.int64),
    }


def _features(ds: Dataset, nodes: Array, nonzeros: bool) -> dict[str, Array]:
    """Rows of the own nodes."""
    x = ds.x
    if nonzeros:
        x = x if isinstance(x, SparseFeatures) else SparseFeatures.from_dense(x)
        rows = x.to_scipy()[nodes]
        indptr, indices = rows.indptr.astype(np.int64), rows.indices.astype(np.int32)
        parts: dict[str, Array] = {"indptr": indptr, "indices": indices, "data": rows.data}
        return {**{f"x_{key}": value for key, value in parts.items()}, "x_shape": np.array(rows.shape, np.int64)}
    assert x is not None  # as the plans were made for it
    return {"x": (x.to_dense() if isinstance(x, SparseFeatures) else x).numpy()[nodes]}


__all__ = ["owners", "write_parts"]
