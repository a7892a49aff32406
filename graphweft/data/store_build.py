"""Building a store within a memory budget: rows of nodes, then edges, then the structure part by part.

Comes in: an input, the part of every node, a folder. Goes out: part files and a manifest. Called by
:mod:`graphweft.data.prepare_store`. All is written under a temporary folder with a record of what is done, so that a
build that was killed goes on; the store has its name only when it is whole.
"""

from __future__ import annotations

import bisect
import json
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft._machine import processors
from graphweft._workers import become_worker
from graphweft.data.edge_deal import compressed
from graphweft.data.edge_runs import EdgeRuns, sort_edges
from graphweft.data.store_input import StoreInput
from graphweft.data.store_writes import (
    Behind,
    WrittenPages,
    opened,
    settle,
    sync_folder,
    write_all,
    write_json,
    write_text,
)
from graphweft.storage.block_io import array_bytes, bytes_of
from graphweft.storage.numbering import numbered_by_group
from graphweft.storage.store_format import (
    DTYPES,
    KEY,
    MANIFEST,
    SPLIT_BITS,
    Block,
    Manifest,
    PartEntry,
    Shape,
    aligned,
    layout,
)

Told = Callable[[str, int, int | None], None]

_STATE, _RUNS, _CUTS = "build.json", "edges.runs", "edges.cuts"
_PAGES = 8  # a share of the memory: pages of what was written
_OFFSETS = 16  # bytes of a node of a part while its edges are counted: the sum so far, and what a range adds
_SORTED_EDGE = 40  # bytes of an edge while a range of rows is sorted: pairs as read, those of the range, columns
_COUNTED = 1 << 15  # parts of nodes at a time
_WRITERS = 4  # threads that write rows to parts and add up their checksums, at most
_WEIGHTED_EDGE = 80  # where weights are sorted along, and an order by which
_LARGEST_KEY = 1 << 62


