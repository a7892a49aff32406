"""Subgraph samplers with renumbering and features against PyTorch Geometric's loaders, paired in one run.

``python benchmarks/sampling/subgraphs.py [--twin ogbn-arxiv] [--scale 1.0]``. Cases: GraphSAINT by nodes and edges
(PyG's samplers work without compiled extensions), cluster batches (PyG's loader needs them, so the peer is
``torch_geometric.utils.subgraph`` over the same nodes), ShaDow (the peer is ``k_hop_subgraph`` per seed with all
neighbours, which is what PyG has without extensions). Turns of both are interleaved; medians over batches. Before
timing, induced subgraphs have shown the same edges.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph, subgraph

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, show, stamp, write_csv

from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.loader.loader import Loader
from graphweft.sample.cluster import ClusterSampler
from graphweft.sample.saint import SaintEdgeSampler, SaintNodeSampler
from graphweft.sample.shadow import ShadowSampler

COLUMNS = (
    "case",
    "batches_per_s",
    "peer_batches_per_s",
    "times_faster",
    "spread",
    "peer_spread",
    "nodes",
    "peer_nodes",
)

Batches = Iterator[int]  # numbers of nodes, batch by batch


def ours(ds: Dataset, sampler: object, batch_size: int) -> Batches:
    """Batches of the loader, each prepared when asked for."""
    loader = Loader(ds, sampler=sampler, batch_size=batch_size, shuffle=True, prefetch=0)
    while True:
        for batch in loader:
            _ = batch.edge_index, batch.e_id, batch.y
            yield batch.num_nodes


def peer_draws(ds: Dataset, index: torch.Tensor, draw: Callable[[], torch.Tensor]) -> Batches:
    """What PyG's GraphSAINT samplers do without compiled extensions: nodes drawn by torch, then ``subgraph``."""
    mask = torch.zeros(ds.num_nodes, dtype=torch.bool)
    while True:
        nodes = draw().unique()
        mask.zero_()[nodes] = True
        edges, _, kept = subgraph(mask, index, relabel_nodes=True, num_nodes=ds.num_nodes, return_edge_mask=True)
        Data(x=ds.x[nodes], y=ds.y[nodes], edge_index=edges, e_id=kept.nonzero().reshape(-1))
        yield nodes.numel()


def peer_egos(ds: Dataset, index: torch.Tensor, seeds: torch.Tensor, batch_size: int, hops: int) -> Batches:
    """The whole neighbourhood of every seed."""
    while True:
        for part in seeds[torch.randperm(seeds.numel())].split(batch_size):
            count = 0
            for seed in part.tolist():
                nodes, _, _, _ = k_hop_subgraph(seed, hops, index, relabel_nodes=True, num_nodes=ds.num_nodes)
                _ = ds.x[nodes]
                count += nodes.numel()
            yield count


def check(ds: Dataset, index: torch.Tensor) -> None:
    """The subgraph between some nodes is PyG's."""
    batch = next(iter(Loader(ds, sampler=SaintNodeSampler(ds.graph), batch_size=500)))
    _, _, kept = subgraph(batch.n_id, index, num_nodes=ds.num_nodes, return_edge_mask=True)
    if not torch.equal(batch.e_id.sort().values, kept.nonzero().reshape(-1)):
        raise BenchError("subgraph: expected the edges of torch_geometric.utils.subgraph")


def paired(case: str, mine: Batches, peer: Batches, rounds: int, turn: float) -> dict[str, object]:
    """Interleaved turns; a row of the table."""
    seconds: dict[int, list[float]] = {0: [], 1: []}
    nodes: dict[int, list[int]] = {0: [], 1: []}
    for side in (mine, peer):
        next(side)
    for _ in range(rounds):
        for number, side in enumerate((mine, peer)):
            end = time.perf_counter() + turn
            while True:
                begun = time.perf_counter()
                nodes[number].append(next(side))
                now = time.perf_counter()
                seconds[number].append(now - begun)
                if now > end:
                    break
    medians = [statistics.median(seconds[i]) for i in (0, 1)]
    spreads = [round((max(s) - min(s)) / statistics.median(s), 2) for s in seconds.values()]
    return {
        "case": case,
        "batches_per_s": round(1 / medians[0], 1),
        "peer_batches_per_s": round(1 / medians[1], 1),
        "times_faster": round(medians[1] / medians[0], 1),
        "spread": spreads[0],
        "peer_spread": spreads[1],
        "nodes": round(statistics.mean(nodes[0])),
        "peer_nodes": round(statistics.mean(nodes[1])),
    }


def main() -> int:
    """Measures all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", default="ogbn-arxiv")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--draws", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=0.4, help="seconds of a turn")
    parser.add_argument("--out", type=Path, default=RESULTS / "subgraphs.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ds = synthetic(arguments.twin, scale=arguments.scale)
    graph, draws = ds.graph, arguments.draws
    src, dst = graph.edges()
    index = torch.stack([src, dst])
    check(ds, index)
    part = torch.arange(ds.num_nodes) // 100
    parts = int(part.max()) + 1
    cases = [
        (
            f"saint-node, {draws} draws",
            ours(ds, SaintNodeSampler(graph, "uniform"), draws),
            peer_draws(ds, index, lambda: torch.randint(ds.num_nodes, (draws,))),
        ),
        (
            f"saint-edge, {draws // 2} draws",
            ours(ds, SaintEdgeSampler(graph, torch.ones(graph.num_edges)), draws // 2),
            peer_draws(ds, index, lambda: index[:, torch.randint(graph.num_edges, (draws // 2,))].reshape(-1)),
        ),
        (
            "cluster, 60 parts of 100",
            ours(ds, ClusterSampler(graph, part), 60),
            peer_draws(ds, index, lambda: torch.isin(part, torch.randperm(parts)[:60]).nonzero().reshape(-1)),
        ),
        (
            "shadow, 2 hops, 20 seeds, all neighbours",
            ours(ds, ShadowSampler(graph, [-1, -1]), 20),
            peer_egos(ds, index, ds.train_idx, 20, 2),
        ),
    ]
    rows = [paired(name, mine, peer, arguments.rounds, arguments.turn) for name, mine, peer in cases]
    head = {"twin": arguments.twin, "scale": arguments.scale, "num_nodes": ds.num_nodes, "num_edges": ds.num_edges}
    show(f"{arguments.twin} x {arguments.scale}: {ds.num_nodes:,} nodes, {ds.num_edges:,} edges", rows, COLUMNS)
    write_csv(arguments.out, [{**head, **row, **stamp(arguments.threads)} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
