"""Compiled kernels over the graph zoo and random graphs: ``python graphs.py 500`` runs that many on the emulator,
``python graphs.py device 500`` on a CUDA device.

Every graph goes through every kernel that is written once, and through one generated region, forward and backward,
against float64: SciPy and NumPy, or the interpreter of the IR. The largest error may be 1e-5 of the largest number.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from codegen.regions import REGIONS, attends
from codegen.test_edges import arguments, fields_of, function_of, gradients
from cuda import emulated, hardware, sampling
from torch import Tensor
from zoo import CASES

import graphweft as gw
from graphweft.ir.interpret import edges_in_row_order, interpret
from graphweft.runtime import dense
from graphweft.runtime.cuda import edges
from graphweft.runtime.epilogue import Epilogue

CLOSE = 1e-5
SCORES = {f"attention, {score}": attends(score) for score in ("add", "add2", "dot")}
FUNCTIONS = {name: function_of(region) for name, region in (REGIONS | SCORES).items()}
WIDTHS = (1, 5, 64, 130)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(got: Tensor, wanted: Tensor) -> float:
    """The largest difference beside the largest number; infinite where one is not finite."""
    if not wanted.numel():
        return 0.0
    difference = (got.double() - wanted.double()).abs().max()
    return float("inf") if not torch.isfinite(difference) else float(difference) / max(1.0, float(wanted.abs().max()))


def random_graph(seed: int) -> gw.Graph:
    """Up to 40 nodes: uniform, with a hub, with isolated nodes, with parallel edges, or between two sets."""
    random = np.random.default_rng(seed)
    nodes, kind = int(random.integers(1, 40)), seed % 5
    count = int(random.integers(0, 4 * nodes))
    src, dst = random.integers(0, nodes, count), random.integers(0, nodes, count)
    if kind == 1:
        dst[: count // 2] = 0
    elif kind == 2:
        dst = np.minimum(dst, nodes // 3)
    elif kind == 3:
        src, dst = np.repeat(src, 2), np.repeat(dst, 2)
    if kind == 4:
        return gw.Graph(src, dst % 7, num_nodes=(nodes, 7))
    return gw.Graph(src, dst, num_nodes=nodes)


def of_kernels(graph: gw.Graph, seed: int) -> dict[str, float]:
    """The errors of kernels that are written once."""
    n, m, width = graph.num_dst, graph.num_edges, WIDTHS[seed % len(WIDTHS)]
    own = 0.5 if graph.num_src == n else 0.0
    x, weight, scale = drawn(graph.num_src, width, seed=seed), drawn(m, seed=seed + 1), drawn(graph.num_src, seed=2)
    src, dst, ids = edges_in_row_order(graph)
    stages = {
        "row_scale": drawn(n, seed=3),
        "bias": drawn(width, seed=4),
        "addend": drawn(n, width, seed=5),
        "mask": drawn(n, width, seed=6),
        "post_scale": drawn(n, seed=7),
    }
    scaled = x.double() * scale.double()[:, None]
    total = torch.zeros(n, width, dtype=torch.float64)
    total.index_add_(0, dst, scaled[src] * weight.double()[ids, None])
    if own:
        total += own * scaled
    plain = torch.zeros_like(total).index_add_(0, dst, x[src].double())
    finish = Epilogue(**stages, relu=True).reference
    made = {
        "sum_edges": error(edges.sum_edges(graph, x, weight, scale, own, stages, True), finish(total)),
        "sum_edges, no weights": error(edges.sum_edges(graph, x), plain),
        "finish_rows": error(edges.finish_rows(total.float(), None, stages, True), finish(total.float().double())),
    }
    best, arg = edges.extremum(graph, x, bool(seed % 2), True)
    assert arg is not None
    kept = torch.zeros(n, width, dtype=torch.float64)
    kept.index_reduce_(0, dst, x.double()[src], "amin" if seed % 2 else "amax", include_self=False)
    made["extremum_of_edges"] = error(best, kept)
    slope = drawn(n, width, seed=8)
    back = torch.zeros(graph.num_src, width, dtype=torch.float64)
    back.scatter_add_(0, arg.long().clamp(min=0), torch.where(arg >= 0, slope, 0.0).double()) if n else None
    made["extremum_gradient"] = error(edges.extremum_gradient(graph, arg, slope), back)
    scores = drawn(m, 3, seed=9).mul(3) + torch.arange(m)[:, None] * (10 / max(m, 1))  # the largest comes late
    leaf = scores.double().requires_grad_()
    parts = [torch.softmax(leaf[ids[dst == row]], 0) for row in range(n)]
    wanted = torch.cat([leaf[:0], *parts])[torch.argsort(ids)]
    soft = edges.edge_softmax(graph, scores, False)
    made["softmax_of_edges"] = error(soft, wanted.detach())
    given = drawn(m, 3, seed=10)
    (turned,) = torch.autograd.grad((wanted * given).sum() + leaf.sum() * 0, leaf)
    made["softmax_gradient"] = error(edges.edge_softmax_gradient(graph, soft, given), turned)
    same = torch.equal(edges.dropout(x, 0.3, seed, 5), dense.dropout(x, 0.3, seed, 5))
    return made | {"drop_elements": 0.0 if same else float("inf")}


def of_region(graph: gw.Graph, name: str) -> float:
    """The largest error of a generated region's results and gradients."""
    function, double, single = FUNCTIONS[name], fields_of(graph, torch.float64), fields_of(graph, torch.float32)
    given = arguments(graph, double)
    expected = interpret(function.program(given), given.named())
    slopes = gradients(expected, double)
    with gw.config(target="cuda"):
        outputs = function(arguments(graph, single))
        found = gradients(outputs, single)
    pairs = [(outputs[key], expected[key].detach()) for key in expected] + list(zip(found, slopes, strict=True))
    return max(error(got.detach(), wanted) for got, wanted in pairs)


