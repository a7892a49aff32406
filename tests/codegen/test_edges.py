"""Generated walks over edges against the float64 oracle, forward and backward, on the graph zoo."""

from __future__ import annotations

import warnings
from math import prod

import pytest
import torch
from codegen.regions import REGIONS, WIDTHS, Edges, Region, all_functions
from torch import Tensor
from zoo import CASES, Case, power_law_edges

import graphweft as gw
from graphweft import _native
from graphweft._config import config
from graphweft._errors import FallbackWarning
from graphweft.ir.interpret import interpret
from graphweft.ir.program import Builder, Value
from graphweft.ir.residency import Residency, TensorType
from graphweft.passes import pipeline
from graphweft.passes.groups import EdgeWalk
from graphweft.runtime import build, row_kernels
from graphweft.runtime.compile import Arguments, CompiledFunction, Standing
from graphweft.runtime.footprint import footprint
from graphweft.runtime.sizes import measure_sizes

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture(autouse=True)
def _kernels_for_small_graphs(monkeypatch):
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)


def function_of(region: Region) -> CompiledFunction:
    def describe(b: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
        return region(Edges(b, inputs))

    return CompiledFunction(describe)


def fields_of(graph: gw.Graph, dtype: torch.dtype, seed: int = 0) -> dict[str, tuple[Tensor, Residency]]:
    generator = torch.Generator().manual_seed(seed)
    rows = {
        Residency.SRC: (graph.num_src,),
        Residency.DST: (graph.num_dst,),
        Residency.EDGE: (graph.num_edges,),
        Residency.SHARED: (),
    }
    drawn = {n: torch.randn((*rows[r], *dims), generator=generator) * 0.7 for n, (r, dims) in WIDTHS.items()}
    return {n: (x.to(dtype).requires_grad_(), WIDTHS[n][0]) for n, x in drawn.items()}


def arguments(graph: gw.Graph, fields: dict[str, tuple[Tensor, Residency]]) -> Arguments:
    return Arguments(graph, None, {}, None, 0, True, fields)


def gradients(outputs: dict[str, Tensor], fields: dict[str, tuple[Tensor, Residency]]) -> list[Tensor]:
    """Of a fixed combination of all outputs, for every input."""
    generator = torch.Generator().manual_seed(5)
    loss = torch.zeros((), dtype=torch.float64)
    for value in outputs.values():
        loss = loss + (value.double() * torch.randn(value.shape, generator=generator).double()).sum()
    leaves = [tensor for tensor, _ in fields.values()]
    if not loss.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))


def close(got: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}")


def compare(
    function: CompiledFunction, graph: gw.Graph, tolerance: float = 2e-4, dtype: torch.dtype = torch.float32
) -> None:
    """Kernels of ``dtype``, and their gradients, against the interpreter in float64 under torch's autograd."""
    double = fields_of(graph, torch.float64)
    given = arguments(graph, double)
    expected = interpret(function.program(given), given.named())
    wanted = gradients(expected, double)
    single = fields_of(graph, dtype)
    got = function(arguments(graph, single))
    found = gradients(got, single)
    for name, tensor in expected.items():
        close(got[name], tensor, tolerance, name)
    for name, a, b in zip(single, found, wanted, strict=True):
        scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        close(a, b, tolerance * scale, f"gradient of {name}")


@needs_compiler
@pytest.mark.parametrize("name", REGIONS)
def test_regions_agree_with_the_oracle_on_every_graph_and_compile_once(name, monkeypatch):
    texts = set()
    load = build.load
    monkeypatch.setattr(build, "load", lambda source: (texts.add(source), load(source))[1])
    function = function_of(REGIONS[name])
    for case in CASES:
        if case.num_edges:
            compare(function, case.graph())
    # graphs with fewer edges than nodes keep row-wise code behind the broadcasts: another program; of two units at most
    assert sum("edge_nest.h" in text for text in texts) <= 4


@needs_compiler
@pytest.mark.parametrize("name", REGIONS)
def test_regions_in_double_precision_agree_on_every_graph(name):
    function = function_of(REGIONS[name])
    for case in CASES:
        if case.num_edges:
            compare(function, case.graph(), 1e-10, torch.float64)
    walks = [walk for plan in function.plans() for walk in plan.walks]
    assert walks and all(walk.tensor.dtype == torch.float64 for walk in walks)


