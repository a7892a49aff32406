"""Trials of the kernels, as a program of its own that prints one line each: ``python trials.py`` in Triton's
interpreter, ``python trials.py compiled`` as machine code for compute capability 9.0 on the emulator of ``ptx.py``,
``python trials.py device`` on a CUDA device; ``device 2/8`` is the second of eight parts of them.

Triton reads ``TRITON_INTERPRET`` when it is imported, so another process than that of the tests runs them.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0" if sys.argv[1:2] in (["compiled"], ["device"]) else "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from codegen.regions import REGIONS, Region, attends
from codegen.test_edges import arguments, compare, fields_of, function_of, gradients
from cuda import checked, emulated, hardware, parts, recorded, sampling, shared
from cuda.halves import dense_of, drawn
from nn.models import IN, make
from torch import Tensor
from zoo import CASES, random_edges

import graphweft as gw
from graphweft.ir.interpret import edges_in_row_order, interpret
from graphweft.ir.ops import Op
from graphweft.ir.program import Attrs, Builder, Value
from graphweft.ir.residency import Residency, TensorType
from graphweft.loader.device_draws import AHEAD
from graphweft.measure import device_check
from graphweft.runtime import dense
from graphweft.runtime.captures import CUDA
from graphweft.runtime.cuda import (
    attention_kernels,
    edges,
    kernels,
    loss_kernels,
    sampling_kernels,
    update_kernels,
    walks,
)
from graphweft.runtime.cuda.graphs import GraphStep
from graphweft.runtime.cuda.jit import Kernel
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.kernel_call import KernelCall, Slot, Slots
from graphweft.runtime.target import Launch, Launcher

MODE = sys.argv[1] if sys.argv[1:2] in (["compiled"], ["device"]) else "interpreted"
COMPILED = MODE == "compiled"
GRAPHS = {case.name: case for case in CASES}
SMALL = ("no_edges", "isolated", "self_loops", "multi_edges", "path")
DTYPES = (torch.float32, torch.float64)
TRIALS: dict[str, Callable[[], None]] = {}


def trial(function: Callable[[], None]) -> Callable[[], None]:
    TRIALS[function.__name__] = function
    return function


def interpreted(function: Callable[[], None]) -> Callable[[], None]:
    """A trial that needs the interpreter: the emulator runs all programs at once."""
    return trial(function) if MODE == "interpreted" else function


def checking(function: Callable[[], None]) -> Callable[[], None]:
    """A trial that needs addresses to be checked."""
    return function if MODE == "device" else trial(function)


def close(got: Tensor, wanted: Tensor) -> None:
    tolerance = 1e-5 if got.dtype == torch.float32 else 1e-12
    scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance * scale)


@trial
def sums_over_edges() -> None:
    """Weights, factors of sources, own rows, every stage of an epilogue, widths of one tile and of two."""
    for name in SMALL:
        graph = GRAPHS[name].graph()
        n = graph.num_nodes
        for dtype, width in ((torch.float32, 5), (torch.float64, 3), (torch.float32, 130)):
            x, weight, scale = (
                drawn(*s, dtype=dtype, seed=k) for k, s in enumerate([(n, width), (graph.num_edges,), (n,)])
            )
            plain = edges.sum_edges(graph, x)
            close(plain, dense_of(graph) @ x.double())
            stages = {
                "row_scale": drawn(n, dtype=dtype),
                "bias": drawn(width, dtype=dtype),
                "addend": drawn(n, width, dtype=dtype),
            }
            stages |= {"mask": drawn(n, width, dtype=dtype, seed=7), "post_scale": drawn(n, dtype=dtype, seed=8)}
            got = edges.sum_edges(graph, x, weight, scale, 0.5, stages, True)
            scaled = x.double() * scale.double()[:, None]
            total = dense_of(graph, weight) @ scaled + 0.5 * scaled
            close(got, Epilogue(**stages, relu=True).reference(total))
    block = gw.sampling.NeighborSampler(GRAPHS["star"].graph(), [3]).sample([0, 2]).blocks[0]
    for graph in (block, block.reverse()):  # own rows where there is one of that number
        x, scale = drawn(graph.num_src, 5), drawn(graph.num_src, seed=1)
        wanted = (dense_of(graph) + 0.5 * torch.eye(graph.num_dst, graph.num_src)) @ (x * scale[:, None]).double()
        close(edges.sum_edges(graph, x, None, scale, 0.5), wanted)


TRIALS |= {run.__name__: run for run in parts.TRIALS}


@trial
def neighbours_rounded_and_own_rows_not() -> None:
    """``precision="bf16"``: rows are read in bfloat16, results and a node's own row are float32."""
    graph = GRAPHS["star"].graph()
    x = drawn(graph.num_nodes, 12)
    got = edges.sum_edges(graph, x, own=1.0, rounded=torch.bfloat16)
    assert got.dtype == torch.float32
    close(got, dense_of(graph) @ x.bfloat16().double() + x.double())
    net, outputs = gw.nn.GCN(6, 8, 3), []
    dense_graph = gw.Graph(torch.arange(12).repeat(6), (torch.arange(72) * 5) % 12, num_nodes=12)
    rows = drawn(12, 6)
    for target, precision in (("cuda", "bf16"), ("cuda", "float32"), ("reference", "float32")):
        with gw.config(target=target, precision=precision, certify=False), torch.no_grad():
            outputs.append(net(dense_graph, rows))
    torch.testing.assert_close(outputs[1], outputs[2], rtol=1e-5, atol=1e-5)
    far = float((outputs[0] - outputs[2]).abs().max() / outputs[2].abs().max())
    assert 1e-5 < far < 1e-2, far  # rounded, and no more than that


