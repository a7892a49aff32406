"""How mini-batch training keeps to a memory budget.

Comes in: the steps of mode "mini" and a budget. Goes out: batches prepared ahead and evaluations cut as far as the
budget asks, or an error that names the least that would do. Called by the trainer. Neither changes a batch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from graphweft._budget import lifted, own_bytes, room
from graphweft._errors import MemoryBudgetError
from graphweft._memory import POOL, heap_bytes
from graphweft.graph.block import Block
from graphweft.ir.ops import Op
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.nn.module import CompiledModule
from graphweft.nn.stack import Stack
from graphweft.passes.work import Sizes
from graphweft.runtime.constants import owning
from graphweft.runtime.footprint import Footprint, footprint, value_bytes
from graphweft.runtime.rehearsal import (
    Prepared,
    Run,
    Taken,
    Tile,
    buffer_bytes,
    larger_regions,
    taken_by_epochs,
    taken_by_tiles,
    taken_bytes,
)
from graphweft.runtime.staged import StagedPlan
from graphweft.runtime.stand_in import stands_for
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.feature import Features, SparseFeatures, alone
from graphweft.train.batch_estimate import batch_estimate
from graphweft.train.batch_steps import BatchSteps
from graphweft.train.full_batch import is_plain
from graphweft.train.inference import USUAL_TILE
from graphweft.train.macro_needs import macro_taken
from graphweft.train.needs import UNLIMITED, Needs, RunBudget, base_needs, dense_bytes, loss_bytes, rehearse, rehearsed
from graphweft.train.needs_by_running import PARTLY, evaluation_run, grown_while, kept_buffers
from graphweft.train.needs_by_sizes import drawn_bytes, step_bytes

_TILES = (USUAL_TILE // 16, USUAL_TILE // 4, USUAL_TILE)
_LARGER = 2  # times what the next tile takes at least, of four times as many nodes
_SWING = 1.02  # batches differ in size, and only some are drawn:
_DRAWN_BATCHES, _EPOCHS = 6, 2
_PARTS = (64, 8)  # of the seeds of a batch, which are trained on before all of them
_WORSE = 1.2  # times what a part tells of more seeds, for which there has to be room before they are trained on
_UNLIKE = 2.5  # times what sizes say of a batch: forms of blocks, what passes while it is made, unlike draws
_UNKNOWN, _GROWN = 1, 2  # of a tile of which part was drawn: pages where mappings end; times what a sampler doubles
_WORKER = 6 << 20  # a thread's own heap, where batches are large enough to fill it


def needs_within(mini: BatchSteps, budget: RunBudget) -> tuple[Needs, list[CoreSplit], float]:
    """The memory that training takes where it does as much at once as ``budget`` leaves room for, how it prepares, and
    the bytes that an epoch maps anew.

    It may not fit.
    """
    with nullcontext() if is_plain(mini.model) else lifted():  # which is not interrupted: it may run the user's code
        budget.check_room(_ids_bytes(mini))
        mini.prepare()
        macro = None if mini.macro is None else macro_taken(mini)
        batches = _batches_taken(mini) if macro is None else [macro.batch] * min(len(mini.loader), _DRAWN_BATCHES)
        step = max(taken_bytes(batch.step) for batch in batches)
        base = base_needs(mini.ds, mini.model, budget)
        beside = 0 if mini.half is None else mini.half.nbytes  # features in bfloat16
        beside += 0 if macro is None else macro.held
        base = replace(base, data=base.data + beside, step=step, trims=True)
        single = {way: by_epochs(batches, len(mini.loader), way) for way in mini.loader.tried}
        least = min(taken.most for taken in single.values()) - step
        refreshing = 0 if macro is None else macro.refreshing
        base, evaluation = _with_evaluation(mini, budget, replace(base, batches=least), refreshing)
        base = _with_program(base, mini, budget)  # with what evaluates

    def apart(way: CoreSplit) -> tuple[Needs, Taken]:
        """Where memory is given back before an evaluation, and the other way round, but for what kernels keep."""
        kept = max(buffer_bytes(batch.step) for batch in batches) - buffer_bytes(evaluation)
        evaluates = base.evaluation + max(kept, 0)
        return replace(base, batches=single[way].most - step, evaluation=evaluates), single[way]

    def together(way: CoreSplit) -> tuple[Needs, Taken]:
        lets_go = budget.limit < UNLIMITED  # as a run within a budget does
        both = by_epochs(batches, len(mini.loader), way, evaluation, _EPOCHS, lets_go)
        alone = min(single[way].most, both.most)  # gaps of the first epoch have room for what an evaluation keeps
        return replace(base, batches=alone - step, trims=False, evaluation=both.most - alone), both

    ways = {way: together(way) for way in single}
    if not all(budget.fits(needs) for needs, _ in ways.values()):
        ways = {way: apart(way) for way in single}
    fitting = {way: found for way, found in ways.items() if budget.fits(found[0])}
    chosen = max(fitting or ways, key=lambda way: ways[way][0].running if fitting else -ways[way][0].running)
    needs, taken = ways[chosen]
    return needs, list(fitting), taken.mapped + taken.returned


def _with_program(base: Needs, mini: BatchSteps, budget: RunBudget) -> Needs:
    """``base`` with what the process has taken for its programs by now."""
    return replace(base, program=max(base.program, base_needs(mini.ds, mini.model, budget).program))


def _ids_bytes(mini: BatchSteps) -> int:
    """About what drawing a batch for its sizes takes."""
    if not mini.fanouts:
        return 0
    seeds = min(mini.loader.batch_size, mini.loader.num_items)
    return batch_estimate(mini.model, 0, mini.fanouts, seeds, mini.ds.num_nodes, mini.ds.num_edges).ids


def by_epochs(
    drawn: Sequence[Prepared],
    count: int,
    way: CoreSplit,
    evaluation: Run | None = None,
    epochs: int = 1,
    lets_go: bool = False,
) -> Taken:
    """What epochs of ``count`` batches take, with what the heaps of the threads that prepare keep of what they freed.

    ``drawn``: some batches of an epoch, the last one at the end. Where more are prepared ahead they come again.
    ``lets_go``: whether an evaluation has no gradients beside it.
    """
    wanted = min(count, way.ahead + 2)  # all that are held at once, and the last one
    batches = drawn
    if wanted > len(drawn):
        batches = [*itertools.islice(itertools.cycle(drawn[:-1]), wanted - 1), drawn[-1]]
    kept = min(way.workers, len(batches)) * min(_WORKER, int(sum(drawn[0].making)))
    taken = taken_by_epochs(batches, way.ahead, way.workers, evaluation, epochs, lets_go)
    returned = taken.returned * count // max(len(batches), 1)
    return taken._replace(most=kept + int(_SWING * taken.most), returned=returned)


def _batches_taken(mini: BatchSteps) -> list[Prepared]:
    """Some batches of an epoch, the last one among them."""
    staged, count, size = mini.staged_plan(), len(mini.loader), mini.loader.batch_size
    last = mini.loader.num_items - (count - 1) * size
    counts = [size] * (min(count, _DRAWN_BATCHES) - 1) + [last]
    if staged is None:
        found, seen = _rehearsed(mini, counts[0])
        made = [found]
        for draw, n in enumerate(counts[1:], 1):
            times = n / counts[0]
            made.append(_other(mini, draw * size, n) if seen == counts[0] else _larger(found, times, times))
        return made
    first = batch_taken(mini)
    more = [mini.sizes_of(staged[0], draw, seeds) for draw, seeds in enumerate(counts[1:], 1)]
    return [first, *(_prepared(staged[0], sizes, mini.ds.num_classes) for sizes in more)]


def _prepared(staged: StagedPlan, sizes: Sizes, classes: int) -> Prepared:
    held, making = staged.prepared_bytes(sizes)
    return Prepared(held, making, Run(staged.plan, sizes, loss_bytes(sizes.rows["B"], classes)))


def batch_taken(mini: BatchSteps) -> Prepared:
    """By account for a compiled batch; another is made and trained on, without an update."""
    staged = mini.staged_plan()
    if staged is not None:
        return _prepared(*staged, mini.ds.num_classes)
    return _rehearsed(mini, min(mini.loader.batch_size, mini.loader.num_items))[0]


def _rehearsed(mini: BatchSteps, count: int) -> tuple[Prepared, int]:
    """The first batch of ``count`` seeds, and how many of them were trained on to see what it takes.

    Within a budget fewer are tried first, and no more than what it has room for by what these took.
    """
    seen = max(-(-count // _PARTS[0]), min(count, 2))  # norms over a batch take two rows at least
    seen = count if room() is None else seen
    found = _tried_again(mini, 0, seen, count / seen)
    for part in (*_PARTS[1:], 1):
        seeds = -(-count // part)
        if seeds <= seen:
            continue
        larger = _larger(found, *(PARTLY * times for times in _times_larger(mini, found, seeds / seen, seeds)))
        if not _has_room(_WORSE * (sum(larger.held) + max(sum(larger.making), taken_bytes(larger.step)))):
            break
        try:
            found, seen = _tried_again(mini, 0, seeds, count / seeds), seeds
        except MemoryBudgetError:  # it takes more than the part says
            break
    if seen == count:
        return found, seen
    return _larger(found, *(PARTLY * times for times in _times_larger(mini, found, count / seen, count))), seen


def _has_room(nbytes: float) -> bool:
    """Whether the budget leaves so much, where there is one."""
    POOL.trim()
    left = room()
    return left is None or nbytes <= left


def _times_larger(mini: BatchSteps, part: Prepared, times: float, seeds: int) -> tuple[float, float]:
    """By how much a batch of ``seeds``, ``times`` as many, is larger than a part of it, and so is its step.

    Neighbourhoods overlap, those of more seeds the more: the widest rows may be there once all nodes are reached, while
    those of inner layers still grow. Sizes tell; and batches are made to see, each of at most twice as many seeds as
    the one before, as far as there is room for as many more rows, or for what sizes say of them.
    """
    ready, count, step = sum(part.held), max(round(seeds / times), 1), times

    def told(of: int) -> float:
        return drawn_bytes(mini.model, mini.ds, mini.fanouts, of) if mini.fanouts else float(of)

    def has_room(of: int) -> bool:
        most = of / count * (ready + sum(part.making))
        return _has_room(min(most, _UNLIKE * told(of)) if mini.fanouts else most)

    if mini.fanouts:
        more, less = (step_bytes(mini.model, mini.ds, mini.fanouts, of) for of in (seeds, count))
        step = min(times, more / max(less, 1))
    while count < seeds:
        larger = seeds if has_room(seeds) else min(2 * count, seeds)  # which has at most twice as many rows
        if not has_room(larger):
            break
        made = functools.partial(mini.loader.make, torch.arange(larger), 0)
        ready, count = rehearse(made, lambda batch: None)[0], larger
    rest = min(seeds / count, _UNLIKE * told(seeds) / max(told(count), 1)) if count < seeds else 1.0
    batch = min(times, rest * ready / max(sum(part.held), 1))
    return batch, max(batch, step) if mini.fanouts else batch


def _larger(part: Prepared, times: float, of_step: float) -> Prepared:
    """A batch whose tensors are so many times as large, and its step, whose own are ``of_step`` times as large."""
    held, making = (tuple(times * size for size in sizes) for sizes in (part.held, part.making))
    step = part.step
    beside, noted = tuple(times * size for size in step.beside), larger_regions(step.noted, of_step)
    return Prepared(held, making, replace(step, beside=beside, by_torch=of_step * step.by_torch, noted=noted))


def _other(mini: BatchSteps, first: int, count: int) -> Prepared:
    """A further batch; of another size it may be of another class, for which programs are compiled."""
    return (_tried if count == mini.loader.batch_size else _tried_again)(mini, first, count)


def _tried_again(mini: BatchSteps, first: int, count: int, times: float = 1.0) -> Prepared:
    """As :func:`_tried`, once programs are compiled."""
    _tried(mini, first, count, times)
    return _tried(mini, first, count, times)


def _tried(mini: BatchSteps, first: int, count: int, times: float = 1.0) -> Prepared:
    """The batch of ``count`` seeds from ``first`` on, by making and training on it; for one ``times`` as large."""
    try:
        with torch.random.fork_rng(devices=[]), kept_buffers(mini.model), stands_for(times):
            return rehearsed(lambda: mini.loader.make(torch.arange(first, first + count), 0), mini.gradients)
    finally:
        mini.optimizer.zero_grad(set_to_none=True)


def _with_evaluation(mini: BatchSteps, budget: RunBudget, base: Needs, refreshing: int) -> tuple[Needs, Run]:
    """``base`` with an evaluation of all nodes at once, or of as many as the budget leaves room for; and that.

    ``refreshing``: Bytes of another pass over all nodes, at another time; the larger of both counts.
    """
    model = mini.model
    if not is_plain(model):
        run, forms = evaluation_run(model, mini.ds, mini.x, mini.edge_data, budget.limit - base.total)
        needs = replace(base, structure=base.structure + forms, evaluation=taken_bytes(run), measured=True)
        return _at_least(refreshing, needs, run)
    whole, run = _whole(mini, model)
    base = _with_program(base, mini, budget)  # which was compiled; it is there beside tiles, too
    needs = replace(base, evaluation=taken_bytes(run), kept=whole.hoisted, structure=whole.structure)
    found = _at_least(refreshing, needs, run)
    if budget.fits(found[0]) or not isinstance(model, Stack):
        return found
    for tile in (tile for tile in _TILES if tile < mini.ds.num_nodes):
        # the smallest first, as finding out takes much of what a tile does
        taken_by = _tiled(mini, model, tile)
        tiled = _at_least(refreshing, replace(base, evaluation=taken_by), Run(beside=(taken_by,)))
        fits = budget.fits(tiled[0])
        if fits or tiled[0].running < found[0].running:  # where neither fits, the one that takes less is the least
            found, budget.tile = tiled, tile
        larger = replace(tiled[0], evaluation=_LARGER * taken_by)
        if not fits or not budget.fits(larger):
            break
    return found


def _at_least(refreshing: int, needs: Needs, run: Run) -> tuple[Needs, Run]:
    """What evaluates, or a pass that takes more."""
    if refreshing <= needs.evaluation:
        return needs, run
    return replace(needs, evaluation=refreshing), Run(beside=(refreshing,))


def _whole(mini: BatchSteps, model: CompiledModule) -> tuple[Footprint, Run]:
    """What a pass over the whole graph takes, and the pass."""
    training, x = model.training, alone(mini.x)
    with torch.no_grad(), owning(x):
        arguments = model.eval().arguments(mini.ds.graph, x, None, mini.edge_data.inputs)
        plan, sizes = model.function.sized_plan(arguments)
    model.train(training)
    found = footprint(plan, sizes, mini.ds.graph.is_symmetric)
    found = replace(found, structure=found.structure + dense_bytes(x, plan))
    run = Run(plan, sizes, stays=(found.structure,), hoists=True)
    return found, replace(run, beside=(max(0, found.making - taken_bytes(run)),))  # before anything else is computed


def _tiled(mini: BatchSteps, model: Stack, tile: int) -> int:
    """What a pass takes that computes each layer for ``tile`` nodes at a time, those with most edges.

    Fewer nodes are tried first, and all of them where the budget has room for what that takes.
    """
    graph, nodes = mini.ds.graph, mini.ds.num_nodes
    degrees = torch.nn.functional.pad(graph.in_degrees(), (0, -nodes % tile)).view(-1, tile).sum(1)
    first = int(degrees.argmax()) * tile if nodes else 0
    ids = torch.arange(first, min(first + tile, nodes))
    some = ids[:: _PARTS[-1]].contiguous()
    if room() is None or some.numel() == ids.numel():
        return _tried_tile(mini, model, ids)
    times, before = ids.numel() / some.numel(), own_bytes()
    most, taken = grown_while(lambda: _tried_tile(mini, model, some, times))
    POOL.trim()
    passed = before + most - own_bytes()  # above what it has afterwards, which compiling has made
    if _has_room(times * passed):
        with contextlib.suppress(MemoryBudgetError):  # it takes more than the part says
            return _tried_tile(mini, model, ids)
    return taken


def _tried_tile(mini: BatchSteps, model: Stack, ids: Tensor, times: float = 1.0) -> int:
    """As :func:`_tiled`, of a tile with ``times`` as many nodes as ``ids``, which are drawn."""
    drawn, small, training = list[tuple[int, int]](), heap_bytes(), model.training
    sampler = NeighborSampler(mini.ds.graph, [-1])
    with POOL.noting(drawn):
        block = sampler.sample(ids).blocks[0]
    small = max(heap_bytes() - small, 0)  # with the sampler's own memory
    noted = larger_regions(drawn, times)
    model.eval()
    try:
        with torch.no_grad(), stands_for(times):
            layers = [_tile(mini, model, index, block, noted, times) for index in range(len(model.layers))]
    finally:
        model.train(training)
    unknown = _UNKNOWN * POOL.page + int(_GROWN * times * small) if times > 1 else small
    return taken_by_tiles(layers) + unknown


def _tile(
    mini: BatchSteps, model: Stack, index: int, block: Block, drawn: tuple[tuple[int, int], ...], times: float
) -> Tile:
    """Layer ``index`` on ``times`` as much as ``block``."""
    layer, real = model.layers[index], torch.float32.itemsize
    assert isinstance(layer, CompiledModule)
    width = layer.in_features
    read: Features = torch.zeros(1, width).expand(block.num_src, -1)
    gathered = block.num_src * real * width
    if index == 0 and isinstance(mini.x, SparseFeatures):
        read = mini.x.take_rows(block.src_ids)
        gathered = read.nnz * 2 * real
    given = model.layer_arguments(index, block, read, mini.edge_data.inputs)
    plan, sizes = model.layer_function(index).sized_plan(given)
    program = plan.compiled.program
    sources = next(value.struct.src for value in program.inputs if value.op is Op.GRAPH)
    more = min(times, mini.ds.num_nodes / max(block.num_src, 1))  # times as many sources: no more than there are nodes
    rows = {name: int((more if name == sources else times) * count) for name, count in sizes.rows.items()}
    sizes = replace(sizes, rows=rows, nonzeros={name: int(more * count) for name, count in sizes.nonzeros.items()})
    found = footprint(plan, sizes)
    beside = more * gathered, more * dense_bytes(read, plan), found.hoisted, found.structure
    made = max(value_bytes(program.values[slot], sizes) for _, slot in plan.outputs)
    whole = made * mini.ds.num_nodes / max(times * block.num_dst, 1)
    return Tile(drawn, Run(plan, sizes, beside=beside), made, whole)


__all__ = ["batch_taken", "needs_within"]
