"""Partitions: GAP against an exhaustive search in NumPy, METIS's branches, the report against sets."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import SQUARE, Case, power_law_edges, random_edges

import graphweft as gw
from graphweft.partitioning import metis as metis_module
from graphweft.partitioning.metis import metis
from graphweft.partitioning.partition import label_distance
from graphweft.partitioning.streaming import cost_scale, stream


def brute_force(graph, k, labels, part, balance=1.0):
    """Algorithm 2 with the arg-max over all parts, in float64; the lowest part among equals."""
    indptr, indices = graph.csc.indptr.numpy(), graph.csc.indices.numpy()
    n = graph.num_nodes
    labels = np.zeros(n, np.int64) if labels is None else labels.numpy()
    part = part.numpy().copy()
    of_label = np.bincount(labels, minlength=1) if n else np.ones(1)
    counts = np.zeros((len(of_label), k))
    for v in range(n):
        if part[v] >= 0:
            counts[labels[v], part[v]] += 1
    m = max(graph.num_edges, 1) / 2
    scale = balance * 1.5 * math.sqrt(k) * m / n**1.5 if n else 0.0
    for v in range(n):
        label = labels[v]
        if part[v] >= 0:
            counts[label, part[v]] -= 1
        part[v] = -1
        near = part[indices[indptr[v] : indptr[v + 1]]]
        neighbours = np.bincount(near[near >= 0], minlength=k).astype(np.float64)
        score = neighbours - scale * np.sqrt(counts[label] * (n / of_label[label]))
        part[v] = int(np.argmax(score))  # the first of the largest
        counts[label, part[v]] += 1
    return part


def communities(count, size, seed, inside=20.0, outside=2.0):
    """A symmetric stochastic block model; node i is in community i // size."""
    rng = np.random.default_rng(seed)
    n = count * size
    src, dst = rng.integers(0, n, int(n * outside / 2)), rng.integers(0, n, int(n * outside / 2))
    mine = rng.integers(0, n, int(n * inside / 2))
    other = mine // size * size + rng.integers(0, size, mine.size)
    src, dst = np.concatenate([src, mine]), np.concatenate([dst, other])
    keep = src != dst
    graph = gw.Graph(src[keep], dst[keep], num_nodes=n).to_bidirected()
    return graph, torch.from_numpy(np.arange(n) // size)


@pytest.mark.parametrize("case", SQUARE, ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 64])
def test_two_candidates_find_the_arg_max_of_all_parts(case: Case, k: int) -> None:
    graph = case.graph()
    labels = torch.arange(graph.num_nodes, dtype=torch.int32) % 3
    for given_labels in (None, labels):
        part = torch.full((graph.num_nodes,), -1, dtype=torch.int32)
        for _ in range(3):
            expected = brute_force(graph, k, given_labels, part)
            stream(graph, k, given_labels, part)
            assert np.array_equal(part.numpy(), expected)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60), st.integers(0, 400), st.integers(1, 40), st.integers(1, 5),
    st.sampled_from([0.01, 1.0, 7.5]), st.integers(0, 2**31),
)  # fmt: skip
def test_two_candidates_on_random_graphs(n, edges, k, classes, balance, seed) -> None:
    made = power_law_edges(n, edges, seed) if seed % 2 else random_edges(n, edges, seed)
    graph = gw.Graph(made.src, made.dst, num_nodes=n)
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(0, classes, n).astype(np.int32))
    part = torch.from_numpy(rng.integers(-1, k, n).astype(np.int32))
    every = part.clone()
    for _ in range(2):
        expected = brute_force(graph, k, labels, part, balance)
        stream(graph, k, labels, part, balance)
        stream(graph, k, labels, every, balance, exhaustive=True)
        assert np.array_equal(part.numpy(), expected)
        assert torch.equal(part, every)


