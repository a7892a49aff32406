"""Sampling by relation and time against the definition, edge by edge, and against exact probabilities."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample import slow
from sample.reference import same
from sample.test_against_slow import check_blocks
from scipy import stats
from zoo import SQUARE, Case, random_edges

from graphweft._errors import ConfigError, DtypeError, GraphError, IndexRangeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.sample import segment
from graphweft.sample.sampler import Sample
from graphweft.sample.segment import LeftOut, SegmentSampler, relation_fanouts


def check(
    graph: Graph,
    seeds: list[int],
    fanouts: tuple[tuple[int, ...], ...],
    sample: Sample,
    *,
    replace: bool = False,
    time: np.ndarray | None = None,
    seed_time: np.ndarray | None = None,
    window: float | None = None,
    recent: bool = False,
    disjoint: bool = False,
    exclude: LeftOut | None = None,
    weight: np.ndarray | None = None,
) -> None:
    """Every block edge by edge, in plain Python."""
    disjoint = disjoint or time is not None
    src, dst = (ends.tolist() for ends in graph.edges())
    relation = graph.edge_type().tolist() if graph.relations else []
    relations = max(len(graph.relations), 1)
    left = set() if exclude is None else set(zip(*(part.tolist() for part in exclude), strict=True))
    n_id, owner = sample.n_id.tolist(), sample.owner.tolist() if disjoint else [0] * sample.num_nodes
    assert n_id[: len(seeds)] == seeds and sample.batch_size == len(seeds)
    assert len(set(zip(owner, n_id, strict=True))) == len(n_id)
    if disjoint:
        assert owner[: len(seeds)] == list(range(len(seeds)))

    into: dict[tuple[int, int], list[int]] = {}
    for edge in range(graph.num_edges):
        into.setdefault((dst[edge], relation[edge]), []).append(edge)

    def eligible(row: int, kind: int) -> list[int]:
        tree = owner[row]
        able = []
        for edge in into.get((n_id[row], kind), []):
            bounded = time is None or (
                time[edge] <= seed_time[tree] and (window is None or time[edge] >= seed_time[tree] - window)
            )
            if weight is not None and weight[edge] == 0:
                continue
            hidden = (tree, kind, src[edge], dst[edge]) in left and (time is None or time[edge] >= seed_time[tree])
            if bounded and not hidden:
                able.append(edge)
        return able

    reached, union = len(seeds), dict[tuple[int, int], int]()
    for block, fanout in zip(reversed(sample.blocks), fanouts, strict=True):
        assert block.num_dst == reached
        ids, (s, d) = block.e_id.tolist(), (ends.tolist() for ends in block.edges())
        of_row: dict[tuple[int, int], list[int]] = {}
        for edge, source, row in zip(ids, s, d, strict=True):
            assert n_id[source] == src[edge] and n_id[row] == dst[edge] and owner[source] == owner[row]
            of_row.setdefault((row, relation[edge]), []).append(edge)
        for pair, times in Counter(zip(ids, d, strict=True)).items():
            union[pair] = max(union.get(pair, 0), times)
        for row, kind in itertools.product(range(reached), range(relations)):
            able = eligible(row, kind)
            drawn = of_row.get((row, kind), [])
            most = len(able) if fanout[kind] == -1 else fanout[kind]
            assert set(drawn) <= set(able)
            assert len(drawn) == ((most if able else 0) if replace else min(most, len(able)))
            if not replace:
                assert len(set(drawn)) == len(drawn)
            if recent:
                latest = sorted(able, key=lambda e: (time[e], e), reverse=True)[: len(drawn)]
                assert sorted(drawn) == sorted(latest)
        new = [v for v in dict.fromkeys(s) if v >= reached]
        assert sorted(new) == list(range(reached, block.num_src))
        reached = block.num_src
    assert reached == len(n_id)
    (s, d), e_id = sample.edge_index.tolist(), sample.e_id.tolist()
    assert [n_id[v] for v in s] == [src[e] for e in e_id] and [n_id[v] for v in d] == [dst[e] for e in e_id]
    counts: dict[tuple[int, int], int] = {}
    for pair in zip(e_id, d, strict=True):
        counts[pair] = counts.get(pair, 0) + 1
    assert counts == union


def random_typed(rng: np.random.Generator) -> Graph:
    """Three node types and up to five relations, one of them from a type to itself; some without edges."""
    counts = {"a": int(rng.integers(1, 8)), "b": int(rng.integers(1, 8)), "c": int(rng.integers(1, 5))}
    names = [("a", "to", "b"), ("b", "to", "a"), ("a", "self", "a"), ("c", "of", "a"), ("b", "of", "c")]
    chosen = [names[i] for i in sorted(rng.permutation(5)[: rng.integers(1, 6)])]
    edges = {}
    for s, name, d in chosen:
        size = int(rng.integers(0, 25))
        edges[s, name, d] = (rng.integers(0, counts[s], size), rng.integers(0, counts[d], size))
    return Graph.hetero(edges, counts)


def check_against_slow(sampler: SegmentSampler, seeds: list[int], call: dict[str, Any], sample: Sample) -> None:
    """Bit for bit, by what the caller gave."""
    count = len(seeds) if sampler.disjoint else 1
    left: list[set[tuple[int, int, int]]] = [set() for _ in range(max(count, 1))]
    if "exclude" in call:
        for tree, *edge in zip(*(part.tolist() for part in call["exclude"]), strict=True):
            left[tree].add(tuple(edge))
    trees = [slow.Tree(i, left_out=frozenset(left[i])) for i in range(count)]
    times = None
    if "time" in call:
        times, window = sampler._time.tolist(), sampler.window
        high = call["time"].tolist()
        low = [-np.inf if window is None else t - window for t in high]
        trees = [tree._replace(low=a, high=b) for tree, a, b in zip(trees, low, high, strict=True)]
    key = (call["seed"], call["epoch"], 0)
    apart, recent = sampler.disjoint, sampler.strategy == "recent"
    given = (sampler.graph, seeds, sampler.fanouts, sampler.replace, key, trees, times)
    nodes, owners, layers = slow.segment(*given, apart=apart, recent=recent)
    check_blocks(sample, nodes, layers)
    assert sample.owner is None if not apart else sample.owner.tolist() == owners


def random_call(graph: Graph, rng: np.random.Generator) -> None:
    hops, relations = int(rng.integers(1, 4)), max(len(graph.relations), 1)
    timed, disjoint = bool(rng.integers(2)), bool(rng.integers(2))
    recent = timed and bool(rng.integers(2))
    replace = not recent and bool(rng.integers(3) == 0)
    table = rng.integers(1 if replace else -1, 5, (hops, relations))
    if not graph.is_typed:
        table[table == 0] = 1
    by_relation = {r: table[:, i].tolist() for i, r in enumerate(graph.relations)}
    fanouts: Any = by_relation if graph.is_typed else table[:, 0].tolist()
    count = int(rng.integers(0, 2 * graph.num_nodes + 1))
    seeds = rng.integers(0, graph.num_nodes, count) if timed or disjoint else rng.permutation(graph.num_nodes)[:count]
    options: dict[str, Any] = {"disjoint": disjoint}
    call: dict[str, Any] = {"seed": int(rng.integers(2**62)), "epoch": int(rng.integers(3))}
    expected: dict[str, Any] = {"replace": replace, "disjoint": disjoint}
    if timed:
        floats = bool(rng.integers(2))
        time = rng.integers(-10, 10, graph.num_edges) / (2 if floats else 1)
        seed_time = rng.integers(-12, 12, len(seeds)) / (2 if floats else 1)
        if not floats:
            time, seed_time = time.astype(np.int64), seed_time.astype(np.int64)
        window = None if rng.integers(2) else int(rng.integers(0, 8))
        options |= {"time": time, "window": window, "strategy": "recent" if recent else "uniform"}
        call["time"] = seed_time
        expected |= {"time": time, "seed_time": seed_time, "window": window, "recent": recent}
    if rng.integers(2) and graph.num_edges and len(seeds):
        some = rng.integers(0, graph.num_edges, int(rng.integers(1, 9)))
        s, d = (ends[some] for ends in graph.edges())
        tree = torch.from_numpy(rng.integers(0, len(seeds), len(some))) if timed or disjoint else torch.zeros_like(s)
        call["exclude"] = expected["exclude"] = LeftOut(tree, graph.edge_type()[some], s, d)
    if rng.integers(3) == 0:
        expected["weight"] = options["weight"] = rng.integers(0, 3, graph.num_edges) * rng.random(graph.num_edges)
    sampler = SegmentSampler(graph, fanouts, replace, **options)
    sample = sampler.sample(seeds, **call)
    check(graph, seeds.tolist(), sampler.fanouts, sample, **expected)
    if not sampler.is_weighted:
        check_against_slow(sampler, seeds.tolist(), call, sample)
    assert same(sample, sampler.sample(seeds, **call))


@given(st.integers(0, 10**9))
@settings(max_examples=250, deadline=None)
def test_random_calls_satisfy_the_definition(number: int) -> None:
    rng = np.random.default_rng(number)
    if rng.integers(3):
        return random_call(random_typed(rng), rng)
    nodes = int(rng.integers(1, 15))
    edges = random_edges(nodes, int(rng.integers(0, 60)), number)
    return random_call(Graph(edges.src, edges.dst, nodes), rng)


@pytest.mark.slow
def test_ten_thousand_random_calls_satisfy_the_definition() -> None:
    for number in range(10_000):
        rng = np.random.default_rng(number)
        if number % 4:
            random_call(random_typed(rng), rng)
            continue
        edges = random_edges(int(rng.integers(1, 15)), int(rng.integers(0, 60)), number)
        random_call(Graph(edges.src, edges.dst, edges.num_nodes), rng)


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_the_zoo_with_times(case: Case) -> None:
    graph, rng = case.graph(), np.random.default_rng(0)
    time = rng.integers(0, 20, graph.num_edges)
    seeds = rng.permutation(case.num_dst)[:8].tolist()
    seed_time = rng.integers(0, 20, len(seeds))
    for fanouts, strategy in itertools.product(([3], [2, -1], [1, 4]), ("uniform", "recent")):
        sampler = SegmentSampler(graph, fanouts, time=time, strategy=strategy)
        sample = sampler.sample(seeds, time=seed_time)
        args = {"time": time, "seed_time": seed_time, "recent": strategy == "recent"}
        check(graph, seeds, sampler.fanouts, sample, **args)


def _star(degree: int) -> Graph:
    return Graph(torch.arange(1, degree + 1), torch.zeros(degree, dtype=torch.int64), degree + 1)


def _subsets(rows: list[list[int]], able: list[int], k: int) -> np.ndarray:
    places = {subset: i for i, subset in enumerate(itertools.combinations(able, k))}
    return np.bincount([places[tuple(sorted(row))] for row in rows], minlength=len(places))


@pytest.mark.parametrize(("seed_time", "window", "able"), [(4, None, 5), (5, 2, 3), (9, 9, 7)])
def test_what_is_not_too_late_is_equally_likely(seed_time: int, window: int | None, able: int) -> None:
    time = [6, 0, 1, 2, 3, 4, 5]  # edge 0 is the latest
    eligible = [e for e, t in enumerate(time) if t <= seed_time and (window is None or t >= seed_time - window)]
    assert len(eligible) == able
    sampler = SegmentSampler(_star(7), [2], time=time, window=window)
    drawn = [sampler.sample([0], time=[seed_time], epoch=e).e_id.tolist() for e in range(8000)]
    assert stats.chisquare(_subsets(drawn, eligible, 2)).pvalue > 1e-4


def test_many_draws_from_long_segments_are_uniform() -> None:
    for degree, k in ((300, 100), (2000, 40), (70_000, 500)):
        sampler = SegmentSampler(_star(degree), [k], time=np.arange(degree))
        drawn = np.array(
            [sampler.sample([0], time=[degree // 2 - 1], epoch=e).e_id.numpy() for e in range(40_000 // k)]
        )
        most = degree // 2
        assert all(len(set(row)) == k for row in drawn.tolist()) and drawn.max() < most
        bins = np.histogram(drawn, bins=10, range=(0, most))[0]
        spread = drawn.size / 10 * (1 - k / most)  # draws without replacement spread less
        assert stats.chi2.sf(((bins - drawn.size / 10) ** 2).sum() / spread, 9) > 1e-4


def test_trees_of_one_seed_draw_apart_and_by_their_keys() -> None:
    sampler = SegmentSampler(_star(5), [1], disjoint=True)
    pairs = []
    for epoch in range(5000):
        sample = sampler.sample([0, 0], epoch=epoch)
        pairs.append(sample.e_id.tolist())
    counts = np.bincount([5 * a + b for a, b in pairs], minlength=25)
    assert stats.chisquare(counts).pvalue > 1e-4
    keyed = sampler.sample([0, 0], keys=torch.tensor([7, 3])).e_id.tolist()
    assert sampler.sample([0], keys=torch.tensor([3])).e_id.tolist() == keyed[1:]
    assert sampler.sample([0], keys=torch.tensor([7])).e_id.tolist() == keyed[:1]


def test_relations_draw_apart() -> None:
    """Two relations with the same edges: their draws are independent, each uniform."""
    ends = (torch.arange(1, 4), torch.zeros(3, dtype=torch.int64))
    graph = Graph.hetero({("n", "p", "n"): ends, ("n", "q", "n"): ends}, {"n": 4})
    sampler = SegmentSampler(graph, [1])
    drawn = [sampler.sample([0], epoch=e).e_id.tolist() for e in range(5000)]
    assert stats.chisquare(np.bincount([3 * a + b - 3 for a, b in drawn], minlength=9)).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["typed", "timed", "recent", "trees"])
def test_the_same_bits_for_any_number_of_threads_and_either_numbering(
    kind: str, threads_restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges, rng = random_edges(5000, 150_000, seed=3), np.random.default_rng(1)
    graph = Graph(edges.src, edges.dst, 5000)
    options: dict[str, Any] = {"disjoint": True} if kind == "trees" else {}
    if kind == "typed":
        half = graph.num_edges // 2
        parts = {
            ("n", name, "n"): (edges.src[at], edges.dst[at])
            for name, at in (("p", slice(half)), ("q", slice(half, None)))
        }
        graph = Graph.hetero(parts, {"n": 5000})
    elif kind != "trees":
        options = {"time": rng.random(graph.num_edges), "strategy": "recent" if kind == "recent" else "uniform"}
    seeds = torch.randperm(5000)[:1000]
    call = {"time": rng.random(1000)} if "time" in options else {}
    samples = []
    for threads, dense in itertools.product((1, 2, 4), (True, False)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(segment, "_DENSE_MOST", 1 << 30 if dense else 0)
        samples.append(SegmentSampler(graph, [10, 5], **options).sample(seeds, seed=5, epoch=2, **call))
    assert samples[0].num_edges > 10_000
    assert all(same(samples[0], other) for other in samples[1:])


def test_large_and_infinite_times_keep_their_order() -> None:
    graph = _star(4)
    big = 2**62
    sampler = SegmentSampler(graph, [-1], time=[big, big + 1, -big, -(2**63)], window=2**61)
    assert sampler.sample([0], time=[big]).e_id.tolist() == [0]
    assert sampler.sample([0], time=[-(2**63) + 5]).e_id.tolist() == [3]  # the window does not wrap round
    floats = SegmentSampler(graph, [-1], time=[0.0, -0.0, float("inf"), -float("inf")])
    assert sorted(floats.sample([0], time=[-0.0]).e_id.tolist()) == [0, 1, 3]
    assert sorted(floats.sample([0], time=[float("inf")]).e_id.tolist()) == [0, 1, 2, 3]


def test_graphs_without_edges_or_relations() -> None:
    nothing = Graph.hetero({}, {"a": 3})
    assert SegmentSampler(nothing, [2, 2]).sample([2, 0]).n_id.tolist() == [2, 0]
    assert SegmentSampler(Graph([], [], 3), [2], time=[]).sample([1, 1], time=[0, 1]).owner.tolist() == [0, 1]
    assert SegmentSampler(Graph([], [], 0), [2]).sample([]).num_nodes == 0


FILMS = {("user", "likes", "film"): ([0, 1], [0, 1]), ("film", "by", "user"): ([0], [1])}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"time": [1]}, ShapeError, "SegmentSampler time: expected 3 rows, one per edge, got 1 rows"),
        ({"time": [1.0, float("nan"), 2.0]}, ConfigError, "expected time without not-a-number, got nan at position 1"),
        ({"time": ["a", "b", "c"]}, DtypeError, "expected time as numbers, one per edge, got list"),
        ({"time": torch.zeros(3, 1)}, ShapeError, "expected time with 1 dimension"),
        ({"time": [True, False, True]}, DtypeError, "expected time as integers or floats"),
        ({"window": 3}, ConfigError, "expected time, one per edge, for a window"),
        ({"strategy": "recent"}, ConfigError, "expected time, one per edge"),
        ({"strategy": "old"}, ConfigError, "expected strategy as one of uniform, recent, got 'old'"),
        ({"time": [1, 2, 3], "window": -1}, ConfigError, "expected window as a finite number >= 0, got -1"),
        ({"time": [1, 2, 3], "window": 0.5}, ConfigError, "expected window as an integer, as the times are, got 0.5"),
        ({"time": [1, 2, 3], "window": float("nan")}, ConfigError, "expected window as a finite number"),
        ({"fanouts": [0]}, ConfigError, "expected fanouts >= 1, or -1 for all, got 0 at position 0"),
        ({"fanouts": {("user", "hates", "film"): [1]}}, GraphError, "expected one of the relations"),
        (
            {"fanouts": {("user", "likes", "film"): [1], ("film", "by", "user"): [1, 2]}},
            ConfigError,
            "expected as many fanouts for every relation, got 1 for user-likes-film, 2 for film-by-user",
        ),
        ({"fanouts": {("user", "likes", "film"): [1.5], ("film", "by", "user"): [1]}}, ConfigError, "got 1.5"),
        ({"fanouts": [-1], "replace": True}, ConfigError, "when drawing with replacement"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_options_are_one_line(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as failure:
        SegmentSampler(Graph.hetero(FILMS), **{"fanouts": [2], **options})
    assert text in str(failure.value) and "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("seeds", "call", "error", "text"),
    [
        ([0], {}, ConfigError, "expected times of the seeds, one per seed"),
        ([0, 1], {"time": [1]}, ShapeError, "expected 2 rows, one per seed, got 1 rows"),
        ([0], {"time": [float("nan")]}, ConfigError, "got nan at position 0"),
        ([0], {"time": [0.5]}, ConfigError, "as integers, as those of the edges are, got floats"),
        ([9], {"time": [1]}, IndexRangeError, "expected seed ids in [0, 4), got 9 at position 0"),
        ([0], {"time": [1], "keys": torch.tensor([1, 2])}, ShapeError, "expected one key per seed, 1, got 2"),
    ],
)
def test_bad_calls_are_one_line(seeds: Any, call: dict[str, Any], error: type[Exception], text: str) -> None:
    sampler = SegmentSampler(Graph.hetero(FILMS), [2], time=[1, 2, 3])
    with pytest.raises(error) as failure:
        sampler.sample(seeds, **call)
    assert text in str(failure.value) and "\n" not in str(failure.value)
    assert sampler.sample([3], time=[9]).num_nodes > 1  # nothing is left behind


def test_other_bad_calls() -> None:
    with pytest.raises(ConfigError, match="expected distinct seeds, got 1 at positions 0 and 2"):
        SegmentSampler(Graph([0], [1], 3), [1]).sample([1, 0, 1])
    with pytest.raises(ConfigError, match="times of seeds cannot be used, since the edges have no times"):
        SegmentSampler(Graph([0], [1]), [1]).sample([1], time=[3])
    with pytest.raises(ConfigError, match="expected integers below 2\\^53"):
        SegmentSampler(Graph([0], [1]), [1], time=[0.5]).sample([1], time=[2**60 + 1])
    with pytest.raises(GraphError, match="expected a graph over one set of nodes"):
        SegmentSampler(Graph([0], [1], (2, 3)), [1])
    assert relation_fanouts("x", Graph([0], [1]), [3, 2]) == ((3,), (2,))
