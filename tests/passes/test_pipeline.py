"""The whole pipeline: what is fused, hoisted, dropped and chosen; golden texts; every pass can be switched off."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ir.programs import Writer
from zoo import random_edges

from graphweft._config import config
from graphweft.cost import CostModel
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.nn import GCN, GIN, SAGE
from graphweft.passes import pipeline
from graphweft.passes.pipeline import PASSES, Compiled
from graphweft.passes.placement import Order
from graphweft.passes.work import Sizes
from graphweft.runtime.compile import Standing
from graphweft.runtime.plan import Plan
from graphweft.runtime.sparse import wants_panel
from graphweft.storage.feature import SparseFeatures

GOLDEN = Path(__file__).parent / "golden"


def _graph(nodes: int = 300, edges: int = 2000) -> Graph:
    made = random_edges(nodes, edges, seed=11)
    return Graph(made.src, made.dst, num_nodes=nodes)


def _plan(model: torch.nn.Module, graph: Graph, x: object, rows: torch.Tensor | None = None) -> Plan:
    constants = ("x",) if rows is None else ("x", "rows")
    return model.function.compile(model.arguments(graph, x, rows), Standing(constants))


def _labels(plan: Plan) -> list[str]:
    return [call.label for call in (*plan.forward, *plan.backward)]


def _compiled(model: torch.nn.Module, graph: Graph, x: object, rows: torch.Tensor | None = None) -> Compiled:
    return _plan(model, graph, x, rows).compiled


@pytest.mark.parametrize(("name", "model"), [("gcn", GCN), ("sage", SAGE), ("gin", GIN)])
def test_trace_is_as_recorded(name: str, model: type, request: pytest.FixtureRequest) -> None:
    """The program after each pass and the calls it ends in. Delete a golden file to record it anew."""
    torch.manual_seed(0)
    plan = _plan(model(16, 8, 4, num_layers=2), _graph(), torch.ones(300, 16), torch.arange(20))
    parts = [f"-- {title} --\n{text}" for title, text in plan.compiled.trace]
    parts.append("-- calls --\n" + "\n".join(_labels(plan)))
    text = "\n\n".join(parts) + "\n"
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_a_training_step_of_gcn_is_twelve_calls() -> None:
    plan = _plan(GCN(64, 32, 40, num_layers=3), _graph(5000, 40000), torch.ones(5000, 64))
    labels = _labels(plan)
    assert sum(label.startswith("spmm") for label in labels) == 4  # the first layer's aggregation is hoisted
    assert not any(label.startswith("rows") for label in labels)  # no pass over rows of its own
    assert len(labels) == 12


def test_first_aggregation_is_hoisted_and_its_backward_dropped() -> None:
    """SPEC J22, N11, and hoisting: A X is made once, and no aggregation belongs to the first layer in a step."""
    plan = _plan(GCN(64, 32, 40, num_layers=1), _graph(5000, 40000), torch.ones(5000, 64))
    assert plan.compiled.orders == {"layers.0.weight": Order.AGGREGATE}
    assert not any(label.startswith("spmm") for label in _labels(plan))
    assert any(item.value.tensor.dims == (64,) for item in plan.hoisted if item.value.op is Op.ROW_SCALE)


def test_hoisting_respects_the_memory_budget() -> None:
    model, graph, x = GCN(64, 32, 40, num_layers=1), _graph(5000, 40000), torch.ones(5000, 64)
    with config(memory=1000):
        labels = _labels(_plan(model, graph, x))
    assert any(label.startswith("spmm") for label in labels)


def test_sparse_features_are_transformed_first() -> None:
    x = SparseFeatures.from_dense(torch.eye(300))
    plan = _plan(GCN(300, 8, 4), _graph(), x)
    assert "sparse matmul + row_scale" in _labels(plan)
    assert "sparse matmul transposed" in _labels(plan)
    assert all(v.tensor.dims != (300,) for v in plan.compiled.program.values if v.op is Op.SPMM)


def test_narrow_output_is_transformed_first_and_wide_output_aggregated_first() -> None:
    graph, x = _graph(5000, 40000), torch.ones(5000, 64)
    narrow = _compiled(GCN(64, 64, 3), graph, x).orders["layers.1.weight"]
    wide = _compiled(GCN(64, 16, 200), graph, x).orders["layers.1.weight"]
    assert (narrow, wide) == (Order.TRANSFORM, Order.AGGREGATE)


@pytest.mark.parametrize(("model", "trials"), [(GCN, 20), (SAGE, 20)])
def test_layers_that_are_alike_are_turned_around_together(
    model: type, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x, seen = _graph(), torch.ones(300, 64), list[object]()
    finish = pipeline.finish
    monkeypatch.setattr(pipeline, "finish", lambda *given: seen.append(given) or finish(*given))

    def chosen(one_by_one: int) -> tuple[dict[str, Order], int]:
        monkeypatch.setattr(pipeline, "_ONE_BY_ONE", one_by_one)
        torch.manual_seed(0)
        seen.clear()
        return dict(_compiled(model(64, 16, 40, num_layers=14), graph, x).orders), len(seen)

    (orders, few), (alone, many) = chosen(12), chosen(14)
    assert orders == alone and len(orders) == 14
    assert few <= trials < 2 * 14 <= many


def test_few_rows_restrict_the_last_aggregation() -> None:
    graph, x, rows = _graph(5000, 40000), torch.ones(5000, 64), torch.arange(50)
    program = _compiled(GCN(64, 32, 4), graph, x, rows).program
    assert program.count(Op.TAKE_DST) == 1
    with config(disabled_passes="demand"):
        assert _compiled(GCN(64, 32, 4), graph, x, rows).program.count(Op.TAKE_DST) == 0


def test_products_keep_both_orders_where_few_rows_are_asked_for() -> None:
    """Of GIN, whose last layer reads the same rows for nodes and for their neighbours: few columns are summed."""
    graph, x, rows = _graph(5000, 40000), torch.ones(5000, 64), torch.arange(50)
    compiled = _compiled(GIN(64, 8, 41, num_layers=2), graph, x, rows)
    (restricted,) = (
        v for v in compiled.program.values if v.op is Op.SPMM and v.tensor.rows == "R" and v.inputs[0].op is Op.TAKE_DST
    )
    assert compiled.orders["layers.1.weight1"] is Order.AGGREGATE and restricted.tensor.dims == (8,)


@pytest.mark.parametrize(("columns", "folded"), [(32, False), (41, False), (48, False), (49, True), (64, True)])
def test_factors_are_applied_at_edges_only_where_rows_are_copied_by_panels(columns: int, folded: bool) -> None:
    """Each of 40 edges a node would look its factor up; a panel has it applied once a row."""
    w = Writer()
    summed = w.b.add(Op.SPMM, w.graph(), w.nodes(width=columns))
    sizes = Sizes({"V": 10**6, "E": 4 * 10**7})
    assert pipeline._folds_scale(summed, sizes) == folded == wants_panel(10**6, 4 * 10**7, 4 * columns)


@pytest.mark.parametrize("off", PASSES)
@pytest.mark.parametrize("model", [GCN, SAGE, GIN])
def test_any_pass_can_be_switched_off(off: str, model: type) -> None:
    if off == "differentiate":
        pytest.skip("the gradients are no optimisation")
    torch.manual_seed(3)
    graph, x, rows = _graph(), torch.randn(300, 16), torch.arange(0, 300, 7)
    module = model(16, 8, 4, num_layers=3)
    results = []
    for disabled in ("", off):
        with config(disabled_passes=disabled):
            for _ in range(2):
                module.zero_grad()
                out = module(graph, x, rows)
                out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in module.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)


def test_tuned_run_fits_the_model_to_its_first_step() -> None:
    """SPEC N10: after the first training step the coefficients are the fitted ones, and results agree."""
    torch.manual_seed(4)
    graph, x = _graph(5000, 40000), torch.randn(5000, 64)
    model = GCN(64, 32, 8)
    with config(tune=True, calibrate=False):
        first = model(graph, x)
        first.sum().backward()
        second = model(graph, x)
    fitted = model.function.plans()[-1].compiled.model
    assert fitted.coefficients != CostModel().coefficients
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_many_layers_take_time_that_grows_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x, made = _graph(), torch.ones(300, 64), [0]
    like = Builder.like

    def counted(self: Builder, value: Value, inputs: tuple[Value, ...]) -> Value:
        made[0] += 1
        return like(self, value, inputs)

    monkeypatch.setattr(Builder, "like", counted)
    counts = []
    for layers in (16, 48):
        made[0] = 0
        with config(certify=False):
            _compiled(GCN(64, 16, 40, num_layers=layers), graph, x)
        counts.append(made[0])
    assert counts[1] < 4 * counts[0]  # three times the layers
