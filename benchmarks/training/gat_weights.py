"""Initial parameters of a two-layer GAT, the same in every system. NumPy only: read by peers of other environments."""

from __future__ import annotations

import numpy as np


def layers(case, heads):
    """(weight, att_src, att_dst, bias, heads, activated) per layer; the last has one head, the others ``heads``."""
    found = []
    last = case.meta.layers - 1
    for place, (weight, bias) in enumerate(case.weights()):
        count = 1 if place == last else heads
        rng = np.random.default_rng(place)
        shape = (count, weight.shape[1] // count)
        bound = (6.0 / sum(shape)) ** 0.5
        ends = [rng.uniform(-bound, bound, shape).astype(np.float32) for _ in range(2)]
        found.append((weight, *ends, bias, count, place < last))
    return found
