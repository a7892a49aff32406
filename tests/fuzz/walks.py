"""Random message functions over broadcast shapes on generated walks, against plain torch.

    python tests/fuzz/walks.py --cases 20000 --seed 7
    python tests/fuzz/walks.py --cases 300 --edges 60000 --alone      # above the size from which walks are generated

A case is one message of one to three steps over fields of sources, destinations, edges and shared ones, of up to four
trailing dimensions of which each is 1, whole or missing, and its reduction: values of edges, a sum, mean, maximum,
minimum or softmax over in-edges. Many cases are compiled as one call. The reference gathers rows by ``index_select``
and reduces them by ``index_add`` and ``scatter_reduce``, in float64 under torch's autograd. What rounding may do is
measured: the reference runs again in the dtype of the case and with inputs moved in their last bits. A case that
differs has to differ again with other numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.written import scope_of

import graphweft as gw
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.ir.residency import Residency
from graphweft.nn import user_call
from graphweft.passes import pipeline
from graphweft.runtime import build
from graphweft.runtime.compile import Arguments, CompiledFunction

Dims = tuple[int, ...]
Graph = tuple[Tensor, Tensor, int, int]  # ends of the edges, numbers of sources and destinations
SIZES = (1, 2, 2, 3, 3, 4, 5, 7, 8, 8, 9, 16, 17)
WIDEST = 200  # numbers per edge
ENDS = ("src", "dst", "edge", "shared")
REDUCES = ("sum", "sum", "mean", "amax", "amin", "softmax", "softmax", "log_softmax", "logsumexp", "edge", "edge")
EPSILON = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}

_UNARY = (
    "(-({x}))", "torch.exp({x})", "torch.exp(-({x}).abs())", "torch.expm1({x})", "torch.log(({x}).abs() + 0.3)",
    "torch.log1p(({x}).abs())", "torch.sqrt(({x}).abs() + 0.1)", "torch.rsqrt(({x}).abs() + 0.4)",
    "torch.reciprocal(({x}).abs() + 0.5)", "({x}).square()", "({x}).abs()", "torch.sign({x})", "torch.floor({x})",
    "torch.ceil({x})", "torch.round({x})", "torch.sin({x})", "torch.cos({x})", "torch.erf({x})", "torch.relu({x})",
    "torch.sigmoid({x})", "torch.tanh({x})", "F.leaky_relu({x}, 0.2)", "F.elu({x})", "(({x}) * 1.5 - 0.5)",
    "({x}).clamp(-0.7, 0.9)", "(({x}) ** 3)",
)  # fmt: skip
_BINARY = (
    "({x} + {y})", "({x} - {y})", "({x} * {y})", "({x} * {y})", "({x} / (({y}).abs() + 0.5))",
    "((({x}).abs() + 0.3) ** {y})", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})",
    "torch.where({x} > {y}, {x}, 0.3 * {y})", "torch.where({x} <= {y}, {x} * {y}, {y})",
    "torch.where(({x} > 0.1) & ({y} < 0.5), {x}, {y})", "torch.where(({x} >= 0.2) | ~({y} < 0.1), {x}, {y} * {x})",
    "torch.where(({x} > 0.0) ^ ({y} > 0.0), {x} + {y}, {y})", "torch.where(({x}).round() == ({y}).round(), {x}, {y})",
    "torch.where(({x}).sign() != ({y}).sign(), {x}, {y})",
)  # fmt: skip


@dataclass
class Case:
    """One message; ``leaves``: trailing (shared: all) dimensions and the end of what is read, by name."""

    number: int
    message: str = ""
    score: str = ""
    scale: float = 1.0  # of the scores
    reduce: str = "sum"
    leaves: dict[str, tuple[str, Dims]] = field(default_factory=dict)

    def __str__(self) -> str:
        read = ", ".join(f"{name}: {end}{list(dims)}" for name, (end, dims) in self.leaves.items())
        return (
            f"case {self.number}: {self.reduce} of {self.message}{' by ' + self.score if self.score else ''} ({read})"
        )


class _Drawer:
    """Draws the expressions of one case."""

    def __init__(self, rng: random.Random, case: Case) -> None:
        self.rng, self.case = rng, case

    def leaf(self, dims: Dims) -> str:
        """Text of something that broadcasts to ``dims`` with rows before them."""
        rng, case = self.rng, self.case
        own = tuple(1 if rng.random() < 0.35 else n for n in dims)
        if case.leaves and rng.random() < 0.15:
            known = [name for name, (end, d) in case.leaves.items() if end != "shared" and _fits(d, dims)]
            if known:
                return _read(known[0], *case.leaves[known[0]])
        end = rng.choice(ENDS)
        name = f"f{case.number}_{len(case.leaves)}"
        if end == "shared":
            while own and own[0] == 1 and rng.random() < 0.7:
                own = own[1:]
            case.leaves[name] = (end, own)
            return f'P["{name}"]'
        ones = [axis for axis, n in enumerate(own) if n == 1]
        if ones and len(own) > 1 and rng.random() < 0.4:  # fewer dimensions than the message
            axis = rng.choice(ones)
            case.leaves[name] = (end, own[:axis] + own[axis + 1 :])
            return f"{_read(name, *case.leaves[name])}.unsqueeze({axis + 1})"
        case.leaves[name] = (end, own)
        return _read(name, end, own)

    def rowed(self, dims: Dims) -> str:
        """A leaf with rows, so that a message has one row per edge."""
        name, end = f"f{self.case.number}_{len(self.case.leaves)}", self.rng.choice(ENDS[:3])
        self.case.leaves[name] = (end, tuple(1 if self.rng.random() < 0.4 else n for n in dims))
        return _read(name, *self.case.leaves[name])

    def expression(self, dims: Dims) -> tuple[str, Dims]:
        """Text of one to three steps, and the dimensions that they were drawn for."""
        rng = self.rng
        x = self.leaf(dims)
        for _ in range(rng.choice((1, 2, 2, 3))):
            draw = rng.random()
            if draw < 0.55:
                y = self.leaf(dims)
                x, y = (x, y) if rng.random() < 0.5 else (y, x)
                x = rng.choice(_BINARY).format(x=x, y=y)
            elif draw < 0.85:
                x = rng.choice(_UNARY).format(x=x)
            else:
                x, dims = self.moved(x, dims)
        return x, dims

    def moved(self, x: str, dims: Dims) -> tuple[str, Dims]:
        """A sum over an axis, or a rearrangement, of all of ``dims``."""
        rng, whole = self.rng, f"({x} + {self.rowed(dims)}).expand(-1, {', '.join(map(str, dims))})"
        axis = rng.randrange(len(dims))
        kind = rng.choice(("sum", "sum", "kept", "mean", "norm", "transpose", "flatten", "cat", "slice"))
        if kind in ("sum", "flatten", "transpose") and len(dims) == 1:
            kind = "kept"
        one = (*dims[:axis], 1, *dims[axis + 1 :])
        if kind == "sum":
            return f"({x} + {self.leaf(dims)}).sum({axis - len(dims)})", dims[:axis] + dims[axis + 1 :]
        if kind == "kept":
            return f"({whole}).sum({axis + 1}, keepdim=True)", one
        if kind == "mean":
            return f"({whole}).mean({axis + 1}, keepdim=True)", one
        if kind == "norm":
            return f"({whole}).norm(dim={axis + 1}, keepdim=True)", one
        if kind == "transpose":
            return f"({whole}).transpose(-1, -2)", (*dims[:-2], dims[-1], dims[-2])
        if kind == "flatten":
            return f"({whole}).flatten(-2)", (*dims[:-2], dims[-2] * dims[-1])
        if kind == "cat":
            joined = (*dims[:axis], 2 * dims[axis], *dims[axis + 1 :])
            return f"torch.cat([{whole}, -({whole})], {axis + 1})", joined
        half = (dims[axis] + 1) // 2
        at = ", ".join([":"] * (axis + 1))
        return f"({whole})[{at}, :{half}]", (*dims[:axis], half, *dims[axis + 1 :])


def _fits(dims: Dims, wide: Dims) -> bool:
    return len(dims) == len(wide) and all(n in (1, m) for n, m in zip(dims, wide, strict=True))


def _read(name: str, end: str, dims: Dims) -> str:
    where = {"src": "src", "dst": "dst", "edge": "data"}[end]
    return f'edges.{where}["{name}"]'


def draw_case(seed: int, number: int) -> Case:
    """The case ``number`` of ``seed``."""
    rng = random.Random(seed * 1_000_003 + number)
    while True:
        dims = tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 2, 3, 3, 3, 4, 4))))
        if 1 < prod(dims) <= WIDEST:
            break
    case = Case(number, reduce=rng.choice(REDUCES))
    drawer = _Drawer(rng, case)
    case.message, dims = drawer.expression(dims)
    case.message = f"({case.message} + {drawer.rowed(dims)})"
    if case.reduce in ("softmax", "log_softmax"):
        if rng.random() < 0.5:
            dims = (*dims[:-1], 1)
        score = drawer.leaf(dims)
        for _ in range(rng.choice((0, 1, 1))):
            score = rng.choice(_BINARY[:4]).format(x=score, y=drawer.leaf(dims))
        case.scale = rng.choice((1.0, 1.0, 30.0, 1e3, 1e4))
        case.score = f"({score} + {drawer.rowed(dims)}) * {case.scale}"
    return case


def texts(cases: list[Case]) -> str:
    """``message`` and ``reduce`` of all cases together."""
    sent = [f'"m{c.number}": {c.message}' for c in cases]
    sent += [f'"s{c.number}": {c.score}' for c in cases if c.score]
    made = []
    for c in cases:
        box = f'nodes.mailbox["m{c.number}"]'
        weights = {"softmax": "torch.softmax", "log_softmax": "F.log_softmax"}.get(c.reduce)
        if weights:
            made.append(f'"o{c.number}": ({weights}(nodes.mailbox["s{c.number}"], 1) * {box}).sum(1)')
        elif c.reduce == "logsumexp":
            made.append(f'"o{c.number}": torch.logsumexp({box}, 1)')
        elif c.reduce != "edge":
            made.append(f'"o{c.number}": {box}.{c.reduce}(1)')
    return (
        "def message(edges):\n    return {" + ",\n        ".join(sent) + "}\n\n"
        "def reduce(nodes):\n    return {" + ",\n        ".join(made) + "}\n"
    )


def reference(case: Case, graph: Graph, leaves: dict[str, Tensor]) -> Tensor:
    """The case's result in plain torch."""
    src, dst, _, rows = graph

    def at(end: str) -> dict[str, Tensor]:
        ids = {"src": src, "dst": dst}.get(end)
        mine = {n: leaves[n] for n, (e, _) in case.leaves.items() if e == end}
        return mine if ids is None else {n: x.index_select(0, ids) for n, x in mine.items()}

    scope = {"torch": torch, "F": F, "P": at("shared")}
    scope["edges"] = SimpleNamespace(src=at("src"), dst=at("dst"), data=at("edge"))
    message = eval(case.message, scope)
    if case.reduce == "edge":
        return message
    if case.score:
        weights = _softmax(eval(case.score, scope), dst, rows, case.reduce == "log_softmax")
        return _sum(weights * message, dst, rows)
    if case.reduce == "logsumexp":
        top = _extremum(message.detach(), dst, rows, "amax")
        total = _sum(torch.exp(message - top[dst]), dst, rows)
        return torch.where(total > 0, top + torch.log(torch.where(total > 0, total, 1.0)), 0.0)
    if case.reduce in ("amax", "amin"):
        return _extremum(message, dst, rows, case.reduce)
    total = _sum(message, dst, rows)
    counts = torch.bincount(dst, minlength=rows).clamp(min=1).view(-1, *([1] * (message.dim() - 1)))
    return total / counts if case.reduce == "mean" else total


