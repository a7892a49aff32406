"""The target that computes nothing and counts: calls, and the bytes that they would read and write.

Comes in: calls of a plan. Goes out: launchers that leave zeros of the right shapes. Only structure and ids are real, as
sizes follow from them. Known to ``gw.config(target=)`` as "null": a whole run by it takes the time of all that is no
kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from graphweft.ir.movement import EDGE_TYPES, NODE_TYPES
from graphweft.ir.program import Value
from graphweft.ir.residency import IndexType, StructType, TensorType
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.row_kernels import is_built
from graphweft.runtime.target import Launch, Target, interpreted
from graphweft.storage.feature import is_dense


class Seen(NamedTuple):
    """A call that was launched, and the bytes of its dense operands and results."""

    call: KernelCall
    read: int
    written: int


class Null(Target):
    """Every kernel is zeros."""

    norms_in_place = True  # as on the CPU, whose plans it counts

    def is_built(self, region: Sequence[Value]) -> bool:
        """As on the CPU, whose plans it counts."""
        return is_built(region)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._seen: list[Seen] | None = None

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[Seen]]:
        """The calls that are launched in the block, in order.

        Example:
            >>> import graphweft as gw
            >>> from graphweft.runtime.targets import NULL
            >>> graph, model = gw.Graph([0, 1, 2], [1, 2, 0]), gw.nn.GCN(4, 8, 2)
            >>> with gw.config(target="null"), NULL.counting() as seen:
            ...     _ = model(graph, torch.ones(3, 4))
            >>> sum(item.read for item in seen) > 0
            True
        """
        former, self._seen = self._seen, []
        try:
            yield self._seen
        finally:
            self._seen = former

    def launch(self, call: KernelCall) -> Launch:
        """Counts, and leaves zeros."""
        real = None if all(_has_rows(slot.value.type) for slot in call.writes) else interpreted(call)
        dense = {slot.at for slot in call.reads if isinstance(slot.value.type, TensorType)}

        def run(slots: Slots) -> None:
            read = sum(slots[at].nbytes for at in dense if is_dense(slots[at]))
            if real is None:
                for at, made in _zeros(call, slots):
                    slots[at] = made
            else:
                real(slots)
            written = sum(slots[slot.at].nbytes for slot in call.writes if is_dense(slots[slot.at]))
            if self._seen is not None:
                self._seen.append(Seen(call, read, written))

        return run


def _has_rows(kind: Any) -> bool:
    return isinstance(kind, TensorType) and not kind.sparse


def _zeros(call: KernelCall, slots: Slots) -> list[tuple[int, torch.Tensor]]:
    """Results of the right shapes, each with its slot."""
    rows: dict[str, int] = {}
    for slot in call.reads:
        kind, item = slot.value.type, slots[slot.at]
        if isinstance(kind, StructType):
            rows |= {kind.src: item.num_src, kind.dst: item.num_dst, kind.edge: item.num_edges}
            if item.is_typed:
                rows |= {NODE_TYPES: len(item.layout.node_types), EDGE_TYPES: len(item.layout.relations)}
        elif kind.rows is not None:
            rows[kind.rows] = item.numel() if isinstance(kind, IndexType) else item.shape[0]
    place = next((slots[s.at].device for s in call.reads if is_dense(slots[s.at])), None)
    made = []
    for slot in call.writes:
        kind = slot.value.tensor
        shape = kind.dims if kind.rows is None else (rows[kind.rows], *kind.dims)
        made.append((slot.at, torch.zeros(shape, dtype=kind.dtype, device=place)))
    return made


__all__ = ["Null", "Seen"]
