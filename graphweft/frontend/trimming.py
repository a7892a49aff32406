"""Which rows of a batch each step has to compute when only those of the seeds are wanted.

Comes in: the tape of a batch, symbolic in its sizes, whose nodes and edges lie in the order of the hops. Goes out: the
same tape over fewer rows: a step whose rows do not depend on each other computes those that later steps read, a sum
over edges those up to a hop. Any other step, such as batch norm, computes all rows. Called by ``nn/batch_call.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from graphweft._torch_private import pytree
from graphweft.frontend.sized_recorder import EDGES, NODES, Count, Formula
from graphweft.frontend.structure import Cut, Structure
from graphweft.frontend.tape import TRIMMED, Step, Tape, Var

aten = torch.ops.aten
SOURCE, DESTINATION = 0, 1  # rows of edge_index
_GATHERS = (aten.index_select.default, aten.index.Tensor)
_SCATTERS = (
    aten.scatter_add.default,
    aten.scatter_reduce.two,
    aten.index_add.default,
    aten.index_reduce.default,
)
_VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.expand.default,
    aten.detach.default,
    aten.alias.default,
    aten._to_copy.default,
}
_ALONG = {  # operations along dimensions, with the place of these among their operands
    aten.sum.dim_IntList: 1,
    aten.var_mean.correction: 1,
    aten.var.correction: 1,
    aten.mean.dim: 1,
    aten.amax.default: 1,
    aten.amin.default: 1,
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten.cat.default: 1,
    aten.slice.Tensor: 1,
    aten.select.int: 1,
}
Side = Callable[[Var], int | None]  # which row of edge_index an index is, if any


class Trimmer:
    """Trims one tape.

    Args:
        structure: The tape and what it reads of structure.
        hops: How many hops the batch has.
        side: Tells ends of edges.
    """

    def __init__(self, structure: Structure, hops: int, side: Side) -> None:
        self._tape, self._hops, self._side = structure.tape, hops, side
        self._hop: dict[Var, int] = {}  # up to which hop the rows of a value are wanted
        self._deep = False
        self._alike = {step for step in self._tape.steps if _rows_alone(step)}

    def trimmed(self) -> Tape:
        """The tape whose results have the rows of the seeds."""
        self._decide()
        if any(self._end(step) is not None and self._at(step) == self._hops for step in self._tape.steps):
            self._deep = True  # edges up to the last hop but one are all: one set of them, into all nodes
            self._decide()
        return self._written()

    def _decide(self) -> None:
        """Which rows of every value are computed."""
        self._hop.clear()
        for item in self._tape.outputs:
            if isinstance(item, Var):
                self._want(item, 0 if rows_of(item) == (NODES, 0) else self._hops)
        for var in self._tape.buffers.values():
            self._want(var, self._hops)
        for step in reversed(self._tape.steps):
            at = self._at(step)
            for leaf in step.leaves:
                if isinstance(leaf, Var):
                    self._want(leaf, self._needed(step, leaf, at))

    def _want(self, var: Var, hop: int) -> None:
        self._hop[var] = max(self._hop.get(var, 0), hop if rows_of(var) is not None else self._hops)

    def _at(self, step: Step) -> int:
        """Up to which hop the results of a step are computed."""
        wanted = max((self._hop.get(var, 0) for var in step.outs if var is not None), default=self._hops)
        kind = self._end(step)
        trims = step in self._alike or (kind is not None and (step.target in _GATHERS or kind == DESTINATION))
        hop = wanted if trims else self._hops
        if self._deep and hop == self._hops - 1 and kind is not None:
            hop = self._hops
        for var in step.outs:
            if var is not None:
                self._hop[var] = hop
        return hop

    def _needed(self, step: Step, operand: Any, hop: int) -> int:
        """Up to which hop an operand is read."""
        end = self._end(step)
        if end is None or hop >= self._hops:
            return hop
        if step.target in _GATHERS and operand is step.args[0]:
            return hop + 1 if end == SOURCE else hop
        return hop

    def _end(self, step: Step) -> int | None:
        """Along which end of the edges a step moves whole rows."""
        if step.target not in (*_GATHERS, *_SCATTERS):
            return None
        rows, out = _first_var(step), step.outs[0]
        index = step.args[1][0] if step.target is aten.index.Tensor else step.args[2]
        if step.target is aten.index.Tensor and len(step.args[1]) != 1:
            return None
        if not isinstance(index, Cut) or rows is None or out is None:
            return None
        dim = 0 if step.target is aten.index.Tensor else step.args[1] % len(out.shape)
        kinds = (NODES, EDGES) if step.target in _GATHERS else (EDGES, NODES)
        if dim != 0 or rows_of(index.var) != (EDGES, 0) or rows_of(out) != (kinds[1], 0):
            return None
        moved = step.args[0] if step.target in _GATHERS else step.args[3]
        fits = isinstance(moved, Var) and rows_of(moved) == (kinds[0], 0)
        return self._side(index.var) if fits else None

    # the new tape

    def _written(self) -> Tape:
        self._new: dict[Var, Var] = {}
        self._cuts: dict[tuple[Var, int], Var] = {}
        self._steps: list[Step] = []
        for var in self._tape.inputs:
            self._new[var] = var
            self._hop[var] = self._hops
        for step in self._tape.steps:
            self._write(step)
        outputs = []
        for item in self._tape.outputs:
            seeds = isinstance(item, Var | Cut) and rows_of(item if isinstance(item, Var) else item.var) == (NODES, 0)
            outputs.append(self._seeds(item) if seeds else self._read(item, self._hops, None))
        buffers = {name: self._new[var] for name, var in self._tape.buffers.items()}
        return replace(self._tape, steps=self._steps, outputs=outputs, buffers=buffers)

    def _write(self, step: Step) -> None:
        hop = self._at(step)

        def put(leaf: Any) -> Any:
            if isinstance(leaf, Var | Cut):
                return self._read(leaf, self._needed(step, leaf, hop), step)
            return self._sized(leaf, hop)

        args, kwargs = pytree.tree_map(put, (step.args, step.kwargs))
        outs = tuple(None if var is None else self._trimmed(var, hop) for var in step.outs)
        self._steps.append(replace(step, args=args, kwargs=kwargs, outs=outs))

    def _trimmed(self, var: Var, hop: int) -> Var:
        shape = tuple(self._sized(size, hop) for size in var.shape)
        self._new[var] = made = Var(shape, var.dtype, var.source, var.grad)
        return made

    def _sized(self, leaf: Any, hop: int) -> Any:
        """A size up to a hop; the last hop has all edges, and the one before it, too."""
        if not isinstance(leaf, Count) or hop >= self._hops:
            return leaf
        return leaf if leaf.kind == EDGES and hop == self._hops - 1 else Count(leaf.kind, hop)

    def _seeds(self, item: Var | Cut) -> Any:
        """The rows of the seeds; batches without hops have no others to leave out."""
        if self._hops:
            return self._read(item, 0, None)
        if isinstance(item, Cut):
            return Cut(item.var, 0, Count(NODES, 0))
        new = self._new[item]
        made = Var((Count(NODES, 0), *new.shape[1:]), item.dtype)  # type: ignore[arg-type]
        self._steps.append(_slice(new, 0, Count(NODES, 0), made, ""))
        return made

    def _read(self, leaf: Any, hop: int, step: Step | None) -> Any:
        """An operand with the rows up to a hop."""
        if isinstance(leaf, Cut):
            rows = rows_of(leaf.var)
            if rows is None or self._sized(Count(rows[0]), hop) == Count(rows[0]):
                return leaf
            return Cut(leaf.var, rows[1], self._sized(Count(rows[0]), hop))
        if not isinstance(leaf, Var):
            return leaf
        rows, new = rows_of(leaf), self._new[leaf]
        if rows is None or hop >= self._hop[leaf] or self._sized(Count(rows[0]), hop) == new.shape[rows[1]]:
            return new
        if (leaf, hop) not in self._cuts:
            size = self._sized(Count(rows[0]), hop)
            shape = tuple(size if at == rows[1] else other for at, other in enumerate(new.shape))
            made = self._cuts[leaf, hop] = Var(shape, leaf.dtype)
            self._steps.append(_slice(new, rows[1], size, made, "" if step is None else step.line))
        return self._cuts[leaf, hop]


def _slice(rows: Var, axis: int, size: Count, made: Var, line: str) -> Step:
    return Step(aten.slice.Tensor, (rows, axis, 0, size), {}, (made,), line, TRIMMED)


def rows_of(var: Var) -> tuple[str, int] | None:
    """Whether a value has rows of nodes or of edges, and along which dimension."""
    places = [(size.kind, at) for at, size in enumerate(var.shape) if isinstance(size, Count)]
    return places[0] if len(places) == 1 and not any(isinstance(size, Formula) for size in var.shape) else None


def _first_var(step: Step) -> Var | None:
    return next(iter(step.reads), None)


def _rows_alone(step: Step) -> bool:
    """Whether every row of the results follows from the same rows of the operands, which all lie alike."""
    operands = [leaf.var if isinstance(leaf, Cut) else leaf for leaf in step.leaves if isinstance(leaf, Var | Cut)]
    if any(isinstance(leaf, Formula) for leaf in step.leaves):
        return False
    rowed = [var for var in operands if any(isinstance(size, Count | Formula) for size in var.shape)]
    outs = [var for var in step.outs if var is not None]
    kinds = {rows_of(var) and rows_of(var)[0] for var in (*rowed, *outs)}  # type: ignore[index]
    if len(kinds) != 1 or None in kinds:
        return False
    target = step.target
    if target is aten.native_dropout.default:
        return True
    if torch.Tag.pointwise in target.tags:  # laid over each other from the right
        return len({len(var.shape) - rows_of(var)[1] for var in (*rowed, *outs)}) == 1  # type: ignore[index]
    if any(rows_of(var)[1] != 0 for var in (*rowed, *outs)):  # type: ignore[index]
        return False
    if target is aten.mm.default:
        return rowed == operands[:1]
    if target is aten.addmm.default:
        return operands[1] in rowed and operands[2] not in rowed
    if target in _VIEWS or target is aten.clone.default or target is aten.native_layer_norm.default:
        return len(operands) == 1 or target is aten.native_layer_norm.default
    if target in _ALONG:
        place = _ALONG[target]
        dims = step.args[place] if len(step.args) > place else 0
        width = len((rowed or outs)[0].shape)
        given = [dims] if isinstance(dims, int) else list(dims or [0])
        return 0 not in {dim % width for dim in given} and len(rowed) == len(operands)
    return False


__all__ = ["DESTINATION", "SOURCE", "Trimmer", "rows_of"]
