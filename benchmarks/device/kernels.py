"""Sums, extrema and attention over edges on a CUDA device, beside cuSPARSE through torch and the bytes that they move.

    python benchmarks/device/kernels.py --data ogbn-products --scale 1

Every call is compared with torch in float64 on some rows first. ``floor_ms`` is what a copy on the device would take
for the bytes of the call where no row is read twice from a cache: a row for every edge, indices, offsets, the result.
``of_floor`` is floor over time: above 1 where caches serve rows. ``cusparse_ms`` is ``torch.sparse_csr @ x``, its
structure made before. Both sides are recorded and launched as CUDA graphs, so that small graphs show the kernels and
not the launches from Python.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import RESULTS, show, write_csv
from timing import HERE, copy_rate, milliseconds, recorded, stamp

import graphweft as gw
from graphweft.graph.placed import on_device
from graphweft.runtime.cuda import edges

_ROWS = 200  # that are compared


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


def main() -> None:
    """Times, prints and appends to results/device_kernels.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--out", type=Path, default=RESULTS / "device_kernels.csv")
    given = parser.parse_args()
    made = rows_of(given.data, given.scale, given.widths)
    show("kernels", made, list(made[0]))
    write_csv(given.out, [{**row, **stamp()} for row in made])


if __name__ == "__main__":
    main()
