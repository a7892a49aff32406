"""Decisions that rest on measured times, made once and kept, so that the same run gives the same bits again.

Comes in: a compiled model with its data. Goes out: the layout of the features and a fitted cost model, from which every
order of computation follows. Called by the trainer before its first epoch. Times differ from process to process and
with the number of threads; a decision that followed them each time would change the rounding of sums. So the first
process that decides writes it down in the cache folder, later ones read it, and a checkpoint carries it to other
machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from graphweft import _budget, _config
from graphweft._decisions import decided, known
from graphweft._native import LEVEL
from graphweft.cost import CostModel
from graphweft.graph.graph import Graph
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.module import CompiledModule
from graphweft.runtime import calibrate
from graphweft.storage.feature import Features, SparseFeatures, is_dense, sparsity

_CLEARLY_DENSE, _CLEARLY_SPARSE = 0.5, 0.99  # bounds of every measured threshold
# Where both layouts multiply about as fast the dense one is the better: what is aggregated from it can be kept, in its
# own memory, while sparse rows are held twice.
_NEAR_TIE = 0.05


def settle_features(x: Features, may_measure: bool = True) -> Features:
    """``x`` in the layout that is faster on this machine; sparse features stay sparse.

    Shape: x (nodes, features). ``may_measure``: whether a machine that was never calibrated is, which takes some 40 MB;
    else, and within a budget that is in force, the usual threshold decides, and nothing is remembered.
    """
    if not is_dense(x) or x.numel() == 0:
        return x
    share = sparsity(x)
    if not _CLEARLY_DENSE <= share < _CLEARLY_SPARSE:
        return with_path(x, "sparse" if share >= _CLEARLY_SPARSE else "dense")

    def decide() -> str:
        if _config.current().calibrate and not calibrate.is_calibrated():
            calibrate.calibrate()
        margin = _NEAR_TIE if calibrate.is_calibrated() else 0.0
        return "sparse" if share >= min(calibrate.threshold() + margin, _CLEARLY_SPARSE) else "dense"

    may_measure = may_measure and _budget.room() is None
    is_known = may_measure or not _config.current().calibrate or calibrate.is_calibrated()
    if not is_known:
        return with_path(x, "sparse" if share >= calibrate.threshold() else "dense")
    path = remember(f"features {tuple(x.shape)} {share}", decide, lambda text: text in ("sparse", "dense"))
    return with_path(x, path)


def with_path(x: Features, path: str) -> Features:
    """``x`` stored for ``path``, "sparse" or "dense"; sparse features stay sparse."""
    return SparseFeatures.from_dense(x) if path == "sparse" and is_dense(x) else x


def settle_model(
    model: CompiledModule,
    graph: Graph,
    x: Features,
    rows: Tensor | None,
    first_step: Callable[[], object],
    edges: EdgeInputs | None = None,
) -> None:
    """Gives ``model`` the cost model that this machine settled on for it.

    ``first_step`` runs a training step without an update; it is measured where nothing is remembered.
    """
    if not _may_settle(model):
        return

    def decide() -> str:
        with _config.config(tune=True):
            first_step()
        found = model.function.cost_model
        return "" if found is None else found.to_json()

    text = remember(_question(model, graph, x, rows, edges), decide, _is_cost_model)
    if text:
        model.function.settle(CostModel.from_json(text))


def is_measured_first(
    model: CompiledModule, graph: Graph, x: Features, rows: Tensor | None, edges: EdgeInputs | None = None
) -> bool:
    """Whether :func:`settle_model` will measure a training step of ``model``: nothing is remembered of it."""
    if not _may_settle(model):
        return False
    return known(_name(_question(model, graph, x, rows, edges)), _is_cost_model) is None


def _may_settle(model: CompiledModule) -> bool:
    """Whether costs are still to decide how ``model`` is computed."""
    return model.function.cost_model is None and _config.current().opt_level >= 2 and not model.runs_apart()


def _question(model: CompiledModule, graph: Graph, x: Features, rows: Tensor | None, edges: EdgeInputs | None) -> str:
    """The run whose costs are remembered, in words."""
    entries = x.nnz if isinstance(x, SparseFeatures) else x.numel()
    program = model.program(graph, x, rows, edges)
    return f"costs {graph.num_src} {graph.num_dst} {graph.num_edges} {entries} {_count(rows)} {program}"


def remember(what: str, decide: Callable[[], str], valid: Callable[[str], bool]) -> str:
    """What was decided for ``what`` on this kind of processor; ``decide`` is called where nothing valid is known."""
    return decided(_name(what), decide, valid)


def _name(what: str) -> str:
    """Where the decision for ``what`` is kept."""
    facts = "|".join((calibrate.processor(), LEVEL, torch.__version__, what))
    return f"settled-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.txt"


def _is_cost_model(text: str) -> bool:
    try:
        CostModel.from_json(text)
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def _count(rows: Tensor | None) -> int:
    return -1 if rows is None else rows.numel()
