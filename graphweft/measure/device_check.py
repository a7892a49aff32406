"""Whether kernels are right and fast on a device: what only the device can show.

Comes in: a device. Goes out: one :class:`Check` per kernel: how far it is from the oracle in float64 on the CPU,
whether it gives the same bits again and again, and the bytes it moves a second beside those of a copy. Called by
``graphweft doctor --device``. The same checks run in host memory under Triton's interpreter.
"""

from __future__ import annotations

import functools
import json as json_format
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from graphweft import _config
from graphweft._checks import check_device
from graphweft._errors import ConfigError, NativeError
from graphweft.graph.graph import Graph
from graphweft.graph.placed import on_device
from graphweft.ir.interpret import edges_in_row_order
from graphweft.measure.device_epochs import epochs
from graphweft.nn.gat import GAT
from graphweft.nn.gcn import GCN
from graphweft.nn.sage import SAGE
from graphweft.runtime import dense, sparse
from graphweft.runtime.captured import Step
from graphweft.runtime.cuda import edges, measured
from graphweft.runtime.cuda.graphs import GraphStep, Recorder
from graphweft.runtime.cuda.jit import find_triton
from graphweft.runtime.cuda.sampling import DeviceSampler
from graphweft.runtime.cuda.updates import Stepped, Updates
from graphweft.runtime.padded import Shapes
from graphweft.runtime.staged import Choice, PreparedBatch
from graphweft.runtime.targets import target_named
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample
from graphweft.train.target import Classes

_CLOSE = 1e-5  # of the largest number of a result, in float32
_ROUNDED = 2.0**-8  # of a result in bfloat16
_OF_MODELS = 1e-3  # the same for gradients of whole models
_TIMED = 20
_RATE = 0.1  # of optimisers
_WIDTH = 64


class Check(NamedTuple):
    """One kernel: largest error against the oracle, whether all repetitions gave the same bits, bytes a second.

    ``gbps`` is 0 where nothing was timed. ``kernels`` are the names of calls that are switched off where it does not
    hold, ``failure`` is what was raised.
    """

    name: str
    error: float
    limit: float
    repeats: bool
    gbps: float = 0.0
    kernels: tuple[str, ...] = ()
    failure: str = ""

    @property
    def holds(self) -> bool:
        """Whether it may be used."""
        return self.error <= self.limit and self.repeats


class Work(NamedTuple):
    """What is checked: a run on the device, its result from elsewhere, and the bytes that a run moves."""

    run: Callable[[], Tensor]
    wanted: Tensor
    nbytes: int = 0
    limit: float = _CLOSE


_SUMS = ("spmm", "spmm_self", "contract_terms", "matmul_terms")
_CALLS = {  # that a check stands for
    "sum over edges": _SUMS,
    "sum over edges, all degrees alike": _SUMS,
    "sum over edges + bias + relu": _SUMS,
    "largest over edges": ("spmm_max", "spmm_arg"),
    "its gradient": ("spmm_max_grad",),
    "softmax over edges": ("edge_softmax",),
    "its gradient by scores": ("edge_softmax_grad",),
    "stages of rows": ("rows", "matmul"),
    "dropout, the CPU's draws": ("dropout", "dropout_of_rows"),
    "steps of Adam": ("adam",),
    "steps of SGD": ("sgd",),
    "gradients of GAT": ("attention", "attention_grad", "head_scores", "head_sums", "edge_nest", "row_nest"),
}


def checks(device: str, nodes: int = 100_000, degree: int = 15, repetitions: int = 100) -> list[Check]:
    """Every kernel on ``device``.

    Args:
        device: Such as "cuda".
        nodes: Of the random graph that it runs on, which has a hub, isolated nodes and parallel edges.
        degree: Mean number of in-edges.
        repetitions: Runs that have to give the same bits.

    Raises: ConfigError for a device that is not there, MissingPackageError without Triton.
    """
    place = check_device("--device", device)
    find_triton()
    graph = _graph(nodes, degree)
    few = _graph(min(nodes, 2000), degree)
    found: list[Check] = []
    # Models come after the kernels, without those that do not hold.
    of_kind: list[Callable[[], dict[str, Work]]] = [
        lambda: _kernels(graph, place),
        lambda: _steps(place),
        lambda: _batches(graph, place),
        lambda: _models(few, place),
        lambda: replays(few, place),
    ]
    for works in of_kind:
        with _config.config(disabled_kernels=switched_off(found)):
            found += [_checked(name, work, place, repetitions) for name, work in works().items()]
    return found


