"""apply_edges and apply_nodes against plain indexing; every graph operation of the lowering table and its kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import CASES, ZOO, Case

import graphweft as gw
from graphweft.frontend.call import Call, absent, make_call
from graphweft.frontend.captured import capture
from graphweft.ir.ops import Op
from graphweft.nn import user_call
from graphweft.nn.apply_functions import EDGE_FUNCTIONS, NODE_FUNCTIONS
from graphweft.runtime.compile import Standing

F64 = torch.float64
PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u_add_v": lambda u, v: u + v,
    "u_sub_v": lambda u, v: u - v,
    "u_mul_v": lambda u, v: u * v,
    "u_div_v": lambda u, v: u / v,
    "u_dot_v": lambda u, v: torch.einsum("ef,ef->e", u, v),
    "copy_u": lambda u, v: u,
    "copy_v": lambda u, v: v,
}


def rows(count: int, width: int = 3) -> Tensor:
    return (torch.rand(count, width, dtype=F64) + 0.5).requires_grad_()


def assert_same(got: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    weights = torch.randn(expected.shape, dtype=F64)
    grads = [torch.autograd.grad((x * weights).sum(), leaves, materialize_grads=True) for x in (got, expected)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_named_function_on_edges_equals_plain_indexing(name: str, case: Case) -> None:
    assert set(PLAIN) == set(EDGE_FUNCTIONS)
    x, y = rows(case.num_src), rows(case.num_dst)
    fields: dict[str, Any] = {"x": (x, y)} if case.bipartite else {"x": x, "y": y}
    got = gw.apply_edges(case.graph(), name, ndata=fields)["e"]
    assert_same(got, PLAIN[name](x[case.src], y[case.dst]), [x, y])


def test_user_functions_on_edges_and_nodes_compile() -> None:
    edges = ZOO["random"]
    g, h, w, weight = gw.Graph(edges.src, edges.dst, num_nodes=40), rows(40), rows(200, 1), rows(3, 2)
    src, dst = torch.from_numpy(edges.src), torch.from_numpy(edges.dst)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_edges = gw.apply_edges(
            g,
            lambda e, k: {"s": torch.tanh(e.src["h"] @ k - e.dst["h"] @ k) * e.data["w"]},
            ndata={"h": h},
            edata={"w": w},
            params=(weight,),
        )["s"]
        on_nodes = gw.apply_nodes(g, lambda n: {"h": n.data["h"] @ weight}, ndata={"h": h})["h"]
    assert_same(on_edges, torch.tanh(h[src] @ weight - h[dst] @ weight) * w, [h, w, weight])
    assert_same(on_nodes, h @ weight, [h, weight])


@pytest.mark.parametrize("name", NODE_FUNCTIONS)
def test_named_function_on_nodes(name: str) -> None:
    x = torch.randn(5, 2, dtype=F64, requires_grad=True)
    plain = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "copy": torch.clone}
    assert_same(gw.apply_nodes(gw.Graph([0], [1], num_nodes=5), name, ndata={"x": x})["x"], plain[name](x), [x])


def test_mistakes_are_named() -> None:
    g, h = gw.Graph([0, 1], [1, 2]), torch.ones(3, 2)
    with pytest.raises(
        gw.errors.ConfigError, match=r"apply_edges: expected a function or one of u_add_v.*'u_pow_v' \(.*py"
    ):
        gw.apply_edges(g, "u_pow_v", ndata={"h": h})
    with pytest.raises(gw.errors.ConfigError, match="one node field, or two, got 0"):
        gw.apply_edges(g, "u_add_v")
    with pytest.raises(gw.errors.ConfigError, match="apply_nodes: expected a function or one of relu"):
        gw.apply_nodes(g, "gelu", ndata={"h": h})
    with pytest.raises(gw.errors.UserCodeError, match="apply_edges: expected message to be a function, got 3"):
        gw.apply_edges(g, 3, ndata={"h": h})  # type: ignore[arg-type]
    with pytest.raises(gw.errors.FieldError, match=r"'k'.*test_apply_functions\.py:\d+"):
        gw.apply_edges(g, lambda edges: {"e": edges.src["k"]}, ndata={"h": h})
    with pytest.raises(gw.errors.ShapeError, match=r"expected field 'e' with 2 rows, one per edge, got 1 rows.*\.py"):
        gw.apply_edges(g, lambda edges: {"e": edges.src["h"].sum(0, keepdim=True)}, ndata={"h": h})
    with pytest.raises(gw.errors.GraphError, match="apply_nodes: expected a graphweft Graph first, got int"):
        gw.apply_nodes(3, "relu")  # type: ignore[arg-type]


def compiled_ops(call: Call) -> tuple[list[Op], str]:
    """Operations of the compiled program, and its last printed form."""
    captured = capture((call.message, call.reduce, call.update, call.params))
    made, failure, _ = user_call.compiled_call(call, captured)
    assert made is not None, failure
    with torch.enable_grad():
        plan = made.form(call.graph).compile(made.arguments(call, captured), Standing())
    return [value.op for value in plan.compiled.program.values], str(plan.compiled.program)


def lowering() -> dict[str, tuple[Callable[[gw.Graph, Tensor], Call], Op, Op | None]]:
    """Row of the lowering table -> call, operation of the forward pass, and one that its gradient needs."""

    def pulled(g: gw.Graph, h: Tensor) -> Call:
        return make_call(g, lambda e: {"m": e.src["h"]}, lambda n: {"h": n.mailbox["m"].sum(1)}, ndata={"h": h})

    def weighted(g: gw.Graph, h: Tensor) -> Call:
        w = torch.rand(g.num_edges, 1, requires_grad=True)
        reduce = lambda n: {"h": n.mailbox["m"].sum(1)}  # noqa: E731
        return make_call(g, lambda e: {"m": e.src["h"] * e.data["w"]}, reduce, ndata={"h": h}, edata={"w": w})

    def dotted(g: gw.Graph, h: Tensor) -> Call:
        message = lambda e: {"e": (e.src["h"] * e.dst["h"]).sum(-1)}  # noqa: E731
        return make_call(g, message, absent, who="apply_edges", ndata={"h": h})

    return {
        "pull, push -> SpMM": (pulled, Op.SPMM, Op.REVERSE),
        "weighted pull -> SpMM, its weights' gradient SDDMM": (weighted, Op.SPMM, Op.SDDMM),
        "apply_edges with both ends -> SDDMM, its gradient SpMM": (dotted, Op.SDDMM, Op.SPMM),
    }


@pytest.mark.parametrize("row", lowering())
def test_graph_operation_is_lowered_as_the_table_says(row: str) -> None:
    make, forward, backward = lowering()[row]
    edges = ZOO["random"]
    call = make(gw.Graph(edges.src, edges.dst, num_nodes=40), torch.randn(40, 3, requires_grad=True))
    ops, text = compiled_ops(call)
    assert forward in ops and (backward is None or backward in ops), text
    features = [line for line in text.splitlines() if "edge[E x 3]" in line]
    assert not features, text


@pytest.mark.parametrize("case", [case for case in CASES if not case.bipartite], ids=str)
def test_reverse_is_the_transpose(case: Case) -> None:
    """pull on the reversed graph is A^T x, and push is it too."""
    x = torch.randn(case.num_dst, 2, dtype=F64)
    expected = torch.from_numpy(case.scipy().T @ x.numpy())
    torch.testing.assert_close(gw.pull(case.graph().reverse(), x, weight="copy"), expected)