@trial
def stages_of_rows() -> None:
    """Rows as they are, read by index, and with an addend of fewer rows."""
    x, ids = drawn(7, 6), torch.tensor([3, 0, 3, 6])
    close(edges.finish_rows(x, ids, {"bias": drawn(6)}, True), torch.relu(x[ids] + drawn(6)))
    wanted = Epilogue(addend=drawn(4, 6), addend_rows=4).reference(x.double())
    close(edges.finish_rows(x, None, {"addend": drawn(4, 6)}, False), wanted)
    assert edges.finish_rows(x[:0], None, {"bias": drawn(6)}, False).shape == (0, 6)
    infinite = torch.tensor([[torch.inf, -torch.inf, torch.nan]])
    torch.testing.assert_close(edges.finish_rows(infinite, None, {}, True), torch.relu(infinite), equal_nan=True)


@trial
def extrema_and_their_gradients() -> None:
    """Against torch's own maxima over a dense mask; ties and NaN as the CPU's kernels have them."""
    for name in SMALL:
        graph = GRAPHS[name].graph()
        for dtype in DTYPES:
            x = drawn(graph.num_nodes, 5, dtype=dtype).mul(2).round()
            for minimum in (False, True):
                found, arg = edges.extremum(graph, x, minimum, True)
                y, wanted = gw.runtime.sparse.spmm_max(graph.csc, x, minimum=minimum)
                close(found, y)
                assert arg is not None and wanted is not None and torch.equal(arg, wanted)
                dy = drawn(graph.num_nodes, 5, dtype=dtype, seed=3)
                leaf = x.double().requires_grad_()
                picked = (
                    torch.where(arg >= 0, leaf.gather(0, arg.long().clamp(min=0)), 0.0) if graph.num_nodes else leaf
                )
                (slope,) = torch.autograd.grad(picked, leaf, dy.double())
                close(edges.extremum_gradient(graph, arg, dy), slope)


@trial
def softmax_over_edges() -> None:
    """Forward, its logarithm, and backward by torch's autograd."""
    for name in SMALL:
        graph = GRAPHS[name].graph()
        _, dst, ids = edges_in_row_order(graph)
        for dtype in DTYPES:
            x = drawn(graph.num_edges, 2, 3, dtype=dtype).mul(4)
            leaf = x.double().requires_grad_()
            parts = [torch.softmax(leaf[ids[dst == row]], 0) for row in range(graph.num_dst)]
            wanted = torch.cat([leaf[:0], *parts])[torch.argsort(ids)]
            soft = edges.edge_softmax(graph, x, False)
            close(soft, wanted.detach())
            close(edges.edge_softmax(graph, x, True), wanted.detach().log())
            slope = drawn(*x.shape, dtype=dtype, seed=2)
            close(
                edges.edge_softmax_gradient(graph, soft, slope),
                torch.autograd.grad(wanted.sum() * 0 + (wanted * slope).sum(), leaf)[0],
            )


