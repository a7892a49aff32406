"""Trials of generated walks: each runs on small graphs before a plan may use it.

Comes in: a group of values over edges and the kernel made for it. Goes out: nothing, or how the kernel differs. The
group is cut out of its program: what it reads becomes an input of its own, so walks of any program can be tried,
forward and backward, over a graph and over its reverse. Kernels run in their own dtype, on memory filled with NaN; the
same values are computed by the interpreter in float64. Numbers are multiples of 1/8, exact in both. A difference
counts where it exceeds the rounding that shaken runs (``passes/rounding.py``) and plain torch in the kernel's dtype
show. Called by ``edge_kernels.py``, which remembers verdicts as certificates are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.pattern import end_of
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import TensorType
from graphweft.passes.groups import EdgeWalk
from graphweft.passes.rounding import RUNS, allowed, noise, shaken
from graphweft.passes.trials import Doubled, Shape, Trial, graph_size, plain_torch

# (the graph whose rows are walked, what is read, memory of a shape and dtype) -> results
Kernel = Callable[[Graph, Sequence[Tensor], Callable[..., Tensor]], list[Tensor]]

_MOST_ELEMENTS = 1 << 21  # of the widest value on all edges of a graph
_CELLS = 100_000  # numbers from which a walk is run in several pieces, so that rows are cut
_SHAKE = {torch.float32: 2.0**-20, torch.float64: 2.0**-48}
_UNITS = {torch.float32: 2.0**-20, torch.float64: 2.0**-48}  # of a row's largest number: always rounding
_TINY = 1e-37  # kernels give 0 for what is less
_FAILURES = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


def difference(kernel: Kernel, group: EdgeWalk, read: Sequence[Value], width: int) -> str | None:
    """How ``kernel`` differs from the values of ``group`` on some small graph; None where it does not.

    Args:
        kernel: The generated walk.
        group: What it computes.
        read: What it is given, in order.
        width: Numbers that it computes for an edge.
    """
    cut = WalkProgram(group, read)
    with plain_torch(), torch.no_grad():
        for shape, seed in _shapes(cut, width):
            found = _tried(kernel, cut, shape, seed)
            # once more with other numbers: rounding may tip a comparison once, a wrong kernel fails again
            if found is not None and (found := _tried(kernel, cut, shape, seed + 1)) is not None:
                return f"{found} on the graph {shape.graph!r}"
    return None


class WalkProgram:
    """A group as a program of its own.

    Attributes:
        program: Its outputs are the group's results; the inputs are the graph, and all that the group reads.
        double: The same in float64.
        turned: Whether the reverse of the graph is walked.
        read: Inputs in the order in which the kernel takes them.
        real: The dtype of the kernel's numbers.
    """

    def __init__(self, group: EdgeWalk, read: Sequence[Value]) -> None:
        builder, results = Builder(), (group.result, *group.taps)
        base = end_of(group.walk)[0]
        inputs = [builder.add(Op.GRAPH, name="graph", type=base.struct)]
        new: dict[Value, Value] = {base: inputs[0]}

        def outside(value: Value) -> Value:
            if value in new:
                return new[value]
            if value.op is Op.REVERSE:
                return builder.like(value, (outside(value.inputs[0]),))
            if value.op is Op.CONST:
                return value
            inputs.append(builder.add(Op.INPUT, name=f"in{len(inputs)}", type=value.type))
            return inputs[-1]

        for value in group.chain:
            for operand in value.inputs:
                new[operand] = outside(operand)
            new[value] = builder.like(value, tuple(new[o] for o in value.inputs))
        outputs = tuple((f"out{k}", new[v]) for k, v in enumerate(results))
        self.read = tuple(new[v] for v in read)
        self.program = Program(tuple(inputs), outputs)
        self.turned, self.real = end_of(group.walk)[1], group.result.tensor.dtype
        self.double = Doubled()

    @property
    def widest(self) -> int:
        """Numbers per row of the widest value."""
        return max(prod(v.tensor.dims) for v in self.program.values if isinstance(v.type, TensorType))


def _shapes(cut: WalkProgram, width: int) -> Iterator[tuple[Shape, int]]:
    """Graphs and kinds of numbers, each with a seed."""
    hub = min(6000, max(150, _CELLS // max(width, 16)))
    graphs = ["knots", "ring", f"hub {hub}", "no edges", "one node"]
    for seed, graph in enumerate(graphs):
        if graph == "one node" or graph_size(graph)[1] * cut.widest <= _MOST_ELEMENTS:
            for draw in ("normal", "large") if graph == "ring" else ("normal",):
                yield Shape(graph, draw), 2 * seed


def _tried(kernel: Kernel, cut: WalkProgram, shape: Shape, seed: int) -> str | None:
    """How the kernel differs on one graph."""
    reference = _reference(cut, shape, seed)
    if reference is None or not any(bool(x.isfinite().any()) for x in reference.results):
        reference = _reference(cut, Shape(shape.graph, "positive"), seed)
    if reference is None:
        return None
    graph = reference.inputs["graph"]
    walked = graph.reverse() if cut.turned else graph
    given = [reference.inputs[v["name"]].to(cut.real).contiguous() for v in cut.read]
    for k, (got, wanted) in enumerate(zip(kernel(walked, given, _poisoned), reference.results, strict=True)):
        if got.shape != wanted.shape:
            return f"output {k} has shape {tuple(got.shape)}, expected {tuple(wanted.shape)}"
        wrong = reference.wrong(k, got)
        if wrong:
            return f"{wrong} of {got.numel()} elements of output {k} differ"
    return None


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory in which an element that is never written shows."""
    return torch.full(shape, torch.nan, dtype=dtype)


