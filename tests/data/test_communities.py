"""Drawing graphs and features: structure against NumPy and SciPy, the same bits for any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphweft.data.communities import (
    PowerLaw,
    binary_features,
    dense_features,
    draw_graph,
    draw_labels,
    draw_split,
    many_labels,
    plant_communities,
    word_features,
)


@pytest.fixture(autouse=True)
def _restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def matrix(indptr: torch.Tensor, indices: torch.Tensor) -> sp.csr_array:
    n = indptr.numel() - 1
    return sp.csr_array((np.ones(indices.numel()), indices.numpy(), indptr.numpy()), shape=(n, n))


def draw(nodes: int, links: int, back: int, seed: int, classes: int = 5, homophily: float = 0.7, shuffled: bool = True):
    plan = plant_communities(nodes, classes, 2, seed, shuffled)
    law = PowerLaw.with_mean(links / nodes, nodes / 4, 2.3)
    return plan, *draw_graph(plan, links, back, law, None, homophily, seed)


@settings(max_examples=60, deadline=None)
@given(nodes=st.integers(1, 60), fill=st.floats(0, 1), back=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))
def test_any_small_graph_is_simple_and_complete(nodes: int, fill: float, back: float, seed: int) -> None:
    links = int(fill * nodes * (nodes - 1) / 4)
    _, indptr, indices = draw(nodes, links, int(back * links), seed, homophily=fill)
    graph = matrix(indptr, indices)
    graph.check_format(full_check=True)
    assert graph.has_canonical_format  # rows ascend, no duplicates
    assert graph.diagonal().sum() == 0
    pairs = sp.triu(graph + graph.T).nnz
    assert graph.nnz - pairs == int(back * pairs) if pairs == links else graph.nnz >= pairs
    assert pairs <= links
    if fill < 0.5:
        assert pairs == links


@pytest.mark.parametrize("shuffled", [True, False])
def test_undirected_graphs_are_symmetric(shuffled: bool) -> None:
    _, indptr, indices = draw(3000, 30_000, 30_000, 1, shuffled=shuffled)
    graph = matrix(indptr, indices)
    assert graph.nnz == 60_000
    assert (graph != graph.T).nnz == 0


def test_a_directed_graph_is_part_of_its_undirected_form() -> None:
    one, half, both = (matrix(*draw(2000, 15_000, back, 4)[1:]) for back in (0, 700, 15_000))
    assert (one.nnz, half.nnz, both.nnz) == (15_000, 15_700, 30_000)
    assert one.multiply(one.T).nnz == 0
    assert abs(one.maximum(one.T) - both).nnz == 0
    assert abs(half.maximum(half.T) - both).nnz == 0


@pytest.mark.parametrize("homophily", [0.3, 0.6, 0.9])
def test_the_share_of_links_within_a_class_is_the_wanted_one(homophily: float) -> None:
    plan, indptr, indices = draw(5000, 40_000, 40_000, 2, homophily=homophily)
    topic, label = draw_labels(plan, 0.0, 2)
    assert torch.equal(topic.long(), label)
    ends = topic.repeat_interleave(indptr.diff())
    assert float((ends == topic[indices.long()]).double().mean()) == pytest.approx(homophily, abs=0.03)


def test_degrees_follow_the_law() -> None:
    nodes, links, exponent = 50_000, 250_000, 2.3
    plan = plant_communities(nodes, 5, 2, 0, True)
    law = PowerLaw.with_mean(links / nodes, 1000.0, exponent)
    indptr, _ = draw_graph(plan, links, links, law, None, 0.3, 0)
    degree = np.sort(indptr.diff().numpy())[::-1].astype(float)
    assert degree.mean() == 2 * links / nodes
    tail = degree[: nodes // 50]  # Hill's estimator of the exponent over the largest two per cent
    assert 1 + 1 / np.log(tail / tail[-1]).mean() == pytest.approx(exponent, abs=0.35)


def test_a_law_has_its_mean() -> None:
    for mean, high, exponent in [(10.0, 1e3, 2.5), (1.5, 50.0, 3.0), (200.0, 5e3, 2.1)]:
        law = PowerLaw.with_mean(mean, high, exponent)
        a, u = exponent - 1, (np.arange(2_000_000) + 0.5) / 2_000_000
        x = law.low * (1 - u * (1 - (law.low / high) ** a)) ** (-1 / a)
        assert x.mean() == pytest.approx(mean, rel=1e-3)
        assert x.max() <= high * 1.0001


def test_everything_is_the_same_for_one_and_two_threads() -> None:
    def everything() -> list[torch.Tensor]:
        plan, indptr, indices = draw(4000, 60_000, 10_000, 9)
        topic, label = draw_labels(plan, 0.1, 9)
        return [
            indptr.clone(),
            indices.clone(),
            topic,
            label.clone(),
            dense_features(topic, 5, 37, 2.0, 9),
            binary_features(topic, 5, 20, 0.4, 2.0, 9),
            many_labels(topic, 5, 11, 0.2, 0.05, 9),
            *word_features(topic, 5, 500, 40_000, 0.2, False, 9),
            *draw_split(4000, (10, 20, 3970), 9),
        ]

    torch.set_num_threads(1)
    first = everything()
    torch.set_num_threads(2)
    for left, right in zip(first, everything(), strict=True):
        assert torch.equal(left, right)


def test_another_seed_draws_another_graph() -> None:
    assert not torch.equal(draw(1000, 5000, 5000, 1)[2], draw(1000, 5000, 5000, 2)[2])
    assert not torch.equal(draw(1000, 5000, 5000, 1)[2], draw(1000, 5000, 5000, 1 + 2**40)[2])


def test_dense_features_are_normal_around_their_centres() -> None:
    topic = torch.arange(40_000, dtype=torch.int32) % 4
    x = dense_features(topic, 4, 9, 3.0, 0).double().numpy()
    centers = np.stack([x[topic.numpy() == t].mean(0) for t in range(4)])
    noise = x - centers[topic.numpy()]
    assert noise.std() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(noise.T) - np.eye(9)).max() < 0.03
    assert (noise**4).mean() == pytest.approx(3.0, abs=0.1)
    assert np.linalg.norm(centers, axis=1).mean() == pytest.approx(3.0, rel=0.35)


def test_bits_have_their_density_and_tell_the_topic() -> None:
    topic = torch.arange(20_000, dtype=torch.int32) % 4
    x = binary_features(topic, 4, 50, 0.35, 3.0, 0)
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert float(x.double().mean()) == pytest.approx(0.35, abs=0.01)
    means = torch.stack([x[topic == t].mean(0) for t in range(4)])
    assert float(means.std(0).mean()) > 0.03
    y = many_labels(topic, 4, 60, 0.3, 0.05, 0)
    assert float(y.double().mean()) == pytest.approx(0.3, abs=0.08)


@pytest.mark.parametrize("fixed", [True, False])
def test_words_are_distinct_sorted_and_as_many_as_asked(fixed: bool) -> None:
    topic = torch.arange(3000, dtype=torch.int32) % 6
    indptr, indices = word_features(topic, 6, 2000, 36_000, 0.2, fixed, 1)
    lengths = indptr.diff()
    assert indices.numel() == 36_000
    if fixed:
        assert bool((lengths == 12).all())
    else:
        assert int(lengths.max()) > 2 * 12 > int(lengths.min())
    words = sp.csr_array((np.ones(36_000), indices.numpy(), indptr.numpy()), shape=(3000, 2000))
    words.check_format(full_check=True)
    assert words.has_canonical_format
    popularity = np.sort(np.asarray(words.sum(0)).ravel())[::-1]
    assert popularity[:20].sum() > 10 * popularity[1000:1020].sum()


def test_every_word_can_be_taken() -> None:
    indptr, indices = word_features(torch.zeros(4, dtype=torch.int32), 1, 7, 28, 0.5, True, 0)
    assert indices.tolist() == list(range(7)) * 4
    assert indptr.tolist() == [0, 7, 14, 21, 28]


def test_a_split_is_disjoint_and_ascending() -> None:
    parts = draw_split(1000, (100, 50, 600), 3)
    assert [part.numel() for part in parts] == [100, 50, 600]
    assert torch.cat(parts).unique().numel() == 750
    assert all(bool((part.diff() > 0).all()) for part in parts)
    assert abs(float(parts[0].double().mean()) - 500) < 100
