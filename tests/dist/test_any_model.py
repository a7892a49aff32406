"""Full batches over ranks of any model against one process: user functions, batch norms, typed graphs, other stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dist.rank_cases import any_model, state_of
from dist.rank_processes import run_case

from graphweft.partitioning.report import predict
from graphweft.train.ranked_full import exchange_of

# Without biases before a batch norm, which takes them away: their gradients are rounding, which Adam makes steps of.
NORMED = ("GCN-norm=batch-bias=0", "SAGE-norm=batch-num_layers=3-bias=0", "RGCN-num_bases=2-norm=batch-bias=0")
WEIGHTED = ("WeightedGCN", "WeightedSAGE", "WeightedGIN")
STACKS = (*NORMED, *WEIGHTED, "GCN-num_layers=1", "GIN-jumping=last", "RGCN", "HGT")
OWN = ("user", "attending", "marked", "mixed", "smoothed")


@pytest.mark.parametrize("size", [2, 3])
def test_losses_are_those_of_one_process(tmp_path: Path, size: int) -> None:
    run_case(tmp_path, size, "anything", *STACKS, *OWN)
    for name in (*STACKS, *OWN):
        trainer = any_model(name)
        trainer.fit(10)
        wanted = state_of(trainer)
        states = [torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in range(size)]
        for state in states:
            assert state["losses"] == pytest.approx(wanted["losses"], rel=1e-5), name
            assert state["val_loss"] == pytest.approx(wanted["val_loss"], rel=1e-5), name
            for key, numbers in wanted["model"].items():  # running statistics among them
                assert torch.allclose(state["model"][key].float(), numbers.float(), atol=2e-4), (name, key)
                assert torch.equal(state["model"][key], states[0]["model"][key]), (name, key)
        owner = torch.zeros(trainer.ds.num_nodes, dtype=torch.int64)
        for rank, state in enumerate(states):
            owner[state["own"]] = rank
        if name in STACKS:  # of others nobody knows the columns beforehand
            epoch = exchange_of(trainer.model, trainer.ds.labelled("train"), "exact")
            assert predict(trainer.ds.graph, owner, size, epoch).bytes_sent == states[0]["bytes"], name
