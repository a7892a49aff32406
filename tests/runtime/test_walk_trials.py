"""Generated walks are tried before they are used: broken emitters, by way of calls that must stay right."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft.codegen import edge_cpp, edge_nest
from graphweft.passes import pipeline
from graphweft.passes.certificate import MEMORY
from graphweft.runtime import build, edge_kernels

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")

NODES, EDGES = 7, 40


@pytest.fixture(autouse=True)
def _fresh_cache_and_kernels_for_small_graphs(monkeypatch, tmp_path):
    """Unoptimised kernels in a folder of their own, and no verdicts from before."""
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)
    monkeypatch.setattr(build, "_FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in build._FLAGS))
    MEMORY.clear()
    with gw.config(cache_dir=tmp_path):
        yield
    MEMORY.clear()


def two_sums() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output and the gradients of a product whose operands repeat along different axes; and what they should be."""
    generator = torch.Generator().manual_seed(3)
    src, dst = (torch.randint(NODES, (EDGES,), generator=generator) for _ in range(2))
    x = torch.rand(EDGES, 4, 1, 5, generator=generator, requires_grad=True)
    y = torch.rand(NODES, 1, 3, 5, generator=generator, requires_grad=True)
    graph = gw.Graph(src, dst, num_nodes=NODES)
    # functions of their own in every call: nothing compiled is reused
    out = gw.apply_edges(graph, lambda e: {"m": e.data["x"] * e.src["y"]}, ndata={"y": y}, edata={"x": x})["m"]
    seed = torch.rand(out.shape, generator=generator)
    dx, dy = torch.autograd.grad((out * seed).sum(), (x, y))
    torch.testing.assert_close(out, x * y[src])
    torch.testing.assert_close(dx, (seed * y[src]).sum(2, keepdim=True))
    torch.testing.assert_close(dy, torch.zeros_like(y).index_add(0, src, (seed * x).sum(1, keepdim=True)))
    return out, seed, dx, dy


def test_sums_over_different_axes_in_one_walk():
    two_sums()


@pytest.mark.parametrize("fault", ["elements written over", "row sums unwritten", "values of edges unwritten"])
def test_a_faulty_kernel_is_left_out_with_one_warning(fault, monkeypatch):
    if fault == "elements written over":  # whole vectors, in whatever order
        monkeypatch.setattr(edge_cpp._Loop, "ascends", property(lambda self: True))
    elif fault == "row sums unwritten":
        per_row = edge_cpp._Kernel._per_row
        monkeypatch.setattr(
            edge_cpp._Kernel, "_per_row", lambda self, rows, what: "" if what == "finish" else per_row(self, rows, what)
        )
    else:
        feed = edge_cpp._Kernel._feed
        monkeypatch.setattr(
            edge_cpp._Kernel,
            "_feed",
            lambda self, k, value, loop: [] if self.nest.sinks[k].kind == "edge" else feed(self, k, value, loop),
        )
    with pytest.warns(gw.errors.CertificateWarning, match="walks over edges are not used") as told:
        two_sums()
    assert len([w for w in told if "not used" in str(w.message)]) <= 2  # one a plan: forward alone, and with gradients


def test_without_certificates_the_fault_shows(monkeypatch):
    """The trials are what finds it."""
    monkeypatch.setattr(edge_cpp._Loop, "ascends", property(lambda self: True))
    with gw.config(certify=False), pytest.raises(AssertionError):
        two_sums()


def test_a_verdict_is_remembered_across_processes(monkeypatch):
    tried = []
    difference = edge_kernels.difference
    monkeypatch.setattr(edge_kernels, "difference", lambda *given: (tried.append(1), difference(*given))[1])
    two_sums()
    assert tried
    MEMORY.clear()  # as a new process has it; the file in the cache folder stays
    tried.clear()
    two_sums()
    assert not tried