@trial
def dropout_draws_what_the_cpu_draws() -> None:
    """The same elements, bit for bit, for seeds and streams of any size, also of rows read by index."""
    x, ids = drawn(41, 7), torch.tensor([5, 5, 40, 0])
    for p, seed, stream in ((0.5, 3, 1), (0.1, 1 << 40, 7), (0.0, 5, 0), (1.0, 5, 16)):
        assert torch.equal(edges.dropout(x, p, seed, stream), dense.dropout(x, p, seed, stream))
        assert torch.equal(edges.dropout(x, p, seed, stream, ids), dense.dropout(x, p, seed, stream, rows=ids))


def region(name: str) -> Callable[[], None]:
    """A generated walk, forward and backward, against the oracle in float64."""

    def run() -> None:
        function = function_of(REGIONS[name])
        with gw.config(target="cuda"):
            for graph in ("multi_edges", "isolated"):
                compare(function, GRAPHS[graph].graph())

    return run


TRIALS |= {f"walk {name}": region(name) for name in REGIONS}


ALONE: dict[str, Region] = {
    "reduce": lambda e: {"out": e.reduce(e["edge:f"])},
    "broadcast_src": lambda e: {"out": e.src()},
    "broadcast_dst": lambda e: {"out": e.dst()},
    "sddmm": lambda e: {"out": e.b.add(Op.SDDMM, e.g, e["dst:h"], e["src:h"])},
    "edge_softmax": lambda e: {"out": e.softmax(e["edge:f"])},
    "edge_softmax_grad": lambda e: {"out": e.b.add(Op.EDGE_SOFTMAX_GRAD, e.g, e["edge:f"], e["edge:f"])},
    "spmm_arg": lambda e: {"out": e.b.add(Op.SPMM_ARG, e.g, e["src:h"], kind="max")},
}


@trial
def attention_of_every_score() -> None:
    """Forward and backward; a star has more edges than a block."""
    for score in ("add", "add2", "dot"):
        function = function_of(attends(score))
        for name in ("multi_edges", "isolated", "star"):
            graph = GRAPHS[name].graph()
            with gw.config(target="cuda"):
                compare(function, graph, 1e-5)
    assert not COUNTING or {"attention", "attention_grad"} <= CALLED


@trial
def attention_with_dropped_edges() -> None:
    """By the CPU's draws, of the same edges and heads."""
    graph, x = GRAPHS["symmetric"].graph(), drawn(4, 5)
    for net in (gw.nn.GAT(5, 4, 3, heads=2, dropout=0.4), gw.nn.GAT(5, 4, 3, heads=2, dropout=0.4, v2=True)):
        steps = []
        for target in ("cuda", "cpu"):
            net.zero_grad()
            torch.manual_seed(3)
            with gw.config(target=target):
                net(graph, x).square().sum().backward()
            steps.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
        scale = max(float(t.abs().max()) for t in steps[1])
        for got, wanted in zip(*steps, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * scale)


