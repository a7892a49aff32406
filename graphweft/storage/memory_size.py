"""Sizes of memory as people write them.

Comes in: a number of bytes, or a text such as "8GB". Goes out: bytes. Called where a budget is given.
"""

from __future__ import annotations

import re
from typing import Any

from graphweft import _machine
from graphweft._budget import shown_bytes
from graphweft._errors import ConfigError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SHARE = 4  # of the machine's memory, where nothing is said


def memory_bytes(value: Any, name: str = "memory") -> int:
    """A budget in bytes; None is a quarter of the machine's memory. ``name``: of the option.

    Raises: ConfigError.

    Example:
        >>> memory_bytes("2GB"), memory_bytes("1.5 MiB"), memory_bytes(4096)
        (2000000000, 1572864, 4096)
    """
    if value is None:
        return _machine.memory() // _SHARE
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if found is not None and found[2].upper() in _UNITS and float(found[1]) > 0:
        return max(int(float(found[1]) * _UNITS[found[2].upper()]), 1)
    raise ConfigError(f"{name}: expected a size such as 8GB or 512MB, got {value!r}")


__all__ = ["memory_bytes", "shown_bytes"]
