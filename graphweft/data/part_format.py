"""The format of a folder of parts: a folder a part, which a rank reads alone.

Comes in: a folder. Goes out: its :class:`PartManifest`, and the arrays of a part, compared with their checksums. Called
by the writer (:mod:`graphweft.data.part_folder`) and by :class:`graphweft.data.part_dataset.PartDataset`.

The folder has ``manifest.json`` and ``part-00000`` and so on; each of these has a copy of the manifest, and
``arrays.bin`` with the blocks of :data:`BLOCKS` as a store has them: each from a multiple of 4096 bytes on,
little-endian. Nodes of a part are its own, those without an edge from a ghost first, then its ghosts, owner by owner.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.part_check import ARRAYS, FORMAT, VERSION, crc_of_manifest, folder_of
from graphweft.data.part_rows import PartRows
from graphweft.storage.block_file import BlockFile
from graphweft.storage.block_io import aligned_empty, bytes_of, check_crc
from graphweft.storage.store_format import DTYPES, MANIFEST, Block, aligned

BLOCKS = ("x", "y", "split", "ids", "owner", "home", "degrees", "indptr", "indices")
_PIECE = 4 << 20  # bytes at a time of what does not stay in memory


@dataclass(frozen=True)
class PartInfo:
    """One part.

    Attributes:
        own, ghosts, edges: Its own nodes, the nodes that it borrows, the edges into own ones.
        train, val, test: Own nodes of each split.
        blocks: Its arrays.
    """

    own: int
    ghosts: int
    edges: int
    train: int
    val: int
    test: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class PartManifest:
    """What a folder of parts says of itself.

    Attributes:
        name, num_nodes, num_edges, num_features, num_classes, task, class_names, notes: Those of the dataset.
        method: How nodes came to their parts.
        parts: The parts.
        crc32: Of all of this, checksums of the arrays included.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    task: Any
    class_names: tuple[str, ...]
    notes: tuple[str, ...]
    method: str
    parts: tuple[PartInfo, ...]
    crc32: int = 0

    def to_json(self) -> str:
        """The text of ``manifest.json``."""
        held = {"format": FORMAT, "version": VERSION, **asdict(self)}
        del held["crc32"]
        return json.dumps({**held, "crc32": crc_of_manifest(held)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, who: str) -> PartManifest:
        """The inverse of :meth:`to_json`. Raises: DataError for another text, version or checksum."""
        try:
            held = json.loads(text)
            if not isinstance(held, dict) or held.get("format") != FORMAT:
                raise DataError(f"{who}: expected the manifest of a folder of parts, got another JSON text")
            if held.get("version") != VERSION:
                raise DataError(f"{who}: expected version {VERSION}, got {held.get('version')!r}; partition it anew")
            stated = held.pop("crc32", None)
            if stated != crc_of_manifest(held):
                raise DataError(
                    f"{who}: expected the checksum {stated}, got {crc_of_manifest(held)}; the file is damaged"
                )
            del held["format"], held["version"]
            parts = []
            for part in held.pop("parts"):
                blocks = tuple(Block(**{**block, "shape": tuple(block["shape"])}) for block in part.pop("blocks"))
                parts.append(PartInfo(**part, blocks=blocks))
            lists: dict[str, Any] = {name: tuple(held.pop(name)) for name in ("class_names", "notes")}
            made = cls(**held, **lists, parts=tuple(parts), crc32=stated)
            _check(made)
            return made
        except DataError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as failure:
            said = " ".join(str(failure).split())[:120]
            raise DataError(f"{who}: expected the manifest of a folder of parts, got a damaged one ({said})") from None


def _check(manifest: PartManifest) -> None:
    """Numbers are counts, and agree with each other and with the arrays. Raises: ValueError, TypeError, KeyError."""
    for name in ("num_nodes", "num_edges", "num_features", "num_classes"):
        _check_count(name, getattr(manifest, name))
    if not manifest.parts:
        raise ValueError("no parts")
    for number, part in enumerate(manifest.parts):
        for name in ("own", "ghosts", "edges", "train", "val", "test"):
            _check_count(f"{name} of part {number}", getattr(part, name))
        rows = part.own + part.ghosts
        wanted = {"x": (rows, manifest.num_features), "split": (part.own,), "ids": (rows,), "owner": (part.ghosts,)}
        wanted |= {"home": (part.ghosts,), "degrees": (rows,), "indptr": (part.own + 1,), "indices": (part.edges,)}
        for block in part.blocks:
            shape = (part.own, *block.shape[1:]) if block.name == "y" else wanted[block.name]
            for size in (*block.shape, block.offset, block.crc32):
                _check_count(f"{block.name} of part {number}", size)
            if block.shape != shape or block.dtype not in DTYPES:
                raise ValueError(f"{block.name} of part {number}: {block.dtype} {block.shape}, expected {shape}")
        if tuple(block.name for block in part.blocks) != BLOCKS:
            raise ValueError(f"arrays of part {number}")
    for name, sizes in (("num_nodes", "own"), ("num_edges", "edges")):
        if (total := sum(getattr(part, sizes) for part in manifest.parts)) != getattr(manifest, name):
            raise ValueError(f"{name} {getattr(manifest, name)}, {total} in all parts")


def _check_count(name: str, number: Any) -> None:
    if type(number) is not int or number < 0:
        raise ValueError(f"{name}: {number!r}")


def laid_out(arrays: dict[str, tuple[str, tuple[int, ...]]]) -> tuple[Block, ...]:
    """Blocks one after the other, without checksums, from (dtype, shape) by name."""
    blocks: list[Block] = []
    at = 0
    for name in BLOCKS:
        blocks.append(Block(name, *arrays[name], at))
        at = aligned(at + blocks[-1].nbytes)
    return tuple(blocks)


def read_manifest(path: Path, number: int | None = None) -> PartManifest:
    """The manifest of a folder, or the copy in part ``number``. Raises: DataError."""
    file = (path if number is None else folder_of(path, number)) / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{file}: expected a manifest in UTF-8, got other bytes; the file is damaged") from None
    except OSError as failure:
        raise DataError(f"{file}: expected the manifest of a part, got: {failure.strerror}") from None
    manifest = PartManifest.from_json(text, str(file))
    if number is not None and number >= len(manifest.parts):
        raise DataError(f"{path}: expected a part below {len(manifest.parts)}, got {number}")
    return manifest


def read_arrays(path: Path, manifest: PartManifest, number: int) -> tuple[dict[str, Tensor], PartRows]:
    """All arrays of a part by name but for its features, which stay in the file.

    Raises: DataError for a missing, truncated or damaged file.
    """
    file = folder_of(path, number) / ARRAYS
    found: dict[str, Tensor] = {}
    try:
        opened = BlockFile(file)
    except OSError as failure:
        raise DataError(f"{file}: expected the arrays of part {number}, got: {failure.strerror}") from None
    with opened as source:
        for block in manifest.parts[number].blocks:
            end = block.offset + block.nbytes
            if source.size < end:
                raise DataError(
                    f"{file}: expected block {block.name} up to byte {end}, got {source.size}; it is truncated"
                )
            if block.name == "x":
                check_crc(file, block.name, block.offset, block.crc32, _crc_of_bytes(source, block))
                continue
            table = aligned_empty(block.shape, DTYPES[block.dtype])
            source.read_into(block.offset, table)
            check_crc(file, block.name, block.offset, block.crc32, zlib.crc32(bytes_of(table)))
            found[block.name] = table
    try:
        rows = PartRows(file, next(block for block in manifest.parts[number].blocks if block.name == "x"))
    except OSError as failure:
        raise DataError(f"{file}: expected the features of part {number}, got: {failure.strerror}") from None
    return found, rows


def _crc_of_bytes(source: BlockFile, block: Block) -> int:
    """The checksum of a block, of which some is in memory at a time."""
    found, end = 0, block.offset + block.nbytes
    room = aligned_empty((min(_PIECE, max(block.nbytes, 1)),), torch.uint8)
    for at in range(block.offset, end, _PIECE):
        piece = room[: min(_PIECE, end - at)]
        source.read_into(at, piece)
        found = zlib.crc32(bytes_of(piece), found)
    return found


def crc_of(block: Tensor, before: int = 0) -> int:
    """The checksum of a contiguous tensor, after bytes with the checksum ``before``.

    Example:
        >>> import torch, zlib
        >>> crc_of(torch.tensor([1], dtype=torch.uint8)) == zlib.crc32(bytes([1]))
        True
    """
    return zlib.crc32(bytes_of(block), before)
