"""Arguments of the classes ``Data``, ``HeteroData`` and ``Batch`` of PyTorch Geometric, taken apart into their tensors.

Comes in: the flat arguments of a module of ``gw.compile``. Goes out: the same with the contents of such objects in
their place, and a way to put others there. Called by ``compiled_call.py``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Hashable, Sequence
from typing import Any

from graphweft._torch_private import pytree
from graphweft.frontend.layout import UnraisableError

_PLAIN = (bool, int, float, str, type(None))


class Opened:
    """Flat arguments with such objects taken apart.

    Args:
        flat: The arguments.

    Attributes:
        flat: Those, with the contents of an object in its place.
        key: What the objects are beside their contents; two are equal where code cannot tell them apart otherwise.
    """

    def __init__(self, flat: Sequence[Any]) -> None:
        self.flat: list[Any] = []
        self._parts: list[tuple[Any, Any, int]] = []  # object or None for an item as it is, its form, its length
        key: list[Hashable] = []
        for item in flat:
            if not _is_data(item):
                self.flat.append(item)
                self._parts.append((None, None, 1))
                continue
            leaves, spec = pytree.tree_flatten([dict(store._mapping) for store in item.stores])
            named = tuple(getattr(store, "_key", None) for store in item.stores)
            extra = tuple((name, value) for name, value in vars(item).items() if isinstance(value, _PLAIN))
            key.append((len(self._parts), type(item), spec, named, extra))
            self.flat.extend(leaves)
            self._parts.append((item, spec, len(leaves)))
        self.key: Hashable = tuple(key)
        self._made: list[tuple[Any, list[dict[str, Any]]]] = []

    def closed(self, flat: Sequence[Any]) -> list[Any]:
        """Arguments as the module takes them, with copies of the objects that hold other contents."""
        made: list[Any] = []
        self._made = []
        start = 0
        for item, spec, length in self._parts:
            leaves, start = list(flat[start : start + length]), start + length
            if item is None:
                made.extend(leaves)
                continue
            other = copy.copy(item)
            contents = pytree.tree_unflatten(leaves, spec)
            for store, content in zip(other.stores, contents, strict=True):
                store._mapping.clear()
                store._mapping.update(content)
            self._made.append((other, [dict(content) for content in contents]))
            made.append(other)
        return made

    def check(self) -> None:
        """Refuses code that changed the objects, which later calls would not see.

        Raises: UnraisableError.
        """
        for made, contents in self._made:
            for store, before in zip(made.stores, contents, strict=False):
                now = store._mapping
                if list(now) != list(before) or any(now[name] is not before[name] for name in before):
                    raise UnraisableError(f"a change of an argument of the class {type(made).__name__}")
            if len(made.stores) != len(contents):
                raise UnraisableError(f"a change of an argument of the class {type(made).__name__}")


def has_data(flat: Sequence[Any]) -> bool:
    """Whether such objects are among the arguments."""
    return any(map(_is_data, flat))


def _is_data(item: Any) -> bool:
    if isinstance(item, _PLAIN):
        return False
    module = sys.modules.get("torch_geometric.data.data")
    return module is not None and isinstance(item, module.BaseData)


__all__ = ["Opened", "has_data"]
