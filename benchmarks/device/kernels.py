"""Sums, extrema and attention over edges on a CUDA device, beside cuSPARSE through torch and the bytes that they move.

    python benchmarks/device/kernels.py --data ogbn-products --scale 1

Every call is compared with torch in float64 on some rows first. ``floor_ms`` is what a copy on the device would take
for the bytes of the call where no row is read twice from a cache: a row for every edge, indices, offsets, the result.
``of_floor`` is floor over time: above 1 where caches serve rows. ``cusparse_ms`` is ``torch.sparse_csr @ x``, its
structure made before. Both sides are recorded and launched as CUDA graphs, so that small graphs show the kernels and
not the launches from Python.

    python benchmarks/device/kernels.py --hubs --data ogbn-arxiv --scale 1

times every kernel that takes a row's edges in order, with rows uncut and cut from several lengths on, against the same
floor; results/device_hubs.csv.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import RESULTS, show, write_csv
from timing import HERE, copy_rate, milliseconds, recorded, stamp

import graphweft as gw
from graphweft.graph.placed import on_device
from graphweft.runtime.attention import Score
from graphweft.runtime.cuda import attention, edges, hubs

_ROWS = 200  # that are compared
_UNCUT = 1 << 62
_HEADS, _CHANNELS = 8, 16


def _right(graph: gw.Graph, x: torch.Tensor, weight: torch.Tensor | None, found: torch.Tensor) -> float:
    """The largest error of some rows beside the largest number."""
    offsets, columns = graph.csc.indptr.long(), graph.csc.indices.long()
    rows = torch.linspace(0, graph.num_dst - 1, _ROWS).long()
    wanted = torch.stack(
        [
            (
                x[columns[offsets[i] : offsets[i + 1]].to(x.device)].double()
                * (1.0 if weight is None else weight[offsets[i] : offsets[i + 1], None].double())
            ).sum(0)
            for i in rows
        ]
    )
    return float((found[rows.to(found.device)].double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))


def rows_of(data: str, scale: float, widths: list[int], cusparse: bool = True) -> list[dict[str, Any]]:
    """A row a width and dtype."""
    given = gw.synthetic(data, scale=scale).graph.csc
    graph = gw.Graph.from_csc(given.indptr, given.indices)  # edges are numbered in row order, as the matrix has them
    placed, rate = on_device(graph, HERE), copy_rate()
    n, m = graph.num_nodes, graph.num_edges
    weight = torch.rand(m, device=HERE) + 0.5
    indptr, indices = given.indptr.to(HERE), given.indices.to(HERE)
    matrix = torch.sparse_csr_tensor(indptr.to(indices.dtype), indices, weight, (n, n))
    made = []
    for width in widths:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(n, width, device=HERE, dtype=dtype)
            size = x.element_size()
            floor = (m * (size * width + 4) + n * (8 + size * width)) / rate * 1e3

            def ours(x: torch.Tensor = x) -> torch.Tensor:
                return edges.sum_edges(placed, x)

            def weighted(x: torch.Tensor = x) -> torch.Tensor:
                return edges.sum_edges(placed, x, weight)

            bar = 1e-4 if dtype == torch.float32 else 2e-2
            row: dict[str, Any] = {"data": data, "scale": scale, "edges": m, "width": width, "dtype": str(dtype)[6:]}
            error = _right(graph, x, None, ours())
            if not error < bar:
                raise SystemExit(f"{row}: expected an error below {bar}, got {error}")
            own, spread = milliseconds(recorded(ours))
            row |= {"ms": round(own, 3), "spread": round(spread, 3), "floor_ms": round(floor, 3)}
            row |= {"of_floor": round(floor / own, 2), "error": f"{error:.1e}"}
            row["weighted_ms"] = round(milliseconds(recorded(weighted))[0], 3)
            row["max_ms"] = round(milliseconds(recorded(lambda x=x: edges.extremum(placed, x, False, False)[0]))[0], 3)
            row["cusparse_ms"] = ""
            if cusparse and dtype == torch.float32:
                row["cusparse_ms"] = round(milliseconds(recorded(lambda x=x: matrix @ x))[0], 3)
            row["copy_gbps"] = round(rate / 1e9)
            made.append(row)
            print(row, flush=True)
    return made


def _over_hubs(placed: gw.Graph, rate: float) -> dict[str, tuple[Callable[[], Any], float]]:
    """Every kernel that takes a row's edges in order, and the milliseconds of its bytes at the rate of a copy."""
    n, m, width = placed.num_nodes, placed.num_edges, _HEADS * _CHANNELS
    x, scores = torch.randn(n, width, device=HERE), torch.randn(m, _HEADS, device=HERE)
    _, arg = edges.extremum(placed, x, False, True)
    soft = edges.edge_softmax(placed, scores, False)
    rows, numbers = x.view(n, _HEADS, _CHANNELS), [torch.randn(n, _HEADS, device=HERE) for _ in range(2)]
    kind, graphs = attention.Scored(Score.ADD, 0.2), (placed, placed.reverse())
    result = attention.attend(kind, placed, rows, *numbers, _HEADS)
    assert arg is not None  # asked for
    row, number, structure = 4 * width, 4 * _HEADS, 4 * m + 8 * n  # bytes
    forward = m * (row + number) + n * (row + 3 * number) + structure
    backward = forward + n * row + m * (row + 4 * number) + n * (2 * row + 2 * number) + structure
    made: dict[str, tuple[Callable[[], Any], int]] = {
        "sum": (lambda: edges.sum_edges(placed, x), (m + n) * row + structure),
        "largest": (lambda: edges.extremum(placed, x, False, True), (m + 2 * n) * row + structure),
        "gradient of the largest": (lambda: edges.extremum_gradient(placed, arg, x), (m + n) * row + structure),
        "softmax": (lambda: edges.edge_softmax(placed, scores, False), 2 * m * number + 8 * n),
        "gradient of softmax": (
            lambda: edges.edge_softmax_gradient(placed, soft, scores),
            3 * m * number + 8 * n,
        ),
        "attention": (lambda: attention.attend(kind, placed, rows, *numbers, _HEADS), forward),
        "gradients of attention": (
            lambda: attention.gradients(kind, graphs, (rows, numbers[0], numbers[1]), result, rows),
            backward,
        ),
    }
    return {name: (run, moved / rate * 1e3) for name, (run, moved) in made.items()}


