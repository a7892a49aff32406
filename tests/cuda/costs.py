"""What kernels cost: registers and widths of loads for three devices, sectors and instructions as counted on a graph.

The graph has 400 nodes and exactly 2,000 edges, in-degrees by a power law; rows are 64 wide. ``python costs.py`` prints
the table of ``tests/golden/cuda_kernels.txt``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
import triton
from cuda import ahead, emulated
from torch import Tensor
from zoo import power_law_edges

import graphweft as gw
from graphweft.passes import pipeline
from graphweft.runtime import sparse
from graphweft.runtime.cuda import edges, hubs, jit

NODES, EDGES, WIDTH, SECTOR = 400, 2000, 64, 32
ROW = WIDTH * 4 // SECTOR  # sectors of a row


class Cost(NamedTuple):
    """A launch: its kernel, what it takes by target, what it moves, and the least sectors that it has to read."""

    codes: dict[int, ahead.Code]
    launch: emulated.Launch
    least: int

    @property
    def instructions(self) -> float:
        """Warp instructions an edge."""
        return self.launch.traffic.instructions / EDGES


def graph_of(in_order: bool = False) -> gw.Graph:
    """The graph; with edges numbered row by row if asked for."""
    found = power_law_edges(NODES, EDGES, seed=5)
    order = found.dst.argsort(kind="stable") if in_order else slice(None)
    return gw.Graph(found.src[order], found.dst[order], num_nodes=NODES)


def numbers(count: int, size: int = 4) -> int:
    """Sectors of so many numbers that lie together."""
    return -(-count * size // SECTOR)


def runs(width: int = WIDTH) -> dict[str, tuple[Callable[[], object], int]]:
    """Launches by name, each with the least sectors that it has to read: a row an edge, a number that is read by index
    one sector each, what lies together once."""
    graph, ordered = graph_of(), graph_of(in_order=True)
    x, weight, scale, scores = (torch.randn(*shape) for shape in ((NODES, width), (EDGES,), (NODES,), (EDGES, 4)))
    row, rows = width * 4 // SECTOR, NODES * width * 4 // SECTOR
    structure = numbers(NODES + 1, 8) + numbers(EDGES)
    stages = {"row_scale": scale, "bias": x[0].clone(), "addend": x, "mask": x, "post_scale": scale}
    dense = numbers(EDGES * 4)
    arg: Tensor = sparse.spmm_max(graph.csc, x)[1]  # type: ignore[assignment]
    hit = len(
        torch.unique(arg.long() * width // 8 + torch.arange(width) // 8 + NODES * 100 * torch.arange(NODES)[:, None])
    )
    once = edges.by_source(graph).num_edges
    return {
        "sum": (lambda: edges.sum_edges(graph, x), EDGES * row + structure),
        "sum, weights in order": (
            lambda: edges.sum_edges(ordered, x, weight),
            EDGES * row + structure + numbers(EDGES),
        ),
        "sum, weights by number": (
            lambda: edges.sum_edges(graph, x, weight),
            EDGES * row + structure + numbers(EDGES) + EDGES,
        ),
        "sum, factors": (lambda: edges.sum_edges(graph, x, None, scale), EDGES * row + structure + EDGES),
        "sum, all stages": (
            lambda: edges.sum_edges(ordered, x, weight, scale, 0.5, stages, True),
            EDGES * row + structure + numbers(EDGES) + EDGES + 3 * rows + NODES * row + 3 * NODES,
        ),
        "largest": (lambda: edges.extremum(graph, x, False, True), EDGES * row + structure),
        "gradient of the largest": (
            lambda: edges.extremum_gradient(graph, arg, x),
            once * row + numbers(NODES + 1, 8) + numbers(once) + hit,  # of parallel edges one
        ),
        "stages of rows": (
            lambda: edges.finish_rows(x, None, stages, True),
            3 * rows + row + 2 * numbers(NODES),
        ),
        "softmax": (lambda: edges.edge_softmax(ordered, scores, False), 2 * dense + numbers(NODES + 1, 8)),
        "gradient of the softmax": (
            lambda: edges.edge_softmax_gradient(ordered, scores, scores),
            4 * dense + numbers(NODES + 1, 8),
        ),
        "dropout": (lambda: edges.dropout(x, 0.5, 3, 1), rows),
    }


def attention() -> dict[str, tuple[Callable[[], object], int]]:
    """The walks of a layer of GAT, forward and backward; nothing is said of the least."""
    graph, x = graph_of(), torch.randn(NODES, WIDTH)
    net = gw.nn.GAT(WIDTH, 16, WIDTH, heads=4, num_layers=1)

    def run() -> None:
        with gw.config(target="cuda", certify=False):
            net(graph, x).square().sum().backward()

    return {"attention": (run, 0)}


def costs(width: int = WIDTH, with_attention: bool = True) -> dict[str, Cost]:
    """All launches."""
    made: dict[str, Cost] = {}
    for name, (run, least) in (runs(width) | (attention() if with_attention else {})).items():
        with emulated.watching(counting=True) as launches, pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "WORTH_A_KERNEL", 0)
            patch.setattr(hubs, "HUB", EDGES)  # rows are whole
            run()
        for k, launch in enumerate(launches):
            codes = {target: ahead.code_of(launch.code_for(target), target) for target in ahead.TARGETS}
            made[name if len(launches) == 1 else f"{name} {k + 1}: {launch.kernel.__name__}"] = Cost(
                codes, launch, least
            )
    return made


CARELESS = """
@triton.jit
def careless(offsets, columns, x, y, F, BE: tl.constexpr, BF: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BF)
    total = tl.zeros([BF], tl.float32)
    begin = tl.load(offsets + row)
    end = tl.load(offsets + row + 1)
    for at in range(begin, end, BE):
        p = at + tl.arange(0, BE)
        col = tl.load(columns + p, mask=p < end, other=0).to(tl.int64)
        here = (p < end)[:, None] & (f < F)[None, :]
        total += tl.sum(tl.load(x + col[:, None] * F + f[None, :], mask=here, other=0.0), 0)
    tl.store(y + row * F + f, total, mask=f < F)
"""


def careless() -> Cost:
    """A sum whose width is a number of the launch: what the bars are there to see. One column short of 64."""
    graph, width = graph_of(), WIDTH - 1
    x = torch.randn(NODES, width)
    y = torch.empty(NODES, width)
    with emulated.watching(counting=True) as launches:
        jit.launch(
            jit.generated(CARELESS, "careless", ()),
            (NODES,),
            graph.csc.indptr,
            graph.csc.indices,
            x,
            y,
            width,
            BE=8,
            BF=64,
        )
    least = EDGES * numbers(width) + numbers(NODES + 1, 8) + numbers(EDGES)
    return Cost({90: ahead.code_of(launches[0].code, 90)}, launches[0], least)


def table(found: dict[str, Cost]) -> str:
    """As text: a line a kernel and target, then one of what was counted."""
    lines = [f"triton {triton.__version__}; {NODES} nodes, {EDGES} edges, rows of {WIDTH}"]
    for name, cost in found.items():
        lines.append(name)
        for target, code in cost.codes.items():
            lines.append(
                f"  sm_{target} registers {code.registers} spills {code.spills} shared {code.shared} "
                f"load {code.widest} store {code.widest_store}"
            )
        moved = cost.launch.traffic
        lines.append(
            f"  sectors read {moved.sectors['ld']} written {moved.sectors['st']} least {cost.least or '-'} "
            f"requests {moved.requests['ld']} warp instructions {moved.instructions}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.stdout.write(table(costs()))
