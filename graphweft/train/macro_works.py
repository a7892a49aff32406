"""What an epoch over macro-batches of data in memory does, told by the first of them.

Comes in: a model, the loader of macro-batches, and what surrounds a step. Goes out: works for the cost model. Called
where seconds of mode "mini" are predicted. A macro-batch and its first batch are made for their sizes; the layers are
compiled as training compiles them, on the batch's blocks, and nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from graphweft.cost import Works, call_work, draw_work, rows_work
from graphweft.graph.block import Block
from graphweft.ir.residency import StructType
from graphweft.loader.multistage import MacroBatch, MultistageLoader, NestedBatch
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.module import CompiledModule
from graphweft.nn.stack import Stack
from graphweft.passes.work import Sizes
from graphweft.runtime.plan import Plan
from graphweft.runtime.prediction import plan_works
from graphweft.storage.feature import Features
from graphweft.train.full_batch import is_plain
from graphweft.train.macro import MacroRun

_ITEM = 4  # bytes of a number, of an offset or of a place
_COPIED = 6  # passes over the edges of a draw: its parts are joined, and their places in the whole graph looked up
_TURNED = 4  # passes over the edges of a block that is turned around for the backward pass
# What surrounds a layer that is called on a block of its own, in calls of kernels: its arguments, forms of the block,
# torch's engine. Where self-loops are added to the block, as many more, and passes over its edges.
_LAYER, _LOOPED = 48, 60
_TABLED = 4  # passes over hidden rows: into the table, and those of the halo out of it


def macro_works(
    run: MacroRun, model: nn.Module, edges: EdgeInputs | None, around: Callable[[int], Works], in_turn: bool
) -> tuple[Works, float] | None:
    """Of an epoch, and the seconds on one thread of what walks compute; None where they are not known.

    Args:
        run: The macro-batches. Those that are nested, measured by the quality guard or refreshed in between have no
            prediction.
        model: The model.
        edges: Weights and features of edges.
        around: What a step does beside its layers, by the rows of its outputs.
        in_turn: No thread prepares batches beside a step.
    """
    loader, settings = run.loader, run.macro
    if settings.quality is not None or settings.refresh or len(loader.macro) > 1:
        return None
    if not (is_plain(model) and isinstance(model, Stack) and model.is_staged()):
        return None
    macro, batch = loader.made(0)
    loader.forget()
    assert isinstance(batch, NestedBatch) and batch.x is not None  # a trainer's
    steps, outermost = len(loader), batch.blocks[0]
    layers, walks = _layers(model, batch.blocks, batch.x, edges)
    works = _of_draw(outermost.num_edges, outermost.num_src, batch.costs[-1][1].features, in_turn)
    works += layers
    if run.historical is not None:
        widths = [layer.in_features for layer in model.layers if isinstance(layer, CompiledModule)][1:]
        hidden = sum(block.num_dst * width for block, width in zip(batch.blocks, widths, strict=False))
        works.append((rows_work(hidden, _TABLED, plain=True), 1.0))
    found = _scaled(works, loader.num_items / max(steps * batch.num_seeds, 1), steps)
    found += [(work, steps * count) for work, count in around(batch.num_seeds)]
    return [*found, *_of_macro_batches(loader, macro, in_turn)], steps * walks


def _of_macro_batches(loader: MultistageLoader, macro: MacroBatch, in_turn: bool) -> Works:
    """Draws of all macro-batches, and their rows of features; they are as large as the first for its seeds."""
    if macro.cost is None:  # the whole graph, as it is
        return []
    groups = len({planned.path for planned in loader.plan(loader.epoch).batches})
    graph = macro.level.graph
    works = _of_draw(graph.num_edges, graph.num_nodes, macro.cost.features, in_turn)
    return _scaled(works, loader.num_items / max(groups * macro.level.seeds.numel(), 1), groups)


def _of_draw(edges: int, nodes: int, features: int, in_turn: bool) -> Works:
    """A draw, its edges as those of the whole graph, and so many bytes of features, read and written."""
    copied = rows_work(edges, _COPIED, plain=True)
    return [(draw_work(edges, nodes, in_turn=in_turn), 1.0), (copied, 1.0), (rows_work(features / _ITEM), 1.0)]


def _layers(model: Stack, blocks: Sequence[Block], x: Features, edges: EdgeInputs | None) -> tuple[Works, float]:
    """A step through all layers, each on its block, and the seconds on one thread of its walks."""
    training, found, seconds = model.training, Works(), 0.0
    model.train()
    with torch.enable_grad():
        for index, (layer, block) in enumerate(zip(model.layers, blocks, strict=True)):
            assert isinstance(layer, CompiledModule)
            rows = torch.zeros(1, layer.in_features, requires_grad=True).expand(block.num_src, -1)
            given = model.layer_arguments(index, block, rows if index else x, edges)
            plan, sizes = model.layer_function(index).sized_plan(given)
            works, walks = plan_works(plan, sizes)
            found += [*works, *_turned(plan, sizes), *_called(layer, block)]
            seconds += walks
    model.train(training)
    return found, seconds


def _called(layer: CompiledModule, block: Block) -> Works:
    """What surrounds the kernels of a layer."""
    if not layer.adds_loops():
        return [(call_work(), _LAYER)]
    return [(call_work(), 2 * _LAYER), (rows_work(block.num_edges, _LOOPED, plain=True), 1.0)]


def _turned(plan: Plan, sizes: Sizes) -> Works:
    """Graphs that are made of a block before its layer runs."""
    kinds = (item.value.type for item in plan.hoisted)
    counts = (sizes.rows.get(kind.edge, 0) for kind in kinds if isinstance(kind, StructType))
    return [(rows_work(count, _TURNED, plain=True), 1.0) for count in counts]


def _scaled(works: Works, share: float, times: int) -> Works:
    """``works``, each ``times`` as often and ``share`` as large."""
    return [
        (replace(work, amount=share * work.amount, bytes=share * work.bytes), times * count) for work, count in works
    ]


__all__ = ["macro_works"]
