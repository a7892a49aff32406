"""Updates in mode macro: batches of a group are alike in size, and several groups may make an update."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft.loader.group_loader import GroupLoader

PARTS = 8


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.05)


@pytest.fixture(scope="module")
def store(ds: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    return gw.macro.prepare_store(ds, tmp_path_factory.mktemp("updates") / "store", parts=PARTS, method="hash")


def _trainer(ds: gw.Dataset, data: Any, batch_size: int, **more: Any) -> gw.Trainer:
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=2)
    options = {"macro": "parts:1/8", "fanouts": (-1, -1), "seed": 0, "restore_best": False, **more}
    return gw.Trainer(model, data, mode="macro", batch_size=batch_size, **options)


def test_an_update_is_the_mean_over_the_seeds_of_its_groups(ds: gw.Dataset, store: gw.macro.Store) -> None:
    trainer = _trainer(ds, store, len(ds.train_idx), accumulate=PARTS, optimizer="sgd", lr=0.5, weight_decay=0.0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=2).double()
    model.load_state_dict(trainer.model.state_dict())
    source = torch.cat([store.node_ids(number) for number in range(PARTS)])
    part = torch.empty(ds.num_nodes, dtype=torch.int64)
    part[source] = torch.repeat_interleave(torch.arange(PARTS), torch.from_numpy(store.bounds).diff())
    src, dst = (ends.long() for ends in ds.graph.edges())
    inside = (part[src] == part[dst]).nonzero().reshape(-1)
    outputs = model(gw.Graph(src[inside], dst[inside], num_nodes=ds.num_nodes), ds.x.double())
    torch.nn.functional.cross_entropy(outputs[ds.train_idx], ds.y[ds.train_idx]).backward()
    expected = [weight.detach() - 0.5 * weight.grad for weight in model.parameters()]
    trainer.fit(1)
    for mine, known in zip(trainer.model.parameters(), expected, strict=True):
        assert torch.allclose(mine.double(), known, atol=1e-5)


def test_batches_of_a_group_are_alike_in_size(store: gw.macro.Store) -> None:
    ids, _ = store.split("train")
    loader = GroupLoader(store, torch.from_numpy(ids), (2,), 7, True, 3, count=3)
    sizes = [batch.batch_size for batch in loader]
    for planned in loader.plan(0):
        count = -(-len(planned.nodes) // 7)
        own = sizes[planned.first : planned.first + count]
        assert sum(own) == len(planned.nodes) and max(own) <= 7 and max(own) - min(own) <= 1


def test_a_run_goes_on_between_groups_of_one_update(ds: gw.Dataset, store: gw.macro.Store) -> None:
    whole, first, again = (_trainer(ds, store, 10_000, accumulate=PARTS) for _ in range(3))
    whole.fit(2)
    for batch in first._batch.loader:
        first._batch._train_on(batch)
        if first._batch.batches_done == 5:
            break
    state = first._batch.within_epoch()
    assert state["mini_batch"]["pending"]["batches"] == 5
    again._batch.continue_epoch(state)
    again.fit(2)
    for mine, known in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, known)
