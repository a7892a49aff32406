"""A slice of the fuzz of user functions; more by ``python -m tests.fuzz.user_functions --seed S --programs N``."""

from __future__ import annotations

import pytest
from fuzz.user_functions import VARIANTS, Tally, run_program

from graphweft.runtime import build

SLICE = 12  # programs, five cases each


def checked(seed: int, numbers: range, kernels: bool = False) -> Tally:
    """What came of programs ``numbers`` of ``seed``; the first failure is shown."""
    tally = Tally()
    for number in numbers:
        run_program(seed, number, tally, kernels)
    assert not tally.failures, tally.failures[0]
    assert sum(tally.counts.values()) == VARIANTS * len(numbers)
    return tally


def test_a_slice_equals_its_plain_execution() -> None:
    tally = checked(1, range(SLICE))
    assert tally.counts["same"] > 0.8 * SLICE * VARIANTS, f"too few compiled: {dict(tally.counts)}"


def test_generated_kernels_equal_plain_execution() -> None:
    tally = checked(2, range(3), kernels=True)
    assert tally.counts["same"]
    if build.find_compiler() is not None:
        assert tally.kernels["cases forward"] and tally.kernels["cases backward"]


@pytest.mark.parametrize(("seed", "number"), [(2027, 456), (2026, 276)])
def test_programs_that_failed_once(seed: int, number: int) -> None:
    """What they found.

    2027, 456: without ``cleanup``, a maximum that is written twice has two args, and one call gave one of them.
    2026, 276: what cannot be raised was tried with parameters of as many rows as edges taken for fields of edges, in
    update too.
    """
    checked(seed, range(number, number + 1))