@trial
def own_rows_times_a_number_that_trains() -> None:
    """In the kernel that sums, which reads the number in the call; against the CPU, before and after it changed."""
    graph, x = GRAPHS["symmetric"].graph(), drawn(4, 5)
    net = gw.nn.GIN(5, 4, 3, train_eps=True)
    for eps in (0.0, 0.7):
        for layer in net.layers:
            layer.eps.data.fill_(eps)
        steps = []
        for target in ("cuda", "cpu"):
            net.zero_grad()
            with gw.config(target=target):
                out = net(graph, x)
                out.square().sum().backward()
            steps.append([out.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)])
        for got, wanted in zip(*steps, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
    assert not COUNTING or "spmm_self" in CALLED


def by_head(spec: str, *dims: tuple[str | None, tuple[int, ...]]) -> Value:
    """An einsum of inputs with these rows and dimensions."""
    return Builder().add(Op.EINSUM, *(rows_of(rows, *size) for rows, size in dims), spec=spec)


def rows_of(rows: str | None, *dims: int) -> Value:
    """An input with rows, or without."""
    kind = TensorType(Residency.SHARED if rows is None else Residency.DST, rows, dims, torch.float32)
    return Builder().add(Op.INPUT, name="x", type=kind)


@trial
def scores_and_sums_by_head() -> None:
    """Heads and channels of any number, as many rows as a program has several blocks of, and none."""
    for n, heads, channels in ((0, 2, 4), (1, 3, 5), (37, 2, 100), (3000, 1, 8)):
        x, plain = drawn(n, heads, channels), drawn(n, heads * channels, seed=1)
        vectors = [drawn(heads, channels, seed=k) for k in (2, 3)]
        numbers = [drawn(n, heads, seed=k) for k in (4, 5)]
        rows, vector, number = ("V", (heads, channels)), (None, (heads, channels)), ("V", (heads,))
        scored = [by_head("nhc,hc->nh", rows, vector) for _ in vectors]
        reads = (Slot("x0", 0, scored[0].inputs[0]), *(Slot("x", 1 + k, v.inputs[1]) for k, v in enumerate(scored)))
        slots = [x, *vectors, None, None]
        launch_of("head_scores", reads, tuple(Slot("out", 3 + k, v) for k, v in enumerate(scored)))(slots)
        for got, by in zip(slots[3:], vectors, strict=True):
            close(got, torch.einsum("nhc,hc->nh", x.double(), by.double()))
        summed = [by_head("nh,nhc->hc", number, rows) for _ in numbers]
        column = Builder().add(Op.COL_SUM, rows_of("V", heads * channels))
        reads = (Slot("x0", 0, summed[0].inputs[1]), *(Slot("s", 1 + k, v.inputs[0]) for k, v in enumerate(summed)))
        slots = [x, *numbers, plain, None, None, None]
        reads = (*reads, Slot("plain", 3, column.inputs[0]))
        launch_of("head_sums", reads, tuple(Slot("out", 4 + k, v) for k, v in enumerate((*summed, column))))(slots)
        for got, by in zip(slots[4:6], numbers, strict=True):
            close(got, torch.einsum("nh,nhc->hc", by.double(), x.double()))
        close(slots[6].flatten(), plain.double().sum(0))


@trial
def calls_of_one_operation() -> None:
    """Each by its launcher, against the interpreter of the IR in float64."""
    for name, alone in ALONE.items():
        function = function_of(alone)
        for each in ("multi_edges", "isolated"):
            graph = GRAPHS[each].graph()
            double, single = fields_of(graph, torch.float64), fields_of(graph, torch.float32)
            given = arguments(graph, double)
            wanted = interpret(function.program(given), given.named())["out"].detach()
            with gw.config(target="cuda", certify=False, opt_level=1):
                close(function(arguments(graph, single))["out"].detach(), wanted)
        assert not COUNTING or name in CALLED, (name, [p.text for p in function.plans()])


@trial
def calls_that_few_programs_make() -> None:
    """Dropout of rows read by index, with the CPU's draws, and contractions that share their second operand."""
    x, ids, seed = drawn(9, 4), torch.tensor([2, 2, 0]), torch.tensor(11)
    reads = (Slot("x", 0, None), Slot("ids", 1, None), Slot("seed", 2, None))  # type: ignore[arg-type]
    out = Slot("out", 3, {"p": 0.4, "stream": 6})  # type: ignore[arg-type]
    slots = [x, ids, seed, None]
    launch_of("dropout_of_rows", reads, (out,))(slots)
    assert torch.equal(slots[3], dense.dropout(x, 0.4, 11, 6, rows=ids))
    graph = GRAPHS["multi_edges"].graph()
    left, right, scale = drawn(3, 5), drawn(3, 4, seed=1), drawn(3, seed=2)
    roles = ("graph", "x", "left0", "left1", "ids1", "row_scale")
    reads = tuple(Slot(role, k, None) for k, role in enumerate(roles))  # type: ignore[arg-type]
    writes = tuple(Slot(role, 6 + k, None) for k, role in enumerate(("out", "out1", "col_sum")))  # type: ignore[arg-type]
    rows = torch.tensor([1, 1, 2])
    slots = [graph, right, left, left, rows, scale, *[None] * 3]
    launch_of("contract_terms", reads, writes, (("count", 2),))(slots)
    shared = scale.double()[:, None] * (dense_of(graph) @ right.double())
    for got, wanted in zip(
        slots[6:], (left.T @ shared.float(), left[rows].T @ shared.float(), shared.sum(0)), strict=True
    ):
        close(got, wanted)
    block = gw.sampling.NeighborSampler(graph, [2]).sample([0, 1]).blocks[0]
    whole = drawn(block.num_src, 4)
    added = torch.cat([whole[:2], torch.zeros(block.num_src - 2, 4)])
    given = {
        "take_rows": (x, ids, x[ids]),
        "own_rows": (block, whole, whole[:2]),
        "pad_rows": (block, whole[:2], added),
    }
    for name, (one, other, by) in given.items():
        slots = [one, other, None]
        reads = (Slot("x0", 0, None), Slot("x1", 1, None))  # type: ignore[arg-type]
        launch_of(name, reads, (Slot("out", 2, None),))(slots)  # type: ignore[arg-type]
        assert torch.equal(slots[2], by), name


def launch_of(kernel: str, reads: tuple[Slot, ...], writes: tuple[Slot, ...], attrs: Attrs = ()) -> Launch:
    """What the table has for a call."""
    found = CUDA._table[kernel, torch.float32](KernelCall(kernel, reads, writes, attrs, (), kernel))
    assert found is not None
    return found


@trial
def walks_in_double_precision() -> None:
    """All sums in float64."""
    for name in ("attention_by_distance", "linear_of_joined_ends", "sum_over_all_edges"):
        with gw.config(target="cuda"):
            compare(function_of(REGIONS[name]), GRAPHS["multi_edges"].graph(), 1e-10, torch.float64)


def model(name: str, drawn_blocks: bool = False, without: str = "") -> Callable[[], None]:
    """A model's step by this target, against plain torch; over sampled blocks, or without kernels, if asked for."""

    def run() -> None:
        found = random_edges(12, 30, 1)
        graph = gw.Graph(found.src, found.dst, num_nodes=12)
        x = drawn(12, IN)
        torch.manual_seed(0)
        net = make(name).eval()
        batch = gw.sampling.NeighborSampler(graph, [3, 3]).sample(torch.arange(4))
        given, rows = (batch.blocks, x[batch.n_id]) if drawn_blocks else (graph, x)
        steps = []
        for target in ("cuda", "reference"):
            leaf = rows.clone().requires_grad_()
            net.zero_grad()
            with gw.config(target=target, disabled_kernels=without):
                out = net(given, leaf)
                out.square().sum().backward()
            steps.append([out.detach(), leaf.grad, *(p.grad for p in net.parameters() if p.grad is not None)])
        for got, wanted in zip(*steps, strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-5)

    return run


@trial
def dropout_in_a_model() -> None:
    """Training rows of a GCN with dropout, against the CPU's kernels and draws."""
    graph, x, net = GRAPHS["symmetric"].graph(), drawn(4, 5), gw.nn.GCN(5, 8, 3, dropout=0.5)
    steps = []
    for target in ("cuda", "cpu"):
        net.zero_grad()
        torch.manual_seed(3)
        with gw.config(target=target):
            net(graph, x).square().sum().backward()
        steps.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    for got, wanted in zip(*steps, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-5)


TRIALS |= {f"model {name}": model(name) for name in ("gcn", "sage_max", "gat", "gatv2", "transformer")}
TRIALS |= {f"model {name} on blocks": model(name, True) for name in ("gcn", "sage", "gin")}
_SUMS = "spmm,spmm_self,spmm_max,matmul_terms,contract_terms"  # which run as walks without their kernels
TRIALS |= {f"model {name} with sums as walks": model(name, without=_SUMS) for name in ("gcn", "sage_max", "gin")}


@interpreted
def bits_do_not_depend_on_the_order_of_programs() -> None:
    """Ten random orders; a total over all edges among what is computed."""
    function, graph = function_of(REGIONS["sum_over_all_edges"]), GRAPHS["multi_edges"].graph()
    x, weight = drawn(graph.num_nodes, 5), drawn(graph.num_edges)
    fields, first = fields_of(graph, torch.float32), list[Tensor]()
    for seed in range(10):
        with checked.shuffled(seed), gw.config(target="cuda"):
            outputs = function(arguments(graph, fields))
            found = [edges.sum_edges(graph, x, weight), *outputs.values(), *gradients(outputs, fields)]
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


@trial
def batches_are_those_of_the_cpu() -> None:
    """Nodes, edges and blocks, bit for bit: every kind of fan-outs, and rows of more edges than 16 bits count."""
    for name in ("empty", "one_loop", *SMALL, "star"):
        for k, (fanouts, again) in enumerate(sampling.FANOUTS):
            graph = GRAPHS[name].graph()
            seeds = torch.arange(graph.num_nodes - 1, -1, -2)
            wrong = sampling.differences(graph, fanouts, again, seeds, 5 + (k << 40))
            assert not wrong, (name, fanouts, again, wrong)
    random = torch.Generator().manual_seed(1)
    src = torch.randint(0, 50, (70000,), generator=random)
    hub = gw.Graph(src, torch.cat([torch.zeros(69900, dtype=torch.int64), torch.arange(100) % 50]), num_nodes=50)
    for again in (False, True):
        assert not sampling.differences(hub, (4, 2), again, torch.tensor([7, 0]), 3)


def small_data() -> gw.Dataset:
    """40 nodes with labels."""
    found, every = random_edges(40, 160, 3), torch.arange(40)
    graph = gw.Graph(found.src, found.dst, num_nodes=40)
    return gw.Dataset("small", graph, drawn(40, 6), every % 3, every[:20], every[20:30], every[30:], 3)


for run in (sampling.lists_come_from_both_memories, sampling.a_loader_keeps_hot_lists):
    checking(run)  # addresses in a list of beginnings are those of host memory
for run in (*recorded.TRIALS, *shared.TRIALS):
    interpreted(run)


@interpreted
def a_trainer_replays_batches_as_two_graphs() -> None:
    """Padded batches with their update, recorded once, launched for other contents, other draws and other rates."""
    ds, losses = small_data(), []
    for target in ("cuda", "cpu"):
        torch.manual_seed(0)
        net = gw.nn.SAGE(6, 4, 3, num_layers=2, dropout=0.3)
        CUDA.captures(partial(GraphStep.capture, recorder=recorded.Recorder))
        recorded.Recorder.graphs = recorded.Recorder.launched = 0
        with gw.config(target=target, certify=False), recorded.fused_updates():
            given = {"fanouts": (3, 2), "batch_size": 8, "eval_every": 9, "scheduler": "exponential:0.5", "clip": 0.3}
            trainer = gw.Trainer(net, ds, lr=0.05, mode="mini", **given)
            losses.append([record.loss for record in trainer.fit(epochs=3)])
        CUDA.captures(GraphStep.capture)
        if target == "cuda":
            assert trainer.replays["launches"] == 2 == recorded.Recorder.graphs and trainer.replays["updates"]
            replayed, fallbacks = trainer.history["replayed"], trainer.history["fallbacks"]
            assert replayed[0] == fallbacks[0] == 0 and sum(replayed) > 1 and min(fallbacks[1:]) >= 1
            assert [a + b for a, b in zip(replayed[1:], fallbacks[1:], strict=True)] == [3, 3]
            assert recorded.Recorder.launched == 2 * sum(replayed)
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-5, atol=1e-6)


