"""Layers and models of PyTorch Geometric under ``gw.compile`` against the same run eagerly and against our own layer of
that kind, paired in one run.

    python benchmarks/models/compiled_pyg.py --write                              # all cases, some seven minutes
    python benchmarks/models/compiled_pyg.py GCN GAT --scale 0.02 --rounds 2      # does everything work?

A step is forward, the mean of the squared output, and backward, on the twin of ogbn-arxiv; all forms of a case take
turns in one process, after the compiled one has shown that it computes the same as the eager one. Times are medians;
slow cases end their rounds early. Memory is what two steps of a form add to the peak resident set of a process of its
own. ``--torch-compile`` times torch's compiler as well.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from harness import RESULTS, BenchError, write_csv
from torch import Tensor, nn
from torch_geometric import nn as pyg

import graphweft as gw
from graphweft.measure.bench import machine_stamp

WIDTH = 64
TYPES = 8
ENOUGH_S, FEWEST = 8.0, 3  # a case ends after so many seconds, if it has had so many rounds


def _mlp(inner: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, WIDTH), nn.ReLU(), nn.Linear(WIDTH, out))


# name -> layer of (input width), and which arguments it takes after x and edge_index
CASES: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "GCN": (lambda d: pyg.GCNConv(d, WIDTH), ""),
    "SAGE": (lambda d: pyg.SAGEConv(d, WIDTH), ""),
    "GIN": (lambda d: pyg.GINConv(_mlp(d, WIDTH)), ""),
    "GINE": (lambda d: pyg.GINEConv(_mlp(d, WIDTH), edge_dim=16), "edge_attr"),
    "GAT": (lambda d: pyg.GATConv(d, WIDTH // 4, heads=4), ""),
    "GAT edges": (lambda d: pyg.GATConv(d, WIDTH // 4, heads=4, edge_dim=16), "edge_attr"),
    "GATv2": (lambda d: pyg.GATv2Conv(d, WIDTH // 4, heads=4), ""),
    "Transformer": (lambda d: pyg.TransformerConv(d, WIDTH // 4, heads=4), ""),
    "PNA": (
        lambda d: pyg.PNAConv(d, WIDTH, ["mean", "max", "min", "std"], ["identity"], torch.tensor([1, 5, 9, 4])),
        "",
    ),
    "GEN": (lambda d: pyg.GENConv(d, WIDTH), ""),
    "EdgeConv": (lambda d: pyg.EdgeConv(_mlp(2 * d, WIDTH)), ""),
    "RGCN": (lambda d: pyg.RGCNConv(d, WIDTH, TYPES), "edge_type"),
    "TAG": (lambda d: pyg.TAGConv(d, WIDTH), ""),
    "APPNP": (lambda d: pyg.APPNP(K=5, alpha=0.1), ""),
    "ResGated": (lambda d: pyg.ResGatedGraphConv(d, WIDTH), ""),
    "FiLM": (lambda d: pyg.FiLMConv(d, WIDTH), ""),
    "CG": (lambda d: pyg.CGConv(d), ""),
    "NN": (lambda d: pyg.NNConv(d, 8, _mlp(16, d * 8)), "edge_attr"),
    "GCN model": (lambda d: pyg.GCN(d, WIDTH, 2, 40), ""),
    "SAGE model": (lambda d: pyg.GraphSAGE(d, WIDTH, 2, 40), ""),
    "GIN model": (lambda d: pyg.GIN(d, WIDTH, 2, 40), ""),
    "GAT model": (lambda d: pyg.GAT(d, WIDTH, 2, 40, heads=4), ""),
    "GATv2 model": (lambda d: pyg.GAT(d, WIDTH, 2, 40, heads=4, v2=True), ""),
    "EdgeCNN model": (lambda d: pyg.EdgeCNN(d, WIDTH, 2, 40), ""),
}


class _WithEdges(nn.Module):
    """A layer of the package that takes rows of edges by name."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, graph: gw.Graph, x: Tensor, edge_attr: Tensor) -> Tensor:
        """Its result."""
        made: Tensor = self.layer(graph, x, edge_attr=edge_attr)
        return made


# the package's own layer or model of a kind
OWN: dict[str, Callable[[int], nn.Module]] = {
    "GCN": lambda d: gw.nn.GCNConv(d, WIDTH),
    "SAGE": lambda d: gw.nn.SAGEConv(d, WIDTH),
    "GIN": lambda d: gw.nn.GINConv(d, WIDTH),
    "GAT": lambda d: gw.nn.GATConv(d, WIDTH, 4),
    "GATv2": lambda d: gw.nn.GATv2Conv(d, WIDTH, 4),
    "GINE": lambda d: _WithEdges(gw.nn.GINEConv(d, WIDTH, edge_dim=16)),
    "Transformer": lambda d: gw.nn.TransformerConv(d, WIDTH, heads=4),
    "PNA": lambda d: gw.nn.PNAConv(d, WIDTH, ["mean", "max", "min", "std"], ["identity"]),
    "RGCN": lambda d: gw.nn.RGCNConv(d, WIDTH, TYPES),
    "GCN model": lambda d: gw.nn.GCN(d, WIDTH, 40, num_layers=2, dropout=0.0),
    "SAGE model": lambda d: gw.nn.SAGE(d, WIDTH, 40, num_layers=2, dropout=0.0),
    "GIN model": lambda d: gw.nn.GIN(d, WIDTH, 40, num_layers=2, dropout=0.0),
    "GAT model": lambda d: gw.nn.GAT(d, WIDTH, 40, num_layers=2, heads=4, out_heads=4, dropout=0.0),
}