def test_the_score_by_hand() -> None:
    # node 2 has neighbours 0 (part 0) and 1 (part 1); its label's only other node, 3, is in part 0
    graph = gw.Graph([0, 1], [2, 2], num_nodes=4)
    labels = torch.tensor([0, 0, 1, 1], dtype=torch.int32)
    part = torch.tensor([0, 1, -1, 0], dtype=torch.int32)
    scale = cost_scale(graph, 2)
    assert scale == pytest.approx(1.5 * math.sqrt(2) * 1 / 8)
    by_hand = [1 - scale * math.sqrt(1 / 0.5), 1 - 0.0]
    stream(graph, 2, labels, part)
    assert int(part[2]) == int(np.argmax(by_hand)) == 1


def test_nodes_without_a_label_are_balanced_as_one_label_more() -> None:
    """H08: unlabelled nodes count as label L."""
    made = power_law_edges(300, 2400, seed=5)
    graph = gw.Graph(made.src, made.dst, num_nodes=300)
    labels = torch.arange(300) % 5 - 2
    labels[labels < 0] = -1
    one_more = torch.where(labels < 0, 3, labels)
    expected = torch.full((300,), -1, dtype=torch.int32)
    for _ in range(2):
        expected = torch.from_numpy(brute_force(graph.to_bidirected(), 4, one_more, expected))
    assert torch.equal(gw.partition(graph, 4, labels=labels, passes=2).part, expected)


def one_way(graph: gw.Graph, seed: int) -> gw.Graph:
    """One edge, in a random direction, for each pair of a symmetric graph."""
    src, dst = graph.edges()
    src, dst = src[src < dst], dst[src < dst]
    turned = torch.from_numpy(np.random.default_rng(seed).random(src.numel()) < 0.5)
    return gw.Graph(torch.where(turned, dst, src), torch.where(turned, src, dst), num_nodes=graph.num_nodes)


@pytest.mark.parametrize("method", ["gap", "metis"])
def test_edges_count_in_both_directions(method: str) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    graph, _ = communities(8, 500, seed=2)
    directed = one_way(graph, seed=3)
    assert not directed.is_symmetric
    found, wanted = gw.partition(directed, 8, method), gw.partition(graph, 8, method)
    assert torch.equal(found.part, wanted.part)
    assert found.report.cut_share == pytest.approx(wanted.report.cut_share, abs=1e-9)
    src, dst = directed.edges()  # the report is of the graph that was given
    assert found.report.cut == int((found.part[src] != found.part[dst]).sum())
    assert wanted.report.cut_share < 0.35  # by in-edges alone the directed graph is cut at 0.65


def test_a_typed_graph_is_cut_as_its_untyped_form() -> None:
    graph, _ = communities(4, 100, seed=5)
    src, dst = one_way(graph, seed=6).edges()
    half = src.numel() // 2
    typed = gw.Graph.hetero(
        {("n", "a", "n"): (src[:half], dst[:half]), ("n", "b", "n"): (src[half:], dst[half:])}, {"n": graph.num_nodes}
    )
    assert torch.equal(gw.partition(typed, 4).part, gw.partition(graph, 4).part)


def test_operations_grow_with_edges_and_nodes_log_k() -> None:
    made = power_law_edges(4000, 40_000, seed=3)
    graph = gw.Graph(made.src, made.dst, num_nodes=4000)
    counted = {}
    for k in (16, 1024):
        part = torch.full((4000,), -1, dtype=torch.int32)
        stream(graph, k, None, part)
        counted[k] = steps = stream(graph, k, None, part)
        assert steps.entries == graph.num_edges
        assert steps.tree_nodes <= 2 * 4000 * math.log2(k)
        assert steps.scores <= graph.num_edges + 4000
        full = stream(graph, k, None, part.clone(), exhaustive=True)
        assert full.scores == 4000 * k
    total = {k: s.entries + s.tree_nodes + s.scores for k, s in counted.items()}
    assert total[1024] <= 2.5 * total[16]