def test_a_nest_that_would_miss_elements_is_an_error(monkeypatch):
    nests = []
    described = edge_nest._check
    monkeypatch.setattr(edge_nest, "_check", lambda nest: (nests.append(nest), described(nest))[1])
    two_sums()
    (nest,) = {nest for nest in nests if len(nest.sinks) == 2}
    number, step = next((k, s) for k, s in enumerate(nest.steps) if s.kind == "sum")
    short = dataclasses.replace(step, dims=(*step.dims[:-1], step.dims[-1] - 1))
    steps = (*nest.steps[:number], short, *nest.steps[number + 1 :])
    with pytest.raises(gw.errors.IRError, match=rf"walk: expected .* for t{number} = sum"):
        described(dataclasses.replace(nest, steps=steps))
    with pytest.raises(gw.errors.IRError, match="walk: expected loops over"):
        edge_cpp._Loop((4, 3), (), []).place_in((4, 2))


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_softmax_keeps_the_digits_of_large_logits(scale, log):
    """As torch's own in float32, forward and backward, for scores of sources and destinations."""
    generator = torch.Generator().manual_seed(5)
    src, dst = (torch.randint(NODES, (EDGES,), generator=generator) for _ in range(2))
    a, b = (torch.randn(NODES, 2, generator=generator) for _ in range(2))
    h = torch.randn(NODES, 2, 3, generator=generator)
    # scores that are exact in float32, a few apart: their softmax is far from one-hot
    a, b = (scale + (x * 2).round() / 2 if scale > 1 else x for x in (a, b))
    leaves = [x.requires_grad_() for x in (a, b, h)]
    softmax = torch.log_softmax if log else torch.softmax

    def message(e):
        return {"s": e.src["a"] + e.dst["b"], "h": e.src["h"]}

    def reduce(n):
        return {"out": (softmax(n.mailbox["s"], 1).unsqueeze(-1) * n.mailbox["h"]).sum(1)}

    graph = gw.Graph(src, dst, num_nodes=NODES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = gw.update_all(graph, message, reduce, ndata={"a": a, "b": b, "h": h})["out"]
    seed = torch.randn(out.shape, generator=generator)
    found = [out, *torch.autograd.grad((out * seed).sum(), leaves)]
    double = [x.detach().double().requires_grad_() for x in leaves]
    rows = []
    for node in range(NODES):
        mine = src[dst == node]
        weights = softmax(double[0][mine] + double[1][node], 0)
        rows.append((weights.unsqueeze(-1) * double[2][mine]).sum(0))
    expected = torch.stack(rows)
    wanted = [expected, *torch.autograd.grad((expected * seed).sum(), double)]
    for got, value in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), value.detach(), rtol=2e-5, atol=2e-5)


def test_long_sums_of_an_edge_are_right_enough_to_be_used():
    """Pieces are added up: 4,096 roundings of one number on another showed in what follows from the sum."""
    nodes, width = 24, 65_537
    torch.manual_seed(0)
    graph = gw.Graph(torch.randint(0, nodes, (80,)), torch.randint(0, nodes, (80,)), num_nodes=nodes)
    x = torch.randn(nodes, width, requires_grad=True)

    def message(edges):
        return {"m": edges.src["h"] * torch.exp(-((edges.src["h"] - edges.dst["h"]) ** 2).mean(1, keepdim=True))}

    def total(x):  # a warning would be an error
        return gw.update_all(graph, message, lambda n: {"h": n.mailbox["m"].sum(1)}, ndata={"h": x})["h"]

    (slope,) = torch.autograd.grad(total(x).sum(), x)
    src, dst = graph.edges()
    exact = x.detach().double().requires_grad_()
    near = torch.exp(-((exact[src] - exact[dst]) ** 2).mean(1, keepdim=True))
    (wanted,) = torch.autograd.grad((exact[src] * near).sum(), exact)
    torch.testing.assert_close(slope.double(), wanted, rtol=1e-4, atol=1e-5)
