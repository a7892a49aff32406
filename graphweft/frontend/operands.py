"""The parts of an operation's operands: tensors and numbers in lists, tuples and dicts.

Comes in: arguments of a function of torch. Goes out: its leaves, or the same form with others. As torch's own trees,
which ask every part for its class's rules and take several times as long; what is of another class is left to them.
Called by what records modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphweft._torch_private import pytree

# classes whose instances have no parts; more are added where they are defined
LEAVES: set[type] = {Tensor, torch.nn.Parameter, int, float, bool, str, type(None), torch.dtype, torch.device}


def leaves(tree: Any) -> list[Any]:
    """All parts in order.

    Example:
        >>> leaves(([1, None], {"dim": (2, "sum")}))
        [1, None, 2, 'sum']
    """
    found: list[Any] = []
    _gather(tree, found)
    return found


def _gather(tree: Any, found: list[Any]) -> None:
    kind = type(tree)
    if kind in LEAVES or isinstance(tree, Tensor):
        found.append(tree)
    elif kind is tuple or kind is list:
        for part in tree:
            _gather(part, found)
    elif kind is dict:
        for part in tree.values():
            _gather(part, found)
    else:
        found.extend(pytree.tree_leaves(tree))


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same form with ``change`` of every part.

    Example:
        >>> mapped(lambda part: part + 1, ([1, 2], {"dim": (3,)}))
        ([2, 3], {'dim': (4,)})
    """
    kind = type(tree)
    if kind in LEAVES or isinstance(tree, Tensor):
        return change(tree)
    if kind is tuple:
        return tuple([mapped(change, part) for part in tree])
    if kind is list:
        return [mapped(change, part) for part in tree]
    if kind is dict:
        return {name: mapped(change, part) for name, part in tree.items()}
    return pytree.tree_map(change, tree)


def mapped_tensors(change: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same form with ``change`` of every tensor."""
    return mapped(lambda part: change(part) if isinstance(part, Tensor) else part, tree)


__all__ = ["LEAVES", "leaves", "mapped", "mapped_tensors"]
