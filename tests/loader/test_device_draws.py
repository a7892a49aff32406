"""Loaders and trainers that are told a device: what is refused. Batches are compared in ``tests/cuda/trials.py``."""

from __future__ import annotations

import pytest
import torch

import graphweft as gw
from graphweft._errors import ConfigError, IndexRangeError, MemoryBudgetError
from graphweft.loader.device_rows import DeviceRows
from graphweft.runtime.cuda.sampling import DeviceSampler


def data() -> gw.Dataset:
    every = torch.arange(4)
    graph = gw.Graph([0, 1, 2, 3], [1, 0, 3, 2])
    return gw.Dataset("p", graph, torch.eye(4), torch.tensor([0, 0, 1, 1]), every[::2], every[1:2], every[3:], 2)


def test_the_cpu_is_a_device_like_none() -> None:
    found = [[batch.n_id.tolist() for batch in gw.Loader(data(), fanouts=[1], device=d)] for d in (None, "cpu")]
    assert found[0] == found[1]
    with pytest.raises(ConfigError, match="expected device_memory with device='cuda' and a dataset with features"):
        gw.Loader(data(), fanouts=[1], device="cpu", device_memory="1MB")


def test_what_is_not_drawn_there_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"device='meta' cannot be combined with NeighborSampler \(samplers there: no"
    ):
        gw.Loader(data(), fanouts=[1], device="meta")
    with gw.config(target="cuda"):
        with pytest.raises(ConfigError, match="device='cpu' cannot be combined with weight; without device= draws by"):
            gw.Loader(data(), fanouts=[1], weight=torch.ones(4), device="cpu")
        with pytest.raises(ConfigError, match="device='cpu' cannot be combined with prepare; "):
            gw.Loader(data(), fanouts=[1], prepare=gw.schedule.Subtasks(1), device="cpu")
        sampler = gw.sampling.LayerSampler(data().graph, [2])
        with pytest.raises(
            ConfigError, match=r"cannot be combined with LayerSampler \(samplers there: NeighborSampler"
        ):
            gw.Loader(sampler.graph, [0], sampler=sampler, device="cpu")
        with pytest.raises(MemoryBudgetError, match="device_memory: expected at least 88 bytes for the structure, got"):
            gw.Loader(data(), fanouts=[1], device="cpu", device_memory=50)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mode": "macro"}, "mode=macro|macro"),
        ({"mode": "mini", "prepare": "subtasks"}, "prepare cannot be combined with device='cpu'"),
        ({"mode": "mini", "sampler": "layer"}, "cannot be combined with LayerSampler"),
    ],
)
def test_a_trainer_refuses_what_only_the_cpu_has(given: dict[str, str], text: str) -> None:
    with gw.config(target="cuda"), pytest.raises(ConfigError, match=text):
        gw.Trainer(gw.nn.SAGE(4, 4, 2), data(), **given)  # type: ignore[arg-type]


def test_rows_come_from_where_they_lie() -> None:
    """Every share of the table, rows in any order and again."""
    table, ids = torch.randn(6, 3), torch.tensor([5, 0, 0, 3, 2])
    for kept in (None, torch.tensor([], dtype=torch.int64), torch.tensor([0, 5]), torch.arange(6)):
        rows = DeviceRows(table, kept, torch.device("cpu"))
        assert torch.equal(rows(ids), table[ids]) and rows.read == 5
        assert rows.hits == sum(kept is None or int(i) in kept.tolist() for i in ids)


def test_seeds_are_checked_in_the_words_of_the_cpu() -> None:
    plan = gw.sampling.NeighborSampler(data().graph, [1])
    there = DeviceSampler(plan, torch.device("cpu"))
    for seeds, kind in (([2, 0, 3, 0, 2], ConfigError), ([0, 7], IndexRangeError)):
        texts = []
        for sampler in (plan, there):
            with pytest.raises(kind) as failure:
                sampler.sample(torch.tensor(seeds))
            texts.append(str(failure.value))
        assert texts[0] == texts[1]
