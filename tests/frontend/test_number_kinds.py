"""Kinds of numbers that user functions make or are given: half precision, complex numbers, negated views."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.test_surroundings import DST, F64, SRC, new_graph, rows, summed, total
from torch import Tensor
from torch.nn import functional as F

import graphweft as gw

HALVES = [torch.bfloat16, torch.float16]


def by_softmax(scores: Tensor, sent: Tensor) -> Tensor:
    """Messages weighed by the softmax of their scores (E, 1) at each destination, in plain torch."""
    most = scores.new_full((12, 1), -torch.inf).scatter_reduce(0, DST.unsqueeze(1), scores.detach(), "amax")
    share = (scores - most[DST]).exp()
    return summed(share / summed(share)[DST] * sent)


MESSAGES: dict[str, Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor]] = {
    "rows": lambda s, d, w, kind: s.to(kind),
    "products": lambda s, d, w, kind: s.to(kind) * d.to(kind),
    "weighted": lambda s, d, w, kind: s.to(kind) * w.to(kind),
    "projected": lambda s, d, w, kind: F.relu(s.to(kind) @ torch.eye(3, dtype=kind)),
}
REDUCTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": (lambda m, e: m.sum(1), lambda m, e: summed(m)),
    "weighted": (lambda m, e: (m * e).sum(1), lambda m, e: summed(m * e)),
    "softmax": (lambda m, e: (e.softmax(1) * m).sum(1), lambda m, e: by_softmax(e, m)),
}


@pytest.mark.parametrize("given", [torch.float32, F64])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("kind", HALVES)
def test_half_precision_inside_functions(kind: torch.dtype, message: str, reduction: str, given: torch.dtype) -> None:
    """Casts inside of functions of rows in full precision; compared with the same in float64."""
    sent, (reduce, plainly) = MESSAGES[message], REDUCTIONS[reduction]
    x, w = rows(12, 3, dtype=given).requires_grad_(), rows(40, 1, seed=1, dtype=given).requires_grad_()

    def send(edges: Any) -> dict[str, Tensor]:
        src, dst, own = edges.src["h"], edges.dst["h"], edges.data["w"]
        return {"m": sent(src, dst, own, kind), "e": (0.3 * (src * dst).sum(-1, keepdim=True)).to(kind)}

    out = gw.update_all(
        new_graph(), send, lambda n: {"h": reduce(n.mailbox["m"], n.mailbox["e"])}, ndata={"h": x}, edata={"w": w}
    )["h"]
    assert out.dtype == kind
    exact = [t.detach().double().requires_grad_() for t in (x, w)]
    scores = 0.3 * (exact[0][SRC] * exact[0][DST]).sum(-1, keepdim=True)
    expected = plainly(sent(exact[0][SRC], exact[0][DST], exact[1], F64), scores)
    found = torch.autograd.grad(out.double().square().sum(), [x, w], allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad(expected.square().sum(), exact, allow_unused=True, materialize_grads=True)
    for mine, theirs in zip((out, *found), (expected, *wanted), strict=True):
        close = 0.05 * max(1.0, float(theirs.detach().abs().max()))
        torch.testing.assert_close(mine.double(), theirs, rtol=0.0, atol=close)


def test_attention_under_autocast() -> None:
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(3, 4), rows(12, 3, dtype=torch.float32)

    def send(edges: Any) -> dict[str, Tensor]:
        z = linear(edges.src["h"])
        return {"m": z, "e": torch.tanh(z @ linear.weight[:, :1])}

    with torch.autocast("cpu", torch.bfloat16):
        out = gw.update_all(
            new_graph(), send, lambda n: {"h": (n.mailbox["e"].softmax(1) * n.mailbox["m"]).sum(1)}, ndata={"h": x}
        )["h"]
    assert out.dtype == torch.bfloat16
    z = x[SRC] @ linear.weight.t() + linear.bias
    expected = by_softmax(torch.tanh(z @ linear.weight[:, :1]), z)
    torch.testing.assert_close(out.float(), expected, rtol=0.0, atol=0.05 * float(expected.detach().abs().max()))
    found = torch.autograd.grad(out.float().sum(), list(linear.parameters()))
    for mine, theirs in zip(found, torch.autograd.grad(expected.sum(), list(linear.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=0.05 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("form", ["fields", "made", "pull", "dot", "reduced", "passed on"])
def test_complex_numbers_and_their_gradients(form: str, level: int) -> None:
    """They are plain torch's, with a warning where functions would else be compiled."""
    x, w = torch.complex(rows(12, 3), rows(12, 3, seed=1)), torch.complex(rows(40, 1, seed=2), rows(40, 1, seed=3))
    x, w, graph = x.requires_grad_(), w.requires_grad_(), new_graph()
    fields: dict[str, Any] = {"ndata": {"h": x}, "edata": {"w": w}}

    def run() -> tuple[Tensor, Tensor]:
        sums = summed(x[SRC] * w)
        if form == "fields":
            return gw.update_all(graph, lambda e: {"m": e.src["h"] * e.data["w"]}, total, **fields)["h"], sums
        if form == "made":
            made = {"re": x.real, "im": x.imag}
            send = lambda e: {"m": torch.complex(e.src["re"], e.src["im"])}  # noqa: E731
            return gw.update_all(graph, send, total, ndata=made, edata={})["h"], summed(x[SRC])
        if form == "reduced":
            reduce = lambda n: {"h": (n.mailbox["m"] * n.data["h"].unsqueeze(1)).mean(1)}  # noqa: E731
            counts = torch.bincount(DST, minlength=12).clamp(min=1).unsqueeze(1)
            return gw.update_all(graph, lambda e: {"m": e.data["w"]}, reduce, **fields)["h"], summed(w) * x / counts
        if form == "passed on":
            return gw.apply_edges(graph, lambda e: {"w": e.data["w"]}, **fields)["w"], w
        if form == "pull":
            return gw.pull(graph, x, w[:, 0], weight="mul"), sums
        return gw.neighbor_apply(graph, x, "dot"), (x[SRC] * x[DST]).sum(1, keepdim=True)

    with warnings.catch_warnings(), gw.config(opt_level=level):
        warnings.simplefilter("ignore", gw.FallbackWarning)
        out, expected = run()
    torch.testing.assert_close(out.reshape(expected.shape), expected)
    slopes = [
        torch.autograd.grad(torch.view_as_real(y).square().sum(), [x, w], allow_unused=True, materialize_grads=True)
        for y in (out, expected)
    ]
    torch.testing.assert_close(*slopes)


