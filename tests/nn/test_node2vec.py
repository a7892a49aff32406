"""node2vec: the loss of PyTorch Geometric's module with equal rows, keyed walks, communities that are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import graphweft as gw


def _two_groups(size: int = 30) -> gw.Graph:
    """Two groups with many edges within and few between them."""
    generator = torch.Generator().manual_seed(0)
    inside = torch.randint(0, size, (2, 8 * size), generator=generator)
    other = torch.randint(size, 2 * size, (2, 8 * size), generator=generator)
    across = torch.tensor([[0, 1], [size, size + 1]])
    ends = torch.cat([inside, other, across], dim=1)
    return gw.Graph(ends[0], ends[1], num_nodes=2 * size).to_bidirected()


def test_the_loss_is_that_of_pytorch_geometric() -> None:
    """Their loss as a function of rows; their constructor wants packages that are not needed for it."""
    theirs = pytest.importorskip("torch_geometric.nn").Node2Vec
    torch.manual_seed(0)
    model = gw.nn.Node2Vec(_two_groups(), 8, walk_length=6, context_size=4, walks_per_node=2, negatives=2, q=0.5)
    with torch.no_grad():
        model.rows.weight.mul_(0.3)  # their logarithm of 1 - sigmoid has no digits above 16
    positive, negative = model.walks([0, 5, 40], seed=1)
    rows = SimpleNamespace(embedding=model.rows, embedding_dim=8, EPS=theirs.EPS if hasattr(theirs, "EPS") else 1e-15)
    wanted = theirs.loss(rows, positive, negative)
    wanted.backward()
    gradient = model.rows.weight.grad.clone()  # type: ignore[union-attr]
    model.zero_grad()
    loss = model.loss([0, 5, 40], seed=1)
    loss.backward()
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.rows.weight.grad, gradient, rtol=1e-3, atol=1e-5)


def test_windows_are_stretches_of_walks_along_edges() -> None:
    graph = _two_groups()
    model = gw.nn.Node2Vec(graph, 4, walk_length=5, context_size=3, walks_per_node=2)
    positive, negative = model.walks([3, 4], seed=2)
    assert positive.shape == (2 * 2 * 4, 3) and negative.shape == positive.shape
    edges = set(zip(*(ends.tolist() for ends in graph.edges()), strict=True))
    assert all((a, b) in edges and (b, c) in edges for a, b, c in positive.tolist())
    walk = gw.sampling.random_walk(graph, torch.tensor([3, 4, 3, 4]), 5, seed=2)
    assert torch.equal(positive, torch.cat([walk[:, i : i + 3] for i in range(4)]))
    again = model.walks([3, 4], seed=2)
    assert torch.equal(again[0], positive) and torch.equal(again[1], negative)
    other = model.walks([3, 4], seed=2, epoch=1)
    assert not torch.equal(other[0], positive) and not torch.equal(other[1], negative)


def test_dead_ends_do_not_count() -> None:
    model = gw.nn.Node2Vec(gw.Graph([0], [1], num_nodes=3), 4, walk_length=3, context_size=2, walks_per_node=1)
    positive, _ = model.walks([0, 2])
    assert positive.tolist() == [[0, 1], [2, -1], [1, -1], [-1, -1], [-1, -1], [-1, -1]]
    found = model._scores(positive)
    torch.testing.assert_close(found, (model()[0] @ model()[1]).reshape(1))


@pytest.mark.parametrize("sparse", [False, True])
def test_groups_are_found(sparse: bool) -> None:
    torch.manual_seed(0)
    model = gw.nn.Node2Vec(_two_groups(), 8, walk_length=8, context_size=4, walks_per_node=4, sparse=sparse)
    optimizer: Any = (torch.optim.SparseAdam if sparse else torch.optim.Adam)(model.parameters(), lr=0.05)
    for epoch in range(30):
        optimizer.zero_grad()
        model.loss(torch.arange(60), epoch=epoch).backward()
        optimizer.step()
    z = torch.nn.functional.normalize(model().detach())
    alike = z @ z.T
    assert alike[:30, :30].mean() > alike[:30, 30:].mean() + 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "Node2Vec: expected width >= 1, got 0"),
        ({"context_size": 30}, "Node2Vec: expected context_size from 2 to 21, got 30"),
        ({"context_size": 1}, "Node2Vec: expected context_size from 2 to 21, got 1"),
    ],
)
def test_wrong_use_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gw.errors.ConfigError, match=message):
        gw.nn.Node2Vec(_two_groups(), **options)