def test_labels_are_balanced_where_metis_splits_by_community() -> None:
    graph, labels = communities(8, 250, seed=0)
    ours = gw.partition(graph, 8, labels=labels).report
    assert float(ours.label_distance.max()) <= 0.1
    assert ours.balance < 1.1
    pytest.importorskip("pymetis")
    theirs = gw.partition(graph, 8, "metis", labels=labels).report
    assert float(theirs.label_distance.max()) > 0.3


def test_a_second_pass_cuts_no_more() -> None:
    better = 0
    for seed in range(10):
        graph, _ = communities(20, 60, seed)
        order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
        src, dst = graph.edges()
        graph = gw.Graph(order[src], order[dst], num_nodes=graph.num_nodes)
        first = gw.partition(graph, 6, passes=1)
        second = gw.partition(graph, 6, passes=1, initial=first.part)
        assert torch.equal(second.part, gw.partition(graph, 6, passes=2).part)
        better += second.report.cut <= first.report.cut
    assert better >= 9


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_report_counts_what_sets_count(case: Case) -> None:
    graph = case.graph()
    if not graph.num_nodes:
        return
    labels = torch.arange(graph.num_nodes) % 4 - 1
    made = gw.partition(graph, 3, "random", labels=labels, seed=5)
    part = made.part.tolist()
    pairs = list(zip(case.src.tolist(), case.dst.tolist(), strict=True))
    assert made.report.cut == sum(part[u] != part[v] for u, v in pairs)
    assert made.report.cut_share == made.report.cut / max(len(pairs), 1)
    assert made.report.balance == pytest.approx(max(part.count(p) for p in range(3)) * 3 / graph.num_nodes)
    into = [sum(part[v] == p for _, v in pairs) for p in range(3)]
    assert made.report.edge_balance == pytest.approx(max(into) * 3 / len(pairs) if pairs else 1.0)
    for p in range(3):
        assert int(made.report.halo[p]) == len({u for u, v in pairs if part[v] == p != part[u]})
        assert made.nodes(p).tolist() == [v for v in range(graph.num_nodes) if part[v] == p]
    known = [v for v in range(graph.num_nodes) if labels[v] >= 0]
    for p, got in enumerate(label_distance(made.part, 3, labels).tolist()):
        inside = [int(labels[v]) for v in known if part[v] == p]
        want = 1.0
        if inside:
            share = [sum(int(labels[v]) == c for v in known) / len(known) for c in range(3)]
            want = 0.5 * sum(abs(inside.count(c) / len(inside) - share[c]) for c in range(3))
        assert got == pytest.approx(want)


def test_metis_takes_every_branch_and_says_which(caplog) -> None:
    graph, _ = communities(4, 50, seed=1)
    good = torch.arange(graph.num_nodes, dtype=torch.int32) % 4
    lopsided = torch.where(torch.arange(graph.num_nodes) < 55, 0, good).int()  # largest part 1.8 of the mean
    slightly = torch.where(torch.arange(graph.num_nodes) < 5, 0, good).int()  # within 1.20, above 1.03
    empty = (good % 3).int()

    def answers(*given):
        left = iter(given)

        def solve(_graph, _k, _tolerance, _recursive):
            answer = next(left)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return solve

    cases = [
        ((good,), "metis-kway"),
        ((slightly, slightly), "metis-recursive"),
        ((RuntimeError("ran out"), good), "metis-recursive"),
        ((empty, slightly), "metis-recursive"),
        ((lopsided, lopsided), None),
    ]
    for given_answers, branch in cases:
        caplog.clear()
        with caplog.at_level(logging.INFO, "graphweft.partition"):
            found = metis(graph, 4, answers(*given_answers))
        assert (None if found is None else found[1]) == branch
        if branch is not None:
            assert any(record.message.startswith(f"{branch}: ") for record in caplog.records)
            sizes = torch.bincount(found[0].long(), minlength=4)
            assert int(sizes.max()) <= {"metis-kway": 1.03, "metis-recursive": 1.20}[branch] * 50


