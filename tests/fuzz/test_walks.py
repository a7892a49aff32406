"""A slice of the fuzz of generated walks; more by ``python tests/fuzz/walks.py --cases N --seed S``."""

from __future__ import annotations

import pytest
from fuzz.walks import Tally, run

import graphweft as gw
from graphweft.passes import pipeline
from graphweft.runtime import build

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture(autouse=True)
def _quick_kernels_for_small_graphs(monkeypatch, tmp_path):
    """Unoptimised walks, whatever the size; no other generated kernels."""
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)
    monkeypatch.setattr(pipeline, "fuse_elementwise", lambda program, groups, *_: groups)
    monkeypatch.setattr(build, "_FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in build._FLAGS))
    with gw.config(cache_dir=tmp_path):
        yield


@pytest.mark.parametrize(("written", "cases", "batch"), [(True, 24, 12), (False, 6, 6)], ids=["IR", "recorded"])
def test_a_slice_equals_plain_torch(written, cases, batch):
    tally = Tally(written)
    run(7, range(cases), tally, batch)
    assert not tally.failures, tally.failures[0]
    assert tally.counts["same"] >= 0.9 * cases
    assert tally.walks >= 1.5 * cases
