"""Batches drawn by the device's kernels beside those of the CPU, element by element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cuda import recorded
from torch import Tensor

import graphweft as gw
from graphweft.loader.device_rows import DeviceRows
from graphweft.runtime.cuda import sampling
from graphweft.runtime.cuda.sampling import DeviceSampler

# fall, grow, all, replaced; -1 before a number shuffles whole rows; 70 is more than a row of few draws has
FANOUTS = (((3, 2), False), ((2, 5), False), ((-1, 2), False), ((2, -1), False), ((3, 3, 3), True), ((2, 4, 1), False),
           ((70, 66), False), ((70, 2), True))  # fmt: skip


def differences(
    graph: gw.Graph,
    fanouts: tuple[int, ...],
    replace: bool,
    seeds: Tensor,
    key: int,
    names: Tensor | None = None,
    memory: int | None = None,
) -> list[str]:
    """What is not the same."""
    plan = gw.sampling.NeighborSampler(graph, fanouts, replace, names=names)
    return of_sampler(DeviceSampler(plan, torch.device("cpu"), memory), seeds, key)


def of_sampler(there: DeviceSampler, seeds: Tensor, key: int) -> list[str]:
    """What is not the same in a batch of a sampler."""
    wanted = there.plan.sample(seeds, seed=key, epoch=2, stage=1)
    found = there.sample(seeds, seed=key, epoch=2, stage=1)
    pairs = {name: (getattr(found, name), getattr(wanted, name)) for name in ("n_id", "edge_index", "e_id")}
    for k, (mine, other) in enumerate(zip(found.blocks, wanted.blocks, strict=True)):
        pairs[f"block {k}: indptr"] = mine.csc.indptr, other.csc.indptr
        pairs[f"block {k}: indices"] = mine.csc.indices, other.csc.indices
        pairs[f"block {k}: e_id"] = mine.e_id, other.e_id
        pairs[f"block {k}: num_src"] = torch.tensor(mine.num_src), torch.tensor(other.num_src)
    return [name for name, (got, given) in pairs.items() if got.dtype != given.dtype or not torch.equal(got, given)]


def of_graph(graph: gw.Graph, seed: int) -> list[str]:
    """A batch of some nodes of a square graph, fan-outs, seeds and key by ``seed``."""
    random = np.random.default_rng(seed)
    n = graph.num_nodes
    seeds = torch.from_numpy(random.permutation(n)[: int(random.integers(0, n + 1))].copy())
    fanouts, replace = FANOUTS[seed % len(FANOUTS)]
    names = torch.from_numpy(random.integers(0, 1 << 40, n)) if seed % 3 == 0 else None
    return differences(graph, fanouts, replace, seeds, int(random.integers(0, 1 << 62)), names)


def batches_are_drawn_again_by_what_was_recorded() -> None:
    """Larger and smaller batches in turn, in the same arrays; the launches are recorded after the second of a size."""
    random = torch.Generator().manual_seed(4)
    src, dst = torch.randint(0, 50, (2, 300), generator=random)
    graph = gw.Graph(src, dst, num_nodes=50)
    recorded.Recorder.graphs = recorded.Recorder.launched = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "recorder_on", recorded.Recorder)
        for fanouts, again in FANOUTS[:6]:
            plan = gw.sampling.NeighborSampler(graph, fanouts, again)
            there = DeviceSampler(plan, torch.device("cpu"))
            for key, count in enumerate((4, 3, 4, 1, 0, 9, 9, 5, 9)):
                seeds = torch.randperm(50, generator=random)[:count]
                assert not of_sampler(there, seeds, key << 33), (fanouts, again, key)
    assert recorded.Recorder.graphs == 2 * 6 and recorded.Recorder.launched == (2 + 2) * 6


def rows_come_from_both_memories() -> None:
    """Rows of all dtypes, with some, none and all of them kept; lists of in-edges that stay in host memory."""
    random, ids = torch.Generator().manual_seed(2), torch.tensor([8, 0, 3, 3, 7, 1, 8, 5])
    kinds = ((torch.float32, 5), (torch.float64, 2), (torch.bfloat16, 3), (torch.uint8, 7), (torch.float32, 130))
    for dtype, width in kinds:
        table = torch.randint(0, 99, (9, width), generator=random).to(dtype)
        for kept in ([], [8, 3, 0], list(range(9))):
            with gw.config(target="cuda"):
                rows = DeviceRows(table, torch.tensor(kept, dtype=torch.int64), torch.device("cpu"), "read")
            assert torch.equal(rows(ids), table[ids]) and rows(ids[:0]).shape == (0, width)
            assert (rows.hits, rows.read) == (sum(int(i) in kept for i in ids), 8)
            assert rows.nbytes == len(kept) * table[0].nbytes + 4 * 9
    graph = gw.Graph([1, 2, 3, 0, 4, 1], [0, 0, 0, 1, 1, 2])
    for fanouts, again in FANOUTS:
        assert not differences(graph, fanouts, again, torch.tensor([0, 2]), 7, memory=100)


def lists_come_from_both_memories() -> None:
    """Lists of some nodes are read where they were sent: those of host memory are spoiled afterwards."""
    random = torch.Generator().manual_seed(6)
    src, dst = torch.randint(0, 20, (2, 130), generator=random)
    dst[:70] = 3  # of more edges than a block draws
    for at, (fanouts, again) in enumerate((FANOUTS[0], FANOUTS[2], FANOUTS[4], FANOUTS[6])):
        graph = gw.Graph(src, dst, num_nodes=20)
        plan = gw.sampling.NeighborSampler(graph, fanouts, again)
        there, seeds = DeviceSampler(plan, torch.device("cpu"), memory=300), torch.arange(0, 20, 3)
        wanted, plain = plan.sample(seeds, seed=at), there.nbytes
        hot = torch.tensor([0, 3, 11, 12]) if at % 2 else torch.arange(20)
        there.keep_lists(hot)
        csc = graph.csc
        size = int(csc.degrees()[hot].sum()) * csc.indices.element_size()
        assert there.is_far and there.nbytes == plain + size + 8 * 20
        for node in hot.tolist():
            csc.indices[int(csc.indptr[node]) : int(csc.indptr[node + 1])] = 7
        found = there.sample(seeds, seed=at)
        for name in ("n_id", "edge_index", "e_id"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), (fanouts, again, name)


def a_loader_keeps_hot_lists() -> None:
    """Rows and lists share the memory beside what every node needs; batches are the CPU's."""
    random = torch.Generator().manual_seed(7)
    src, dst = torch.randint(0, 40, (2, 600), generator=random)
    every = torch.arange(40)
    ds = gw.Dataset("small", gw.Graph(src, dst, num_nodes=40), torch.randn(40, 6), every % 3, every, every, every, 3)
    given = {"fanouts": (3, 2), "batch_size": 8, "seed": 4, "prefetch": 0}
    wanted, memory = gw.Loader(ds, **given), 8 * 41 + 4 * 40 + 4 * 40 + 8 * 40 + 1200
    with gw.config(target="cuda"):
        found = gw.Loader(ds, **given, device="cpu", device_memory=memory, far_rows="read")
        rows, draws = found.device_rows, found._draws
        assert rows is not None and draws._structure.hot is not None and draws._structure.hot.numel() > 0
        assert draws.nbytes + rows.nbytes <= memory
        for mine, other in zip(found, wanted, strict=True):
            for name in ("n_id", "edge_index", "e_id", "x"):
                assert torch.equal(getattr(mine, name), getattr(other, name)), name
