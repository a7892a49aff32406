"""A store opened for reading: a graph on disk, part by part.

Comes in: the folder that ``graphweft prepare`` wrote. Goes out: arrays of its parts, read in large requests and
checked. Called by users as ``gw.Store`` and by the loader of macro-batches.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import DataError, IndexRangeError
from graphweft.storage.block_file import BlockFile
from graphweft.storage.block_io import ReadCounts, aligned_empty, bytes_of, check_crc, mapped
from graphweft.storage.requests import SECTOR
from graphweft.storage.store_format import BLOCKS, DTYPES, FORMAT, MANIFEST, SPLIT_BITS, Block, Manifest

_MOST_MANIFEST = 1 << 30
_PIECE = 8 << 20  # bytes of a block that are read at a time where only some of its rows are wanted
_FEW = 16  # one row in so many is picked by itself


@dataclass(frozen=True)
class StoredPart:
    """The arrays of one part.

    Attributes:
        start: Id of its first node in the store.
        x: (n, F) features in the dtype of the store; None without.
        y: Labels, (n,) int64 or float32, or (n, C) float32.
        split: (n,) uint8: 1 training, 2 validation, 4 test, or a sum of them.
        node_ids: (n,) int64 rows that the nodes had in the source.
        indptr: (n + 1,) int64.
        indices: Ids in the store of the sources of each node's in-edges, ascending, int32 or int64.
    """

    start: int
    x: Tensor | None
    y: Tensor
    split: Tensor
    node_ids: Tensor
    indptr: Tensor
    indices: Tensor

    @property
    def num_nodes(self) -> int:
        """Nodes of the part."""
        return self.split.numel()


class Store:
    """A graph on disk.

    Nodes are numbered part after part: part i has the ids ``bounds[i]`` to ``bounds[i + 1]``. Every block is compared
    with its checksum when it is first read.

    Args:
        path: The folder.
        verify: Compare checksums.

    Attributes:
        path: The folder.
        manifest: What the store says of itself.
        bounds: int64 (parts + 1,) first id of every part, and the number of nodes.
        counts: What was read so far.

    Raises: DataError of one line for what is no store, an unfinished or a damaged one.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.synthetic import synthetic
        >>> store = prepare_store(synthetic("default", scale=0.02), tempfile.mkdtemp() + "/store", parts=4)
        >>> len(store), store.num_nodes == sum(store.part(i).num_nodes for i in range(4))
        (4, True)
    """

    def __init__(self, path: str | os.PathLike[str], verify: bool = True) -> None:
        self.path = Path(path)
        self.manifest = _read_manifest(self.path)
        self.bounds: NDArray[np.int64] = np.zeros(len(self.manifest.parts) + 1, np.int64)
        np.cumsum([part.nodes for part in self.manifest.parts], out=self.bounds[1:])
        self.counts = ReadCounts()
        self._verify, self._seen = verify, set[tuple[int, str]]()

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.manifest.name

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph."""
        return self.manifest.num_nodes

    @property
    def num_edges(self) -> int:
        """Directed edges of the graph."""
        return self.manifest.num_edges

    @property
    def num_features(self) -> int:
        """Columns of the features; 0 without."""
        return self.manifest.shape.num_features

    @property
    def num_classes(self) -> int:
        """Classes, labels or values a node; 0 where nothing is labelled."""
        return self.manifest.num_classes

    @property
    def feature_dtype(self) -> torch.dtype:
        """Of the features as they lie on disk."""
        return DTYPES[self.manifest.shape.feature_dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts on disk."""
        return sum(part.nbytes for part in self.manifest.parts)

    def __len__(self) -> int:
        return len(self.manifest.parts)

    def __repr__(self) -> str:
        return (
            f"Store({str(self.path)!r}, {self.num_nodes} nodes, {self.num_edges} edges, {self.num_features} features, "
            f"{len(self)} parts)"
        )

    def part(self, number: int, *, mapped: bool = False) -> StoredPart:
        """All arrays of a part: read, or with ``mapped`` as maps of its file, whose pages are read when touched.

        Raises: IndexRangeError for a part that is none; DataError for a file that is damaged.
        """
        if not 0 <= number < len(self):
            raise IndexRangeError(f"Store.part: expected a part in [0, {len(self)}), got {number}")
        found = {name: self.block(number, name, mapped=mapped) for name in BLOCKS}
        x = found["x"] if self.num_features else None
        rest = {name: found[name] for name in BLOCKS if name != "x"}
        return StoredPart(int(self.bounds[number]), x, **rest)

    def block(self, number: int, name: str, out: Tensor | None = None, *, mapped: bool = False) -> Tensor:
        """One array of a part, into ``out`` where that is given. Raises: DataError."""
        block = self.manifest.parts[number].block(name)
        if mapped:
            self.check(number, name)
            return self._mapped(number, block)
        with self._opened(number, block) as file:
            found = aligned_empty(block.shape, DTYPES[block.dtype]) if out is None else out
            file.read_into(block.offset, found)
            if self._verify and (number, name) not in self._seen:
                check_crc(file.path, name, block.offset, block.crc32, zlib.crc32(bytes_of(found)))
        self._seen.add((number, name))
        return found

    def check(self, number: int, name: str, memory: int = _PIECE) -> None:
        """Compares a block with its checksum, where that was not done yet, in pieces of at most ``memory`` bytes.

        Raises: DataError.
        """
        block = self.manifest.parts[number].block(name)
        if not self._verify or (number, block.name) in self._seen:
            return
        crc = 0
        step = max(min(memory, _PIECE) // SECTOR, 1) * SECTOR
        piece = aligned_empty((min(step, block.nbytes),), torch.uint8)
        with self._opened(number, block) as file:
            for first in range(0, block.nbytes, step):
                part = piece[: min(step, block.nbytes - first)]
                file.read_into(block.offset + first, part)
                crc = zlib.crc32(bytes_of(part), crc)
            check_crc(file.path, block.name, block.offset, block.crc32, crc)
        self._seen.add((number, block.name))

    def verify(self) -> int:
        """Reads every block and compares its checksum; the bytes that were read. Raises: DataError."""
        before = self.counts.nbytes
        self._seen.clear()
        former, self._verify = self._verify, True
        try:
            for number in range(len(self)):
                for name in BLOCKS:
                    self.block(number, name)
        finally:
            self._verify = former
        return self.counts.nbytes - before

    @property
    def edge_counts(self) -> NDArray[np.int64]:
        """(parts,) edges into every part."""
        return np.array([part.edges for part in self.manifest.parts], np.int64)

    def labels(self, number: int) -> Tensor:
        """The labels of a part."""
        return self.block(number, "y")

    def structure(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
        """Offsets and source ids of a part's in-edges."""
        return self.block(number, "indptr").numpy(), self.block(number, "indices").numpy()

    def features_into(self, number: int, out: Tensor) -> None:
        """The features of a part, (n, F), into ``out``, in the dtype of the store."""
        self.block(number, "x", out)

    def feature_range(self, number: int, first: int, end: int, buffer: Tensor) -> tuple[Tensor, ReadCounts]:
        """Rows ``first`` to ``end`` of a part's features, (end - first, F), in ``buffer``, and what was read.

        ``buffer``: uint8, page-aligned, with 8192 bytes to spare.
        """
        block = self.manifest.parts[number].block("x")
        self.check(number, "x")
        width = block.nbytes // block.shape[0]
        with self._opened(number, block) as file:
            rows = file.read_span(block.offset + first * width, block.offset + end * width, buffer)
            return rows.view(self.feature_dtype).view(end - first, -1), file.counts

    def feature_rows(self, ids: NDArray[np.int64]) -> Tensor:
        """(n, F) features of the nodes with these ascending ids of the store, through maps of the files."""
        out = torch.empty(len(ids), self.num_features, dtype=self.feature_dtype)
        cuts = np.searchsorted(ids, self.bounds)
        for number in np.flatnonzero(np.diff(cuts)).tolist():
            first, last = int(cuts[number]), int(cuts[number + 1])
            self.check(number, "x")
            self._rows_into(number, ids[first:last] - self.bounds[number], out[first:last])
        return out

    def _rows_into(self, number: int, rows: NDArray[np.int64], out: Tensor) -> None:
        """Ascending rows of a part: through a map where they are few, else by reading all that lies between."""
        block = self.manifest.parts[number].block("x")
        if len(rows) * _FEW < block.shape[0]:
            table = self._mapped(number, block)
            torch.index_select(table, 0, torch.from_numpy(rows), out=out)
            del table
            with self._opened(number, block) as file:
                file.forget()
            return
        width = block.nbytes // block.shape[0]
        step = max(_PIECE // width, 1)
        with self._opened(number, block) as file:
            for first in range(int(rows[0]), int(rows[-1]) + 1, step):
                last = min(first + step, int(rows[-1]) + 1)
                cut = slice(*np.searchsorted(rows, (first, last)).tolist())
                piece = aligned_empty((last - first, *block.shape[1:]), self.feature_dtype)
                file.read_into(block.offset + first * width, piece)
                torch.index_select(piece, 0, torch.from_numpy(rows[cut] - first), out=out[cut])

    def split(self, part: str) -> tuple[NDArray[np.int64], Tensor]:
        """Ids in the store of the nodes of "train", "val" or "test", ascending, and their labels."""
        bit, ids, labels = SPLIT_BITS[part], [], []
        for number, start in enumerate(self.bounds[:-1].tolist()):
            rows = np.flatnonzero(self.block(number, "split").numpy() & bit)
            ids.append(rows + start)
            labels.append(self.block(number, "y")[torch.from_numpy(rows)] if len(rows) else None)
        known = [y for y in labels if y is not None]
        shape = self.manifest.shape
        none = torch.empty((0, shape.label_columns) if shape.label_columns else (0,), dtype=DTYPES[shape.label_dtype])
        return np.concatenate([np.empty(0, np.int64), *ids]), torch.cat([none, *known])

    def _mapped(self, number: int, block: Block) -> Tensor:
        with self._opened(number, block) as file:
            return mapped(file.path, DTYPES[block.dtype], block.shape, block.offset)

    @contextlib.contextmanager
    def _opened(self, number: int, block: Block) -> Iterator[BlockFile]:
        """The open file of a part, long enough for the block; what is read of it counts. Raises: DataError."""
        path = self.path / self.manifest.parts[number].file
        try:
            opened = BlockFile(path)
        except OSError as failure:
            raise DataError(f"{path}: expected the file of part {number}, got: {failure.strerror}") from None
        with opened as file:
            end = block.offset + block.nbytes
            if file.size < end:
                raise DataError(
                    f"{path}: expected block {block.name} up to byte {end}, got a file of {file.size}; it is truncated"
                )
            try:
                yield file
            finally:
                self.counts.add(file.counts)


def is_store(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a store, whole or damaged."""
    try:
        with (Path(path) / MANIFEST).open("rb") as file:
            return FORMAT.encode() in file.read(200)
    except (OSError, ValueError):
        return False


def partial_of(path: Path) -> Path:
    """Where a store is built before it is renamed to ``path``."""
    return path.with_name(f".{path.name}.partial")


def _read_manifest(path: Path) -> Manifest:
    """Raises: DataError."""
    file = path / MANIFEST
    try:
        if file.stat().st_size > _MOST_MANIFEST:
            raise DataError(f"{file}: expected a manifest, got {file.stat().st_size} bytes")
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{file}: expected a manifest in UTF-8, got other bytes; the file is damaged") from None
    except OSError as failure:
        if partial_of(path).is_dir():
            raise DataError(
                f"{path}: expected a finished store, got one whose preparation was interrupted; "
                "the same graphweft prepare again goes on"
            ) from None
        raise DataError(f"{path}: expected a store with {MANIFEST}, got: {failure.strerror}") from None
    return Manifest.from_json(text, str(file))
