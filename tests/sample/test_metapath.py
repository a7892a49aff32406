"""Walks along relations, and visited neighbours, against products of transition matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import graphweft as gw

HAS, OF = ("user", "has", "item"), ("item", "of", "user")


def _shop() -> gw.Graph:
    draw = torch.Generator().manual_seed(0)
    users, items = torch.randint(0, 6, (30,), generator=draw), torch.randint(0, 9, (30,), generator=draw)
    return gw.Graph.hetero({HAS: (users, items), OF: (items, users)}, {"user": 7, "item": 9})  # user 6 has nothing


def _step(graph: gw.Graph, relation: tuple[str, str, str]) -> np.ndarray:
    """Chances of one step."""
    part = graph.relation_graph(relation)
    counts = np.zeros((part.num_src, part.num_dst))
    src, dst = part.edges()
    np.add.at(counts, (src.numpy(), dst.numpy()), 1)
    return np.asarray(counts / np.maximum(counts.sum(1, keepdims=True), 1))


def test_walks_have_the_chances_of_the_matrices() -> None:
    graph, trials = _shop(), 4000
    ends = gw.sampling.metapath_walk(graph, torch.full((trials,), 2), [OF, HAS], repeat=2, seed=1)
    assert ends.shape == (trials, 5)
    chance = np.linalg.matrix_power(_step(graph, OF) @ _step(graph, HAS), 2)[2]
    seen = np.bincount(ends[:, 4].numpy(), minlength=9)
    assert not seen[chance == 0].any()
    assert stats.chisquare(seen[chance > 0], trials * chance[chance > 0]).pvalue > 1e-3
    for column, relation in enumerate([OF, HAS, OF, HAS]):
        part = graph.relation_graph(relation)
        assert bool(part.has_edges(ends[:, column], ends[:, column + 1]).all())


def test_a_walk_ends_where_nothing_leads_on_and_follows_weights() -> None:
    graph = gw.Graph.hetero({HAS: ([0, 0], [0, 1]), OF: ([0], [1])}, {"user": 2, "item": 2})
    walks = gw.sampling.metapath_walk(graph, [0] * 50 + [1], [HAS, OF, HAS], weight={HAS: [0.0, 1.0]})
    assert walks.tolist() == [[0, 1, -1, -1]] * 50 + [[1, -1, -1, -1]]


def test_one_walk_does_not_depend_on_the_others() -> None:
    graph = _shop()
    both = gw.sampling.metapath_walk(graph, [1, 2, 3], [OF, HAS], seed=4, epoch=2)
    assert torch.equal(both[:2], gw.sampling.metapath_walk(graph, [1, 2], [OF, HAS], seed=4, epoch=2))
    assert not torch.equal(both, gw.sampling.metapath_walk(graph, [1, 2, 3], [OF, HAS], seed=4, epoch=3))


@pytest.mark.parametrize("restart", [0.0, 0.4])
def test_visits_are_those_that_the_matrices_expect(restart: float) -> None:
    draw = torch.Generator().manual_seed(3)
    src, dst = torch.randint(0, 8, (2, 40), generator=draw)
    graph, walks = gw.Graph(torch.cat([src, torch.arange(8)]), torch.cat([dst, (torch.arange(8) + 1) % 8])), 4000
    near = gw.sampling.visited_neighbors(graph, 8, walks=walks, length=3, restart=restart, seed=2)
    counts = np.zeros((8, 8))
    np.add.at(counts, tuple(ends.numpy() for ends in graph.edges()), 1)
    step = counts / counts.sum(1, keepdims=True)
    here, expected = np.eye(8), np.zeros((8, 8))
    for _ in range(3):
        here = (1 - restart) * here @ step + restart * np.eye(8)
        expected += here
    np.fill_diagonal(expected, 0)
    seen = np.zeros((8, 8))
    visited, center = (ends.numpy() for ends in near.edges())
    seen[center, visited] = near.edata["visits"].numpy() / walks
    assert np.abs(seen - expected).max() < 5 * np.sqrt(3 * 3 / walks)
    shares = torch.zeros(8).index_add_(0, near.edges()[1], near.edata["weight"])
    assert torch.allclose(shares, torch.ones(8))
    few = gw.sampling.visited_neighbors(graph, 2, walks=walks, length=3, restart=restart, seed=2)
    assert few.in_degrees().tolist() == [2] * 8
    order = np.sort(seen, axis=1)[:, ::-1]
    kept = few.edata["visits"].reshape(8, 2).double().numpy() / walks
    assert np.allclose(kept, order[:, :2])


def test_visits_along_a_metapath_end_by_turns() -> None:
    graph, walks = _shop(), 4000
    near = gw.sampling.visited_neighbors(graph, 9, metapath=[OF, HAS], walks=walks, length=2, restart=0.3)
    turn = _step(graph, OF) @ _step(graph, HAS)
    expected = 0.7 * turn + 0.49 * turn @ turn
    np.fill_diagonal(expected, 0)
    seen = np.zeros((9, 9))
    visited, center = (ends.numpy() for ends in near.edges())
    seen[center, visited] = near.edata["visits"].numpy() / walks
    assert near.num_nodes == 9 and np.abs(seen - expected).max() < 5 * np.sqrt(4 / walks)


def test_the_neighbours_of_some_nodes_are_those_among_all() -> None:
    graph = _shop()
    every = gw.sampling.visited_neighbors(graph, 3, metapath=[OF, HAS], seed=5)
    some = gw.sampling.visited_neighbors(graph, 3, nodes=[4, 2], metapath=[OF, HAS], seed=5)
    chosen = torch.isin(every.edges()[1], torch.tensor([2, 4]))
    assert torch.equal(torch.stack(every.edges())[:, chosen], torch.stack(some.edges()))
    loader = gw.Loader(every, torch.arange(9), fanouts=[-1, -1], batch_size=4)
    assert all(batch.blocks[0].edata["weight"].dtype == torch.float32 for batch in loader)


def test_mistakes_are_one_line() -> None:
    graph, plain = _shop(), gw.Graph([0, 1], [1, 0])
    for call, text in [
        (lambda: gw.sampling.metapath_walk(plain, [0], [HAS]), "expected a typed graph"),
        (
            lambda: gw.sampling.metapath_walk(graph, [0], [HAS, HAS]),
            "begins at item, got user-has-item and user-has-item",
        ),
        (lambda: gw.sampling.metapath_walk(graph, [0], [HAS], repeat=2), "begins at item"),
        (lambda: gw.sampling.metapath_walk(graph, [7], [HAS]), "got 7 at position 0"),
        (lambda: gw.sampling.visited_neighbors(graph, 3), "expected metapath for a typed graph"),
        (lambda: gw.sampling.visited_neighbors(graph, 3, metapath=[HAS]), "begins at item"),
        (lambda: gw.sampling.visited_neighbors(plain, 0), "expected k as an integer >= 1, got 0"),
        (lambda: gw.sampling.visited_neighbors(plain, 2, restart=1.0), r"a share in [0, 1), got 1.0"),
    ]:
        with pytest.raises(gw.errors.GraphWeftError) as failure:
            call()
        assert text in str(failure.value) and "\n" not in str(failure.value)
