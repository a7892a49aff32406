"""How mini-batch training keeps to a memory budget.

Comes in: the steps of mode "mini" and a budget. Goes out: batches prepared ahead and evaluations cut as far as the
budget asks, or an error that names the least that would do. Called by the trainer. Neither changes a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from graphweft._budget import lifted
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.nn.module import CompiledModule
from graphweft.nn.stack import Stack
from graphweft.runtime.constants import owning
from graphweft.runtime.footprint import Footprint, footprint
from graphweft.runtime.rehearsal import Run, taken_bytes
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.feature import SparseFeatures
from graphweft.train.full_batch import is_plain
from graphweft.train.inference import USUAL_TILE
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.needs import Needs, RunBudget, base_needs, loss_bytes, rehearse
from graphweft.train.needs_by_running import evaluation_bytes, kept_buffers
from graphweft.train.settle import Features

_TILES = (USUAL_TILE // 16, USUAL_TILE // 4, USUAL_TILE)
_LARGER = 2  # times what the next tile takes at least, of four times as many nodes
_SWING = 1.05  # batches differ in size
_DRAWN, _NUMBERED = 32, 16  # bytes an edge and a node of a tile's draw, with what adding loops and copies take
_WORKER = 6 << 20  # a thread's own heap, where batches are large enough to fill it


def fit_into(mini: MiniBatch, budget: RunBudget) -> None:
    """Chooses how many batches are prepared ahead and how an evaluation is cut.

    Raises: MemoryBudgetError.
    """
    mini.budget = budget
    needs, ways = needs_within(mini, budget)
    budget.settle(needs)
    mini.loader.keep_ways(ways)


def needs_within(mini: MiniBatch, budget: RunBudget) -> tuple[Needs, list[CoreSplit]]:
    """The memory that training takes where it does as much at once as ``budget`` leaves room for, and how it prepares.

    It may not fit.
    """
    with lifted():
        mini.prepare()
        taken = batch_taken(mini)
        step = int(_SWING * taken_bytes(taken.step))
        base = base_needs(mini.ds, mini.model, budget)
        base = replace(base, data=base.data + mini.half_bytes, step=step, trims=True)
        runs = {way: taken.prepared(way, len(mini.loader)) for way in mini.loader.tried}
        batches = {
            way: int(_SWING * taken_bytes(run)) - step + taken.by_workers(way, len(mini.loader))
            for way, run in runs.items()
        }
        base, evaluation = _with_evaluation(mini, budget, replace(base, batches=min(batches.values())))

    def under(way: CoreSplit, trims: bool) -> Needs:
        if trims:
            return replace(base, batches=batches[way])
        both = taken_bytes(
            runs[way], evaluation, runs[way], evaluation
        )  # steps take what evaluations left free as well
        more = max(0, both - taken_bytes(runs[way]))
        return replace(base, batches=batches[way], trims=False, evaluation=more)

    ways = {way: under(way, trims=False) for way in runs}
    if not all(map(budget.fits, ways.values())):
        ways = {way: under(way, trims=True) for way in runs}
    least = min(ways.values(), key=lambda needs: needs.total)
    fitting = {way: needs for way, needs in ways.items() if budget.fits(needs)}
    return max(fitting.values(), key=lambda needs: needs.total, default=least), list(fitting)


@dataclass(frozen=True)
class BatchTaken:
    """The memory of a batch.

    Attributes:
        held: Bytes of the parts of a batch that is ready.
        making: Bytes of what passes while it is made.
        step: What is trained on it.
    """

    held: tuple[float, ...]
    making: tuple[float, ...]
    step: Run

    def prepared(self, way: CoreSplit, batches: int) -> Run:
        """A step beside the batches that are ready, and those that are being made."""
        most = max(batches, 1)
        ready, made = min(way.ahead + 1, most), min(max(way.workers, 1), most)
        return replace(self.step, beside=(*self.step.beside, *self.held * ready, *self.making * made))

    def by_workers(self, way: CoreSplit, batches: int) -> int:
        """What the heaps of the threads that prepare keep of what they have freed."""
        return min(way.workers, batches) * min(_WORKER, int(sum(self.making)))


def batch_taken(mini: MiniBatch) -> BatchTaken:
    """By account for a compiled batch; another is made and trained on, without an update."""
    staged = mini.staged_plan()
    if staged is not None:
        plan, sizes = staged
        held, making = plan.prepared_bytes(sizes)
        return BatchTaken(held, making, Run(plan.plan, sizes, loss_bytes(sizes.rows["B"], mini.ds.num_classes)))
    with torch.random.fork_rng(devices=[]), kept_buffers(mini.model):
        places = torch.arange(min(mini.loader.batch_size, mini.loader.num_items))
        ready, made, step = rehearse(lambda: mini.loader.make(places, 0), mini.gradients)
    mini.optimizer.zero_grad(set_to_none=True)
    return BatchTaken((ready,), (made - ready,), Run(beside=(step,)))


def _with_evaluation(mini: MiniBatch, budget: RunBudget, base: Needs) -> tuple[Needs, Run]:
    """``base`` with an evaluation of all nodes at once, or of as many as the budget leaves room for; and that."""
    model = mini.model
    if not is_plain(model):
        taken = evaluation_bytes(model, mini.ds, mini.x, mini.edge_data, budget.limit - base.total)
        run = Run(beside=(taken.pool,), by_torch=taken.beside)
        return replace(base, evaluation=taken.total, measured=True), run
    whole, run = _whole(mini, model)
    needs = replace(base, evaluation=taken_bytes(run), kept=whole.hoisted, structure=whole.structure)
    tiles = [tile for tile in _TILES if tile < mini.ds.num_nodes]
    if budget.fits(needs) or not isinstance(model, Stack) or not tiles:
        return needs, run
    found: Needs | None = None
    for tile in tiles:  # the smallest first, as finding out takes much of what a tile does
        needs = replace(base, evaluation=_tiled(mini, model, tile))
        fits = budget.fits(needs)
        if found is None or fits:
            found, budget.tile = needs, tile
        larger = replace(needs, evaluation=_LARGER * needs.evaluation)
        if not fits or not budget.fits(larger):
            break
    assert found is not None  # there are tiles
    return found, Run(beside=(found.evaluation,))


def _whole(mini: MiniBatch, model: CompiledModule) -> tuple[Footprint, Run]:
    """What a pass over the whole graph takes, and the pass."""
    training = model.training
    with torch.no_grad(), owning(mini.x):
        arguments = model.eval().arguments(mini.ds.graph, mini.x, None, mini.edge_data.inputs)
        plan, sizes = model.function.sized_plan(arguments)
    model.train(training)
    found = footprint(plan, sizes, mini.ds.graph.is_symmetric)
    return found, Run(plan, sizes, stays=(found.hoisted, found.structure))


def _tiled(mini: MiniBatch, model: Stack, tile: int) -> int:
    """What a pass takes that computes each layer for ``tile`` nodes at a time: rows of two layers, and one tile."""
    graph, nodes, real = mini.ds.graph, mini.ds.num_nodes, torch.float32.itemsize
    degrees = torch.nn.functional.pad(graph.in_degrees(), (0, -nodes % tile)).view(-1, tile).sum(1)
    first = int(degrees.argmax()) * tile if nodes else 0
    block = NeighborSampler(graph, [-1]).sample(torch.arange(first, min(first + tile, nodes))).blocks[0]
    widths = [parameter.shape[-1] for parameter in model.parameters() if parameter.dim() == 2]
    most, training = 0, model.training
    model.eval()
    with torch.no_grad():
        for index, layer in enumerate(model.layers):
            assert isinstance(layer, CompiledModule)
            width = layer.in_features
            read: Features = torch.zeros(1, width).expand(block.num_src, -1)
            gathered = block.num_src * real * width
            if index == 0 and isinstance(mini.x, SparseFeatures):
                read = mini.x.take_rows(block.src_ids)
                gathered = read.nnz * 2 * real
            given = model.layer_arguments(index, block, read, mini.edge_data.inputs)
            taken = footprint(*model.layer_function(index).sized_plan(given))
            kept = nodes * real * (max(widths) + (width if index else 0))
            most = max(most, kept + gathered + taken.peak + taken.hoisted + taken.structure)
    model.train(training)
    return most + _DRAWN * block.num_edges + _NUMBERED * (nodes + block.num_src)


__all__ = ["BatchTaken", "batch_taken", "fit_into", "needs_within"]
