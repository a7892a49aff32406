"""Compiled user functions against their plain execution, forward and backward, in float64, over the graph zoo."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from frontend.functions import CASES, FALLS_BACK, TYPED, World
from torch import Tensor
from torch.nn import functional as F
from zoo import ZOO

import graphweft as gw
from graphweft.frontend.call import Call, make_call
from graphweft.frontend.reference import run_reference
from graphweft.nn.user_call import execute

GRAPHS = ["no_edges", "one_loop", "isolated", "multi_edges", "random"]
MORE_GRAPHS = ["self_loops", "path", "star", "reverse_star", "symmetric", "complete", "power_law"]


def zoo_graph(name: str) -> gw.Graph:
    edges = ZOO[name]
    return gw.Graph(edges.src, edges.dst, num_nodes=edges.num_nodes)


def typed_graph() -> gw.Graph:
    """Three node types, four relations, one without an edge, one node type that receives nothing."""
    generator = torch.Generator().manual_seed(5)
    sizes = {"author": 6, "paper": 9, "term": 4}

    def pairs(src: str, dst: str, count: int) -> tuple[Tensor, Tensor]:
        return (
            torch.randint(0, sizes[src], (count,), generator=generator),
            torch.randint(0, sizes[dst], (count,), generator=generator),
        )

    relations = {
        ("author", "writes", "paper"): pairs("author", "paper", 20),
        ("paper", "cites", "paper"): pairs("paper", "paper", 15),
        ("term", "unused", "author"): pairs("term", "author", 0),
        ("paper", "by", "author"): pairs("paper", "author", 12),
    }
    return gw.Graph.hetero(relations, sizes)


def call_of(world: World, functions: tuple[Any, ...]) -> Call:
    return make_call(world.graph, *functions, **world.fields, params=world.params)


def run(executor: Any, world: World, call: Call) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs, and gradients of every leaf under fixed random output gradients."""
    outputs = executor(call)
    generator = torch.Generator().manual_seed(11)
    loss = torch.zeros((), dtype=torch.float64)
    for value in outputs.values():
        if value.is_floating_point():
            loss = loss + (value * torch.randn(value.shape, generator=generator, dtype=value.dtype)).sum()
    leaves = list(world.leaves.values())
    if not loss.requires_grad:
        return outputs, {name: torch.zeros_like(leaf) for name, leaf in world.leaves.items()}
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return outputs, dict(zip(world.leaves, gradients, strict=True))


def compare(world: World, functions: tuple[Any, ...], tolerance: float = 1e-8) -> None:
    call = call_of(world, functions)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "std|var", UserWarning)
        expected, wanted = run(run_reference, world, call)
        got, gradients = run(execute, world, call)
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
        torch.testing.assert_close(
            got[name], tensor, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            gradients[name],
            tensor,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda m, n=name: f"gradient of {n}: {m}",
        )


@pytest.mark.parametrize("graph", [*GRAPHS, *(pytest.param(graph, marks=pytest.mark.slow) for graph in MORE_GRAPHS)])
@pytest.mark.parametrize("name", [name for name in CASES if name not in FALLS_BACK and name not in TYPED])
def test_compiled_function_equals_its_plain_execution(name: str, graph: str) -> None:
    world = World(zoo_graph(graph))
    with warnings.catch_warnings():
        warnings.simplefilter("error", gw.FallbackWarning)
        compare(world, CASES[name](world))


@pytest.mark.parametrize("name", sorted(TYPED))
def test_typed_function_equals_its_plain_execution(name: str) -> None:
    world = World(typed_graph())
    with warnings.catch_warnings():
        warnings.simplefilter("error", gw.FallbackWarning)
        compare(world, CASES[name](world))


@pytest.mark.parametrize("graph", ["isolated", "random", "star"])
@pytest.mark.parametrize("name", FALLS_BACK)
def test_what_is_no_segment_operation_runs_as_it_stands_with_one_warning(name: str, graph: str) -> None:
    world = World(zoo_graph(graph))
    functions = CASES[name](world)
    call = call_of(world, functions)
    expected, wanted = run(run_reference, world, call)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            got, gradients = run(execute, world, call)
    told = [w for w in caught if issubclass(w.category, gw.FallbackWarning)]
    assert len(told) <= 1
    for item in told:
        assert FALLS_BACK[name] in str(item.message) and "fallbacks.py" in str(item.message)
        assert item.filename == __file__
    close = 1e-12 if name == "branch_on_values" else 0.0  # its reduction is compiled
    torch.testing.assert_close(got, expected, rtol=close, atol=close)
    torch.testing.assert_close(gradients, wanted, rtol=close, atol=close)


