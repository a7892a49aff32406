"""Initial parameters of two-layer R-GCN and HGT, the same in every system. NumPy only: read by other environments."""

from __future__ import annotations

import numpy as np

HEADS = 8


def draw(seed, *shape):
    """Uniform by Glorot over the last two dimensions."""
    bound = (6.0 / (shape[-2] + shape[-1])) ** 0.5
    return np.random.default_rng(seed).uniform(-bound, bound, shape).astype(np.float32)


def relations(case):
    """How many there are."""
    return int(case.array("edge_type").max()) + 1


def embedding(case):
    """Of shape (nodes, hidden)."""
    return draw(0, case.meta.num_nodes, case.meta.hidden)


def rgcn(case):
    """(weight, root) of each layer."""
    widths = [case.meta.hidden, case.meta.hidden, case.meta.num_classes]
    return [
        (draw(1 + 2 * i, relations(case), widths[i], widths[i + 1]), draw(2 + 2 * i, widths[i], widths[i + 1]))
        for i in range(2)
    ]


def hgt(case):
    """Per layer key, query, value and output matrix of the one node type, and (relations, heads, d, d) twice."""
    width = case.meta.hidden
    size = width // HEADS
    return [
        (
            *(draw(10 * i + j, width, width) for j in range(1, 5)),
            *(draw(10 * i + j, relations(case), HEADS, size, size) for j in (5, 6)),
        )
        for i in range(2)
    ]


def head(case):
    """Of shape (hidden, classes)."""
    return draw(99, case.meta.hidden, case.meta.num_classes)
