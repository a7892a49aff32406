"""Records a module's forward with symbols in place of the numbers of nodes and edges, and no content of integers.

Comes in: arguments of a batch, and its two sizes. Goes out: a :class:`Tape` whose shapes and sizes are :class:`Count`
or :class:`Formula` where they depend on them, and :class:`Conditions`: what Python asked of the sizes. Integer
tensors are stand-ins, too, so nothing is read of them but how many entries a mask has, which is a further size (edges
that are no self-loops). The tape holds for every batch of which the conditions are true. Called by
``nn/batch_call.py``.
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
NODES, EDGES, FOUND = "nodes", "edges", "found"
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
    """A number of nodes or edges, those up to a hop or all of a batch (None); or how many entries a mask has.

    ``found``: which of the masks that were counted.
    """

    kind: str
    hop: int | None = None
    found: int | None = None


@dataclass(frozen=True)
class Formula:
    """A size that is computed from the numbers of all nodes and edges, and those of entries of masks."""

    text: str
    of: Callable[..., int]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


Size: TypeAlias = int | Count | Formula


class CrowdedError(UnraisableError):
    """Sizes of a batch that are equal where those of others differ: another batch may do."""


class SizedRecorder(Recorder):
    """One recording over symbolic sizes.

    Args:
        nodes: Number of nodes, the size of every dimension that is this long.
        edges: Number of edges, likewise.
    """

    def __init__(self, nodes: int, edges: int) -> None:
        super().__init__()
        if min(nodes, edges) < 2 or nodes == edges:
            raise CrowdedError("a batch of as many nodes as edges, or of one")
        self.counts = kind_of_sizes("Counts")()
        self.fakes = FakeTensorMode(shape_env=self.counts, allow_non_fake_inputs=True)
        self._of_size = {nodes: self._symbol(NODES, nodes), edges: self._symbol(EDGES, edges)}
        self._expressions = [self._of_size[size].node.expr for size in (nodes, edges)]
        self._sizes = [nodes, edges]
        self._masks = Counted()

    def _symbol(self, name: str, hint: int) -> Any:
        dynamic = recording.DimDynamic.DYNAMIC
        source = Named(name)
        made = self.counts.create_symbol(hint, source=source, dynamic_dim=dynamic, constraint_dim=None)
        return self.counts.create_symintnode(made, hint=hint, source=source)

    def _is_excused(self, frame: FrameType) -> bool:
        """What torch's symbolic sizes do themselves is not the user's code."""
        outer: FrameType | None = frame
        while outer is not None and outer.f_code is not Recorder.run.__code__:
            if any(part in outer.f_code.co_filename for part in _OF_SIZES):
                return True
            outer = outer.f_back
        return False

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
        made = self.stand_in(tensor, ("arg", position))
        self._masks.give(self._value(made), tensor)
        return made

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
        if func is aten.nonzero.default and self._is_counted(args[0]):
            return self._counted(args[0])
        leaves = pytree.tree_leaves((args, kwargs))
        made_of_sizes = any(isinstance(leaf, torch.SymInt) for leaf in leaves)
        if made_of_sizes and not func._schema.is_mutable and not any(isinstance(leaf, Tensor) for leaf in leaves):
            return self._record(func, args, kwargs)
        return super().dispatch(func, args, kwargs)

    def _positions(self, indices: Sequence[Any]) -> list[Any]:
        """A mask over rows that follows from integers as the positions that it marks."""
        made: list[Any] = []
        for index in indices:
            if isinstance(index, Tensor) and index.dtype == torch.bool and self._is_counted(index):
                found = self.dispatch(aten.nonzero.default, (index,), {})
                made.extend(self.dispatch(aten.select.int, (found, 1, at), {}) for at in range(index.dim()))
            else:
                made.append(index)
        return super()._positions(made)

    def _is_counted(self, mask: Tensor) -> bool:
        """Whether the entries of a mask are counted in every batch."""
        return isinstance(mask, FakeTensor) and self._masks.follow(self._value(mask), self.tape)

    def _counted(self, mask: Tensor) -> Tensor:
        """Positions that a mask marks; how many is a size, and that of a known size where this batch has as many."""
        count = self._masks.count(self._value(mask))
        if count not in (0, 1) and count not in self._of_size:
            self._of_size[count] = self._symbol(f"found{len(self._sizes) - 2}", count)
            self._expressions.append(self._of_size[count].node.expr)
            self._sizes.append(count)
        with self.fakes:
            made = torch.empty([self._of_size.get(count, count), mask.dim()], dtype=torch.int64)
        self._note(aten.nonzero.default, (mask,), {}, [made])
        self.tape.counted.append(self._value(made))
        return made

    def _like(self, func: Any, made: Tensor, args: Sequence[Any]) -> Tensor:
        """A tensor of one number, whatever tensor it is like."""
        number = _FILLED[func] if func in _FILLED else args[2] if func is aten.new_full.default else args[1]
        self._note(aten.full.default, (list(made.shape), number), {"dtype": made.dtype}, [made])
        return made

    # result

    def finished(self, tape: Tape) -> tuple[Tape, Conditions]:
        """``tape`` with sizes that depend on no recording, and what they have to fulfil.

        Raises: UnraisableError for sizes that are no sums of products of the numbers; CrowdedError for equal ones.
        """
        sizes = _Sizes(self._expressions)
        held = Conditions(self._distinct(tape), tuple(sizes.condition(guard.expr) for guard in self.counts.guards))
        if not held.hold(self._sizes):
            raise CrowdedError("sizes of a batch that cannot be told apart")
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
        inputs, counted = [new[var] for var in tape.inputs], [new[var] for var in tape.counted]
        return replace(tape, inputs=inputs, steps=steps, outputs=outputs, buffers=buffers, counted=counted), held

    def _distinct(self, tape: Tape) -> tuple[Size, ...]:
        """All sizes of a tape, which have to differ where its programs are made."""
        sizes = _Sizes(self._expressions)
        found = {sizes.read(size) for var in _vars(tape) for size in var.shape}
        return tuple(size for size in found if size != 1)


def _vars(tape: Tape) -> list[Var]:
    return [*tape.inputs, *(var for step in tape.steps for var in step.outs if var is not None)]


@dataclass(frozen=True)
class Conditions:
    """What a tape assumes of the numbers of nodes and edges, and of entries of masks.

    Attributes:
        distinct: Sizes that had to differ in the recorded run, for its programs tell rows by their number.
        guards: What code asked.
    """

    distinct: tuple[Size, ...]
    guards: tuple[Callable[..., bool], ...]

    def hold(self, sizes: Sequence[int]) -> bool:
        """Whether the recorded run may decide which rows are which."""
        found = [value_of(size, sizes) for size in self.distinct]
        return len(set(found)) == len(found) and self.fit(sizes)

    def fit(self, sizes: Sequence[int]) -> bool:
        """Whether code would have done the same."""
        return min(sizes) >= 2 and all(guard(*sizes) for guard in self.guards)


def value_of(size: Size, sizes: Sequence[int]) -> int:
    """A size of the whole batch, of its numbers of nodes, of edges, and of entries of masks."""
    if isinstance(size, Formula):
        return size.of(*sizes)
    if not isinstance(size, Count):
        return size
    return sizes[{NODES: 0, EDGES: 1}[size.kind] if size.found is None else 2 + size.found]


class Counted:
    """Masks that follow from integers alone, whose entries are counted while code is recorded."""

    def __init__(self) -> None:
        self._real: dict[Var, Tensor] = {}  # structure of the batch that is recorded
        self._makers: dict[Var, tuple[Step, int]] = {}

    def give(self, var: Var, tensor: Tensor) -> None:
        """An integer argument."""
        self._real[var] = tensor

    def follow(self, var: Var, tape: Tape) -> bool:
        """Whether a value follows from integer arguments and sizes alone."""
        for step in tape.steps:
            steady = torch.Tag.nondeterministic_seeded not in step.target.tags
            if steady and all(read in self._real or read in self._makers for read in step.reads):
                self._makers.update({out: (step, at) for at, out in enumerate(step.outs) if out is not None})
        return var in self._real or var in self._makers

    def count(self, mask: Var) -> int:
        """How many entries of a mask are set in the batch that is recorded."""
        return int(self._tensor(mask).count_nonzero())

    def _tensor(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.SymInt):
            return leaf.node.hint
        if not isinstance(leaf, Var):
            return leaf
        if leaf not in self._real:
            step, at = self._makers[leaf]
            args, kwargs = pytree.tree_map(self._tensor, (step.args, step.kwargs))
            with torch.no_grad():
                made = step.target(*args, **kwargs)
            self._real[leaf] = made[at] if isinstance(made, tuple | list) else made
        return self._real[leaf]


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
            at = self._symbols.index(expression)
            return Count((NODES, EDGES)[at]) if at < 2 else Count(FOUND, found=at - 2)
        return Formula(str(expression), self._function(expression))

    def condition(self, expression: Any) -> Callable[..., bool]:
        """What a guard asks."""
        return self._function(expression)

    def _function(self, expression: Any) -> Callable[..., Any]:
        sympy = recording.sympy
        sides = expression.args if expression.is_Relational else (expression,)
        if not all(side.is_polynomial() for side in sides) or not expression.free_symbols <= set(self._symbols):
            raise UnraisableError("sizes that are no sums of products of the numbers of nodes and edges")
        made: Callable[..., Any] = sympy.lambdify(self._symbols, expression, "math")
        return made


__all__ = ["EDGES", "NODES", "Conditions", "Count", "CrowdedError", "Formula", "Size", "SizedRecorder", "value_of"]
