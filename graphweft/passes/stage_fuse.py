"""Fusion across the stages of a mini-batch: sampling, gathering, structure and model are values of one program.

Comes in: a program with ``SAMPLE``, ``SRC_IDS`` and ``TAKE_ROWS``. Goes out: an equal one in which

- the sampler itself leaves self-loops out, adds them and turns blocks around (:func:`fuse_structure`);
- the first layer aggregates straight from the table over all nodes, so that the last hop is neither numbered nor
  gathered (:func:`fuse_first_layer`), where no other value needs that hop's rows.

Kernels that still read gathered rows read them where they lie, by index (:func:`fold_gathers`, on kernel groups).
Source: Joestar, section 5.3 (sample-gather-aggregation, gather-GEMM and sample-structural fusion).
"""

from __future__ import annotations

import torch

from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite, substitute
from graphweft.ir.program import Builder, Program, Value
from graphweft.passes.groups import Group

_READERS = frozenset({Op.SPMM, Op.SPMM_MAX})
_STRUCTURAL = frozenset({Op.SRC_IDS, Op.IN_DEGREE})
_PER_ROW = frozenset({Op.POW, Op.SCALE, Op.ADD_CONST})  # of one number a row


def fuse_structure(program: Program) -> Program:
    """Loops, reversal and degrees of a sampled block become the sampler's business."""
    return rewrite(program, _structure)


def _structure(b: Builder, v: Value) -> Value | None:
    first = v.inputs[0] if v.inputs else None
    if first is None or first.op is not Op.SAMPLE:
        return None
    attrs = dict(first.attrs)
    if v.op is Op.REVERSE:
        return b.add(Op.SAMPLE, *first.inputs, **attrs | {"turned": not attrs.get("turned", False)})
    if v.op in (Op.WITHOUT_LOOPS, Op.ONE_LOOP) and not attrs.get("turned"):
        return b.add(Op.SAMPLE, *first.inputs, **attrs | {"loops": "one" if v.op is Op.ONE_LOOP else "none"})
    if v.op is Op.SRC_DEGREE and not attrs.get("turned") and not attrs.get("open"):
        graph = first.inputs[0]
        ids = b.add(Op.SRC_IDS, _plain(b, first), graph)
        return b.add(Op.TAKE_ROWS, b.add(Op.SRC_DEGREE, graph, **dict(v.attrs)), ids, to="src")
    return None


def _plain(b: Builder, block: Value) -> Value:
    """The block as drawn: with it all layers name its sources alike."""
    attrs = {name: item for name, item in block.attrs if name in ("fanouts", "hop")}
    return b.add(Op.SAMPLE, *block.inputs, **attrs)


def fuse_first_layer(program: Program) -> Program:
    """The outermost hop opened, where every reader of its rows can do without them."""
    blocks = [v for v in program.values if v.op is Op.SAMPLE and v["hop"] == len(v["fanouts"]) - 1]
    if not blocks or any(block.get("open") or block.get("turned") for block in blocks):
        return program
    found = _Opening(program, blocks).replacements()
    return program if found is None else substitute(program, found)


