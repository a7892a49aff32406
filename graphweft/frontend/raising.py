"""From a recorded function to IR: operation by operation, with the residency of every value.

Comes in: a :class:`Traced` function, and its fields and captured tensors as raised values. Goes out: its outputs as
raised values. Only what an output depends on is raised. Called by ``udf.py``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from graphweft._errors import IRError
from graphweft._torch_private import pytree
from graphweft.frontend.algebra import REDUCE, Algebra
from graphweft.frontend.layout import Known, Raised, Symbols, UnraisableError
from graphweft.frontend.pairs import find_margins, raise_margin
from graphweft.frontend.rules import RULES, Out
from graphweft.frontend.trace import Traced
from graphweft.ir.program import reached


def raise_function(
    traced: Traced, algebra: Algebra, fields: Mapping[str, Raised], captured: Sequence[Raised], constants: Any
) -> tuple[dict[str, Raised], dict[int, Raised]]:
    """Outputs and new contents of buffers. ``constants(tensor)`` gives the raised value of a constant tensor.

    Raises: UnraisableError naming the operation and the user's line.
    """
    env = _Env(constants)
    env.update({node: fields[name] for name, node in traced.inputs.items() if name in fields})
    env.update(zip(traced.captured, captured, strict=True))
    wanted = [*traced.outputs.values(), *traced.updates.values()]
    needed = _needed(traced, wanted)
    _check_writes(traced, set(needed))
    margins = find_margins(needed, traced.symbols) if algebra.stage.name == REDUCE else {}
    inside = {node for margin in margins.values() for node in margin.inside}
    for node in needed:
        if _is_complex(node):
            raise UnraisableError("complex numbers", node.meta.get("line"))
        if node in env or node in inside or env.folds(traced, node):
            continue
        try:
            if node in margins:
                env[node] = raise_margin(algebra, margins[node], env[margins[node].high], env[margins[node].low])
            else:
                env[node] = _node(traced, algebra, node, env)
        except UnraisableError as failure:
            text = f"{_name(node)} ({failure.what})" if node.op == "call_function" else failure.what
            raise UnraisableError(text, failure.line or node.meta.get("line")) from failure
        except IRError as failure:
            raise UnraisableError(f"{_name(node)} ({failure})", node.meta.get("line")) from failure
    outputs = {name: env[node] for name, node in traced.outputs.items()}
    return outputs, {at: env[node] for at, node in traced.updates.items()}


class _Env(dict[Node, Any]):
    """Raised values by node. What follows from constants alone is computed at once, and raised where it is read."""

    def __init__(self, constants: Any) -> None:
        super().__init__()
        self._constants = constants
        self._tensors: dict[Any, Any] = {}

    def folds(self, traced: Traced, node: Node) -> bool:
        """Computes the result of ``node`` if it is a constant; whether it is."""
        if node.op == "get_attr":
            self._tensors[node] = getattr(traced.module, str(node.target))
        elif node.op == "call_function" and not isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat):
            leaves = pytree.tree_leaves((node.args, node.kwargs))
            if all(leaf in self._tensors for leaf in leaves if isinstance(leaf, Node)) and _is_pure(node.target):
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._tensors.__getitem__)
                self._tensors[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return node in self._tensors

    def __missing__(self, node: Node) -> Raised:
        tensor = self._tensors[node]
        made = self._constants(tensor)
        self[node] = known = Known(made.value, made.axes, tensor)
        return known


def _is_pure(target: Any) -> bool:
    """Whether a call gives the same every time and changes nothing."""
    if target is operator.getitem:
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and not schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _is_complex(node: Node) -> bool:
    """Whether a result, or an input, is of complex numbers."""
    made = node.meta.get("val")
    return isinstance(made, Tensor) and made.is_complex()


def _needed(traced: Traced, wanted: Iterable[Node]) -> list[Node]:
    """What ``wanted`` depends on, in order."""

    def operands(node: Node) -> list[Node]:
        return [] if isinstance(node.meta.get("val"), torch.SymInt | int) else node.all_input_nodes

    found = reached(wanted, operands)
    return [node for node in traced.graph.nodes if node in found]


def _name(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    operation = str(node.target) if schema is None else str(schema.name).partition("::")[2]
    called = node.meta.get("call", operation)
    return str(called if called == operation else f"{called}: {operation}")


def _node(traced: Traced, algebra: Algebra, node: Node, env: Mapping[Node, Any]) -> Any:
    meta = node.meta.get("val")
    if isinstance(meta, torch.SymInt | torch.SymFloat | int | float | bool):
        return meta
    if node.op != "call_function":
        raise UnraisableError(f"an input of the kind {node.op}")
    if node.target is operator.getitem:
        part = env[node.args[0]][node.args[1]]  # type: ignore[index]
        if part is None:
            raise UnraisableError("positions of extrema or other results that have no counterpart")
        return part
    if node.target is torch.ops.aten.copy_.default:
        _check_overwritten(node)
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: env[n])
    rule = RULES.get(node.target)
    if rule is None:
        raise UnraisableError("it is not an operation on edges and nodes that can be compiled")
    return rule(algebra, _out(traced.symbols, meta), *args, **kwargs)


def _check_writes(traced: Traced, needed: set[Node]) -> None:
    """Nothing is written in place beside what is raised, but for buffers."""
    for node in traced.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable or node in needed:
            continue
        if not (isinstance(node.args[0], Node) and node.args[0].op == "placeholder"):
            raise UnraisableError(f"{_name(node)} (it writes in place)", node.meta.get("line"))


def _check_overwritten(node: Node) -> None:
    """What an in-place copy overwrites is not read again by its old name."""
    order = {other: at for at, other in enumerate(node.graph.nodes)}
    target: Any = node.args[0]
    while isinstance(target, Node):
        if any(order[user] > order[node] for user in target.users):
            raise UnraisableError("an overwritten tensor that is read again")
        viewed = target.target is operator.getitem or getattr(target.target, "is_view", False)
        target = target.args[0] if viewed else None


def _out(symbols: Symbols, meta: Any) -> Any:
    """Shape and dtype of a result; None for a tuple, whose rules read neither."""
    return Out(symbols.shape(meta.shape), meta.dtype) if isinstance(meta, Tensor) else None
