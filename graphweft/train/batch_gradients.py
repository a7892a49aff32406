"""Gradients of one mini-batch among others: added up, weighed, keyed.

Comes in: gradients by name, batches. Goes out: gradients of parameters, weights of batches, keys of draws. Called by
the kinds of :class:`MiniBatch`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from graphweft._draws import mixed
from graphweft.loader.batch import Batch
from graphweft.runtime.staged import PreparedBatch


def add_gradients(tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None]) -> None:
    """Adds gradients by name to those that are there."""
    for name, found in gradients.items():
        if found is not None:
            known = tensors[name].grad
            tensors[name].grad = found if known is None else known.add_(found)


def batch_key(seed: int, epoch: int, batch: int) -> int:
    """Keys the draws of one step."""
    return mixed(mixed(seed, epoch), batch)


def weight_of(batch: Batch | PreparedBatch) -> int:
    """How much a batch weighs among others: its seeds, or 1 where each batch estimates the mean over all of them."""
    return batch.batch_size if isinstance(batch, PreparedBatch) or batch.node_norm is None else 1


__all__ = ["add_gradients", "batch_key", "weight_of"]
