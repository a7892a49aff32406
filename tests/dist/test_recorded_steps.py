"""Steps over ranks as tapes: the bits of steps that are called one by one, whoever of the ranks records."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dist.rank_cases import dense_trainer, full_trainer, state_of
from dist.rank_processes import run_case

from graphweft._memory import POOL, Pool

RECORDED = ("GCN", "SAGE", "GIN")


@pytest.mark.parametrize("size", [2, 3])
def test_recorded_steps_have_the_bits_of_others(tmp_path: Path, size: int) -> None:
    run_case(tmp_path, size, "recorded", *RECORDED)
    for name in RECORDED:
        trainer = full_trainer(name, None)
        trainer.fit(5)
        wanted = state_of(trainer)
        states = {
            (way, rank): torch.load(tmp_path / f"{name}-{way}-{rank}.pt", weights_only=True)
            for way in ("all", "none", "one")
            for rank in range(size)
        }
        first = states["none", 0]
        assert first["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
        for state in states.values():
            assert (state["calls"] > 10) != state["called"]
            assert state["losses"] == first["losses"] and state["bytes"] == first["bytes"]
            assert all(torch.equal(tensor, first["model"][key]) for key, tensor in state["model"].items())
            assert torch.equal(state["predicted"], wanted["predicted"])


def test_rows_travel_as_the_next_layer_multiplies_them(tmp_path: Path) -> None:
    """Also to and from a rank whose model is watched by a hook, so that torch's engine runs it, and to another host."""
    run_case(tmp_path, 2, "multiplied")
    trainer = dense_trainer(None)
    trainer.fit(1)
    trainer.fit(3)
    wanted = state_of(trainer)
    sent = torch.load(tmp_path / "multiplied-plans-0.pt", weights_only=True)["bytes"]
    for way in ("plans", "engine", "far"):
        for rank in range(2):
            state = torch.load(tmp_path / f"multiplied-{way}-{rank}.pt", weights_only=True)
            assert state["multiplied"][:2] == [False, True] and state["passes"] == 0
            assert state["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
            assert state["bytes"] == sent
            for name, tensor in state["model"].items():
                torch.testing.assert_close(tensor, wanted["model"][name], rtol=1e-4, atol=1e-5)


def test_a_pool_hands_out_what_it_was_given_once() -> None:
    table = torch.zeros(5, 3)
    with POOL.handing(table[:4]):
        other, made, later = POOL.empty((2, 3)), POOL.empty((4, 3)), POOL.empty((4, 3))
    assert made.data_ptr() == table.data_ptr() and made.shape == (4, 3)
    assert later.data_ptr() != made.data_ptr() != other.data_ptr()
    with POOL.handing(table[:4]), POOL.within(Pool()):
        assert POOL.empty((4, 3), torch.float64).data_ptr() != table.data_ptr()
        assert POOL.empty((4, 3)).data_ptr() == table.data_ptr()
    assert POOL.empty((4, 3)).data_ptr() != table.data_ptr()
