"""What was measured or decided once, kept as small files in the cache folder: the one memory of all auto-tuners.

Comes in: a name, and how to decide. Goes out: the text that was decided, now or by an earlier process. Called by the
calibration, by what a trainer settles, and by compiled user functions. A cache that cannot be written is no failure,
and a file that is damaged counts as none.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from graphweft import _config

_MOST_TEXT = 1 << 24  # bytes


def known(name: str, valid: Callable[[str], bool] = lambda text: True) -> str | None:
    """The text kept under ``name``, a path in the cache folder; None where there is none that is ``valid``."""
    try:
        with _path(name).open("rb") as file:
            # no more than there is: of a large buffer, once freed, the C library takes how much free memory to keep
            text = file.read(min(os.fstat(file.fileno()).st_size, _MOST_TEXT)).decode("utf-8")
    except (OSError, ValueError):
        return None
    return text if valid(text) else None


def keep(name: str, text: str, first: bool = False) -> None:
    """Keeps ``text`` under ``name``, whole or not at all; ``first``: a text that is there already stays.

    Example:
        >>> with _config.config(cache_dir=tempfile.mkdtemp()):
        ...     keep("order.txt", "wide"), keep("order.txt", "narrow", first=True)
        ...     known("order.txt"), known("order.txt", str.isdigit)
        (None, None)
        ('wide', None)
    """
    path = _path(name)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            if first:
                with contextlib.suppress(FileExistsError):
                    os.link(scratch, path)
            else:
                Path(scratch).replace(path)
        finally:
            Path(scratch).unlink(missing_ok=True)


def decided(name: str, decide: Callable[[], str], valid: Callable[[str], bool]) -> str:
    """What is known under ``name``, else what ``decide`` says now; of several processes the first one wins."""
    found = known(name, valid)
    if found is not None:
        return found
    text = decide()
    if not valid(text):
        return text
    keep(name, text, first=True)
    found = known(name, valid)
    if found is None:  # what is there is damaged
        keep(name, text)
    return text if found is None else found


def _path(name: str) -> Path:
    return _config.current().cache_path / name


__all__ = ["decided", "keep", "known"]