def test_nodes_with_in_edges_are_found_once_a_graph_where_the_others_would_be_infinite() -> None:
    """Lengths of sums; two graphs in turn, one of them without nodes that receive nothing."""
    generator = torch.Generator().manual_seed(0)
    graphs = [gw.Graph([0, 1, 2, 0], [1, 2, 1, 2], num_nodes=5), gw.Graph([0, 1, 2, 3, 4], [1, 2, 3, 4, 0])]
    x = torch.randn(5, 3, dtype=torch.float64, generator=generator).requires_grad_()

    def lengths(graph: gw.Graph, x: Tensor) -> Tensor:
        return gw.update_all(
            graph,
            lambda edges: {"m": edges.src["h"]},
            lambda nodes: {"h": nodes.mailbox["m"].sum(1).square().sum(1).sqrt()},
            ndata={"h": x},
        )["h"]

    def by_hand(graph: gw.Graph, x: Tensor) -> Tensor:
        src, dst = graph.edges()
        into = dst.unique()
        found = x.new_zeros(5, 3).index_add(0, dst, x[src])[into].square().sum(1).sqrt()
        return x.new_zeros(5).index_add(0, into, found)

    once = [
        gw.explain(lengths, graph, x).partition("-- computed once --")[2].partition("-- forward")[0] for graph in graphs
    ]
    assert ["receivers" in text for text in once] == [True, False]
    for graph in (*graphs, *graphs):
        got, expected = lengths(graph, x), by_hand(graph, x)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        slopes = [torch.autograd.grad(out.square().sum() + out.sum(), x)[0] for out in (got, expected)]
        assert torch.isfinite(slopes[0]).all()
        torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)


# functions whose own text asks for float64 have no other precision
SINGLE = [name for name in CASES if name not in FALLS_BACK and "F64" not in inspect.getsource(CASES[name])]


@pytest.mark.parametrize("name", SINGLE)
def test_single_precision_takes_the_fused_kernels_and_agrees(name: str) -> None:
    world = World(typed_graph() if name in TYPED else zoo_graph("power_law"), dtype=torch.float32)
    compare(world, CASES[name](world), tolerance=2e-3)


def test_there_are_eighty_functions() -> None:
    assert len(CASES) >= 80


@pytest.mark.parametrize(
    "function", [F.softplus, F.celu, F.elu, F.mish, F.silu, F.logsigmoid, torch.expm1], ids=lambda f: f.__name__
)
def test_gradients_stay_finite_where_the_other_branch_overflows(function: Callable[[Tensor], Tensor]) -> None:
    graph = gw.Graph([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0])
    x = torch.tensor([[-200.0], [-30.0], [0.5], [1.0], [30.0], [80.0]]) * torch.tensor([1.0, 1.1])
    mine, theirs = (x.clone().requires_grad_() for _ in range(2))
    out = gw.update_all(
        graph, lambda e: {"m": function(e.src["h"])}, lambda n: {"h": n.mailbox["m"].sum(1)}, ndata={"h": mine}
    )["h"]
    expected = function(theirs).roll(1, 0)
    out.sum().backward(), expected.sum().backward()
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(mine.grad, theirs.grad)


def _counted(function: Callable[..., Any], runs: SimpleQueue[None]) -> Callable[..., Any]:
    def run(view: Any) -> Any:
        runs.put(None)
        return function(view)

    return run


def _by_value(edges: Any) -> dict[str, Tensor]:
    h = edges.src["h"]
    return {"m": h if h.sum() > 0 else -h}


def _ordered(nodes: Any) -> dict[str, Tensor]:
    return {"h": torch.sort(nodes.data["h"], dim=1).values * nodes.data["h"]}


@pytest.mark.parametrize("stage", ["message", "update"])
def test_a_message_or_update_that_cannot_be_compiled_leaves_the_reduction_compiled(stage: str) -> None:
    """Message and update then run once a call, and no reduction by degree buckets."""
    world, graph = World(zoo_graph("random")), zoo_graph("random")
    runs = {name: SimpleQueue[None]() for name in ("message", "reduce", "update")}  # no part of what is compiled
    message = _counted(_by_value if stage == "message" else lambda e: {"m": e.src["h"]}, runs["message"])
    reduce = _counted(lambda nodes: {"h": nodes.mailbox["m"].softmax(1).mean(1)}, runs["reduce"])
    update = _counted(_ordered if stage == "update" else lambda n: {"h": n.data["h"] + 1}, runs["update"])
    world.node("h", 3)
    call = call_of(world, (message, reduce, update))
    with pytest.warns(gw.FallbackWarning, match=f"{stage} runs on the reference executor .*test_compiled"):
        got, gradients = run(execute, world, call)
    before = {name: count.qsize() for name, count in runs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(execute, world, call)
    assert {name: count.qsize() - before[name] for name, count in runs.items()} == dict.fromkeys(runs, 0) | {stage: 1}
    expected, wanted = run(run_reference, world, call)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients, wanted)
    told = gw.explain(lambda g, h: gw.update_all(g, message, reduce, update, ndata={"h": h})["h"], graph, call.src["h"])
    assert f"{stage} runs on the reference executor" in told and "softmax" in told.partition("== call 1")[2]
