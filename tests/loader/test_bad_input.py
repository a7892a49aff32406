"""Bad and extreme input to every sampler and loader: a defined result, or one clear line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loader.test_loader import dataset
from loader.test_samplers import KINDS

from graphweft._errors import (
    CheckpointError,
    ConfigError,
    DtypeError,
    GraphError,
    GraphWeftError,
    IndexRangeError,
    ShapeError,
)
from graphweft.graph.graph import Graph
from graphweft.loader.link import LinkLoader
from graphweft.loader.loader import Loader
from graphweft.loader.multistage import MultistageLoader
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.saint import SaintWalkSampler
from graphweft.sample.segment import SegmentSampler
from graphweft.sample.shadow import ShadowSampler
from graphweft.sample.stages import LargeBatch, Parts
from graphweft.sample.walk import WalkSampler
from graphweft.storage.feature import SparseFeatures

ALL: dict[str, Callable[[Graph], Any]] = {"neighbor": lambda g: NeighborSampler(g, [4, 2]), **KINDS}
BY_SEEDS = {name: make for name, make in ALL.items() if not name.startswith(("saint", "cluster"))}
FILMS = Graph.hetero({("user", "likes", "film"): ([0, 1, 1], [0, 0, 1])}, {"user": 3, "film": 2})
LIKES = ("user", "likes", "film")
MACROS = {"large": lambda n: LargeBatch(0.5), "parts": lambda n: Parts(torch.arange(n) % 4, 2)}


def one_line(error: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as failure:
        call()
    text = str(failure.value)
    assert text and "\n" not in text
    return text


@pytest.mark.parametrize("kind", BY_SEEDS)
def test_seeds_that_do_not_fit(kind: str) -> None:
    graph = dataset().graph
    sampler = BY_SEEDS[kind](graph)
    for seeds in ([3, graph.num_nodes], [-1]):
        assert str(seeds[-1]) in one_line(IndexRangeError, lambda seeds=seeds: sampler.sample(seeds))
    assert "distinct" in one_line(ConfigError, lambda: sampler.sample([5, 2, 5]))
    assert sampler.sample([7, 2]).n_id[:2].tolist() == [7, 2]  # and works after a refusal


@pytest.mark.parametrize("kind", ALL)
def test_loaders_refuse_seeds_that_do_not_fit(kind: str) -> None:
    graph = dataset().graph
    sampler = ALL[kind](graph)
    one_line(IndexRangeError, lambda: Loader(graph, seeds=[graph.num_nodes], sampler=sampler))
    assert "distinct" in one_line(ConfigError, lambda: Loader(graph, seeds=[1, 1], sampler=sampler))
    assert "batch_size" in one_line(ConfigError, lambda: Loader(graph, seeds=[1], sampler=sampler, batch_size=0))


@pytest.mark.parametrize("macro", MACROS)
def test_multistage_loaders_refuse_seeds_that_do_not_fit(macro: str) -> None:
    graph = dataset().graph
    stage = MACROS[macro](graph.num_nodes)
    one_line(IndexRangeError, lambda: MultistageLoader(graph, [graph.num_nodes], (3, 2), 8, macro=stage))
    assert "distinct" in one_line(ConfigError, lambda: MultistageLoader(graph, [1, 1], (3, 2), 8, macro=stage))
    assert "got 0" in one_line(ConfigError, lambda: MultistageLoader(graph, [1], (3, 0), 8, macro=stage))


@pytest.mark.parametrize("fanouts", [[2, 1], {LIKES: [2, 1]}], ids=["alike", "by relation"])
def test_typed_loaders_refuse_seeds_that_do_not_fit(fanouts: Any) -> None:
    for seeds in ([5], [-1]):
        assert str(seeds[0]) in one_line(IndexRangeError, lambda seeds=seeds: Loader(FILMS, seeds, fanouts))
    assert "distinct" in one_line(ConfigError, lambda: Loader(FILMS, [1, 1], fanouts))
    (batch,) = Loader(FILMS, [3, 4], fanouts, batch_size=10**9)
    assert batch.n_id[:2].tolist() == [3, 4] and batch.batch_size == 2


def test_a_fan_out_of_zero_leaves_one_relation_out() -> None:
    (batch,) = Loader(FILMS, [3], {LIKES: [0, 2]}, 8)
    assert [block.num_edges for block in batch.blocks] == [2, 0]
    for fanouts in ([0], {LIKES: [-2]}, {LIKES: []}, {}):
        one_line(ConfigError, lambda fanouts=fanouts: Loader(FILMS, [3], fanouts))


def test_seeds_may_repeat_where_each_has_a_tree_of_its_own() -> None:
    graph = Graph([1, 2, 3], [0, 0, 1], 4)
    sampler = SegmentSampler(graph, [-1], time=[1, 2, 3])
    sample = sampler.sample([0, 0, 1], time=[1, 2, 2])
    assert sample.owner is not None
    found = sorted(zip(sample.owner[sample.edge_index[1]].tolist(), sample.e_id.tolist(), strict=True))
    assert found == [(0, 0), (1, 0), (1, 1)]
    for seeds in ([4], [-1]):
        assert str(seeds[0]) in one_line(IndexRangeError, lambda seeds=seeds: sampler.sample(seeds, time=[1]))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("macro", MACROS)
@pytest.mark.parametrize("nodes", [0, 3])
def test_macro_batches_of_a_graph_without_edges(nodes: int, macro: str, ahead: bool) -> None:
    graph, stage = Graph([], [], nodes), MACROS[macro](nodes)
    batches = list(MultistageLoader(graph, list(range(nodes)), (3, 2), 2, macro=stage, ahead=ahead))
    assert all(batch.num_edges == 0 for batch in batches)
    seen = [node for batch in batches for node in batch.n_id[: batch.batch_size].tolist()]
    assert sorted(seen) == list(range(nodes))
    assert list(MultistageLoader(graph, [], (3, 2), 2, macro=stage, ahead=ahead)) == []


@pytest.mark.parametrize("length", [0, 7, 501])
def test_a_partition_of_another_graph(length: int) -> None:
    graph = dataset().graph
    part = torch.zeros(length, dtype=torch.int64)
    text = one_line(ShapeError, lambda: MultistageLoader(graph, [1], (3,), 8, macro=Parts(part, 1)))
    assert f"expected {graph.num_nodes} rows, one per node, got {length} rows" in text


@pytest.mark.parametrize("negatives", ["none", "binary", "tail", "triplet", "in-batch"])
def test_links_of_a_graph_without_edges(negatives: str) -> None:
    graph = Graph([], [], 3)
    assert list(LinkLoader(graph, fanouts=(2,), negatives=negatives)) == []
    (batch,) = LinkLoader(graph, [[0, 0], [1, 1]], fanouts=(2,), negatives=negatives, batch_size=10**9)
    assert batch.batch_size == 2 and batch.num_edges == 0  # the same pair twice is two examples
    for pair in ([[0], [3]], [[-1], [0]]):
        one_line(IndexRangeError, lambda pair=pair: LinkLoader(graph, pair, fanouts=(2,), negatives=negatives))


@pytest.mark.parametrize(
    "make",
    [
        lambda g: NeighborSampler(g, [0]),
        lambda g: SegmentSampler(g, [3, 0]),
        lambda g: LayerSampler(g, [10, 0]),
        lambda g: ShadowSampler(g, [0]),
        lambda g: WalkSampler(g, 2, 0),
        lambda g: SaintWalkSampler(g, 2, 0),
        lambda g: Loader(g, [1], [5, 0]),
        lambda g: LinkLoader(g, fanouts=(0,)),
    ],
)
def test_nothing_is_drawn_with_a_size_of_zero(make: Callable[[Graph], Any]) -> None:
    one_line(ConfigError, lambda: make(dataset().graph))


def test_walks_without_steps_stay_where_they_are() -> None:
    sample = WalkSampler(dataset().graph, 0, 2).sample([4, 1])
    assert sample.n_id.tolist() == [4, 1]


@pytest.mark.parametrize("kind", ALL)
def test_a_batch_larger_than_the_set_holds_it_once(kind: str) -> None:
    ds = dataset()
    loader = Loader(ds, sampler=ALL[kind](ds.graph), batch_size=10**9, shuffle=True)
    (batch,) = list(loader)
    seeds = ds.train_idx[batch.input_id]
    assert torch.equal(batch.n_id[: batch.batch_size], seeds) and seeds.unique().numel() == seeds.numel()
    assert kind not in (*BY_SEEDS, "cluster") or torch.equal(seeds.sort().values, ds.train_idx.sort().values)


@pytest.mark.parametrize("macro", MACROS)
def test_a_batch_larger_than_a_macro_batch_holds_its_seeds_once(macro: str) -> None:
    ds = dataset()
    loader = MultistageLoader(ds, None, (3, 2), 10**6, macro=MACROS[macro](ds.num_nodes))
    seen = torch.cat([batch.n_id[: batch.batch_size] for batch in loader])
    assert torch.equal(seen.sort().values, ds.train_idx.sort().values)


@pytest.mark.parametrize("kind", ALL)
def test_no_seeds_make_no_batch_or_batches_without_seeds(kind: str) -> None:
    graph = dataset().graph
    for batch in Loader(graph, seeds=[], sampler=ALL[kind](graph), batch_size=100):
        assert kind not in BY_SEEDS and batch.batch_size == 0


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("nodes", [0, 3])
def test_a_graph_without_edges(kind: str, nodes: int) -> None:
    graph = Graph([], [], nodes)
    try:
        sampler = ALL[kind](graph)
    except GraphWeftError as failure:  # weights that sum to nothing
        assert isinstance(failure, GraphError | ConfigError) and "\n" not in str(failure)
        return
    for batch in Loader(graph, seeds=list(range(nodes)), sampler=sampler, batch_size=2):
        assert batch.num_edges == 0 and set(batch.n_id.tolist()) <= set(range(nodes))


def test_what_is_no_dataset_sampler_or_state_is_told_in_one_line() -> None:
    ds = dataset()
    for thing in (None, "cora", ds.graph.edges(), {"graph": ds.graph}):
        made: Any = thing
        assert type(thing).__name__ in one_line(GraphError, lambda made=made: Loader(made, [0], [2]))
        assert type(thing).__name__ in one_line(GraphError, lambda made=made: LinkLoader(made))
    no_sampler: Any = "neighbor"
    assert "'neighbor'" in one_line(ConfigError, lambda: Loader(ds, sampler=no_sampler))
    assert "Subtasks" in one_line(ConfigError, lambda: Loader(ds, prepare=no_sampler))
    loader = Loader(ds, fanouts=[2])
    state = loader.state_dict()
    for bad in (None, [1], "x", {**state, "epoch": True}, {**state, "position": 0.0}, {**state, "epoch": 2**64}):
        broken: Any = bad
        one_line(CheckpointError, lambda broken=broken: loader.load_state_dict(broken))


def test_integers_of_other_libraries_are_integers() -> None:
    ds = dataset()
    plain = Loader(ds, fanouts=[3, 2], batch_size=16, seed=3, prefetch=1)
    other = Loader(
        ds,
        fanouts=np.array([3, 2]),
        batch_size=np.int64(16),
        seed=np.uint8(3),
        prefetch=torch.tensor(1),  # type: ignore[arg-type]
    )
    assert other.state_dict() == plain.state_dict()
    assert {type(v) for v in other.state_dict().values()} == {type(v) for v in plain.state_dict().values()}
    for wrong in (np.float64(3), np.bool_(True), torch.tensor(True), 3.0, "3", None):
        number: Any = wrong
        one_line(ConfigError, lambda number=number: Loader(ds, batch_size=number))
        one_line(ConfigError, lambda number=number: Loader(ds, fanouts=[number]))


def test_tables_that_are_no_tensors_or_of_other_sizes() -> None:
    ds = dataset()
    assert isinstance(ds.x, torch.Tensor)

    class Own:
        def __init__(self, **tables: Any) -> None:
            self.graph, self.x, self.y, self.train_idx = ds.graph, ds.x, ds.y, ds.train_idx
            self.__dict__.update(tables)

    for name, table in (("x", ds.x.numpy()), ("x", ds.x.to_sparse()), ("y", ds.y.tolist()), ("edge_weight", [1.0])):
        assert name in one_line(DtypeError, lambda name=name, table=table: Loader(Own(**{name: table}), fanouts=[2]))
    for name, rows in (("x", 499), ("x", 501), ("edge_features", 499)):
        wrong = {name: torch.zeros(rows, 2)}
        assert str(rows) in one_line(ShapeError, lambda wrong=wrong: Loader(Own(**wrong), fanouts=[2]))
        assert str(rows) in one_line(ShapeError, lambda wrong=wrong: LinkLoader(Own(**wrong), fanouts=[2]))
    sparse = SparseFeatures.from_dense(ds.x[:9])
    assert "9 rows" in one_line(ShapeError, lambda: Loader(Own(x=sparse), fanouts=[2]))