def test_metis_is_asked_for_what_each_branch_promises() -> None:
    """The graph is symmetric, without loops and parallel edges; bounds are those of the rule, to the node."""
    graph = gw.Graph([0, 0, 1, 2, 2, 3], [1, 1, 0, 3, 2, 3], num_nodes=400)
    asked = []

    def fails(undirected, k, tolerance, recursive):
        ends = list(zip(*(t.tolist() for t in undirected.edges()), strict=True))
        assert sorted(ends) == [(0, 1), (1, 0), (2, 3), (3, 2)]
        asked.append((undirected.num_nodes, k, tolerance, recursive))
        raise RuntimeError("no")

    assert metis(graph, 4, fails) is None
    assert asked == [(400, 4, 1.03, False), (400, 4, 1.2, True)]
    for most, branch in ((103, "metis-kway"), (104, "metis-recursive"), (120, "metis-recursive"), (121, None)):
        part = torch.arange(400, dtype=torch.int32) % 4
        part[(part == 3).nonzero().reshape(-1)[: most - 100]] = 0
        found = metis(graph, 4, lambda *_, part=part: part)
        assert (None if found is None else found[1]) == branch


def test_metis_is_within_its_tolerance() -> None:
    pytest.importorskip("pymetis")
    graph, _ = communities(6, 100, seed=2)
    made = gw.partition(graph, 6, "metis")
    assert made.method in ("metis-kway", "metis-recursive")
    assert made.report.balance <= 1.2
    assert made.report.cut < gw.partition(graph, 6, "random").report.cut
    assert gw.partition(gw.Graph([0], [1], num_nodes=5), 5, "metis").sizes.max() <= 5  # isolated nodes


def test_without_pymetis_the_message_says_what_to_do(monkeypatch) -> None:
    def absent():
        raise gw.errors.GraphWeftError("absent")

    monkeypatch.setattr(metis_module, "_require", absent)
    with pytest.raises(gw.errors.GraphWeftError):
        gw.partition(gw.Graph([0], [1]), 2, "metis")
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"needs pymetis \(pip install graphweft\[metis\]\)"):
        gw.partition(gw.Graph([0], [1]), 2, "metis")


def test_random_parts_are_equal_and_follow_from_their_seed() -> None:
    graph = gw.Graph([], [], num_nodes=100)
    one, again, other = (gw.partition(graph, 8, "random", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.part, again.part) and not torch.equal(one.part, other.part)
    assert int(one.sizes.max()) - int(one.sizes.min()) <= 1


def test_saved_and_loaded(tmp_path) -> None:
    graph = gw.Graph([0, 1, 2], [1, 2, 0])
    made = gw.partition(graph, 2)
    made.save(tmp_path / "parts.npz")
    again = type(made).load(tmp_path / "parts.npz", graph)
    assert torch.equal(again.part, made.part) and (again.k, again.method) == (made.k, made.method)
    with pytest.raises(gw.errors.ShapeError):
        type(made).load(tmp_path / "parts.npz", gw.Graph([0], [1]))
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(gw.errors.DataError):
        type(made).load(tmp_path / "bad.npz", graph)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"k": 0}, gw.errors.ConfigError),
        ({"k": True}, gw.errors.ConfigError),
        ({"method": "best"}, gw.errors.ConfigError),
        ({"passes": 0}, gw.errors.ConfigError),
        ({"balance": 0.0}, gw.errors.ConfigError),
        ({"labels": torch.zeros(2, dtype=torch.int64)}, gw.errors.ShapeError),
        ({"labels": torch.zeros(3)}, gw.errors.DtypeError),
        ({"initial": torch.tensor([0, 1, 2])}, gw.errors.IndexRangeError),
        ({"labels": torch.full((3,), 2**30), "k": 2**20}, gw.errors.ConfigError),
    ],
)
def test_bad_input_is_one_clear_error(change, error) -> None:
    with pytest.raises(error):
        gw.partition(gw.Graph([0, 1], [1, 2]), **{"k": 2, **change})


def test_the_name_is_a_function_whatever_was_imported_first() -> None:
    assert callable(gw.partition)
