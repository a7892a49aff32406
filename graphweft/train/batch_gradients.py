"""Gradients of one mini-batch among others: added up, weighed, keyed; and steps whose batch is a list of places.

Comes in: gradients by name, batches. Goes out: gradients of parameters, weights of batches, keys of draws. Called by
the kinds of :class:`MiniBatch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from graphweft._draws import mixed
from graphweft.loader.batch import Batch
from graphweft.loader.epochs import EpochLoader
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


class Places(NamedTuple):
    """What a step takes where nothing is drawn or gathered: places of rows, nodes or pairs."""

    input_id: Tensor
    node_norm: Tensor | None = None

    @property
    def batch_size(self) -> int:
        """How much it weighs."""
        return self.input_id.numel()


class PlaceLoader(EpochLoader[Places]):
    """Places of all items, some a step."""

    who = "Trainer"

    def __init__(self, num_items: int, batch_size: int, shuffle: bool, seed: int) -> None:
        super().__init__(num_items, batch_size, shuffle, seed, False, 0, None)

    def make(self, places: Tensor, epoch: int) -> Places:
        """They are where they are."""
        return Places(places)


__all__ = ["PlaceLoader", "Places", "add_gradients", "batch_key", "weight_of"]
