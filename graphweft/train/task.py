"""What the trainer needs to know of a dataset.

Comes in: nothing. Goes out: the protocol that ``gw.load`` and ``gw.synthetic`` results meet. Used by every module of
the room.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class NodeTask(Protocol):
    """A graph with node features, labels and splits.

    Attributes:
        x: Features, (N, F) float32 or sparse.
        y: Classes (N,) int64 with -1 for no label, or (N, C) float32 of 0 and 1.
        train_idx: Node ids, int64; likewise the next two.
    """

    name: str
    graph: Any
    x: Any
    y: Tensor
    train_idx: Tensor
    val_idx: Tensor
    test_idx: Tensor
    num_classes: int
    num_features: int
    num_edges: int
