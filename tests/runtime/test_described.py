"""Calls over edges from their descriptions: a target that writes loop nests has them, whatever its kernels are called.

The target is in this file: plain torch, a nest at a time, and no other kernel.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from ir.programs import Writer, one_op_programs, random_inputs
from nn.models import MODELS as MAKES
from nn.models import features, make, random_graph
from runtime.test_third_target import _close, _slopes, _step
from torch import Tensor, nn
from typed_zoo import TYPED_ZOO
from zoo import CASES, ZOO, Case

import graphweft as gw
from graphweft.codegen.edge_nest import EdgeNest, Step
from graphweft.ir import interpret
from graphweft.ir.elementwise import FUNCTIONS
from graphweft.ir.ops import SPECS, Op
from graphweft.ir.program import Value
from graphweft.ir.residency import Movement, Residency, TensorType
from graphweft.nn import HGT, RGCN
from graphweft.runtime import build, targets
from graphweft.runtime.described import by_walks, walk_of
from graphweft.runtime.kernel_call import KernelCall, Launch
from graphweft.runtime.target import Target

SUMS = "spmm,spmm_self,spmm_max,matmul_terms,contract_terms"
FUSED = f"{SUMS},sddmm,edge_softmax,edge_softmax_grad,attention,attention_grad,typed_spmm,typed_sddmm,typed_outer"
needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")
_NUMBERS = itertools.count()
# over edges, and written as nests; all but the last have kernels of their own on the CPU
KERNELS = (
    *(Op.SPMM, Op.SPMM_MAX, Op.SDDMM, Op.EDGE_SOFTMAX, Op.EDGE_SOFTMAX_GRAD, Op.ATTENTION, Op.ATTENTION_STATS),
    *(Op.ATTENTION_GRAD, Op.TYPED_SPMM, Op.TYPED_SDDMM, Op.TYPED_OUTER),
)
WALKED = (*KERNELS, Op.REDUCE, Op.BROADCAST_SRC, Op.BROADCAST_DST)
# over edges, and run by torch: which edge attains an extremum, pairs of edges of a row, rows by type
LEFT = {
    *(Op.SPMM_ARG, Op.SPMM_MAX_GRAD, Op.REDUCE_MASK, Op.EDGE_MARGIN, Op.EDGE_MARGIN_GRAD),
    *(Op.BROADCAST_ETYPE, Op.REDUCE_ETYPE),
}
BY_NODES = {Op.BROADCAST_NTYPE, Op.REDUCE_NTYPE, Op.TYPE_OUTER, Op.LOOKUP, Op.FILL_ROWS, Op.BROADCAST_SHARED}
ATTENTION = ("gat", "gatv2", "transformer")
MODELS = ("gcn", "sage", "sage_max", "gin", "ngcf", "appnp", "gat", "gatv2", "transformer", "user_gcn", "user_gat")


class Nests(Target):
    """Writes walks and nothing else; ``walked`` has the nests that ran, ``stored`` the kernels that gave edges rows."""

    def __init__(self) -> None:
        super().__init__(f"nests {next(_NUMBERS)}", worth=1)  # plans are kept by the name of their target
        self.walked: list[EdgeNest] = []
        self.stored: list[str] = []
        self.launches("edge_nest", torch.float32, torch.float64)(self.walk)

    def launch(self, call: KernelCall) -> Launch:
        """Of calls inside described ones as well."""
        tensors = [slot.value.type for slot in call.writes if isinstance(slot.value.type, TensorType)]
        self.stored += [call.kernel for kind in tensors if kind.residency is Residency.EDGE]
        return super().launch(call)

    def walk(self, call: KernelCall) -> Launch:
        def write(nest: EdgeNest, results: Sequence[Value], graph: Value) -> Callable[..., list[Tensor]]:
            return partial(self.run, nest)

        return walk_of(call, write)

    def run(self, nest: EdgeNest, graph: gw.Graph, tensors: Sequence[Tensor]) -> list[Tensor]:
        """All edges at once: the first dimension of every value."""
        self.walked.append(nest)
        csc = graph.csc
        count, rows = csc.num_edges, torch.arange(csc.num_rows).repeat_interleave(csc.indptr.diff())
        ids = torch.arange(count) if csc.edge_ids is None else csc.edge_ids.long()
        ends = {"far": csc.indices.long(), "own": rows, "edge": ids, "shared": None}
        given = [(x, ends[source.kind]) for x, source in zip(tensors, nest.sources, strict=True)]
        read = [x.expand(count, *x.shape) if at is None else x[at] for x, at in given]
        steps: list[Tensor] = []

        def operand(item: Any) -> Tensor:
            if item.kind == "number":
                return torch.full((count,), item.number, dtype=torch.float64 if nest.real == "double" else None)
            return (read if item.kind == "input" else steps)[item.index]

        for step in nest.steps:
            steps.append(_computed(step, [operand(item) for item in step.operands]))
        made = []
        for sink in nest.sinks:
            value = operand(sink.operand).expand(count, *sink.dims)
            if sink.kind == "edge":
                made.append(torch.empty_like(value).index_copy(0, ids, value))
            elif sink.kind == "total":
                made.append(value.sum(0))
            else:
                made.append(_reduced(sink.kind, value, rows, csc.num_rows))
        return made


def _computed(step: Step, given: list[Tensor]) -> Tensor:
    x, attrs = given[0], dict(step.attrs)
    if step.kind == "ewise":
        depth = max(item.dim() for item in given)
        alike = [item.reshape(item.shape[0], *(1,) * (depth - item.dim()), *item.shape[1:]) for item in given]
        name = attrs.pop("fn")
        return alike[0].clone() if name == "copy" else FUNCTIONS[name].apply(*alike, **attrs)
    if step.kind == "sum":
        return x.sum([axis + 1 for axis in step["axes"]])
    if step.kind == "reshape":
        return x.reshape(x.shape[0], *step.dims)
    if step.kind == "expand":
        return x.reshape(x.shape[0], *(1,) * (len(step.dims) + 1 - x.dim()), *x.shape[1:]).expand(-1, *step.dims)
    if step.kind == "permute":
        return x.permute(0, *(axis + 1 for axis in step["order"]))
    if step.kind == "cat":
        return torch.cat(given, step["axis"] + 1)
    part = [slice(None)] * (x.dim() if step.kind == "slice" else len(step.dims) + 1)
    if step.kind == "slice":
        part[step["axis"] + 1] = slice(step["start"], step["stop"], step["step"])
        return x[tuple(part)]
    whole, count = x.new_zeros(x.shape[0], *step.dims), x.shape[step["axis"] + 1]
    part[step["axis"] + 1] = slice(step["start"], step["start"] + (count - 1) * step["step"] + 1, step["step"])
    whole[tuple(part)] = x
    return whole


def _reduced(kind: str, value: Tensor, rows: Tensor, count: int) -> Tensor:
    made = value.new_zeros(count, *value.shape[1:])
    if kind in ("max", "min"):
        at = rows.view(-1, *(1,) * (value.dim() - 1)).expand_as(value)
        return made.scatter_reduce(0, at, value, f"a{kind}", include_self=False)
    made.index_add_(0, rows, value)
    if kind == "mean":
        made /= torch.bincount(rows, minlength=count).clamp(min=1).view(-1, *(1,) * (value.dim() - 1))
    return made


@pytest.fixture
def nests(monkeypatch: pytest.MonkeyPatch) -> Nests:
    """The target, known by its name."""
    target = Nests()
    monkeypatch.setitem(targets._TARGETS, target.name, target)
    return target


def _refuse(*given: Any) -> Tensor:
    raise AssertionError("expected a walk, got the interpreter")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("name", "drawn"), [*((name, False) for name in MODELS), *((name, True) for name in ("gcn", "gin", *ATTENTION))]
)
def test_models_run_over_edges_by_walks_alone(
    name: str, drawn: bool, dtype: torch.dtype, nests: Nests, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x, model = random_graph(0), features(), make(name)
    if drawn:
        batch = gw.sampling.NeighborSampler(graph, [3, 3]).sample(torch.arange(6))
        graph, x = batch.blocks, x[batch.n_id]
    with gw.config(opt_level=0):
        expected = _step(model, graph, x.double())
    for op in WALKED:
        monkeypatch.setitem(interpret._MEANING, op, _refuse)
    with gw.config(target=nests.name, certify=False):
        found = _step(model, graph, x.to(dtype))
    _close(found, expected)
    kinds = {sink.kind for nest in nests.walked for sink in nest.sinks}
    assert ("max" if name == "sage_max" else "sum") in kinds
    assert {nest.real for nest in nests.walked} == {"double" if dtype == torch.float64 else "float"}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_attention_stores_nothing_of_an_edge_but_what_is_drawn(name: str, p: float, nests: Nests) -> None:
    graph, x, model = random_graph(0), features() / 4, MAKES[name](dropout=p)

    def step(dtype: torch.dtype) -> dict[str, Tensor]:
        torch.manual_seed(5)
        twin, given = copy.deepcopy(model).to(dtype), x.to(dtype).requires_grad_()
        return _slopes(twin(graph, given), {"x": given, **dict(twin.named_parameters())})

    with gw.config(opt_level=0):
        expected = step(torch.float64)
    with gw.config(target=nests.name, certify=False):
        found = step(torch.float32)
    _close(found, expected)
    assert nests.walked and set(nests.stored) == ({"edge_nest", "dropout"} if p else set())


TYPED = {
    "rgcn": lambda nodes, relations: RGCN(5, 4, 2, num_relations=relations),
    "hgt": lambda nodes, relations: HGT(5, 8, 3, num_node_types=nodes, num_relations=relations, heads=2),
}


def _typed(name: str, graph: str) -> tuple[gw.Graph, Tensor, nn.Module]:
    made = TYPED_ZOO[graph]()
    torch.manual_seed(1)
    return made, torch.randn(made.num_nodes, 5), TYPED[name](len(made.node_types), len(made.relations))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("graph", TYPED_ZOO)
@pytest.mark.parametrize("name", TYPED)
def test_typed_models_run_over_edges_by_walks_alone(
    name: str, graph: str, dtype: torch.dtype, nests: Nests, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, x, model = _typed(name, graph)
    with gw.config(opt_level=0):
        expected = _step(model, made, x.double())
    for op in WALKED:
        monkeypatch.setitem(interpret._MEANING, op, _refuse)
    with gw.config(target=nests.name, certify=False):
        _close(_step(model, made, x.to(dtype)), expected)
    assert {nest.real for nest in nests.walked} == {"double" if dtype == torch.float64 else "float"}


@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize("op", [op for op in WALKED if "TYPED" not in op.name], ids=lambda op: op.name.lower())
def test_each_operation_is_what_its_walks_give(op: Op, graph: str, nests: Nests) -> None:
    program = one_op_programs()[op]
    walked = by_walks(program, lambda calls: nests.bind(calls).launches)
    assert walked is not None
    inputs = random_inputs(program, ZOO[graph])
    (expected,) = interpret.interpret(program, inputs).values()
    torch.testing.assert_close(walked(inputs), [expected], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("graph", ZOO)
def test_shares_in_an_extremum_are_walks(graph: str, nests: Nests) -> None:
    w = Writer()
    shares = w.b.add(Op.REDUCE_MASK, w.graph(), w.edges("e", 3), kind="max", ties="split")
    program = w.done(out=shares)
    walked = by_walks(program, lambda calls: nests.bind(calls).launches)
    assert walked is not None
    inputs = random_inputs(program, ZOO[graph])
    inputs["e"] = inputs["e"].round()  # so that several attain it
    torch.testing.assert_close(walked(inputs), [interpret.interpret(program, inputs)["out"]])


def test_every_operation_over_edges_is_a_nest_or_is_listed() -> None:
    over = {op for op, spec in SPECS.items() if spec.movement in (Movement.BROADCAST, Movement.REDUCE, Movement.NORM)}
    assert over == {*WALKED, *LEFT, *BY_NODES}


def _summed(graph: gw.Graph, x: Tensor, weight: Tensor | None, reduce: str) -> dict[str, Tensor]:
    """Sums of weighted rows of sources, or their maxima, and gradients of squares."""

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] if weight is None else edges.src["h"] * edges.data["w"][:, None]}

    x = x.clone().requires_grad_()
    edata = {} if weight is None else {"w": weight}
    fold = (lambda m: m.sum(1)) if reduce == "sum" else (lambda m: m.max(1).values)
    out = gw.update_all(graph, message, lambda nodes: {"h": fold(nodes.mailbox["m"])}, ndata={"h": x}, edata=edata)["h"]
    return _slopes(out, {"x": x})


@pytest.mark.parametrize("case", [case for case in CASES if case.graph().is_square], ids=str)
@pytest.mark.parametrize(("dtype", "weighted"), [(torch.float32, False), (torch.float32, True), (torch.float64, True)])
def test_sums_are_those_of_scipy(case: Case, dtype: torch.dtype, weighted: bool, nests: Nests) -> None:
    graph = case.graph()
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(graph.num_src, 5, generator=draw, dtype=torch.float64)
    weight = torch.rand(graph.num_edges, generator=draw, dtype=torch.float64) if weighted else None
    dense = torch.from_numpy(case.scipy(None if weight is None else weight.numpy()).toarray())
    with gw.config(target=nests.name, certify=False):
        found = _summed(graph, x.to(dtype), None if weight is None else weight.to(dtype), "sum")
    total = dense @ x
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found["out"].double(), total, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found["x"].double(), 2 * dense.T @ total, rtol=tolerance, atol=tolerance)
    assert bool(nests.walked) == bool(graph.num_edges)


@needs_compiler
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_the_cpu_s_kernels_are_one_way_to_run_the_nests(reduce: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, as rows are added in the order of their edges by both."""
    graph, x = random_graph(3), features(3)
    kernels = _summed(graph, x, None, reduce)
    monkeypatch.setitem(interpret._MEANING, Op.SPMM, _refuse)
    with gw.config(disabled_kernels=SUMS, certify=False):
        found = _summed(graph, x, None, reduce)
    assert all(torch.equal(found[name], kernels[name]) for name in kernels) and len(kernels) == 2


