"""Products that are added up become one, and what it reads is made on the way.

Comes in: kernel groups. Goes out: fewer of them.

- ``A W1 + B W2 + C W3`` is the product ``[A B C] [W1; W2; W3]``: sums stay in registers, no partial result is stored
  and read again.
- An aggregation over a block of a mini-batch, which such a product reads, is made block of rows by block of rows, in
  the core's own cache; it is stored only where somebody else reads it.
- Contractions with one second operand, the gradients of both weights, become one call where that operand is such an
  aggregation and nobody else reads it: it is never stored.
- Rows padded by zeros, which a kernel adds to its own, are read without the zeros.

Source: Morphling, section 4 (fused aggregation and transformation); Joestar, section 5.3 (gather-GEMM fusion).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from graphweft.ir.ops import Op
from graphweft.ir.program import Program, Value
from graphweft.passes.fuse import ordered
from graphweft.passes.groups import Contractions, Group, Products, Term

_WIDEST = 1024  # columns of three terms and more, whose rows lie side by side in a core's own cache


def join_products(program: Program, groups: list[Group], phase: Mapping[Value, int]) -> list[Group]:
    """The groups that are left, in an order that respects operands."""
    return _Joining(program, groups, phase).run()


class _Joining:
    """Groups, and who makes and reads what."""

    def __init__(self, program: Program, groups: list[Group], phase: Mapping[Value, int]) -> None:
        self._program, self._phase = program, phase
        self._groups = [replace(group) for group in groups]
        self._outputs = {value for _, value in program.outputs}
        self._users = program.users()

    def run(self) -> list[Group]:
        for group in list(self._groups):
            self._unpad(group)
        for group in list(self._groups):
            if group in self._groups and _is_product(group):
                self._add_up(group)
        for group in list(self._groups):
            if _is_block_sum(group):
                self._contract(group)
        position = {value: index for index, value in enumerate(self._program.values)}
        return ordered(self._groups, position)

    def _maker(self, value: Value | None) -> Group | None:
        """The group whose result ``value`` is."""
        return next((group for group in self._groups if group.result is value), None)

    def _is_read_once(self, value: Value) -> bool:
        return len(self._users[value]) == 1 and value not in self._outputs

    def _unpad(self, group: Group) -> None:
        if group.anchor is not None and group.anchor.op not in (Op.MATMUL, Op.SPMM):
            return
        maker = self._maker(group.stages.get("addend"))
        rows = None if maker is None else maker.anchor
        if maker is None or rows is None or rows.op is not Op.PAD_ROWS or maker.result is not rows:
            return
        if self._is_read_once(rows) and self._phase[rows] == self._phase[group.result]:
            group.stages = {**group.stages, "addend": rows.inputs[1]}
            group.padded = rows
            self._groups.remove(maker)

    def _add_up(self, group: Group) -> None:
        """Takes in the product that is the addend, and the aggregations that the products read."""
        other = self._maker(group.stages.get("addend"))
        if other is None or not _is_product(other) or not self._joins(group, other):
            return
        terms = (*group.as_terms(), *other.as_terms())
        if len(terms) > 2 and sum(term.product.inputs[0].tensor.dims[-1] for term in terms) > _WIDEST:
            return
        stages = {**other.stages, **{name: operand for name, operand in group.stages.items() if name != "addend"}}
        made = Products(group.anchor, None, group.result, stages, group.taps, terms=terms)
        self._groups = [made if g is group else g for g in self._groups if g is not other]
        made.terms = tuple(term if term.made else self._with_sums(made, term) for term in terms)

    def _joins(self, group: Group, other: Group) -> bool:
        """Whether the sum of both products can be kept in registers: before it, only a bias and rows are added."""
        first, second = set(group.stages) - {"addend"}, set(other.stages)
        return (
            group.padded is None
            and other.padded is None
            and not other.taps
            and second <= {"bias", "addend"}
            and not (second & first or "row_scale" in first)
            and self._is_read_once(other.result)
            and self._phase[other.result] == self._phase[group.result]
        )

    def _with_sums(self, group: Products, term: Term) -> Term:
        """``term`` with the aggregation that it reads, where nobody needs that before; stored if others read it."""
        left = term.product.inputs[0]
        maker = self._maker(left)
        if term.gather is not None or maker is None or not _is_block_sum(maker):
            return term
        if maker.taps or not set(maker.stages) <= {"row_scale"}:
            return term
        if self._phase[left] != self._phase[group.result] or self._depends(group, left):
            return term
        self._groups.remove(maker)
        if not self._is_read_once(left):
            group.taps = [*group.taps, left]
        return replace(term, made=maker)

    def _depends(self, group: Group, value: Value) -> bool:
        """Whether what ``group`` reads is made of ``value``, which is then needed before."""
        others = [operand for operand in group.operands() if operand is not value]
        return value in Program((), tuple(("", operand) for operand in others)).values

    def _contract(self, shared: Group) -> None:
        """Makes an aggregation inside the contractions with it, where those are all that read it."""
        made = shared.result
        readers = [group for group in self._groups if made in group.operands()]
        reads = sum(group.operands().count(made) for group in readers)
        sums = [tap for tap in shared.taps if tap.op is Op.COL_SUM]
        if not readers or made in self._outputs or not all(_is_contraction(g, made) for g in readers):
            return
        if reads != len(readers) or len(readers) + len(sums) != len(self._users[made]):
            return
        first = readers[0]
        terms = tuple(term for group in readers for term in group.as_terms())
        taps = [*shared.taps, *(g.result for g in readers[1:])]
        self._groups = [g for g in self._groups if g is not shared and all(g is not other for other in readers)]
        self._groups.append(Contractions(first.anchor, None, first.result, taps=taps, terms=terms, shared=shared))


def _is_contraction(group: Group, right: Value) -> bool:
    """A product of the transpose of dense rows with ``right``, and nothing else."""
    value = group.anchor
    if value is None or value.op is not Op.MATMUL or not value.get("ta") or value.get("tb") or type(group) is not Group:
        return False
    left, second = value.inputs
    plain = second is right and left is not right and not group.stages and not group.taps
    return plain and not left.tensor.sparse and left.tensor.dtype == torch.float32


def _is_product(group: Group) -> bool:
    """A product of dense float32 rows and a shared matrix."""
    value = group.anchor
    if value is None or value.op is not Op.MATMUL or value.get("ta") or group.inside:
        return False
    left, right = (operand.tensor for operand in value.inputs)
    return value.tensor.dtype == torch.float32 and not left.sparse and left.rows is not None and right.rows is None


def _is_block_sum(group: Group) -> bool:
    """A sum of unweighted rows over a block of a mini-batch, where rows have few edges."""
    value = group.anchor
    if value is None or value.op is not Op.SPMM or len(value.inputs) != 2 or value.get("self_coef"):
        return False
    is_block = value.inputs[0].op is Op.SAMPLE  # whose rows have as many edges as the fan-out says, or few
    return is_block and group.src_scale is None and value.tensor.dtype == torch.float32
