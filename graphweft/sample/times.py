"""Times of edges and seeds as 64-bit keys that compare as the times do.

Comes in: integers or floats from a user. Goes out: int64 keys; one kind for native code, whatever the user's was.
Called by the segment sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphweft._checks import check_rows
from graphweft._errors import ConfigError, DtypeError, ShapeError
from graphweft.graph.graph import Graph

_LOWEST, _HIGHEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


def flat_times(who: str, graph: Graph, times: Any) -> Any:
    """Times given by relation, in the order of the graph's edges; anything else as it is.

    Raises: ConfigError for a relation without times; DtypeError, ShapeError.

    Example:
        >>> g = Graph.hetero({("a", "to", "b"): ([0], [0]), ("b", "to", "a"): ([0, 0], [0, 0])})
        >>> flat_times("Loader", g, {("b", "to", "a"): [5, 6], ("a", "to", "b"): [4]})
        tensor([4, 5, 6])
    """
    if not isinstance(times, Mapping):
        return times
    parts = []
    for relation in graph.relations:
        name = "-".join(relation)
        if relation not in times:
            raise ConfigError(f"{who}: expected times for every relation, got none for {name}")
        count = len(graph.layout.edge_range(relation))
        parts.append(as_times(who, f"time of {name}", times[relation], count, "edge"))
    for relation in times:
        graph.layout.edge_range(relation)
    return torch.cat(parts)


def as_times(who: str, name: str, value: Any, rows: int, what: str) -> Tensor:
    """``value`` as int64 or float64 (rows,) times.

    Raises: DtypeError for what is no number, ShapeError for another number of times, ConfigError for not-a-number.

    Example:
        >>> as_times("Loader", "time", [1, 5], 2, "edge")
        tensor([1, 5])
        >>> as_times("Loader", "time", [1.0, float("nan")], 2, "edge")
        Traceback (most recent call last):
        graphweft._errors.ConfigError: Loader: expected time without not-a-number, got nan at position 1
    """
    try:
        times = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise DtypeError(f"{who}: expected {name} as numbers, one per {what}, got {type(value).__name__}") from None
    if times.dtype == torch.bool or times.is_complex():
        raise DtypeError(f"{who}: expected {name} as integers or floats, got {times.dtype}")
    if times.dim() > 1:
        raise ShapeError(f"{who}: expected {name} with 1 dimension, got shape {tuple(times.shape)}")
    check_rows(f"{who} {name}", times, rows, what)
    if not times.is_floating_point():
        return times.long().contiguous()
    if bool(times.isnan().any()):
        raise ConfigError(
            f"{who}: expected {name} without not-a-number, got nan at position {int(times.isnan().nonzero()[0])}"
        )
    return times.double().contiguous()


def as_kind_of(who: str, times: Tensor, like: Tensor) -> Tensor:
    """``times`` as float64 if ``like`` is.

    Raises: ConfigError for an integer that float64 does not hold, and for floats beside integers.
    """
    if times.dtype == like.dtype:
        return times
    if times.is_floating_point():
        raise ConfigError(f"{who}: expected times of seeds as integers, as those of the edges are, got floats")
    exact = times.double()
    if not bool((exact.long() == times).all()):
        raise ConfigError(f"{who}: expected integers below 2^53 beside floats as times, got larger ones")
    return exact


def keys_of(times: Tensor) -> Tensor:
    """int64 keys in the order of the times; equal times have equal keys, 0.0 and -0.0 too.

    Example:
        >>> keys_of(torch.tensor([-1.5, -0.0, 0.0, 2.0], dtype=torch.float64)).diff().sign().tolist()
        [1, 0, 1]
    """
    if not times.is_floating_point():
        return times
    bits = (times + 0.0).view(torch.int64)
    return bits ^ ((bits >> 63) & _HIGHEST)


def window_start(times: Tensor, window: float | None) -> Tensor:
    """Keys of ``times - window``; the lowest key without a window."""
    if window is None:
        return torch.full((times.numel(),), _LOWEST, dtype=torch.int64)
    if times.is_floating_point():
        return keys_of(times - window)
    width = int(window)
    return torch.where(times < _LOWEST + width, _LOWEST, times - width)