@trial
def the_doctor_finds_every_kernel_right() -> None:
    """And says of one that is not."""
    found = device_check.checks("cpu", nodes=8, degree=2, repetitions=1)
    assert len(found) > 10 and all(check.holds for check in found), found
    assert not device_check.Check("x", 1e-3, 1e-5, True).holds and not device_check.Check("x", 0.0, 1e-5, False).holds


@checking
def a_walk_that_is_wrong_is_seen() -> None:
    """Mutants of a generated kernel: each gives wrong numbers, leaves a gap, or reads or writes where it must not."""
    render, caught, applied = walks.render_walk, list[str](), set[str]()
    mutants = (
        ("here = p < end", "here = p <= end"),
        ("begin = tl.load(offsets + row)", "begin = tl.load(offsets + row + 1)"),
        ("end = tl.load(offsets + row + 1)", "end = tl.load(offsets + row + 1) - 1"),
        ("col[:, None] * 21", "col[:, None] * 20"),
        ("out0 + row * 21", "out0 + row * 20"),
        ("tl.sum(", "tl.max("),
        ("row * 21 + (i0)", "(i0)"),
        (", mask=in_0", ""),
    )
    for old, new in mutants:

        def changed(nest: object, old: str = old, new: str = new) -> object:
            made = render(nest)  # type: ignore[arg-type]
            if old in made.text:
                applied.add(old)
            return replace(made, text=made.text.replace(old, new))

        walks.render_walk = changed  # type: ignore[assignment]
        try:
            with gw.config(target="cuda"), torch.no_grad():
                function, graph = function_of(REGIONS["product_of_ends"]), GRAPHS["multi_edges"].graph()
                compare(function, graph)
        except Exception:
            caught.append(old)
        finally:
            walks.render_walk = render
    assert applied == set(dict(mutants)), set(dict(mutants)) - applied
    assert caught == [old for old, _ in mutants], set(dict(mutants)) - set(caught)


