"""Random user functions on random graphs under random subsets of passes, against their plain execution.

    python -m tests.fuzz.user_functions --seed 7 --programs 1000

A program is drawn by ``functions.py`` and runs several times, each time on another graph with other passes left out:
those are the cases. Outputs and all gradients are compared with the reference executor's in float64. Single precision
takes the fused kernels; with ``kernels`` both precisions take those that are generated for large graphs, and the last
line tells how many programs and cases had some, forward and backward. A case in which every pass ran under the
certificates fails if they refuse anything. What fails has to fail again with other numbers: rounding may tip a
comparison.

    python -m tests.fuzz.user_functions --kernels --seed 7 --programs 1000
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.functions import Source, draw
from zoo import BIPARTITE, SQUARE

import graphweft as gw
from graphweft.frontend.call import Call, make_call
from graphweft.frontend.reference import run_reference
from graphweft.nn import user_call
from graphweft.passes import pipeline

VARIANTS = 5  # cases of a program
TOLERANCE = {torch.float64: 1e-8, torch.float32: 3e-3}
KINDS = ("square",) * 5 + ("typed",) * 2 + ("bipartite",) * 2
_PHASES = {pipeline.FORWARD: "forward", pipeline.BACKWARD: "backward"}
LARGEST = 400  # edges: the reference executor runs degree by degree


@dataclass(frozen=True)
class Variant:
    """How one case is run."""

    graph: gw.Graph
    name: str
    dtype: torch.dtype
    level: int
    disabled: tuple[str, ...]
    certify: bool
    kernels: bool

    def __str__(self) -> str:
        off = ",".join(self.disabled) or "nothing"
        return f"{self.name}, {self.dtype}, level {self.level}, without {off}{', kernels' if self.kernels else ''}"


@dataclass
class Tally:
    """What came of many cases; ``kernels``: cases with a generated kernel over edges, by phase, and programs."""

    counts: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def graph_of(rng: random.Random, kind: str) -> tuple[gw.Graph, str]:
    """A graph and its name."""
    if kind == "typed":
        return _typed_graph(rng), "typed"
    case = rng.choice([c for c in (BIPARTITE if kind == "bipartite" else SQUARE) if c.num_edges <= LARGEST])
    return case.graph(), case.name


def _typed_graph(rng: random.Random) -> gw.Graph:
    """Four relations over two or three node types, one of them at times empty."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    sizes = {name: rng.randrange(1, 9) for name in ["a", "b", "c"][: rng.choice([2, 3])]}
    relations = {}
    for i in range(4):
        src, dst = rng.choice(list(sizes)), rng.choice(list(sizes))
        count = rng.choice([0, 1, 5, 20]) if i else 6
        ends = (torch.randint(sizes[end], (count,), generator=generator) for end in (src, dst))
        relations[src, f"r{i}", dst] = tuple(ends)
    return gw.Graph.hetero(relations, sizes)


def variants(rng: random.Random, kind: str, kernels: bool) -> list[Variant]:
    """The cases of one program: all passes under certificates, a single one left out, and random subsets."""
    made = []
    optional = sorted(pipeline.OPTIONAL - ({"edges"} if kernels else set()))
    for i in range(VARIANTS):
        graph, name = graph_of(rng, kind)
        subset = [n for n in optional if rng.random() < rng.choice([0.1, 0.5])] if i > 1 else []
        disabled = (rng.choice(optional),) if i == 1 else tuple(subset)
        single = rng.random() < (0.6 if kernels else 0.3)
        level = 3 if i == 0 or kernels else rng.choice([1, 2, 3, 3, 3])
        dtype = torch.float32 if single else torch.float64
        made.append(Variant(graph, name, dtype, level, disabled, i == 0, kernels))
    return made


def run_program(seed: int, number: int, tally: Tally, kernels: bool = False) -> None:
    """Draws the program ``number`` of ``seed`` and adds what its cases came to."""
    rng = random.Random(seed * 1_000_003 + number)
    kind = rng.choice(KINDS)
    source = draw(rng, kind)
    generated = set[str]()
    for variant in variants(rng, kind, kernels):
        with user_call.observing() as seen:
            found = [run_case(source, variant, f"<{seed}:{number}>", 0)]
        phases = _generated(seen, variant)
        tally.kernels.update(f"cases {phase}" for phase in phases)
        generated |= phases
        if found[0][0] == "differs":
            found.append(run_case(source, variant, f"<{seed}:{number}>", 1))
        what, detail = found[-1]
        tally.counts[what if len(found) == 1 or what != "same" else "tipped by rounding"] += 1
        if what in ("differs", "fails"):
            tally.failures.append(f"program {number} of seed {seed} on {variant}: {detail}\n{source.text}")
    tally.kernels.update(f"programs {phase}" for phase in generated)


def _generated(seen: list[user_call.Observed], variant: Variant) -> set[str]:
    """Phases of the case's program that ran on generated kernels over edges."""
    plans = [
        plan
        for observed in seen
        if observed.compiled is not None
        for plan in observed.compiled.form(variant.graph).plans()[-1:]
    ]
    return {_PHASES[plan.compiled.phase[result]] for plan in plans for result in plan.walks}


