"""Features of a run with ``precision="bf16"``: half of the memory, and results of features that were rounded before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import graphweft as gw
from graphweft._errors import GraphWeftError
from graphweft.runtime import dense
from graphweft.runtime.feature_types import in_half
from graphweft.train.full_batch import FullBatch

MINI = {"mode": "mini", "fanouts": (4, 4), "batch_size": 100}
SAGE: Callable[..., torch.nn.Module] = gw.nn.SAGE.for_data


def trained(ds: gw.Dataset, model: Callable[..., torch.nn.Module], **options: object) -> gw.Trainer:
    torch.manual_seed(0)
    trainer = gw.Trainer(model(ds, hidden=16), ds, lr=0.01, precision="bf16", **options)  # type: ignore[arg-type]
    trainer.fit(2)
    return trainer


def graph(**options: float) -> gw.Dataset:
    return gw.synthetic("default", scale=0.05, seed=0, **options)


def rounded(ds: gw.Dataset) -> gw.Dataset:
    ds.x.copy_(ds.x.bfloat16().float())  # type: ignore[union-attr, arg-type]
    return ds


def full(trainer: gw.Trainer) -> FullBatch:
    assert isinstance(trainer._batch, FullBatch)
    return trainer._batch


def kept(trainer: gw.Trainer) -> list[torch.Tensor]:
    """Matrices that are computed once."""
    entries = [entry for _, of_graph in trainer.model.function._hoisted._kept.values() for entry in of_graph.values()]
    return [e.value for e in entries if isinstance(e.value, torch.Tensor) and e.value.dim() == 2]


def test_what_is_aggregated_once_takes_half_of_the_memory() -> None:
    ds = graph()
    trainer = trained(ds, gw.nn.GCN.for_data)
    plan = trainer.model.function.plans()[0]
    assert [item.is_half for item in plan.hoisted if "x" in item.leaves] == [True]
    assert "kept in bfloat16" in plan.text
    (rows,) = kept(trainer)
    assert rows.dtype == torch.bfloat16
    assert rows.shape == ds.x.shape


@pytest.mark.parametrize(
    ("model", "options"),
    [(gw.nn.GCN.for_data, {}), (SAGE, {}), (gw.nn.GAT.for_data, {}), (SAGE, MINI), (gw.nn.GCN.for_data, MINI)],
)
def test_losses_are_those_of_features_rounded_before(model: Callable[..., torch.nn.Module], options: dict) -> None:
    ds, before = graph(), rounded(graph())
    one, other = trained(ds, model, **options), trained(before, model, **options)
    assert [r.loss for r in one.history] == [r.loss for r in other.history]
    assert torch.isfinite(torch.tensor([r.loss for r in one.history])).all()


def test_layers_of_batches_are_kept_in_bfloat16_where_products_round(
    monkeypatch: pytest.MonkeyPatch, threads_restored: None
) -> None:
    ds = rounded(gw.synthetic("products", scale=0.005, seed=0))
    options = {"mode": "mini", "fanouts": (15, 10, 5), "batch_size": 200}

    def step(precision: str) -> tuple[gw.Trainer, list[torch.Tensor]]:
        torch.manual_seed(0)
        trainer = gw.Trainer(SAGE(ds, hidden=48, num_layers=3), ds, precision=precision, **options)  # type: ignore[arg-type]
        trainer.fit(1)
        return trainer, [p.detach().clone() for p in trainer.model.parameters()]

    for decides in ("target", "buffers"):  # with and without matrix tiles
        monkeypatch.setattr(f"graphweft.runtime.cpu.{decides}.rounds_operands", lambda k, m: True)
    trainer, half = step("bf16")
    plan = trainer.staged_plan()[0].plan
    made = [call for call in plan.forward if call.kernel == "matmul_terms"]
    assert [call.get("result") for call in made] == ["bf16", "bf16", None]  # the last one is the caller's
    assert [call.get("kept0") for call in made] == ["bf16"] * 3
    gradients = [c for c in plan.backward if c.kernel in ("matmul", "spmm")]
    assert [c.get("result") for c in gradients] == ["bf16"] * len(gradients)
    assert len(plan.halves) == 7 + len(gradients)  # with the rows of their own that layers read of them
    rows = made[1].moved()[1]  # of the second layer's results and of the sums that it keeps
    assert sum(rows.values()) == 2 * (48 + 48)
    assert made[1].work.bytes < 0.6 * plan.compiled.works[made[1].value][0].bytes
    torch.set_num_threads(3)
    assert all(torch.equal(one, other) for one, other in zip(half, step("bf16")[1], strict=True))
    exact, wide = step("float32")
    assert trainer.history[0].loss == pytest.approx(exact.history[0].loss, rel=0.01)
    for one, other in zip(half, wide, strict=True):
        if one.dim() == 2:  # Adam steps by signs of small gradients of biases
            assert 0 < (one - other).norm() < 0.05 * other.norm()
    monkeypatch.setattr("graphweft.runtime.cpu.target.rounds_operands", lambda k, m: False)
    assert not step("bf16")[0].staged_plan()[0].plan.halves


@pytest.mark.parametrize("options", [{}, MINI])
def test_features_that_steps_read_are_kept_in_bfloat16(options: dict) -> None:
    ds = graph()
    trainer = trained(ds, SAGE, **options)
    batch = trainer._batch
    assert batch.half is not None
    table = batch.x if isinstance(batch, FullBatch) else batch.loader.plan._x
    assert table.dtype == torch.bfloat16
    assert torch.equal(table, ds.x.bfloat16())
    ds.x.mul_(2)
    trainer.fit(1)
    assert torch.equal(table, ds.x.bfloat16())
    again = trained(graph(), SAGE, **options)
    again.fit(1)
    assert again.history[-1].loss != trainer.history[-1].loss


def test_rows_that_batches_read_begin_on_cache_lines_where_memory_is_not_short() -> None:
    def run(**options: object) -> tuple[gw.Trainer, torch.Tensor]:
        trainer = trained(graph(num_features=100), SAGE, **MINI, **options)
        rows = trainer._batch.half.rows
        assert torch.equal(rows, trainer.ds.x.bfloat16())
        return trainer, rows

    free, on_lines = run()
    assert on_lines.stride() == (128, 1)
    assert on_lines.data_ptr() % 64 == 0
    assert free._batch.half.nbytes == on_lines.shape[0] * 256
    within, close = run(memory="300MB")
    assert close.is_contiguous()
    assert [r.loss for r in free.history] == [r.loss for r in within.history]
    assert in_half(torch.ones(2, 40), on_lines=True).stride() == (40, 1)  # 64 would be more than a third


def test_features_are_given_up_where_steps_read_the_rounded_ones() -> None:
    ds = graph()
    expected = trained(graph(), SAGE)
    trainer = trained(ds, SAGE, keep_features=False)
    assert full(trainer).x.dtype == torch.bfloat16
    assert ds.x.untyped_storage().nbytes() <= 4
    with pytest.raises(GraphWeftError, match="the features were released"):
        trainer.model(ds.graph, ds.x)
    assert trainer.evaluate("test") == expected.evaluate("test")
    assert [r.loss for r in trainer.history] == [r.loss for r in expected.history]


def test_a_model_takes_rows_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "rounds_beside_half", lambda k, m: False)
    ds = graph()
    torch.manual_seed(0)
    model = gw.nn.SAGE.for_data(ds, hidden=16)
    with gw.config(precision="bf16"):
        wide = model(ds.graph, in_half(ds.x).float())
        half = model(ds.graph, in_half(ds.x))
        gradients = torch.autograd.grad(half.square().sum(), list(model.parameters()), create_graph=True)
        again = torch.autograd.grad(gradients[0].square().sum(), list(model.parameters()))
    assert torch.equal(half, wide)
    assert all(torch.isfinite(g).all() for g in again)
    with gw.config(precision="bf16", opt_level=0):
        assert torch.allclose(model(ds.graph, in_half(ds.x)), wide, rtol=0, atol=0.02)  # A X is not rounded there


def test_readers_that_need_float32_rows_keep_them() -> None:
    """Maxima over neighbours do."""
    ds = graph()
    trainer = trained(ds, lambda ds, hidden: gw.nn.SAGE.for_data(ds, hidden=hidden, aggr="max"))
    assert full(trainer).half is None
    assert full(trainer).x.dtype == torch.float32
