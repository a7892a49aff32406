"""A store opened for reading: a graph on disk, part by part.

Comes in: the folder that ``graphweft prepare`` wrote. Goes out: arrays of its parts, read in large requests and
checked. Called by users as ``gw.macro.Store`` and by the loader of macro-batches.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import DataError, IndexRangeError
from graphweft.storage.block_file import BlockFile
from graphweft.storage.block_io import ReadCounts, aligned_empty, bytes_of, check_crc, mapped
from graphweft.storage.held_blocks import HeldBlocks
from graphweft.storage.joined_blocks import runs
from graphweft.storage.picked_rows import BlockRows, pick_rows
from graphweft.storage.requests import SECTOR
from graphweft.storage.store_format import DTYPES, FORMAT, KEY, MANIFEST, SPLIT_BITS, Block, Manifest
from graphweft.storage.store_types import Types

_MOST_MANIFEST = 1 << 30
_PIECE = 8 << 20  # bytes of a block that are read at a time where only some of its rows are wanted


class FeatureRegion(NamedTuple):
    """Consecutive nodes whose rows of features lie one after the other in a block of a part's file.

    Attributes:
        part: The part.
        block: Name of the block.
        first: Id of the first node in the store.
        end: Id after the last one.
        width: Columns.
    """

    part: int
    block: str
    first: int
    end: int
    width: int


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
        indices: Ids in the store of the sources of each node's in-edges, ascending, int32 or int64; of a typed graph
            relation after relation.
        relations: The relation of each in-edge of a typed graph, or None.
        weights: float32 weights of the in-edges, or None.
        features: Of a typed graph whose types have columns of their own: those of each type that has some, by its
            number; its nodes lie type after type.
    """

    start: int
    x: Tensor | None
    y: Tensor
    split: Tensor
    node_ids: Tensor
    indptr: Tensor
    indices: Tensor
    relations: Tensor | None = None
    weights: Tensor | None = None
    features: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Nodes of the part."""
        return self.split.numel()


class Store:
    """A graph on disk.

    Nodes are numbered part after part: part i has the ids ``bounds[i]`` to ``bounds[i + 1]``. The checksum of every
    block is verified when it is first read.

    Args:
        path: The folder.
        verify: Whether to verify checksums.

    Attributes:
        path: The folder.
        manifest: Sizes, types and the table of blocks.
        bounds: int64 (parts + 1,): first id of every part, and the number of nodes.
        counts: Counters of reads.
        held: Blocks that stay in memory; see :meth:`holding`.
        piece: Bytes of a block that are read at a time if only some of its rows are needed.

    Raises: DataError for a folder that is no store, and for an unfinished or damaged store.

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
        self.held = HeldBlocks()
        self.piece = _PIECE

    def holding(self) -> Store:
        """The same store with its own set of parts that stay in memory. Both share their counters of reads."""
        found = copy.copy(self)
        found.held = HeldBlocks()
        return found

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
        """Columns of the features that a model reads; 0 without features.

        For a typed graph, the columns of all types joined, and one column for every node of a type without features.
        """
        shape, types = self.manifest.shape, self.types
        if not shape.type_widths or types is None:
            return shape.num_features
        return sum(width or len(types.layout.node_range(name)) for name, width in self._widths())

    def _widths(self) -> Iterator[tuple[str, int]]:
        assert self.types is not None  # only of such a store
        return zip(self.types.node_types, self.manifest.shape.type_widths, strict=True)

    @property
    def row_width(self) -> int:
        """Columns of the widest row of features on disk; 0 without features."""
        return self.manifest.shape.row_width

    @property
    def types(self) -> Types | None:
        """Node types and relations of a typed graph; else None."""
        return self.manifest.types

    @property
    def has_weights(self) -> bool:
        """Whether edges have weights."""
        return self.manifest.shape.edge_weight

    @cached_property
    def feature_regions(self) -> tuple[FeatureRegion, ...]:
        """Ranges of node ids with rows of features, ascending. Nodes without features are in none of them."""
        shape, found = self.manifest.shape, []
        for number, entry in enumerate(self.manifest.parts):
            first = int(self.bounds[number])
            if not shape.type_widths and shape.num_features:
                found.append(FeatureRegion(number, "x", first, first + entry.nodes, shape.num_features))
            for type_, (count, width) in enumerate(zip(entry.types, shape.type_widths, strict=False)):
                if width:
                    found.append(FeatureRegion(number, f"x.{type_}", first, first + count, width))
                first += count
        return tuple(region for region in found if region.end > region.first)

    @property
    def num_rows(self) -> int:
        """Number of nodes with a row of features."""
        return sum(region.end - region.first for region in self.feature_regions)

    @cached_property
    def _region_ends(self) -> NDArray[np.int64]:
        return np.array([region.end for region in self.feature_regions], np.int64)

    @property
    def num_classes(self) -> int:
        """Number of classes, labels or values per node; 0 without labels."""
        return self.manifest.num_classes

    @property
    def feature_dtype(self) -> torch.dtype:
        """Dtype of the features on disk."""
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
        """All arrays of a part. With ``mapped`` they are memory maps of its file, whose pages are read on access.

        Raises: IndexRangeError for a part out of range; DataError for a damaged file.
        """
        if not 0 <= number < len(self):
            raise IndexRangeError(f"Store.part: expected a part in [0, {len(self)}), got {number}")
        names = [block.name for block in self.manifest.parts[number].blocks]
        found = {name: self.block(number, name, mapped=mapped) for name in names}
        own = {int(name.removeprefix("x.")): found.pop(name) for name in names if name.startswith("x.")}
        x = found.pop("x", None)
        return StoredPart(int(self.bounds[number]), x if self.row_width else None, **found, features=own)

    def block(self, number: int, name: str, out: Tensor | None = None, *, mapped: bool = False) -> Tensor:
        """One array of a part, read into ``out`` if it is given. Raises: DataError."""
        block = self.manifest.parts[number].block(name)
        if mapped:
            self.check(number, name)
            return self._mapped(number, block)
        held = self.held.get(number, name)
        if held is not None:
            return held if out is None else out.copy_(held)
        if out is None:
            (found,) = self._read(number, (block,))
        else:
            found = out
            with self._opened(number, block) as file:
                file.read_into(block.offset, found)
                self._compare(file.path, number, block, found)
        self.held.put(number, name, found, shared=out is not None)
        return found

    def _read(self, number: int, run: Sequence[Block]) -> list[Tensor]:
        """Blocks that lie near each other, in one span of the file. Raises: DataError."""
        first, end = run[0].offset, run[-1].offset + run[-1].nbytes
        found = []
        with self._opened(number, run[-1]) as file:
            held = file.read_span(first, end, aligned_empty((-(-(end - first) // SECTOR) * SECTOR,), torch.uint8))
            for block in run:
                own = held[block.offset - first :][: block.nbytes].view(DTYPES[block.dtype]).view(block.shape)
                self._compare(file.path, number, block, own)
                found.append(own)
        return found

    def _compare(self, path: Path, number: int, block: Block, found: Tensor) -> None:
        """With the checksum, where that was not done yet. Raises: DataError."""
        if self._verify and (number, block.name) not in self._seen:
            check_crc(path, block.name, block.offset, block.crc32, zlib.crc32(bytes_of(found)))
        self._seen.add((number, block.name))

    def read_ahead(self, number: int) -> None:
        """Reads the blocks of a part that a group needs in few requests. Each block is kept until it is requested.

        Raises: DataError.
        """
        entry = self.manifest.parts[number]
        names = {block.name for block in entry.blocks if not block.name.startswith("x.")} - {"split", "node_ids"}
        if any(self.held.has(number, name) for name in names):
            return  # it stayed in memory
        for run in runs(entry.blocks, names):
            for block, found in zip(run, self._read(number, run) if len(run) > 1 else (), strict=False):
                self.held.once(number, block.name, found)

    def check(self, number: int, name: str, memory: int | None = None) -> None:
        """Verifies the checksum of a block, if it was not verified yet, in pieces of at most ``memory`` bytes.

        None: :attr:`piece`.

        Raises: DataError.
        """
        block = self.manifest.parts[number].block(name)
        if not self._verify or (number, block.name) in self._seen:
            return
        crc = 0
        step = max(min(self.piece if memory is None else memory, _PIECE) // SECTOR, 1) * SECTOR
        piece = aligned_empty((min(step, block.nbytes),), torch.uint8)
        with self._opened(number, block) as file:
            for first in range(0, block.nbytes, step):
                part = piece[: min(step, block.nbytes - first)]
                file.read_into(block.offset + first, part)
                crc = zlib.crc32(bytes_of(part), crc)
            check_crc(file.path, block.name, block.offset, block.crc32, crc)
        self._seen.add((number, block.name))

    def verify(self) -> int:
        """Reads every block, verifies its checksum, and returns the number of bytes. Raises: DataError."""
        before = self.counts.nbytes
        self._seen.clear()
        former, self._verify = self._verify, True
        try:
            for number in range(len(self)):
                for block in self.manifest.parts[number].blocks:
                    self.check(number, block.name)
        finally:
            self._verify = former
        return self.counts.nbytes - before

    @property
    def edge_counts(self) -> NDArray[np.int64]:
        """Number of edges into every part, (parts,)."""
        return np.array([part.edges for part in self.manifest.parts], np.int64)

    def labels(self, number: int) -> Tensor:
        """The labels of a part."""
        return self.block(number, "y")

    def structure(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
        """Offsets and source ids of a part's in-edges."""
        return self.block(number, "indptr").numpy(), self.block(number, "indices").numpy()

    def edge_columns(self, number: int) -> tuple[NDArray[np.integer[Any]] | None, NDArray[np.float32] | None]:
        """Relations and weights of a part's in-edges, in the order of its structure; None if there are none."""
        relations = self.block(number, "relations").numpy() if self.types is not None else None
        return relations, self.block(number, "weights").numpy() if self.has_weights else None

    def features_into(self, number: int, out: Tensor) -> None:
        """Reads the features of a part, (n, F), into ``out``, in the dtype of the store."""
        self.block(number, "x", out)

    def own_features(self, number: int, type_: int, out: Tensor) -> None:
        """Reads features of a part's nodes of one type into ``out``, (n, :attr:`row_width`). Further columns stay as
        they are.
        """
        width = self.manifest.shape.type_widths[type_]
        if width == out.shape[1]:
            self.block(number, f"x.{type_}", out)
        else:
            out[:, :width] = self.block(number, f"x.{type_}")

    @cached_property
    def regions(self) -> NDArray[np.int64]:
        """First id of the nodes of each type in every part, part after part, and the number of nodes.

        Without types these are :attr:`bounds`.
        """
        counts = [count for part in self.manifest.parts for count in (part.types or (part.nodes,))]
        found: NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return found

    @property
    def feature_bytes(self) -> NDArray[np.int64]:
        """Bytes of the features of each part, (parts,), in rows of :attr:`row_width` columns."""
        found = np.zeros(len(self), np.int64)
        item = torch.empty(0, dtype=self.feature_dtype).element_size()
        for region in self.feature_regions:
            found[region.part] += (region.end - region.first) * self.row_width * item
        return found

    def node_ids(self, number: int) -> Tensor:
        """int64 numbers of the nodes of a part in the source."""
        return self.block(number, "node_ids")

    @contextlib.contextmanager
    def feature_files(self, regions: Sequence[FeatureRegion]) -> Iterator[list[BlockFile]]:
        """The open file of each region, checked for its length. Raises: DataError."""
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(self._opened(region.part, self.manifest.parts[region.part].block(region.block)))
                for region in regions
            ]

    def feature_rows(self, ids: NDArray[np.int64]) -> Tensor:
        """(n, columns) features of the nodes with these ascending ids of the store, in the dtype of the store.

        There are :attr:`row_width` columns; columns that a node does not have are zero.
        """
        out = torch.zeros(len(ids), self.row_width, dtype=self.feature_dtype)
        self.feature_rows_into(ids, out, torch.arange(len(ids)))
        return out

    def feature_rows_into(self, ids: NDArray[np.int64], out: Tensor, at: Tensor) -> None:
        """Reads features of the nodes with these ascending ids into the rows ``at`` of ``out``, in its dtype.

        Few rows are read from memory maps of the files; otherwise the whole range is read. Columns that a node does not
        have stay as they are.
        """
        if not len(ids):
            return
        nearest, farthest = np.searchsorted(self._region_ends, (ids[0], ids[-1]), "right").tolist()
        for region in self.feature_regions[nearest : farthest + 1]:
            first, last = np.searchsorted(ids, (region.first, region.end)).tolist()
            if first < last:
                self.check(region.part, region.block)
                rows, own = ids[first:last] - region.first, out[:, : region.width]
                held = self.held.get(region.part, region.block)
                if held is not None:
                    own.index_copy_(0, at[first:last], held[torch.from_numpy(rows)].to(own.dtype))
                    continue
                block = self.manifest.parts[region.part].block(region.block)
                with self._opened(region.part, block) as file:
                    table = BlockRows(block.offset, DTYPES[block.dtype], block.shape)
                    pick_rows(file, table, rows, own, at[first:last], self.piece)

    def split(self, part: str) -> tuple[NDArray[np.int64], Tensor]:
        """Ids in the store of the nodes of "train", "val" or "test", ascending, with their labels."""
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


def is_partial(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a store that is not whole, or one is in the making that will have this name."""
    try:
        return not is_store(path) and (bool(_unfinished(Path(path))) or bool(_part_files(Path(path))))
    except (OSError, ValueError):  # of a name that no path can have, or of one that no folder lies beside
        return False


def kind_of(folder: Path) -> str:
    """What a folder is, for messages."""
    if is_store(folder):
        return "a store"
    return "a store that is not whole" if is_partial(folder) else "something else"


def _part_files(path: Path) -> int:
    """How many files of parts a folder has."""
    try:
        return sum(re.fullmatch(r"part-\d{5,}\.bin", entry.name) is not None for entry in path.iterdir())
    except (OSError, ValueError):
        return 0


def _unfinished(path: Path) -> str:
    """Why ``path`` without a manifest is a store that is not whole, and how to go on; empty for anything else."""
    wanted, again = "expected a finished store, got", "the same graphweft prepare again goes on"
    if (partial_of(path) / KEY).is_file():
        return f"{wanted} one whose preparation was interrupted; {again}"
    if (path / KEY).is_file():
        name = path.name.removeprefix(".").removesuffix(".partial")
        return f"{wanted} the folder of an interrupted preparation of {name}; {again}"
    count = _part_files(path)
    files = f"{count} file{'' if count == 1 else 's'} of parts"
    return f"expected a store with {MANIFEST}, got {files} without it; copy it too, or prepare anew" if count else ""


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
        text = f"expected a store with {MANIFEST}, got: {failure.strerror}"
        raise DataError(f"{path}: {_unfinished(path) or text}") from None
    return Manifest.from_json(text, str(file))
