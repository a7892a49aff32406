"""Layers with products on edges, written by a user for ``gw.update_all``, against PyTorch Geometric's.

    python benchmarks/models/user_edges.py --write      # two cases of three sizes, a minute and a half
    python benchmarks/models/user_edges.py --data data/karate.npz --rounds 2      # does everything work?

Attention whose keys and values add a product of edge features (``TransformerConv``) and a perceptron on pairs with a
maximum (``EdgeConv``), 64 wide, on a graph of pages (``facebook_pages``). A step is forward, the mean of the squared
output, and backward; both take turns in one process, after they have shown that they compute the same from the same
parameters. Memory is the peak of two steps in a process of its own.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from harness import RESULTS, BenchError, write_csv
from torch import Tensor, nn
from torch_geometric import nn as pyg

import graphweft as gw
from graphweft.measure.bench import machine_stamp

WIDTH, HEADS = 64, 4
CASES = {f"attention, {k} edge features": k for k in (8, 16, 64)} | {"pairs": 0}


class Attention(nn.Module):
    """``TransformerConv`` by a user's message and reduce functions, over its parameters."""

    def __init__(self, peer: Any) -> None:
        super().__init__()
        self.peer = peer

    def forward(self, graph: gw.Graph, x: Tensor, attr: Tensor) -> Tensor:
        peer, channels = self.peer, WIDTH // HEADS

        def message(edges: Any) -> dict[str, Tensor]:
            edge = peer.lin_edge(edges.data["e"]).view(-1, HEADS, channels)
            key, value = edges.src["k"].view(-1, HEADS, channels), edges.src["v"].view(-1, HEADS, channels)
            query = edges.dst["q"].view(-1, HEADS, channels)
            return {"s": (query * (key + edge)).sum(-1) / math.sqrt(channels), "m": value + edge}

        def reduce(nodes: Any) -> dict[str, Tensor]:
            weight = torch.softmax(nodes.mailbox["s"], 1).unsqueeze(-1)
            return {"h": (weight * nodes.mailbox["m"]).sum(1)}

        ndata = {"q": peer.lin_query(x), "k": peer.lin_key(x), "v": peer.lin_value(x)}
        out = gw.update_all(graph, message, reduce, ndata=ndata, edata={"e": attr})["h"]
        return out.view(-1, WIDTH) + peer.lin_skip(x)


class Pairs(nn.Module):
    """``EdgeConv`` by a user's message and reduce functions, over its parameters."""

    def __init__(self, peer: Any) -> None:
        super().__init__()
        self.peer = peer

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        def message(edges: Any) -> dict[str, Tensor]:
            own, other = edges.dst["x"], edges.src["x"]
            return {"m": self.peer.nn(torch.cat([own, other - own], -1))}

        def reduce(nodes: Any) -> dict[str, Tensor]:
            return {"h": nodes.mailbox["m"].amax(1)}

        return gw.update_all(graph, message, reduce, ndata={"x": x})["h"]


Form = tuple[nn.Module, tuple[Any, ...]]


def _forms(name: str, data: str) -> dict[str, Form]:
    torch.manual_seed(0)
    graph = gw.load(data).graph
    graph = gw.Graph(*graph.edges(), num_nodes=graph.num_nodes)
    edge_index = torch.stack(graph.edges()).long()
    x, columns = torch.randn(graph.num_nodes, WIDTH), CASES[name]
    if columns:
        attr = torch.randn(graph.num_edges, columns)
        peer: nn.Module = pyg.TransformerConv(WIDTH, WIDTH // HEADS, HEADS, edge_dim=columns)
        return {"pyg": (peer, (x, edge_index, attr)), "graphweft": (Attention(peer), (graph, x, attr))}
    perceptron = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    peer = pyg.EdgeConv(perceptron)
    return {"pyg": (peer, (x, edge_index)), "graphweft": (Pairs(peer), (graph, x))}


def _step(form: Form) -> Tensor:
    module, args = form
    module.zero_grad(set_to_none=True)
    out: Tensor = module(*args)
    out.square().mean().backward()
    return out.detach()


def _memory(name: str, form: str, data: str) -> float:
    command = [sys.executable, __file__, name, "--data", data, "--memory-of", form]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def _peak_kib() -> int:
    return int(Path("/proc/self/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()[0])


def measure(name: str, data: str, rounds: int) -> dict[str, object]:
    """One row."""
    forms = _forms(name, data)
    wanted, got = (_step(form) for form in forms.values())
    if not torch.allclose(got, wanted, rtol=1e-2, atol=1e-3 * float(wanted.abs().max())):
        raise BenchError(f"{name}: the user's layer gives other numbers")
    seconds: dict[str, list[float]] = {form: [] for form in forms}
    for round_ in range(rounds + 1):
        for form, made in forms.items():
            begin = time.perf_counter()
            _step(made)
            if round_:  # the first warms up
                seconds[form].append(time.perf_counter() - begin)
    medians = {form: round(1e3 * statistics.median(times), 2) for form, times in seconds.items()}
    row: dict[str, object] = {
        "case": name,
        "data": Path(data).stem,
        **{f"{form}_ms": ms for form, ms in medians.items()},
    }
    row["times"] = round(medians["pyg"] / medians["graphweft"], 2)
    return row | {f"{form}_mib": round(_memory(name, form, data)) for form in forms}


def main() -> None:
    """Runs the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help="names; all without any")
    parser.add_argument("--data", default="data/facebook_pages.npz", help="a name or path, as gw.load takes it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"writes {RESULTS / 'user_edges.csv'}")
    parser.add_argument("--memory-of", choices=("pyg", "graphweft"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.memory_of:
        form, before = _forms(chosen.cases[0], chosen.data)[chosen.memory_of], 0
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
        before = _peak_kib()
        _step(form), _step(form)
        print((_peak_kib() - before) / 1024)
        return
    rows = []
    for name in chosen.cases:
        rows.append(measure(name, chosen.data, chosen.rounds))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if chosen.write:
        write_csv(RESULTS / "user_edges.csv", [{**row, **machine_stamp()} for row in rows])


if __name__ == "__main__":
    main()
