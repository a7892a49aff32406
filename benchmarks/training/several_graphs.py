"""Nodes of several graphs with an inductive split: micro F1 and epochs against a loop of PyTorch Geometric.

    python benchmarks/training/several_graphs.py --rounds 10
    python benchmarks/training/several_graphs.py --nodes 200 --labels 8 --epochs 2 --rounds 2 --out /dev/null   # a try

24 graphs made on the spot with the sizes of PPI (20 for training, 2 for validation, 2 for the test; 2,370 nodes, 29
neighbours, 50 features, 121 labels), whose labels follow from a node's features and the mean of its neighbours'. Both
sides train GraphSAGE of equal widths with Adam on two graphs a step, from seeds of their own; an epoch is the loop over
all training graphs, timed in turns of one process. Appends a line to results/several_graphs.csv.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, show, stamp, write_csv

import graphweft as gw

COLUMNS = ("graphs", "nodes", "hidden", "epochs", "ours_f1", "pyg_f1", "ours_ms", "pyg_ms", "ratio")
RATE = 0.005


def made(options: argparse.Namespace) -> list[Any]:
    """The graphs, as PyTorch Geometric has them."""
    from torch_geometric.data import Data

    draw = torch.Generator().manual_seed(options.seed)
    rule = torch.randn(50, options.labels, generator=draw)
    graphs = []
    for _ in range(24):
        nodes = int(options.nodes * (0.5 + torch.rand((), generator=draw)))
        ends = torch.randint(0, nodes, (2, 14 * nodes), generator=draw)
        ends = ends[:, ends[0] != ends[1]]
        ends = torch.unique(torch.cat([ends, ends.flip(0)], dim=1), dim=1)
        x = torch.randn(nodes, 50, generator=draw)
        sums = torch.zeros_like(x).index_add(0, ends[1], x[ends[0]])
        mean = sums / ends[1].bincount(minlength=nodes).clamp(min=1).sqrt().unsqueeze(1)
        graphs.append(Data(x=x, edge_index=ends, y=((x + mean) @ rule > 5).float()))
    return graphs


def micro_f1(outputs: Tensor, labels: Tensor) -> float:
    """Of all pairs of nodes and labels."""
    said, there = outputs > 0, labels > 0.5
    return 2 * int((said & there).sum()) / max(int(said.sum() + there.sum()), 1)


def measure(options: argparse.Namespace) -> dict[str, object]:
    """One row."""
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GraphSAGE

    graphs = made(options)
    ds = gw.Dataset.from_graphs(graphs[:20], graphs[20:22], graphs[22:], name="as PPI")
    torch.manual_seed(options.seed)
    model = gw.nn.SAGE(50, options.hidden, options.labels, num_layers=options.layers)
    trained = {"mode": "mini", "sampler": "graphs", "batch_size": 2, "eval_every": 10**6, "restore_best": False}
    trainer = gw.Trainer(model, ds, lr=RATE, seed=options.seed, **trained)
    peer = GraphSAGE(50, options.hidden, options.layers, options.labels)
    optimizer = torch.optim.Adam(peer.parameters(), lr=RATE)
    loader = DataLoader(graphs[:20], batch_size=2, shuffle=True)

    def their_epoch() -> None:
        peer.train()
        for batch in loader:
            optimizer.zero_grad()
            functional.binary_cross_entropy_with_logits(peer(batch.x, batch.edge_index), batch.y).backward()
            optimizer.step()

    trainer.prepare()
    taken: list[list[float]] = [[], []]
    for turn in range(max(options.rounds + 1, options.epochs)):
        for side, epoch in ((0, trainer._batch.step), (1, their_epoch)):  # the step alone, without an evaluation
            begin = time.perf_counter()
            epoch()
            if turn:
                taken[side].append(1e3 * (time.perf_counter() - begin))
    peer.eval()
    with torch.no_grad():
        theirs = torch.cat([peer(one.x, one.edge_index) for one in graphs[22:]])
    here, there = (statistics.median(one) for one in taken)
    found = {"ours_f1": trainer.evaluate("test"), "pyg_f1": micro_f1(theirs, torch.cat([g.y for g in graphs[22:]]))}
    sizes = {"graphs": 24, "nodes": ds.num_nodes, "hidden": options.hidden, "epochs": turn + 1}
    times = {"ours_ms": round(here, 2), "pyg_ms": round(there, 2), "ratio": round(there / here, 2)}
    return {**sizes, **{name: round(value, 4) for name, value in found.items()}, **times}


def main() -> None:
    """Reads arguments, measures, appends to the CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, usual in (("nodes", 2370), ("labels", 121), ("hidden", 256), ("layers", 2), ("epochs", 30)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    row = measure(options)
    show("GraphSAGE on several graphs", [row], COLUMNS)
    write_csv(options.out or RESULTS / "several_graphs.csv", [{**row, **stamp(options.threads)}])


if __name__ == "__main__":
    main()
