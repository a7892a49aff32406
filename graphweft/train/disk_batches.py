"""Mode "mini" from a store: the batches of memory, bit for bit, with features read from disk.

Comes in: a model, a store with its structure in memory, a budget. Goes out: epochs and evaluations for the trainer.
Draws, calls and updates are those of :class:`MiniBatch`; rows of features come from a table that holds those of the
batches at hand and, by their next use, of coming ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.data.stored_graph import StoredGraph
from graphweft.loader.disk import tables_of
from graphweft.nn.rgcn import RelationalEmbedding
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.runtime.staged import PreparedBatch
from graphweft.schedule.subtasks import Subtasks
from graphweft.storage.feature import Features
from graphweft.storage.memory_size import memory_bytes
from graphweft.storage.store import Store
from graphweft.train.batch_steps import AnyLoader
from graphweft.train.disk_counts import FromDisk
from graphweft.train.edge_data import EdgeData
from graphweft.train.full_batch import evaluation
from graphweft.train.macro import MacroRun
from graphweft.train.metrics import Evaluation
from graphweft.train.needs import trimmed
from graphweft.train.node_batches import NodeBatches
from graphweft.train.options import PREPARE, check_choice
from graphweft.train.part_inference import PartInference
from graphweft.train.samplers import fitting_fanouts
from graphweft.train.setup import Setup
from graphweft.train.stored_needs import predicted_bytes
from graphweft.train.stored_sizes import check_rows
from graphweft.train.target import target_of

EVALUATION = 8  # one in so many bytes of the budget is for evaluation
_SAMPLERS = ("neighbor", "layer", "saint-node", "saint-edge", "saint-walk")


class DiskNodeBatches(NodeBatches):
    """Batches whose rows lie in a table of some nodes."""

    def nodes_read(self, made: Any) -> Tensor:
        """The nodes whose rows a batch reads, with the model or before it."""
        return made.plan.nodes_read(made) if isinstance(made, PreparedBatch) else super().nodes_read(made)

    def with_rows(self, made: Any, table: Tensor, place: Tensor) -> Any:
        """A batch with its rows; the model of a compiled one reads them in the table."""
        if isinstance(made, PreparedBatch):
            return made.plan.over(made, table, place)
        made.x = self._tables().rows_in(made.n_id, table, place)
        return made


class DiskBatches(FromDisk):
    """Trains a model on sampled neighbourhoods of nodes whose features are on disk.

    Args:
        setup: With a store as ``ds``, a name as ``sampler`` and no ``macro``.

    Attributes:
        inference: What evaluates.

    Raises: ConfigError for options that do not fit, MemoryBudgetError for too little memory.
    """

    ds: StoredGraph

    def __init__(self, setup: Setup) -> None:
        model, ds, drawn, memory = setup.model, setup.ds, setup.drawn, setup.memory
        assert isinstance(ds, StoredGraph)  # by which the kind was chosen
        sampler = drawn.sampler
        if drawn.macro is not None:
            raise ConfigError("macro cannot be combined with mode=mini on a store; mode=macro has groups of parts")
        check_typed_model(model, ds.store)
        if not isinstance(sampler, str) or sampler not in _SAMPLERS:
            name = sampler if isinstance(sampler, str) else type(sampler).__name__
            raise ConfigError(f"sampler: expected one of {', '.join(_SAMPLERS)} with a store, got {name}")
        check_mapped(ds, memory)
        budget = memory_bytes(memory)
        evaluation_bytes = budget // EVALUATION
        if memory is not None and not ds.mapped:
            fanouts, target = fitting_fanouts(model, drawn.fanouts), setup.target or target_of(ds)
            check_rows(model, ds, fanouts, drawn.batch_size, budget, target, sampler == "neighbor")
        self._disk = tables_of(ds, budget, evaluation_bytes, ds.mapped)
        self.inference = PartInference(model, ds.store, evaluation_bytes, 1, setup.scratch)
        super().__init__(setup)

    def _load(self) -> tuple[AnyLoader, MacroRun | None]:
        """A loader over the training rows."""
        batch_size, seed, prepare = self.drawn.batch_size, self.seed, self.drawn.prepare
        check_choice("prepare", prepare, PREPARE)
        seeds = torch.unique(self.rows["train"], sorted=True)
        subtasks = Subtasks(torch.get_num_threads()) if prepare == "subtasks" else None
        drawn: dict[str, Any] = {"sampler": self.sampler, "prepare": subtasks}
        return DiskNodeBatches(self._disk, seeds, None, batch_size, True, seed, **drawn), None

    def _table(self) -> Features:
        """One row in the place of all: what is compiled follows from the shape alone."""
        return torch.zeros(1, self.ds.store.num_features).expand(self.ds.num_nodes, -1)

    def prepare(self) -> None:
        """Compiles the stages of a batch, where that is possible; formats are those of memory without a trial."""
        loader = self.loader
        assert isinstance(loader, DiskNodeBatches)  # as loaded
        former = loader.plan
        super().prepare()
        loader.trial = None
        if loader.plan is not None and not loader.plan.reads_rows_alone:
            loader.plan = None
        if loader.plan is not former:
            loader.forget_ahead()

    def resize(self, memory: int, pieces: bool = False) -> None:
        """Rows of features and batches drawn ahead take so many bytes from now on; no batch changes.

        ``pieces``: products read rows a piece at a time; of types that have columns of their own.
        """
        former, self._disk = self.loader, replace(self._disk, memory=memory, pieces=pieces)
        assert isinstance(former, DiskNodeBatches)  # as loaded
        made, self.macro = self._load()
        assert isinstance(made, DiskNodeBatches)  # as loaded
        self.loader, made.plan = made, former.plan

    @property
    def row_memory(self) -> int:
        """Bytes for rows of features and batches drawn ahead."""
        return self._disk.memory

    @property
    def takes_pieces(self) -> bool:
        """Whether products can read rows a piece at a time."""
        return self._disk.flat is not None and not self._disk.mapped

    def use(self, edge_data: EdgeData) -> None:
        """As for data in memory. Raises: ConfigError for weights and a model that is no stack of layers."""
        if edge_data.inputs is not None and not isinstance(self.model, Stack):
            kind = type(self.model).__name__
            raise ConfigError(
                f"edge_weight of a store cannot be combined with {kind}, which is no stack of layers; use "
                "edge_data='ignore'"
            )
        super().use(edge_data.with_weight(self.ds.edge_weight))
        self.inference.weighted = self.edge_data.weight is not None

    def evaluate(self) -> Evaluation:
        """Score of every split and the validation loss, from all in-edges where the model is a stack of layers."""
        self.let_gradients_go()
        with trimmed(self.budget):
            ids, outputs = self._scored(), self.outputs()
        rows = {part: torch.searchsorted(ids, self.ds.row_ids[nodes]) for part, nodes in self.rows.items()}
        y = self.ds.y.new_empty((len(ids), *self.ds.y.shape[1:]))
        for part, nodes in self.rows.items():
            y[rows[part]] = self.ds.y[nodes]
        return evaluation(self.target, outputs, y, rows, self.metrics)

    def outputs(self) -> Tensor:
        """Outputs of the nodes of the splits, by their number in the store."""
        return self.inference.outputs(self._scored().numpy())

    def _scored(self) -> Tensor:
        """Ids in the store of the nodes of the splits, ascending."""
        found: Tensor = torch.unique(self.ds.row_ids[torch.cat(list(self.rows.values()))], sorted=True)
        return found

    def logits(self) -> Tensor:
        """Outputs of all nodes in the order of the source, shape (N, C)."""
        self.let_gradients_go()
        if self.budget is not None:
            self.budget.check_room(predicted_bytes(self.ds))
        found = self.inference.outputs(np.arange(self.ds.num_nodes))
        return found[self.ds.row_ids]


def check_typed_model(model: nn.Module, store: Store) -> None:
    """Models of types go with typed stores alone, and others with others. Raises: ConfigError."""
    kind = type(model).__name__
    if store.types is None and isinstance(model, TypedStack):
        raise ConfigError(f"model: expected one without types for a store without types, got {kind}")
    if store.types is not None and not isinstance(model, TypedStack):
        raise ConfigError(f"model: expected gw.nn.RGCN or HGT for a store of a typed graph, got {kind}")
    if isinstance(model, TypedStack) and isinstance(model.layers[0], RelationalEmbedding):
        raise ConfigError(
            "RGCN without in_features cannot be combined with a store; in_features=store.num_features learns a row "
            "for every node of a type without features"
        )


def check_mapped(ds: StoredGraph, memory: int | str | None) -> None:
    """Raises: ConfigError for a budget in mode "mapped"."""
    if ds.mapped and memory is not None:
        raise ConfigError(f"mode=mapped cannot be combined with memory={memory}; the system keeps the pages of maps")
