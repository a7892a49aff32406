"""A prepared batch over a table that holds some rows of the features, instead of those of all nodes.

Comes in: what the first stage of a batch made, and where rows lie. Goes out: the same in places of the table. Called
for batches whose features are on disk: the second stage runs the same calls on the same numbers, so it gives the same
bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft.graph.block import OpenBlock
from graphweft.ir.residency import IndexType, StructType, TensorType
from graphweft.runtime.plan import Plan

_NODES = "N"  # the symbol of all nodes in programs of batches


class Relocation:
    """What of a plan's hoisted values speaks of nodes of the whole graph.

    Args:
        plan: Of the second stage.
    """

    def __init__(self, plan: Plan) -> None:
        self._types = [item.value.type for item in plan.hoisted]
        self._reads_seeds = "seeds" in plan.fixed or "seeds" in plan.tensors
        self.is_possible = "graph" not in plan.fixed
        """Whether the second stage reads nothing of the whole graph itself."""

    def nodes(self, seeds: Tensor, values: tuple[Any, ...]) -> Tensor:
        """int64, ascending: the nodes that are named."""
        named = [seeds] if self._reads_seeds else []
        for type_, value in zip(self._types, values, strict=True):
            if _names_nodes(type_):
                named.append(value)
            elif _is_open(type_):
                named.append(value.csc.indices)
        return torch.unique(torch.cat([ids.long() for ids in named])) if named else seeds[:0]

    def moved(self, seeds: Tensor, values: tuple[Any, ...], place: Tensor, rows: int) -> tuple[tuple[Any, ...], Tensor]:
        """The values and the seeds in places of a table of ``rows`` rows."""
        found: list[Any] = []
        nodes: Tensor | None = None
        for type_, value in zip(self._types, values, strict=True):
            if _names_nodes(type_):
                found.append(place[value].to(value.dtype))
            elif _is_open(type_):
                assert isinstance(value, OpenBlock)  # the other blocks have numbers of their own
                found.append(value.moved(place, rows))
            elif isinstance(type_, TensorType) and type_.rows == _NODES:
                nodes = self.nodes(seeds, values) if nodes is None else nodes
                numbers = value.new_zeros((rows, *value.shape[1:]))
                found.append(numbers.index_copy_(0, place[nodes].long(), value[nodes]))
            else:
                found.append(value)
        return tuple(found), place[seeds].to(seeds.dtype) if self._reads_seeds else seeds


def _names_nodes(type_: Any) -> bool:
    return isinstance(type_, IndexType) and type_.into == _NODES


def _is_open(type_: Any) -> bool:
    return isinstance(type_, StructType) and type_.src == _NODES
