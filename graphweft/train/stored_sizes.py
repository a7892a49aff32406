"""The memory of a run from a store by sizes and draws, before its structure, groups or rows are read.

Comes in: a model, a store, how batches are drawn, a budget. Goes out: bytes beside groups of parts, or an error that
names the least that would do. Called by the steps of mode "macro" and "mini" over a store before they are made; what
they take is measured afterwards (:mod:`graphweft.train.stored_needs`). Where uniform draws would refuse a run, those of
a batch are counted on the store.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from graphweft._distinct import Ids
from graphweft.data.stored import StoredDataset
from graphweft.loader.disk_feed import drawing_threads
from graphweft.loader.groups import group_bytes, part_bytes
from graphweft.loader.neighbours import BroughtSizes
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.storage.flat_rows import flat_rows_of
from graphweft.storage.piece_rows import least_piece_memory
from graphweft.storage.row_cache import least_memory
from graphweft.storage.store import Store
from graphweft.storage.stored_structure import structure_bytes
from graphweft.train.batch_estimate import batch_estimate
from graphweft.train.drawn_hops import Hop, counting_bytes, drawn_hops, inner_edges, some_of
from graphweft.train.full_batch import is_plain
from graphweft.train.link_task import MOST_SCORED, RANKED_AMONG
from graphweft.train.needs import Needs, refusal
from graphweft.train.needs_by_sizes import times_held
from graphweft.train.stored_evaluation import outputs_bytes, structure_of_part
from graphweft.train.target import Target
from graphweft.train.tiles import LEAST_WITHIN

_REAL, _ID = 4, 8
COPIES = 4  # of each parameter: two moments, the best and the last weights
SWING = 1.05  # batches differ in size
# threads that read and prepare, with their stacks and what their heaps keep of small blocks, 0.2 to 0.5 MB each, and
# the objects of the run, as was measured once steps were over: 0.7 to 2.7 MB together
THREADS = 6 << 18
SEED_BYTES = 48  # of a seed: orders of two epochs, places and numbers of its group
_WORKER = 6 << 20  # a thread's own heap, where batches are large enough to fill it
_PROGRAMS = 3 << 20  # what programs, their modules and the heap take, before it is known
_PLAN, _PLANS = 1 << 19, 3  # of a typed layer's plan, and how many there are: two of steps, one of evaluations
_UNASKED = Needs().unasked  # what a budget has to leave room for besides
_UNASKED_DRAWN = Needs(is_close=True).least  # where a batch was drawn: with trials of rewrites
_EVALUATES = 4 << 20  # what an evaluation takes before it is tried: pieces that are read, structure, numbers of nodes
_MET = 0.9  # times rows of uniform draws: those of a graph with communities or hubs meet more often
_LINK_BYTES = 60  # of an edge of a group beside it: the training graph, known pairs, edges to predict and their order
# Bytes of an edge while edges are held out, beside the structure: both ends, sorted pairs, places and what is kept; and
# what there is of any graph.
SPLITTING, _SPLITS = 100, 2 << 20
# Of an edge afterwards: the training graph and its edges' ids, and pairs to predict, both ends and their order.
_PAIR_BYTES = 54
_HELD_OUT = 0.11  # of the edges, of which a tenth is in the test by hash
_PAIR = 9  # bytes of a pair that is ranked: its destination, and a mark
_KEYED = 24  # bytes of an edge of a part that pairs are looked up in
_SOME_PAIRS = 4 << 20  # pairs that are looked up, multiplied and ranked at a time
_SHARED = 1.25  # times what sizes say of a batch, before one is drawn


def least_beside(
    model: nn.Module,
    ds: StoredDataset,
    fanouts: Sequence[int],
    batch_size: int,
    count: int,
    brought: BroughtSizes | None = None,
    is_drawn: bool = False,
) -> int:
    """Bytes of a run beside its groups of ``count`` parts.

    Args:
        model: The model.
        ds: The data.
        fanouts: Of the layers.
        batch_size: Seeds of a batch.
        count: Parts of a group.
        brought: What each part brings of others; None: nothing.
        is_drawn: Whether a batch of the largest group is drawn; sizes tell otherwise. Where nodes are brought it is
            drawn from all parts, and has no more nodes and edges than the group.
    """
    counts = [ids.numel() for ids in (ds.train_idx, ds.val_idx, ds.test_idx)]
    held = outputs_bytes(counts, ds) if isinstance(model, Stack) else 0
    # the next group is read once a batch of this one is done, where it has no other
    rows = ds.row_ids[torch.unique(ds.train_idx)].numpy()
    of = np.searchsorted(ds.store.bounds, rows, "right") - 1
    apart = int(np.sort(np.bincount(of, minlength=len(ds.store)))[-count:].sum()) <= batch_size
    hops, seeds = None, batch_size
    if is_drawn:
        parts = _largest_parts(ds.store, count).tolist()
        drawn = some_of(rows[np.isin(of, parts)], batch_size)
        hops, seeds = drawn_hops(ds.store, drawn, fanouts, parts if brought is None else None), len(drawn)
        if brought is not None:
            edges = int((ds.store.edge_counts + brought.entries)[parts].sum())
            nodes = int((np.diff(ds.store.bounds) + brought.nodes)[parts].sum())
            hops = [Hop(min(hop.edges, edges), min(hop.nodes, nodes)) for hop in hops]
    return _residents(ds) + _beside(model, ds.store, fanouts, seeds, count, held, apart, hops)


def least_beside_links(
    model: Stack, store: Store, fanouts: Sequence[int], batch_size: int, count: int, is_drawn: bool = False
) -> int:
    """As :func:`least_beside`, of link prediction with ``batch_size`` pairs and as many negatives."""
    nodes, edges = store.num_nodes, int(np.sort(store.edge_counts)[-count:].sum())
    held, scoring = link_outputs(model, store)
    fixed = 2 * _ID * nodes + _ID * len(store) ** 2 + _LINK_BYTES * edges
    hops, seeds = None, 4 * batch_size
    if is_drawn:
        parts = _largest_parts(store, count).tolist()
        inner = np.concatenate([np.arange(*store.bounds[part : part + 2]) for part in parts])
        negative = np.random.default_rng(2).choice(inner, 2 * batch_size)
        drawn = np.unique(np.concatenate([*inner_edges(store, batch_size, parts), negative]))
        hops, seeds = drawn_hops(store, drawn, fanouts, parts), len(drawn)
    return fixed + _beside(model, store, fanouts, seeds, count, max(held, scoring), hops=hops)


def link_outputs(model: Stack, store: Store, whole: bool = False, split: Any = None) -> tuple[int, int]:
    """Bytes of embeddings of all nodes with what numbers them; and, once they are there, of scoring pairs.

    As many destinations of each held-out edge as are ranked are drawn together, and looked up part by part, unless the
    ``whole`` structure is in memory. ``split``: the edges that are held out, where they are known.
    """
    rows, pairs = _REAL * model.out_features * store.num_nodes, _SOME_PAIRS
    if not whole:
        edges = int(_HELD_OUT * store.num_edges) if split is None else max(split.val.shape[1], split.test.shape[1])
        pairs += _PAIR * RANKED_AMONG * min(MOST_SCORED, edges) + _KEYED * int(store.edge_counts.max(initial=0))
    return rows + (2 * _ID + _REAL) * store.num_nodes, rows + max(rows, pairs)


def _largest_parts(store: Store, count: int) -> Ids:
    """Numbers of the largest parts in a group."""
    return np.argsort(-part_bytes(store), kind="stable")[:count]


def _beside(
    model: nn.Module,
    store: Store,
    fanouts: Sequence[int],
    seeds: int,
    count: int,
    held: int,
    apart: bool = False,
    hops: list[Hop] | None = None,
) -> int:
    """What a step or an evaluation takes that holds so many bytes, with programs and the model.

    ``apart``: no group is read while a batch is trained on, which takes what reading has given back.
    """
    order = _largest_parts(store, count)
    nodes = int(np.diff(store.bounds)[order].sum())
    edges = int(store.edge_counts[order].sum())
    weights = sum(p.nbytes for p in model.parameters())
    # a step of typed layers is told too low by its rows: several parts are tried where all columns of the model fit,
    # which are one more for each node of a type without features
    width = store.row_width if count == 1 else store.num_features
    found = batch_estimate(model, width, fanouts, min(seeds, nodes), nodes, edges, _relations_in(store), hops=hops)
    batch = int((_SHARED if hops is None else SWING) * (found.step + found.rows * _REAL * width))
    # an evaluation takes what groups have given back
    groups = group_bytes(store, count, 0)
    batch -= groups - int(part_bytes(store, 0)[order].sum()) if apart else 0
    return (
        COPIES * weights
        + _programs_told(model)
        + THREADS
        + (_UNASKED if hops is None else _UNASKED_DRAWN)
        + max(batch, 0, _EVALUATES + structure_of_part(store) + held - groups)
    )


def _programs_told(model: nn.Module) -> int:
    """Bytes of programs, before it is known."""
    return _PROGRAMS // 2 + _PLANS * _PLAN * len(model.layers) if isinstance(model, TypedStack) else _PROGRAMS


def _relations_in(store: Store) -> int:
    """The most relations that lead into a type of nodes; 1 without types."""
    return 1 if store.types is None else max(Counter(dst for _, _, dst in store.types.relations).values(), default=1)


def least_told(estimated: int) -> int:
    """The budget that a refusal names by a batch that is drawn, with room for another that is measured."""
    return Needs(program=estimated - _UNASKED_DRAWN, measured=True, is_close=True).least


def _residents(ds: StoredDataset) -> int:
    """Bytes of splits, labels, and orders of epochs."""
    label = ds.y.element_size() * (ds.y.shape[1] if ds.y.dim() == 2 else 1)
    return len(ds.y) * (2 * label + 3 * _ID) + ds.train_idx.numel() * SEED_BYTES


def check_rows(
    model: nn.Module,
    ds: StoredDataset,
    fanouts: Sequence[int],
    batch_size: int,
    budget: int,
    target: Target,
    is_drawn: bool = True,
) -> None:
    """Structure, labels and a batch with its rows fit, or finding out what they take does, before they are read.

    Args:
        model: The model.
        ds: The data.
        fanouts: Of the layers.
        batch_size: Seeds of a batch.
        budget: Bytes that may be taken.
        target: What scores outputs.
        is_drawn: Whether neighbours are drawn node by node, which may be compiled with the model.

    Raises: MemoryBudgetError.
    """
    there = is_drawn and _reads_rows_there(model, ds)
    evaluation, count = _evaluation_told(ds, target), min(batch_size, ds.train_idx.numel())

    def told(hops: list[Hop] | None) -> tuple[Needs, Needs]:
        return _of_rows(model, ds, fanouts, count, evaluation, not there, hops)

    def counted() -> list[Hop]:
        return drawn_hops(ds.store, some_of(ds.row_ids[ds.train_idx].numpy(), count), fanouts)

    _check_told(told, counted if is_drawn else None, ds.store, budget)


def _check_told(
    told: Callable[[list[Hop] | None], tuple[Needs, Needs]],
    counted: Callable[[], list[Hop]] | None,
    store: Store,
    budget: int,
) -> None:
    """A run, or finding out what it takes, fits by uniform draws, or by the hops of a batch that are counted then.

    Raises: MemoryBudgetError.
    """
    found, room = told(None), budget
    if counted is not None and not any(needs.fits(room) for needs in found) and counting_bytes(store) <= budget:
        found, room = told(counted()), budget - (_UNASKED_DRAWN - Needs(is_close=True).unasked)
    if not any(needs.fits(room) for needs in found):
        raise refusal(found[0], budget)


def _reads_rows_there(model: nn.Module, ds: StoredDataset) -> bool:
    """Whether a step that is compiled with its draws reads rows of features where they lie: nothing is dropped."""
    is_staged = is_plain(model) and isinstance(model, Stack) and model.is_staged()
    return is_staged and not (model.dropout or ds.store.has_weights)


def _evaluation_told(ds: StoredDataset, target: Target) -> int:
    """Bytes of outputs of the splits with a small tile, or with what scores them."""
    counts = [ids.numel() for ids in (ds.train_idx, ds.val_idx, ds.test_idx)]
    scoring = target.scored_row(max(ds.num_classes, 1)) * max(counts)
    return outputs_bytes(counts, ds) + max(_EVALUATES + structure_of_part(ds.store), scoring)


def check_link_rows(model: Stack, ds: StoredDataset, fanouts: Sequence[int], batch_size: int, budget: int) -> None:
    """As :func:`check_rows`, of link prediction with ``batch_size`` pairs and as many negatives.

    Edges are held out before anything else is there but the structure.
    """
    store, (held, scoring) = ds.store, link_outputs(model, ds.store, whole=True)
    seeds = round(ds.num_nodes * -math.expm1(-4 * batch_size / max(ds.num_nodes, 1)))  # some nodes come several times
    evaluation = max(held, scoring)
    splitting = _programs_told(model) + THREADS + structure_bytes(store)[0] + _SPLITS + SPLITTING * store.num_edges

    def told(hops: list[Hop] | None) -> tuple[Needs, Needs]:
        needs, trying = _of_rows(model, ds, fanouts, seeds, evaluation, hops=hops)
        pairs = _PAIR_BYTES * store.num_edges
        return replace(needs, data=pairs, begins=splitting + _UNASKED), replace(trying, data=pairs)

    def counted() -> list[Hop]:
        drawn = np.random.default_rng(2).integers(0, store.num_nodes, 2 * batch_size)
        return drawn_hops(store, np.concatenate([*inner_edges(store, batch_size), drawn]), fanouts)

    if splitting > budget:
        raise refusal(told(None)[0], budget)
    _check_told(told, counted, store, budget)


def _of_rows(
    model: nn.Module,
    ds: StoredDataset,
    fanouts: Sequence[int],
    seeds: int,
    evaluation: int,
    copies: bool = True,
    hops: list[Hop] | None = None,
) -> tuple[Needs, Needs]:
    """What training on batches of so many seeds takes, and finding that out by one of them; from sizes alone.

    ``copies``: whether a step has rows of features of its own. ``hops``: of a batch, where they are counted.
    """
    store, nodes = ds.store, ds.num_nodes
    kept, reading = structure_bytes(store)
    weights, relations = sum(p.nbytes for p in model.parameters()), _relations_in(store)
    times = times_held(model)[0], int(copies)
    sizes = (store.row_width, fanouts, seeds, nodes, store.num_edges, relations, times, hops)
    found = batch_estimate(model, *sizes)
    read = int((_MET if hops is None else 1) * found.rows)
    rows, alone = least_memory(store, nodes, read), _REAL * store.row_width * read
    if flat_rows_of(store) is not None:
        rows = min(rows, least_piece_memory(store))
        alone = rows
        reading = max(reading, 2 * LEAST_WITHIN * _REAL * store.row_width)  # rows that an evaluation embeds
    program, most = _programs_told(model) + THREADS, max(reading, evaluation)
    needs = Needs(program, structure=kept, kept=rows, parameters=COPIES * weights, evaluation=most, trims=True)
    step, batches = int(SWING * found.step), ahead_bytes(found.ids, found.ids, drawing_threads())
    trying = replace(needs, kept=0, step=step + alone + found.ids, is_close=hops is not None)
    # what is measured afterwards may be more, so that a refusal names room to spare
    return replace(needs, step=step, batches=batches, measured=True, is_close=hops is not None), trying


def ahead_bytes(held: int, making: int, workers: int) -> int:
    """Bytes of batches that threads draw ahead, with what drawing takes and what a thread's own heap keeps of it."""
    return workers * (int(SWING * (held + making)) + min(_WORKER, making))


__all__ = [
    "COPIES",
    "SEED_BYTES",
    "SPLITTING",
    "SWING",
    "THREADS",
    "ahead_bytes",
    "check_link_rows",
    "check_rows",
    "least_beside",
    "least_beside_links",
    "least_told",
    "link_outputs",
]
