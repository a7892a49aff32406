"""Does the cost model choose the faster order of aggregation and transform? A sweep of shapes, both orders measured.

    python benchmarks/kernels/placement.py --shapes 200

For each shape one graph convolution is run forward and backward in both orders, interleaved, medians compared; before
that the results of the two orders are compared with each other. Which is faster is the median of the paired ratios, as
the speed of a shared machine drifts between rounds. Prints the share of shapes where the built-in
coefficients, and the coefficients fitted to one step of either order (the first epoch), name the faster order; ties
within 3 % count for both.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from pathlib import Path

import torch

from graphweft.cost import CostModel
from graphweft.data.synthetic import synthetic
from graphweft.measure.bench import machine_stamp, write_csv
from graphweft.nn import GCNConv
from graphweft.passes.cleanup import cleanup
from graphweft.passes.message import fuse_messages
from graphweft.passes.pipeline import Request, finish
from graphweft.passes.placement import Order
from graphweft.runtime.compile import Arguments, measure_sizes
from graphweft.runtime.plan import Plan
from graphweft.runtime.profile import profiling

TIE = 0.03


def plan_for(layer: GCNConv, arguments: Arguments, order: Order) -> Plan:
    """The layer's training step with its product in ``order``."""
    program = cleanup(fuse_messages(layer.function.program(arguments)))
    x = arguments.x
    wanted = ("weight", "bias", *(("x",) if isinstance(x, torch.Tensor) and x.requires_grad else ()))
    request = Request(
        level=3, wanted=wanted, constants=(), sizes=lambda joint: measure_sizes(joint, arguments, 0), model=CostModel()
    )
    return Plan(finish(program, {"weight": order}, request))


def step(plan: Plan, arguments: Arguments, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One forward and backward pass over the plan's calls."""
    named = {"graph": arguments.graph, "x": arguments.x, "seed": 0, **arguments.parameters}
    hoisted = tuple(plan.evaluate_hoisted(item, {n: named[n] for n in item.leaves}) for item in plan.hoisted)
    env = plan.bind({name: named[name] for name in plan.fixed}, hoisted)
    start = time.perf_counter()
    with torch.no_grad():
        (out,) = plan.run_forward(env, tuple(named[name] for name in plan.tensors))
        found = plan.run_backward(env, {"out": gradient})
    step.seconds = time.perf_counter() - start  # type: ignore[attr-defined]
    return (out, *(g for g in found if g is not None))


def measure(nodes: int, degree: int, width: int, hidden: int, first: bool, rounds: int) -> dict[str, object]:
    """Both orders on one shape: measured medians, predictions before and after a fit."""
    ds = synthetic(num_nodes=nodes, num_edges=nodes * degree, num_features=4, seed=0)
    layer = GCNConv(width, hidden)
    x = torch.randn(nodes, width, requires_grad=not first)
    arguments = layer.arguments(ds.graph, x)
    gradient = torch.randn(nodes, hidden)
    plans = {order: plan_for(layer, arguments, order) for order in Order}
    results = {order: step(plan, arguments, gradient) for order, plan in plans.items()}
    for a, b in zip(*results.values(), strict=True):
        scale = float(b.detach().abs().max()) or 1.0
        torch.testing.assert_close(a / scale, b / scale, rtol=1e-3, atol=1e-3)
    with profiling() as samples:
        for plan in plans.values():
            step(plan, arguments, gradient)
    fitted = CostModel().fit([(work, seconds) for _, work, seconds in samples])
    times: dict[Order, list[float]] = {order: [] for order in Order}
    for _ in range(rounds):
        for order, plan in plans.items():
            step(plan, arguments, gradient)
            times[order].append(step.seconds)  # type: ignore[attr-defined]
    median = {order: statistics.median(t) for order, t in times.items()}

    def gain(model: CostModel) -> float:
        works = {order: [work for made in p.compiled.works.values() for work in made] for order, p in plans.items()}
        seconds = {order: sum(map(model.seconds, found)) for order, found in works.items()}
        return seconds[Order.AGGREGATE] - seconds[Order.TRANSFORM]

    pairs = zip(times[Order.AGGREGATE], times[Order.TRANSFORM], strict=True)
    real = math.log(statistics.median(a / t for a, t in pairs))  # positive: to transform first is faster
    tie = abs(real) < TIE
    return {
        "nodes": nodes, "degree": degree, "width": width, "hidden": hidden, "first_layer": first,
        "aggregate_ms": median[Order.AGGREGATE] * 1e3, "transform_ms": median[Order.TRANSFORM] * 1e3, "tie": tie,
        "built_in_right": tie or gain(CostModel()) * real > 0, "fitted_right": tie or gain(fitted) * real > 0,
    }  # fmt: skip


def main() -> int:
    """Sweeps, prints the shares and writes the CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "placement.csv")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    draw = random.Random(options.seed)
    rows = []
    for index in range(options.shapes):
        nodes = int(10 ** draw.uniform(3.5, 5.3))
        degree = int(10 ** draw.uniform(0.5, min(2.0, 7.0 - len(str(nodes)))))
        width, hidden = (draw.choice([8, 16, 32, 64, 100, 128, 200, 256, 400]) for _ in range(2))
        rows.append(measure(nodes, degree, width, hidden, draw.random() < 0.5, options.rounds))
        print(f"\r{index + 1}/{options.shapes}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for name in ("built_in_right", "fitted_right"):
        share = sum(bool(row[name]) for row in rows) / len(rows)
        print(f"{name}: {share:.1%} of {len(rows)} shapes, {sum(bool(r['tie']) for r in rows)} ties")
    stamp = machine_stamp()
    write_csv(options.out, [{**row, **stamp} for row in rows])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
