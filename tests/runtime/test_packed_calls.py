"""Recorded calls as one native call: numbers that change, calls of Python between, the error of one that fails."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from graphweft import _native
from graphweft._errors import ShapeError
from graphweft.runtime.packed_calls import Follows, PackedCalls, Place, Unpacked
from graphweft.runtime.tape import Tape


def _entry(name: str) -> Any:
    """An entry point with the types of its arguments."""
    _native.declare(name)
    return getattr(_native._lib, name)


_product, _sums, _draws = map(_entry, ("gw_gemm_nn_f32", "gw_col_sum_f32", "gw_dropout_f32"))


def _of_product(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, rows: Any) -> tuple[Any, tuple[Any, ...]]:
    (n, k), m = x.shape, w.shape[1]
    epilogue = _native.Epilogue(relu=1)
    arguments = (rows, k, m, x.data_ptr(), k, w.data_ptr(), m, 0, ctypes.byref(epilogue), out.data_ptr(), m, None, n)
    return _product, arguments


def test_numbers_follow_the_replay_and_python_runs_between() -> None:
    x, w = torch.randn(9, 5), torch.randn(5, 4)
    out, sums, seen = torch.zeros(9, 4), torch.zeros(4), list[float]()

    def look() -> int:
        seen.append(float(sums.double().sum()))
        return 0

    summed = (_sums, (Follows("rows"), 4, Follows("from", more=16), 4, sums.data_ptr()))
    calls = [_of_product(x, w, out, Follows("rows")), summed, (look, ()), summed]
    packed = PackedCalls(calls, strict=True)
    assert packed.stretches == 2  # the product and its sums, then sums again
    wanted = (x.double() @ w.double()).relu()
    for rows in (3, 8):
        out.zero_()
        given = {"rows": rows, "from": out.data_ptr() - 16}
        packed.replay(given.__getitem__)
        torch.testing.assert_close(out[:rows], wanted[:rows].float())
        assert not out[rows:].any()
        torch.testing.assert_close(sums, wanted[:rows].sum(0).float())
        assert seen.pop() == pytest.approx(float(wanted[:rows].sum()), rel=1e-5)


def test_fields_and_whole_structures_are_set_before_the_first_call() -> None:
    number, wide = _native.Epilogue(), (ctypes.c_int64 * 2)(1, 2)
    there, other = _native.Adjacency(), _native.Adjacency(num_rows=7, num_cols=5, wide=1)
    relu = _native.Epilogue.relu
    places = [
        Place(ctypes.addressof(number) + relu.offset, relu.size, Follows("n", more=-1)),
        Place(ctypes.addressof(wide) + 8, 8, Follows("n", times=-3, more=1)),
        Place(ctypes.addressof(there), ctypes.sizeof(there), Follows("form")),
    ]
    seen = list[tuple[int, ...]]()

    def look() -> int:
        seen.append((number.relu, *wide, there.num_rows, there.num_cols, there.wide))
        return 0

    packed = PackedCalls([(look, ())], places, strict=True)
    packed.replay({"n": 5, "form": ctypes.addressof(other)}.__getitem__)
    assert seen == [(4, 1, -14, 7, 5, 1)]
    assert number.ld_mask == 0  # beside the field of four bytes


def test_doubles_and_wide_numbers_arrive_as_they_are() -> None:
    """The draws of dropout take both: a share as a double, a key of 64 bits."""
    x = torch.randn(64, 16)
    made = [torch.zeros_like(x) for _ in range(3)]
    seed, key = (1 << 64) - 12345, (1 << 63) + 77

    def call(seed: Any, out: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        return _draws, (64, 16, x.data_ptr(), 16, 0.3, seed, key, out.data_ptr(), 16, None, 0)

    assert _draws(*call(seed, made[0])[1]) == 0
    PackedCalls([call(seed, made[1])], strict=True).replay()
    PackedCalls([call(Follows("seed", more=5), made[2])], strict=True).replay({"seed": seed - 5}.__getitem__)
    assert 0 < int((made[0] == 0).sum()) < made[0].numel()
    assert torch.equal(made[1], made[0])
    assert torch.equal(made[2], made[0])


def test_the_call_that_fails_is_named_and_later_ones_are_not_made() -> None:
    x, w = torch.ones(3, 5), torch.ones(5, 4)
    first, last = torch.zeros(3, 4), torch.zeros(3, 4)
    calls = [_of_product(x, w, first, 3), (_sums, (-1, 4, first.data_ptr(), 4, None)), _of_product(x, w, last, 3)]
    packed = PackedCalls(calls, strict=True)
    with pytest.raises(ShapeError, match="gw_col_sum_f32"):
        packed.replay()
    assert packed.done == 1
    assert (first == 5).all()
    assert not last.any()


def test_what_no_word_holds_is_called_from_python_or_refused() -> None:
    x, w, out = torch.ones(3, 5), torch.ones(5, 4), torch.zeros(3, 4)
    rows = ctypes.c_int64(1)
    calls = [_of_product(x, w, out, rows)]
    packed = PackedCalls(calls)
    assert packed.stretches == 0
    rows.value = 2  # as it is when the call is made
    packed.replay()
    assert out.sum(1).tolist() == [20.0, 20.0, 0.0]
    with pytest.raises(Unpacked):
        PackedCalls(calls, strict=True)


def test_a_replayed_tape_is_one_native_call_between_calls_of_torch() -> None:
    x, w = torch.randn(300, 40), torch.randn(40, 30)
    product = _native.declare("gw_gemm_nn_f32")

    def body() -> torch.Tensor:
        out = torch.empty(300, 30)
        for _ in range(3):
            product(*_of_product(x, w, out, 300)[1])
        return out.mul_(2.0)

    tape = Tape.record(body, [x, w], None)
    assert tape is not None
    x.mul_(-0.5)
    found = tape.replay()
    assert tape._packed.stretches == 1
    torch.testing.assert_close(found, (2 * (x.double() @ w.double()).relu()).float())