def _sum(x: Tensor, dst: Tensor, rows: int) -> Tensor:
    return x.new_zeros((rows, *x.shape[1:])).index_add(0, dst, x)


def _extremum(x: Tensor, dst: Tensor, rows: int, kind: str) -> Tensor:
    index = dst.view(-1, *([1] * (x.dim() - 1))).expand_as(x)
    return x.new_zeros((rows, *x.shape[1:])).scatter_reduce(0, index, x, kind, include_self=False)


def _softmax(score: Tensor, dst: Tensor, rows: int, log: bool) -> Tensor:
    shifted = score - _extremum(score.detach(), dst, rows, "amax")[dst]
    total = _sum(torch.exp(shifted), dst, rows)[dst]
    return shifted - torch.log(total) if log else torch.exp(shifted) / total


@dataclass
class Tally:
    """What came of many cases; ``written``: they are IR from the start, not recorded functions."""

    written: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    walks: int = 0


def draw_graph(rng: random.Random, edges: int) -> Graph:
    """Random edges with a hub on either side, loops, parallel edges, and nodes without edges; at times bipartite."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    nodes = max(4, edges // rng.choice((3, 6, 12)))
    square = rng.random() < 0.75
    sizes = (nodes, nodes) if square else (nodes, max(2, nodes // 2))
    src, dst = (torch.randint(max(1, n - 2), (edges,), generator=generator) for n in sizes)
    hub = rng.choice((0, 0, edges // 3))
    dst[:hub], src[edges - hub :] = 0, 1
    return src, dst, *sizes


def run_cases(
    cases: list[Case], graph: Graph, dtype: torch.dtype, tally: Tally, draws: int = 0
) -> list[tuple[Case, str]]:
    """Runs cases as one call and counts what came of them; those that differ, and how."""
    leaves = _draw_leaves(cases, graph, dtype, draws)
    execute = _execute_written if tally.written else _execute
    told, outputs, gradients, walks = execute(cases, graph, leaves)
    if told and len(cases) > 1:  # which of them
        return [found for case in cases for found in run_cases([case], graph, dtype, tally, draws)]
    tally.walks += walks
    differing = []
    for case in cases:
        if told:
            tally.counts["fell back"] += 1
            tally.failures.append(f"{case}: {told}")
            continue
        mine = {"out": outputs[case.number], **{n: gradients[n] for n in case.leaves}}
        found = _compare(case, graph, {n: leaves[n] for n in case.leaves}, mine, dtype)
        if found.startswith("differs"):
            differing.append((case, found))
        else:
            tally.counts[found] += 1
    return differing


def _draw_leaves(cases: list[Case], graph: Graph, dtype: torch.dtype, draws: int) -> dict[str, Tensor]:
    src, _, sources, rows = graph
    counts = {"src": (sources,), "dst": (rows,), "edge": (len(src),), "shared": ()}
    leaves = {}
    for case in cases:
        generator = torch.Generator().manual_seed(case.number * 31 + draws)
        for name, (end, dims) in case.leaves.items():
            drawn = torch.randn((*counts[end], *dims), generator=generator, dtype=torch.float64) * 0.8
            leaves[name] = drawn.to(dtype).requires_grad_()
    return leaves


def _execute_written(
    cases: list[Case], graph: Graph, leaves: dict[str, Tensor]
) -> tuple[str, dict[int, Tensor], dict[str, Tensor], int]:
    """As :func:`_execute`, from IR."""
    src, dst, sources, rows = graph
    g = gw.Graph(src, dst, num_nodes=rows if sources == rows else (sources, rows))
    ends = {name: end for case in cases for name, (end, _) in case.leaves.items()}
    rests = {"src": Residency.SRC, "dst": Residency.DST, "edge": Residency.EDGE, "shared": Residency.SHARED}

    def describe(b: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
        graph_ = inputs["graph"]
        made = {}
        for c in cases:
            scope = scope_of(b, graph_, {n: (end, inputs[n]) for n, (end, _) in c.leaves.items()})
            message = eval(c.message, scope)
            if c.score:
                score = eval(c.score, scope).value
                weights = b.add(Op.EDGE_SOFTMAX, graph_, score, log=c.reduce == "log_softmax")
                message = message * type(message)(b, weights)
            attrs = {"kind": {"amax": "max", "amin": "min", "mean": "mean"}.get(c.reduce, "sum")}
            attrs |= {"ties": "split"} if c.reduce in ("amax", "amin") else {}
            edge = c.reduce == "edge"
            made[f"o{c.number}"] = message.value if edge else b.add(Op.REDUCE, graph_, message.value, **attrs)
        return made

    function = CompiledFunction(describe)
    fields = {n: (x, rests[ends[n]]) for n, x in leaves.items()}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = function(Arguments(g, None, {}, None, 0, True, fields))
        outputs = {c.number: made[f"o{c.number}"] for c in cases}
        total = sum((x * _cotangent(c, x)).sum() for c, x in outputs.items())
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    texts_ = [str(w.message) for w in told if issubclass(w.category, gw.FallbackWarning | gw.errors.CertificateWarning)]
    walks = sum(len(plan.walks) for plan in function.plans())
    return "; ".join(texts_), outputs, dict(zip(leaves, found, strict=True)), walks


def _execute(
    cases: list[Case], graph: Graph, leaves: dict[str, Tensor]
) -> tuple[str, dict[int, Tensor], dict[str, Tensor], int]:
    """Warnings, outputs by case, gradients by name, and how many walks were generated."""
    src, dst, sources, rows = graph
    scope: dict[str, Any] = {"torch": torch, "F": F}
    ends: dict[str, dict[str, Tensor]] = {end: {} for end in ENDS}
    for case in cases:
        for name, (end, _) in case.leaves.items():
            ends[end][name] = leaves[name]
    scope["P"] = ends["shared"]
    whole = sources == rows
    g = gw.Graph(src, dst, num_nodes=rows) if whole else gw.Graph(src, dst, num_nodes=(sources, rows))
    if whole:
        ndata: dict[str, object] = {**ends["src"], **ends["dst"]}
    else:
        ndata = {n: (x, torch.zeros(rows, *x.shape[1:], dtype=x.dtype)) for n, x in ends["src"].items()}
        ndata |= {n: (torch.zeros(sources, *x.shape[1:], dtype=x.dtype), x) for n, x in ends["dst"].items()}
    edges_only = [c for c in cases if c.reduce == "edge"]
    others = [c for c in cases if c.reduce != "edge"]
    outputs: dict[int, Tensor] = {}
    with warnings.catch_warnings(record=True) as told, user_call.observing() as seen:
        warnings.simplefilter("always")
        if others:
            exec(compile(texts(others), "<fuzzed>", "exec"), scope)
            made = gw.update_all(g, scope["message"], scope["reduce"], ndata=ndata, edata=ends["edge"])
            outputs |= {c.number: made[f"o{c.number}"] for c in others}
        if edges_only:
            exec(compile(texts(edges_only), "<fuzzed>", "exec"), scope)
            made = gw.apply_edges(g, scope["message"], ndata=ndata, edata=ends["edge"])
            outputs |= {c.number: made[f"m{c.number}"] for c in edges_only}
        total = sum((x * _cotangent(c, x)).sum() for c, x in outputs.items())
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        plans = [p for o in seen if o.compiled is not None for p in o.compiled.form(g).plans()[-1:]]
    texts_ = [str(w.message) for w in told if issubclass(w.category, gw.FallbackWarning | gw.errors.CertificateWarning)]
    walks = sum(len(plan.walks) for plan in plans)
    return "; ".join(texts_), outputs, dict(zip(leaves, found, strict=True)), walks


def _cotangent(number: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


def _results(
    case: Case, graph: Graph, leaves: dict[str, Tensor], dtype: torch.dtype, times: float = 1.0
) -> dict[str, Tensor]:
    """Output and gradients; ``times``: gradients of so much of the loss, divided again, which rounds otherwise."""
    mine = {n: x.detach().to(dtype).requires_grad_() for n, x in leaves.items()}
    out = reference(case, graph, mine)
    total = (out * _cotangent(case.number, out.detach().to(next(iter(leaves.values())).dtype)).to(dtype)).sum() * times
    found = torch.autograd.grad(total, list(mine.values()), allow_unused=True, materialize_grads=True)
    return {"out": out.detach().double(), **{n: g.double() / times for n, g in zip(mine, found, strict=True)}}


def _compare(case: Case, graph: Graph, leaves: dict[str, Tensor], got: dict[str, Tensor], dtype: torch.dtype) -> str:
    """``same``, ``not finite``, or how the case differs."""
    epsilon = EPSILON[dtype]
    wanted = _results(case, graph, {n: x.detach().double() for n, x in leaves.items()}, torch.float64)
    runs = [_results(case, graph, leaves, dtype)]
    for k in range(3):
        generator = torch.Generator().manual_seed(k)
        moved = {}
        for n, x in leaves.items():
            sign = torch.randint(2, x.shape, generator=generator).double() * 2 - 1
            moved[n] = x.detach().double() * (1 + 8 * epsilon * sign)
        runs.append(_results(case, graph, moved, torch.float64, 1.0 + k))  # sums of equal terms all round one way
    judged, least = 0, 64 * epsilon * case.scale  # gradients of scores are differences of numbers times the scale
    order = 256 * max(1.0, len(graph[0]) / 700) ** 0.5  # roundings of long sums in another order walk at random
    for name, expected in wanted.items():
        mine = got[name].detach().double()
        if mine.shape != expected.shape:
            return f"differs: {name} has shape {tuple(mine.shape)}, expected {tuple(expected.shape)}"
        noise = torch.stack([(run[name] - expected).abs().nan_to_num(torch.inf) for run in runs]).amax(0)
        finite = expected.isfinite() & noise.isfinite()
        if not finite.any():
            continue
        judged += 1
        largest = torch.where(finite, expected.abs(), 0.0)
        row = largest.flatten(1).amax(1).view(-1, *([1] * (mine.dim() - 1))) if mine.dim() > 1 else largest.max()
        typical = torch.where(finite, noise, 0.0).max()
        allowed = least + 16 * noise + typical + order * epsilon * (row + 1e-3 * largest.max())
        apart = (mine - expected).abs().nan_to_num(torch.inf)
        wrong = finite & (apart > allowed)
        if wrong.any():
            share = float(wrong.double().mean())
            at = int(torch.where(wrong, apart - allowed, -1.0).argmax())
            return (
                f"differs: {name} in {share:.1%} of its elements, at {at} {mine.flatten()[at]:.6g} for "
                f"{expected.flatten()[at]:.6g}, allowed {allowed.expand_as(mine).flatten()[at]:.3g}"
            )
    return "same" if judged else "not finite"


def _runs(case: Case, graph: Graph) -> bool:
    """Whether plain torch runs the case at all: a step may name a dimension that the step before has summed away."""
    try:
        reference(case, graph, _draw_leaves([case], graph, torch.float32, 0))
    except (IndexError, RuntimeError):
        return False
    return True


def run(seed: int, numbers: range, tally: Tally, batch: int = 12, edges: int = 70) -> None:
    """Cases ``numbers`` of ``seed``, ``batch`` of them a call; what differs runs again, alone, with other numbers."""
    for first in range(numbers.start, numbers.stop, batch):
        rng = random.Random(seed * 7919 + first)
        cases = [draw_case(seed, n) for n in range(first, min(first + batch, numbers.stop))]
        for case in cases:
            if tally.written and case.reduce == "logsumexp":  # an operation of the front end
                case.reduce = "mean"
        graph = draw_graph(rng, rng.choice((edges // 2, edges, 10 * edges)) if edges < 1000 else edges)
        dtype = rng.choice((torch.float32, torch.float32, torch.float64))
        valid = [case for case in cases if _runs(case, graph)]
        tally.counts["refused by torch"] += len(cases) - len(valid)
        if not valid:
            continue
        cases = valid
        try:
            differing = run_cases(cases, graph, dtype, tally)
        except Exception as failure:  # whatever it is, it is a finding
            tally.failures.append(f"cases {first} to {cases[-1].number}: {type(failure).__name__}: {failure}")
            tally.counts["fails"] += len(cases)
            continue
        for case, found in differing:
            again = run_cases([case], graph, dtype, Tally(tally.written), draws=1)
            tally.counts["differs" if again else "tipped by rounding"] += 1
            if again:
                tally.failures.append(f"{dtype}, {len(graph[0])} edges, {case}: {found}; alone {again[0][1]}")


def main(given: list[str] | None = None) -> int:
    """Runs many cases and prints those that fail."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--edges", type=int, default=70, help="of a graph; large ones run at the usual threshold")
    parser.add_argument("--alone", action="store_true", help="one case a call")
    parser.add_argument("--written", action="store_true", help="as IR, without recording: three times as many a minute")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--flags", default="-O0", help="of the compiler; optimisation takes most of the time")
    arguments = parser.parse_args(given)
    tally, batch = Tally(arguments.written), 1 if arguments.alone else arguments.batch
    worth = 0 if arguments.edges < 1000 else pipeline.WORTH_A_KERNEL
    flags = tuple(arguments.flags if flag == "-O3" else flag for flag in build._FLAGS)
    patches = [mock.patch.object(pipeline, "WORTH_A_KERNEL", worth), mock.patch.object(build, "_FLAGS", flags)]
    if not worth:  # kernels of rows are not the matter
        patches.append(mock.patch.object(pipeline, "fuse_elementwise", lambda program, groups, *_: groups))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="graphweft-fuzz-"))
        for patch in (gw.config(cache_dir=folder), *patches):
            stack.enter_context(patch)
        for first in range(arguments.first, arguments.first + arguments.cases, batch):
            before = len(tally.failures)
            numbers = range(first, min(first + batch, arguments.first + arguments.cases))
            run(arguments.seed, numbers, tally, batch, arguments.edges)
            for failure in tally.failures[before:]:
                print(failure, flush=True)
            if numbers.stop // 100 > first // 100:
                print(f"... {sum(tally.counts.values())} cases, {dict(tally.counts)}", flush=True)
    print(f"seed {arguments.seed}: {sum(tally.counts.values())} cases, {dict(tally.counts)}, {tally.walks} walks")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
