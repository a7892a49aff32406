"""Forward passes whose halo nodes take earlier hidden rows.

Comes in: a model of stacked layers, batches of parts with halos. Goes out: rows of the seeds; fresh hidden rows of all
nodes that were computed go into the table. Called by the mini-batch trainer. Source: Joestar, section 5.2.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.loader.multistage import MacroBatch, NestedBatch
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.stack import Stack
from graphweft.sample.multistage import Path
from graphweft.storage.feature import Features
from graphweft.storage.history import HistoryTable
from graphweft.train.inference import infer


class Historical:
    """A model that runs on batches with halos.

    The rows of a macro-batch's halo are read from the table when its first batch comes, a deterministic point: nothing
    writes them while the macro-batch is in use, for a halo node is not in its parts. Only rows that a batch may touch
    are read where batches were drawn ahead of time. The input features of halo nodes are used as they are.

    Args:
        model: A stack of layers, without batch norm, whose statistics would see rows that are replaced.
        graph: The whole graph.

    Raises: ConfigError for another model.
    """

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        if not isinstance(model, Stack):
            raise ConfigError(f"macro: expected a model of stacked layers for parts, got {type(model).__name__}")
        if any(isinstance(norm, nn.BatchNorm1d) for norm in model.norms):
            raise ConfigError("macro: expected layer norm or none for parts, got batch norm")
        self.model, self.graph = model, graph
        self.edges: EdgeInputs | None = None  # weights and features of edges
        self._table: HistoryTable | None = None
        self._macro: MacroBatch | None = None
        self._ids = torch.empty(0, dtype=torch.int64)
        self._rows: list[Tensor] = []
        self.ages: list[float] = []
        self.counted: Path | None = None  # the macro-batch whose ages came last; one that is taken up again counts once

    @property
    def table(self) -> HistoryTable:
        """The table. Raises: ConfigError before :meth:`refresh`."""
        if self._table is None:
            raise ConfigError("history: expected a refresh before the first batch")
        return self._table

    @property
    def is_ready(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    def refresh(self, x: Features) -> None:
        """Writes the hidden rows of all nodes, from all of their neighbours, in evaluation mode."""
        every = torch.arange(self.graph.num_nodes)

        def keep(layer: int, rows: Tensor) -> None:
            if layer < len(self.model.layers) - 1:
                self._sized(rows.shape[1]).push(layer, every, rows)

        infer(self.model, self.graph, x, each=keep, edges=self.edges)
        self.forget()

    def take_ages(self) -> list[float]:
        """Mean ages of the rows that macro-batches read since the last call, in steps."""
        ages, self.ages, self.counted = self.ages, [], None
        return ages

    def begin_anew(self) -> None:
        """As before the first :meth:`refresh`."""
        self._table, self.counted = None, None
        self.ages.clear()
        self.forget()

    def forget(self) -> None:
        """Lets go of the macro-batch's rows."""
        self._macro, self._rows = None, []

    def __call__(self, batch: NestedBatch, write: bool = True) -> Tensor:
        """Rows of the batch's seeds; what was computed on the way goes into the table if it is to be written."""
        blocks, x, last = batch.blocks, batch.x, len(batch.blocks) - 1
        if batch.macro is not self._macro:
            self._stage(batch)
        assert x is not None
        for layer, block in enumerate(blocks):
            x = self.model.run_layer(layer, block, x, self.edges)
            if layer == last:
                break
            assert isinstance(x, Tensor)
            nodes = batch.n_id[: block.num_dst]
            mask = torch.zeros(block.num_dst, dtype=torch.bool) if batch.halo is None else batch.halo[: block.num_dst]
            if write:
                self.table.push(layer, nodes[~mask], x[~mask])
            halo = mask.nonzero().reshape(-1)
            if halo.numel():
                known = torch.searchsorted(self._ids, nodes[halo])
                x = x.index_copy(0, halo, torch.index_select(self._rows[layer], 0, known))
        assert isinstance(x, Tensor)
        return x

    def state_dict(self) -> dict[str, Any]:
        """The table's state."""
        return {} if self._table is None else self._table.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`. Raises: CheckpointError."""
        if not state:
            self._table = None
            return
        if self._table is None:
            self._table = HistoryTable(self.graph.num_nodes, [rows.shape[1] for rows in state["rows"]])
        self._table.load_state_dict(state)
        self.forget()

    def _stage(self, batch: NestedBatch) -> None:
        """Reads the rows of a macro-batch's halo."""
        macro = batch.macro
        assert macro is not None
        level, self._macro = macro.level, macro
        if level.halo is None or level.n_id is None:
            self._ids, self._rows = torch.empty(0, dtype=torch.int64), []
            return
        wanted = level.halo if macro.inner is None else level.halo & macro.inner
        self._ids = torch.sort(level.n_id[wanted]).values
        layers = range(len(self.model.layers) - 1)
        self._rows = [self.table.pull(layer, self._ids) for layer in layers]
        if self._ids.numel() and batch.path != self.counted:
            self.counted = batch.path
            self.ages += [float(self.table.age(layer, self._ids).double().mean()) for layer in layers]

    def _sized(self, width: int) -> HistoryTable:
        """The table with room for the layer; layers come in order the first time."""
        if self._table is None:
            widths = [width] * (len(self.model.layers) - 1)
            self._table = HistoryTable(self.graph.num_nodes, widths)
        return self._table
