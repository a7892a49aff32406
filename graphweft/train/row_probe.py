"""Whether a model computes the row of a node from more than the nodes that edges lead from.

Comes in: a model, features and its inputs of edges. Goes out: nothing, or an error. Called by the ways to take a step
over ranks, where a process calls the model with some of the nodes: a mean over all rows, or a row that depends on the
number of its node, would be another one there, and nobody would see it. The model runs on a few rows.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._draws import keyed
from graphweft._errors import ConfigError
from graphweft.dist.batch_norm import batch_norms
from graphweft.dist.ranks import Ranks
from graphweft.graph.graph import Graph
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.gather import gather_rows
from graphweft.train.edge_data import EdgeData

_HALF = 6  # nodes of each of two rings without an edge between them
_FACTOR = 3.0  # of features in the other ring, so that a largest value is found there as well
_CLOSE = 1e-4  # relative: sums of a few rows in another order


def check_rows_apart(ranks: Ranks, model: nn.Module, x: Features, edges: EdgeData) -> None:
    """All ranks call it.

    Raises: ConfigError on every rank for a model whose rows are not those that several ranks would compute.
    """
    for said in ranks.texts(_problem(model, x, edges)):
        if said:
            raise ConfigError(
                f"{type(model).__name__}: {said} cannot be combined with ranks={ranks.size}, "
                "where a process calls the model with some of the nodes; use one rank"
            )


def _problem(model: nn.Module, x: Features, edges: EdgeData) -> str:
    """The first thing that is wrong; empty where nothing is, or the model does not run on a few rows."""
    if x.shape[0] < 2 * _HALF:
        return ""
    try:
        return _found(copy.deepcopy(model), (_rows(x, 0), _rows(x, _HALF)), edges)  # it may keep what it first computes
    except Exception:  # its own call says why
        return ""


@torch.no_grad()
def _found(model: nn.Module, rows: tuple[Features, Features], edges: EdgeData) -> str:
    """As :func:`_problem`, by a model that nobody else has."""
    for norm in batch_norms(model):  # whose statistics are shared
        norm.__dict__["forward"] = _same
    run = _Run(model, edges)
    for trains in (True, False):
        model.train(trains)
        alone, other = run(rows[0], rows[1]), run(rows[0], _other(rows[1]))
        if not _is_close(alone[:_HALF], other[:_HALF]):
            return "a value over the rows of all nodes"
    if not _is_close(alone, run(*rows, seed=1)):  # it draws
        return ""
    if not _is_close(alone, run(*reversed(rows)).roll(_HALF, 0)):
        return "a row that depends on the number of its node"
    return (
        "" if _is_close(alone, run(*rows, rows[0])[: 2 * _HALF]) else "a row that depends on how many nodes there are"
    )


class _Run:
    """The model on two rings, and further nodes."""

    def __init__(self, model: nn.Module, edges: EdgeData) -> None:
        ring = torch.arange(_HALF)
        ends = torch.stack([torch.cat([ring, ring, ring]), torch.cat([ring.roll(1), ring.roll(-1), ring.roll(2)])])
        src, dst = torch.cat([ends, ends + _HALF], 1)
        self._model, self._ends = model, (src, dst)
        self._given = edges.of_subgraph(torch.zeros(src.numel(), dtype=torch.int64))

    def __call__(self, *rows: Features, seed: int = 0) -> Tensor:
        """Its rows for these features, those beyond the rings without an edge, with the draws of ``seed``."""
        table: Any
        if isinstance(rows[0], SparseFeatures):
            table = SparseFeatures.from_dense(torch.cat([part.to_dense() for part in rows]))
        else:
            table = torch.cat(rows)
        with keyed(seed):
            out: Tensor = self._model(Graph(*self._ends, num_nodes=table.shape[0]), table, **self._given)
        return out.detach()


def _rows(x: Features, first: int) -> Features:
    return gather_rows(x, torch.arange(first, first + _HALF))


def _other(rows: Features) -> Features:
    """Other numbers of the same kind."""
    if isinstance(rows, SparseFeatures):
        return gather_rows(rows, torch.tensor([0, *range(_HALF - 1)]))
    turned = rows.roll(1, 0)
    return turned * _FACTOR + 1 if rows.is_floating_point() else turned


def _is_close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, _CLOSE, _CLOSE * float(a.abs().max()), equal_nan=True)


def _same(x: Tensor) -> Tensor:
    return x