def _same_without_kernels(monkeypatch: pytest.MonkeyPatch, graph: gw.Graph, x: Tensor, model: nn.Module) -> None:
    with gw.config(opt_level=0):
        expected = _step(model, graph, x.double())
    for op in KERNELS:
        monkeypatch.setitem(interpret._MEANING, op, _refuse)
    with gw.config(disabled_kernels=FUSED, certify=False):
        _close(_step(model, graph, x), expected)


@needs_compiler
@pytest.mark.parametrize("name", [*MODELS, "cgat"])
def test_models_run_without_the_cpu_s_kernels_over_edges(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _same_without_kernels(monkeypatch, random_graph(0), features(), make(name))


@needs_compiler
@pytest.mark.parametrize("name", TYPED)
def test_typed_models_run_without_the_cpu_s_kernels_over_edges(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x, model = _typed(name, "academic")
    _same_without_kernels(monkeypatch, graph, x, model)


@needs_compiler
@pytest.mark.parametrize("off", ["attention", "attention_grad"])
@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("edges", ["multi_edges", "star", "power_law"])
def test_walks_and_kernels_of_attention_read_what_the_other_keeps(edges: str, name: str, off: str) -> None:
    src, dst, nodes = ZOO[edges]
    graph, x, model = gw.Graph(src, dst, num_nodes=nodes), features(nodes=nodes), make(name)
    with gw.config(opt_level=0):
        expected = _step(model, graph, x.double())
    with gw.config(disabled_kernels=off):
        _close(_step(model, graph, x), expected)


@needs_compiler
@pytest.mark.parametrize("off", ["attention", "attention_grad"])
def test_gradients_are_of_the_weights_that_were_kept(off: str) -> None:
    """Kernels of attention draw other numbers than those of dropout, so one without the other would be wrong."""
    graph, x, model = random_graph(0), features(), MAKES["gat"](dropout=0.0, attention_dropout=0.5)
    to = torch.randn(x.shape, generator=torch.Generator().manual_seed(4))

    def loss(given: Tensor) -> Tensor:
        torch.manual_seed(5)
        return model(graph, given).square().sum()

    with gw.config(disabled_kernels=off):
        given = x.clone().requires_grad_()
        loss(given).backward()
        ahead, behind = (loss(x + step * to).item() for step in (1e-3, -1e-3))
    assert given.grad is not None
    assert (given.grad * to).sum().item() == pytest.approx((ahead - behind) / 2e-3, rel=2e-2)


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_kernel_that_draws_is_left_out_where_that_of_its_gradient_is_missing(p: float, nests: Nests) -> None:
    def own(call: KernelCall) -> Launch:
        raise AssertionError("its own kernel")

    nests.launches("attention")(own)
    model = MAKES["gat"](dropout=0.0, attention_dropout=p)
    expected = contextlib.nullcontext() if p else pytest.raises(AssertionError, match="its own kernel")
    with gw.config(target=nests.name, certify=False), expected:
        assert torch.isfinite(model(random_graph(0), features())).all()


def test_values_computed_once_are_made_again_by_other_kernels() -> None:
    graph, x, model = random_graph(0), features(), make("gcn").eval()

    def keys() -> set[str]:
        with torch.no_grad():
            plan, _ = model.function.sized_plan(model.arguments(graph, gw.constant(x)))
        return {item.key for item in plan.hoisted}

    with gw.config(disabled_kernels=SUMS):
        without = keys()
    assert without and keys() and not without & keys()


def test_a_sum_is_a_nest_of_a_few_lines(nests: Nests) -> None:
    graph, x = random_graph(0), features()
    weight = torch.rand(graph.num_edges)
    with gw.config(target=nests.name, certify=False), torch.no_grad():
        gw.update_all(graph, lambda e: {"m": e.src["h"]}, lambda n: {"h": n.mailbox["m"].sum(1)}, ndata={"h": x})
        gw.update_all(
            graph,
            lambda e: {"m": e.src["h"] * e.data["w"][:, None]},
            lambda n: {"h": n.mailbox["m"].sum(1)},
            ndata={"h": x},
            edata={"w": weight},
        )
    plain, weighted = map(str, nests.walked)
    assert plain == "in0 = far[6]\nfor row, edge:\n  sum out0[6] <- in0"
    rest = "for row, edge:\n  t0[6] = mul(in0, in1)\n  sum out0[6] <- t0"
    assert weighted == f"in0 = far[6]\nin1 = edge[]\n{rest}"
