"""Rows that travel shorter, one step old or in part, between two ranks of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from graphweft.dist.halo_forms import Direction, Leftovers, exchanged, settle


class Side:
    """One of two ranks, whose messages are taken in their order."""

    def __init__(self, rank: int, halo: str, boxes: list[list[Sequence[Tensor]]]) -> None:
        self.rank, self.halo, self._boxes, self._taken, self.bytes = rank, halo, boxes, 0, 0

    def begin_exchange(self, sent: Sequence[Tensor], received: Sequence[Tensor], kept: bool) -> Callable[[], None]:
        other, number = 1 - self.rank, len(self._boxes[self.rank])
        self._boxes[self.rank].append([rows.clone() for rows in sent])
        self.bytes += sent[other].nbytes

        def finish() -> None:
            assert self._taken == number  # in the order of the messages
            self._taken += 1
            received[other].copy_(self._boxes[other][number][self.rank])

        return finish


class Two:
    """Both ranks with what their exchanges leave."""

    def __init__(self, halo: str) -> None:
        boxes: list[list[Sequence[Tensor]]] = [[], []]
        self.sides: list[Any] = [Side(rank, halo, boxes) for rank in range(2)]
        self.left = [Leftovers(1) for _ in self.sides]

    def swap(self, rows: list[Tensor], way: Direction = "there") -> list[Tensor]:
        """``rows[r]`` of rank r to the other one; what rank r received."""
        none = rows[0][:0]
        sent = [[none, rows[0]], [rows[1], none]]
        got = [[none, torch.full_like(rows[1], 9.0)], [torch.full_like(rows[0], 9.0), none]]
        ends = [exchanged(self.sides[r], sent[r], got[r], self.left[r], way) for r in range(2)]
        for end in ends:
            end()
        return [got[0][1], got[1][0]]


def drawn(step: int, rows: int = 40, columns: int = 6) -> list[Tensor]:
    draw = torch.Generator().manual_seed(step)
    return [torch.randn(rows + r, columns, generator=draw) for r in range(2)]


@pytest.mark.parametrize("shift", [0.0, 1000.0, -3e5])
@pytest.mark.parametrize("kind", ["signed", "relu", "zero", "tiny"])
def test_int8_rows_are_within_half_a_step(shift: float, kind: str) -> None:
    rows = {
        "signed": lambda x: x,
        "relu": lambda x: x.clamp(min=0),
        "zero": lambda x: x * 0,
        "tiny": lambda x: x * 1e-30,
    }[kind](drawn(0)[0]) + shift
    pair = Two("int8")
    _, found = pair.swap([rows, rows])
    low, high = rows.double().amin(1, keepdim=True), rows.double().amax(1, keepdim=True)
    wide = (high - low) + low.abs() / 128  # the lowest number is rounded to 8 bit
    bound = wide / 255 / 2 * (1 + 1 / 128) + 1e-6 * low.abs() + 1e-37
    assert bool(((found.double() - rows).abs() <= bound).all())
    assert pair.sides[0].bytes == rows.shape[0] * (rows.shape[1] + 4)
    if kind in ("relu", "zero") and shift == 0:  # all 255 levels are above 0, which stays 0
        assert bool((found[rows == 0] == 0).all())


def test_errors_of_int8_rows_do_not_add_up() -> None:
    """Sums over steps are off by one rounding, not by as many as there were steps."""
    pair, exact, got = Two("int8"), torch.zeros(40, 6), torch.zeros(40, 6)
    for step in range(50):
        rows = drawn(step)
        exact += rows[0]
        got += pair.swap(rows)[1]
        most = (rows[0].amax(1) - rows[0].amin(1)).max() / 255
        assert bool((got - exact).abs().max() < 2 * most)


def test_stale_rows_are_those_of_the_step_before() -> None:
    pair = Two("stale")
    for step in range(5):
        for way in ("there", "home"):
            found = pair.swap(drawn(step if way == "there" else step + 50), way)  # type: ignore[arg-type]
            wanted = drawn(max(step - 1, 0) if way == "there" else max(step - 1, 0) + 50)
            assert torch.equal(found[1], wanted[0]) and torch.equal(found[0], wanted[1])
        for left in pair.left:
            assert len(left.begun) == (2 if step else 0)  # both exchanges travel on
            settle(left.begun)
    assert [side._taken for side in pair.sides] == [10, 10]


def test_sampled_rows_are_right_in_the_mean_and_gradients_go_the_same_way() -> None:
    pair, rows = Two("sampled"), drawn(0, rows=9)
    steps, total = 2000, torch.zeros_like(rows[0])
    seen: set[tuple[int, ...]] = set()
    for step in range(steps):
        found = pair.swap(rows)
        total += found[1]
        kept = found[1].abs().sum(1) > 0
        seen.add(tuple(kept.nonzero().reshape(-1).tolist()))
        assert int(kept.sum()) == 5 and torch.allclose(found[1][kept], rows[0][kept] * (9 / 5))
        other = drawn(step + 1, rows=9)
        given = [other[1], other[0]]  # gradients of the rows that each rank received
        home = pair.swap(given, "home")
        for r in range(2):  # <S x, g> = <x, S' g>
            forward, back = (found[1 - r] * given[1 - r]).sum(), (rows[r] * home[r]).sum()
            assert float(forward) == pytest.approx(float(back), abs=1e-4)
    assert len(seen) > 100  # of 126 subsets
    error = (total / steps - rows[0]).abs() / rows[0].abs()
    assert float(error.max()) < 5 * (0.8 / steps) ** 0.5  # the factor's deviation is 0.9