def _own_arguments(name: str, args: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """Arguments as the package's own layers take them."""
    (x, edge_index), further = args[:2], args[2:]
    if name != "RGCN":
        return gw.Graph(*edge_index, num_nodes=len(x)), x, *further
    of_type = [edge_index[:, further[0] == kind] for kind in range(TYPES)]
    ends: Any = {("n", str(kind), "n"): tuple(pair) for kind, pair in enumerate(of_type)}
    return gw.Graph.hetero(ends, num_nodes={"n": len(x)}), x


def _arguments(name: str, scale: float) -> tuple[int, tuple[Tensor, ...]]:
    ds = gw.synthetic("ogbn-arxiv", scale=scale, seed=0)
    edge_index = torch.stack(ds.graph.edges()).long()
    x = torch.as_tensor(ds.x)[:, :WIDTH].contiguous()
    generator = torch.Generator().manual_seed(0)
    further = {
        "": (),
        "edge_attr": (torch.randn(edge_index.shape[1], 16, generator=generator),),
        "edge_type": (torch.randint(0, TYPES, (edge_index.shape[1],), generator=generator),),
    }
    return x.shape[1], (x, edge_index, *further[CASES[name][1]])


def _step(module: nn.Module, args: tuple[Any, ...]) -> Tensor:
    module.zero_grad(set_to_none=True)
    out: Tensor = module(*args)
    out.square().mean().backward() if out.requires_grad else None
    return out.detach()


Form = tuple[nn.Module, tuple[Any, ...]]


def _forms(name: str, scale: float, with_torch: bool) -> tuple[dict[str, Form], float]:
    """The module in all forms with the arguments of each, and the seconds of the first compiled step."""
    torch.manual_seed(0)
    width, args = _arguments(name, scale)
    module = CASES[name][0](width)
    forms: dict[str, Form] = {"eager": (module, args), "compiled": (gw.compile(copy.deepcopy(module)), args)}
    if name in OWN:
        forms["own"] = OWN[name](width), _own_arguments(name, args)
    if with_torch:
        forms["torch"] = cast(nn.Module, torch.compile(copy.deepcopy(module))), args
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gw.FallbackWarning)
        got = _step(*forms["compiled"])
    first = time.perf_counter() - begin
    expected = _step(*forms["eager"])
    if not torch.allclose(got, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max())):
        raise BenchError(f"{name}: the compiled layer gives other numbers")
    return forms, first


def _memory(name: str, form: str, scale: float) -> float:
    """MiB that steps add to the peak of a process of its own."""
    command = [sys.executable, __file__, name, "--scale", str(scale), "--memory-of", form]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _run_memory(name: str, form: str, scale: float) -> None:
    width, args = _arguments(name, scale)
    module = OWN[name](width) if form == "own" else CASES[name][0](width)
    module = gw.compile(module) if form == "compiled" else module
    given = _own_arguments(name, args) if form == "own" else args
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
    before = _peak_kib()
    warnings.simplefilter("ignore", gw.FallbackWarning)
    for _ in range(2):
        _step(module, given)
    print((_peak_kib() - before) / 1024)


def _peak_kib() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0])


def measure(name: str, scale: float, rounds: int, with_torch: bool, with_memory: bool) -> dict[str, object]:
    """One row of the table."""
    forms, first = _forms(name, scale, with_torch)
    seconds: dict[str, list[float]] = {form: [] for form in forms}
    start = time.perf_counter()
    for round_ in range(rounds + 1):
        for form, (module, args) in forms.items():
            begin = time.perf_counter()
            _step(module, args)
            if round_:  # the first warms up
                seconds[form].append(time.perf_counter() - begin)
        if round_ >= FEWEST and time.perf_counter() - start > ENOUGH_S:
            break
    medians = {form: round(1e3 * statistics.median(times), 2) for form, times in seconds.items()}
    row: dict[str, object] = {"case": name, "eager_ms": medians["eager"], "compiled_ms": medians["compiled"]}
    row |= {"own_ms": medians.get("own", ""), "torch_compile_ms": medians.get("torch", "")}
    row |= {"times": round(medians["eager"] / medians["compiled"], 2), "first_call_s": round(first, 2)}
    for form in ("eager", "compiled", "own"):
        row[f"{form}_mib"] = round(_memory(name, form, scale)) if with_memory and form in forms else ""
    return row


def main() -> None:
    """Runs the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help="names; all without any")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--no-memory", action="store_true", help="leaves the columns of memory empty")
    parser.add_argument("--write", action="store_true", help=f"writes {RESULTS / 'compiled_pyg.csv'}")
    parser.add_argument("--memory-of", choices=("eager", "compiled", "own"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.memory_of:
        _run_memory(chosen.cases[0], chosen.memory_of, chosen.scale)
        return
    rows: list[dict[str, object]] = []
    for name in chosen.cases:
        rows.append(measure(name, chosen.scale, chosen.rounds, chosen.torch_compile, not chosen.no_memory))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    times = [float(str(row["times"])) for row in rows]
    print(f"geometric mean of {len(times)}: {statistics.geometric_mean(times):.2f} times")
    if chosen.write:
        write_csv(RESULTS / "compiled_pyg.csv", [{**row, **machine_stamp()} for row in rows])


if __name__ == "__main__":
    main()
