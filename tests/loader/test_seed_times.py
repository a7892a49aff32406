"""A loader of nodes with times: what every seed sees, repeated seeds, resume, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loader.test_bad_input import one_line
from loader.test_loader import dataset

from graphweft._errors import CheckpointError, ConfigError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.loader.loader import Loader
from graphweft.sample.segment import SegmentSampler

SEEDS, WHEN = [7, 7, 3, 120, 3], [900, 10, 500, 0, 500]


def timed(**options: Any) -> tuple[Graph, torch.Tensor, Loader]:
    ds = dataset()
    times = torch.arange(ds.num_edges) * 37 % 1000
    sampler = SegmentSampler(ds.graph, [4, 3], time=times)
    return ds.graph, times, Loader(ds, SEEDS, sampler=sampler, time=WHEN, **{"batch_size": 2, **options})


@pytest.mark.parametrize("prefetch", [0, 2])
def test_no_seed_sees_what_is_later_than_itself(prefetch: int) -> None:
    graph, times, loader = timed(prefetch=prefetch)
    src, dst = graph.edges()
    seen = 0
    for batch in loader:
        assert batch.seed_time is not None and batch.owner is not None
        assert batch.seed_time.tolist() == [WHEN[i] for i in batch.input_id.tolist()]
        assert batch.n_id[: batch.batch_size].tolist() == [SEEDS[i] for i in batch.input_id.tolist()]
        tree = batch.owner[batch.edge_index[1]]
        assert torch.equal(tree, batch.owner[batch.edge_index[0]])
        assert bool((times[batch.e_id] <= batch.seed_time[tree]).all())
        assert torch.equal(src[batch.e_id], batch.n_id[batch.edge_index[0]])
        for i in range(batch.batch_size):  # a seed takes all it may see, up to its fan-out
            free = int(((dst == batch.n_id[i]) & (times <= batch.seed_time[i])).sum())
            assert int((batch.edge_index[1] == i).sum()) == min(free, 4)
        seen += batch.batch_size
    assert seen == len(SEEDS)


def test_a_seed_draws_alike_in_any_batch_and_goes_on_after_a_resume() -> None:
    _, _, one = timed(batch_size=1, shuffle=True, seed=4)
    _, _, other = timed(batch_size=1, seed=4)
    trees = [{int(b.input_id): b.e_id.tolist() for b in loader} for loader in (one, other)]
    assert trees[0] == trees[1]
    under_way = iter(one)
    next(under_way)
    state = one.state_dict()
    _, _, later = timed(batch_size=1, shuffle=True, seed=4)
    later.load_state_dict(state)
    assert [b.e_id.tolist() for b in later] == [b.e_id.tolist() for b in under_way]
    changed = Loader(one.graph, SEEDS, sampler=one.sampler, time=WHEN[::-1], batch_size=1, shuffle=True, seed=4)
    with pytest.raises(CheckpointError, match="seed_times_checksum"):
        changed.load_state_dict(state)


def test_trees_are_keyed_by_epoch_and_place() -> None:
    """A batch is the sampler's own under the keys; the two seeds that repeat draw apart."""
    _, _, loader = timed(seed=4)
    for epoch in range(3):
        for batch in loader:
            seeds, times = batch.n_id[: batch.batch_size], batch.seed_time
            own = loader.sampler.sample(seeds, time=times, keys=batch.input_id, seed=4, epoch=epoch)
            assert torch.equal(batch.n_id, own.n_id) and torch.equal(batch.e_id, own.e_id)


def test_times_that_do_not_fit() -> None:
    ds = dataset()
    sampler = SegmentSampler(ds.graph, [4], time=torch.arange(ds.num_edges))
    assert "one per seed" in one_line(ConfigError, lambda: Loader(ds, [1, 2], sampler=sampler))
    one_line(ShapeError, lambda: Loader(ds, [1, 2], sampler=sampler, time=[1]))
    assert "SegmentSampler" in one_line(ConfigError, lambda: Loader(ds, [1, 2], fanouts=[4], time=[1, 2]))
    assert "no times" in one_line(
        ConfigError, lambda: Loader(ds, [1, 2], sampler=SegmentSampler(ds.graph, [4]), time=[1, 2])
    )
