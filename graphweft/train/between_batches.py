"""What happens between two batches of an epoch: the user's code, a checkpoint where one is due, progress.

Comes in: the parts of a trainer that are asked. Goes out: a function that is called after every batch. Called by the
trainer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.train.progress import EpochProgress
from graphweft.train.run_folder import RunFolder


def between_batches(
    ended: Callable[[int, float], None],
    epoch: Callable[[], int],
    state: Callable[[], dict[str, Any]],
    lr: float,
    folder: RunFolder | None,
    show: EpochProgress | None,
) -> Callable[[int, int, float], None]:
    """A function of batches done, batches of the epoch, and the mean loss so far.

    Args:
        ended: Is told of every batch, with the loss, while that is finite.
        epoch: The epoch under way, counted from 1.
        state: What a checkpoint holds.
        lr: The learning rate, for the message where the loss is not finite.
        folder: Where checkpoints go.
        show: Where progress is shown.

    The function raises ConfigError for a loss that is not finite.
    """

    def after(done: int, total: int, loss: float) -> None:
        if math.isfinite(loss):
            ended(done, loss)
        if done == total:
            return  # the epoch's own checkpoint follows
        if not math.isfinite(loss):
            raise not_finite(lr, epoch(), loss)
        if folder is not None and folder.is_due():
            folder.save(state())
        if show is not None:
            show.within(epoch(), done, total, loss)

    return after


def not_finite(lr: float, epoch: int, loss: float, weights: Tensor | None = None) -> ConfigError:
    """The error for a loss that is infinite or not a number; ``weights`` are those of edges."""
    hint = ""
    if weights is not None and weights.numel() and float(weights.min()) < 0:
        least = float(weights.min())
        hint = f"; edge weights go down to {least:g}, and GCN takes roots of their sums (edge_data='ignore')"
    return ConfigError(f"lr: expected a rate at which the loss stays finite, got {lr} (epoch {epoch}: {loss}){hint}")
