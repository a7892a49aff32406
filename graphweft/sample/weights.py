"""Weights that decide draws, as the samplers want them.

Comes in: a user's weights or probabilities. Goes out: checked tensors in the order of a compressed structure. Called by
the samplers beside this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graphweft._checks import check_rows, checksum
from graphweft._errors import ConfigError, DtypeError, ShapeError
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph


def by_position(who: str, structure: Adjacency, weight: Any) -> torch.Tensor:
    """Weights given by edge id, in the order of ``structure``, float32.

    Raises: ShapeError for another number of them, ConfigError for one that is negative or not finite.
    """
    values = as_weights(who, weight, structure.num_edges, "edge").to(torch.float32)
    ids = structure.edge_ids
    return values.contiguous() if ids is None else values[ids.long()]


def flat_weights(who: str, graph: Graph, weight: Any) -> Any:
    """Weights given by relation, in the order of the graph's edges, 1 where there are none; anything else as it is.

    Raises: ConfigError, DtypeError, ShapeError; GraphError for a relation that the graph has not.

    Example:
        >>> g = Graph.hetero({("a", "to", "b"): ([0], [0]), ("b", "to", "a"): ([0, 0], [0, 0])})
        >>> flat_weights("Loader", g, {("b", "to", "a"): [5, 6]}).tolist()
        [1.0, 5.0, 6.0]
    """
    if not isinstance(weight, Mapping):
        return weight
    for relation in weight:
        graph.layout.edge_range(relation)
    parts = []
    for relation in graph.relations:
        count = len(graph.layout.edge_range(relation))
        given = weight.get(relation, torch.ones(count))
        parts.append(as_weights(f"{who} {'-'.join(relation)}", given, count, "edge").to(torch.float32))
    return torch.cat(parts)


def weights_identity(weight: torch.Tensor | None) -> dict[str, Any]:
    """What a sampler's identity says of its weights: whether there are any, and a checksum of those there are.

    Example:
        >>> weights_identity(None)
        {'weighted': False}
        >>> weights_identity(torch.ones(2)) == weights_identity(torch.tensor([1.0, 2.0]))
        False
    """
    if weight is None:
        return {"weighted": False}
    return {"weighted": True, "weights_checksum": checksum(weight)}


def as_weights(who: str, weight: Any, count: int, what: str) -> torch.Tensor:
    """One finite weight >= 0 per ``what``, shape (count,).

    Raises: DtypeError for what is no number; ShapeError for another number of them, ConfigError for one that is
    negative or not finite.

    Example:
        >>> as_weights("sampler", [1.0, -2.0], 2, "node")
        Traceback (most recent call last):
        graphweft._errors.ConfigError: sampler: expected weights >= 0, got -2.0 at position 1
    """
    try:
        values: torch.Tensor = torch.as_tensor(weight).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        got = type(weight).__name__
        raise DtypeError(f"{who}: expected weights as numbers, one per {what}, got {got}") from None
    if values.dim() > 1 and values.numel() == count:
        values = values.reshape(-1)
    check_rows(f"{who} weight", values, count, what)
    bad = ~(torch.isfinite(values) & (values >= 0))
    if values.dim() == 1 and bool(bad.any()):
        position = int(bad.nonzero()[0])
        raise ConfigError(f"{who}: expected weights >= 0, got {float(values[position])} at position {position}")
    if values.dim() > 1:
        raise ShapeError(f"{who} weight: expected {count} numbers, one per {what}, got shape {tuple(values.shape)}")
    return values
