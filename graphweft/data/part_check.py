"""Whether a folder of parts is whole, found out without torch: by who starts ranks, while these still import it.

Comes in: a folder and a number of ranks. Goes out: what is wrong with it, in the words of the ranks that would read it.
Called by ``graphweft train --ranks``; ranks of other machines find it out by themselves.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

FORMAT, VERSION = "graphweft-parts", 1
MANIFEST, ARRAYS = "manifest.json", "arrays.bin"
_PIECE = 4 << 20  # bytes at a time


def crc_of_manifest(held: dict[str, Any]) -> int:
    """The checksum of a manifest without its own."""
    return zlib.crc32(json.dumps(held, sort_keys=True).encode())


def folder_of(path: Path, number: int) -> Path:
    """Where a part lies.

    Example:
        >>> folder_of(Path("parts"), 3).name
        'part-00003'
    """
    return path / f"part-{number:05d}"


def is_parts(path: str | Path) -> bool:
    """Whether a folder holds parts, whole or damaged."""
    try:
        with (Path(path) / MANIFEST).open("rb") as file:
            return FORMAT.encode() in file.read(200)
    except (OSError, ValueError):
        return False


def wrong_checksum(file: Path, name: str, offset: int, stated: int, found: int) -> str:
    """What is said of a block whose bytes have another checksum."""
    return f"{file}: expected the checksum {stated} of block {name} at byte {offset}, got {found}; the file is damaged"


def why_not(path: str | Path, ranks: int) -> str:
    """Why so many ranks cannot train from a folder: its manifest, its number of parts, a part; empty where they can.

    A folder of some of the parts, without a manifest of the whole, is left to the ranks.
    """
    root = Path(path)
    file = root / MANIFEST
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        stated, found = held.pop("crc32"), crc_of_manifest(held)
        if stated != found:
            return f"{file}: expected the checksum {stated}, got {found}; the file is damaged"
        parts = [[(b["name"], b["offset"], _bytes_of(b), b["crc32"]) for b in part["blocks"]] for part in held["parts"]]
    except OSError:
        return ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{file}: expected the manifest of a folder of parts, got a damaged one"
    if len(parts) != ranks:
        return f"ranks: expected as many as {root} has parts, {len(parts)}, got {ranks}"
    return next(filter(None, (_damage(root, number, blocks, stated) for number, blocks in enumerate(parts))), "")


def _wrong_copy(root: Path, number: int, whole: int) -> str:
    """What is wrong with a part's copy of the manifest, whose checksum is ``whole``."""
    file = folder_of(root, number) / MANIFEST
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        stated, found = held.pop("crc32"), crc_of_manifest(held)
    except OSError as failure:
        return f"{file}: expected the manifest of a part, got: {failure.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{file}: expected the manifest of a folder of parts, got a damaged one"
    if stated != found:
        return f"{file}: expected the checksum {stated}, got {found}; the file is damaged"
    return "" if stated == whole else not_together(root, number, stated, whole)


def not_together(root: Path, number: int, own: int, whole: int) -> str:
    """What is said of a part whose copy of the manifest has another checksum than that of the folder."""
    said = f"expected the checksum {own} that part {number} has, got {whole}"
    return f"{root / MANIFEST}: {said}; the parts were not written together"


def _damage(root: Path, number: int, blocks: list[tuple[str, int, int, int]], whole: int) -> str:
    """What is wrong with a part; ``blocks``: name, offset, bytes and checksum of each of its arrays."""
    if said := _wrong_copy(root, number, whole):
        return said
    file = folder_of(root, number) / ARRAYS
    try:
        with file.open("rb") as handle:
            for name, offset, size, stated in blocks:
                handle.seek(offset)
                found, left = 0, size
                while left and (piece := handle.read(min(left, _PIECE))):
                    found, left = zlib.crc32(piece, found), left - len(piece)
                if left:
                    end = offset + size
                    return f"{file}: expected block {name} up to byte {end}, got {end - left}; it is truncated"
                if found != stated:
                    return wrong_checksum(file, name, offset, stated, found)
    except OSError as failure:
        return f"{file}: expected the arrays of part {number}, got: {failure.strerror}"
    return ""


_BYTES = {"uint8": 1, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4}


def _bytes_of(block: dict[str, Any]) -> int:
    """Of a block of a manifest. Raises: KeyError for an unknown dtype."""
    return int(math.prod(block["shape"])) * _BYTES[block["dtype"]]
