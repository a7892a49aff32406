"""Graphs of the kinds that stores hold, for tests of stores."""

from __future__ import annotations

import numpy as np
import torch

import graphweft as gw

PAPER = 640  # columns of papers; terms have 20
SIZES = {"author": 240, "paper": 360, "term": 80, "venue": 9}
COUNTS = {
    ("author", "writes", "paper"): 1200,
    ("paper", "cites", "paper"): 1000,
    ("term", "in", "paper"): 600,
    ("paper", "by", "author"): 1200,
    ("venue", "of", "paper"): 360,
    ("paper", "unused", "term"): 0,
}


def academic(weights: bool = False, seed: int = 0) -> gw.Dataset:
    """Papers that are labelled and terms have features of different widths, authors and venues have none."""
    rng = np.random.default_rng(seed)
    topic = {name: rng.integers(0, 3, size) for name, size in SIZES.items()}
    edges = {}
    for (src, name, dst), count in COUNTS.items():
        ends = rng.integers(0, SIZES[src], 6 * count), rng.integers(0, SIZES[dst], 6 * count)
        alike = topic[src][ends[0]] == topic[dst][ends[1]]
        chosen = np.argsort(~alike & (rng.random(6 * count) < 0.8), kind="stable")[:count]
        edges[src, name, dst] = (ends[0][chosen], ends[1][chosen])
    graph = gw.Graph.hetero(edges, SIZES)
    papers = np.arange(SIZES["author"], SIZES["author"] + SIZES["paper"])
    y = np.full(graph.num_nodes, -1)
    y[papers] = topic["paper"]
    x = rng.normal(size=(SIZES["paper"], PAPER)).astype(np.float32)
    x[np.arange(len(x)), topic["paper"]] += 2.0
    words = (rng.random((SIZES["term"], 20)) < 0.3).astype(np.float32)
    return gw.Dataset(
        "academic",
        graph,
        None,
        y,
        train_idx=papers[:200],
        val_idx=papers[200:280],
        test_idx=papers[280:],
        num_classes=3,
        features={"paper": x, "term": words},
        target_type="paper",
        edge_weight=torch.from_numpy(rng.random(graph.num_edges).astype(np.float32)) if weights else None,
    )
