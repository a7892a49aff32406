"""Layers and models of PyTorch Geometric under ``gw.compile`` against the same run eagerly, paired in one run.

    python benchmarks/models/compiled_pyg.py --scale 0.25 --rounds 7
    python benchmarks/models/compiled_pyg.py GCN GAT --scale 0.02 --rounds 2      # does everything work?

A step is forward, a sum of the output, and backward, on the twin of ogbn-arxiv; both forms of a case take turns in one
process, after they have shown that they compute the same. Times are medians. Memory is what one step of a form adds to
the peak resident set of a process of its own. ``--torch-compile`` times torch's compiler as well.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from harness import RESULTS, BenchError, write_csv
from torch import Tensor, nn
from torch_geometric import nn as pyg

import graphweft as gw
from graphweft.bench import machine_stamp

COLUMNS = ("case", "eager_ms", "compiled_ms", "times", "torch_compile_ms", "first_call_s", "eager_mib", "compiled_mib")
WIDTH = 64
TYPES = 8


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
    "GAT model": (lambda d: pyg.GAT(d, WIDTH, 2, 40, heads=4), ""),
}


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


def _step(module: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    module.zero_grad(set_to_none=True)
    out: Tensor = module(*args)
    out.square().mean().backward() if out.requires_grad else None
    return out.detach()


def _forms(name: str, scale: float, with_torch: bool) -> tuple[dict[str, nn.Module], tuple[Tensor, ...], float]:
    """The module in all forms, its arguments, and the seconds of the first compiled step."""
    torch.manual_seed(0)
    width, args = _arguments(name, scale)
    module = CASES[name][0](width)
    forms = {"eager": module, "compiled": gw.compile(copy.deepcopy(module))}
    if with_torch:
        forms["torch"] = torch.compile(copy.deepcopy(module))
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gw.FallbackWarning)
        got = _step(forms["compiled"], args)
    first = time.perf_counter() - begin
    expected = _step(forms["eager"], args)
    if not torch.allclose(got, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max())):
        raise BenchError(f"{name}: the compiled layer gives other numbers")
    return forms, args, first


def _memory(name: str, form: str, scale: float) -> float:
    """MiB that steps add to the peak of a process of its own."""
    command = [sys.executable, __file__, name, "--scale", str(scale), "--memory-of", form]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _run_memory(name: str, form: str, scale: float) -> None:
    width, args = _arguments(name, scale)
    module = CASES[name][0](width)
    module = gw.compile(module) if form == "compiled" else module
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
    before = _peak_kib()
    warnings.simplefilter("ignore", gw.FallbackWarning)
    for _ in range(3):
        _step(module, args)
    print((_peak_kib() - before) / 1024)


def _peak_kib() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0])


def measure(name: str, scale: float, rounds: int, with_torch: bool) -> dict[str, object]:
    """One row of the table."""
    forms, args, first = _forms(name, scale, with_torch)
    seconds: dict[str, list[float]] = {form: [] for form in forms}
    for round_ in range(rounds + 1):
        for form, module in forms.items():
            begin = time.perf_counter()
            _step(module, args)
            if round_:  # the first warms up
                seconds[form].append(time.perf_counter() - begin)
    medians = {form: 1e3 * statistics.median(times) for form, times in seconds.items()}
    return {
        "case": name,
        "eager_ms": round(medians["eager"], 2),
        "compiled_ms": round(medians["compiled"], 2),
        "times": round(medians["eager"] / medians["compiled"], 2),
        "torch_compile_ms": round(medians["torch"], 2) if with_torch else "",
        "first_call_s": round(first, 2),
        "eager_mib": round(_memory(name, "eager", scale)),
        "compiled_mib": round(_memory(name, "compiled", scale)),
    }


def main() -> None:
    """Runs the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help="names; all without any")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"writes {RESULTS / 'compiled_pyg.csv'}")
    parser.add_argument("--memory-of", choices=("eager", "compiled"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.memory_of:
        _run_memory(chosen.cases[0], chosen.memory_of, chosen.scale)
        return
    rows = []
    for name in chosen.cases:
        rows.append(measure(name, chosen.scale, chosen.rounds, chosen.torch_compile))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if chosen.write:
        write_csv(RESULTS / "compiled_pyg.csv", [{**row, **machine_stamp()} for row in rows])


if __name__ == "__main__":
    main()
