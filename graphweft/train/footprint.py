"""Memory of a run: what it will need at least, and what it needed at most.

Comes in: sizes of the data and the model. Goes out: bytes. Called by :mod:`graphweft.run` before a model is made and
after it was trained.
"""

from __future__ import annotations

import itertools
import resource

from graphweft import _machine
from graphweft._budget import resident_peak
from graphweft._errors import ConfigError

_FLOAT = 4
_COPIES = 5  # parameters, gradients, two moments, the best so far


def least_bytes(num_nodes: int, num_features: int, hidden: int, num_classes: int, layers: int) -> int:
    """Bytes that training in float32 cannot do without: the model's state, and each layer's output with its gradient.

    Example:
        >>> least_bytes(num_nodes=1000, num_features=10, hidden=20, num_classes=3, layers=2)
        189200
    """
    widths = [num_features, *[hidden] * (layers - 1), num_classes]
    weights = sum(a * b for a, b in itertools.pairwise(widths))
    outputs = num_nodes * sum(widths[1:])
    return _FLOAT * (_COPIES * weights + 2 * outputs)


def check_fits(num_nodes: int, num_features: int, hidden: int, num_classes: int, layers: int) -> None:
    """The machine has the memory that the model cannot do without.

    Raises: ConfigError with both numbers.
    """
    need = least_bytes(num_nodes, num_features, hidden, num_classes, layers)
    have = _machine.memory()
    if need > have:
        raise ConfigError(
            f"hidden: expected a model that fits the {have / 2**30:.0f} GiB of this machine, got {layers} layers of "
            f"width {hidden} on {num_nodes} nodes, which take at least {need / 2**30:.0f} GiB"
        )


def peak_rss_mb() -> float:
    """Most resident memory of this process so far, in MiB."""
    return (resident_peak() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) / 2**20