@dataclass
class _Reference:
    """What a walk should give: its program in float64, and inputs by name."""

    cut: WalkProgram
    inputs: dict[str, Any]
    results: list[Tensor]
    _moved: list[list[Tensor]] = field(default_factory=list)

    def wrong(self, k: int, got: Tensor) -> int:
        """How many elements of result ``k`` differ by more than rounding, which is measured where it matters."""
        wanted, unit = self.results[k], _UNITS[self.cut.real]
        if not wanted.numel():
            return 0
        largest = torch.where(wanted.isfinite(), wanted.abs(), 0.0)
        row = largest.amax(tuple(range(1, wanted.dim())), keepdim=True) if wanted.dim() > 1 else largest
        apart = torch.where(wanted.isfinite(), (got.double() - wanted).abs().nan_to_num(torch.inf), 0.0)
        excess = unit * row + _TINY
        if bool((apart <= excess).all()):
            return 0
        if not self._moved:
            double = self.cut.double(self.cut.program)
            self._moved = [_run(double, self.inputs, run, self.cut.real) for run in range(1, 1 + RUNS)]
            single = {n: x.to(self.cut.real) if _is_real(x) else x for n, x in self.inputs.items()}
            self._moved.append(_run(self.cut.program, single, 0, self.cut.real))
        *shakes, plain = (run[k] for run in self._moved)
        excess = excess + allowed(noise(wanted, shakes)) + 4 * (plain.double() - wanted).abs().nan_to_num(torch.inf)
        return int((apart > excess).sum())


def _reference(cut: WalkProgram, shape: Shape, seed: int) -> _Reference | None:
    """The reference on one graph; None where the values cannot be computed there."""
    double = cut.double(cut.program)
    try:
        trial = Trial(double, shape, (1, 1), seed)
        inputs = {name: _eighths(x) for name, x in trial.inputs.items()}
        return _Reference(cut, inputs, _run(double, inputs, 0, cut.real))
    except _FAILURES:
        return None


def _run(program: Program, inputs: dict[str, Any], run: int, real: torch.dtype) -> list[Tensor]:
    """Outputs; every computed value is shaken where ``run`` is not 0."""
    memo: dict[Value, Any] = {}
    for value in program.values:
        if value.op in LEAVES:
            memo[value] = inputs[value["name"]]
        else:
            made = evaluate(value, [memo[o] for o in value.inputs])
            memo[value] = shaken(made, run, _SHAKE[real]) if run else made
    return [memo[value] for _, value in program.outputs]


def _is_real(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _eighths(x: Any) -> Any:
    """Numbers that are exact in either dtype, equal ones among them."""
    return (x.detach() * 8).round() / 8 if _is_real(x) else x


__all__ = ["Kernel", "difference"]