def test_no_edge_and_complex_numbers() -> None:
    x = torch.zeros(3, 2, dtype=torch.complex64, requires_grad=True)
    out = gw.update_all(gw.Graph([], [], num_nodes=3), lambda e: {"m": e.src["h"]}, total, ndata={"h": x})["h"]
    torch.view_as_real(out).sum().backward()
    assert out.dtype == torch.complex64 and torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_rows_that_torch_negates_where_they_are_read(dtype: torch.dtype) -> None:
    """The imaginary part of a conjugate is a view of the other sign."""
    part = torch.complex(rows(12, dtype=dtype), rows(12, seed=1, dtype=dtype)).conj().imag.unsqueeze(1)
    assert part.is_neg() and part.stride() == (2, 1)
    negated = part.detach().requires_grad_()
    out = gw.update_all(new_graph(), lambda e: {"m": e.src["h"]}, total, ndata={"h": negated})["h"]
    torch.testing.assert_close(out, summed(negated[SRC]))
    with torch.no_grad():
        torch.testing.assert_close(gw.pull(new_graph(), part, torch.ones(40, dtype=dtype)), summed(part[SRC]))
    (slope,) = torch.autograd.grad(out, negated, part)
    torch.testing.assert_close(slope, torch.zeros_like(part).index_add(0, SRC, part[DST]))
