"""What follows from a graph, a block or an adjacency alone, made once and kept as long as that lives.

Comes in: an owner that never changes, and a function that makes a value from it. Goes out: the value. Called wherever a
value depends on structure and nothing else: typed pairs, degrees without loops, receivers, row orders.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from graphweft._torch_private import without_transforms

Made = TypeVar("Made")

_KEPT: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def derived(owner: Any, make: Callable[..., Made], *arguments: Any) -> Made:
    """``make(owner, *arguments)``, computed at the first call and kept with ``owner``.

    Args:
        owner: A graph, block or adjacency, or a module whose settings are among the arguments; it must not be reachable
            from the value, which would keep it alive.
        make: A function of a module; function and arguments are the key.
        arguments: Hashable values.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> graph = Graph([0, 1], [1, 2])
        >>> def degrees(graph):
        ...     return graph.in_degrees()
        >>> derived(graph, degrees) is derived(graph, degrees)
        True
    """
    kept = _KEPT.get(owner)
    if kept is None:
        kept = _KEPT.setdefault(owner, {})
    key = (make, *arguments) if arguments else make
    try:
        return kept[key]  # type: ignore[no-any-return]
    except KeyError:
        with without_transforms():  # of torch.func around a call: structure is a constant, and outlives them
            made: Made = kept.setdefault(key, make(owner, *arguments))
        return made


def keep(owner: Any, make: Callable[..., Made], value: Made, *arguments: Any) -> None:
    """``derived(owner, make, *arguments)`` is ``value`` from now on, where that is known without computing it.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> graph = Graph([0, 1], [1, 2])
        >>> def degrees(graph):
        ...     return graph.in_degrees()
        >>> keep(graph, degrees, 7)
        >>> derived(graph, degrees)
        7
    """
    _KEPT.setdefault(owner, {})[(make, *arguments) if arguments else make] = value


def is_derived(owner: Any, make: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the value is at hand."""
    return ((make, *arguments) if arguments else make) in _KEPT.get(owner, {})


def while_used(owner: Any, make: Callable[[Any], Made]) -> Made:
    """``make(owner)``, kept as long as somebody else holds it: one copy of what is large and wanted by some.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> graph = Graph([0, 1], [1, 2])
        >>> first = while_used(graph, Graph.reverse)
        >>> while_used(graph, Graph.reverse) is first
        True
    """
    found = _KEPT.get(owner, {}).get((while_used, make), _no_longer)()
    if found is None:
        with without_transforms():
            found = make(owner)
        _KEPT.setdefault(owner, {})[(while_used, make)] = weakref.ref(found)
    return found  # type: ignore[no-any-return]


def _no_longer() -> None:
    """As a weak reference to nothing."""


__all__ = ["derived", "is_derived", "keep", "while_used"]
