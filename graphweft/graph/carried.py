"""Named tensors of the graphs that edits make.

Comes in: a graph with ``ndata`` and ``edata``, and one made of it. Goes out: nothing; the new graph has their rows, or
values merged or filled in where its edges are new. Called by Graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from graphweft._errors import DtypeError, GraphError, ShapeError
from graphweft.graph.fields import Fields

REDUCES = ("sum", "mean", "min", "max")
_OTHER_NAMES = {"add": "sum", "amin": "min", "amax": "max"}


class WithFields(Protocol):
    """What is read of a graph."""

    @property
    def srcdata(self) -> Fields: ...  # noqa: D102
    @property
    def dstdata(self) -> Fields: ...  # noqa: D102
    @property
    def edata(self) -> Fields: ...  # noqa: D102
    @property
    def is_square(self) -> bool: ...  # noqa: D102
    @property
    def num_src(self) -> int: ...  # noqa: D102
    @property
    def num_dst(self) -> int: ...  # noqa: D102
    def edges(self) -> tuple[Tensor, Tensor]: ...  # noqa: D102


G = TypeVar("G", bound=WithFields)


def carry(origin: WithFields, made: WithFields, edges: Any, src: Any = None, dst: Any = None) -> None:
    """Rows ``src`` and ``dst`` of the node tensors, None: all; rows ``edges`` of the edge tensors, None: none."""
    for name, table in origin.dstdata.items():
        made.dstdata[name] = table if dst is None else table[dst]
    if not made.is_square:
        for name, table in origin.srcdata.items():
            made.srcdata[name] = table if src is None else table[src]
    if edges is not None:
        for name, table in origin.edata.items():
            made.edata[name] = table[edges]


def joined(who: str, made: Fields, first: Fields, second: Fields) -> None:
    """The rows of ``first``, then those of ``second``. Raises: GraphError where only one of them has a name."""
    alone = sorted(set(first) ^ set(second))
    if alone:
        raise GraphError(f"{who}: expected the same edata on both sides, got {alone[0]!r} on one; set or delete it")
    for name, rows in first.items():
        if rows.shape[1:] != second[name].shape[1:]:
            shapes = f"{tuple(rows.shape)} and {tuple(second[name].shape)}"
            raise ShapeError(f"{who}: expected edata {name!r} with rows of one shape, got {shapes}")
        made[name] = torch.cat([rows, second[name]])


def as_reduce(who: str, reduce: str | None, edata: Fields) -> str | None:
    """A known way to merge; None where nothing is to be merged. Raises: GraphError."""
    if reduce is None and len(edata):
        choices = ", ".join(REDUCES)
        raise GraphError(f"{who}: expected reduce for edata {', '.join(edata)}: one of {choices}, drop; got None")
    reduce = _OTHER_NAMES.get(str(reduce), reduce)
    if reduce not in (None, "drop", *REDUCES):
        raise GraphError(f"{who}: expected reduce as one of {', '.join(REDUCES)}, drop, got {reduce!r}")
    return None if reduce == "drop" else reduce


def merge(origin: WithFields, made: G, reduce: str | None, both: bool = False) -> G:
    """Gives ``made``, whose edges are distinct and sorted, the merged values; ``both``: of reverses too."""
    carry(origin, made, None)
    if reduce is None or not len(origin.edata):
        return made
    src, dst = origin.edges()
    if both:
        src, dst = torch.cat([src, dst]), torch.cat([dst, src])
    new_src, new_dst = made.edges()
    places = torch.searchsorted(new_dst * made.num_src + new_src, dst * made.num_src + src)
    for name, values in origin.edata.items():
        twice = torch.cat([values, values]) if both else values
        made.edata[name] = _reduced(f"edata {name!r}", twice, places, new_src.numel(), reduce)
    return made


def fill_loops(origin: WithFields, made: WithFields, rows: Tensor, fill: Any) -> None:
    """The edge tensors of ``origin``, then values for loops at the nodes ``rows``. Raises: GraphError, DtypeError."""
    for name, values in origin.edata.items():
        value = fill
        if isinstance(fill, Mapping):
            if name not in fill:
                raise GraphError(f"Graph.add_self_loops: expected fill_value for every edata, got none for {name!r}")
            value = fill[name]
        made.edata[name] = torch.cat([values, _loop_rows(origin, name, values, rows, value)])


def _loop_rows(origin: WithFields, name: str, values: Tensor, rows: Tensor, fill: Any) -> Tensor:
    who = f"Graph.add_self_loops: edata {name!r}"
    if isinstance(fill, str):
        reduce = _OTHER_NAMES.get(fill, fill)
        if reduce not in REDUCES:
            raise GraphError(
                f"{who}: expected fill_value as a number, a row or one of {', '.join(REDUCES)}, got {fill!r}"
            )
        return _reduced(who, values, origin.edges()[1], origin.num_dst, reduce)[rows]
    given = torch.as_tensor(fill)
    row = given.to(values.dtype)
    if values.dtype != torch.bool and not values.is_floating_point() and bool((row != given).any()):
        raise DtypeError(f"{who}: expected fill_value that fits {values.dtype}, got {fill!r}")
    try:
        return row.expand(rows.numel(), *values.shape[1:])
    except RuntimeError:
        shapes = f"{tuple(values.shape[1:])}, got {tuple(row.shape)}"
        raise ShapeError(f"{who}: expected fill_value of shape {shapes}") from None


def _reduced(who: str, values: Tensor, places: Tensor, count: int, reduce: str) -> Tensor:
    """(count, ...): ``values`` reduced by place, 0 where there are none. Raises: DtypeError."""
    fits = values.is_floating_point() or values.is_complex() or reduce in ("min", "max")
    if values.dtype == torch.bool and reduce in ("min", "max"):
        return _reduced(who, values.to(torch.uint8), places, count, reduce).bool()
    if values.dtype == torch.bool or not (fits or reduce == "sum"):
        raise DtypeError(f"{who}: expected reduce 'min' or 'max' for {values.dtype}, got {reduce!r}")
    out = values.new_zeros((count, *values.shape[1:]))
    if reduce == "sum":
        return out.index_add(0, places, values)
    name = {"min": "amin", "max": "amax"}.get(reduce, reduce)
    at = places.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return out.scatter_reduce(0, at, values, name, include_self=False)
