"""Sets of small random graphs that tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import graphweft as gw


def many(count: int, kind: str = "symmetric", seed: int = 0) -> tuple[list[gw.Graph], Tensor, Tensor, Tensor]:
    """So many graphs of 1 to 12 nodes, their offsets, and all their edges side by side."""
    generator = np.random.Generator(np.random.PCG64(seed))
    graphs = []
    for _ in range(count):
        nodes = int(generator.integers(1, 13))
        ends = generator.integers(0, nodes, (2, int(generator.integers(0, 3 * nodes))))
        if kind != "loops":
            ends = ends[:, ends[0] != ends[1]]
        if kind == "symmetric":
            ends = np.concatenate([ends, ends[::-1]], axis=1)
        graphs.append(gw.Graph(ends[0].copy(), ends[1].copy(), num_nodes=nodes))
    ptr = torch.tensor([0, *np.cumsum([graph.num_nodes for graph in graphs]).tolist()])
    src = torch.cat([graph.edges()[0] + ptr[i] for i, graph in enumerate(graphs)])
    dst = torch.cat([graph.edges()[1] + ptr[i] for i, graph in enumerate(graphs)])
    return graphs, ptr, src, dst


def learnable(count: int = 120, width: int = 4, seed: int = 0, task: str = "classification") -> gw.GraphDataset:
    """Graphs whose label follows from the mean of a feature, with a split."""
    graphs, _, _, _ = many(count, "symmetric", seed)
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randn(count, generator=generator)
    x = [torch.randn(g.num_nodes, width, generator=generator) * 0.3 + shift[i] for i, g in enumerate(graphs)]
    y = (shift > 0).long() if task == "classification" else shift
    ds = gw.GraphDataset.from_list(graphs, x=x, y=y, task=task, name="made")
    return ds.split(0.6, 0.2, 0.2, seed=0)


def write_tu(folder: Path, name: str, seed: int = 0, count: int = 12, regression: bool = False) -> gw.GraphDataset:
    """A small set as TU text files, with node labels and attributes, edge labels, and edges in mixed order."""
    graphs, ptr, src, dst = many(count, "symmetric", seed)
    generator = np.random.Generator(np.random.PCG64(seed))
    order = generator.permutation(len(src))
    lines = {
        "A": [f"{int(src[i]) + 1}, {int(dst[i]) + 1}" for i in order],
        "graph_indicator": [str(i + 1) for i, g in enumerate(graphs) for _ in range(g.num_nodes)],
        "node_labels": [str(v) for v in generator.integers(0, 3, int(ptr[-1]))],
        "node_attributes": [f"{a:.3f}, {b:.3f}" for a, b in generator.normal(size=(int(ptr[-1]), 2))],
        "edge_labels": [str(int(v)) for v in generator.integers(1, 4, len(src))],
    }
    values = generator.normal(size=count)
    key = "graph_attributes" if regression else "graph_labels"
    lines[key] = [f"{v:.4f}" for v in values] if regression else [str(1 if i % 3 else -1) for i in range(count)]
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in lines.items():
        (folder / f"{name}_{part}.txt").write_text("\n".join(rows) + "\n")
    return gw.load(folder)
