"""Padded batches: shapes and addresses that stay, rows that are the batch's bit for bit, a fallback that is counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import graphweft as gw
from graphweft._draws import keyed
from graphweft._errors import ConfigError
from graphweft.loader.batch import Batch
from graphweft.loader.padding import Bounds, PaddedBatch, Padding, sizes_of

DS = gw.synthetic("arxiv", scale=0.01)
WIDTHS = (DS.num_features, 8, DS.num_classes)
FANOUTS = (5, 3)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: gw.nn.GCN(*WIDTHS),
    "gcn, dropout, layer norm": lambda: gw.nn.GCN(*WIDTHS, dropout=0.5, norm="layer"),
    "sage": lambda: gw.nn.SAGE(*WIDTHS),
    "sage, max": lambda: gw.nn.SAGE(*WIDTHS, reduce="max"),
    "gin": lambda: gw.nn.GIN(*WIDTHS),
    "gat": lambda: gw.nn.GAT(*WIDTHS),
}


def loader(batch_size: int = 16, **options: Any) -> gw.Loader:
    return gw.Loader(DS, fanouts=FANOUTS, batch_size=batch_size, shuffle=True, seed=2, **{"prefetch": 0, **options})


def brute(batch: Batch) -> tuple[list[int], list[int]]:
    """Sizes by counting: new nodes of every hop, and what each of its rows draws of its in-edges at most."""
    rows = torch.tensor(batch.num_sampled_nodes).cumsum(0).tolist()
    degrees = DS.graph.in_degrees()[batch.n_id]
    return rows, [int(degrees[:end].clamp(max=most).sum()) for end, most in zip(rows, FANOUTS, strict=False)]


EXACT = ("gcn", "sage", "sage, max", "gin")  # kernels that do not cut their work by the number of rows


def step(model: nn.Module, batch: Batch | PaddedBatch, key: int, update: Any = None, cut: bool = False) -> Any:
    """Outputs of the seeds, loss, gradients of the batch's rows and of the parameters."""
    blocks, rows = batch.cut() if cut and isinstance(batch, PaddedBatch) else (batch.blocks, batch.x)
    x = rows.detach().clone().requires_grad_()
    model.zero_grad()
    with keyed(key):
        out = model(blocks, x)[: batch.batch_size]
    labels = batch.y[: batch.batch_size]  # type: ignore[index]
    loss = functional.cross_entropy(out, labels)
    loss.backward()
    found = {"out": out.detach().clone(), "loss": loss.detach(), "x": x.grad[: batch.num_nodes].clone()}  # type: ignore[index]
    found |= {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    if update is not None:
        update.step()
    return found


def test_the_bounds_are_the_most_of_the_first_epoch_and_nothing_is_padded_in_it() -> None:
    batches, padding = list(loader()), Padding(nn.Identity())
    assert all(isinstance(batch, Batch) for batch in padding(loader()))
    rows, edges = zip(*map(brute, batches), strict=True)
    assert padding.bounds == Bounds(tuple(map(max, zip(*rows, strict=True))), tuple(map(max, zip(*edges, strict=True))))
    assert padding.padded == padding.fallbacks == 0


def test_shapes_and_addresses_stay_and_padding_has_no_edges() -> None:
    padding, batches = Padding(nn.Identity(), slack=0.3), loader()
    list(padding(batches))
    seen = set()
    for plain, batch in zip(loader_of_epoch(1), padding(batches), strict=True):
        assert isinstance(batch, PaddedBatch)
        blocks = [(b.num_src, b.num_dst, b.csc.indptr.data_ptr(), b.csc.indices.data_ptr()) for b in batch.blocks]
        seen.add((batch.x.data_ptr(), batch.n_id.data_ptr(), tuple(batch.x.shape), *blocks))
        assert torch.equal(batch.n_id[: plain.num_nodes], plain.n_id) and torch.equal(
            batch.x[: plain.num_nodes], plain.x
        )
        assert not batch.x[plain.num_nodes :].any()
        for block, one in zip(batch.blocks, plain.blocks, strict=True):
            assert block.num_edges == one.num_edges and int(block.in_degrees()[one.num_dst :].sum()) == 0
            assert torch.equal(block.csc.indices, one.csc.indices) and torch.equal(block.e_id, one.e_id)
            assert torch.equal(block.in_degrees()[: one.num_dst], one.in_degrees())
    assert len(seen) == 1


@cache
def loader_of_epoch(epoch: int) -> list[Batch]:
    batches = loader()
    for _ in range(epoch):
        list(batches)
    return list(batches)


@pytest.mark.parametrize("name", MODELS)
def test_a_padded_step_is_the_batch_s_on_its_rows(name: str) -> None:
    """Cut: everything, bit for bit. With the padding rows: outputs, loss and gradients of rows, for most models so."""
    torch.manual_seed(0)
    model, draw = MODELS[name](), random.Random(name)
    for number, batch in enumerate(loader_of_epoch(0)[:40]):
        padding = Padding(model, slack=draw.choice([0.0, 0.05, 0.4, 2.0]))
        list(padding([batch, *draw.sample(loader_of_epoch(0), 1)]))
        padded = padding.pad(batch)
        assert isinstance(padded, PaddedBatch)
        plain, cut = step(model, batch, number), step(model, padded, number, cut=True)
        assert all(torch.equal(cut[part], value) for part, value in plain.items())
        for part, value in step(model, padded, number).items():
            torch.testing.assert_close(value, plain[part], rtol=1e-5, atol=1e-6)
            assert name not in EXACT or part not in ("out", "loss", "x") or torch.equal(value, plain[part])


@pytest.mark.parametrize("name", MODELS)
def test_training_with_padding_is_training_without(name: str) -> None:
    """Three epochs, the same bits."""

    def losses(padded: bool) -> list[float]:
        torch.manual_seed(0)
        model = MODELS[name]()
        update, batches, padding = torch.optim.Adam(model.parameters(), 0.01), loader(), Padding(model)
        found = []
        for _ in range(3):
            for number, batch in enumerate(padding(batches) if padded else batches):
                found.append(float(step(model, batch, number, update, cut=True)["loss"]))
        assert not padded or padding.padded > 0
        return found

    assert losses(True) == losses(False)


def test_a_batch_beyond_the_bounds_comes_as_it_is_and_is_counted() -> None:
    model = MODELS["sage"]()
    batches = sorted(loader_of_epoch(0), key=lambda batch: batch.num_nodes)
    padding = Padding(model)
    list(padding(batches[:5]))
    found = list(padding(batches))
    beyond = [not padding.bounds.holds(sizes_of(batch)) for batch in batches]  # type: ignore[union-attr]
    assert any(beyond) and not all(beyond)
    assert padding.fallbacks == sum(beyond) and padding.padded == len(batches) - sum(beyond)
    for batch, one, is_beyond in zip(batches, found, beyond, strict=True):
        assert (one is batch) == is_beyond
        if is_beyond:
            assert torch.equal(step(model, one, 1)["loss"], step(model, batch, 1)["loss"])
    assert padding.report().startswith(f"{padding.padded} batches padded, {sum(beyond)} beyond the bounds; rows (16, ")


def test_rows_that_a_larger_batch_left_are_gone() -> None:
    """A row that is not finite would make sums of gradients so, though its own gradient is 0."""
    model = MODELS["gcn"]()
    batches = sorted(loader_of_epoch(0), key=lambda batch: -batch.num_nodes)
    padding = Padding(model)
    list(padding(batches))
    large = padding.pad(batches[0])
    large.x.fill_(float("nan"))
    small = step(model, padding.pad(batches[-1]), 1)
    assert all(bool(value.isfinite().all()) for value in small.values())


def test_what_cannot_be_padded_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^Padding: norms.0 of GCN cannot be combined with padding rows$"):
        Padding(gw.nn.GCN(*WIDTHS, norm="batch"))
    with pytest.raises(ConfigError, match=r"^slack: expected a share >= 0, got -1"):
        Padding(nn.Identity(), -1)
    shadow = gw.Loader(DS, sampler=gw.sampling.ShadowSampler(DS.graph, [3, 2]), batch_size=8)
    with pytest.raises(ConfigError, match=r"^Padding: expected batches with blocks"):
        list(Padding(nn.Identity())(shadow))
    sparse = gw.synthetic("cora", scale=0.2)
    padding, batches = Padding(nn.Identity()), gw.Loader(sparse, fanouts=(2,), batch_size=8)
    list(padding(batches))
    with pytest.raises(ConfigError, match=r"^Padding: expected dense features"):
        list(padding(batches))
