"""Graphs in plain files that may be larger than memory: an edge list, a matrix of features, labels, splits.

Comes in: paths. Goes out: edges in chunks and rows of nodes in ranges, read with large sequential requests. Called
by :mod:`graphweft.data.prepare_store`; nothing here holds more than a chunk, and a byte a node for the splits.
"""

from __future__ import annotations

import abc
import contextlib
import gzip
import io
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import Ids
from graphweft._errors import DataError, DataWarning
from graphweft.data.readers.archive import NpzArchive
from graphweft.data.readers.files import one_line, open_regular, show
from graphweft.data.readers.split import given_split
from graphweft.data.readers.text_edges import choose_columns
from graphweft.data.store_input import Edges, LabelKind, Rows
from graphweft.graph.graph import Graph
from graphweft.sample.hashed import hashed
from graphweft.storage.block_io import array_bytes, forget_pages, read_bytes
from graphweft.storage.store_format import SPLIT_BITS
from graphweft.storage.store_types import Types

_TEXT = (".csv", ".tsv", ".txt", ".edges")
_VALUES = frozenset(f"{name}.npy" for name in ("edge_weight", "edge_attr", "edge_features", "edge_time"))
_SHORTEST = 4  # bytes of the shortest line with an edge
_LONGEST = 1 << 16  # bytes of a first line
_SCANNED = 1 << 15  # labels at a time: with what a random split of them takes, a megabyte
_SHARES = (0.6, 0.8)  # training, and training with validation, where no split is given


@dataclass(frozen=True)
class Array:
    """An array in a file, read range by range.

    Attributes:
        path: The ``.npy`` file, or one of plain numbers.
        dtype: Of its elements.
        shape: Its dimensions, in C order.
        offset: Where the first element is.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, path: Path) -> Array:
        """A ``.npy`` file in C order. Raises: DataError for another file."""
        return cls.turned(path, False)[0]

    @classmethod
    def turned(cls, path: Path, may_turn: bool = True) -> tuple[Array, bool]:
        """A ``.npy`` file, of one in Fortran order its transpose, and whether it is that. Raises: DataError."""
        with open_regular(path) as file:
            shape, fortran, dtype = _npy_header(file, show(path))
            offset = file.tell()
        turned = fortran and len(shape) > 1
        if turned and may_turn:
            shape = shape[::-1]
        elif turned:
            raise DataError(
                f"{show(path)}: expected an array in C order, got Fortran order; np.ascontiguousarray makes one"
            )
        made = cls(path, dtype, shape, offset)
        size = path.stat().st_size
        if size < offset + made.nbytes:
            raise DataError(f"{show(path)}: expected {offset + made.nbytes} bytes, got {size}; the file is truncated")
        return made, turned

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count * self.dtype.itemsize

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Entries of the first dimension from ``first`` to ``last``; the system forgets its copy."""
        width = self.nbytes // max(self.shape[0], 1)
        out = np.empty((last - first, *self.shape[1:]), self.dtype)
        into = array_bytes(out)
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = self.offset + first * width
            read_bytes(handle, show(self.path), at, into)
            forget_pages(handle, at, len(into))
        finally:
            os.close(handle)
        return out


@dataclass(frozen=True)
class GraphFiles:
    """Paths of a graph that may be larger than memory.

    Attributes:
        edges: A file of edges. ``.npy`` or ``.npz`` (``edge_index``, or ``src`` and ``dst``) has the shape (2, E) or
            (E, 2). ``.bin`` has pairs of int64. Text (``.csv``, ``.tsv``, ``.txt``, also ``.gz``) has two columns of
            node numbers.
        x: ``.npy`` with (N, F) features of float16, float32 or float64, or None.
        y: ``.npy`` with (N,) class ids, -1 for none, or (N, C) labels or values; or None.
        split: ``.npz`` with ``train_idx``, ``val_idx``, ``test_idx`` or masks ``train_mask``, ...; None: 60/20/20 of
            the labelled nodes at random.
        num_nodes: Number of nodes; None: the number of rows of ``x`` or ``y``.
        name: Name of the dataset; None: that of the file of edges.
        bidirected: Whether to add the reverse of every edge.
        regression: Whether labels are values.
        seed: Seed of a random split.
    """

    edges: str | os.PathLike[str]
    x: str | os.PathLike[str] | None = None
    y: str | os.PathLike[str] | None = None
    split: str | os.PathLike[str] | None = None
    num_nodes: int | None = None
    name: str | None = None
    bidirected: bool = False
    regression: bool = False
    seed: int = 0


