"""Named tensors of a batch's own graphs: rows of those that the whole graph has.

Comes in: a block or the subgraph of a sample, and the dataset. Goes out: nothing; the graph's ``edata`` and node fields
make their rows when they are first read. Called by :class:`Batch`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft.graph.block import Block, DrawnEdges
from graphweft.graph.fields import Fields
from graphweft.loader.tables import edge_tables, whole_graph
from graphweft.sample.sampler import Sample
from graphweft.storage.gather import gather_rows


def offer_to_block(block: Block, data: Any) -> None:
    """Offers the fields of the whole graph to a block, whose closures must not refer to the block itself."""
    drawn = getattr(block, "_drawn", None)  # a block that was unpickled has none
    if drawn is None:
        return
    for name, table in edge_tables(data).items():
        _offer_edges(block.edata, name, table, drawn)
    for name, table in whole_graph(data).ndata.items():
        _offer(block.srcdata, name, table, block.src_ids)
        _offer(block.dstdata, name, table, block.dst_ids)


def offer_to_subgraph(sample: Sample, data: Any) -> None:
    """Offers the fields of the whole graph to the sample as one graph."""
    on_edges, graph = edge_tables(data), sample.subgraph
    for name, table in on_edges.items():
        _offer(graph.edata, name, table, sample.e_id)
    for name, table in whole_graph(data).ndata.items():
        _offer(graph.ndata, name, table, sample.n_id)


def _offer(fields: Fields, name: str, table: Tensor, ids: Tensor) -> None:
    fields.offer(name, lambda: _rows(table, ids))


def _offer_edges(fields: Fields, name: str, table: Tensor, drawn: DrawnEdges) -> None:
    fields.offer(name, lambda: _rows(table, drawn.ids()))


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    rows = gather_rows(table, ids)
    assert isinstance(rows, torch.Tensor)  # a field of a graph is dense
    return rows
