"""How training from a store on disk keeps to a memory budget.

Comes in: the steps of mode "macro" or "mini" over a store, and a budget. Goes out: fewer parts of a group, a smaller
table of rows, batches that are prepared ahead and tiles of evaluations as far as the budget asks, or an error that
names the least that would do. Called by the trainer and by ``gw.plan``. Batches change with the parts of a group alone,
which follow from sizes; what a batch takes is measured on one.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from graphweft._budget import lifted, own_bytes
from graphweft._memory import POOL
from graphweft.data.stored import StoredDataset
from graphweft.loader.disk import AHEAD, batch_bytes
from graphweft.loader.disk_feed import batches_known, drawing_threads
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.loader.group_loader import GroupLoader, PlannedGroup
from graphweft.loader.groups import group_bytes, kept_bytes, part_bytes
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.storage.feature import is_dense
from graphweft.storage.flat_rows import flat_rows_of
from graphweft.storage.piece_rows import COUNT_BYTES, least_piece_memory, most_piece_memory
from graphweft.storage.row_cache import NODE_BYTES, least_memory, table_room
from graphweft.storage.store import Store
from graphweft.storage.stored_structure import structure_bytes
from graphweft.train.batch_estimate import batch_estimate
from graphweft.train.full_batch import is_plain
from graphweft.train.group_rehearsal import (
    Rehearsed,
    grown_beside_others,
    grown_by_step,
    held_bytes,
    rehearsed_group,
)
from graphweft.train.link_task import MOST_SCORED, RANKED_AMONG
from graphweft.train.needs import MARGIN, Needs, RunBudget, refusal
from graphweft.train.needs_by_running import kept_buffers
from graphweft.train.needs_by_sizes import times_held
from graphweft.train.part_inference import PartInference
from graphweft.train.stored_evaluation import evaluation_needs, outputs_bytes, structure_of_part
from graphweft.train.target import Target
from graphweft.train.tiles import LEAST_WITHIN

T = TypeVar("T")
_REAL, _ID = 4, 8
_COPIES = 4  # of each parameter: two moments, the best and the last weights
_SWING = 1.05  # batches differ in size
_ROWS = 1.15  # and so do their rows, of which a table has to hold all
# threads that read and prepare, with their stacks and what their heaps keep of small blocks: 0.2 to 0.5 MB each
_THREADS = 1 << 20
_SEED_BYTES = 48  # of a seed: orders of two epochs, places and numbers of its group
_ITEM_BYTES = 16  # of a seed or pair that is in no group: orders of two epochs
_WORKER = 6 << 20  # a thread's own heap, where batches are large enough to fill it
_PROGRAMS = 4 << 20  # what programs, their modules and the heap take, before it is known
_PLAN, _PLANS = 1 << 19, 3  # of a typed layer's plan, and how many there are: two of steps, one of evaluations
_UNASKED = 6 << 20  # what a budget has to leave room for besides
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
_ATTEMPTS = 2  # of evaluations: what the first one compiles is known to the second
_PIECES_TRIED = 16  # one in so many bytes of the budget is for rows while a step is tried
_SHARED = 1.25  # times what sizes say of a batch, before one is measured
_total = attrgetter("total")


def least_beside(model: nn.Module, ds: StoredDataset, fanouts: Sequence[int], batch_size: int, count: int) -> int:
    """Bytes of a run beside its groups of ``count`` parts, from sizes alone."""
    counts = [ids.numel() for ids in (ds.train_idx, ds.val_idx, ds.test_idx)]
    held = outputs_bytes(counts, ds) if isinstance(model, Stack) else 0
    # the next group is read once a batch of this one is done, where it has no other
    of = np.searchsorted(ds.store.bounds, ds.row_ids[torch.unique(ds.train_idx)].numpy(), "right") - 1
    apart = int(np.sort(np.bincount(of, minlength=len(ds.store)))[-count:].sum()) <= batch_size
    return _residents(ds) + _beside(model, ds.store, fanouts, batch_size, count, held, apart)


def least_beside_links(model: Stack, store: Store, fanouts: Sequence[int], batch_size: int, count: int) -> int:
    """As :func:`least_beside`, of link prediction with ``batch_size`` pairs and as many negatives."""
    nodes, edges = store.num_nodes, int(np.sort(store.edge_counts)[-count:].sum())
    held, scoring = link_outputs(model, store)
    fixed = 2 * _ID * nodes + _ID * len(store) ** 2 + _LINK_BYTES * edges
    return fixed + _beside(model, store, fanouts, 4 * batch_size, count, max(held, scoring))


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


def _beside(
    model: nn.Module, store: Store, fanouts: Sequence[int], seeds: int, count: int, held: int, apart: bool = False
) -> int:
    """What a step or an evaluation takes that holds so many bytes, with programs and the model.

    ``apart``: no group is read while a batch is trained on, which takes what reading has given back.
    """
    order = np.argsort(-part_bytes(store), kind="stable")[:count]
    nodes = int(np.diff(store.bounds)[order].sum())
    edges = int(store.edge_counts[order].sum())
    weights = sum(p.nbytes for p in model.parameters())
    # a step of typed layers is told too low by its rows: several parts are tried where all columns of the model fit,
    # which are one more for each node of a type without features
    width = store.row_width if count == 1 else store.num_features
    found = batch_estimate(model, width, fanouts, min(seeds, nodes), nodes, edges, _relations_in(store))
    batch = int(_SHARED * (found.step + found.rows * _REAL * width))
    # an evaluation takes what groups have given back
    groups = group_bytes(store, count, 0)
    batch -= groups - int(part_bytes(store, 0)[order].sum()) if apart else 0
    return (
        _COPIES * weights
        + _programs_told(model)
        + _UNASKED
        + max(batch, 0, _EVALUATES + structure_of_part(store) + held - groups)
    )


def _programs_told(model: nn.Module) -> int:
    """Bytes of programs, before it is known."""
    return _PROGRAMS // 2 + _PLANS * _PLAN * len(model.layers) if isinstance(model, TypedStack) else _PROGRAMS


def _relations_in(store: Store) -> int:
    """The most relations that lead into a type of nodes; 1 without types."""
    return 1 if store.types is None else max(Counter(dst for _, _, dst in store.types.relations).values(), default=1)


def least_told(estimated: int) -> int:
    """The budget that a refusal by sizes alone names; what is measured afterwards wants more room to spare."""
    return Needs(program=estimated - _UNASKED, measured=True).least


def _residents(ds: StoredDataset) -> int:
    """Bytes of splits, labels, and orders of epochs."""
    label = ds.y.element_size() * (ds.y.shape[1] if ds.y.dim() == 2 else 1)
    return len(ds.y) * (2 * label + 3 * _ID) + ds.train_idx.numel() * _SEED_BYTES


def fit_groups(steps: Any, budget: RunBudget) -> None:
    """Chooses how many parts make a group, how batches are prepared and what an evaluation has in memory.

    Raises: MemoryBudgetError.
    """
    needs, ways = groups_within(steps, budget)
    budget.settle(needs)
    steps.budget = budget
    steps.loader.keep_ways(ways)


def groups_within(steps: Any, budget: RunBudget) -> tuple[Needs, list[CoreSplit]]:
    """The memory of training on as large groups as fit, and how batches are prepared. It may not fit."""
    with lifted():
        while True:
            needs, ways = _of_groups(steps, budget)
            if budget.fits(needs) or steps.is_asked:
                return needs, ways
            if steps.group == 1:
                if not steps.lean():
                    return needs, ways
                continue
            over = steps.group * budget.room_for(needs) // max(needs.total, 1)
            steps.regroup(max(1, min(steps.group - 1, over)))


def _of_groups(steps: Any, budget: RunBudget) -> tuple[Needs, list[CoreSplit]]:
    loader: GroupLoader = steps.loader
    planned, scale = _largest(loader)
    smallest = min(loader.plan(0), key=lambda group: len(group.nodes))
    with torch.random.fork_rng(devices=[]), kept_buffers(steps.model):
        rehearsed_group(steps, smallest)  # compiles
        found = rehearsed_group(steps, planned)
    steps.optimizer.zero_grad(set_to_none=True)
    POOL.trim()
    base = _base(steps, budget)
    base = replace(base, data=base.data + kept_bytes(loader.source, loader.keep))
    ways = _by_way(loader, base, found, scale)
    fitting = {way: needs for way, needs in ways.items() if budget.fits(needs)}
    chosen = max(fitting.values(), default=min(ways.values(), key=_total), key=_total)
    evaluated = _evaluated(steps, budget, chosen, found.evaluation)
    program, evaluation = evaluated.program, evaluated.evaluation
    ways = {way: replace(needs, program=program, evaluation=evaluation) for way, needs in ways.items()}
    fitting = {way: needs for way, needs in ways.items() if budget.fits(needs)}
    chosen = max(fitting.values(), default=min(ways.values(), key=_total), key=_total)
    return chosen, list(fitting) or [CoreSplit(0, 0)]


def _evaluated(steps: Any, budget: RunBudget, needs: Needs, measured: int) -> Needs:
    """Needs of steps with an evaluation that takes what they leave, and what it compiles.

    ``measured``: what a pass over one group takes, of a model that is no stack of layers.
    """
    least, alone = needs.batches + needs.step, replace(needs, batches=0, step=0)
    for _ in range(_ATTEMPTS):
        most = _left(budget, alone)
        wanted = max(least, most)
        evaluation = evaluation_needs(steps.evaluated_as(), wanted, most, measured)
        # with what evaluates, which leaves less
        alone = replace(alone, program=max(alone.program, _programs(steps, budget, steps.evaluated_as().inference)))
        if wanted == least or budget.fits(replace(alone, evaluation=evaluation)):
            return replace(alone, evaluation=evaluation)
    # as small as where no budget is large enough
    return replace(alone, evaluation=evaluation_needs(steps.evaluated_as(), least, 0, measured))


def _by_way(loader: GroupLoader, base: Needs, found: Rehearsed, scale: float) -> dict[CoreSplit, Needs]:
    """The memory of steps under every way to prepare batches; the largest groups are ``scale`` times the measured."""
    numbers = [group.number for group in loader.plan(0)]
    several = len({*numbers}) > 1
    group, reading, begun = (int(scale * size) for size in (found.group, found.reading, found.begun))
    # the next group is read once a batch of this one is done
    apart = (
        several and len(numbers) == len({*numbers}) and all(len(g.nodes) <= loader.batch_size for g in loader.plan(0))
    )
    groups = group + reading if several and not apart else group
    before = max(begun, 0 if several else reading) - groups  # any batch is there; a single group is read
    ways, most_ahead = {}, loader.most_batches()  # none is prepared beyond its group
    for way in loader.tried:
        if way.workers == 0:
            step = max(_in_pages(found.both, found.both_lent), before, reading if apart else 0)
            ways[way] = replace(base, batches=groups, step=step)
            continue
        # of a group's batches one is trained on while others are made; before that all may be in the making
        ready, first, made = (
            min(way.ahead + 1, most_ahead),
            min(way.workers, most_ahead),
            min(way.workers, most_ahead - 1),
        )
        own = made * found.making + (first - made) * found.kept
        batches = int(_SWING * (ready * found.held + own)) + (reading if apart else 0)
        lent = int(_SWING * (ready * found.held_lent + made * found.making_lent))
        begun = int(_SWING * (first - made) * (found.making - found.kept))
        step = max(_in_pages(found.step, found.lent, lent), begun, before - batches)
        ways[way] = replace(base, batches=groups + batches, step=step)
    return ways


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
    evaluation = _evaluation_told(ds, target)
    needs, trying = _of_rows(model, ds, fanouts, min(batch_size, ds.train_idx.numel()), evaluation, not there)
    if not (needs.fits(budget) or trying.fits(budget)):
        raise refusal(needs, budget)


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
    told = _of_rows(model, ds, fanouts, seeds, evaluation)
    needs, trying = (replace(found, data=_PAIR_BYTES * store.num_edges) for found in told)
    splitting = needs.program + needs.structure + _SPLITS + SPLITTING * store.num_edges
    needs = replace(needs, begins=splitting + _UNASKED)
    if splitting > budget or not (needs.fits(budget) or trying.fits(budget)):
        raise refusal(needs, budget)


def _of_rows(
    model: nn.Module, ds: StoredDataset, fanouts: Sequence[int], seeds: int, evaluation: int, copies: bool = True
) -> tuple[Needs, Needs]:
    """What training on batches of so many seeds takes, and finding that out by one of them; from sizes alone.

    ``copies``: whether a step has rows of features of its own.
    """
    store, nodes = ds.store, ds.num_nodes
    kept, reading = structure_bytes(store)
    weights, relations = sum(p.nbytes for p in model.parameters()), _relations_in(store)
    times = times_held(model)[0], int(copies)
    found = batch_estimate(model, store.row_width, fanouts, seeds, nodes, store.num_edges, relations, features=times)
    read = int(_MET * found.rows)
    rows, alone = least_memory(store, nodes, read), _REAL * store.row_width * read
    if flat_rows_of(store) is not None:
        rows = min(rows, least_piece_memory(store))
        alone = rows
        reading = max(reading, 2 * LEAST_WITHIN * _REAL * store.row_width)  # rows that an evaluation embeds
    program, most = _programs_told(model) + _THREADS, max(reading, evaluation)
    needs = Needs(program, structure=kept, kept=rows, parameters=_COPIES * weights, evaluation=most, trims=True)
    step, batches = int(_SWING * found.step), _ahead(found.ids, found.ids, drawing_threads())
    trying = replace(needs, kept=0, step=step + alone + found.ids)
    # what is measured afterwards may be more, so that a refusal names room to spare
    return replace(needs, step=step, batches=batches, measured=True), trying


def _ahead(held: int, making: int, workers: int) -> int:
    """Bytes of batches that threads draw ahead, with what drawing takes and what a thread's own heap keeps of it."""
    return workers * (int(_SWING * (held + making)) + min(_WORKER, making))


