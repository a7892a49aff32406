"""The memory of batches that many threads prepare, of which a plan draws only a few."""

from __future__ import annotations

from graphweft.loader.fastest_choice import CoreSplit
from graphweft.runtime.rehearsal import Prepared, Run
from graphweft.train.mini_needs import by_epochs

_SIZE = 1 << 20
_BATCH = Prepared((_SIZE,), (), Run(beside=(_SIZE,)))


def test_all_batches_that_are_held_at_once_are_counted() -> None:
    """On 16 cores 32 are prepared beside a step; six are drawn."""
    few, many = (by_epochs([_BATCH] * 6, 40, CoreSplit(cores, 2 * cores)).most for cores in (1, 16))
    assert few >= 4 * _SIZE  # two ahead, that of the step, and the step
    assert 34 * _SIZE <= many <= 1.3 * 34 * _SIZE


def test_an_epoch_has_no_more_batches_than_it_has() -> None:
    short, long = (by_epochs([_BATCH] * 3, count, CoreSplit(16, 32)).most for count in (3, 40))
    assert short <= 1.3 * 5 * _SIZE < long
