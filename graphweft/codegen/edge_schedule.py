"""Which steps and sinks of a loop nest over edges share a loop, and which totals are added apart.

Comes in: an :class:`EdgeNest`. Goes out: groups of its steps and sinks over the same dimensions, operands before users;
for a wide total of outer products, the two rows whose product it adds. Called by ``edge_cpp.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from graphweft.codegen.edge_nest import Dims, EdgeNest, Sink
from graphweft.codegen.loops import Operand

LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not"})  # of conditions, or of numbers
BOOL = frozenset({"eq", "ne", "lt", "le", "gt", "ge", *LOGICAL})
VIEWS = frozenset({"reshape", "expand", "permute", "slice"})
_WIDE_TOTAL = 256  # numbers of a total from which several edges are added at once

Item = tuple[str, int]  # ("step" or "sink", its number)


def base_of(nest: EdgeNest, operand: Operand) -> tuple[int | None, bool]:
    """The step that views look at, None for a source; and whether they leave every element in its place."""
    same = True
    while operand.kind == "result" and nest.steps[operand.index].kind in VIEWS:
        step = nest.steps[operand.index]
        kept = step.kind in ("reshape", "expand")
        same &= kept and squeezed(step.dims) == squeezed(nest.dims_of(step.operands[0]))
        operand = step.operands[0]
    return (operand.index if operand.kind == "result" else None), same


def is_logic(nest: EdgeNest, operand: Operand) -> bool:
    """Whether what is read are conditions."""
    if operand.kind == "number":
        return False
    while operand.kind == "result" and nest.steps[operand.index].kind in VIEWS:
        operand = nest.steps[operand.index].operands[0]
    if operand.kind == "input":
        return nest.sources[operand.index].logic
    return dict(nest.steps[operand.index].attrs).get("fn") in BOOL


def operands_of(nest: EdgeNest, item: Item) -> tuple[Operand, ...]:
    """What a step or sink reads."""
    kind, k = item
    return nest.steps[k].operands if kind == "step" else (nest.sinks[k].operand,)


def domain_of(nest: EdgeNest, item: Item) -> Dims:
    """The dimensions of the loops that compute a step or feed a sink."""
    kind, k = item
    if kind == "sink":
        return nest.sinks[k].dims
    step = nest.steps[k]
    return nest.dims_of(step.operands[0]) if step.kind == "sum" else step.dims


def outer_rows(nest: EdgeNest, sink: Sink) -> tuple[Operand, Operand] | None:
    """The two rows whose outer product a sink takes, in the order of its dimensions; None for any other."""
    sizes, operand = squeezed(sink.dims), sink.operand
    if len(sizes) != 2 or prod(sizes) < _WIDE_TOTAL or operand.kind != "result":
        return None
    step = nest.steps[operand.index]
    if step.kind != "ewise" or step["fn"] != "mul" or step.dims != sink.dims:
        return None
    first, second = step.operands
    if any(o.kind == "number" or is_logic(nest, o) for o in step.operands):
        return None
    shapes = [_placed(nest.dims_of(o), sink.dims) for o in step.operands]
    if shapes == [(sizes[0], 1), (1, sizes[1])]:
        return first, second
    return (second, first) if shapes == [(1, sizes[1]), (sizes[0], 1)] else None


def _placed(dims: Dims, whole: Dims) -> Dims:
    """``dims`` on the axes where ``whole`` has more than one element."""
    full = (1,) * (len(whole) - len(dims)) + dims
    return tuple(own for own, size in zip(full, whole, strict=True) if size != 1)


def schedule(nest: EdgeNest, apart: Collection[Item] = ()) -> list[list[Item]]:
    """Steps and sinks, but for those ``apart``, in groups of one loop each, operands before users."""
    waiting: list[Item] = [("step", k) for k, step in enumerate(nest.steps) if step.kind not in VIEWS]
    waiting += [("sink", k) for k in range(len(nest.sinks))]
    waiting = [item for item in waiting if item not in apart]
    done: set[int] = set()
    groups: list[list[Item]] = []

    while waiting:
        group: list[Item] = []
        here: set[int] = set()
        domain: Dims | None = None
        axes: object = None
        for item in list(waiting):
            kind, k = item
            step = nest.steps[k] if kind == "step" else None
            alone = step is not None and step.kind in ("cat", "unslice")
            if group and (alone or domain_of(nest, item) != domain):
                continue
            bases = [base_of(nest, operand) for operand in operands_of(nest, item)]
            ready = all(index is None or index in done or (index in here and same) for index, same in bases)
            if not ready or (step is not None and step.kind == "sum" and axes not in (None, step["axes"])):
                continue
            domain = domain_of(nest, item)
            group.append(item)
            waiting.remove(item)
            if step is not None and step.kind == "sum":
                axes = step["axes"]
            elif step is not None and step.kind == "ewise":
                here.add(k)
            if alone:
                break
        groups.append(group)
        done |= {k for kind, k in group if kind == "step"}
    return groups


def squeezed(dims: Dims) -> Dims:
    """The dimensions of more than one element."""
    return tuple(size for size in dims if size != 1)
