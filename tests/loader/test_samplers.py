"""The loader over other samplers: epochs, resume, threads, what training sees, and nothing that piles up."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from loader.test_loader import WAYS, dataset
from scipy import stats
from torch import Tensor

from graphweft._errors import CheckpointError, ConfigError
from graphweft.graph.graph import Graph
from graphweft.loader.batch import Batch
from graphweft.loader.loader import Loader
from graphweft.sample.cluster import ClusterSampler
from graphweft.sample.induced import InducedSampler
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.saint import SaintEdgeSampler, SaintNodeSampler, SaintWalkSampler
from graphweft.sample.sampler import GroupSampler
from graphweft.sample.segment import SegmentSampler
from graphweft.sample.shadow import ShadowSampler
from graphweft.sample.walk import WalkSampler

KINDS: dict[str, Any] = {
    "layer": lambda g: LayerSampler(g, [40, 30]),
    "walk": lambda g: WalkSampler(g, 3, 2),
    "shadow": lambda g: ShadowSampler(g, [4, 2]),
    "induced": lambda g: InducedSampler(NeighborSampler(g, [4, 2])),
    "saint-node": SaintNodeSampler,
    "saint-edge": SaintEdgeSampler,
    "saint-walk": lambda g: SaintWalkSampler(g, 2, coverage=2),
    "cluster": lambda g: ClusterSampler(g, torch.arange(g.num_nodes) % 60),
}


def pieces(batch: Batch) -> list[Tensor]:
    assert isinstance(batch.x, Tensor) and batch.y is not None
    found = [batch.n_id, batch.edge_index, batch.e_id, batch.x, batch.y, batch.input_id]
    found += [t for t in (batch.node_norm, batch.edge_norm, batch.owner) if t is not None]
    return found + [t for b in batch.blocks for t in (b.csc.indptr, b.csc.indices)]


def epochs(loader: Loader, count: int) -> list[list[Tensor]]:
    return [pieces(batch) for _ in range(count) for batch in loader]


def same(one: list[list[Tensor]], other: list[list[Tensor]]) -> bool:
    return len(one) == len(other) and all(
        all(torch.equal(s, t) for s, t in zip(a, b, strict=True)) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_batches_hold_the_rows_of_their_nodes_however_prepared(kind: str, threads_restored: None) -> None:
    ds = dataset()
    src, dst = ds.graph.edges()
    runs = []
    for threads, way in ((2, WAYS[0]), (1, WAYS[2]), (4, WAYS[3])):
        torch.set_num_threads(threads)
        options: Any = {"batch_size": 12, "shuffle": True, "seed": 4, **way}
        runs.append(epochs(Loader(ds, sampler=KINDS[kind](ds.graph), **options), 2))
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])
    loader = Loader(ds, sampler=KINDS[kind](ds.graph), batch_size=12)
    assert isinstance(ds.x, Tensor)
    for batch in loader:
        assert torch.equal(batch.x, ds.x[batch.n_id]) and torch.equal(batch.y, ds.y[batch.n_id])
        assert torch.equal(batch.n_id[: batch.batch_size], loader.seeds[batch.input_id])
        assert torch.equal(src[batch.e_id], batch.n_id[batch.edge_index[0]])
        assert torch.equal(dst[batch.e_id], batch.n_id[batch.edge_index[1]])
        assert batch.subgraph.num_edges == batch.num_edges


@pytest.mark.parametrize("kind", [*KINDS, "neighbor"])
def test_a_batch_is_the_samplers_own_under_seed_and_epoch(kind: str) -> None:
    """A key that is forgotten gives every epoch, or every seed, the same neighbours, which no resumed run shows."""
    ds = dataset()
    sampler = KINDS[kind](ds.graph) if kind in KINDS else NeighborSampler(ds.graph, [4, 3])
    loader = Loader(ds, batch_size=12, shuffle=True, seed=4, sampler=sampler, prefetch=0)
    wanted = torch.zeros(ds.num_nodes, dtype=torch.bool)
    wanted[ds.train_idx] = True
    for epoch in range(2):
        order = loader.order(epoch)
        for place, batch in enumerate(loader):
            items = order[12 * place : 12 * (place + 1)]
            if isinstance(sampler, GroupSampler):
                own = sampler.draw(items, wanted, seed=4, epoch=epoch)
            else:
                own = sampler.sample(ds.train_idx[items], seed=4, epoch=epoch)
            assert torch.equal(batch.n_id, own.n_id) and torch.equal(batch.e_id, own.e_id)


@pytest.mark.parametrize("kind", ["layer", "walk", "shadow", "cluster"])
def test_every_seed_comes_once_an_epoch(kind: str) -> None:
    ds = dataset()
    loader = Loader(ds, sampler=KINDS[kind](ds.graph), batch_size=7, shuffle=True)
    for _ in range(3):
        seen = torch.cat([batch.n_id[: batch.batch_size] for batch in loader])
        assert torch.equal(seen.sort().values, ds.train_idx.sort().values)


@pytest.mark.parametrize("kind", ["saint-node", "cluster"])
def test_seeds_meet_in_batches_by_chance(kind: str) -> None:
    """Over epochs every seed is in the first batch as often as any other, where draws are uniform."""
    ds = dataset(nodes=40, edges=200)
    sampler: Any = (
        SaintNodeSampler(ds.graph, "uniform") if kind == "saint-node" else ClusterSampler(ds.graph, range(40))
    )
    loader = Loader(ds, seeds=torch.arange(40), sampler=sampler, batch_size=8, shuffle=True)
    counts = torch.zeros(40, dtype=torch.int64)
    for _ in range(1500):
        batch = next(iter(loader))
        counts[batch.n_id[: batch.batch_size]] += 1
    chance = float(counts.sum()) / 40 / 1500
    spread = ((counts - counts.double().mean()) ** 2).sum() / (1500 * chance * (1 - chance))
    assert stats.chi2.sf(float(spread), 39) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_state_goes_on_at_the_next_batch(kind: str, stop: int) -> None:
    ds = dataset()

    def loader(**way: Any) -> Loader:
        return Loader(ds, sampler=KINDS[kind](ds.graph), batch_size=9, shuffle=True, seed=2, **way)

    whole, first = epochs(loader(), 2), loader(prefetch=3)
    state = first.state_dict()
    for done, _ in enumerate(first if stop else [], 1):
        if done == stop:
            state = first.state_dict()
            break
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    again = loader(prefetch=0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert same(epochs(again, 2), whole[stop:])


def test_a_state_of_another_sampler_is_refused() -> None:
    ds = dataset()
    state = Loader(ds, sampler=ShadowSampler(ds.graph, [3])).state_dict()
    for other in (ShadowSampler(ds.graph, [4]), WalkSampler(ds.graph), ClusterSampler(ds.graph, [0] * 500)):
        with pytest.raises(CheckpointError, match="expected a state with"):
            Loader(ds, sampler=other).load_state_dict(state)


WEIGHTED: dict[str, Any] = {
    "neighbor": lambda graph, edges, _: NeighborSampler(graph, [3, 2], weight=edges),
    "layer": lambda graph, _, nodes: LayerSampler(graph, [30, 20], nodes),
    "walk": lambda graph, edges, _: WalkSampler(graph, 3, 2, weight=edges),
    "node2vec": lambda graph, edges, _: WalkSampler(graph, 3, 2, p=2.0, weight=edges),
    "shadow": lambda graph, edges, _: ShadowSampler(graph, [3, 2], weight=edges),
    "saint-node": lambda graph, _, nodes: SaintNodeSampler(graph, nodes),
    "saint-edge": lambda graph, edges, _: SaintEdgeSampler(graph, edges),
}


@pytest.mark.parametrize("kind", WEIGHTED)
def test_a_state_under_other_weights_is_refused(kind: str) -> None:
    ds = dataset()
    generator = torch.Generator().manual_seed(5)
    edges, nodes = torch.rand(ds.num_edges, generator=generator), torch.rand(ds.num_nodes, generator=generator)

    def loader(edges: Tensor, nodes: Tensor) -> Loader:
        return Loader(ds, sampler=WEIGHTED[kind](ds.graph, edges, nodes), batch_size=9)

    first = loader(edges, nodes)
    next(iter(first))
    state = first.state_dict()
    again = loader(edges.clone(), nodes.double())
    again.load_state_dict(state)
    assert same(epochs(again, 1), epochs(loader(edges, nodes), 1)[1:])
    copied = pickle.loads(pickle.dumps(first.sampler))
    assert copied.identity() == first.sampler.identity()
    changed = edges.clone()
    changed[17] += 0.5
    with pytest.raises(CheckpointError, match=r"^Loader: expected a state with weights_checksum \d+, got \d+$"):
        loader(changed, nodes.flip(0)).load_state_dict(state)
    old = {name: value for name, value in state.items() if name != "weights_checksum"}
    with pytest.raises(CheckpointError, match="with weights_checksum, got one of another kind or version"):
        first.load_state_dict(old)


OPTIONS: dict[str, Any] = {  # what makes a sampler with one option more, which takes one of two values
    "fan-outs": (lambda g, k: NeighborSampler(g, [3, k]), 2, 4),
    "replacement": (lambda g, replace: NeighborSampler(g, [3], replace), False, True),
    "size of a layer": (lambda g, k: LayerSampler(g, [9, k]), 8, 9),
    "importance": (lambda g, name: LayerSampler(g, [9], name), "ladies", "fastgcn"),
    "length of a walk": (lambda g, length: WalkSampler(g, length), 2, 3),
    "walks": (lambda g, walks: WalkSampler(g, 2, walks), 2, 3),
    "restart": (lambda g, restart: WalkSampler(g, 2, restart=restart), 0.1, 0.2),
    "scope": (lambda g, k: ShadowSampler(g, [3, k]), 2, 4),
    "counted walks": (lambda g, coverage: SaintWalkSampler(g, 2, coverage), 2, 3),
    "items": (lambda g, count: SaintNodeSampler(g, num_items=count), 50, 60),
    "parts": (lambda g, shift: ClusterSampler(g, (torch.arange(g.num_nodes) + shift) % 60), 0, 1),
    "window": (lambda g, window: SegmentSampler(g, [3], time=torch.arange(g.num_edges), window=window), 5, 6),
    "times": (lambda g, shift: SegmentSampler(g, [3], time=torch.arange(g.num_edges) + shift), 0, 1),
    "strategy": (
        lambda g, name: SegmentSampler(g, [3], time=torch.arange(g.num_edges), strategy=name), "uniform", "recent"
    ),
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_a_state_under_another_option_is_refused(option: str) -> None:
    ds, (make, one, other) = dataset(), OPTIONS[option]

    def loader(value: Any) -> Loader:
        sampler = make(ds.graph, value)
        timed = isinstance(sampler, SegmentSampler)
        return Loader(ds, sampler=sampler, time=torch.full((ds.train_idx.numel(),), 900) if timed else None)

    state = loader(one).state_dict()
    loader(one).load_state_dict(state)
    with pytest.raises(CheckpointError, match="expected a state with"):
        loader(other).load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_at_the_edges(kind: str) -> None:
    """A batch larger than the set is the whole set; without seeds there is no batch, or one that trains nothing."""
    ds = dataset()
    (whole,) = Loader(ds, sampler=KINDS[kind](ds.graph), batch_size=10**6)
    none = list(Loader(ds, seeds=[], sampler=KINDS[kind](ds.graph), batch_size=10**6))
    if kind in ("layer", "walk", "shadow", "induced"):
        assert whole.batch_size == ds.train_idx.numel() and none == []
    else:
        assert [batch.batch_size for batch in none] == [0] and none[0].num_nodes == whole.num_nodes


def test_isolated_nodes_are_batches_too() -> None:
    graph = Graph([], [], 3)
    makers: list[Any] = [
        lambda: LayerSampler(graph, [2]),
        lambda: WalkSampler(graph, 2),
        lambda: ShadowSampler(graph, [2]),
        lambda: SaintNodeSampler(graph),
        lambda: SaintWalkSampler(graph, 1),
        lambda: ClusterSampler(graph, [0, 0, 0]),
    ]
    for make in makers:
        for batch in Loader(graph, seeds=[2, 0], sampler=make(), batch_size=5):
            assert batch.num_edges == 0 and set(batch.n_id[: batch.batch_size].tolist()) <= {0, 2}


def test_a_sampler_goes_with_its_own_graph_and_options() -> None:
    ds = dataset()
    with pytest.raises(ConfigError, match="sampler cannot be combined with fanouts, replace or weight"):
        Loader(ds, fanouts=[2], sampler=NeighborSampler(ds.graph, [2]))
    with pytest.raises(ConfigError, match="one over another"):
        Loader(ds, sampler=NeighborSampler(dataset().graph, [2]))
