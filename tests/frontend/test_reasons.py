"""Torch functions in messages and updates: compiled, or left as they stand with a reason in the user's words."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import random_edges

import graphweft as gw

EDGES = random_edges(20, 70, seed=3)
GRAPH = gw.Graph(EDGES.src, EDGES.dst, num_nodes=20)
H = torch.randn(20, 8, generator=torch.Generator().manual_seed(1))
W = torch.rand(70, 1, generator=torch.Generator().manual_seed(2))
BILINEAR, NORM, ATTENTION = nn.Bilinear(8, 8, 4), nn.BatchNorm1d(8), nn.MultiheadAttention(8, 2)
Code = Callable[[Any], Tensor]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


COMPILED: dict[str, Code] = {
    "dropout_of_zero": lambda e: torch.dropout(e.src["h"], 0.0, True),
    "dropout_in_evaluation": lambda e: torch.dropout(e.src["h"], 0.5, False),
    "bilinear": lambda e: BILINEAR(e.src["h"], e.dst["h"]),
    "ones": lambda e: torch.ones(e.batch_size(), 1),
    "zeros": lambda e: torch.zeros(e.batch_size(), 1) + e.data["w"],
    "number_of_edges": lambda e: e.src["h"].sum(0) / e.batch_size() + e.src["h"],
    "root_of_edges": lambda e: e.src["h"] / math.sqrt(e.batch_size()),
    "spread": lambda e: e.src["h"] / (e.src["h"].std(0) + 1),
    "variance": lambda e: e.src["h"] * e.src["h"].var(0),
}
LEFT: dict[str, tuple[Code, str]] = {
    "sort": (lambda e: e.src["h"].sort(0).values, "sort"),
    "convolution": (lambda e: F.conv1d(e.src["h"][:, None], torch.ones(1, 1, 3))[:, 0], "conv1d"),
    "scatter": (lambda e: torch.zeros(70, 8).scatter_add(0, torch.zeros(70, 8).long(), e.src["h"]), "scatter_add"),
    "kronecker": (lambda e: torch.kron(e.src["h"], torch.ones(1, 2)), "kron"),
    "attention": (lambda e: ATTENTION(e.src["h"], e.src["h"], e.src["h"])[0], "multi_head_attention"),
    "index_add": (lambda e: torch.zeros(70, 8).index_add(0, torch.arange(70), e.src["h"]), "index_add"),
    "own_function": (lambda e: Twice.apply(e.src["h"]), "autograd.Function"),  # type: ignore[no-untyped-call]
    "nonzero": (lambda e: e.src["h"][e.src["h"].isfinite().all(1).nonzero().flatten()], "depends on values"),
    "unique": (lambda e: e.src["h"] + torch.unique(e.src["h"]).numel(), "number"),
    "quantile": (lambda e: e.src["h"] - torch.quantile(e.src["h"], 0.5), "quantile"),
    "length": (lambda e: e.src["h"] * len(e.src["h"]), "depends on the number"),
    "item": (lambda e: e.src["h"] * e.src["h"].max().item(), "by item"),
    "numpy": (lambda e: torch.from_numpy(e.src["h"].detach().numpy() * 2), "by numpy"),
    "cumsum": (lambda e: e.src["h"].cumsum(0), "cumsum"),
    "least_squares": (
        lambda e: torch.linalg.lstsq(e.src["h"][:, :, None].detach(), e.dst["h"][:, :, None].detach()).solution[:, 0],
        "lstsq",
    ),
}
INTERNAL = re.compile(r"unknown line|\bz?s\d+\b|Sym|TrueDiv|proxy|Fake|functorch|RuntimeError|TypeError")


def run(code: Code, h: Tensor) -> Tensor:
    return gw.update_all(
        GRAPH,
        lambda edges: {"m": code(edges)},
        lambda nodes: {"h": nodes.mailbox["m"].sum(1)},
        ndata={"h": h},
        edata={"w": W},
    )["h"]


def check(code: Code) -> None:
    """Result and gradient are those of plain execution."""
    h = H.clone().requires_grad_()
    out = run(code, h)
    with gw.config(opt_level=0):
        expected = run(code, h)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    if expected.requires_grad:
        mine, theirs = (torch.autograd.grad(x.pow(2).sum(), h, materialize_grads=True)[0] for x in (out, expected))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles(name: str) -> None:
    check(COMPILED[name])  # a warning would be an error


@pytest.mark.parametrize("name", LEFT)
def test_the_reason_is_one_sentence_with_the_function_and_the_line(name: str) -> None:
    code, says = LEFT[name]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check(code)
    assert [w.category for w in told] == [gw.FallbackWarning]
    text = str(told[0].message)
    assert says in text and "\n" not in text
    assert re.search(r"\(\S*test_reasons.py:\d+\)$", text)
    assert not INTERNAL.search(text), text


@pytest.mark.parametrize("stage", ["message", "update"])
def test_batch_norm_over_messages_or_nodes(stage: str) -> None:
    ours, theirs = nn.BatchNorm1d(8), nn.BatchNorm1d(8)

    def layer(norm: nn.BatchNorm1d, h: Tensor) -> Tensor:
        def message(edges: Any) -> dict[str, Tensor]:
            return {"m": norm(edges.src["h"]) if stage == "message" else edges.src["h"]}

        def update(nodes: Any) -> dict[str, Tensor]:
            return {"h": norm(nodes.data["h"]) if stage == "update" else nodes.data["h"]}

        return gw.update_all(GRAPH, message, lambda n: {"h": n.mailbox["m"].sum(1)}, update, ndata={"h": h})["h"]

    for step in range(3):
        h = (H + step).requires_grad_()
        out = layer(ours, h)
        mine = torch.autograd.grad(out.pow(3).sum(), [h, *ours.parameters()])
        with gw.config(opt_level=0):
            expected = layer(theirs, h)
        wanted = torch.autograd.grad(expected.pow(3).sum(), [h, *theirs.parameters()])
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
        for one, two in zip(mine, wanted, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3 * float(two.abs().max()))
        for name, buffer in ours.named_buffers():
            torch.testing.assert_close(buffer, theirs.get_buffer(name))


def test_torch_dropout_draws_and_scales() -> None:
    h = torch.ones(20, 8)
    out = run(lambda e: torch.dropout(e.src["h"], 0.5, True), h)
    again = run(lambda e: torch.dropout(e.src["h"], 0.5, True), h)
    degrees = GRAPH.in_degrees().float()
    assert set((out % 2).flatten().tolist()) == {0.0} and not torch.equal(out, again)
    assert abs(float(out.sum()) - float(degrees.sum() * 8)) < 0.3 * float(degrees.sum() * 8)
