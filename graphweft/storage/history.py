"""Historical embeddings: the hidden rows that nodes had when they were last computed, and how old those are.

Comes in: rows of hidden layers from forward passes. Goes out: rows of nodes that a batch does not compute. Called by
:mod:`graphweft.train.historical`. The table lies in the host's memory, one row a node and hidden layer. Sources:
Joestar, section 5.2.2; GNNAutoScale (Fey et al., ICML 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphweft._checks import check_ids, check_width
from graphweft._errors import CheckpointError, ConfigError
from graphweft._memory import empty
from graphweft.storage.gather import gather_rows


class HistoryTable:
    """Hidden rows of all nodes, one table a hidden layer.

    Time is counted in steps of training, by :meth:`tick`. A row that was never written is zero and as old as time.

    Attributes:
        step: Steps so far.
        bytes_pulled: Read so far.
        bytes_pushed: Written so far.

    Args:
        nodes: Nodes of the graph.
        widths: Width of every hidden layer.

    Raises: ConfigError for sizes below 1.

    Example:
        >>> table = HistoryTable(4, [2])
        >>> table.push(0, torch.tensor([1]), torch.ones(1, 2))
        >>> table.tick()
        >>> table.pull(0, torch.tensor([1, 2])).tolist(), table.age(0, torch.tensor([1])).tolist()
        ([[1.0, 1.0], [0.0, 0.0]], [1])
    """

    def __init__(self, nodes: int, widths: Sequence[int]) -> None:
        if nodes < 1 or any(width < 1 for width in widths):
            raise ConfigError(f"HistoryTable: expected nodes and widths >= 1, got {nodes} and {list(widths)}")
        self.nodes, self.widths = nodes, tuple(widths)
        self._rows = [empty((nodes, width), torch.float32).zero_() for width in widths]
        self._written = [torch.full((nodes,), -1, dtype=torch.int64) for _ in widths]
        self.step = 0
        self.bytes_pulled = self.bytes_pushed = 0

    def pull(self, layer: int, ids: Tensor) -> Tensor:
        """Rows of hidden layer ``layer``, (n, width). Raises: IndexRangeError."""
        rows = gather_rows(self._rows[layer], ids)
        assert isinstance(rows, Tensor)
        self.bytes_pulled += rows.numel() * rows.element_size()
        return rows

    def push(self, layer: int, ids: Tensor, rows: Tensor) -> None:
        """Takes fresh rows of distinct nodes. Raises: IndexRangeError, ShapeError."""
        check_ids("HistoryTable.push", ids, self.nodes)
        check_width("HistoryTable.push", rows, self.widths[layer])
        self._rows[layer].index_copy_(0, ids, rows.detach().float())
        self._written[layer][ids] = self.step
        self.bytes_pushed += rows.numel() * 4

    def tick(self) -> None:
        """One step of training is over."""
        self.step += 1

    def age(self, layer: int, ids: Tensor) -> Tensor:
        """int64 steps since each row was written; for one that never was, one more than there have been."""
        return self.step - self._written[layer][ids]

    def state_dict(self) -> dict[str, Any]:
        """Rows, when they were written, and the time."""
        return {"step": self.step, "rows": list(self._rows), "written": list(self._written)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`. Raises: CheckpointError for tables of other sizes."""
        shapes = [tuple(rows.shape) for rows in state["rows"]]
        if shapes != [(self.nodes, width) for width in self.widths]:
            raise CheckpointError(
                f"history: expected tables of {self.nodes} rows and widths {self.widths}, got {shapes}"
            )
        for mine, theirs in zip((*self._rows, *self._written), (*state["rows"], *state["written"]), strict=True):
            mine.copy_(theirs)
        self.step = int(state["step"])