class FilesInput:
    """:class:`GraphFiles` opened and checked. Raises: DataError."""

    graph: Graph | None = None
    types: Types | None = None
    type_widths: tuple[int, ...] = ()
    has_weights = False

    def __init__(self, files: GraphFiles) -> None:
        self._files = files
        self._x = None if files.x is None else Array.of(Path(files.x))
        self._y = None if files.y is None else Array.of(Path(files.y))
        self.name = files.name or Path(files.edges).name.split(".")[0]
        counts = {a.path: a.shape[0] for a in (self._x, self._y) if a is not None and a.shape}
        if files.num_nodes is None and not counts:
            raise DataError(f"{self.name}: expected num_nodes where neither x nor y is given, got None")
        self.num_nodes = int(next(iter(counts.values())) if files.num_nodes is None else files.num_nodes)
        for path, found in counts.items():
            if found != self.num_nodes:
                raise DataError(f"{show(path)}: expected {self.num_nodes} rows, one per node, got {found}")
        if self._x is not None and (len(self._x.shape) != 2 or self._x.dtype.kind != "f"):
            raise DataError(f"{show(self._x.path)}: expected (N, F) floats, got {self._x.dtype} {self._x.shape}")
        self.num_features = 0 if self._x is None else self._x.shape[1]
        self.labels = self._label_kind()
        self._split = self._bits()
        self.resident = 0 if self._split is None else self._split.nbytes
        self._edges = edge_source(Path(files.edges))
        self.notes: tuple[str, ...] = ()
        if self._edges.left_out:
            self.notes = (f"{', '.join(self._edges.left_out)} are not kept in a store",)
            warnings.warn(f"{self.name}: {self.notes[0]}", DataWarning, stacklevel=4)
        known = self._edges.count
        self.num_edges = None if known is None else known * (2 if files.bidirected else 1)
        self.both_ways = files.bidirected

    def identity(self) -> dict[str, Any]:
        """Sizes and times of change of the files."""
        files = self._files
        marks = []
        for path in (files.edges, files.x, files.y, files.split):
            found = None if path is None else Path(path).stat()
            marks.append(None if found is None else [str(path), found.st_size, found.st_mtime_ns])
        options = {"bidirected": files.bidirected, "regression": files.regression, "seed": files.seed}
        return {"files": marks, "name": self.name, "nodes": self.num_nodes, **options}

    def training_labels(self) -> Tensor | None:
        """Those of training nodes, where labels are classes."""
        if self._y is None or self.labels.dtype != "int64":
            return None
        found = torch.full((self.num_nodes,), -1, dtype=torch.int64)
        for first in range(0, self.num_nodes, _SCANNED):
            rows = self.rows(first, min(first + _SCANNED, self.num_nodes), features=False)
            there = torch.from_numpy((rows.split & SPLIT_BITS["train"]) > 0)
            found[first : first + len(there)][there] = rows.y[there]
        return found

    def edges(self, most: int) -> Iterator[Edges]:
        """All edges, those back after each chunk."""
        for src, dst in self._edges.chunks(max(most // (2 if self._files.bidirected else 1), 1)):
            yield Edges(src, dst)
            if self._files.bidirected:
                yield Edges(dst, src)

    def rows(self, first: int, last: int, features: bool = True) -> Rows:
        """Ranges of the files. Raises: DataError for features that are not finite, or labels out of range."""
        x = None
        if self._x is not None and features:
            found = self._x.read(first, last)
            if not np.isfinite(found).all():
                at = first + int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
                raise DataError(f"{show(self._x.path)}: expected finite features, got others in row {at}")
            x = torch.from_numpy(found)
        y = self._labels(first, last)
        if self._split is not None:
            return Rows(x, y, self._split[first:last])
        return Rows(x, y, self._random_split(first, y))

    def _labels(self, first: int, last: int) -> Tensor:
        if self._y is None:
            return torch.full((last - first,), -1, dtype=torch.int64)
        found = torch.from_numpy(self._y.read(first, last))
        return found.float() if self.labels.dtype == "float32" else found.reshape(last - first).long()

    def _random_split(self, first: int, y: Tensor) -> NDArray[np.uint8]:
        """The bits of labelled nodes, a pure function of node and seed."""
        known = (y >= 0) if y.dtype == torch.int64 else ~y.reshape(len(y), -1).isnan().any(dim=1)
        draw = hashed(np.arange(first, first + len(y)), self._files.seed) / 2**64
        bits = np.where(draw < _SHARES[0], 1, np.where(draw < _SHARES[1], 2, 4)).astype(np.uint8)
        return np.where(known.numpy(), bits, 0).astype(np.uint8)

    def _label_kind(self) -> LabelKind:
        """What ``y`` holds; class ids are scanned for the largest."""
        if self._y is None:
            return LabelKind("classification", 0, 0, "int64")
        array = self._y
        flat = len(array.shape) == 1 or (len(array.shape) == 2 and array.shape[1] == 1)
        if array.dtype.kind in "iu" and flat and not self._files.regression:
            largest = -1
            for first in range(0, self.num_nodes, _SCANNED):
                part = array.read(first, min(first + _SCANNED, self.num_nodes)).astype(np.int64)
                if len(part) and part.min() < -1:
                    raise DataError(f"{show(array.path)}: expected class ids >= 0, or -1 for none, got {part.min()}")
                largest = max(largest, int(part.max(initial=-1)))
            return LabelKind("classification", largest + 1, 0, "int64")
        if len(array.shape) not in (1, 2) or array.dtype.kind not in "iufb":
            raise DataError(f"{show(array.path)}: expected (N,) or (N, C) numbers, got {array.dtype} {array.shape}")
        if len(array.shape) == 1 and not self._files.regression:
            raise DataError(
                f"{show(array.path)}: expected integer class ids, got {array.dtype}; regression=True takes values"
            )
        columns = array.shape[1] if len(array.shape) == 2 else 0
        task = "regression" if self._files.regression else "multilabel"
        return LabelKind(task, max(columns, 1), columns, "float32")

    def _bits(self) -> NDArray[np.uint8] | None:
        """The split of every node; None where none is given. Raises: DataError."""
        if self._files.split is None:
            return None
        path = Path(self._files.split)
        bits = np.zeros(self.num_nodes, np.uint8)
        try:
            with open_regular(path) as file:
                found = given_split(NpzArchive(file, show(path.name)), self.num_nodes)
        except OSError as failure:
            raise DataError(f"{show(path)}: expected an .npz of ids or masks, got: {failure}") from None
        except DataError as failure:
            text, shown = str(failure).removeprefix(f"{show(path.name)}: "), show(path)
            raise DataError(text if text.startswith(shown) else f"{shown}: {text}") from None
        if found is None:
            raise DataError(f"{show(path)}: expected train_idx, val_idx and test_idx, or masks, got none of them")
        for part, bit in SPLIT_BITS.items():
            bits[getattr(found, part).numpy()] |= bit
        return bits


class EdgeSource(abc.ABC):
    """Edges of one file; ``count`` is None where it is not known."""

    count: int | None = None
    left_out: tuple[str, ...] = ()  # what the file says of edges beside their ends

    @abc.abstractmethod
    def chunks(self, most: int) -> Iterator[tuple[Ids, Ids]]:
        """Sources and destinations, ``most`` at a time."""


class _Pairs(EdgeSource):
    """An array of shape (2, E) or (E, 2); ``turned``: in Fortran order, so its transpose lies in the file.

    ``of_pairs``: (E, 2) whatever E is.
    """

    def __init__(self, array: Array, turned: bool = False, of_pairs: bool = False) -> None:
        shape = array.shape[::-1] if turned else array.shape
        if len(shape) != 2 or 2 not in shape or array.dtype.kind not in "iu":
            raise DataError(
                f"{show(array.path)}: expected edges (2, E) or (E, 2) of integers, got {array.dtype} {shape}"
            )
        is_rows = shape[0] == 2 and not of_pairs
        self._array, self._stacked = array, is_rows != turned
        self.count = shape[1] if is_rows else shape[0]

    def chunks(self, most: int) -> Iterator[tuple[Ids, Ids]]:
        array = self._array
        if not self._stacked:
            for first in range(0, self.count or 0, most):
                pairs = array.read(first, min(first + most, self.count or 0))
                yield pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
            return
        flat = Array(array.path, array.dtype, (2 * (self.count or 0),), array.offset)
        for first in range(0, self.count or 0, most):
            last = min(first + most, self.count or 0)
            ends = (flat.read(row * (self.count or 0) + first, row * (self.count or 0) + last) for row in (0, 1))
            src, dst = (end.astype(np.int64) for end in ends)
            yield src, dst


class _Archive(EdgeSource):
    """Members of an ``.npz``: ``edge_index`` (2, E), or ``src`` and ``dst``; read as streams, compressed or not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _readable(path), zipfile.ZipFile(path) as held:
            self._describe(held)

    def _describe(self, held: zipfile.ZipFile) -> None:
        """Which members the edges are in. Raises: DataError."""
        path, names = self._path, set(held.namelist())
        pairs = next((pair for pair in (("src", "dst"), ("row", "col")) if {f"{e}.npy" for e in pair} <= names), None)
        self._members = pairs or ("edge_index", "edge_index")
        if pairs is None and "edge_index.npy" not in names:
            got = ", ".join(sorted(names)[:6])
            raise DataError(f"{show(path)}: expected edge_index, or src and dst, got {got}; gw.load reads other forms")
        (shapes, turned) = zip(*(self._opened(held, member)[1:3] for member in self._members), strict=True)
        if pairs is None and (len(shapes[0]) != 2 or 2 not in shapes[0]):
            raise DataError(f"{show(path)}: expected edge_index of shape (2, E) or (E, 2), got {shapes[0]}")
        if pairs is not None and (len(shapes[0]) != 1 or shapes[0] != shapes[1]):
            raise DataError(f"{show(path)}: expected src and dst of one length, got {shapes[0]} and {shapes[1]}")
        is_rows = shapes[0][0] == 2
        self._in_pairs = pairs is None and is_rows == turned[0]
        self.count = shapes[0][-1] if pairs is not None or is_rows else shapes[0][0]
        self.left_out = tuple(sorted(name.removesuffix(".npy") for name in names & _VALUES))

    def _opened(self, held: zipfile.ZipFile, member: str) -> tuple[IO[bytes], tuple[int, ...], bool, np.dtype[Any]]:
        """The stream behind a member's header; shape, whether in Fortran order, and dtype."""
        file = held.open(f"{member}.npy")
        shape, fortran, dtype = _npy_header(file, f"{show(self._path)}: {member}")
        if dtype.kind not in "iu":
            raise DataError(f"{show(self._path)}: expected {member} of integers, got {dtype}")
        return file, shape, fortran, dtype

    def chunks(self, most: int) -> Iterator[tuple[Ids, Ids]]:
        count = self.count or 0
        path = self._path
        with _readable(path), zipfile.ZipFile(path) as held, zipfile.ZipFile(path) as other:
            src, shape, _, kind = self._opened(held, self._members[0])
            if self._in_pairs:
                for first in range(0, count, most):
                    pairs = _taken(src, kind, 2 * min(most, count - first), path)
                    yield pairs[0::2].copy(), pairs[1::2].copy()
                return
            dst, _, _, other_kind = self._opened(other, self._members[1])
            if len(shape) == 2:
                _skip(dst, count * kind.itemsize)
            for first in range(0, count, most):
                length = min(most, count - first)
                yield _taken(src, kind, length, path), _taken(dst, other_kind, length, path)


class _Text(EdgeSource):
    """Lines of two node numbers, with or without titles; lines that begin with # or % are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._lines() as stream:
            first = _first_line(stream)
        if first and choose_columns(show(path), first.decode("utf-8", "replace").strip()).weight >= 0:
            self.left_out = ("edge_weight",)

    @contextlib.contextmanager
    def _lines(self) -> Iterator[IO[bytes]]:
        """The file as text. Raises: DataError where it is damaged."""
        with _readable(self._path), open_regular(self._path) as file:
            if not self._path.name.endswith(".gz"):
                yield file
                return
            with gzip.open(file) as stream:
                yield cast(IO[bytes], stream)

    def chunks(self, most: int) -> Iterator[tuple[Ids, Ids]]:
        who = show(self._path)
        with self._lines() as stream:
            first = _first_line(stream)
            if not first:
                return
            columns = choose_columns(who, first.decode("utf-8", "replace").strip())
            rest = b"" if columns.titles else first
            while True:
                block = stream.read(max(_SHORTEST * most, 1 << 12))
                if not block and not rest:
                    return
                whole = rest + block
                cut = whole.rfind(b"\n") + 1 if block else len(whole)
                text, rest = whole[:cut], whole[cut:]
                if text.strip():
                    taken = (columns.source, columns.target)
                    yield _parsed(text, columns.delimiter, taken, who)
                if not block:
                    return


def _first_line(stream: IO[bytes]) -> bytes:
    """The first line that is neither blank nor a remark; empty where there is none."""
    line = stream.readline(_LONGEST)
    while line and (line.strip() == b"" or line.lstrip()[:1] in (b"#", b"%")):
        line = stream.readline(_LONGEST)
    return line


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What reading an archive raises, as DataError of one line."""
    try:
        yield
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as failure:
        raise DataError(f"{show(path)}: expected a readable file of edges, got: {one_line(str(failure), 80)}") from None


def _parsed(text: bytes, delimiter: str | None, taken: tuple[int, int], who: str) -> tuple[Ids, Ids]:
    try:
        pairs = np.loadtxt(io.BytesIO(text), np.int64, comments=["#", "%"], delimiter=delimiter, usecols=taken, ndmin=2)
    except ValueError as failure:
        raise DataError(f"{who}: expected lines of node numbers, got: {failure}") from None
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def edge_source(path: Path) -> EdgeSource:
    """The edges of a file by its suffix. Raises: DataError for another."""
    name = path.name.lower()
    if name.endswith(".npy"):
        return _Pairs(*Array.turned(path))
    if name.endswith(".npz"):
        return _Archive(path)
    if name.endswith(".bin"):
        open_regular(path).close()
        size = path.stat().st_size
        if size % 16:
            raise DataError(f"{show(path)}: expected pairs of int64, 16 bytes each, got {size} bytes")
        return _Pairs(Array(path, np.dtype("<i8"), (size // 16, 2), 0), of_pairs=True)
    if name.removesuffix(".gz").endswith(_TEXT):
        return _Text(path)
    raise DataError(f"{show(path)}: expected edges as .npy, .npz, .bin, .csv, .tsv or .txt, got another file")


def _npy_header(file: IO[bytes], who: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype. Raises: DataError."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except ValueError as failure:
        raise DataError(f"{who}: expected an array of numpy, got: {failure}") from None
    if dtype.kind not in "fiub" or not dtype.isnative:
        raise DataError(f"{who}: expected native numbers, got {dtype}")
    return shape, fortran, dtype


def _skip(stream: IO[bytes], count: int) -> None:
    while count > 0:
        got = len(stream.read(min(count, 1 << 20)))
        if got == 0:
            return
        count -= got


def _taken(stream: IO[bytes], dtype: np.dtype[Any], count: int, path: Path) -> Ids:
    held = stream.read(count * dtype.itemsize)
    if len(held) < count * dtype.itemsize:
        raise DataError(f"{show(path)}: expected {count} more ids, got the end; the file is truncated")
    return np.frombuffer(held, dtype).astype(np.int64)
