"""The memory of a run from sizes alone, for budgets that leave no room to find out more.

Comes in: a model, its data and how batches are drawn. Goes out: bytes by account. Nothing is compiled, recorded or run,
so a refusal by these figures takes no memory; what is found by compiling is nearer to what a run takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.loader.multistage import KEPT
from graphweft.nn.stack import Stack
from graphweft.storage.feature import SparseFeatures
from graphweft.train.batch_estimate import batch_estimate
from graphweft.train.full_batch import is_plain
from graphweft.train.needs import RECORDED, Needs
from graphweft.train.part_inference import out_width
from graphweft.train.samplers import fitting_fanouts
from graphweft.train.setup import Drawn

_REAL = 4
_STRUCTURE = 6  # bytes of an edge: the graph turned around, and what making it takes
_COMPILED = 3 << 19  # bytes that programs take
_PAGES = 2  # of the pool, beyond what a step touches of them
_SCORES = 12  # of an edge and head: scores, what the softmax makes of them, and a gradient


def sized_needs(base: Needs, model: nn.Module, ds: Dataset, mode: str, drawn: Drawn) -> Needs:
    """What training takes; of mode "auto" the way that takes less.

    Args:
        base: The accounts that every run in memory has.
        model: The model.
        ds: The data.
        mode: "full", "mini" or "auto".
        drawn: How batches are made.
    """
    base = replace(base, program=base.program + (_COMPILED if is_plain(model) else RECORDED), is_close=False)
    sizes = _sizes_of(model, ds)
    base = replace(base, structure=sizes.dense)
    found = [_full(base, model, ds, sizes)] if mode != "mini" else []
    if mode != "full":
        found.append(_mini(base, model, ds, drawn, sizes))
    return min(found, key=lambda needs: needs.least)


def drawn_bytes(model: nn.Module, ds: Dataset, fanouts: Sequence[int], seeds: int) -> int:
    """Bytes of a batch of so many seeds, rows of features and ids, where draws are uniform: no node comes twice."""
    found = batch_estimate(model, 0, fanouts, seeds, ds.num_nodes, ds.num_edges)
    return found.ids + round(found.rows * _sizes_of(model, ds).row)


def step_bytes(model: nn.Module, ds: Dataset, fanouts: Sequence[int], seeds: int) -> int:
    """Bytes of a step on such a batch, beside it."""
    return batch_estimate(model, _sizes_of(model, ds).read, fanouts, seeds, ds.num_nodes, ds.num_edges).step


@dataclass(frozen=True)
class _Sizes:
    """What is read off a model and its features.

    Attributes:
        row: Bytes of a node's features, as batches have them.
        dense: Bytes of dense rows that are made of sparse features.
        read: Columns of features that layers aggregate or multiply row by row; 0 where they stay sparse.
        kept: Columns of all nodes that a step has at once.
        evaluated: Columns of all nodes that an evaluation has at once.
        heads: Of attention; 0: none.
    """

    row: float
    dense: int
    read: int
    kept: int
    evaluated: int
    heads: int


def _sizes_of(model: nn.Module, ds: Dataset) -> _Sizes:
    """Of a layer a step has what it reads and, with its gradient, what it makes; an evaluation what two layers make,
    or what one makes before and after it is summed over edges.

    Of layers that are not known as such it is what their weights read and make, with gradients.
    """
    nodes, width, x = ds.num_nodes, ds.num_features, ds.x
    row, dense, read = float(_REAL * width), 0, width
    if isinstance(x, SparseFeatures) and getattr(model, "takes_sparse", False):
        row, read = (x.values.nbytes + x.indices.nbytes + x.indptr.nbytes) / max(nodes, 1), 0
    elif isinstance(x, SparseFeatures):
        dense = _REAL * nodes * width
    elif isinstance(x, Tensor):
        row = x.nbytes / max(nodes, 1)
    heads = max((int(getattr(module, "heads", 0)) for module in model.modules()), default=0)
    if isinstance(model, Stack):
        made = [out_width(layer) for layer in model.layers]
        kept = read + sum(made[:-1]) + 2 * sum(made)
        return _Sizes(row, dense, read, kept, max(max(a, b) + b for a, b in itertools.pairwise([0, *made])), heads)
    weights = sum(p.shape[0] + p.shape[-1] for p in model.parameters() if p.dim() >= 2)
    kept = 2 * max(weights - width, ds.num_classes)
    return _Sizes(row, dense, read, kept, kept // 2, heads)


def _full(base: Needs, model: nn.Module, ds: Dataset, sizes: _Sizes) -> Needs:
    """Sparse features are there once more, turned around for the gradient of their weight."""
    turned = round(sizes.row * ds.num_nodes) if isinstance(ds.x, SparseFeatures) and not sizes.dense else 0
    turns = is_plain(model) or not ds.graph.is_symmetric  # what is recorded reads the graph given for its reverse
    edge = (_STRUCTURE if turns else 0) + _SCORES * sizes.heads
    structure = base.structure + turned + ds.num_edges * edge
    return replace(base, structure=structure, step=_PAGES * POOL.page + _REAL * ds.num_nodes * sizes.kept)


def _mini(base: Needs, model: nn.Module, ds: Dataset, drawn: Drawn, sizes: _Sizes) -> Needs:
    """The rows of two batches are there at once: one is made beside the step of another."""
    nodes, edges = ds.num_nodes, ds.num_edges
    known = drawn.sampler == "neighbor"
    hops = fitting_fanouts(model, drawn.fanouts if known else None)
    seeds, fanouts = min(drawn.batch_size, ds.train_idx.numel()), hops if known else [-1] * len(hops)
    found = batch_estimate(model, sizes.read, fanouts, seeds, nodes, edges)
    rows = round(found.rows * sizes.row)
    # of macro-batches each has the rows of nearly all nodes where its parts are large or its draws are wide
    data = base.data + (0 if drawn.macro is None else KEPT * round(nodes * sizes.row))
    made = replace(base, data=data, batches=found.ids + rows, step=POOL.page + found.step + rows)
    return replace(made, evaluation=POOL.page + _REAL * nodes * sizes.evaluated, trims=True)


__all__ = ["drawn_bytes", "sized_needs", "step_bytes"]