def run_case(source: Source, variant: Variant, name: str, draws: int) -> tuple[str, str]:
    """``same``, ``fell back``, ``not finite``, ``differs`` or ``fails``, and why."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            expected = _run(run_reference, source, variant, name, draws, torch.float64)
        except gw.errors.GraphWeftError as failure:
            return "fails", f"the reference executor: {failure}"
        if not all(bool(x.isfinite().all()) for x in expected.values()):
            return "not finite", ""
        told.clear()
        settings = {"opt_level": variant.level, "disabled_passes": ",".join(variant.disabled)}
        worth = 0 if variant.kernels else pipeline.WORTH_A_KERNEL
        with gw.config(certify=variant.certify, **settings), mock.patch.object(pipeline, "WORTH_A_KERNEL", worth):
            try:
                got = _run(user_call.execute, source, variant, name, draws, variant.dtype)
            except Exception as failure:  # whatever it is, it is a finding
                return "fails", f"{type(failure).__name__}: {failure}"
        refused = [str(item.message) for item in told if issubclass(item.category, gw.errors.CertificateWarning)]
        fell_back = any(issubclass(item.category, gw.FallbackWarning) for item in told)
    if refused:
        return "fails", refused[0]
    for key, wanted in expected.items():
        mine = got[key].double()
        allowed = TOLERANCE[variant.dtype] * max(1.0, float(wanted.abs().max()) if wanted.numel() else 0.0)
        if mine.shape != wanted.shape:
            return "differs", f"{key}: expected {tuple(wanted.shape)}, got {tuple(mine.shape)}"
        apart = float((mine - wanted).abs().nan_to_num(torch.inf).max()) if wanted.numel() else 0.0
        if apart > allowed:
            return "differs", f"{key}: by {apart:.3g}, allowed are {allowed:.3g}"
    return "fell back" if fell_back else "same", ""


def _run(
    executor: object, source: Source, variant: Variant, name: str, draws: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Outputs, and gradients of all that is read, under output gradients drawn by place."""
    call, leaves = _call(source, variant, name, draws, dtype)
    outputs = executor(call)  # type: ignore[operator]
    generator = torch.Generator().manual_seed(11 + draws)
    total = torch.zeros((), dtype=dtype)
    for value in outputs.values():
        total = total + (value * torch.randn(value.shape, generator=generator, dtype=torch.float64).to(dtype)).sum()
    found = dict(outputs)
    if leaves and total.requires_grad:
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        found |= {f"gradient of {key}": x for key, x in zip(leaves, gradients, strict=True)}
    else:
        found |= {f"gradient of {key}": torch.zeros_like(x) for key, x in leaves.items()}
    return {key: x.detach() for key, x in found.items()}


def _call(
    source: Source, variant: Variant, name: str, draws: int, dtype: torch.dtype
) -> tuple[Call, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(draws)
    graph = variant.graph
    leaves: dict[str, Tensor] = {}

    def leaf(key: str, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * 0.8
        leaves[key] = drawn.to(variant.dtype).to(dtype).requires_grad_()  # both executors start from the same numbers
        return leaves[key]

    def node(key: str, *dims: int) -> object:
        if graph.is_square:
            return leaf(key, graph.num_dst, *dims)
        return leaf(f"source {key}", graph.num_src, *dims), leaf(f"destination {key}", graph.num_dst, *dims)

    fields: dict[str, dict[str, object]] = {
        "ndata": {key: node(key, *dims) for key, dims in source.node.items()},
        "edata": {key: leaf(key, graph.num_edges, *dims) for key, dims in source.edge.items()},
        "ntype_data": {key: leaf(key, len(graph.node_types), *dims) for key, dims in source.ntype.items()},
        "etype_data": {key: leaf(key, len(graph.relations), *dims) for key, dims in source.etype.items()},
    }
    if source.tables:
        fields["etype_data"]["id"] = torch.arange(len(graph.relations))
    scope: dict[str, object] = {"torch": torch, "F": F, "math": math, "__name__": "fuzzed"}
    scope |= {key: leaf(key, *shape) for key, shape in source.captured.items()}
    exec(compile(source.text, name, "exec"), scope)
    functions = [scope["message"], scope["reduce"], *([scope["update"]] if source.updates else [])]
    return make_call(graph, *functions, **fields), leaves  # type: ignore[arg-type]


def main(given: list[str] | None = None) -> int:
    """Runs many programs and tells what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--kernels", action="store_true", help="with generated kernels")
    arguments = parser.parse_args(given)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="graphweft-fuzz-") as folder, gw.config(cache_dir=folder):
        for number in range(arguments.first, arguments.first + arguments.programs):
            before = len(tally.failures)
            run_program(arguments.seed, number, tally, arguments.kernels)
            for failure in tally.failures[before:]:
                print(failure, flush=True)
    kernels = dict(sorted(tally.kernels.items()))
    print(f"seed {arguments.seed}: {sum(tally.counts.values())} cases, {dict(tally.counts)}, kernels in {kernels or 0}")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
