"""What the first layer puts together of all in-edges, found once and kept in a file, for groups that leave edges out.

Comes in: a model, parts, a budget. Goes out: a source whose rows have it beside a node's features. Called by mode
"macro" with ``first:whole``. In the first layer of GCN, SAGE and GIN nothing that learns stands before the sum over
neighbours, so the sum is the same in every epoch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from graphweft._errors import ConfigError, DataError, MemoryBudgetError
from graphweft.loader.parts import PartSource
from graphweft.loader.whole_first import WithJoint
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.storage.memory_size import shown_bytes
from graphweft.storage.store import Store
from graphweft.train.hub_rows import degrees_of, is_reducible
from graphweft.train.node_set import NodeSet
from graphweft.train.row_tables import FeatureTable
from graphweft.train.scratch import NoRoomError
from graphweft.train.sliced_layer import planned, reduced

_PIECE = 8 << 20  # bytes of rows that are read at a time of data in memory
_TRIES = 40  # doublings of a budget, to name one that would do
_FINDING = 2  # one in so many bytes of the budget is for sums, before there are groups


def check_first(model: nn.Module, source: PartSource) -> Stack:
    """The model, whose first layer can be computed from joint rows. Raises: ConfigError."""
    if not isinstance(model, Stack) or isinstance(model, TypedStack) or not _is_summed(model):
        what = f"{type(model).__name__}, whose first layer of several is no GCN, SAGE or GIN"
        raise ConfigError(f"macro: first=whole cannot be combined with {what}")
    if not source.num_features:
        raise ConfigError("macro: first=whole cannot be combined with data without features")
    return model


def _is_summed(model: Stack) -> bool:
    """Whether the first of several layers puts rows of neighbours together before anything else."""
    return not model.runs_apart() and len(model.layers) > 1 and is_reducible(model.layers[0])


def with_joint_rows(model: Stack, source: PartSource, memory: int, folder: Path | None) -> WithJoint:
    """The parts with what the first layer puts together of all in-edges.

    ``memory``: bytes that the run may take. ``folder``: of the file.

    Raises: DataError for a full disk, MemoryBudgetError for too little memory.
    """
    nodes, edges = int(source.bounds[-1]), int(source.edge_counts.sum())
    table = FeatureTable(source, True, source.piece if isinstance(source, Store) else _PIECE)
    plans = (planned(table, nodes, edges, (memory << n) // _FINDING) for n in range(_TRIES))
    plan = next(plans)
    if plan is None:
        least = memory << next((n for n, larger in enumerate(plans, 1) if larger is not None), _TRIES)
        told = f"expected at least {shown_bytes(least)} for sums over all in-edges, got {shown_bytes(memory)}"
        raise MemoryBudgetError(f"memory: {told}", least)
    degrees, every = degrees_of(source), NodeSet(np.ones(nodes, np.bool_))
    try:
        found = reduced(model.layers[0], table, every, source, degrees, plan, folder)
    except NoRoomError as failure:
        raise DataError(f"first: expected room on the disk for sums, got: {failure.__cause__}") from None
    return WithJoint(source, found, degrees)


__all__ = ["check_first", "with_joint_rows"]
