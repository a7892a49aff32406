"""Epochs on a CUDA device beside PyTorch Geometric on the same device, in one process, in turns.

    python benchmarks/device/epochs.py --cases gcn gat --data ogbn-products --scale 1
    python benchmarks/device/epochs.py --cases sage --data ogbn-products --scale 0.25

An epoch is forward, loss, backward and update of all training nodes with Adam. ``gcn``: 3 layers, 32 hidden, beside
GCNConv on a CSR tensor that was normalised once (cuSPARSE) and on an edge list. ``gat``: 2 layers, 8 heads of 8, beside
GATConv on an edge list. ``sage``: mini-batches of 1,024, fan-outs 15, 10, 5, beside SAGEConv on batches of our loader
that were drawn on the device, as PyTorch Geometric draws on the CPU alone and needs an extension for it. Losses of the
first epochs, without dropout and from the same weights, are shown: those of the trainer are one epoch later. ``mb`` is
the most that a system had on the device, features and structure included; ``floor_ms`` what a copy takes for the bytes
of five sums over edges of ``gcn``.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import RESULTS, show, write_csv
from timing import HERE, copy_rate, milliseconds, stamp

import graphweft as gw
from graphweft.measure.device_epochs import edges_on

_TRAINERS = ("graphweft", "graphweft, no graphs")  # which send features themselves
Step = Callable[[], Tensor]


class Peer(nn.Module):
    """Layers of PyTorch Geometric, with the weights of ours, over one structure."""

    def __init__(self, convs: list[nn.Module], act: Callable[[Tensor], Tensor], structure: Any) -> None:
        super().__init__()
        self.convs, self.act, self.structure = nn.ModuleList(convs), act, structure

    def forward(self, x: Tensor) -> Tensor:
        for k, conv in enumerate(self.convs):
            x = conv(x, self.structure) if k == len(self.convs) - 1 else self.act(conv(x, self.structure))
        return x


def updates(model: nn.Module, call: Step, rows: Tensor, y: Tensor) -> Step:
    """An epoch as a loop of one's own has it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(call()[rows], y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def trained(model: nn.Module, ds: gw.Dataset, **options: Any) -> Step:
    """An epoch as our trainer has it."""
    trainer = gw.Trainer(model, ds, lr=0.01, device="cuda", progress=False, restore_best=False, **options)
    trainer.fit(epochs=1)
    return trainer._batch.step


def normalised(ds: gw.Dataset) -> Tensor:
    """The matrix of GCN, as CSR on the device."""
    graph = ds.graph.with_one_loop()
    csc = graph.csc
    degree = (csc.indptr[1:] - csc.indptr[:-1]).to(HERE).float()
    rows = torch.repeat_interleave(torch.arange(graph.num_nodes, device=HERE), degree.long())
    columns = csc.indices.to(HERE)
    factor = degree.clamp(min=1).rsqrt()
    values = factor[rows] * factor[columns.long()]
    n = graph.num_nodes
    return torch.sparse_csr_tensor(csc.indptr.to(HERE, columns.dtype), columns, values, (n, n))


def gcn(ds: gw.Dataset) -> dict[str, Callable[[], tuple[Step, Any]]]:
    """Ours by the trainer, with and without CUDA graphs, and by a loop, PyG's on CSR and on an edge list."""
    from torch_geometric.nn import GCNConv

    x, y, rows = ds.x.to(HERE), ds.y[ds.train_idx].to(HERE), ds.train_idx.to(HERE)
    made = gw.nn.GCN(ds.num_features, 32, ds.num_classes, num_layers=3)
    first = {name: t.clone() for name, t in made.state_dict().items()}

    def mine() -> nn.Module:
        model = gw.nn.GCN(ds.num_features, 32, ds.num_classes, num_layers=3)
        model.load_state_dict(first)
        return model

    def by_trainer(graphs: str) -> tuple[Step, Any]:
        return trained(mine(), ds, cuda_graphs=graphs), None

    def by_loop() -> tuple[Step, Any]:
        model, graph, given = mine().to(HERE), ds.graph.to(HERE), gw.constant(x)
        return updates(model, lambda: model(graph, given), rows, y), None

    def peer(listed: bool) -> tuple[Step, Any]:
        structure = torch.stack(ds.graph.edges()).to(HERE) if listed else normalised(ds)
        convs = []
        for k in range(3):
            weight, bias = first[f"layers.{k}.weight"], first[f"layers.{k}.bias"]
            conv = GCNConv(*weight.shape, cached=listed, normalize=listed)
            conv.lin.weight = nn.Parameter(weight.t().contiguous().clone())
            conv.bias = nn.Parameter(bias.clone())
            convs.append(conv)
        model = Peer(convs, torch.relu, structure).to(HERE)
        return updates(model, lambda: model(x), rows, y), None

    return {
        "graphweft": lambda: by_trainer("auto"),
        "graphweft, no graphs": lambda: by_trainer("off"),
        "graphweft, own loop": by_loop,
        "pyg csr": lambda: peer(False),
        "pyg edges": lambda: peer(True),
    }


