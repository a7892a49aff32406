"""Loaders and trainers that are told a device: what is refused. Batches are compared in ``tests/cuda/trials.py``."""

from __future__ import annotations

import pytest
import torch

import graphweft as gw
from graphweft._errors import ConfigError, FallbackWarning, IndexRangeError, MemoryBudgetError
from graphweft.loader.device_rows import DeviceRows
from graphweft.runtime.cuda.sampling import DeviceSampler
from graphweft.runtime.cuda.target import CUDA


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
        with pytest.raises(MemoryBudgetError, match="device_memory: expected at least 56 bytes for the structure, got"):
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


def test_ways_of_far_rows_that_are_not_there_are_one_line() -> None:
    table, kept, here = torch.eye(4), torch.tensor([1]), torch.device("cpu")
    with pytest.raises(ConfigError, match=r"^far_rows: expected one of auto, read, sent, got 'uva'$"):
        gw.Loader(data(), fanouts=[1], far_rows="uva")
    with pytest.raises(ConfigError, match=r"^Loader: expected device_memory with far_rows='read', got none$"):
        gw.Loader(data(), fanouts=[1], far_rows="read")
    with pytest.raises(ConfigError, match=r"^far_rows='read' cannot be combined with device='cpu'$"):
        DeviceRows(table, kept, here, "read")
    assert DeviceRows(table, kept, here).far == "sent"
    with gw.config(target="cuda"):
        assert DeviceRows(table, kept, here, "read").far == "read"
        with pytest.raises(ConfigError, match=r"^far_rows: expected features without gaps between rows, got a view$"):
            DeviceRows(table.t()[:, :2], kept, here, "read")
        assert DeviceRows(table.t()[:, :2], kept, here).far == "sent"


def test_rows_that_cannot_be_read_are_sent() -> None:
    """Where the device does not reach host memory, or reads something else."""

    class Reader:
        nbytes = hits = 0

        def __init__(self, *given: object) -> None:
            self.fails = True

        def __call__(self, n_id: torch.Tensor) -> torch.Tensor:
            if self.fails:
                raise ValueError("pointer argument cannot be accessed")
            return torch.zeros(n_id.numel(), 3)

    table, ids = torch.randn(6, 3), torch.tensor([5, 0, 0, 3, 2])
    with pytest.MonkeyPatch.context() as patch, gw.config(target="cuda"):
        patch.setattr(CUDA, "row_reader", Reader)
        for fails, why in ((True, "cannot be accessed"), (False, "were not those of the table")):
            rows = DeviceRows(table, torch.tensor([0, 5]), torch.device("cpu"))
            rows._reader.fails = fails
            with pytest.warns(FallbackWarning, match=why):
                rows.settle(ids)
            assert rows.far == "sent" and torch.equal(rows(ids), table[ids]) and (rows.hits, rows.read) == (3, 5)


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
