"""Graphs of points: who is near whom.

Comes in: coordinates or features of points. Goes out: a graph. Called by users. Neighbours are found by SciPy's k-d
tree, exactly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.spatial
import torch
from numpy.typing import NDArray

from graphweft._checks import as_integer
from graphweft._errors import ConfigError, DtypeError, ShapeError
from graphweft.graph.graph import Graph

Found = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def knn_graph(x: Any, k: int, groups: Any = None, *, loops: bool = False, cosine: bool = False) -> Graph:
    """Edges from the ``k`` nearest points to each point.

    Args:
        x: (N, D) points.
        k: Neighbours of a point; fewer in a group of fewer points.
        groups: (N,) integers, such as ``batch.batch``; only points of the same group are joined. None: one group.
        loops: Whether a point counts as its own neighbour.
        cosine: Whether to compare by angle in place of distance.

    Returns: A graph with ``edata["distance"]``, float32: the distance, or 1 - cosine. In-edges are sorted by it.

    Raises: ConfigError, ShapeError.

    Example:
        >>> [ends.tolist() for ends in knn_graph([[0.0], [1.0], [3.0]], 1).edges()]
        [[1, 0, 1], [0, 1, 2]]
    """
    number = as_integer(k)
    if number is None or number < 1:
        raise ConfigError(f"knn_graph: expected k as an integer >= 1, got {k!r}")
    points = _points("knn_graph", x)
    if cosine:
        points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-300)
    found = [_nearest(points, ids, number, loops) for ids in _by_group("knn_graph", groups, len(points))]
    src, dst, distance = _joined(found)
    return _made(src, dst, distance**2 / 2 if cosine else distance, len(points))


def radius_graph(
    x: Any, r: float, groups: Any = None, *, loops: bool = False, max_neighbors: int | None = None
) -> Graph:
    """Edges between points at most ``r`` apart, in both directions.

    Args:
        x: (N, D) points.
        r: The largest distance.
        groups: As for :func:`knn_graph`.
        loops: Whether a point is joined with itself too.
        max_neighbors: Most neighbours of a point, the nearest ones. Edges may then have no reverse.

    Returns: As :func:`knn_graph`.

    Raises: ConfigError, ShapeError.

    Example:
        >>> [ends.tolist() for ends in radius_graph([[0.0], [1.0], [3.0]], 1.5).edges()]
        [[1, 0], [0, 1]]
    """
    if isinstance(r, bool) or not isinstance(r, int | float) or not (math.isfinite(r) and r > 0):
        raise ConfigError(f"radius_graph: expected r > 0, got {r!r}")
    most = None if max_neighbors is None else as_integer(max_neighbors)
    if max_neighbors is not None and (most is None or most < 1):
        raise ConfigError(f"radius_graph: expected max_neighbors as an integer >= 1, got {max_neighbors!r}")
    points = _points("radius_graph", x)
    found = [_within(points, ids, float(r), loops) for ids in _by_group("radius_graph", groups, len(points))]
    src, dst, distance = _joined(found)
    order = np.lexsort((src, distance, dst))
    src, dst, distance = src[order], dst[order], distance[order]
    if most is not None:
        kept = np.arange(len(dst)) - np.searchsorted(dst, dst) < most
        src, dst, distance = src[kept], dst[kept], distance[kept]
    return _made(src, dst, distance, len(points))


def _nearest(points: NDArray[np.float64], ids: NDArray[np.int64], k: int, loops: bool) -> Found:
    """The nearest points of a group, from which a point itself is taken out unless ``loops``."""
    count = min(k + (not loops), len(ids))
    found: Any = scipy.spatial.cKDTree(points[ids]).query(points[ids], count)
    distance, place = found
    distance, place = distance.reshape(len(ids), count), place.reshape(len(ids), count)
    if not loops:  # among equal points another one may stand in the point's own place
        own = place == np.arange(len(ids))[:, None]
        own[~own.any(axis=1), -1] = True
        distance, place = (part[~own].reshape(len(ids), count - 1) for part in (distance, place))
    dst = np.repeat(ids, place.shape[1])
    return ids[place.reshape(-1)], dst, distance.reshape(-1)


def _within(points: NDArray[np.float64], ids: NDArray[np.int64], r: float, loops: bool) -> Found:
    """Pairs of a group in both directions."""
    pairs = scipy.spatial.cKDTree(points[ids]).query_pairs(r, output_type="ndarray")
    first, second = ids[pairs[:, 0]], ids[pairs[:, 1]]
    own = ids if loops else ids[:0]
    src, dst = np.concatenate([first, second, own]), np.concatenate([second, first, own])
    return src, dst, np.linalg.norm(points[src] - points[dst], axis=1)


def _joined(found: list[Found]) -> Found:
    """The edges of all groups, by destination."""
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    src, dst, distance = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(dst, kind="stable")
    return src[order], dst[order], distance[order]


def _made(src: NDArray[np.int64], dst: NDArray[np.int64], distance: NDArray[np.float64], nodes: int) -> Graph:
    graph = Graph(src, dst, num_nodes=nodes)
    graph.edata["distance"] = torch.from_numpy(distance.astype(np.float32))
    return graph


def _points(who: str, x: Any) -> NDArray[np.float64]:
    """Raises: DtypeError for what is no numbers, ShapeError for no matrix, ConfigError for numbers not finite."""
    try:
        points = torch.as_tensor(x).detach().cpu().double().numpy()
    except (TypeError, ValueError, RuntimeError):
        raise DtypeError(f"{who}: expected points as numbers of shape (N, D), got {type(x).__name__}") from None
    if points.ndim != 2:
        raise ShapeError(f"{who}: expected points of shape (N, D), got {points.shape}")
    if not np.isfinite(points).all():
        raise ConfigError(f"{who}: expected finite numbers, got {points[~np.isfinite(points)][0]}")
    return points


def _by_group(who: str, groups: Any, count: int) -> list[NDArray[np.int64]]:
    """Ids of the points of every group. Raises: ShapeError."""
    if groups is None:
        return [np.arange(count)] if count else []
    numbers = torch.as_tensor(groups).detach().cpu().numpy()
    if numbers.shape != (count,):
        raise ShapeError(f"{who}: expected one group for each of {count} points, got shape {numbers.shape}")
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if count else []
