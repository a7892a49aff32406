"""How training from a store on disk keeps to a memory budget.

Comes in: the steps of mode "macro" or "mini" over a store, and a budget. Goes out: fewer parts of a group, a smaller
table of rows, batches that are prepared ahead and tiles of evaluations as far as the budget asks, or an error that
names the least that would do. Called by the trainer and by ``gw.plan``. Batches change with the parts of a group alone,
which follow from sizes (:mod:`graphweft.train.stored_sizes`); what a batch takes is measured on one.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from graphweft._budget import lifted, own_bytes
from graphweft._memory import POOL
from graphweft.data.stored import StoredDataset
from graphweft.loader.disk import AHEAD, batch_bytes
from graphweft.loader.disk_feed import batches_known, drawing_threads
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.loader.group_loader import GroupLoader, PlannedGroup
from graphweft.loader.groups import kept_bytes
from graphweft.storage.feature import is_dense
from graphweft.storage.piece_rows import COUNT_BYTES, least_piece_memory, most_piece_memory
from graphweft.storage.row_cache import NODE_BYTES, least_memory, table_room
from graphweft.train.group_rehearsal import (
    Rehearsed,
    grown_beside_others,
    grown_by_step,
    held_bytes,
    rehearsed_group,
)
from graphweft.train.needs import MARGIN, Needs, RunBudget
from graphweft.train.needs_by_running import kept_buffers
from graphweft.train.part_inference import PartInference
from graphweft.train.stored_evaluation import evaluation_needs
from graphweft.train.stored_sizes import COPIES, SEED_BYTES, SWING, THREADS, ahead_bytes

_REAL, _ID = 4, 8
_ROWS = 1.15  # rows of batches differ, and a table has to hold all of one
_ITEM_BYTES = 16  # of a seed or pair that is in no group: orders of two epochs
_ATTEMPTS = 2  # of evaluations: what the first one compiles is known to the second
_PIECES_TRIED = 16  # one in so many bytes of the budget is for rows while a step is tried
_total = attrgetter("total")


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
        batches = int(SWING * (ready * found.held + own)) + (reading if apart else 0)
        lent = int(SWING * (ready * found.held_lent + made * found.making_lent))
        begun = int(SWING * (first - made) * (found.making - found.kept))
        step = max(_in_pages(found.step, found.lent, lent), begun, before - batches)
        ways[way] = replace(base, batches=groups + batches, step=step)
    return ways


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
    batches = ahead_bytes(found.held, found.making, drawing_threads() if pieces else steps.loader.disk_workers)
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
    needs = replace(base, batches=int(SWING * (found.making + found.held)), step=step)
    needs, memory = _beside_rows(steps, budget, needs, at_least, 1.0)
    memory = min(max(memory, at_least), most)
    return RowRooms(replace(needs, kept=memory), memory, True, found.rows)


def _row_programs(steps: Any, budget: RunBudget) -> int:
    """The account of programs now, without tables, which are made anew; one of :data:`THREADS` reads rows."""
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
    return int(SWING * step) + -(int(SWING * lent) + beside) % POOL.page


def _left(budget: RunBudget, needs: Needs) -> int:
    """Bytes that a budget has beside some needs."""
    return int((budget.room_for(needs) - needs.total) / MARGIN)


def _base(steps: Any, budget: RunBudget) -> Needs:
    """What is there before groups are read, and what comes with training."""
    weights = sum(p.nbytes for p in steps.model.parameters())
    taken = own_bytes() - (POOL.stats().mapped - budget.pooled) - budget.floor
    data = stored_bytes(steps.ds)
    orders = steps.loader.num_items * (SEED_BYTES if isinstance(steps.loader, GroupLoader) else _ITEM_BYTES)
    return Needs(
        program=max(taken - data, 0) + THREADS,
        data=data + orders,
        parameters=COPIES * weights,
        trims=True,
        is_close=True,
    )


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
    "fit_groups",
    "fit_rows",
    "groups_within",
    "predicted_bytes",
    "rows_within",
    "stored_bytes",
]
