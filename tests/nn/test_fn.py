"""``gw.fn`` against plain indexing: every message function with every reduce function."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import graphweft as gw

CODE = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "dot": lambda x, y: (x * y).sum(-1, keepdim=True),
}
NAMES = [f"{a}_{op}_{b}" for a, b in itertools.permutations("uve", 2) for op in CODE]
SRC, DST = torch.tensor([0, 1, 2, 2, 3, 3, 3]), torch.tensor([1, 1, 1, 2, 0, 0, 3])


def fields() -> tuple[gw.Graph, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    node = torch.rand(5, 3, dtype=torch.float64, generator=generator) + 0.5
    edge = torch.rand(7, 3, dtype=torch.float64, generator=generator) + 0.5
    return gw.Graph(SRC, DST, num_nodes=5), node.requires_grad_(), edge.requires_grad_()


def expected(name: str, node: Tensor, edge: Tensor) -> Tensor:
    at = {"u": node[SRC], "v": node[DST], "e": edge}
    left, op, right = name.split("_")
    return CODE[op](at[left], at[right])


def reduced(kind: str, messages: Tensor) -> Tensor:
    rows = []
    for node in range(5):
        own = messages[node == DST]
        zero = messages.new_zeros(messages.shape[1:])
        rows.append(zero if not len(own) else getattr(own, f"a{kind}" if kind in ("max", "min") else kind)(0))
    return torch.stack(rows)


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_two_fields(name: str) -> None:
    graph, node, edge = fields()
    rhs = {"u": "h", "v": "h", "e": "w"}
    made = getattr(gw.fn, name)(rhs[name[0]], rhs[name[-1]], "m")
    got = gw.apply_edges(graph, made, ndata={"h": node}, edata={"w": edge})["m"]
    torch.testing.assert_close(got, expected(name, node, edge))
    total = gw.update_all(graph, made, gw.fn.sum("m", "h"), ndata={"h": node}, edata={"w": edge})["h"]
    wanted = reduced("sum", expected(name, node, edge))
    torch.testing.assert_close(total, wanted)
    for one, other in zip(
        torch.autograd.grad(total.square().sum(), (node, edge), allow_unused=True),
        torch.autograd.grad(wanted.square().sum(), (node, edge), allow_unused=True),
        strict=True,
    ):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("copied", ["u", "e"])
def test_copies_and_reductions(kind: str, copied: str) -> None:
    graph, node, edge = fields()
    message = gw.fn.copy_u("h", "m") if copied == "u" else gw.fn.copy_e("w", "m")
    got = gw.update_all(graph, message, getattr(gw.fn, kind)("m", "o"), ndata={"h": node}, edata={"w": edge})["o"]
    torch.testing.assert_close(got, reduced(kind, node[SRC] if copied == "u" else edge))


def test_a_number_per_edge_scales_rows() -> None:
    """As in DGL, a field of fewer dimensions is repeated along the first ones after the rows."""
    graph, node, edge = fields()
    weight = edge[:, 0]
    message = gw.fn.u_mul_e("h", "w", "m")
    got = gw.update_all(graph, message, gw.fn.sum("m", "h"), ndata={"h": node}, edata={"w": weight})["h"]
    torch.testing.assert_close(got, reduced("sum", node[SRC] * weight[:, None]))
