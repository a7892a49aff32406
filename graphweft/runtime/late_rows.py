"""Sums over edges in two parts: rows that are there are summed while others travel, rows that travel are made first.

Comes in: a call of a plan that sums over edges, its slots, and how many of the graph's sources are at hand: the first
ones. Goes out: the same sum in its slot. Called by :mod:`graphweft.runtime.piece`, for ranks of several hosts, where
most rows read some of another rank's, so that no row could be computed before they come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft._trace import span
from graphweft.graph.adjacency import Adjacency
from graphweft.runtime.cpu.products import epilogue_of
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.half_rows import HALF
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.sparse import spmm
from graphweft.runtime.target import Launch

Steps = tuple[tuple[Launch, KernelCall], ...]

_ROLES = frozenset(
    {"graph", "x", "src_scale", "row_scale", "bias", "addend", "mask", "post_scale", "rows_of"}
)  # what can be cut by rows


class InTwo:
    """Adjacencies cut between their first ``near`` columns or rows and the others; each is cut once."""

    def __init__(self, near: int) -> None:
        self.near = near
        self._columns: dict[int, tuple[Adjacency, Adjacency, Adjacency]] = {}  # by id of the last, which stays
        self._rows: dict[int, tuple[Adjacency, Adjacency, Adjacency]] = {}

    def columns(self, adj: Adjacency) -> tuple[Adjacency, Adjacency]:
        """All rows, with entries of the first columns, and with the others, numbered from 0.

        Example:
            >>> whole = Adjacency(torch.tensor([0, 2, 3]), torch.tensor([2, 0, 1], dtype=torch.int32), None, 3)
            >>> [part.indices.tolist() for part in InTwo(2).columns(whole)]
            [[0, 1], [0]]
        """
        if id(adj) not in self._columns:
            inside = adj.indices < self.near
            ends = torch.cat([torch.zeros(1, dtype=torch.int64), inside.cumsum(0)])[adj.indptr]
            own = Adjacency(ends, adj.indices[inside], None, self.near)
            others = adj.indices[~inside] - self.near
            made = Adjacency(adj.indptr - ends, others, None, adj.num_cols - self.near)
            self._columns[id(adj)] = own, made, adj
        return self._columns[id(adj)][:2]

    def rows(self, adj: Adjacency) -> tuple[Adjacency, Adjacency]:
        """The first rows, and the others."""
        if id(adj) not in self._rows:
            at = int(adj.indptr[self.near])
            own = Adjacency(adj.indptr[: self.near + 1], adj.indices[:at], None, adj.num_cols)
            others = Adjacency(adj.indptr[self.near :] - at, adj.indices[at:], None, adj.num_cols)
            self._rows[id(adj)] = own, others, adj
        return self._rows[id(adj)][:2]


class Late(NamedTuple):
    """How sources are cut, and what is done between the parts: a wait for the others, or their departure."""

    cut: InTwo
    between: Callable[[Tensor], None]


def suits(call: KernelCall) -> bool:
    """Whether a call is a sum over edges that can be made in two parts."""
    plain = call.kernel == "spmm" and len(call.writes) == 1 and {slot.role for slot in call.reads} <= _ROLES
    kept = call.dtype == torch.float32 and HALF not in call.attrs and call.get("rows") != "bf16"
    return plain and kept and not call.over and call.place == "host"


def replaced(steps: Steps, at: int, run: Callable[[KernelCall, Slots, Late], None], late: Late) -> Steps:
    """The calls, one of which is made in two parts."""
    call = steps[at][1]
    return (*steps[:at], (lambda env: run(call, env, late), call), *steps[at + 1 :])


def scaled_in_time(steps: Steps, late: Late) -> Steps:
    """The calls, of which the first multiplies rows, the last of which are late; the sum that reads them waits.

    The rows are given up: the products take their place.
    """
    call, near = steps[0][1], late.cut.near
    out = call.writes[0].at
    at = next((i for i, (_, later) in enumerate(steps) if later.reading("x") == out), 0)
    if not at or not suits(steps[at][1]):
        late.between(torch.empty(0))
        return steps
    factors: list[Tensor] = []

    def scale(env: Slots) -> None:
        rows = env[call.operand("x")]
        factors.append(env[call.operand("row_scale")].unsqueeze(1))
        rows[:near].mul_(factors[0][:near])
        env[out] = rows

    def scale_others(rows: Tensor) -> None:
        late.between(rows)
        rows[near:].mul_(factors[0][near:])

    return ((scale, call), *replaced(steps, at, sum_sources, Late(late.cut, scale_others))[1:])


def sum_sources(call: KernelCall, env: Slots, late: Late) -> None:
    """Sums the first sources, waits for the others, and adds those."""
    adj, x, scale, stages = _operands(call, env)
    near, (own, others) = late.cut.near, late.cut.columns(adj)
    first, second = (None, None) if scale is None else (scale[:near], scale[near:])
    begun = Epilogue(row_scale=stages.row_scale, addend=stages.addend, addend_rows=stages.addend_rows)
    with span(f"{call.label} of own rows", "kernel"):
        made = spmm(own, x[:near], src_scale=first, self_coef=call.get("self_coef"), epilogue=begun)
    late.between(x)
    rest = replace(stages, addend=made, addend_rows=None)
    with span(f"{call.label} of others", "kernel"):
        env[call.writes[0].at] = spmm(others, x[near:], src_scale=second, epilogue=rest, out=made)


def send_first(call: KernelCall, env: Slots, late: Late) -> None:
    """Makes the last rows, lets them go, and makes the others."""
    adj, x, scale, stages = _operands(call, env)
    near, (own, others) = late.cut.near, late.cut.rows(adj)
    made = empty((adj.num_rows, x.shape[1]))
    with span(f"{call.label} for others", "kernel"):  # whose rows have no row of x of their number
        spmm(others, x, src_scale=scale, epilogue=cut_rows(stages, near, adj.num_rows), out=made[near:])
    late.between(made)
    with span(f"{call.label} for own rows", "kernel"):
        coefficient = call.get("self_coef")
        spmm(own, x, src_scale=scale, self_coef=coefficient, epilogue=cut_rows(stages, 0, near), out=made[:near])
    env[call.writes[0].at] = made


def cut_rows(stages: Epilogue, first: int, last: int) -> Epilogue:
    """The stages of some rows.

    Example:
        >>> cut_rows(Epilogue(addend=torch.ones(3, 1), addend_rows=3), 2, 5).addend_rows
        1
    """
    scale, mask, post = (
        None if t is None else t[first:last] for t in (stages.row_scale, stages.mask, stages.post_scale)
    )
    addend, count = stages.addend, last - first
    if stages.addend_rows is not None:
        count = min(max(stages.addend_rows - first, 0), count)
    addend = None if addend is None or not count else addend[first : first + count]
    short = None if addend is None or count == last - first else count
    return replace(stages, row_scale=scale, mask=mask, post_scale=post, addend=addend, addend_rows=short)


def _operands(call: KernelCall, env: Slots) -> tuple[Adjacency, Tensor, Tensor | None, Epilogue]:
    """In-edges, rows of sources, their factors, and stages."""
    scale = call.reading("src_scale")
    stages = epilogue_of(call, call.value.tensor.dims[0])(env) or Epilogue()
    adj = env[call.operand("graph")].csc_structure
    return adj, env[call.operand("x")], None if scale is None else env[scale], stages


__all__ = ["InTwo", "Late", "Steps", "cut_rows", "replaced", "scaled_in_time", "send_first", "suits", "sum_sources"]