class _Opening:
    """What replaces the readers of the outermost hop."""

    def __init__(self, program: Program, blocks: list[Value]) -> None:
        self._program, self._builder = program, Builder()
        self._blocks = set(blocks)
        self._rows = blocks[0].struct.src
        self._graph, self._seeds, _ = blocks[0].inputs
        self._hop, self._fanouts = blocks[0]["hop"], blocks[0]["fanouts"]

    def replacements(self) -> dict[Value, Value] | None:
        """New values by the old ones that they replace; None where the hop's rows are needed."""
        outputs = {value for _, value in self._program.outputs}
        found: dict[Value, Value] = {}
        for value in self._program.values:
            on_block = any(operand in self._blocks for operand in value.inputs)
            reads = [o for o in value.inputs if self._is_of_hop(o)]
            if value.op in _READERS and on_block and len(value.inputs) == 2:
                table = self._over_all(value.inputs[1], alone=value.op is Op.SPMM)
                if table is None:
                    return None
                found[value] = self._builder.add(value.op, self._open(value.inputs[0]), table, **dict(value.attrs))
            elif value.op is Op.OWN_ROWS and on_block:
                own = self._of_destinations(value.inputs[1])
                if own is None:
                    return None
                found[value] = own
            elif value.op is Op.IN_DEGREE and on_block:
                found[value] = self._builder.add(Op.IN_DEGREE, self._open(value.inputs[0]), **dict(value.attrs))
            elif (on_block and value.op not in _STRUCTURAL) or (value in outputs if self._is_of_hop(value) else reads):
                return None
        return found

    def _is_of_hop(self, value: Value) -> bool:
        """Whether it is a tensor with one row per source of the hop."""
        return getattr(value.type, "residency", None) is not None and value.tensor.rows == self._rows

    def _open(self, block: Value) -> Value:
        return self._builder.add(Op.SAMPLE, *block.inputs, **dict(block.attrs) | {"open": True})

    def _over_all(self, value: Value, alone: bool) -> Value | None:
        """The same rows of all nodes, where that costs no pass over a matrix of them; None elsewhere.

        ``alone``: the reader applies a factor per source itself.
        """
        if value.op is Op.TAKE_ROWS:
            return None if value.inputs[0].tensor.sparse else value.inputs[0]
        scaled = value.op is Op.ROW_SCALE and alone and value.inputs[0].op is Op.TAKE_ROWS
        if not scaled and (value.op not in _PER_ROW or value.tensor.dims):
            return None
        operands = [self._over_all(operand, alone=False) for operand in value.inputs]
        if any(operand is None for operand in operands):
            return None
        return self._builder.add(value.op, *(o for o in operands if o is not None), **dict(value.attrs))

    def _of_destinations(self, value: Value) -> Value | None:
        """The rows of the destinations, which the hop before has numbered."""
        if not self._is_of_hop(value):
            return value
        if value.op is Op.TAKE_ROWS:
            return self._builder.add(Op.TAKE_ROWS, value.inputs[0], self._inner_ids())
        operands = [self._of_destinations(operand) for operand in value.inputs]
        if value.op not in (_PER_ROW | {Op.ROW_SCALE}) or any(operand is None for operand in operands):
            return None
        return self._builder.add(value.op, *(o for o in operands if o is not None), **dict(value.attrs))

    def _inner_ids(self) -> Value:
        if self._hop == 0:
            return self._seeds
        block = next(iter(self._blocks))
        inner = self._builder.add(Op.SAMPLE, *block.inputs, fanouts=self._fanouts, hop=self._hop - 1)
        return self._builder.add(Op.SRC_IDS, inner, self._graph)


def fold_gathers(program: Program, groups: list[Group]) -> list[Group]:
    """``kernel(table[ids])`` without a copy of the rows, where every reader can fetch them by index."""
    outputs = {value for _, value in program.outputs}
    kept = list(groups)
    for group in groups:
        rows = group.anchor
        if rows is None or rows.op is not Op.TAKE_ROWS or rows in outputs or not _is_matrix(rows.inputs[0]):
            continue
        readers = [other for other in groups if rows in other.operands()]
        if readers and all(_reads_by_index(other, rows) for other in readers):
            for other in readers:
                other.gather = rows
            kept.remove(group)
    return kept


def _is_matrix(table: Value) -> bool:
    type_ = table.tensor
    return not type_.sparse and type_.dtype == torch.float32 and len(type_.dims) == 1 and table.op is Op.INPUT


def _reads_by_index(group: Group, rows: Value) -> bool:
    """Whether the group's kernel takes a table and ids instead of ``rows``."""
    if group.inside or group.operands().count(rows) != 1 or group.operands()[0] is not rows:
        return False
    return group.anchor is None or group.anchor.op in (Op.MATMUL, Op.DROPOUT, Op.MUL_SCALAR)
