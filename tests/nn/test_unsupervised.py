"""Auto-encoders and Deep Graph Infomax: the losses of PyTorch Geometric's modules with equal weights, and learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw

pyg = pytest.importorskip("torch_geometric.nn")


def _graph(nodes: int = 60) -> tuple[gw.Graph, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(0, nodes, (2, 300), generator=generator)
    ends = torch.unique(ends[:, ends[0] != ends[1]], dim=1)
    return gw.Graph(ends[0], ends[1], num_nodes=nodes), ends, torch.randn(nodes, 5, generator=generator)


class Both(nn.Module):
    """As PyTorch Geometric's encoders of VGAE: mu and logstd."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: Any) -> tuple[Tensor, Tensor]:
        mu, logstd = self.inner(*given).chunk(2, dim=1)
        return mu, logstd


class Theirs(nn.Module):
    """Our encoder, called with x and edge_index."""

    def __init__(self, encoder: nn.Module, graph: gw.Graph) -> None:
        super().__init__()
        self.encoder, self.graph = encoder, graph

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.encoder(self.graph, x)


def _gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_gae_is_that_of_pytorch_geometric() -> None:
    graph, ends, x = _graph()
    negative = gw.sampling.NegativeSampler(graph).pairs(torch.arange(ends.shape[1]), seed=3)
    torch.manual_seed(0)
    ours = gw.nn.GAE(gw.nn.GCN(5, 8, 4))
    theirs = pyg.GAE(Theirs(ours.encoder, graph))
    loss = ours.loss(graph, x, seed=3)
    loss.backward()
    found = _gradients(ours)
    ours.zero_grad()
    z = theirs.encode(x, ends)
    wanted = theirs.recon_loss(z, ends, negative)
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    for a, b in zip(found, _gradients(ours), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(torch.sigmoid(ours.decode(z, ends)), theirs.decode(z, ends))


def test_vgae_is_that_of_pytorch_geometric() -> None:
    graph, ends, x = _graph()
    negative = gw.sampling.NegativeSampler(graph).pairs(torch.arange(ends.shape[1]), seed=0)
    torch.manual_seed(0)
    inner = gw.nn.GCN(5, 8, 6)
    ours, theirs = gw.nn.VGAE(inner), pyg.VGAE(Theirs(Both(inner), graph))
    torch.manual_seed(7)
    loss = ours.loss(graph, x)
    torch.manual_seed(7)
    z = theirs.encode(x, ends)
    torch.testing.assert_close(loss, theirs.recon_loss(z, ends, negative) + theirs.kl_loss() / graph.num_nodes)
    torch.testing.assert_close(ours.kl_loss(*ours.moments(graph, x)), theirs.kl_loss())
    assert torch.equal(ours.eval()(graph, x), ours.moments(graph, x)[0])
    assert torch.equal(gw.nn.VGAE(Both(inner)).eval()(graph, x), ours(graph, x))


def test_dgi_is_that_of_pytorch_geometric() -> None:
    graph, ends, x = _graph()
    torch.manual_seed(0)
    ours = gw.nn.DGI(gw.nn.GCN(5, 8, 8), width=8)
    theirs = pyg.DeepGraphInfomax(
        8,
        Theirs(ours.encoder, graph),
        summary=lambda z, *args, **kwargs: torch.sigmoid(z.mean(0)),
        corruption=lambda x, edge_index: (x[torch.randperm(x.shape[0])], edge_index),
    )
    theirs.weight.data.copy_(ours.weight.data)
    torch.manual_seed(5)
    loss = ours.loss(graph, x)
    loss.backward()
    assert ours.weight.grad is not None
    found = ours.weight.grad.clone()
    ours.zero_grad()
    torch.manual_seed(5)
    wanted = theirs.loss(*theirs(x, ends))
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(found, theirs.weight.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["GAE", "VGAE", "DGI"])
def test_embeddings_learn_what_labels_say(kind: str) -> None:
    """A linear classifier on embeddings that saw no label is far better than a guess."""
    ds = gw.synthetic("cora", scale=0.2, seed=0)
    torch.manual_seed(0)
    if kind == "DGI":
        model: Any = gw.nn.DGI(gw.nn.GCN(ds.num_features, 32, 32), width=32)
    else:
        width = 16 if kind == "GAE" else 32
        model = getattr(gw.nn, kind)(gw.nn.GCN(ds.num_features, 32, width))
    x = ds.x.to_dense() if isinstance(ds.x, gw.data.SparseFeatures) else ds.x
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for epoch in range(40):
        optimizer.zero_grad()
        loss = model.loss(ds.graph, x, **({} if kind == "DGI" else {"seed": epoch}))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    z = model.eval()(ds.graph, x).detach()
    means = torch.stack([z[ds.train_idx][ds.y[ds.train_idx] == c].mean(0) for c in range(ds.num_classes)])
    hits = torch.cdist(z[ds.test_idx], means).argmin(1) == ds.y[ds.test_idx]
    assert float(hits.float().mean()) > 2 / ds.num_classes


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: gw.nn.GAE(3), "GAE: expected encoder as a module, got int"),
        (lambda: gw.nn.DGI(nn.Linear(2, 2), 0), "DGI: expected width >= 1, got 0"),
        (
            lambda: gw.nn.GAE(nn.Linear(2, 2)).decode(torch.ones(3, 2), torch.ones(3)),
            r"GAE: expected pairs of shape \(2, P\)",
        ),
        (
            lambda: gw.nn.VGAE(gw.nn.GCN(2, 2, 3))(gw.Graph([0], [1]), torch.ones(2, 2)),
            "VGAE: expected rows of mu and logstd from the encoder, got 3 columns",
        ),
    ],
)
def test_wrong_use_is_told(act: Any, message: str) -> None:
    with pytest.raises(gw.errors.GraphWeftError, match=message):
        act()


def _of_pairs(rows: Tensor, model: nn.Module) -> Tensor:
    pairs = torch.arange(2 * len(rows)).remainder(len(rows)).reshape(2, -1).sort(descending=True).values
    return model.recon_loss(rows, pairs, pairs.roll(1, 1))


_LOSSES = {
    "dgi": (lambda: gw.nn.DGI(nn.Identity(), 16), lambda rows, model: model.contrast(rows, rows.flip(0))),
    "gae": (lambda: gw.nn.GAE(nn.Identity()), _of_pairs),
    "vgae": (lambda: gw.nn.VGAE(nn.Identity()), lambda rows, model: model.kl_loss(rows, 0.5 * rows.flip(0))),
}


@pytest.mark.parametrize("nodes", [271, 70_001])
@pytest.mark.parametrize("kind", sorted(_LOSSES))
@pytest.mark.usefixtures("threads_restored")
def test_losses_and_gradients_are_the_same_for_any_number_of_threads(kind: str, nodes: int) -> None:
    make, loss_of = _LOSSES[kind]
    model, found = make(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        rows = torch.randn(nodes, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
        loss = loss_of(rows, model)
        found.append((loss, *torch.autograd.grad(loss, [rows, *model.parameters()])))
    for others in found[1:]:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found[0], others, strict=True))