def fit_rows(steps: Any, budget: RunBudget) -> None:
    """Chooses how rows come, batches that are drawn ahead and what an evaluation has in memory.

    Raises: MemoryBudgetError.
    """
    rooms = rows_within(steps, budget)
    assert rooms.needs is not None  # there is a budget
    budget.settle(rooms.needs)
    steps.budget = budget
    steps.resize(rooms.memory, rooms.pieces)


class RowRooms(NamedTuple):
    """The memory of a run on rows from disk.

    Attributes:
        needs: That of the run; None where it is not bounded.
        memory: That of the rows and of batches drawn ahead.
        pieces: Whether rows are read in pieces.
        rows: That a batch reads.
    """

    needs: Needs | None
    memory: int
    pieces: bool
    rows: int

    def text(self) -> str:
        """How rows come, in words."""
        return "in pieces, as often as they are multiplied" if self.pieces else "from disk"


def reads_in_pieces(possible: bool, table: int, room: int) -> bool:
    """Whether rows of a batch are read a piece at a time, which is twice: where their table has no room.

    Example:
        >>> reads_in_pieces(True, 97, 40), reads_in_pieces(True, 30, 40), reads_in_pieces(False, 97, 40)
        (True, False, False)
    """
    return possible and table > room


def rows_within(steps: Any, budget: RunBudget) -> RowRooms:
    """The memory of training on a table as large as fits, or on pieces of rows. It may not fit."""
    nodes, store, pieces = steps.ds.num_nodes, steps.ds.store, steps.takes_pieces
    with lifted():
        if pieces:  # which hold little, so that what is measured fits where the rows of a batch do not
            steps.resize(max(least_piece_memory(store), budget.room_for(Needs()) // _PIECES_TRIED), True)
        steps.prepare()
        with torch.random.fork_rng(devices=[]), kept_buffers(steps.model):
            _drawn(steps)  # compiles
            found = _drawn(steps)
        steps.optimizer.zero_grad(set_to_none=True)
        if pieces:
            steps.resize(least_piece_memory(store), True)  # whose tables nothing has touched
        POOL.trim()
    base = _base(steps, budget)
    base = replace(base, program=_row_programs(steps, budget), structure=steps.pooled(budget.pooled))
    batches = _ahead(found.held, found.making, drawing_threads() if pieces else steps.loader.disk_workers)
    step = _in_pages(found.step, found.lent)
    at_least = least_memory(store, nodes, int(_ROWS * found.rows))
    # batches are drawn ahead by what they are thought to have
    share = (AHEAD - 1 + max(1.0, found.held / max(found.told, 1))) / AHEAD
    needs, memory = replace(base, batches=batches, step=step), 0
    if not reads_in_pieces(pieces, at_least, int(_left(budget, needs) / share)):
        needs, memory = _beside_rows(steps, budget, needs, at_least, share)
    if not reads_in_pieces(pieces, at_least, memory):
        memory = max(memory, at_least)
        kept, read = _rows_taken(steps, found, memory)
        if kept + read < share * memory:
            return RowRooms(replace(needs, kept=kept, batches=needs.batches + read), memory, False, found.rows)
        return RowRooms(replace(needs, kept=int(share * memory)), memory, False, found.rows)
    at_least, most = least_piece_memory(store), most_piece_memory(store, found.rows)
    needs = replace(base, batches=int(_SWING * (found.making + found.held)), step=step)
    needs, memory = _beside_rows(steps, budget, needs, at_least, 1.0)
    memory = min(max(memory, at_least), most)
    return RowRooms(replace(needs, kept=memory), memory, True, found.rows)


def _row_programs(steps: Any, budget: RunBudget) -> int:
    """The account of programs now, without tables, which are made anew; one of :data:`_THREADS` reads rows."""
    books = steps.ds.num_nodes * (COUNT_BYTES if steps.takes_pieces else NODE_BYTES)
    return _programs(steps, budget, steps.inference, books)


def _rows_taken(steps: Any, found: Drawn, memory: int) -> tuple[int, int]:
    """The most that rows with batches drawn ahead take of so many bytes, of which there are only so many; and reading.

    What is read waits for its place while batches are trained on, and not during an evaluation.
    """
    store, length = steps.ds.store, len(steps.loader)
    room = table_room(store, steps.ds.num_nodes, memory - memory // AHEAD)
    known = batches_known(memory // AHEAD, room.rows, found.told, found.rows, length)
    return room.taken + known * (found.held + _ID * found.rows), room.read


def _beside_rows(steps: Any, budget: RunBudget, needs: Needs, at_least: int, share: float) -> tuple[Needs, int]:
    """Needs with an evaluation that leaves ``at_least`` to rows, where it can; and what it leaves."""
    wanted, left = needs.batches + needs.step, _left(budget, replace(needs, batches=0, step=0))
    for most in (max(wanted, left // 2), wanted, 0):
        evaluation = evaluation_needs(steps, min(max(wanted, left // 4), max(most, 1)), most)
        needs = replace(needs, evaluation=evaluation, program=max(needs.program, _row_programs(steps, budget)))
        memory = int(_left(budget, needs) / share)
        if memory >= at_least:
            break
    return needs, memory


class Drawn(NamedTuple):
    """The memory of one batch.

    Attributes:
        held: Of a batch that was drawn.
        making: Of what passed meanwhile.
        step: The most while it is trained on, beside it, with rows of its own.
        lent: Of these, what the pool lends.
        told: What a feed thinks of it.
        rows: That it reads, not bytes.
    """

    held: int
    making: int
    step: int
    lent: int
    told: int
    rows: int


def _drawn(steps: Any) -> Drawn:
    """Draws a batch, reads its rows and trains on it, without an update."""
    loader = steps.loader
    POOL.trim()
    places = torch.arange(min(loader.batch_size, loader.num_items))
    before = held_bytes()
    most, _, made = grown_beside_others(functools.partial(loader.make, places, 0))
    held = max(held_bytes() - before, 0)
    rows = len(torch.unique(loader.nodes_read(made)))
    batch = loader.with_own_rows(made)
    POOL.trim()
    step, lent = grown_by_step(functools.partial(steps.gradients, batch))
    own = getattr(batch, "x", None)  # a copy of rows of the table, unless they are read there
    step += own.nbytes if is_dense(own) else 0
    told = batch_bytes(made)  # what making has freed of others' may hide what is held
    found = Drawn(max(held, told), max(most - held, 0), step, lent, told, rows)
    del made, batch
    POOL.trim()
    return found


def _in_pages(step: int, lent: int, beside: int = 0) -> int:
    """The most of a step, with the pool's last page as a whole; ``beside``: what the pool lends of other things.

    Example:
        >>> _in_pages(1 << 20, 0, 1 << 20) - _in_pages(1 << 20, 0) == 1 << 20
        True
        >>> [_in_pages(step, lent) >> 10 for step, lent in ((1 << 20, 0), (3 << 20, 2_000_000), (3 << 20, 1_900_000))]
        [1075, 5270, 3325]
    """
    return int(_SWING * step) + -(int(_SWING * lent) + beside) % POOL.page


def _left(budget: RunBudget, needs: Needs) -> int:
    """Bytes that a budget has beside some needs."""
    return int((budget.room_for(needs) - needs.total) / MARGIN)


def _base(steps: Any, budget: RunBudget) -> Needs:
    """What is there before groups are read, and what comes with training."""
    weights = sum(p.nbytes for p in steps.model.parameters())
    taken = own_bytes() - (POOL.stats().mapped - budget.pooled) - budget.floor
    data = stored_bytes(steps.ds)
    orders = steps.loader.num_items * (_SEED_BYTES if isinstance(steps.loader, GroupLoader) else _ITEM_BYTES)
    return Needs(program=max(taken - data, 0) + _THREADS, data=data + orders, parameters=_COPIES * weights, trims=True)


def _programs(steps: Any, budget: RunBudget, inference: PartInference, books: int = 0) -> int:
    """The account of programs now; ``books`` and what an inference remembers are counted elsewhere."""
    return max(_base(steps, budget).program - books - inference.remembered, 0)


def predicted_bytes(ds: StoredDataset) -> int:
    """Bytes of the outputs of all nodes, in both orders, with the classes that follow from them."""
    return ds.num_nodes * (3 * _REAL * max(ds.num_classes, 1) + 3 * _ID)


def stored_bytes(ds: StoredDataset) -> int:
    """Bytes of what is in memory of a store."""
    tensors = [item for item in vars(ds).values() if isinstance(item, torch.Tensor)]
    graph = vars(ds).get("_graph")
    if graph is not None:
        tensors += [graph.csc.indptr, graph.csc.indices, *([] if graph.csc.edge_ids is None else [graph.csc.edge_ids])]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def _largest(loader: GroupLoader) -> tuple[PlannedGroup, float]:
    """The group of the first epoch with the largest batch, and by how much a group of the largest parts is larger."""
    sizes = loader.part_sizes()
    groups = loader.plan(0)
    found = max(groups, key=lambda g: (min(len(g.nodes), loader.batch_size), int(sizes[list(g.parts)].sum())))
    most, own = int(np.sort(sizes)[-loader.count :].sum()), int(sizes[list(found.parts)].sum())
    return found, most / max(own, 1)


__all__ = [
    "check_link_rows",
    "check_rows",
    "fit_groups",
    "fit_rows",
    "groups_within",
    "least_beside",
    "least_beside_links",
    "least_told",
    "link_outputs",
    "predicted_bytes",
    "rows_within",
    "stored_bytes",
]
