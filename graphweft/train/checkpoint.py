"""Checkpoints: one file a state, whole or not there, checked when read.

Comes in: nested dicts of tensors, numbers and strings. Goes out: a ``.pt`` file that
``torch.load(weights_only=True)`` reads. Called by the run folder. A checksum over everything but measured times finds
damage that the archive's own does not.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from graphweft._checks import as_plain
from graphweft._errors import CheckpointError, ConfigError
from graphweft.train.atomic import write_atomic

FORMAT = 1
_CHECKSUM = "checksum"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes ``state`` atomically, with its format number and checksum.

    Raises: OSError when the folder cannot be written or the disk is full.
    """
    content = {"format": FORMAT, **state}
    content[_CHECKSUM] = checksum(content)
    write_atomic(path, lambda file: torch.save(content, file))


def plain_state(who: str, value: Any, tensors: bool = True) -> Any:
    """``value`` as a checkpoint can hold it: tensors, unless these are ruled out, numbers, texts, lists and dicts.

    Raises: ConfigError that begins with ``who`` for anything else.

    Example:
        >>> import numpy as np
        >>> plain_state("config: expected a dict", {"rate": np.float64(0.5), "sizes": [np.int64(3)]})
        {'rate': 0.5, 'sizes': [3]}
    """
    value = as_plain(value)
    if isinstance(value, dict):
        return {plain_state(who, key, tensors): plain_state(who, item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain_state(who, item, tensors) for item in value)
    if type(value) in (int, float, str, bool, type(None)) or (tensors and isinstance(value, torch.Tensor)):
        return value
    known = f"{'tensors, ' if tensors else ''}numbers, texts, lists and dicts"
    raise ConfigError(f"{who} with {known}, got {type(value).__name__} in it")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What :func:`save_checkpoint` wrote. Nothing in the file is ever executed.

    Raises: CheckpointError when the file is damaged, of another format or none of ours; OSError when it cannot be
    opened.
    """
    with path.open("rb") as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as failure:  # torch raises many kinds, some with pages of advice; the file is what is wrong
            raise _damaged(path, type(failure).__name__) from None
    if not isinstance(content, dict) or "format" not in content:
        raise CheckpointError(f"{path}: expected a checkpoint of graphweft, got another file")
    if content["format"] != FORMAT:
        raise CheckpointError(f"{path}: expected a checkpoint of format {FORMAT}, got format {content['format']}")
    expected = content.pop(_CHECKSUM, None)
    if expected != checksum(content):
        raise _damaged(path, "a wrong checksum")
    return content


def checksum(value: Any) -> int:
    """CRC-32 of nested dicts, lists, tensors, numbers and strings, leaving out keys that hold measured times.

    Example:
        >>> checksum({"a": 1, "seconds": 2.0}) == checksum({"a": 1, "seconds": 3.0})
        True
    """
    crc = 0
    for piece in _pieces(value):
        crc = zlib.crc32(piece, crc)
    return crc


def _pieces(value: Any) -> Iterator[bytes | memoryview]:
    """Bytes that stand for ``value``, in the order of its keys."""
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        flat = value.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            yield memoryview(flat.view(torch.uint8).numpy().data)
    elif isinstance(value, dict):
        yield b"{"
        for key, item in value.items():
            if "seconds" not in str(key):
                yield repr(key).encode()
                yield from _pieces(item)
        yield b"}"
    elif isinstance(value, list | tuple):
        yield b"["
        for item in value:
            yield from _pieces(item)
        yield b"]"
    else:
        yield repr(value).encode()


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: expected a whole checkpoint, got a damaged file ({what}); "
        "delete it, or leave --resume out, to start over"
    )