@needs_compiler
@pytest.mark.parametrize("level", [level for level in _native.LEVELS if level != "avx512"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", ["attention_by_distance", "linear_of_joined_ends", "sum_over_all_edges"])
def test_narrower_vectors(name, dtype, level, monkeypatch):
    if _native.LEVELS.index(level) > _native.LEVELS.index(_native.LEVEL):
        pytest.skip("this processor does not run it")
    monkeypatch.setattr(_native, "LEVEL", level)
    build.load.cache_clear()
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)
    compare(function_of(REGIONS[name]), graph, 1e-10 if dtype == torch.float64 else 2e-4, dtype)
    build.load.cache_clear()


@needs_compiler
@pytest.mark.parametrize("case", [case for case in CASES if not case.num_edges], ids=str)
def test_a_graph_without_edges(case: Case):
    compare(function_of(REGIONS["attention_by_distance"]), case.graph())


@needs_compiler
@pytest.mark.slow
def test_every_function_of_elements():
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)
    compare(function_of(all_functions), graph, tolerance=1e-3)
    compare(function_of(all_functions), graph, 1e-9, torch.float64)


@needs_compiler
@pytest.mark.parametrize("name", ["attention_by_distance", "linear_of_joined_ends", "sum_over_all_edges"])
def test_same_bits_for_any_number_of_threads(name):
    edges = power_law_edges(500, 40_000, seed=9)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=500)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            fields = fields_of(graph, torch.float32)
            outputs = function_of(REGIONS[name])(arguments(graph, fields))
            results.append([*(t.detach() for t in outputs.values()), *gradients(outputs, fields)])
    finally:
        torch.set_num_threads(before)
    assert (graph.in_degrees() > 1000).any()  # a row that several pieces share
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("name", ["attention_by_distance", "sum_over_all_edges"])
def test_without_a_compiler_the_values_are_computed_one_by_one(name, monkeypatch):
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    build.load.cache_clear()
    build._warn_once.cache_clear()
    graph = CASES[-3].graph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            compare(function_of(REGIONS[name]), graph)
    build.load.cache_clear()
    row_kernels._compiled.cache_clear()  # what could not be compiled here is compiled in other tests
    assert sum(issubclass(w.category, FallbackWarning) for w in caught) == 1


def wide_edge_values(function: CompiledFunction) -> list[str]:
    """What calls store that is more than 16 numbers per edge."""
    stored = []
    for plan in function.plans():
        for group in plan.compiled.groups:
            for value in (group.result, *group.taps):
                type_ = value.type
                if isinstance(type_, TensorType) and type_.residency is Residency.EDGE and prod(type_.dims) > 16:
                    stored.append(str(type_))
    return stored


@pytest.mark.parametrize("name", [n for n in REGIONS if n != "largest_and_smallest"])
def test_no_call_stores_features_of_edges(name):
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)
    fields = fields_of(graph, torch.float32)
    function = function_of(REGIONS[name])
    gradients(function(arguments(graph, fields)), fields)
    assert function.plans() and wide_edge_values(function) == []
    with config(disabled_passes="edges"):
        other = function_of(REGIONS[name])
        gradients(other(arguments(graph, fields)), fields)
    narrow = ("number_per_edge", "dot_as_gate", "matrix_per_edge", "heads_of_products")
    assert wide_edge_values(other) or name in narrow


@pytest.mark.parametrize("name", ["product_of_ends", "attention_by_distance", "dot_as_gate", "normalised_layer"])
def test_memory_grows_by_a_few_numbers_per_edge(name):
    peaks, edges = [], []
    for degree in (10, 200):
        drawn = torch.randint(0, 300, (2, 300 * degree), generator=torch.Generator().manual_seed(1))
        graph = gw.Graph(drawn[0], drawn[1], num_nodes=300)
        fields = fields_of(graph, torch.float32)
        given = arguments(graph, {n: f for n, f in fields.items() if f[1] is not Residency.EDGE})
        function = function_of(REGIONS[name])
        plan = function.ready(given)
        assert plan is not None
        peaks.append(footprint(plan, measure_sizes(plan.compiled.program, given.named(), 0)).peak)
        edges.append(graph.num_edges)
    assert (peaks[1] - peaks[0]) / (edges[1] - edges[0]) <= 4 * 4


def test_the_pass_can_be_switched_off_and_shows_in_the_trace():
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)
    given = arguments(graph, fields_of(graph, torch.float32))
    on = function_of(REGIONS["attention_by_distance"]).compile(given, Standing())
    with config(disabled_passes="edges"):
        off = function_of(REGIONS["attention_by_distance"]).compile(given, Standing())
    assert any(isinstance(group, EdgeWalk) for group in on.compiled.groups)
    assert "edges" in dict(on.compiled.trace)
    assert all(not isinstance(group, EdgeWalk) for group in off.compiled.groups)
    assert "edges" not in dict(off.compiled.trace)