def gat(ds: gw.Dataset) -> dict[str, Callable[[], tuple[Step, Any]]]:
    """Ours by the trainer, PyG's on an edge list."""
    from torch_geometric.nn import GATConv

    x, y, rows = ds.x.to(HERE), ds.y[ds.train_idx].to(HERE), ds.train_idx.to(HERE)
    made = gw.nn.GAT(ds.num_features, 64, ds.num_classes, heads=8, num_layers=2)
    first = {name: t.clone() for name, t in made.state_dict().items()}

    def by_trainer() -> tuple[Step, Any]:
        model = gw.nn.GAT(ds.num_features, 64, ds.num_classes, heads=8, num_layers=2)
        model.load_state_dict(first)
        return trained(model, ds), None

    def peer() -> tuple[Step, Any]:
        convs = [
            GATConv(ds.num_features, 8, heads=8),
            GATConv(64, ds.num_classes, heads=1, concat=False),
        ]
        model = Peer(convs, nn.functional.elu, torch.stack(ds.graph.edges()).to(HERE)).to(HERE)
        return updates(model, lambda: model(x), rows, y), None

    return {"graphweft": by_trainer, "pyg edges": peer}


def sage(ds: gw.Dataset) -> dict[str, Callable[[], tuple[Step, Any]]]:
    """Ours by the trainer, with and without recorded steps; ours and PyG's by a loop over our loader."""
    from torch_geometric.nn import SAGEConv

    y = ds.y.to(HERE)
    fanouts, batch = (15, 10, 5), 1024

    def mine() -> nn.Module:
        torch.manual_seed(0)
        return gw.nn.SAGE(ds.num_features, 256, ds.num_classes, num_layers=3)

    def by_trainer(graphs: str) -> tuple[Step, Any]:
        options = {"mode": "mini", "fanouts": fanouts, "batch_size": batch, "cuda_graphs": graphs}
        trainer = gw.Trainer(
            mine(), ds, lr=0.003, device="cuda", progress=False, restore_best=False, eval_every=10**6, **options
        )
        trainer.fit(epochs=2)  # bounds, then recorded steps

        def epoch() -> Tensor:
            return torch.tensor(trainer.fit(epochs=1)[-1].loss)

        return epoch, trainer

    def by_loop(model: nn.Module, call: Callable[[Any], Tensor]) -> tuple[Step, Any]:
        room = ds.x.nbytes + ds.graph.csc.nbytes + 4 * ds.num_nodes
        loader = gw.Loader(
            ds, seeds=ds.train_idx, fanouts=fanouts, batch_size=batch, shuffle=True, seed=0, device="cuda",
            device_memory=room,
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003, fused=True)

        def epoch() -> Tensor:
            total = torch.zeros((), device=HERE)
            for drawn in loader:
                optimizer.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(call(drawn), y[drawn.input_id])
                loss.backward()
                optimizer.step()
                total += loss.detach()
            return total / len(loader)

        return epoch, None

    def own_loop() -> tuple[Step, Any]:
        model = mine().to(HERE)
        return by_loop(model, lambda drawn: model(drawn.blocks, drawn.x))

    def peer() -> tuple[Step, Any]:
        sizes = [ds.num_features, 256, 256, ds.num_classes]
        convs = [SAGEConv(a, b) for a, b in itertools.pairwise(sizes)]
        model = nn.ModuleList(convs).to(HERE)

        def call(drawn: Any) -> Tensor:
            h = drawn.x
            for k, (conv, block) in enumerate(zip(model, drawn.blocks, strict=True)):
                h = conv((h, h[: block.num_dst]), edges_on(HERE, block), size=(block.num_src, block.num_dst))
                h = h if k == 2 else h.relu()
            return h

        return by_loop(model, call)

    return {
        "graphweft": lambda: by_trainer("auto"),
        "graphweft, no graphs": lambda: by_trainer("off"),
        "graphweft, own loop": own_loop,
        "pyg, our batches": peer,
    }


CASES = {"gcn": gcn, "gat": gat, "sage": sage}


def rows_of(case: str, data: str, scale: float, systems: list[str] | None) -> list[dict[str, Any]]:
    """A row a system."""
    ds = gw.synthetic(data, scale=scale)
    rate, rows = copy_rate(), []
    floor = 5 * (ds.graph.num_edges * (4 * 32 + 4) + ds.num_nodes * (8 + 4 * 32)) / rate * 1e3
    for name, build in CASES[case](ds).items():
        if systems and name not in systems:
            continue
        row: dict[str, Any] = {"case": case, "data": data, "scale": scale, "edges": ds.graph.num_edges, "system": name}
        row |= dict.fromkeys(("ms", "spread", "mb", "floor_ms", "losses", "note"), "")
        try:
            torch.cuda.empty_cache()
            before, given = torch.cuda.memory_allocated(), 0 if name in _TRAINERS else ds.x.nbytes
            torch.cuda.reset_peak_memory_stats()
            step, trainer = build()
            losses = [float(step()) for _ in range(2)]
            found, spread = milliseconds(step, 5 if case == "sage" else 20)
            taken = torch.cuda.max_memory_allocated() - before + given
            row |= {"ms": round(found, 2), "spread": round(spread, 3), "mb": round(taken / 2**20)}
            row["losses"] = " ".join(f"{loss:.4f}" for loss in losses)
            if case == "gcn":
                row["floor_ms"] = round(floor, 2)
            if trainer is not None:
                row["note"] = f"{trainer.replays}"
        except Exception as failure:  # a peer may not fit
            row["note"] = f"{type(failure).__name__}: {failure}".replace("\n", " ")[:300]
            traceback.print_exc()
        step = trainer = None
        gc.collect()
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    """Times, prints and appends to results/device_epochs.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--data", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--systems", nargs="+")
    parser.add_argument("--out", type=Path, default=RESULTS / "device_epochs.csv")
    given = parser.parse_args()
    made = [row for case in given.cases for row in rows_of(case, given.data, given.scale, given.systems)]
    show("epochs", made, ["case", "system", "ms", "spread", "mb", "floor_ms", "losses", "note"])
    write_csv(given.out, [{**row, **stamp()} for row in made])


if __name__ == "__main__":
    main()
