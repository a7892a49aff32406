"""Batches on a CUDA device: prepared there and on the CPU in several shares, and rows that do not lie on the device.

    python benchmarks/device/batches.py --data ogbn-products --scale 0.25
    python benchmarks/device/batches.py --parts rows

``share``: epochs of a SAGE (3 layers, fan-outs 15, 10, 5) whose batches the device prepares alone, the CPU alone, both
by halves, and both as ``schedule="auto"`` measures and chooses; all have to have the losses of the first, bit for bit.
``rows``: an epoch of a loader that draws on the device and keeps a share of the rows of features there, the others read
by the device from pinned host memory or sent with their batch; a row for all rows there as well. ``lists``: the same
with no room for the lists of in-edges, which kernels read in host memory. The first batch of each has to have the rows,
the nodes and the edges of the CPU's. ``ms`` is of a batch, the fastest of some epochs; ``auto`` what a loader of its
own choice measured, in milliseconds. One process, one after the other.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import timing
from harness import RESULTS, show, write_csv

import graphweft as gw
from graphweft.measure.bench import machine_stamp
from graphweft.schedule.device_place import DevicePlace
from graphweft.schedule.places import Schedule
from graphweft.schedule.split import Plan

FANOUTS = (15, 10, 5)
SHARES: dict[str, Any] = {"device": "device", "cpu": "cpu", "halves": Plan(10, 10), "auto": "auto"}
Row = dict[str, Any]


def synchronize(device: str) -> None:
    """Everything that was launched is over."""
    if device != "cpu":
        torch.cuda.synchronize()


def shares(ds: gw.Dataset, given: argparse.Namespace, graphs: str) -> list[Row]:
    """Epochs under every share."""
    rows, wanted = list[Row](), list[float]()
    for name, share in SHARES.items():
        row: Row = {"what": "share", "way": f"{name}, graphs {graphs}"}
        with noting(row):
            torch.manual_seed(0)
            model = gw.nn.SAGE(ds.num_features, given.hidden, ds.num_classes, num_layers=3)
            options = {"mode": "mini", "fanouts": FANOUTS, "batch_size": given.batch, "cuda_graphs": graphs}
            trainer = gw.Trainer(
                model, ds, lr=0.003, device=given.device, schedule=Schedule(DevicePlace(), share),
                eval_every=10**6, restore_best=False, **options,
            )  # fmt: skip
            begun = time.perf_counter()
            history = trainer.fit(given.epochs + 2)  # bounds of replays, then recorded steps
            row["seconds"] = round(time.perf_counter() - begun, 2)
            seconds = [record.epoch_seconds for record in history][2:]
            losses = [record.loss for record in history]
            wanted = wanted or losses
            batches = len(trainer._batch.loader)  # type: ignore[union-attr]
            row |= {"ms": round(1e3 * min(seconds) / batches, 3), "batches": batches, "same": losses == wanted}
            row["note"] = f"losses {losses[0]:.6f} {losses[-1]:.6f}; {trainer.scheduled}".replace("\n", " | ")
        rows.append(row)
        print(row, flush=True)
        del row
        gc.collect()
    return rows


def far_rows(ds: gw.Dataset, given: argparse.Namespace) -> list[Row]:
    """Epochs of a loader by share of the rows on the device and by way of the others."""
    structure = ds.graph.csc.nbytes + 4 * ds.num_nodes
    offsets = 8 * (ds.num_nodes + 1) + 8 * ds.num_nodes
    cases: list[tuple[str, str, int, str]] = [("rows", "all there", structure + ds.x.nbytes, "auto")]
    for share in (0.0, 0.1, 0.5):
        room = structure + 4 * ds.num_nodes + int(share * ds.x.nbytes)
        cases += [("rows", f"{share:.0%} there, {way}", room, way) for way in ("read", "sent", "auto")]
    cases += [("lists", f"rows 0% there, {way}", offsets, way) for way in ("read", "sent")]
    on_cpu = next(iter(gw.Loader(ds, fanouts=FANOUTS, batch_size=given.batch, shuffle=True, prefetch=0)))
    wanted = [on_cpu.n_id, on_cpu.x, on_cpu.e_id]
    found = []
    for what, way, room, far in cases:
        row: Row = {"what": what, "way": way}
        with noting(row):
            options = {"fanouts": FANOUTS, "batch_size": given.batch, "shuffle": True, "device_memory": room}
            begun = time.perf_counter()
            loader = gw.Loader(ds, device=given.device, far_rows=far, **options)
            row["seconds"] = round(time.perf_counter() - begun, 2)
            batch = loader(loader.order(0)[: given.batch])
            row["same"] = all(
                torch.equal(a.cpu(), b) for a, b in zip((batch.n_id, batch.x, batch.e_id), wanted, strict=True)
            )
            best = min(epoch(loader, given.device) for _ in range(given.epochs))
            rows = loader.device_rows
            assert rows is not None
            row |= {"ms": round(1e3 * best / len(loader), 3), "batches": len(loader), "hits": round(rows.hit_ratio, 3)}
            row["auto"] = " ".join(f"{name} {1e3 * seconds:.3f}" for name, seconds in rows.seconds.items())
            row["note"] = f"{rows.far}; {rows.read / (given.epochs * len(loader) + 1):.0f} rows a batch"
        found.append(row)
        print(row, flush=True)
        loader = rows = batch = None
        gc.collect()
    return found


def epoch(loader: gw.Loader, device: str) -> float:
    """Seconds in which all batches of an epoch, with their rows, are on the device."""
    synchronize(device)
    begun = time.perf_counter()
    for batch in loader:
        _ = batch.x
    synchronize(device)
    return time.perf_counter() - begun


class noting(nullcontext[None]):
    """A failure is a note of the row, and the others go on."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row

    def __exit__(self, kind: Any, failure: Any, trace: Any) -> bool:
        """Keeps what was raised."""
        if isinstance(failure, Exception):
            self.row["note"] = f"{kind.__name__}: {failure}".replace("\n", " ")[:300]
            traceback.print_exc()
            return True
        return False


def main() -> None:
    """Times, prints and appends to results/device_batches.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cuda", help="cpu: by Triton's interpreter, to try the script")
    parser.add_argument("--parts", nargs="+", default=["rows", "share"], choices=["rows", "share"])
    parser.add_argument("--out", type=Path, default=RESULTS / "device_batches.csv")
    given = parser.parse_args()
    ds = gw.synthetic(given.data, scale=given.scale)
    here = given.device == "cpu"
    stamp = machine_stamp() if here else timing.stamp()
    parts: dict[str, Callable[[], list[Row]]] = {
        "rows": lambda: far_rows(ds, given),
        "share": lambda: [row for graphs in ("off", "auto") for row in shares(ds, given, graphs)],
    }
    names = ("what", "way", "ms", "batches", "same", "hits", "auto", "seconds", "note")
    with gw.config(target="cuda", certify=False) if here else nullcontext():
        for part in given.parts:
            made = [{name: row.get(name, "") for name in names} for row in parts[part]()]
            show(part, made, [*names[:7], "note"])
            case = {"data": given.data, "scale": given.scale, "batch": given.batch, "edges": ds.graph.num_edges}
            write_csv(given.out, [{**case, **row, **stamp} for row in made])


if __name__ == "__main__":
    main()
