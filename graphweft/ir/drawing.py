"""What sampling operations mean on concrete graphs.

Comes in: a ``SAMPLE`` value and a graph, or a draw that was made already. Goes out: the block it names. Used by the
oracle, which draws once a value, and by the runtime, which draws once a batch.
"""

from __future__ import annotations

from torch import Tensor

from graphweft.graph.block import Block, OpenBlock
from graphweft.graph.graph import Graph
from graphweft.ir.program import Value
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import OpenSample, Sample


def draw_block(value: Value, graph: Graph, seeds: Tensor, key: tuple[int, int]) -> Graph:
    """The block of a draw by ``key``, (seed, epoch)."""
    sampler = NeighborSampler(graph, value["fanouts"])
    draw = sampler.sample_open if value.get("open") else sampler.sample
    return block_of(value, draw(seeds, seed=key[0], epoch=key[1]))


def block_of(value: Value, drawn: Sample | OpenSample) -> Graph:
    """The block that a ``SAMPLE`` value names, out of the draw it belongs to."""
    block: Graph = drawn.blocks[-1 - value["hop"]]
    if isinstance(block, Block | OpenBlock):
        if value.get("loops") == "none":
            block = block.without_self_loops()
        elif value.get("loops") == "one":
            block = block.with_one_loop()
    return block.reverse() if value.get("turned") else block
