"""``write_parts``: a partitioned graph as a folder with one part a rank.

Comes in: a dataset in memory, or a store whose features stay on disk, and the part of every node. Goes out: a folder
that appears when it is whole (:mod:`graphweft.data.part_format`). Called by users and by ``graphweft partition --out``.
The structure is in memory; features of a store are read and written some rows at a time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import ConfigError, DataError
from graphweft._memory import POOL, lean_heap
from graphweft.data.dataset import Dataset
from graphweft.data.part_check import ARRAYS, folder_of
from graphweft.data.part_format import PartInfo, PartManifest, crc_of, laid_out
from graphweft.data.store_writes import opened, settle, sync_folder, write_all, write_text
from graphweft.data.stored_graph import StoredGraph
from graphweft.graph.graph import Graph
from graphweft.partitioning import multilevel
from graphweft.partitioning.multilevel import first_places
from graphweft.partitioning.partition import Partition
from graphweft.partitioning.report import row_ranges
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.storage.store import Store, kind_of, partial_of
from graphweft.storage.store_format import MANIFEST, SPLIT_BITS, itemsize

_LEAST, _MOST = 16 << 20, 64 << 20  # bytes for rows on their way: more at once are not written faster
_NODE, _EDGE = 48, 12  # bytes of a node of the graph, and of an edge of the largest part, while parts are cut out


def write_parts(
    data: Dataset | Store,
    made: Partition,
    out: str | os.PathLike[str],
    memory: int | str | None = None,
) -> Path:
    """Writes every part of ``made`` into a folder of its own under ``out``; the path.

    Args:
        data: A dataset without types and values of edges, or a store; its graph is that of ``made``.
        made: Parts of its nodes; no part may be empty.
        out: The folder, which must not exist.
        memory: Bytes, or a text such as "2GB", for what is held beside the data that are in memory already; None: a
            quarter of the machine's.

    Raises: ConfigError, DataError; a budget that is too small names the least that would do.

    Example:
        >>> import tempfile
        >>> from graphweft.data.synthetic import synthetic
        >>> from graphweft.partitioning.partition import partition
        >>> ds = synthetic("default", scale=0.02)
        >>> out = write_parts(ds, partition(ds.graph, 2), tempfile.mkdtemp() + "/parts")
        >>> sorted(path.name for path in out.iterdir())
        ['manifest.json', 'part-00000', 'part-00001']
    """
    folder = Path(out)
    if memory is not None:
        lean_heap()
    ds = StoredGraph(data) if isinstance(data, Store) else data
    check_out(folder)
    _check(ds, made)
    room = _room(ds, made, memory_bytes(memory))
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    cut = _Cut(made.graph, made.part.long(), made.k, _order(made.graph, room))
    infos = tuple(_write_part(partial, number, ds, cut, room) for number in range(made.k))
    manifest = PartManifest(
        ds.name, made.graph.num_nodes, made.graph.num_edges, ds.num_features, ds.num_classes, ds.task,
        tuple(ds.class_names), tuple(ds.notes), made.method, infos,
    )  # fmt: skip
    for number in range(made.k):
        write_text(folder_of(partial, number) / MANIFEST, manifest.to_json(), synced=True)
    write_text(partial / MANIFEST, manifest.to_json(), synced=True)
    sync_folder(partial)
    partial.replace(folder)
    sync_folder(folder.absolute().parent)
    return folder


def check_out(folder: Path) -> None:
    """The folder is free. Raises: ConfigError."""
    if os.path.lexists(folder):
        raise ConfigError(f"out: expected a folder that does not exist yet, got {folder}, which is {kind_of(folder)}")
    if not folder.absolute().parent.is_dir():
        raise ConfigError(f"out: expected a folder to write into, got {folder.parent}, which is not a folder")


def _check(ds: Dataset, made: Partition) -> None:
    """Raises: DataError for what parts cannot hold."""
    if ds.graph.is_typed or ds.features:
        raise DataError(f"{ds.name}: expected a graph without types, got one with {len(ds.graph.relations)} relations")
    for name in ("edge_weight", "edge_features", "graph_ptr", "edge_label_index"):
        if getattr(ds, name) is not None:
            raise DataError(f"{ds.name}: expected a dataset of one graph without {name}, got one with it")
    if made.graph.num_nodes != ds.num_nodes or made.graph.num_edges != ds.num_edges:
        raise DataError(f"{ds.name}: expected parts of {ds.num_nodes} nodes, got parts of {made.graph.num_nodes}")
    empty = (made.sizes == 0).nonzero().reshape(-1)
    if empty.numel():
        raise DataError(f"{ds.name}: expected nodes in every part, got none in part {int(empty[0])}")


def _room(ds: Dataset, made: Partition, budget: int) -> int:
    """Bytes for rows on their way. Raises: ConfigError."""
    edges = torch.zeros(made.k, dtype=torch.int64).index_add_(0, made.part.long(), made.graph.in_degrees().long())
    held = _NODE * ds.num_nodes + _EDGE * int(edges.max())
    if budget < held + _LEAST:
        raise ConfigError(
            f"memory: expected at least {shown_bytes(held + _LEAST)} for {ds.num_nodes:,} nodes in {made.k} parts, "
            f"got {shown_bytes(budget)}"
        )
    return budget - held


def _order(graph: Graph, room: int) -> Tensor | None:
    """An order in which neighbours stand together, where that pays and ``room`` bytes suffice; else None."""
    if graph.num_edges < multilevel.WORTH_ORDERING or multilevel.order_bytes(graph.num_nodes) > room:
        return None
    order = multilevel.neighbours_together(graph.csc, multilevel.CELL)
    POOL.trim()
    return order


class _Cut:
    """Where every node lies: its own part, and the place there.

    ``order``: in which nodes of a part stand, interior and boundary apart, and ghosts then in that of their readers;
    None: both by id.
    """

    def __init__(self, graph: Graph, part: Tensor, k: int, order: Tensor | None) -> None:
        self.graph, self.part, csc, self._by_id = graph, part, graph.csc, order is None
        degrees = csc.indptr.diff()
        self.degrees = degrees.float()  # self-loops left out
        bound = torch.zeros(graph.num_nodes, dtype=torch.bool)
        for low, high in row_ranges(csc.indptr, multilevel.AT_ONCE):
            dst = torch.repeat_interleave(torch.arange(low, high), degrees[low:high])
            src = csc.indices[int(csc.indptr[low]) : int(csc.indptr[high])].long()
            bound[dst[part[src] != part[dst]]] = True
            self.degrees -= torch.bincount(dst[src == dst], minlength=graph.num_nodes)
        group = 2 * part + bound
        order = torch.argsort(group, stable=True) if order is None else order[torch.argsort(group[order], stable=True)]
        del group
        sizes = torch.bincount(part, minlength=k)
        first = torch.zeros(k + 1, dtype=torch.int64)
        torch.cumsum(sizes, 0, out=first[1:])
        self.home = torch.empty(graph.num_nodes, dtype=torch.int64)
        self.home[order] = torch.arange(graph.num_nodes) - first[part[order]]
        self.order, self.first = order, first

    def piece(self, number: int) -> _Piece:
        """The nodes and edges of a part."""
        own = self.order[int(self.first[number]) : int(self.first[number + 1])]
        taken = self.graph.csc.take_rows(own)
        indptr, sources = taken.indptr, taken.indices
        del taken
        seen = torch.zeros(self.graph.num_nodes, dtype=torch.bool)
        for some in torch.split(sources, multilevel.AT_ONCE):
            seen[some.long()] = True
        seen[own] = False
        ghosts = seen.nonzero().reshape(-1)
        if not self._by_id:
            ghosts = ghosts[torch.argsort(first_places(sources, self.graph.num_nodes)[ghosts])]
        ghosts = ghosts[torch.argsort(self.part[ghosts], stable=True)]
        ids = torch.cat([own, ghosts])
        local = torch.empty(self.graph.num_nodes, dtype=torch.int32)
        local[ids] = torch.arange(ids.numel(), dtype=torch.int32)
        return _Piece(own.numel(), ids, indptr, local.index_select(0, sources))


class _Piece(NamedTuple):
    """One part: own nodes, ids of own nodes and ghosts, in-edges of own nodes by numbers of the part."""

    own: int
    ids: Tensor
    indptr: Tensor
    indices: Tensor


def _write_part(folder: Path, number: int, ds: Dataset, cut: _Cut, room: int) -> PartInfo:
    """One part's arrays on disk."""
    piece = cut.piece(number)
    own, ghosts = piece.ids[: piece.own], piece.ids[piece.own :]
    bits = _bits(ds, own)
    small: dict[str, Tensor] = {
        **{"y": ds.y[own].contiguous(), "split": bits, "ids": piece.ids, "owner": cut.part[ghosts].int()},
        **{"home": cut.home[ghosts], "degrees": cut.degrees[piece.ids]},
        **{"indptr": piece.indptr, "indices": piece.indices},
    }
    kinds = {name: (str(table.dtype).removeprefix("torch."), tuple(table.shape)) for name, table in small.items()}
    blocks = laid_out({**kinds, "x": ("float32", (piece.ids.numel(), ds.num_features))})
    path = folder_of(folder, number) / ARRAYS
    path.parent.mkdir()
    sums: dict[str, int] = {}
    with opened(path, fresh=True) as handle:
        for block in blocks:
            if block.name != "x":
                table = small[block.name]
                write_all(handle, path, table.numpy(), block.offset)
                sums[block.name] = crc_of(table)
                continue
            sums["x"], at = 0, block.offset
            rows = max(1, min(room, _MOST) // (4 * itemsize("float32") * max(ds.num_features, 1)))
            read = _reader(ds)
            for ids in torch.split(piece.ids, rows) if ds.num_features else ():
                x = read(ids)
                at += write_all(handle, path, x.numpy(), at)
                sums["x"] = crc_of(x, sums["x"])
        settle(handle, path, blocks[-1].offset + blocks[-1].nbytes)
    sync_folder(path.parent)
    counts = {name: int(((bits & bit) > 0).sum()) for name, bit in SPLIT_BITS.items()}
    found = tuple(replace(block, crc32=sums[block.name]) for block in blocks)
    return PartInfo(piece.own, ghosts.numel(), piece.indices.numel(), **counts, blocks=found)


def _bits(ds: Dataset, ids: Tensor) -> Tensor:
    """uint8: the splits of some nodes. Raises: DataError for a node that is listed twice."""
    bits = torch.zeros(ds.num_nodes, dtype=torch.uint8)
    for name, bit in SPLIT_BITS.items():
        listed = ds.idx(name)  # type: ignore[arg-type]
        if torch.unique(listed).numel() != listed.numel():
            raise DataError(f"{ds.name}: expected every node once in {name}_idx, got one twice")
        bits[listed] += bit
    return bits[ids]


def _reader(ds: Dataset) -> Callable[[Tensor], Tensor]:
    """Features of nodes by their ids, contiguous float32."""
    x: Any = ds.x
    if isinstance(ds, StoredGraph):
        store, places = ds.store, ds.row_ids

        def from_disk(ids: Tensor) -> Tensor:
            wanted = places[ids].numpy()
            order = np.argsort(wanted)
            rows = torch.empty(len(wanted), store.num_features)
            rows[torch.from_numpy(order)] = store.feature_rows(wanted[order]).float()
            return rows

        return from_disk
    if isinstance(x, SparseFeatures):
        return lambda ids: x.take_rows(ids).to_dense().float().contiguous()
    return lambda ids: x[ids].float().contiguous()
