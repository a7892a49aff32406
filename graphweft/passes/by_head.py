"""Products by head side by side: what attention reads and gives beside its walks, in few calls.

Comes in: kernel groups of a target where a call costs more than what it moves. Goes out: fewer of them.

- ``<x[n, h], a[h]>`` and ``<x[n, h], b[h]>``, the scores of both ends, are one pass over x (``head_scores``).
- ``sum over n of s[n, h] x[n, h]`` for several s, the gradients of a and b, are one pass over x, and a bias of as many
  columns has its sums there, too (``head_sums``).
- ``s[n, h] a[h]``, which reaches the values by their scores, is added where the gradient of the values is stored.

Called by ``pipeline.py``. Source: Graphiler, section 5 (broadcast-compute-reduce fusion).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod

import torch

from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Program, Value
from graphweft.passes.fuse import is_head_product, ordered
from graphweft.passes.groups import AttentionGradients, Group, Joined


def join_heads(program: Program, groups: list[Group], phase: Mapping[Value, int]) -> list[Group]:
    """The groups that are left, in an order that respects operands."""
    joining = _Joining(program, groups, phase)
    joining.add_to_gradients()
    joining.score_together()
    joining.sum_together()
    position = {value: index for index, value in enumerate(program.values)}
    return ordered(joining.groups, position)


def is_score(value: Value) -> bool:
    """``<x[n, h], a[h]>``: a number per row and head, by a vector per head that is a leaf."""
    found = _letters(value)
    return found is not None and found[1:] == (found[0][1:], found[0][:2]) and value.inputs[1].op in LEAVES


def is_sum(value: Value) -> bool:
    """``sum over n of s[n, h] x[n, h]``: a vector per head."""
    found = _letters(value)
    return found is not None and found == (found[1][:2], found[1], found[1][1:]) and value.tensor.rows is None


def _letters(value: Value) -> tuple[str, str, str] | None:
    """The spec of a product of rows by head, ``nhc`` with n for the rows; None for anything else."""
    if value.op is not Op.EINSUM or len(value.inputs) != 2 or value.tensor.dtype != torch.float32:
        return None
    left, right, result = re.split(",|->", value["spec"])
    wide = max(left, right, key=len)
    return (left, right, result) if wide[0] == "n" and len(set(wide)) == len(wide) == 3 else None


class _Joining:
    """Groups, and who reads what."""

    def __init__(self, program: Program, groups: list[Group], phase: Mapping[Value, int]) -> None:
        self.groups, self._phase = groups, phase
        self._users = program.users()
        self._outputs = {value for _, value in program.outputs}

    def score_together(self) -> None:
        """Scores of the same rows."""
        first: dict[tuple[Value, int], Group] = {}
        for group in [g for g in self.groups if g.is_one_operation and is_score(g.result)]:
            self._join_first(first, (group.result.inputs[0], self._phase[group.result]), group, "head_scores")

    def sum_together(self) -> None:
        """Sums over the same rows by head, which nobody in the program reads, and column sums of the same shape."""
        first: dict[tuple[Value, int], Group] = {}
        for group in [g for g in self.groups if g.is_one_operation and is_sum(g.result) and not self._users[g.result]]:
            self._join_first(first, (group.result.inputs[1], self._phase[group.result]), group, "head_sums")
        for kept in [group for group in first.values() if group.inside]:
            rows = kept.result.inputs[1].tensor
            for group in self.groups:
                if self._is_column_sum(group, kept):
                    summed = group.result.inputs[0].tensor
                    if summed.rows == rows.rows and prod(summed.dims) == prod(rows.dims):
                        self._join(kept, group, "head_sums")
                        break

    def _is_column_sum(self, group: Group, kept: Group) -> bool:
        value = group.result
        plain = group.is_one_operation and value.op is Op.COL_SUM and not value.get("mean") and not self._users[value]
        return plain and value.tensor.dtype == torch.float32 and self._phase[value] == self._phase[kept.result]

    def _join_first(self, first: dict[tuple[Value, int], Group], key: tuple[Value, int], group: Group, to: str) -> None:
        """Joins a group to the first one of its key; a third stays alone."""
        kept = first.setdefault(key, group)
        if kept is not group and not kept.inside:
            first[key] = self._join(kept, group, to)

    def _join(self, kept: Group, group: Group, kernel: str) -> Group:
        """One call in the place of two."""
        chain, taps = (*(kept.inside or (kept.result,)), group.result), [*kept.taps, group.result]
        made = Joined(kept.anchor, None, kept.result, taps=taps, chain=chain, kernel=kernel)
        self.groups = [made if g is kept else g for g in self.groups if g is not group]
        return made

    def add_to_gradients(self) -> None:
        """What reaches the values of an attention by its scores, in the kernel of its gradients."""
        for group in list(self.groups):
            anchor = group.anchor
            if anchor is None or anchor.op is not Op.ATTENTION_GRAD or group.inside or anchor["score"] != "add":
                continue
            made = {v["wrt"]: v for v in (group.result, *group.taps)}
            if set(made) != {0, 1, 2} or made[0].tensor.dims != anchor.inputs[-1].tensor.dims:
                continue  # several heads share the values
            chain, current = [made[0], made[1], made[2]], made[0]
            while (found := self._added(current, made, chain)) is not None and found.anchor is not None:
                chain += [found.anchor, found.result]
                self.groups = [g for g in self.groups if g is not found]
                current = found.result
            if current is not made[0]:
                first, *taps = (current if v is made[0] else v for v in (group.result, *group.taps))
                joined = AttentionGradients(anchor, None, first, taps=taps, chain=tuple(chain))
                self.groups = [joined if g is group else g for g in self.groups]

    def _added(self, current: Value, made: Mapping[int, Value], inside: Iterable[Value]) -> Group | None:
        """The group that adds a score's share to ``current``, which nobody else reads."""
        if len(self._users[current]) != 1 or current in self._outputs:
            return None
        for group in self.groups:
            product = group.anchor
            if group.stages.get("addend") is not current or product is None or not is_head_product(product):
                continue
            number, vector = product.inputs if product.inputs[0].tensor.rows is not None else product.inputs[::-1]
            fits = number in (made[1], made[2]) and number.tensor.rows == current.tensor.rows
            alone = list(group.stages) == ["addend"] and not group.taps and not group.inside
            if fits and alone and vector.op in LEAVES and self._phase[group.result] == self._phase[current]:
                return None if any(number in v.inputs for v in inside) else group
        return None
