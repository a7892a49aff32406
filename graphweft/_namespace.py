"""Public names of a package whose modules import one another: they are imported when they are first asked for."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(namespace: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for package ``namespace`` that imports each name of ``homes`` from its module."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {namespace!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return find
