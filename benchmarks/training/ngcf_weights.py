"""Initial parameters of NGCF, the same in every system. NumPy only."""

from __future__ import annotations

import numpy as np


def layers(case):
    """(weight, affinity_weight, bias) per layer."""
    found = []
    for place, (weight, bias) in enumerate(case.weights()):
        bound = (6.0 / sum(weight.shape)) ** 0.5
        affinity = np.random.default_rng(place).uniform(-bound, bound, weight.shape).astype(np.float32)
        found.append((weight, affinity, bias))
    return found