def switched_off(found: Sequence[Check]) -> str:
    """The calls of checks that do not hold, as ``config(disabled_kernels=)`` takes them.

    Example:
        >>> switched_off([Check("softmax", 1.0, 1e-5, True, kernels=("edge_softmax",)), Check("sum", 0.0, 1e-5, True)])
        'edge_softmax'
    """
    given = [name for name in _config.current().disabled_kernels.split(",") if name]
    wrong = [name for check in found if not check.holds for name in check.kernels]
    return ",".join(dict.fromkeys([*given, *wrong]))


def main(device: str, as_json: bool = False, nodes: int = 100_000, repetitions: int = 100) -> None:
    """Prints the checks and epochs as tables, or as JSON. Raises: NativeError naming the kernels that do not hold."""
    found = checks(device, nodes, repetitions=repetitions)
    copy = _copy_rate(check_device("--device", device))
    with _config.config(disabled_kernels=switched_off(found)):
        timed = epochs(check_device("--device", device))
    if as_json:
        rows = [{**check._asdict(), "holds": check.holds} for check in found]
        about = {"device": device, "copy_gbps": copy, "switched_off": switched_off(found)}
        about["epochs"] = [epoch._asdict() for epoch in timed]
        sys.stdout.write(json_format.dumps({**about, "checks": rows}) + "\n")
    else:
        title = f"{device}: a copy moves {copy:.0f} GB/s"
        table = Table("kernel", "largest error", "same bits", "GB/s", "holds", title=title)
        for check in found:
            speed = f"{check.gbps:.0f}" if check.gbps else "-"
            cells = (check.name, f"{check.error:.1e}", "yes" if check.repeats else "no", speed)
            holds = "yes" if check.holds else "no"
            table.add_row(*map(Text, cells), holds, style=None if check.holds else "red")
        Console().print(table)
        table = Table("epoch", "system", "ms", title="ogbn-arxiv's twin, 3 layers of 64")
        for epoch in timed:
            table.add_row(epoch.model, epoch.system, Text(epoch.failure or f"{epoch.ms:.2f}"))
        Console().print(table)
    wrong = [f"{check.name}{check.failure and f' ({check.failure})'}" for check in found if not check.holds]
    if wrong:
        off = switched_off(found)
        remedy = (
            f"GRAPHWEFT_DISABLED_KERNELS={off} leaves them to torch" if off else "config(target='reference') runs torch"
        )
        raise NativeError(f"{device}: expected every kernel to hold, got {', '.join(wrong)} wrong; {remedy}")


def calibrate(device: str, as_json: bool = False) -> None:
    """Measures which product is faster on ``device``, keeps it for later runs, and prints it.

    Raises: ConfigError for a device that is not there or none but the CPU, MissingPackageError without Triton.
    """
    place = check_device("--device", device)
    if place.type == "cpu":
        raise ConfigError(
            f"device={device!r} cannot be combined with --calibrate; without --device it measures the CPU"
        )
    find_triton()
    found = measured.calibrate(place)
    if as_json:
        sys.stdout.write(json_format.dumps({"device": device, "csr": found}) + "\n")
        return
    table = Table("columns", "torch's CSR in times of the kernel", "taken", title=f"{device}: edges times rows")
    for width, ratio in found.items():
        table.add_row(str(width), f"{ratio:.2f}", "CSR" if measured.prefers_csr(place, width) else "kernel")
    Console().print(table)


