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
from graphweft.nn.attention import AttentionConv
from graphweft.nn.cgat import CGATConv
from graphweft.nn.ngcf import NGCFConv
from graphweft.nn.stack import Stack
from graphweft.runtime.footprint import whole_pages
from graphweft.storage.feature import SparseFeatures
from graphweft.train.batch_estimate import batch_estimate
from graphweft.train.full_batch import is_plain
from graphweft.train.needs import RECORDED, Needs, handed_bytes
from graphweft.train.part_inference import out_width
from graphweft.train.samplers import fitting_fanouts
from graphweft.train.setup import Drawn

_REAL = 4
_STRUCTURE = 6  # bytes of an edge: the graph turned around, and what making it takes
_COMPILED = 5 << 19  # bytes that programs take, in processes that have compiled nothing before
_SCORES = 12  # of an edge and head: scores, what the softmax makes of them, and a gradient
# Bytes of an edge of the graph that attention reads in both directions, of one into a training node, which the last
# layer reads, and of one of the graph with loops; its kernels keep nothing of an edge, but scores that are compared.
_TURNED, _LAST, _LOOPS = 8, 12, 8
_ENDS = 32  # of an edge: both ends, its number and what is read of it, as plain torch takes them
_GAPS = 2  # times the widest rows: steps with dropout are not recorded, and regions do not fit the gaps of others


def sized_needs(base: Needs, model: nn.Module, ds: Dataset, mode: str, drawn: Drawn) -> Needs:
    """What training takes; of mode "auto" the way that takes less.

    Args:
        base: The accounts that every run in memory has.
        model: The model.
        ds: The data.
        mode: "full", "mini" or "auto".
        drawn: How batches are made.
    """
    base = replace(base, program=base.program + (_COMPILED if is_plain(model) else RECORDED), is_close=is_plain(model))
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
    read, features = _sizes_of(model, ds).read, times_held(model)
    return batch_estimate(model, read, fanouts, seeds, ds.num_nodes, ds.num_edges, features=features).step


def times_held(model: nn.Module) -> tuple[int, int]:
    """Times that a step holds rows of features, as :func:`batch_estimate` takes them.

    Attention multiplies them before it sums. Products of a node's row with its neighbours' are summed beside that sum,
    and so is the gradient of one of the two.
    """
    if not is_plain(model):
        return 2, 1
    attends = any(isinstance(module, AttentionConv) for module in model.modules())
    return 0 if attends else 3 if _multiplies(model) else 1, int(_drops(model))


@dataclass(frozen=True)
class _Sizes:
    """What is read off a model and its features.

    Attributes:
        row: Bytes of a node's features, as batches have them.
        dense: Bytes of dense rows that are made of sparse features.
        read: Columns of features that layers aggregate or multiply row by row; 0 where they stay sparse.
        kept: Columns of all nodes that a step has at once.
        evaluated: Columns of all nodes that an evaluation has at once.
        edge: Bytes of an edge that attention keeps and that a step has at once; 0: there is none.
    """

    row: float
    dense: int
    read: int
    kept: int
    evaluated: int
    edge: int


def _sizes_of(model: nn.Module, ds: Dataset) -> _Sizes:
    """An evaluation has what two layers make at once, or what one makes before and after it is summed over edges.

    Of layers that are not known as such it is what their weights read and make; of a step with gradients.
    """
    nodes, width, x = ds.num_nodes, ds.num_features, ds.x
    row, dense, read = float(_REAL * width), 0, width
    if isinstance(x, SparseFeatures) and getattr(model, "takes_sparse", False):
        row, read = (x.values.nbytes + x.indices.nbytes + x.indptr.nbytes) / max(nodes, 1), 0
    elif isinstance(x, SparseFeatures):
        dense = _REAL * nodes * width
    elif isinstance(x, Tensor):
        row = x.nbytes / max(nodes, 1)
    edge = _edge_bytes(model, ds.train_idx.numel() / max(nodes, 1))
    if isinstance(model, Stack):
        made = [out_width(layer) for layer in model.layers]
        evaluated = max(max(a, b) + b for a, b in itertools.pairwise([0, *made]))
        evaluated = max(evaluated, 2 * read) if _multiplies(model) else evaluated
        return _Sizes(row, dense, read, _columns(model, read, made), evaluated, edge)
    weights = sum(p.shape[0] + p.shape[-1] for p in model.parameters() if p.dim() >= 2)
    kept = max(weights - width, ds.num_classes)
    if is_plain(model):  # which frees what no gradient reads
        gaps = (_GAPS if _drops(model) else 0) * out_width(model)
        dropped = read if _drops(model) else 0
        columns = kept + 2 * ds.num_classes + out_width(model) + dropped + gaps
        return _Sizes(row, dense, read, columns, kept, edge)
    return _Sizes(row, dense, read, 2 * kept, kept, edge)


