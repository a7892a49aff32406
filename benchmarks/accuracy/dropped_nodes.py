"""How many nodes around training nodes can be left out, by how they are chosen (Hanoi, section 4.2).

``python benchmarks/accuracy/dropped_nodes.py --data facebook --shares 0.5 0.8 0.9 --seeds 3 [--folder data]``. The
training nodes are dealt into eight sets. Around each set the nodes up to as many hops away as the model has layers are
ranked, the lowest share of them is left out, and batches are drawn in the graph that the others and the set induce.
``random`` ranks at random, as parts at random do; ``neighbor`` has the neighbours of the set first and the others at
random; ``influence`` ranks by the walk that hubs are chosen by. GraphSAGE; test accuracy at the best validation, all
edges in evaluation. Appends to results/dropped_nodes.csv.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
import torch
from multistage import FILES, data

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, show, stamp, write_csv

import graphweft as gw
from graphweft.loader.hubs import influence
from graphweft.loader.parts import MemoryParts

POLICIES = ("random", "neighbor", "influence")
COLUMNS = ("data", "policy", "dropped", "test_acc", "std_error", "seeds")
SETS, LAYERS, FANOUTS, BATCH = 8, 3, (15, 10, 5), 500


def reached(graph: gw.Graph, seeds: torch.Tensor, hops: int) -> torch.Tensor:
    """Nodes that have a path of up to ``hops`` edges to a seed; bool (N,)."""
    src, dst = graph.edges()
    found = torch.zeros(graph.num_nodes, dtype=torch.bool)
    found[seeds] = True
    for _ in range(hops):
        found[src[found[dst]]] = True
    return found


def score(ds: gw.Dataset, seeds: torch.Tensor, policy: str, generator: torch.Generator) -> torch.Tensor:
    """What nodes are ranked by."""
    drawn = torch.rand(ds.num_nodes, generator=generator, dtype=torch.float64)
    if policy == "neighbor":
        drawn[reached(ds.graph, seeds, 1)] = 1.0
    if policy == "influence":
        source = MemoryParts(ds.graph, None, ds.y, torch.zeros(ds.num_nodes, dtype=torch.int64), 1)
        return torch.from_numpy(influence(source, seeds, LAYERS))
    return drawn


def around(ds: gw.Dataset, seeds: torch.Tensor, policy: str, dropped: float, seed: int) -> gw.Dataset:
    """The graph that a set of training nodes and the highest of its surroundings induce."""
    generator = torch.Generator().manual_seed(seed)
    others = reached(ds.graph, seeds, LAYERS)
    others[seeds] = False
    nodes = others.nonzero().reshape(-1)
    ranks = score(ds, seeds, policy, generator)[nodes]
    order = torch.argsort(ranks, descending=True, stable=True)
    kept = torch.cat([seeds, nodes[order[: round((1 - dropped) * len(nodes))]]])
    place = torch.full((ds.num_nodes,), -1, dtype=torch.int64)
    place[kept] = torch.arange(len(kept))
    src, dst = (place[end] for end in ds.graph.edges())
    inside = (src >= 0) & (dst >= 0)
    graph = gw.Graph(src[inside], dst[inside], num_nodes=len(kept))
    x = ds.x[kept] if isinstance(ds.x, torch.Tensor) else ds.x.take_rows(kept)
    every = torch.arange(len(seeds))
    return gw.Dataset(ds.name, graph, x, ds.y[kept], every, every[:0], every[:0], ds.num_classes)


def run(ds: gw.Dataset, policy: str, dropped: float, seed: int, epochs: int) -> float:
    """Test accuracy, in per cent, at the best validation."""
    torch.manual_seed(seed)
    model = gw.nn.SAGE(ds.num_features, 64, ds.num_classes, num_layers=LAYERS, norm="layer", dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    dealt = torch.from_numpy(np.random.default_rng(seed).permutation(ds.train_idx.numpy()))
    sets = [around(ds, part.sort().values, policy, dropped, seed) for part in dealt.tensor_split(SETS)]
    loaders = [gw.Loader(one, fanouts=FANOUTS, batch_size=BATCH, shuffle=True, seed=seed) for one in sets]
    best = test = 0.0
    for _ in range(epochs):
        model.train()
        for loader in loaders:
            for batch in loader:
                optimizer.zero_grad(set_to_none=True)
                logits = model(batch.blocks, batch.x)[: batch.batch_size]
                torch.nn.functional.cross_entropy(logits, batch.y[: batch.batch_size]).backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(ds.graph, ds.x).argmax(1) == ds.y
        validated = float(right[ds.val_idx].float().mean())
        if validated > best:
            best, test = validated, 100 * float(right[ds.test_idx].float().mean())
    return test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="facebook", choices=sorted(FILES))
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.8, 0.9])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=RESULTS / "dropped_nodes.csv")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ds = data(options.data, options.folder)
    rows: list[dict[str, object]] = []
    for dropped in options.shares:
        for policy in POLICIES:
            found = [run(ds, policy, dropped, seed, options.epochs) for seed in range(options.seeds)]
            error = round(statistics.stdev(found) / len(found) ** 0.5, 2) if len(found) > 1 else ""
            row: dict[str, object] = {"data": options.data, "policy": policy, "dropped": dropped}
            rows.append({**row, "test_acc": round(statistics.mean(found), 2), "std_error": error, "seeds": len(found)})
            print(rows[-1], flush=True)
            write_csv(options.out, [{**rows[-1], **stamp(options.threads)}])
    show(options.data, rows, COLUMNS)


if __name__ == "__main__":
    main()
