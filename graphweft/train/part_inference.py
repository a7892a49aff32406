"""Outputs of nodes whose graph and features are not in memory: layer by layer, part by part.

Comes in: a model, a source of parts, the nodes that are wanted. Goes out: their outputs. Called by training on groups
of parts. A stack of layers is exact: every node reads all of its in-edges, hidden rows of a layer lie in a temporary
file, and memory holds the rows of one tile. Another model sees the graph that a group of parts induces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphweft._memory import trim_heap
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block, with_degrees
from graphweft.graph.graph import Graph
from graphweft.loader.groups import read_group, typed_graph
from graphweft.loader.parts import PartSource
from graphweft.nn.edges import EdgeInputs, weighted_degrees
from graphweft.nn.stack import Stack
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.flat_rows import flat_rows_of
from graphweft.storage.gather import gather_rows
from graphweft.storage.store import Store
from graphweft.train.hub_rows import is_reducible, joined
from graphweft.train.tiles import HiddenRows, Tiles

Ids = NDArray[np.int64]


class PartInference:
    """Inference over the parts of a source.

    Args:
        model: The model.
        source: The parts.
        memory: Bytes that may be used.
        count: Parts of a group, for a model that is no stack of layers.
        scratch: Folder of temporary files; None: the system's.

    Attributes:
        tiles: How much is in memory at once; a share of ``memory`` unless something else is set.

    Example:
        >>> from graphweft.loader.parts import MemoryParts
        >>> from graphweft.nn.sage import SAGE
        >>> graph, model = Graph([0, 1], [1, 2]), SAGE(4, 8, 2)
        >>> source = MemoryParts(graph, torch.ones(3, 4), torch.zeros(3).long(), torch.tensor([0, 1, 0]), 2)
        >>> found = PartInference(model, source, 1 << 24, 1).outputs(np.arange(3))
        >>> bool(torch.allclose(found, model.eval()(graph, torch.ones(3, 4))[source.order], atol=1e-5))
        True
    """

    def __init__(
        self, model: nn.Module, source: PartSource, memory: int, count: int, scratch: Path | None = None
    ) -> None:
        self.model, self.source, self.count, self._scratch = model, source, count, scratch
        self.tiles = Tiles.share_of(memory)
        self._degrees: Tensor | None = None
        self._normaliser: tuple[Tensor, Tensor] | None = None
        self._weighted = False
        self._flat = flat_rows_of(source) if isinstance(source, Store) else None
        self._names: Tensor | None = None

    def outputs(self, wanted: Ids, weighted: bool = False) -> Tensor:
        """(n, C) outputs in evaluation mode of the nodes ``wanted``, ascending ids of the source.

        ``weighted``: layers read the weights of edges.
        """
        self._weighted = weighted
        with evaluating(self.model):
            return self._by_layers(self.model, wanted) if isinstance(self.model, Stack) else self._by_groups(wanted)

    def _by_groups(self, wanted: Ids) -> Tensor:
        bounds = self.source.bounds
        found: Tensor | None = None
        for first in range(0, len(bounds) - 1, self.count):
            parts = range(first, min(first + self.count, len(bounds) - 1))
            cut = slice(*np.searchsorted(wanted, (bounds[parts.start], bounds[parts.stop])).tolist())
            if cut.start == cut.stop:
                continue
            group = read_group(self.source, parts)
            given = {} if group.edge_weight is None or not self._weighted else {"edge_weight": group.edge_weight}
            rows: Tensor = self.model(group.graph, group.rows(torch.arange(group.graph.num_nodes)), **given)
            if found is None:
                found = self.tiles.rows(self._scratch, len(wanted), rows.shape[1]).rows
            found[cut] = rows[torch.from_numpy(wanted[cut] - bounds[parts.start])]
            del group, rows
        return torch.empty(0, 0) if found is None else found

    def _by_layers(self, model: Stack, wanted: Ids) -> Tensor:
        rows: HiddenRows | None = None
        last = len(model.layers) - 1
        for index in range(last + 1):
            nodes = wanted if index == last else np.arange(self.source.bounds[-1])
            rows = self._layer(model, index, nodes, rows)
        assert rows is not None  # a stack has a layer
        return rows.rows

    def _layer(self, model: Stack, index: int, wanted: Ids, under: HiddenRows | None) -> HiddenRows:
        """Rows of one layer for the nodes ``wanted``; ``under`` are those of all nodes, None the features."""
        bounds = self.source.bounds
        found: HiddenRows | None = None
        for number in range(len(bounds) - 1):
            first, last = np.searchsorted(wanted, (bounds[number], bounds[number + 1])).tolist()
            if first == last:
                continue
            for row, part in self._by_tiles(model, index, number, wanted[first:last] - bounds[number], under):
                if found is None:
                    held = 0 if under is None else under.nbytes
                    found = self.tiles.rows(self._scratch, len(wanted), part.shape[1], held)
                found.rows[first + row : first + row + len(part)] = part
                found.let_go()
                if self.tiles.kept is not None:  # gaps of the heap that no other tile fits would add up
                    trim_heap()
        return HiddenRows(torch.empty(0, model.out_features)) if found is None else found

    def first_tile(self, model: Stack) -> None:
        """Computes the first tile of the part with most edges, and gives nothing."""
        number = int(self.source.edge_counts.argmax())
        nodes = np.arange(int(self.source.bounds[number + 1] - self.source.bounds[number]))
        with evaluating(model):
            next(self._by_tiles(model, 0, number, nodes, None), None)

    def _by_tiles(
        self, model: Stack, index: int, number: int, nodes: Ids, under: HiddenRows | None
    ) -> Iterator[tuple[int, Tensor]]:
        """Rows of some nodes of a part, by their number in it, tile by tile, with the place of each tile's first."""
        features = self._flat.stored_width if self._flat is not None else self.source.num_features
        below, start = None if under is None else under.rows, int(self.source.bounds[number])
        layer = model.layers[index]
        width = features if below is None else below.shape[1]
        most = self.tiles.edges(width, out_width(layer), under is not None and under.is_filed)
        offsets, sources = self.source.structure(number)
        relations, weights = self.source.edge_columns(number)
        weights = weights if self._weighted else None
        is_plain = relations is None and weights is None
        ends = np.cumsum(offsets[nodes + 1] - offsets[nodes] + 1)
        row = 0
        while row < len(nodes):
            done = int(ends[row - 1]) if row else 0
            stop = max(int(np.searchsorted(ends, done + most, "right")), row + 1)
            chosen = nodes[row:stop]
            edges: EdgeInputs | None = None
            if is_plain and len(chosen) == 1 and ends[row] - done > most and is_reducible(layer):
                taken = sources[offsets[chosen[0]] : offsets[chosen[0] + 1]].astype(np.int64)
                own, rows = int(chosen[0] + start), partial(self._rows, below=below)
                block, given = joined(layer, own, taken, rows, self._all_degrees(), most)
            elif relations is not None:
                block, ids = self._typed_block(chosen, start, offsets, sources, relations)
                given = self._rows(ids, below)
            else:
                piece = self._piece(chosen, start, offsets, sources, weights)
                block, ids, edges = self._block(len(chosen), *piece)
                given = self._rows(ids, below)
            part = model.run_layer(index, block, given, edges)
            del block, given, edges
            if under is not None:
                under.let_go()
            yield row, part
            row = stop

    def _block(
        self, own: int, graph: Graph, ids: Ids, edges: EdgeInputs | None
    ) -> tuple[Block, Ids, EdgeInputs | None]:
        """A piece as a block into its ``own`` first nodes, the ids of the block's sources, and weights of the edges."""
        with_degrees(graph, self._all_degrees()[torch.from_numpy(ids)])
        if edges is not None:
            degree, loop = self._all_weighted()
            edges.normalised_by(degree[torch.from_numpy(ids)], loop[torch.from_numpy(ids)])
        block = NeighborSampler(graph, [-1]).sample(torch.arange(own)).blocks[0]
        return block, ids[block.src_ids.numpy()], edges

    def _piece(
        self,
        nodes: Ids,
        start: int,
        offsets: Ids,
        sources: NDArray[np.integer[Any]],
        weights: NDArray[np.float32] | None,
    ) -> tuple[Graph, Ids, EdgeInputs | None]:
        """The nodes of a part and the sources of their in-edges as a graph, their ids, and weights of the edges."""
        indptr, places = _in_edges(nodes, offsets)
        taken = sources[places].astype(np.int64)
        own = nodes + start
        others = np.setdiff1d(taken, own)
        ids = np.concatenate([own, others])
        # both halves ascend, so a source is found in one of them
        at = np.searchsorted(own, taken)
        inside = own[np.minimum(at, len(own) - 1)] == taken
        columns = np.where(inside, at, len(own) + np.searchsorted(others, taken)).astype(np.int32)
        rows = np.concatenate([indptr, np.full(len(others), indptr[-1])])
        graph = Graph.from_adjacency(Adjacency(torch.from_numpy(rows), torch.from_numpy(columns), None, len(ids)))
        return graph, ids, None if weights is None else EdgeInputs(torch.from_numpy(weights[places]), fixed=True)

    def _typed_block(
        self,
        nodes: Ids,
        start: int,
        offsets: Ids,
        sources: NDArray[np.integer[Any]],
        relations: NDArray[np.integer[Any]],
    ) -> tuple[Block, Ids]:
        """The nodes of a part with all of their in-edges, as a block of a typed graph; ids of its sources."""
        types = self.source.types
        assert types is not None  # there are relations
        kinds = len(types.node_types)
        indptr, places = _in_edges(nodes, offsets)
        taken, own = sources[places].astype(np.int64), nodes + start
        ids = np.union1d(own, taken)
        of = (np.searchsorted(self.source.regions[1:], ids, "right")) % kinds
        order = np.argsort(of, kind="stable")  # nodes type after type, as every typed graph has them
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        columns, rows = at[np.searchsorted(ids, taken)], at[np.searchsorted(ids, own)]
        counts = np.zeros(len(ids) + 1, np.int64)
        counts[rows + 1] = np.diff(indptr)  # own nodes of a part are type after type, so entries keep their order
        starts = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=kinds))])
        structure = (torch.from_numpy(np.cumsum(counts)), torch.from_numpy(columns.astype(np.int32)))
        graph, _ = typed_graph(types, relations[places], tuple(starts.tolist()), *structure)
        block = NeighborSampler(graph, [-1]).sample(torch.from_numpy(rows)).blocks[0]
        return block, ids[order][block.src_ids.numpy()]

    def _all_weighted(self) -> tuple[Tensor, Tensor]:
        """float32 (N,) weights of all in-edges of each node with that of its own row, and that alone; summed once."""
        if self._normaliser is None:
            bounds = self.source.bounds
            found = torch.empty(int(bounds[-1])), torch.empty(int(bounds[-1]))
            for number, (first, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
                weights = self.source.edge_columns(number)[1]
                graph, _, edges = self._piece(np.arange(end - first), first, *self.source.structure(number), weights)
                assert edges is not None and edges.weight is not None  # there are weights
                for of_all, of_part in zip(
                    found, weighted_degrees(graph, torch.arange(end - first), edges.weight), strict=True
                ):
                    of_all[first:end] = of_part
            self._normaliser = found
        return self._normaliser

    def _rows(self, ids: Ids, below: Tensor | None) -> Any:
        """Features or hidden rows by id."""
        if below is not None:
            found = gather_rows(below, torch.from_numpy(ids))
            assert isinstance(found, Tensor)  # hidden rows are dense
            return found
        if self._flat is None:
            return self._read(ids)
        assert isinstance(self.source, Store)  # which has such rows
        if self._names is None:
            self._names = torch.cat([self.source.node_ids(number) for number in range(len(self.source))])
        names = self._names[torch.from_numpy(ids)]
        return self._flat.rows(names, self._read(ids[self._flat.is_stored(names).numpy()]))

    def _read(self, ids: Ids) -> Tensor:
        order = np.argsort(ids, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        rows = self.source.feature_rows(ids[order]).float()
        return rows[torch.from_numpy(place)]

    def _all_degrees(self) -> Tensor:
        """float32 (N,): edges into each node, self-loops left out; counted once."""
        if self._degrees is None:
            bounds = self.source.bounds
            self._degrees = torch.empty(int(bounds[-1]))
            for number, start in enumerate(bounds[:-1].tolist()):
                offsets, sources = self.source.structure(number)
                degrees = np.diff(offsets)
                rows = np.repeat(np.arange(len(degrees), dtype=sources.dtype), degrees)
                loops = np.bincount(rows[sources == rows + sources.dtype.type(start)], minlength=len(degrees))
                self._degrees[start : start + len(degrees)] = torch.from_numpy(degrees - loops)
        return self._degrees


def out_width(layer: nn.Module) -> int:
    """Columns of the widest parameter of a layer, which no row that it makes is wider than."""
    return max((p.shape[-1] for p in layer.parameters() if p.dim() > 1), default=1)


def _in_edges(nodes: Ids, offsets: Ids) -> tuple[Ids, Ids]:
    """Where the in-edges of each of some nodes of a part begin among theirs, and their places in the part."""
    degrees = offsets[nodes + 1] - offsets[nodes]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return indptr, np.arange(int(indptr[-1])) - np.repeat(indptr[:-1] - offsets[nodes], degrees)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; modes are put back one by one, since some modules may be frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