def _columns(model: Stack, read: int, made: Sequence[int]) -> int:
    """Of all nodes, that a step has at once: what layers read and, with its gradient, what they make; with dropout what
    that leaves of hidden rows.

    Attention multiplies first: it has the operands of its scores, with gradients of all of them, and of what it reads
    only what dropout leaves. Products of a node's rows with its neighbours' are there beside both.
    """
    hidden, drops = sum(made[:-1]), _drops(model)
    if _multiplies(model):
        return max(4 * read, 2 * read + 5 * hidden + made[-1])
    if not any(isinstance(layer, AttentionConv) and not isinstance(layer, CGATConv) for layer in model.layers):
        return read + hidden + 2 * sum(made) + (hidden + _GAPS * max(made) if drops else 0)
    columns = 2 * read + hidden if drops else 0
    for layer, width in zip(model.layers, made, strict=True):
        heads = _heads(layer)
        operands = sum(p.dim() == 2 and p.shape[0] > heads and p.shape[-1] == width for p in layer.parameters())
        columns += max(5, 3 + operands) * width + 4 * heads
    return columns


def _edge_bytes(model: nn.Module, trained: float) -> int:
    """Of an edge: the forms of the graph that attention reads, and what it keeps of its scores.

    ``trained``: the share of training nodes.
    """
    layers = [layer for layer in model.layers if isinstance(layer, AttentionConv)] if isinstance(model, Stack) else []
    heads = max(map(_heads, model.modules()), default=0)
    if heads and not layers:
        return _STRUCTURE + _SCORES * heads
    if not layers:  # what is propagated reads all rows, in both directions
        return 2 * _STRUCTURE if is_plain(model) and not isinstance(model, Stack) else 0
    return _TURNED + round(_LAST * trained) + _looped_bytes(model) + _compared_bytes(model)


def _looped_bytes(model: nn.Module) -> int:
    """Of an edge of the graph with loops, which is made for attention."""
    layers = (module for module in model.modules() if isinstance(module, AttentionConv))
    return _LOOPS if any(layer.add_self_loops for layer in layers) else 0


def _compared_bytes(model: nn.Module) -> int:
    """Of an edge: scores that are compared with those of other edges, which a step keeps of all layers."""
    heads = [_heads(module) for module in model.modules() if isinstance(module, CGATConv)]
    return _REAL * (2 * sum(heads) + (2 if _drops(model) else 1) * max(heads, default=0))


def _walked(model: nn.Module) -> int:
    """Of an edge in an evaluation: scores that are compared, or ends while plain torch finds degrees of sources."""
    heads = max((_heads(module) for module in model.modules() if isinstance(module, CGATConv)), default=0)
    return _ENDS if _multiplies(model) else _REAL * (heads + 2) if heads else 0


def _multiplies(model: nn.Module) -> bool:
    """Whether layers multiply a node's row by those of its neighbours."""
    return any(isinstance(module, NGCFConv) for module in model.modules())


def _paged(nbytes: int) -> int:
    """Bytes of pages for regions of so many, which do not fill all of them."""
    pages = whole_pages(nbytes)
    return pages + (POOL.page if pages > POOL.page else 0)


def _heads(module: nn.Module) -> int:
    return int(getattr(module, "heads", 0))


def _drops(model: nn.Module) -> bool:
    """Whether training drops some of what layers read."""
    return float(getattr(model, "dropout", 0.0)) > 0


def _full(base: Needs, model: nn.Module, ds: Dataset, sizes: _Sizes) -> Needs:
    """Sparse features are there once more, turned around for the gradient of their weight."""
    turned = round(sizes.row * ds.num_nodes) if isinstance(ds.x, SparseFeatures) and not sizes.dense else 0
    turns = is_plain(model) or not ds.graph.is_symmetric  # what is recorded reads the graph given for its reverse
    edge = sizes.edge or (_STRUCTURE if turns else 0)
    structure = base.structure + turned + ds.num_edges * edge
    step = _paged(_REAL * ds.num_nodes * sizes.kept)
    if _multiplies(model):
        step = max(step, ds.num_edges * _ENDS)  # degrees of sources, before the first one
    return replace(base, structure=structure, step=step, outputs=handed_bytes(ds))


def _mini(base: Needs, model: nn.Module, ds: Dataset, drawn: Drawn, sizes: _Sizes) -> Needs:
    """Each batch is made when it is due; macro-batches are rougher, as what they take depends on their draws."""
    nodes, edges = ds.num_nodes, ds.num_edges
    known = drawn.sampler == "neighbor"
    hops = fitting_fanouts(model, drawn.fanouts if known else None)
    seeds, fanouts = min(drawn.batch_size, ds.train_idx.numel()), hops if known else [-1] * len(hops)
    is_known = is_plain(model) and drawn.macro is None
    held = times_held(model) if is_known else (2, 1)
    found = batch_estimate(model, sizes.read, fanouts, seeds, nodes, edges, features=held)
    rows = round(found.rows * sizes.row)
    # of macro-batches each has the rows of nearly all nodes where its parts are large or its draws are wide
    data = base.data + (0 if drawn.macro is None else KEPT * round(nodes * sizes.row))
    step = _paged(found.step + (found.edges + found.rows) * _compared_bytes(model))  # with loops
    structure = base.structure + edges * _looped_bytes(model)
    step += 0 if is_known else rows
    made = replace(base, data=data, structure=structure, batches=found.ids + rows, step=step, is_close=is_known)
    evaluation = POOL.page + _REAL * nodes * sizes.evaluated
    return replace(made, evaluation=max(evaluation, edges * _walked(model)), trims=True)


__all__ = ["drawn_bytes", "sized_needs", "step_bytes", "times_held"]
