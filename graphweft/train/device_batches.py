"""Mini-batches that are drawn and trained on the device of the model.

Comes in: what a :class:`MiniBatch` takes. Goes out: updates of a model there. The batches are those of the CPU, bit for
bit; features and labels are sent once, and rows of batches are read there. Made by ``steps.py`` where the target of the
model's device draws batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.data.stored_graph import StoredGraph
from graphweft.graph.graph import Graph
from graphweft.graph.placed import on_device
from graphweft.loader.device_draws import AHEAD
from graphweft.nn.stack import Stack
from graphweft.runtime.constants import owning, sent
from graphweft.runtime.staged import Choice, PreparedBatch
from graphweft.runtime.targets import target_of
from graphweft.storage.feature import SparseFeatures
from graphweft.train.batch_steps import AnyLoader
from graphweft.train.device import device_of
from graphweft.train.device_memory import is_out_of_memory
from graphweft.train.full_batch import evaluation
from graphweft.train.inference import USUAL_TILE, infer
from graphweft.train.metrics import Evaluation
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.node_batches import NodeBatches
from graphweft.train.setup import Given, Setup

_LEAST_TILE = 64


def draws_on_device(model: Any) -> bool:
    """Whether batches are drawn where ``model`` is."""
    return target_of(device_of(model)).has_samplers


def check_drawn_there(given: Given) -> None:
    """Raises: ConfigError for tasks, data and options that only the CPU has."""
    options = {"macro": given.drawn.macro is not None, "prepare": given.drawn.prepare != "whole"}
    check_apart(given, f"device='{device_of(given.model)}'", ("nodes", "link"), **options)


def check_apart(given: Given, place: str, tasks: Sequence[str], **options: bool) -> None:
    """Raises: ConfigError for other tasks, data and ``options`` that do not train at ``place``."""
    refused = {
        f"task={given.task}": given.task not in tasks,
        f"mode={given.mode}": given.mode != "mini",
        "a store": isinstance(given.ds, StoredGraph),
        "ranks": given.ranks.is_shared,
        **options,
    }
    for name, is_given in refused.items():
        if is_given:
            raise ConfigError(f"{name} cannot be combined with {place}")


class DeviceMiniBatch(MiniBatch):
    """As :class:`MiniBatch`, on the device of the model.

    Args:
        setup: With a model on a device.

    Sparse features are dense there.

    Raises: ConfigError for samplers that do not draw there.
    """

    def __init__(self, setup: Setup) -> None:
        self.device = device_of(setup.model)
        super().__init__(setup)

    def _load(self) -> tuple[AnyLoader, None]:
        """A loader over the training rows that draws on the device."""
        batch_size, seed = self.drawn.batch_size, self.seed
        seeds = torch.unique(self.rows["train"], sorted=True)
        if isinstance(self.x, SparseFeatures):
            self.x = self.x.to_dense()
        room = self.x.nbytes + self.ds.graph.csc.nbytes + 4 * self.ds.num_nodes  # evaluation has all of it there anyway
        drawn: dict[str, Any] = {"sampler": self.sampler, "device": self.device, "device_memory": room, **AHEAD}
        return NodeBatches(self._tables, seeds, None, batch_size, True, seed, **drawn), None

    def _there(self, item: Tensor) -> Tensor:
        """Numbers of the dataset on the device, sent once."""
        if item.device == self.device:
            return item
        with owning(item):
            return sent(item, self.device)

    _tile: int | None = None  # rows of an evaluation at once; None: all
    _choice = Choice(numbered=True)  # all nodes of a batch have numbers, as they are drawn here

    def _table(self) -> Tensor:
        """Features of all nodes, on the device."""
        assert isinstance(self.x, Tensor)  # sparse ones were made dense
        return self._there(self.x)

    def _arrived(self, batch: PreparedBatch) -> PreparedBatch:
        """What the first stage made, on the device."""
        pinned = target_of(self.device).pinned
        values = tuple(
            on_device(value, self.device)
            if isinstance(value, Graph)
            else pinned(value).to(self.device, non_blocking=True)
            for value in batch.values
        )
        return replace(batch, seeds=pinned(batch.seeds).to(self.device, non_blocking=True), values=values)

    def _loss(self, logits: Tensor, seeds: Tensor, norm: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert norm is None  # of samplers that do not draw here
        return self.target.loss(logits, self._there(self.ds.y)[seeds])

    def logits(self) -> Tensor:
        """Logits of all nodes from all of their neighbours, in evaluation mode, shape (N, C), in host memory."""
        return self._logits().cpu()

    def _logits(self) -> Tensor:
        """The same where they are made; where its memory does not hold all rows, by tiles, ever smaller ones."""
        while True:
            try:
                return self._logits_now()
            except RuntimeError as failure:
                tile = USUAL_TILE if self._tile is None else self._tile // 4
                if not is_out_of_memory(failure) or not isinstance(self.model, Stack) or tile < _LEAST_TILE:
                    raise
            self._tile = tile  # after the failure, which holds on to tensors

    def _logits_now(self) -> Tensor:
        if self._tile is not None:
            assert isinstance(self.model, Stack)  # else there is no tile
            return infer(self.model, self.ds.graph, self.x, self._tile, edges=self.edge_data.inputs)
        self.model.eval()
        with torch.no_grad(), owning(self.x):
            logits: Tensor = self.model(self.ds.graph, self._there(self.x), **self.edge_data.keywords())
        return logits

    def evaluate(self) -> Evaluation:
        """Score of every split and the validation loss."""
        return evaluation(self.target, self._logits(), self.ds.y, self.rows, self.metrics)


__all__ = ["DeviceMiniBatch", "check_apart", "check_drawn_there", "draws_on_device"]