def main(count: int, seconds: float, first: int = 0, watching: Callable[[], Any] = emulated.watching) -> int:
    """Prints the largest error of every kernel; how many graphs went wrong."""
    torch.set_num_threads(1)
    gw.passes.pipeline.WORTH_A_KERNEL = 0
    worst, launches, wrong, names = Counter[str](), 0, 0, list(FUNCTIONS)
    begin, done = time.perf_counter(), 0
    cases = [(case.name, case.graph) for case in CASES if case.num_edges < 300]
    cases += [(f"random {k}", lambda k=k: random_graph(k)) for k in range(first, first + count)]  # type: ignore[misc]
    for k, (name, graph) in enumerate(cases):
        if time.perf_counter() - begin > seconds:
            break
        done += 1
        try:
            with watching() as seen:
                errors = of_kernels(graph(), k)
                if k % 2 == 0 and graph().is_square:
                    errors["batches"] = float("inf") if sampling.of_graph(graph(), k // 2) else 0.0
                region = names[k % len(names)]
                if graph().num_edges:
                    errors[f"walks of {region}"] = of_region(graph(), region)
            launches += len(seen)
        except Exception as failure:
            print(f"{name}: {type(failure).__name__}: {failure}".replace("\n", " ")[:300], flush=True)
            wrong += 1
            continue
        for kernel, far in errors.items():
            worst[kernel] = max(worst[kernel], far)  # type: ignore[assignment]
            if far > CLOSE:
                print(f"{name}: {kernel}: {far:.2e}", flush=True)
        wrong += any(far > CLOSE for far in errors.values())
    for kernel, far in sorted(worst.items()):
        print(f"{kernel}\t{far:.1e}")
    print(f"{done} of {len(cases)} graphs, {launches} launches, {wrong} wrong, {time.perf_counter() - begin:.0f} s")
    return wrong


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word != "device"]
    place = hardware if "device" in sys.argv else emulated
    sys.exit(main(numbers[0], *numbers[1:2] or [1e9], *numbers[2:] or [0], place.watching) > 0)
