"""Bad and extreme input to every sampler and loader: a defined result, or one clear line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loader.test_loader import dataset
from loader.test_samplers import KINDS

from graphweft._errors import ConfigError, GraphError, GraphWeftError, IndexRangeError
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

ALL: dict[str, Callable[[Graph], Any]] = {"neighbor": lambda g: NeighborSampler(g, [4, 2]), **KINDS}
BY_SEEDS = {name: make for name, make in ALL.items() if not name.startswith(("saint", "cluster"))}
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
