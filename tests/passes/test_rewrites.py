"""Every rewrite against the oracle: same outputs and gradients before and after, on every graph of the zoo."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ir.programs import F64, Writer, random_inputs
from zoo import ZOO

from graphweft.ir.grad import differentiate
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op
from graphweft.ir.program import Program
from graphweft.ir.residency import TensorType
from graphweft.ir.verify import verify
from graphweft.passes.cleanup import cleanup
from graphweft.passes.demand import push_demand
from graphweft.passes.message import fuse_messages
from graphweft.passes.opened import open_sums
from graphweft.passes.placement import Order, place, sites


def gcn(rows: bool = False, layers: int = 2) -> Program:
    w = Writer()
    add, h = w.b.add, w.nodes()
    for layer in range(layers):
        g = add(Op.ONE_LOOP, w.graph())
        s = add(Op.POW, add(Op.IN_DEGREE, g, dtype=F64), exponent=-0.5)
        h = add(Op.ROW_SCALE, add(Op.MATMUL, h, w.shared(f"W{layer}", 3, 3)), s)
        h = add(Op.ROW_SCALE, add(Op.REDUCE, g, add(Op.BROADCAST_SRC, g, h), kind="sum"), s)
        h = add(Op.RELU, add(Op.BIAS, h, w.shared(f"b{layer}", 3)))
    return w.done(out=add(Op.TAKE_ROWS, h, w.rows()) if rows else h)


def sage_mean(rows: bool = False) -> Program:
    w = Writer()
    add, x = w.b.add, w.nodes()
    h = add(Op.REDUCE, w.graph(), add(Op.BROADCAST_SRC, w.graph(), x), kind="mean")
    h = add(Op.ADD, add(Op.MATMUL, h, w.shared("Wn", 3, 2)), add(Op.MATMUL, x, w.shared("Ws", 3, 2)))
    return w.done(out=add(Op.TAKE_ROWS, h, w.rows()) if rows else h)


def normed(rows: bool = False) -> Program:
    """A layer norm over the columns of each node, as typed layers have it."""
    w = Writer()
    add, x = w.b.add, w.nodes()
    h = add(Op.REDUCE, w.graph(), add(Op.BROADCAST_SRC, w.graph(), x), kind="sum")
    h = add(Op.BIAS, add(Op.ADD, add(Op.MATMUL, x, w.shared("W", 3, 3)), h), w.shared("b", 3))
    h = add(Op.ROW_ADD, h, add(Op.SCALE, add(Op.ROW_SUM, h), factor=-1 / 3))
    variance = add(Op.SCALE, add(Op.ROW_SUM, add(Op.MUL, h, h)), factor=1 / 3)
    h = add(Op.ROW_SCALE, h, add(Op.POW, variance, exponent=-0.5, eps=1e-3))
    h = add(Op.MUL, add(Op.COL_SCALE, h, w.shared("s", 3)), add(Op.FILL_COLS, variance, width=3))
    return w.done(out=add(Op.TAKE_ROWS, h, w.rows()) if rows else h)


def gin(rows: bool = False) -> Program:
    w = Writer()
    add, x = w.b.add, w.nodes()
    z = add(Op.REDUCE, w.graph(), add(Op.BROADCAST_SRC, w.graph(), x), kind="sum")
    z = add(Op.ADD, z, add(Op.MUL_SCALAR, x, add(Op.ADD_CONST, w.shared("eps"), constant=1.0)))
    h = add(Op.RELU, add(Op.BIAS, add(Op.MATMUL, z, w.shared("W1", 3, 2)), w.shared("b", 2)))
    return w.done(out=add(Op.TAKE_ROWS, h, w.rows()) if rows else h)


def max_pool(rows: bool = False) -> Program:
    w = Writer()
    add, x = w.b.add, w.nodes()
    h = add(Op.REDUCE, w.graph(), add(Op.BROADCAST_SRC, w.graph(), x), kind="max")
    h = add(Op.MATMUL, h, w.shared("W", 3, 2))
    return w.done(out=add(Op.TAKE_ROWS, h, w.rows()) if rows else h)


def weighted(rows: bool = False) -> Program:
    w = Writer()
    add, x = w.b.add, w.nodes()
    m = add(Op.ROW_SCALE, add(Op.BROADCAST_SRC, w.graph(), x), w.edges("weight", None))
    h = add(Op.MATMUL, add(Op.REDUCE, w.graph(), m, kind="sum"), w.shared("W", 3, 2))
    return w.done(out=add(Op.TAKE_ROWS, h, w.rows()) if rows else h)


MODELS: dict[str, Callable[..., Program]] = {
    "gcn": gcn, "sage_mean": sage_mean, "gin": gin, "max_pool": max_pool, "weighted": weighted, "normed": normed,
}  # fmt: skip


def _flip(program: Program) -> Program:
    fused = cleanup(fuse_messages(program))
    flipped = {
        name: Order.TRANSFORM if order is Order.AGGREGATE else Order.AGGREGATE for name, order in sites(fused).items()
    }
    return place(fused, flipped)


def _there_and_back(program: Program) -> Program:
    fused = cleanup(fuse_messages(program))
    before = sites(fused)
    return place(place(fused, dict.fromkeys(before, Order.AGGREGATE)), dict.fromkeys(before, Order.TRANSFORM))


REWRITES: dict[str, Callable[[Program], Program]] = {
    "cleanup": cleanup,
    "messages": fuse_messages,
    "placement": _flip,
    "placement twice": _there_and_back,
    "sums": lambda p: open_sums(cleanup(fuse_messages(p))),
    "demand": lambda p: push_demand(cleanup(fuse_messages(p))),
    "demand and placement": lambda p: _flip(push_demand(cleanup(fuse_messages(p)))),
}


def _run(program: Program, inputs: dict[str, object], wanted: list[str]) -> dict[str, torch.Tensor]:
    joint = differentiate(fuse_messages(program), wanted)
    out = interpret(program, inputs)["out"]
    seed = torch.randn(out.shape, dtype=F64, generator=torch.Generator().manual_seed(3))
    return interpret(joint, {**inputs, "d:out": seed})


@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize("rows", [False, True], ids=["all", "rows"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_rewrite_changes_no_result(rewrite: str, model: str, rows: bool, graph: str) -> None:
    program = MODELS[model](rows)
    changed = REWRITES[rewrite](program)
    verify(changed)
    inputs = random_inputs(program, ZOO[graph])
    wanted = [v["name"] for v in program.inputs if isinstance(v.type, TensorType)]
    before, after = _run(program, inputs, wanted), _run(changed, inputs, wanted)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-9, atol=1e-10)


def test_common_subexpressions_are_counted_once() -> None:
    """SPEC P16: both layers read the same degrees and the same normalisation."""
    program = gcn()
    assert program.count(Op.IN_DEGREE) == 2
    assert cleanup(program).count(Op.IN_DEGREE) == 1
    assert len(cleanup(program).values) < len(program.values)


def test_dead_values_disappear() -> None:
    w = Writer()
    x = w.nodes()
    w.b.add(Op.MUL, x, x)  # nobody reads it
    assert w.done(out=w.b.add(Op.RELU, x)).count(Op.MUL) == 0


def test_messages_leave_no_edge_sized_value() -> None:
    """SPEC M13, P11."""
    for make in (gcn, sage_mean, gin, max_pool):
        fused = fuse_messages(make())
        assert all(getattr(v.type, "residency", None) is None or v.tensor.rows != "E" for v in fused.values)


def test_opened_sums_are_what_every_edge_brings() -> None:
    for make in MODELS.values():
        fused = cleanup(fuse_messages(make()))
        sums = fused.count(Op.SPMM, Op.SPMM_MAX)
        opened = open_sums(fused)
        assert sums == opened.count(Op.REDUCE) > 0 == opened.count(Op.SPMM, Op.SPMM_MAX)


def test_sites_of_each_model() -> None:
    """SPEC N08: found in GCN, SAGE and GIN; not across a maximum or a ReLU."""
    assert sites(cleanup(fuse_messages(gcn()))) == {"W0": Order.TRANSFORM, "W1": Order.TRANSFORM}
    assert sites(cleanup(fuse_messages(sage_mean()))) == {"Wn": Order.AGGREGATE}
    assert sites(cleanup(fuse_messages(gin()))) == {"W1": Order.AGGREGATE}
    assert sites(cleanup(fuse_messages(max_pool()))) == {}


def test_placement_moves_the_product() -> None:
    fused = cleanup(fuse_messages(gcn(layers=1)))
    assert str(place(fused, {"W0": Order.AGGREGATE})) != str(fused)
    product = next(v for v in place(fused, {"W0": Order.AGGREGATE}).values if v.op is Op.MATMUL)
    assert product.inputs[0].op is Op.ROW_SCALE
    assert product.inputs[0].inputs[0].op is Op.SPMM


def test_demand_restricts_the_last_aggregation() -> None:
    demanded = push_demand(cleanup(fuse_messages(gcn(rows=True))))
    assert demanded.count(Op.TAKE_DST) == 1
    last = [v for v in demanded.values if v.op is Op.SPMM][-1]
    assert last.tensor.rows == "R"


def test_demand_reads_rows_of_what_is_needed_as_a_whole() -> None:
    """The hidden layer is summed over neighbours: its rows are taken from it, not computed once more."""
    w = Writer()
    add, x = w.b.add, w.nodes()
    h = add(Op.RELU, add(Op.MATMUL, x, w.shared("W0", 3, 3)))
    z = add(Op.REDUCE, w.graph(), add(Op.BROADCAST_SRC, w.graph(), h), kind="sum")
    z = add(Op.ADD, z, add(Op.MATMUL, add(Op.RELU, h), w.shared("W1", 3, 3)))
    demanded = push_demand(cleanup(fuse_messages(w.done(out=add(Op.TAKE_ROWS, z, w.rows())))))
    assert demanded.count(Op.MATMUL) == 2 and demanded.count(Op.TAKE_DST) == 1
    (taken,) = (v for v in demanded.values if v.op is Op.TAKE_ROWS)
    assert taken.inputs[0].op is Op.RELU and taken.inputs[0].inputs[0].op is Op.MATMUL


def test_demand_passes_a_layer_norm() -> None:
    demanded = push_demand(cleanup(fuse_messages(normed(rows=True))))
    made = [v for v in demanded.values if v.op is not Op.INPUT and isinstance(v.type, TensorType)]
    assert made and all(v.tensor.rows in ("R", None) for v in made)


@pytest.mark.parametrize(
    ("places", "joined"),
    [
        ([(4, 6), (0, 1), (1, 4)], True),
        ([(0, 3), (3, 6)], True),
        ([(0, 3), (4, 6)], False),  # a gap
        ([(0, 4), (3, 6)], False),  # an overlap
        ([(0, 3), (3, 5)], False),  # the end is missing
    ],
    ids=str,
)
def test_parts_that_fill_a_dimension_are_put_side_by_side(places: list[tuple[int, int]], joined: bool) -> None:
    w = Writer()
    parts = [
        w.b.add(Op.UNSLICE, w.shared(f"W{start}", stop - start, 2), axis=0, start=start, stop=stop, step=1, size=6)
        for start, stop in places
    ]
    total = parts[0]
    for part in parts[1:]:
        total = w.b.add(Op.ADD, total, part)
    program = w.done(out=total)
    after = cleanup(program)
    assert after.count(Op.CAT) == joined and after.count(Op.UNSLICE) == (0 if joined else len(places))
    given = {f"W{start}": torch.randn(stop - start, 2, dtype=torch.float64) for start, stop in places}
    assert torch.equal(interpret(after, given)["out"], interpret(program, given)["out"])
