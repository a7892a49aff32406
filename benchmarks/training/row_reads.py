"""Rows that the exact mode reads from disk, against Belady's optimum and LRU on the same uses, by counting.

    python benchmarks/training/row_reads.py --data ogbn-papers100M --scale 0.01 --batch 100 --shares 2 8
    python benchmarks/training/row_reads.py --scale 0.02 --width 1024 --batch 32 --epochs 2

A twin is prepared as a store, and a loader goes through some epochs with ``1 / share`` of the features' bytes for the
table of rows, its books, the buffers of reads and the batches that are drawn ahead. What each batch reads is written
down; the optimum (all uses known, the row that is used again last leaves) and LRU are then simulated twice: with room
for as many rows as the table has, and with all of these bytes as rows. ``bytes`` counts what the system was asked for,
with the sectors around the rows; the optimum in sectors has whole sectors of 4 KB as its items. No time is taken.
Appends to results/row_reads.csv.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, show, stamp, write_csv

import graphweft as gw
from graphweft.storage.requests import SECTOR
from graphweft.storage.stored_structure import structure_bytes

COLUMNS = (
    *("case", "share", "table_rows", "rows_of_memory", "batches", "rows_of_batch", "used", "read", "optimum"),
    *("read_over_optimum", "lru", "read_over_lru", "optimum_of_memory", "read_over_optimum_of_memory", "lru_of_memory"),
    *("read_over_lru_of_memory", "mb_read", "bytes_over_optimum_rows", "sectors_over_optimum", "kb_per_request"),
)
Uses = list[NDArray[np.int64]]


def misses(uses: Uses, items: int, capacity: int, by_next_use: bool) -> int:
    """Items that are fetched where ``capacity`` of them stay from batch to batch; uses of a batch are one moment.

    ``by_next_use``: those used again soonest stay, as Belady has it; else those used last.
    """
    never = len(uses)
    following: Uses = []
    after = np.full(items, never)
    for turn in range(len(uses) - 1, -1, -1) if by_next_use else ():
        following.append(after[uses[turn]])
        after[uses[turn]] = turn
    following.reverse()
    held, rank, count = np.zeros(items, np.bool_), np.full(items, never), 0
    for turn, ids in enumerate(uses):
        count += int((~held[ids]).sum())
        held[ids] = True
        rank[ids] = following[turn] if by_next_use else never - turn
        some = np.flatnonzero(held)
        if by_next_use:
            held[some[rank[some] == never]] = False
            some = some[rank[some] != never]
        if len(some) > capacity:
            held[some[np.argpartition(rank[some], capacity)[capacity:]]] = False
    return count


def sectors(uses: Uses, store: gw.macro.Store, place: NDArray[np.int64]) -> tuple[Uses, int]:
    """The sectors of the rows, numbered through all parts."""
    width = store.row_width * 4
    per_part = -(-int(np.diff(store.bounds).max()) * width // SECTOR) + 1
    found = []
    for ids in uses:
        at = place[ids]
        part = np.searchsorted(store.bounds[1:], at, "right")
        begin = (at - store.bounds[part]) * width
        first, last = begin // SECTOR, (begin + width - 1) // SECTOR
        some = [part * per_part + np.minimum(first + step, last) for step in range(int((last - first).max()) + 1)]
        found.append(np.unique(np.concatenate(some)))
    return found, per_part * len(store)


def measure(store: gw.macro.Store, share: int, options: argparse.Namespace) -> dict[str, Any]:
    """Rows and bytes of some epochs with a share of the features in memory."""
    nodes, row = store.num_nodes, 4 * store.row_width
    memory = nodes * row // share
    drawing = {"fanouts": options.fanouts, "batch_size": options.batch, "shuffle": True, "seed": 0}
    loader = gw.Loader(store, memory=memory + structure_bytes(store)[0], **drawing)
    feed: Any = loader._feed
    uses = [torch.unique(batch.n_id).numpy() for _ in range(options.epochs) for batch in loader]
    counts, capacity, rows = feed.counts, feed.cache.capacity, memory // row
    assert counts.needed == sum(map(len, uses))
    least, last = misses(uses, nodes, capacity, True), misses(uses, nodes, capacity, False)
    all_least, all_last = misses(uses, nodes, rows, True), misses(uses, nodes, rows, False)
    of_sectors, number = sectors(uses, store, feed.cache._place)
    floor = misses(of_sectors, number, capacity * row // SECTOR, True) * SECTOR
    return {
        "share": f"1/{share}",
        "table_rows": capacity,
        "rows_of_memory": rows,
        "batches": len(uses),
        "rows_of_batch": round(counts.needed / len(uses)),
        "used": counts.needed,
        "read": counts.read,
        "optimum": least,
        "read_over_optimum": round(counts.read / least, 3),
        "lru": last,
        "read_over_lru": round(counts.read / last, 3),
        "optimum_of_memory": all_least,
        "read_over_optimum_of_memory": round(counts.read / all_least, 3),
        "lru_of_memory": all_last,
        "read_over_lru_of_memory": round(counts.read / all_last, 3),
        "mb_read": round(counts.nbytes / 1e6, 1),
        "bytes_over_optimum_rows": round(counts.nbytes / (row * least), 3),
        "sectors_over_optimum": round(counts.nbytes / floor, 3),
        "kb_per_request": round(counts.nbytes / max(counts.requests, 1) / 1e3, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.05)
    parser.add_argument("--width", type=int, help="columns of features; those of the set")
    parser.add_argument("--order", default="random", choices=("random", "community"))
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--method", default="multilevel")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--shares", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--out", type=Path, default=RESULTS / "row_reads.csv")
    options = parser.parse_args()
    ds = gw.synthetic(options.data, scale=options.scale, num_features=options.width, order=options.order, seed=0)
    case = f"{options.data} {options.scale}, {ds.num_nodes:,} x {ds.num_features}, {options.method}, batch "
    case += f"{options.batch} of {'-'.join(map(str, options.fanouts))}"
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        given = {"parts": options.parts, "memory": "4GB", "method": options.method}
        store = gw.macro.prepare_store(ds, Path(folder) / "store", **given)
        del ds
        for share in options.shares:
            try:
                rows.append({"case": case, **measure(store, share, options)})
            except gw.errors.GraphWeftError as refused:
                print(f"1/{share}: {refused}", flush=True)
    show("rows read from disk", rows, COLUMNS)
    write_csv(options.out, [{**row, **stamp(torch.get_num_threads())} for row in rows])


if __name__ == "__main__":
    main()