def _graph(nodes: int, degree: int) -> Graph:
    """In-degrees by a power law: a hub, nodes without edges, parallel edges, loops."""
    drawn = torch.Generator().manual_seed(0)
    src = torch.randint(nodes, (nodes * degree,), generator=drawn)
    dst = (nodes * torch.rand(nodes * degree, generator=drawn) ** 3).long().clamp(max=nodes - 1)
    return Graph(src, dst, num_nodes=nodes)


def _even(nodes: int, degree: int) -> tuple[Graph, Tensor]:
    """A random graph of one in-degree, and its sources, (nodes, degree)."""
    src = torch.randint(nodes, (nodes, degree), generator=torch.Generator().manual_seed(4))
    dst = torch.arange(nodes).repeat_interleave(degree)
    return Graph(src.reshape(-1), dst, num_nodes=nodes), src


def _kernels(graph: Graph, place: torch.device) -> dict[str, Work]:
    """Those that are written once."""
    there, n, m = on_device(graph, place), graph.num_nodes, graph.num_edges
    even, sources = _even(n, max(1, m // n))
    level = on_device(even, place)
    drawn = torch.Generator().manual_seed(1)
    x, dy, row = (torch.randn(n, _WIDTH, generator=drawn) for _ in range(3))
    weight, scores = torch.randn(m, generator=drawn), torch.randn(m, 4, generator=drawn)
    src, dst, ids = edges_in_row_order(graph)
    far = {name: t.to(place) for name, t in {"x": x, "w": weight, "s": scores, "dy": dy, "row": row}.items()}
    messages = x.double()[src] * weight.double()[ids, None]
    summed = torch.zeros(n, _WIDTH, dtype=torch.float64).index_add(0, dst, messages)
    largest, arg = sparse.spmm_max(graph.csc, x)
    assert arg is not None  # asked for
    there_arg, gradient = arg.to(place), torch.zeros(n, _WIDTH, dtype=torch.float64)
    gradient.scatter_add_(0, arg.long().clamp(min=0), torch.where(arg >= 0, dy, 0.0).double())
    soft = sparse.edge_softmax(graph.csc, scores)
    moved = 4 * _WIDTH * (m + n) + 8 * m
    return {
        "sum over edges": Work(lambda: edges.sum_edges(there, far["x"], far["w"]), summed, moved),
        "sum over edges, all degrees alike": Work(
            lambda: edges.sum_edges(level, far["x"]),
            sum((x.double()[sources[:, k]] for k in range(1, sources.shape[1])), x.double()[sources[:, 0]]),
            4 * _WIDTH * (even.num_edges + n) + 4 * even.num_edges + 8 * n,
        ),
        "sum over edges + bias + relu": Work(
            lambda: edges.sum_edges(there, far["x"], far["w"], given={"bias": far["row"][0]}, relu=True),
            torch.relu(summed + row[0]),
            moved,
        ),
        "sum over edges of bfloat16": Work(
            lambda: edges.sum_edges(there, far["x"].bfloat16()).float(),
            torch.zeros(n, _WIDTH, dtype=torch.float64).index_add(0, dst, x.bfloat16().double()[src]),
            moved // 2,
            _ROUNDED,
        ),
        "largest over edges": Work(lambda: edges.extremum(there, far["x"], False, True)[0], largest, moved),
        "its gradient": Work(lambda: edges.extremum_gradient(there, there_arg, far["dy"]), gradient),
        "softmax over edges": Work(lambda: edges.edge_softmax(there, far["s"], False), soft, 12 * 4 * m),
        "its gradient by scores": Work(
            lambda: edges.edge_softmax_gradient(there, soft.to(place), far["s"]),
            sparse.edge_softmax_grad(graph.csc, soft, scores),
        ),
        "stages of rows": Work(
            lambda: edges.finish_rows(far["x"], None, {"addend": far["row"]}, True),
            torch.relu(x + row),
            12 * _WIDTH * n,
        ),
        "dropout, the CPU's draws": Work(
            lambda: edges.dropout(far["x"], 0.5, 7, 3), dense.dropout(x, 0.5, 7, 3), 8 * _WIDTH * n, 0.0
        ),
    }


def _steps(place: torch.device) -> dict[str, Work]:
    """Three steps of each optimiser over parameters of many sizes, against torch's in float64."""
    drawn = torch.Generator().manual_seed(6)
    begin, slopes = ([torch.randn(size, generator=drawn) for size in (1, 40, 5000)] for _ in range(2))
    found = {}
    for name, kind, knobs in (
        ("steps of Adam", "adam", (0.9, 0.999, 1e-8, 0.01, 1.0, 0.0)),
        ("steps of SGD", "sgd", (0.9, 0.0, 0.01, 0.0, 0.0)),
    ):
        exact = [nn.Parameter(t.double()) for t in begin]
        given: dict[str, Any] = {"lr": _RATE, "weight_decay": 0.01}
        other = torch.optim.AdamW(exact, **given) if kind == "adam" else torch.optim.SGD(exact, momentum=0.9, **given)
        for param, slope in zip(exact, slopes, strict=True):
            param.grad = slope.double()
        for _ in range(3):
            other.step()

        def run(kind: str = kind, knobs: tuple[float, ...] = knobs) -> Tensor:
            rows = []
            for value, slope in zip(begin, slopes, strict=True):
                param, means = (
                    value.to(place, copy=True),
                    tuple(torch.zeros_like(value, device=place) for _ in range(2)),
                )
                state = (*means, torch.zeros((), device=place)) if kind == "adam" else means[:1]
                rows.append(Stepped(0, param, slope.to(place), state))
            updates = Updates(kind, place)
            for _ in range(3):
                updates(rows, [knobs], [torch.full((), _RATE, device=place)])
            return torch.cat([row.param for row in rows])

        found[name] = Work(run, torch.cat([param.detach() for param in exact]))
    return found


def _batches(graph: Graph, place: torch.device) -> dict[str, Work]:
    """Batches that are drawn there: how many of their arrays are not those of the CPU, bit for bit."""
    seeds = torch.arange(0, graph.num_nodes, max(1, graph.num_nodes // 1000))
    found = {}
    for fanouts, replace in (((10, 5), False), ((5, 10), False), ((-1, 3), False), ((10, 5), True)):
        plan = NeighborSampler(graph, fanouts, replace)
        wanted, there = _arrays(plan.sample(seeds, seed=3)), DeviceSampler(plan, place)

        def run(wanted: list[Tensor] = wanted, there: DeviceSampler = there) -> Tensor:
            pairs = zip(_arrays(there.sample(seeds, seed=3)), wanted, strict=True)
            return torch.tensor([float(not torch.equal(mine, other)) for mine, other in pairs])

        name = f"batches, fan-outs {', '.join(map(str, fanouts))}{', replaced' if replace else ''}"
        found[name] = Work(run, torch.zeros(len(wanted)), limit=0.0)
    return found


def _arrays(sample: Sample) -> list[Tensor]:
    """What a batch is."""
    blocks = [t for block in sample.blocks for t in (block.csc.indptr, block.csc.indices)]
    return [sample.n_id, sample.edge_index, sample.e_id, *blocks]


def _models(graph: Graph, place: torch.device) -> dict[str, Work]:
    """Gradients of whole models, by generated walks and regions, against plain torch in float64."""
    x = torch.randn(graph.num_nodes, 16, generator=torch.Generator().manual_seed(2))
    models = {"GCN": GCN(16, 32, 8), "SAGE, max": SAGE(16, 32, 8, reduce="max"), "GAT": GAT(16, 8, 8, heads=2)}

    def slopes(model: nn.Module, at: torch.device, dtype: torch.dtype, target: str) -> Tensor:
        twin = model.to(at, dtype).eval()
        twin.zero_grad()
        with _config.config(target=target):
            twin(on_device(graph, at), x.to(at, dtype)).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])

    found = {}
    for name, model in models.items():
        wanted = slopes(model, torch.device("cpu"), torch.float64, "reference")
        run = functools.partial(slopes, model, place, torch.float32, "cuda")
        found[f"gradients of {name}"] = Work(run, wanted, limit=_OF_MODELS)
    return found


def replays(graph: Graph, place: torch.device, recorder: type[Recorder] | None = None) -> dict[str, Work]:
    """Gradients of batches that are replayed as two CUDA graphs, recorded over another batch.

    ``recorder``: what records in the place of a device; without either there is none.
    """
    found: dict[str, Work] = {}
    if recorder is None and place.type != "cuda":
        return found
    x = torch.randn(graph.num_nodes, 16, generator=torch.Generator().manual_seed(3))
    y, seeds = torch.arange(graph.num_nodes) % 8, torch.arange(0, graph.num_nodes, max(1, graph.num_nodes // 100))
    for name, model in {"GCN": GCN(16, 32, 8), "SAGE": SAGE(16, 32, 8), "GAT": GAT(16, 8, 8, heads=2)}.items():
        sampler, loss = NeighborSampler(graph, (5, 3)), Classes().written_down(y, target_named("cuda"))
        assert loss is not None  # of classes
        tensors, first = dict(model.named_parameters()), sampler.sample(seeds)
        with _config.config(target="cpu"):
            plain = model.staged(sampler, x).compile(tensors, True, first)
        outputs, pullback = plain.linearize(plain.prepare(seeds, (2, 0)), tensors, 0)
        slopes = pullback(Classes().loss(outputs["out"], y[seeds])[1])
        wanted = torch.cat([slope.flatten() for slope in slopes.values() if slope is not None])
        there = {key: t.detach().to(place).requires_grad_() for key, t in tensors.items()}
        plan = model.staged(sampler, x.to(place), device=place).compile(there, True, first, Choice(numbered=True))
        shapes, batches = Shapes(plan.plan), [plan.prepare(seeds, (key, 0)) for key in (1, 2)]
        one, other = (shapes.of(seeds.numel(), batch.values) for batch in batches)
        step = Step(plan, shapes, there, loss, False, place)
        captured = GraphStep.capture(step, one.joined(other).widened(0.1), batches[0], y[seeds], recorder)
        assert captured is not None  # nothing is drawn

        def run(captured: GraphStep = captured, batch: PreparedBatch = batches[1]) -> Tensor:
            _, made = captured(batch, y[batch.seeds], 0)
            return torch.cat([slope.flatten() for slope in made.values() if slope is not None])

        found[f"replayed batches of {name}"] = Work(run, wanted, limit=_OF_MODELS)
    return found


def _checked(name: str, work: Work, place: torch.device, repetitions: int) -> Check:
    kernels = _CALLS.get(name, ())
    try:
        first = work.run()
    except Exception as failure:  # a kernel that does not compile or launch is a result, too
        said = " ".join(f"{type(failure).__name__}: {failure}".split())[:200]
        return Check(name, float("inf"), work.limit, False, 0.0, kernels, said)
    scale = max(float(work.wanted.abs().max()), 1e-30)
    error = float((first.cpu().double() - work.wanted.double()).abs().max()) / scale
    repeats = all(torch.equal(work.run(), first) for _ in range(repetitions))
    rate = work.nbytes / _seconds(work.run, place) / 1e9 if work.nbytes and place.type == "cuda" else 0.0
    return Check(name, error, work.limit, repeats, rate, kernels)


def _seconds(run: Callable[[], object], place: torch.device) -> float:
    """Mean of some runs after one."""
    run()
    torch.cuda.synchronize(place)
    begin = time.perf_counter()
    for _ in range(_TIMED):
        run()
    torch.cuda.synchronize(place)
    return (time.perf_counter() - begin) / _TIMED


def _copy_rate(place: torch.device) -> float:
    """GB/s that a copy reads and writes on the device; 0 elsewhere."""
    if place.type != "cuda":
        return 0.0
    x = torch.empty(1 << 28, dtype=torch.uint8, device=place)
    return 2 * x.numel() / _seconds(x.clone, place) / 1e9


__all__ = ["Check", "checks", "main", "replays"]
