"""Places: which memory rows lie in, and the two operations that move them to another.

Comes in: operand types and attributes. Goes out: the result type, or an IRError. ``move_start`` begins to move rows,
``move_wait`` gives them once they are there; what is computed between the two runs at the same time. All other
operations take their rows from one place and leave the result there. Shared operands, ids and graphs are read from
everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphweft._errors import IRError
from graphweft.ir.expect import expect_dense, expect_index, require
from graphweft.ir.residency import HOST, Movement, TensorType, Type


def move_start(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """(rows, what moves them) -> the same on their way to the place ``to``."""
    x = expect_dense("move_start", types[0])
    require("move_start", x.rows is not None and x.place != attrs["to"], f"rows that are not at {attrs['to']}", x)
    require("move_start", expect_index("move_start", types[1]).rows is None, "what moves them", types[1])
    return replace(x, place=attrs["to"], arrived=False)


def move_wait(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Rows on their way -> the same once they are there."""
    x = types[0]
    if not isinstance(x, TensorType) or x.arrived:
        raise IRError(f"move_wait: expected rows on their way, got {x}")
    return replace(x, arrived=True)


def placed(op: str, movement: Movement, types: Sequence[Type], made: Type) -> Type:
    """``made`` where its operands lie. Raises: IRError for operands in several places."""
    if movement in (Movement.PLACE, Movement.LEAF):
        return made
    places = {t.place for t in types if isinstance(t, TensorType) and t.rows is not None}
    if places <= {HOST}:
        return made
    require(op, len(places) == 1, "rows in one place", " and ".join(sorted(places)))
    is_rows = isinstance(made, TensorType) and made.rows is not None
    return replace(made, place=places.pop()) if is_rows and isinstance(made, TensorType) else made