def hub_rows(data: str, scale: float, lengths: list[int]) -> list[dict[str, Any]]:
    """A row a kernel: milliseconds with rows uncut and cut, and the shares of the floor."""
    given = gw.synthetic(data, scale=scale).graph.csc
    placed = on_device(gw.Graph.from_csc(given.indptr, given.indices), HERE)
    most = {"in": int(placed.in_degrees().max()), "out": int(placed.out_degrees().max())}
    made = []
    for name, (run, floor) in _over_hubs(placed, copy_rate()).items():
        row: dict[str, Any] = {"data": data, "scale": scale, "edges": placed.num_edges, "kernel": name}
        row |= {f"most_{way}": degree for way, degree in most.items()} | {"floor_ms": round(floor, 4)}
        before, uncut = hubs.HUB, None
        for length in [_UNCUT, *lengths]:
            hubs.HUB, label = length, "uncut" if length == _UNCUT else str(length)
            found = run()
            found = found if isinstance(found, torch.Tensor) else found[0]
            uncut = found if uncut is None else uncut
            error = float((found - uncut).abs().max() / uncut.abs().max())
            if not error < 1e-4:
                raise SystemExit(
                    f"{name}, rows cut from {label}: expected what uncut rows give, got an error of {error}"
                )
            time = milliseconds(recorded(run))[0]
            row |= {f"ms_{label}": round(time, 4), f"of_floor_{label}": round(floor / time, 2)}
        hubs.HUB = before
        made.append(row)
        print(row, flush=True)
    return made


def main() -> None:
    """Times, prints and appends to results/device_kernels.csv, or device_hubs.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--hubs", action="store_true", help="every kernel with rows cut from several lengths on")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--out", type=Path, help="default: results/device_kernels.csv, or device_hubs.csv")
    given = parser.parse_args()
    if given.hubs:
        made = hub_rows(given.data, given.scale, given.lengths)
    else:
        made = rows_of(given.data, given.scale, given.widths)
    show("kernels", made, list(made[0]))
    out = given.out or RESULTS / ("device_hubs.csv" if given.hubs else "device_kernels.csv")
    write_csv(out, [{**row, **stamp()} for row in made])


if __name__ == "__main__":
    main()
