"""Records a module's forward with symbols in place of the numbers of nodes and edges, and no content of integers.

Comes in: arguments of a batch, and its two sizes. Goes out: a :class:`Tape` whose shapes and sizes are :class:`Count`
or :class:`Formula` where they depend on them, and :class:`Conditions`: what Python asked of the sizes. Integer
tensors are stand-ins, too, so nothing is read of them and the tape holds for every batch of which the conditions are
true. Called by ``nn/batch_call.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweft import _torch_recording as recording
from graphweft._torch_private import pytree
from graphweft._torch_recording import FakeTensor, FakeTensorMode
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.made_like import DRAWN_LIKE
from graphweft.frontend.recorder import Recorder
from graphweft.frontend.tape import Step, Tape, Var
from graphweft.frontend.trace import Named, kind_of_sizes

aten = torch.ops.aten
NODES, EDGES = "nodes", "edges"
_OF_SIZES = ("/torch/fx/experimental/", "/torch/utils/_sympy", "/sympy/")
_FILLED = {
    aten.new_zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.new_empty.default: 0,
    aten.empty_like.default: 0,
    aten.new_ones.default: 1,
    aten.ones_like.default: 1,
}


@dataclass(frozen=True)
class Count:
    """A number of nodes or edges: those up to a hop, or all of a batch (None)."""

    kind: str
    hop: int | None = None


@dataclass(frozen=True)
class Formula:
    """A size that is computed from the numbers of all nodes and edges."""

    text: str
    of: Callable[[int, int], int]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


Size: TypeAlias = int | Count | Formula


class SizedRecorder(Recorder):
    """One recording over symbolic sizes.

    Args:
        nodes: Number of nodes, the size of every dimension that is this long.
        edges: Number of edges, likewise.
    """

    def __init__(self, nodes: int, edges: int) -> None:
        super().__init__()
        if min(nodes, edges) < 2 or nodes == edges:
            raise UnraisableError("a batch of as many nodes as edges, or of one")
        self.counts = kind_of_sizes("Counts")()
        self.fakes = FakeTensorMode(shape_env=self.counts, allow_non_fake_inputs=True)
        self._of_size = {nodes: self._symbol(NODES, nodes), edges: self._symbol(EDGES, edges)}
        self._expressions = [self._of_size[size].node.expr for size in (nodes, edges)]
        self._nodes, self._edges = nodes, edges

    def _symbol(self, name: str, hint: int) -> Any:
        dynamic = recording.DimDynamic.DYNAMIC
        source = Named(name)
        made = self.counts.create_symbol(hint, source=source, dynamic_dim=dynamic, constraint_dim=None)
        return self.counts.create_symintnode(made, hint=hint, source=source)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        """As of any recorder, but for what torch's symbolic sizes do themselves."""
        outer: FrameType | None = frame
        while outer is not None and outer.f_code is not Recorder.run.__code__:
            if any(part in outer.f_code.co_filename for part in _OF_SIZES):
                return
            outer = outer.f_back
        super()._look(frame, event, called)

    # inputs

    def stand_in(self, tensor: Tensor, source: tuple[str, Any]) -> Tensor:
        """A tensor without memory; arguments have symbols among their sizes."""
        if source[0] != "arg":
            return super().stand_in(tensor, source)
        if isinstance(tensor, FakeTensor) or type(tensor) is not Tensor or not tensor.is_contiguous():
            raise UnraisableError(f"a tensor of the class {type(tensor).__name__}, or one that is not contiguous")
        shape = [self._of_size.get(size, size) for size in tensor.shape]
        with self.fakes:
            made = torch.empty(shape, dtype=tensor.dtype)
        var = Var(tuple(shape), tensor.dtype, source, tensor.requires_grad)
        self.tape.inputs.append(var)
        self._vars[made] = var
        self._given[made] = source
        return made

    def structure(self, tensor: Tensor, position: int | None = None) -> Tensor:
        """An integer tensor, which nobody may read."""
        return self.stand_in(tensor, ("arg", position))

    # operations

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One ATen operation; nobody watches torch's own code meanwhile, which is slow over symbols."""
        if sys.getprofile() != self._look:
            return self._dispatched(func, args, kwargs)
        sys.setprofile(None)
        try:
            return self._dispatched(func, args, kwargs)
        finally:
            sys.setprofile(self._look)

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tensors made of symbolic sizes are stand-ins."""
        if func in DRAWN_LIKE:
            raise UnraisableError("random numbers of the size of a batch")
        leaves = pytree.tree_leaves((args, kwargs))
        made_of_sizes = any(isinstance(leaf, torch.SymInt) for leaf in leaves)
        if made_of_sizes and not func._schema.is_mutable and not any(isinstance(leaf, Tensor) for leaf in leaves):
            return self._record(func, args, kwargs)
        return super().dispatch(func, args, kwargs)

    def _like(self, func: Any, made: Tensor, args: Sequence[Any]) -> Tensor:
        """A tensor of one number, whatever tensor it is like."""
        number = _FILLED[func] if func in _FILLED else args[2] if func is aten.new_full.default else args[1]
        self._note(aten.full.default, (list(made.shape), number), {"dtype": made.dtype}, [made])
        return made

    # result

    def finished(self, tape: Tape) -> tuple[Tape, Conditions]:
        """``tape`` with sizes that depend on no recording, and what they have to fulfil.

        Raises: UnraisableError for sizes that are no sums of products of the two numbers.
        """
        sizes = _Sizes(self._expressions)
        held = Conditions(self._distinct(tape), tuple(sizes.condition(guard.expr) for guard in self.counts.guards))
        if not held.hold(self._nodes, self._edges):
            raise UnraisableError("sizes of a batch that cannot be told apart")
        new: dict[Var, Var] = {}

        def put(leaf: Any) -> Any:
            return new[leaf] if isinstance(leaf, Var) else sizes.read(leaf)

        for var in tape.inputs:
            new[var] = Var(tuple(map(sizes.read, var.shape)), var.dtype, var.source, var.grad)
        steps = []
        for step in tape.steps:
            args, kwargs = pytree.tree_map(put, (step.args, step.kwargs))
            for out in step.outs:
                if out is not None:
                    new[out] = Var(tuple(map(sizes.read, out.shape)), out.dtype)
            outs = tuple(None if out is None else new[out] for out in step.outs)
            steps.append(Step(step.target, args, kwargs, outs, step.line, step.call, step.stops))
        outputs = [put(item) for item in tape.outputs]
        if any(isinstance(item, Count | Formula) for item in outputs):
            raise UnraisableError("a size among the results")
        buffers = {name: new[var] for name, var in tape.buffers.items()}
        return replace(
            tape, inputs=[new[var] for var in tape.inputs], steps=steps, outputs=outputs, buffers=buffers
        ), held

    def _distinct(self, tape: Tape) -> tuple[Size, ...]:
        """All sizes of a tape, which have to differ where its programs are made."""
        sizes = _Sizes(self._expressions)
        found = {sizes.read(size) for var in _vars(tape) for size in var.shape}
        return tuple(size for size in found if size != 1)


def _vars(tape: Tape) -> list[Var]:
    return [*tape.inputs, *(var for step in tape.steps for var in step.outs if var is not None)]


@dataclass(frozen=True)
class Conditions:
    """What a tape assumes of the numbers of nodes and edges.

    Attributes:
        distinct: Sizes that had to differ in the recorded run, for its programs tell rows by their number.
        guards: What code asked.
    """

    distinct: tuple[Size, ...]
    guards: tuple[Callable[[int, int], bool], ...]

    def hold(self, nodes: int, edges: int) -> bool:
        """Whether the recorded run may decide which rows are which."""
        found = [value_of(size, nodes, edges) for size in self.distinct]
        return len(set(found)) == len(found) and self.fit(nodes, edges)

    def fit(self, nodes: int, edges: int) -> bool:
        """Whether code would have done the same."""
        return min(nodes, edges) >= 2 and all(guard(nodes, edges) for guard in self.guards)


def value_of(size: Size, nodes: int, edges: int) -> int:
    """A size of the whole batch."""
    if isinstance(size, Formula):
        return size.of(nodes, edges)
    return size if not isinstance(size, Count) else nodes if size.kind == NODES else edges


class _Sizes:
    """Reads symbolic sizes."""

    def __init__(self, symbols: Sequence[Any]) -> None:
        self._symbols = list(symbols)

    def read(self, leaf: Any) -> Any:
        """A size without a recording behind it; anything that is no symbolic number as it is."""
        if isinstance(leaf, torch.SymFloat | torch.SymBool):
            raise UnraisableError("a number computed from the number of nodes or edges")
        if not isinstance(leaf, torch.SymInt):
            return leaf
        expression = leaf.node.expr
        if expression.is_Integer:
            return int(expression)
        if expression in self._symbols:
            return Count((NODES, EDGES)[self._symbols.index(expression)])
        return Formula(str(expression), self._function(expression))

    def condition(self, expression: Any) -> Callable[[int, int], bool]:
        """What a guard asks."""
        return self._function(expression)

    def _function(self, expression: Any) -> Callable[[int, int], Any]:
        sympy = recording.sympy
        sides = expression.args if expression.is_Relational else (expression,)
        if not all(side.is_polynomial() for side in sides) or not expression.free_symbols <= set(self._symbols):
            raise UnraisableError("sizes that are no sums of products of the numbers of nodes and edges")
        made: Callable[[int, int], Any] = sympy.lambdify(self._symbols, expression, "math")
        return made


__all__ = ["EDGES", "NODES", "Conditions", "Count", "Formula", "Size", "SizedRecorder", "value_of"]