class Build:
    """One store in the making.

    Args:
        source: What it is built from.
        part: (N,) part of every node, of a small unsigned type.
        parts: Number of parts.
        shape: Element types.
        folder: The temporary folder, with the state of an earlier try or none.
        memory: Bytes for what is read and sorted at a time.
        told: Told of progress: what is done, how much, of how much.
    """

    def __init__(
        self,
        source: StoreInput,
        part: NDArray[np.integer],
        parts: int,
        shape: Shape,
        folder: Path,
        memory: int,
        told: Told,
    ) -> None:
        self.source, self.part, self.parts, self.shape, self.folder = source, part, parts, shape, folder
        self.told = told
        self.sizes = _counts(part, parts)
        types = source.types
        self.type_starts = [0, source.num_nodes] if types is None else list(types.node_offsets)
        self.of_type = _counts_of_types(part, parts, self.type_starts) if types is not None else None
        self.bounds = np.concatenate([[0], np.cumsum(self.sizes)])
        larger = int(self.sizes.max(initial=0)) - _share(source.num_nodes, parts)  # than was counted on
        self.memory = max(memory - _OFFSETS * larger, 1 << 20)
        self._pages = WrittenPages(self.memory // _PAGES)
        self.state: dict[str, Any] = self._state()

    def run(self, method: str) -> Manifest:
        """Does what is left to do; the manifest is the last file that is written. Raises: DataError."""
        self._write_rows()
        runs = self._sorted_edges()
        with Behind() as writing:
            for number in range(self.parts):
                if self._entry(number) is None:
                    self._write_structure(number, runs, writing)
                self.told("writing parts", number + 1, self.parts)
        entries = [entry for number in range(self.parts) if (entry := self._entry(number)) is not None]
        source, labels = self.source, self.source.labels
        manifest = Manifest(
            name=source.name,
            num_nodes=source.num_nodes,
            num_edges=runs.num_edges,
            num_classes=labels.num_classes,
            task=labels.task,
            class_names=labels.class_names,
            notes=source.notes,
            method=method,
            shape=self.shape,
            parts=tuple(entries),
            types=None if source.types is None else replace(source.types, edge_offsets=runs.offsets),
        )
        write_text(self.folder / MANIFEST, manifest.to_json(), synced=True)
        return manifest

    def _state(self) -> dict[str, Any]:
        file = self.folder / _STATE
        if file.is_file():
            found = _parsed(file)
            if found is not None:
                return found
        zeros = {name: [0] * self.parts for name in (*self._row_blocks(), *SPLIT_BITS)}
        return {"rows": 0, "runs": None, **zeros}

    def _row_blocks(self) -> list[str]:
        """Names of the blocks with a row for a node."""
        own = [f"x.{type_}" for type_, width in enumerate(self.shape.type_widths) if width]
        return [*(own if self.shape.type_widths else ["x"]), "y", "split", "node_ids"]

    def _layout(self, number: int, edges: int) -> tuple[Block, ...]:
        """Where the blocks of a part lie."""
        return layout(self.shape, int(self.sizes[number]), edges, self._types_of(number))

    def _types_of(self, number: int) -> tuple[int, ...]:
        return () if self.of_type is None else tuple(self.of_type[number].tolist())

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.bin"

    def _write_rows(self) -> None:
        """Features, labels, splits and ids: each range of the source goes to consecutive rows of every part."""
        nodes, first = self.source.num_nodes, int(self.state["rows"])
        if first >= nodes:
            return
        blocks = [self._layout(number, 0) for number in range(self.parts)]
        filled = _counts(self.part[:first], self.parts)
        with ThreadPoolExecutor(min(processors(), _WRITERS), "graphweft-write", become_worker) as threads:
            for last, own, rows in self._ranges(first):
                cuts = np.concatenate([[0], np.cumsum(np.bincount(self.part[first:last], minlength=self.parts))])
                of_type = self.type_starts[bisect.bisect_right(self.type_starts, first) - 1]
                before = {name: filled for name in rows} | {own: _counts(self.part[of_type:first], self.parts)}
                put = partial(self._put_rows, blocks, rows, cuts, before)
                there = np.flatnonzero(np.diff(cuts)).tolist()
                for number, found in zip(there, threads.map(put, there), strict=True):
                    for name, value in found.items():
                        self.state[name][number] = value
                filled += np.diff(cuts)
                first = last
                self.state["rows"] = first
                write_json(self.folder / _STATE, self.state)
                self.told("copying features", first, nodes)
        self._pages.let_go()

    def _ranges(self, first: int) -> Iterator[tuple[int, str, dict[str, torch.Tensor]]]:
        """Ranges of rows from ``first`` on, by part; the next one is read while one is written.

        Its end, the name of its features, and its rows by block.
        """
        width = self.shape.row_width
        most = max(self.memory // (24 * width + 8 * max(self.shape.label_columns, 1) * 3 + 96), 1)
        with ThreadPoolExecutor(1, "graphweft-read") as reading:
            coming = reading.submit(self._range, first, most)
            while True:
                found = coming.result()
                if found[0] < self.source.num_nodes:
                    coming = reading.submit(self._range, found[0], most)
                yield found
                if found[0] >= self.source.num_nodes:
                    return

    def _range(self, first: int, most: int) -> tuple[int, str, dict[str, torch.Tensor]]:
        """At most so many rows of one type."""
        type_ = bisect.bisect_right(self.type_starts, first) - 1
        last = min(first + most, self.type_starts[type_ + 1])
        own = f"x.{type_}" if self.shape.type_widths else "x"
        order = np.argsort(self.part[first:last], kind="stable")
        x, y, split = self.source.rows(first, last)
        at = torch.from_numpy(order)
        rows = {
            own: torch.empty(last - first, 0) if x is None else self._rounded(x[at], at + first),
            "y": y[at].to(DTYPES[self.shape.label_dtype]),
            "split": torch.from_numpy(split[order]),
            "node_ids": at + first,
        }
        return last, own, rows

    def _rounded(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Features as they are stored. Raises: DataError for one that their type cannot hold."""
        made = x.to(DTYPES[self.shape.feature_dtype])
        if made.dtype != x.dtype and not bool(made.isfinite().all()):
            at = int((~made.isfinite()).any(dim=1).nonzero()[0])
            wrong = x[at][~made[at].isfinite()][0]
            raise DataError(
                f"{self.source.name}: expected features that {self.shape.feature_dtype} can hold, got {float(wrong):g} "
                f"in row {int(ids[at])}; dtype='bfloat16' or 'float32' has more room"
            )
        return made

    def _put_rows(
        self,
        blocks: list[tuple[Block, ...]],
        rows: dict[str, torch.Tensor],
        cuts: NDArray[np.int64],
        before: dict[str, NDArray[np.int64]],
        number: int,
    ) -> dict[str, int]:
        """Rows of one part behind those that are there, ``before`` of each block; what is counted goes on."""
        path, taken, found = self._path(number), slice(int(cuts[number]), int(cuts[number + 1])), dict[str, int]()
        with opened(path) as handle:
            for block in blocks[number]:
                if block.name not in rows:
                    continue
                content = bytes_of(rows[block.name][taken].contiguous())
                width = block.nbytes // block.shape[0]
                write_all(handle, path, content, block.offset + int(before[block.name][number]) * width)
                found[block.name] = zlib.crc32(content, self.state[block.name][number])
        self._pages.add(path, sum(table[taken].nbytes for table in rows.values()), 2 * len(rows))
        split = rows["split"][taken].numpy()
        for name, bit in SPLIT_BITS.items():
            found[name] = self.state[name][number] + int(np.count_nonzero(split & bit))
        return found

    def _sorted_edges(self) -> EdgeRuns:
        """The edges by part, from an earlier try where it got so far."""
        path = self.folder / _RUNS
        kind = np.dtype(self.shape.index_dtype)
        cuts = self._kept_cuts()
        if cuts is not None and path.is_file():
            found = EdgeRuns(path, self.parts, kind, cuts, self._columns_of_runs(), self.state.get("relations"))
            if path.stat().st_size == found.nbytes:
                return found
        new_id = numbered_by_group(self.part, self.bounds, kind)
        total = self.source.num_edges

        def done(count: int) -> None:
            self.told("sorting edges", count, total)

        given = (self.source.name, self.source.edges, self.part, new_id, self.parts, path, self.memory, done)
        runs = sort_edges(*given, self._columns_of_runs(), self.shape.num_relations, total)
        self._keep_cuts(runs)
        self.state["relations"] = runs.of_relation
        write_json(self.folder / _STATE, self.state)
        return runs

    def _keep_cuts(self, runs: EdgeRuns) -> None:
        """Where parts begin in every run, run after run: as numbers of a text they would be several times as large."""
        path = self.folder / _CUTS
        with opened(path, fresh=True) as handle:
            for place, cut in enumerate(runs.cuts):
                write_all(handle, path, cut, place * cut.nbytes)
            settle(handle, path)
        self.state["runs"] = len(runs.cuts)

    def _kept_cuts(self) -> list[NDArray[np.int64]] | None:
        """Those of an earlier try; None where it did not get so far, or a crash of the machine left half of them."""
        runs, path = self.state["runs"], self.folder / _CUTS
        if runs is None or not path.is_file():
            return None
        found = np.fromfile(path, np.int64)
        return list(found.reshape(runs, self.parts + 1)) if len(found) == runs * (self.parts + 1) else None

    def _columns_of_runs(self) -> tuple[str, ...]:
        """What a run has of an edge beside its ends."""
        return (*(("relation",) if self.shape.num_relations else ()), *(("weight",) if self.shape.edge_weight else ()))

    def _entry(self, number: int) -> PartEntry | None:
        """What an earlier try wrote of a part; None where it is not done."""
        file = self._path(number).with_suffix(".json")
        if not file.is_file():
            return None
        held = _parsed(file)
        if held is None:
            return None
        blocks = tuple(Block(**{**block, "shape": tuple(block["shape"])}) for block in held["blocks"])
        return PartEntry(**{**held, "blocks": blocks, "types": tuple(held["types"])})

    def _write_structure(self, number: int, runs: EdgeRuns, writing: Behind) -> None:
        """Offsets, sources, relations and weights of a part, range of rows after range of rows.

        Rows are by relation, then by ascending source. What fits at once is written while the next part is read.
        """
        nodes, start, edges = int(self.sizes[number]), int(self.bounds[number]), runs.count(number)
        blocks = {block.name: block for block in self._layout(number, edges)}
        most = max((self.memory - runs.resident) // (_WEIGHTED_EDGE if runs.columns else _SORTED_EDGE), 1024)
        if edges <= most // 2 and not runs.columns:  # half: another part is being written
            offsets, indices = compressed(runs.whole(number), start, nodes)
            writing.begin(self._put_structure, number, edges, offsets, indices)
            return
        writing.wait()
        highest = max(_LARGEST_KEY // (max(self.shape.num_relations, 1) * max(self.source.num_nodes, 1)), 1)
        indptr = np.zeros(nodes + 1, np.int64)
        for pairs in runs.read(number, most):
            indptr[1:] += np.bincount(pairs[:, 0] - start, minlength=nodes)
        np.cumsum(indptr, out=indptr)
        sums = dict.fromkeys(("indices", "relations", "weights"), 0)
        row, path = 0, self._path(number)
        with opened(path) as handle:
            while row < nodes:
                last = max(int(np.searchsorted(indptr, indptr[row] + most, "right")) - 1, row + 1)
                last = min(last, row + highest)
                made = self._columns(runs, number, start + row, start + last, int(indptr[last] - indptr[row]), most)
                for name, column in made.items():
                    written = write_all(handle, path, column, blocks[name].offset + int(indptr[row]) * column.itemsize)
                    self._pages.add(path, written)
                    sums[name] = zlib.crc32(array_bytes(column), sums[name])
                row = last
        self._put_structure(number, edges, indptr, None, sums)

    def _put_structure(
        self,
        number: int,
        edges: int,
        indptr: NDArray[np.int64],
        indices: NDArray[np.signedinteger[Any]] | None,
        sums: dict[str, int] | None = None,
    ) -> None:
        """The last blocks of a part, and its entry; ``sums``: checksums of its edges, where these are written."""
        nodes, path, blocks = int(self.sizes[number]), self._path(number), self._layout(number, edges)
        at, sums = {block.name: block.offset for block in blocks}, dict(sums or {})
        with opened(path) as handle:
            if indices is not None:
                write_all(handle, path, indices, at["indices"])
                sums["indices"] = zlib.crc32(array_bytes(indices))
            write_all(handle, path, indptr, at["indptr"])
            settle(handle, path, aligned(blocks[-1].offset + blocks[-1].nbytes))
        sums["indptr"] = zlib.crc32(array_bytes(indptr))
        sums |= {name: int(self.state[name][number]) for name in self._row_blocks()}
        finished = tuple(replace(block, crc32=sums[block.name]) for block in blocks)
        splits = {name: int(self.state[name][number]) for name in SPLIT_BITS}
        entry = PartEntry(path.name, nodes, edges, **splits, blocks=finished, types=self._types_of(number))
        write_json(path.with_suffix(".json"), asdict(entry))

    def _columns(
        self, runs: EdgeRuns, number: int, first: int, last: int, count: int, most: int
    ) -> dict[str, NDArray[Any]]:
        """Blocks of the edges into the ids from ``first`` to ``last``, by destination, relation and source."""
        keys = np.empty(count, np.int64)
        weights = np.empty(count if self.shape.edge_weight else 0, np.float32)
        filled, relations = 0, max(self.shape.num_relations, 1)
        nodes = max(self.source.num_nodes, 1)
        for pairs in runs.read(number, most):
            taken = pairs[(pairs[:, 0] >= first) & (pairs[:, 0] < last)]
            some = slice(filled, filled + len(taken))
            keys[some] = taken[:, 0].astype(np.int64) - first
            if self.shape.num_relations:
                keys[some] = keys[some] * relations + taken[:, 2]
            keys[some] = keys[some] * nodes + taken[:, 1]
            if self.shape.edge_weight:
                weights[some] = taken[:, -1].astype(np.int32).view(np.float32)
            filled += len(taken)
        if self.shape.edge_weight:  # equal edges keep the order of the source
            order = np.argsort(keys, kind="stable")
            keys, weights = keys[order], weights[order]
            del order
        else:
            keys.sort()
        found: dict[str, NDArray[Any]] = {}
        if self.shape.num_relations:
            found["relations"] = (keys // nodes % relations).astype(self.shape.relation_dtype)
        if self.shape.edge_weight:
            found["weights"] = weights
        keys %= nodes
        return {"indices": keys.astype(runs.dtype), **found}


def _parsed(file: Path) -> dict[str, Any] | None:
    """What a record of the build holds; None where a crash of the machine left half of one."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except ValueError:
        return None
    return found


def finish(partial: Path, folder: Path) -> None:
    """Gives a store that is whole its name, without what its building needed.

    The key stays to the last: until the store has its name, a process that is killed finds out that all is done.

    Raises: DataError where something else has taken the name.
    """
    key = folder / KEY
    try:
        for path in partial.iterdir():
            if path.name not in (MANIFEST, KEY) and path.suffix != ".bin":
                path.unlink()
        sync_folder(partial)
        partial.rename(folder)
        key.unlink(missing_ok=True)
        sync_folder(folder.absolute().parent)
    except OSError as failure:
        raise DataError(f"{folder}: expected a folder that can be made, got: {failure.strerror}") from None


def build_bytes(nodes: int, parts: int) -> int:
    """Bytes that a build holds throughout: part and new id of every node, offsets of a part, tables of parts.

    Example:
        >>> build_bytes(1000, 4) > 6000
        True
    """
    ids = 4 if nodes < 2**31 else 8
    return nodes * (ids + np.dtype(part_dtype(parts)).itemsize) + _OFFSETS * _share(nodes, parts) + 4096 * parts


def _share(nodes: int, parts: int) -> int:
    """Nodes of a part where all are alike."""
    return -(-nodes // parts)


def part_dtype(parts: int) -> type[np.unsignedinteger]:
    """The smallest type of part numbers, which sorts fastest."""
    return np.uint8 if parts <= 2**8 else np.uint16 if parts <= 2**16 else np.uint32


def _counts_of_types(part: NDArray[np.integer], parts: int, starts: list[int]) -> NDArray[np.int64]:
    """(parts, types) nodes of each type in every part."""
    return np.stack([_counts(part[a:b], parts) for a, b in pairwise(starts)], axis=1)


def _counts(part: NDArray[np.integer], parts: int) -> NDArray[np.int64]:
    """Nodes of each part, counted in pieces since the count makes wide copies."""
    found = np.zeros(parts, np.int64)
    for first in range(0, len(part), _COUNTED):
        found += np.bincount(part[first : first + _COUNTED], minlength=parts)
    return found