@trial
def no_kernel_is_left_out() -> None:
    """Every kernel that is written once was launched by a trial before this one, and every launcher ran."""
    rooms = vars(kernels) | vars(attention_kernels) | vars(sampling_kernels) | vars(loss_kernels) | vars(update_kernels)
    known = {item.compiled for item in rooms.values() if isinstance(item, Kernel) and not item.is_device}
    assert known <= set(LAUNCHED), [item.__name__ for item in known - set(LAUNCHED)]
    assert set(CUDA.kernels()) == CALLED, set(CUDA.kernels()) ^ CALLED


LAUNCHED: list[object] = []
CALLED: set[str] = set()
COUNTING = __name__ == "__main__"


def noting(kernel: str, launcher: Launcher) -> Launcher:
    """The same launcher; notes that what it makes was run."""

    def bind(call: KernelCall) -> Launch | None:
        run = launcher(call)

        def noted(slots: Slots) -> None:
            CALLED.add(kernel)
            assert run is not None  # else the interpreter of the IR runs it
            run(slots)

        return None if run is None else noted

    return bind


if __name__ == "__main__":
    torch.set_num_threads(1)
    gw.passes.pipeline.WORTH_A_KERNEL = 0
    AHEAD.update(prefetch=0, workers=0)  # a stand-in for a device has no streams
    CUDA._table = {key: noting(key[0], launcher) for key, launcher in CUDA._table.items()}
    part, of = map(int, sys.argv[2].split("/")) if sys.argv[2:] else (1, 1)
    if of > 1:  # the last one counts what all have launched
        TRIALS.popitem()
    watching = {"compiled": emulated, "device": hardware, "interpreted": checked}[MODE].watching
    for name, run in list(TRIALS.items())[part - 1 :: of]:
        begin = time.perf_counter()
        try:
            with watching() as launched:
                run()
            verdict = "ok"
        except Exception as failure:
            traceback.print_exc()
            verdict = f"{type(failure).__name__}: {failure}".replace("\n", " ")[:300]
        LAUNCHED += [item.kernel if COMPILED else item for item in launched]
        print(f"{name}\t{verdict}\t{time.perf_counter() - begin:.1f}", flush=True)
