"""Outputs of nodes whose graph and features are not in memory: layer by layer, part by part.

Comes in: a model, a source of parts, the nodes that are wanted. Goes out: their outputs. Called by training on groups
of parts. A stack of layers is exact: every node reads all of its in-edges. A layer is computed for the nodes alone that
the next one reads, tile by tile; hidden rows lie in a temporary file where they have no room, and memory holds the
rows of one tile. Another model sees the graph that a group of parts induces.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from graphweft._distinct import Ids
from graphweft._memory import POOL, empty, trim_heap
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block, with_degrees
from graphweft.graph.graph import Graph
from graphweft.loader.groups import read_group, typed_graph
from graphweft.loader.parts import PartSource
from graphweft.loader.whole_first import joined_block
from graphweft.nn.edges import EdgeInputs, weighted_degrees
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.sample.in_edges import entries_of
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.flat_rows import flat_rows_of
from graphweft.storage.store import Store
from graphweft.storage.typed_rows import TableSource, UncompressedRows
from graphweft.train.hub_rows import HubWeights, degrees_of, is_reducible, joined
from graphweft.train.narrow_layer import narrowing, run_narrow
from graphweft.train.node_set import NodeSet
from graphweft.train.row_spill import Spill, TooManyRowsError, spilled
from graphweft.train.row_tables import BlankTable, FeatureTable, HiddenTable, RowTable
from graphweft.train.row_tiles import RowTile, RowTiles
from graphweft.train.scratch import NoRoomError
from graphweft.train.sliced_layer import Reduced, SlicedPlan, planned, reduced
from graphweft.train.tiles import LEAST_TILE, HiddenRows, TileCost, Tiles

_JOINED = 4  # copies of a row whose sum is taken: as read, in order, in float64
_PIECE = 8 << 20  # bytes of rows that are read at a time where no store says otherwise
_SPILL_SHARE = 2  # of a tile, while none is there: rows that are put in the order of tiles
_WEIGHED = 64  # bytes of an edge whose weight is added up


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
        weighted: Whether layers read the weights of edges; they do not unless somebody says so.

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
        self.weighted = False
        self._flat = flat_rows_of(source) if isinstance(source, Store) else None
        self._names: Tensor | None = None
        self._slot: Tensor | None = None  # rows of the nodes that were read last

    @property
    def remembered(self) -> int:
        """Bytes of what was found once of all nodes and stays for later inferences."""
        found = (self._degrees, *(self._normaliser or ()), self._names, self._slot)
        return sum(tensor.nbytes for tensor in found if tensor is not None)

    def outputs(self, wanted: Ids) -> Tensor:
        """(n, C) outputs in evaluation mode of the nodes ``wanted``, ascending ids of the source."""
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
            given = {} if group.edge_weight is None or not self.weighted else {"edge_weight": group.edge_weight}
            rows: Tensor = self.model(group.graph, group.rows(torch.arange(group.graph.num_nodes)), **given)
            if found is None:
                found = self.tiles.rows(self._scratch, len(wanted), rows.shape[1]).rows
            found[cut] = rows[torch.from_numpy(wanted[cut] - bounds[parts.start])]
            del group, rows
        return torch.empty(0, 0) if found is None else found

    def _by_layers(self, model: Stack, wanted: Ids) -> Tensor:
        under: tuple[HiddenRows, NodeSet] | None = None
        made = self.computed(wanted)
        if embeds(model):
            under = self._embedded(model, made[0]), made.pop(0)
        for index, nodes in enumerate(made):
            under = self._layer(model, index, nodes, under), nodes
        assert under is not None  # a stack has a layer
        return under[0].rows

    def computed(self, wanted: Ids) -> list[NodeSet]:
        """The nodes whose rows each layer makes: those that the next one reads, and of the last one ``wanted``.

        Before them, where the model embeds features, the nodes whose rows are embedded.
        """
        assert isinstance(self.model, Stack)  # of layers
        bounds = self.source.bounds
        found = [NodeSet.of(wanted, int(bounds[-1]))]
        for _ in range(len(self.model.layers) - 1 + embeds(self.model)):
            above = found[-1]
            if above.count == bounds[-1]:
                found.append(above)
                continue
            is_read = np.zeros(int(bounds[-1]), np.bool_)
            for number, start in enumerate(bounds[:-1].tolist()):
                nodes = above.within(start, int(bounds[number + 1]))
                is_read[nodes] = True
                if len(nodes):
                    offsets, sources = self.source.structure(number)
                    is_read[sources[entries_of(offsets, nodes - start)[1]]] = True
            found.append(NodeSet(is_read))
        return found[::-1]

    def _embedded(self, model: TypedStack, nodes: NodeSet) -> HiddenRows:
        """Embedded features of some nodes, in one pass over them: few columns lie in wait for the first layer then."""
        assert model.embedding is not None  # as embeds says
        table, width = self._table(None), model.embedding.shape[1]
        step, row = self._embedded_at_once(model), 0
        found = self.tiles.rows(self._scratch, nodes.count, width)
        for start, end in itertools.pairwise(self.source.bounds.tolist()):
            own = nodes.within(start, end)
            for first in range(0, len(own), step):
                made = model.embedded(0, self._rows(own[first : first + step], table))
                found.put(row, made, table.piece)
                row += len(made)
                del made
            if self.tiles.kept is not None:
                trim_heap()
        found.let_go()
        return found

    def _embedded_at_once(self, model: TypedStack) -> int:
        """Nodes whose features are embedded together."""
        cost = self.embedding_cost(model)
        return max(self.tiles.bytes_of(cost) // (cost.row + cost.own), 1)

    def embedding_cost(self, model: TypedStack) -> TileCost:
        """Bytes of rows that are embedded."""
        assert model.embedding is not None  # as embeds says
        return TileCost.of_layer(self._stored_width(), model.embedding.shape[1])

    def _layer(self, model: Stack, index: int, nodes: NodeSet, under: tuple[HiddenRows, NodeSet] | None) -> HiddenRows:
        """Rows of one layer for some nodes; ``under`` are those that it reads, None the features."""
        table = self._table(under)
        found: HiddenRows | None = None
        # tiles of a typed graph are no larger than parts: their rows wait for the disk together
        row, most = 0, 0 if self.source.types is None else table.piece
        for part in self._stretches(model, index, nodes, table, under):
            if found is None:
                held = 0 if under is None else under[0].nbytes
                found = self.tiles.rows(self._scratch, nodes.count, part.shape[1], held)
            found.put(row, part, most)
            row += len(part)
            del part
            table.let_go()
            if self.tiles.kept is not None:  # gaps of the heap that no other tile fits would add up
                trim_heap()
        if found is None:
            return HiddenRows(torch.empty(0, model.out_features))
        found.let_go()
        return found

    def _stretches(
        self, model: Stack, index: int, nodes: NodeSet, table: RowTable, under: tuple[HiddenRows, NodeSet] | None
    ) -> Iterator[Tensor]:
        """Rows of a layer, stretch after stretch: those of tiles, or by slices of columns where that reads less."""
        cut = self._cut(model, index, nodes, self._stored_width() if under is None else table.width)
        spill: Spill | None = None
        if self._flat is None or under is not None:
            plan = None if self.source.types is not None else self._sliced(model, index, nodes, table)
            nodes_of_all, memory = int(self.source.bounds[-1]), max(self.tiles.tile // _SPILL_SHARE, table.piece)
            spill_of = partial(spilled, table, nodes=nodes_of_all, folder=self._scratch, memory=memory)
            try:
                spill = spill_of(cut.tiles(), limit=None if plan is None else plan.nbytes)
            except TooManyRowsError:
                assert plan is not None  # which has a limit
                try:
                    degrees = self._all_weighted()[0] if self.weighted else self._all_degrees()
                    POOL.trim()
                    weight, layer = narrowing(model, index), model.layers[index]
                    given = (degrees, plan, self._scratch, weight, self.weighted)
                    sums = reduced(layer, table, nodes, self.source, *given)
                except NoRoomError:
                    spill = spill_of(cut.tiles())
                else:
                    yield from self._by_slices(model, index, nodes, table, sums)
                    return
        tiles = cut.tiles()
        for number in itertools.count():
            tile = next(tiles, None)
            if tile is None:
                return
            rows = self._of_tile(model, index, tile, table, None if spill is None else (spill, number))
            del tile  # before there is another
            yield rows
            del rows

    def _sliced(self, model: Stack, index: int, nodes: NodeSet, table: RowTable) -> SlicedPlan | None:
        """How a layer is computed by slices of columns, where it can be."""
        if not is_reducible(model.layers[index], self.weighted):
            return None
        bounds, degrees = self.source.bounds.tolist(), self._all_degrees()
        own = (nodes.within(*ends) for ends in itertools.pairwise(bounds))
        edges = sum(int(degrees[torch.from_numpy(ids)].sum(dtype=torch.float64)) for ids in own)
        cost = self.cost(model, index, table.width)
        weight, memory = narrowing(model, index), max(self.tiles.granted, self.tiles.bytes_of(cost))
        narrow = None if weight is None else weight.shape[1]
        return planned(table, nodes.count, edges, memory, narrow, self.weighted)

    def _by_slices(self, model: Stack, index: int, nodes: NodeSet, table: RowTable, sums: Reduced) -> Iterator[Tensor]:
        """Rows of a layer whose neighbours have been put together."""
        cost = self.cost(model, index, table.width)
        step = max(max(self.tiles.granted, self.tiles.bytes_of(cost)) // cost.of(_JOINED, 1, 1), 1)
        rows = aligned_empty((2 * min(step, nodes.count), table.width), torch.float32)
        weight = narrowing(model, index)
        summed = rows if weight is None else rows[:, : weight.shape[1]]
        for first in range(0, nodes.count, step):
            ids = nodes.at(first, min(first + step, nodes.count))
            own = len(ids)
            table.fill(ids, rows, torch.arange(own))
            has_any, others = sums.stretch(first, first + own, summed[own:])
            block = joined_block(has_any, self._all_degrees()[torch.from_numpy(ids)])
            edges = self._joined_edges(ids, others) if self.weighted else None
            if weight is None:
                yield model.run_layer(index, block, rows[: own + others], edges)
            else:
                yield run_narrow(model, index, block, rows[: own + others], own, weight, edges)
        POOL.trim()  # its memory would lie beside the slices of the next layer

    def _joined_edges(self, ids: Ids, others: int) -> EdgeInputs:
        """Edges of some nodes from ``others`` neighbours that stand for all, whose rows have the weights in them."""
        edges = EdgeInputs(torch.ones(others), fixed=True)
        degree, loop = (
            torch.cat([of_all[torch.from_numpy(ids)], torch.ones(others)]) for of_all in self._all_weighted()
        )
        edges.normalised_by(degree, loop)
        return edges

    def _table(self, under: tuple[HiddenRows, NodeSet] | None) -> RowTable:
        """Rows that a layer reads."""
        store = self.source if isinstance(self.source, Store) else getattr(self.source, "stored", None)
        piece = _PIECE if store is None else store.piece
        return FeatureTable(self.source, store is not None, piece) if under is None else HiddenTable(*under, piece)

    def cost(self, model: Stack, index: int, width: int) -> TileCost:
        """Bytes of a tile of a layer over rows of ``width`` columns."""
        layer = model.layers[index]
        heads = max((int(getattr(module, "heads", 0)) for module in layer.modules()), default=0)
        return TileCost.of_layer(width, out_width(layer), heads)

    def _stored_width(self) -> int:
        """Columns of features as they are stored."""
        return self._flat.stored_width if self._flat is not None else self.source.num_features

    def _cut(self, model: Stack, index: int, nodes: NodeSet | None, width: int) -> RowTiles:
        """The tiles of a layer that is computed for ``nodes`` over rows of ``width`` columns; None: for all nodes."""
        cost = self.cost(model, index, width)
        wanted = partial(np.arange, dtype=np.int64) if nodes is None else nodes.within
        return RowTiles(self.source, wanted, self.tiles.bytes_of(cost), cost, self.weighted)

    def first_tile(self, model: Stack) -> int:
        """Computes a tile of the first layer that begins with the part with most edges; its bytes as counted."""
        number = int(self.source.edge_counts.argmax())
        table, told = self._table(None), 0
        with evaluating(model):
            if embeds(model):
                assert model.embedding is not None  # as embeds says
                own = np.arange(*self.source.bounds[number : number + 2])[: self._embedded_at_once(model)]
                model.embedded(0, self._rows(own, table))
                told, table = self.embedding_cost(model).of(len(own), 0, 0), BlankTable(model.embedding.shape[1], table)
            width = table.width if isinstance(table, BlankTable) else self._stored_width()
            tile = next(self._cut(model, 0, None, width).tiles(number), None)
            if tile is not None:
                self._of_tile(model, 0, tile, table, None)
                told = max(told, tile.cost)
        return told

    def _of_tile(
        self, model: Stack, index: int, tile: RowTile, table: RowTable, spill: tuple[Spill, int] | None
    ) -> Tensor:
        """Rows of a layer for the nodes of a tile."""
        layer = model.layers[index]
        if tile.relations is None and tile.is_over and is_reducible(layer, tile.weights is not None):
            cost = self.cost(model, index, table.width)
            most = max(self.tiles.bytes_of(cost) // (_JOINED * cost.row), 1)
            rows = partial(self._rows, table=table)
            own, taken = int(tile.own[0]), tile.sources.astype(np.int64)
            weights = None if tile.weights is None else HubWeights(tile.weights, self._all_weighted()[0])
            block, summed = joined(layer, own, taken, rows, self._all_degrees(), most, weights)
            edges = None if weights is None else self._joined_edges(tile.own, len(summed) - 1)
            return model.run_layer(index, block, summed, edges)
        if tile.relations is not None:
            block, ids = self._typed_block(tile)
            if isinstance(table, FeatureTable):
                return model.run_layer(index, block, self._rows(ids, table))
            order = np.argsort(tile.ids)
            places = torch.from_numpy(order[np.searchsorted(tile.ids, ids, sorter=order)])
            given = self._rows_of(tile, table, spill)[places]
            if index == 0 and isinstance(model, TypedStack):
                return model.run_embedded(block, given)
            return model.run_layer(index, block, given)
        block, edges = self._block(tile)
        return model.run_layer(index, block, self._rows_of(tile, table, spill), edges)

    def _rows_of(self, tile: RowTile, table: RowTable, spill: tuple[Spill, int] | None) -> Tensor:
        """Rows of a tile's sources by their numbers."""
        own, count = len(tile.own), len(tile.own) + len(tile.others)
        out = empty((count, table.width), torch.float32)
        if spill is None or tile.is_over:
            ids = np.concatenate([tile.own, tile.others])
            order = np.argsort(ids, kind="stable")
            table.fill(ids[order], out, torch.from_numpy(order))
        else:
            table.fill(tile.own, out, torch.arange(own))
            spill[0].fill(spill[1], out, own)
        return out

    def _block(self, tile: RowTile) -> tuple[Block, EdgeInputs | None]:
        """A tile as a block into its own nodes, and weights of its edges."""
        ids = tile.ids
        rows = np.concatenate([tile.indptr, np.full(len(tile.others), tile.indptr[-1])])
        graph = Graph.from_adjacency(Adjacency(torch.from_numpy(rows), torch.from_numpy(tile.columns), None, len(ids)))
        with_degrees(graph, self._all_degrees()[torch.from_numpy(ids)])
        edges = None if tile.weights is None else EdgeInputs(torch.from_numpy(tile.weights), fixed=True)
        if edges is not None:
            degree, loop = self._all_weighted()
            edges.normalised_by(degree[torch.from_numpy(ids)], loop[torch.from_numpy(ids)])
        # numbers of sources are those of the tile: its own nodes, then the others by ascending number
        return NeighborSampler(graph, [-1]).sample(torch.arange(len(tile.own))).blocks[0], edges

    def _typed_block(self, tile: RowTile) -> tuple[Block, Ids]:
        """A tile of one part as a block of a typed graph, and ids of its sources."""
        types = self.source.types
        assert types is not None and tile.relations is not None  # there are relations
        kinds = len(types.node_types)
        ids = np.sort(tile.ids)
        of = (np.searchsorted(self.source.regions[1:], ids, "right")) % kinds
        order = np.argsort(of, kind="stable")  # nodes type after type, as every typed graph has them
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        columns, rows = at[np.searchsorted(ids, tile.sources)], at[np.searchsorted(ids, tile.own)]
        counts = np.zeros(len(ids) + 1, np.int64)
        counts[rows + 1] = np.diff(tile.indptr)  # own nodes are type after type, so entries keep their order
        starts = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=kinds))])
        structure = (torch.from_numpy(np.cumsum(counts)), torch.from_numpy(columns.astype(np.int32)))
        graph, _ = typed_graph(types, tile.relations, tuple(starts.tolist()), *structure)
        block = NeighborSampler(graph, [-1]).sample(torch.from_numpy(rows)).blocks[0]
        return block, ids[order][block.src_ids.numpy()]

    def _all_weighted(self) -> tuple[Tensor, Tensor]:
        """float32 (N,) weights of all in-edges of each node with that of its own row, and that alone; summed once."""
        if self._normaliser is None:
            nodes = int(self.source.bounds[-1])
            found = torch.empty(nodes), torch.empty(nodes)
            most = max(self.tiles.tile, LEAST_TILE)
            cut = RowTiles(self.source, partial(np.arange, dtype=np.int64), most, TileCost(0, 0, _WEIGHED), True)
            for tile in cut.tiles():
                assert tile.weights is not None  # there are weights
                rows = np.concatenate([tile.indptr, np.full(len(tile.others), tile.indptr[-1])])
                columns = torch.from_numpy(tile.columns)
                own = slice(int(tile.own[0]), int(tile.own[-1]) + 1)
                graph = Graph.from_adjacency(Adjacency(torch.from_numpy(rows), columns, None, len(tile.ids)))
                weights = torch.from_numpy(tile.weights)
                for of_all, of_tile in zip(
                    found, weighted_degrees(graph, torch.arange(len(tile.own)), weights), strict=True
                ):
                    of_all[own] = of_tile
                del tile, rows, columns, graph, weights, of_tile  # before there is another
            self._normaliser = found
        return self._normaliser

    def _rows(self, ids: Ids, table: RowTable) -> Any:
        """Rows by id, in the order of the ids."""
        if self._flat is None or not isinstance(table, FeatureTable):
            return self._read(ids, table)
        assert isinstance(self.source, Store)  # which has such rows
        if self._names is None:
            self._names = torch.cat([self.source.node_ids(number) for number in range(len(self.source))])
        names = self._names[torch.from_numpy(ids)]
        stored = self._flat.is_stored(names)
        if self._slot is None:
            self._slot = torch.zeros(len(self._names), dtype=torch.int32)
        self._slot[names[stored]] = torch.arange(int(stored.sum()), dtype=torch.int32)
        # which are multiplied where they lie, before any others are read
        return UncompressedRows.of(self._flat, names, TableSource(self._read(ids[stored.numpy()], table), self._slot))

    def _read(self, ids: Ids, table: RowTable) -> Tensor:
        order = np.argsort(ids, kind="stable")
        width = table.width if self._flat is None or not isinstance(table, FeatureTable) else self._flat.stored_width
        out = torch.zeros(len(ids), width)
        table.fill(ids[order], out, torch.from_numpy(order))
        return out

    def _all_degrees(self) -> Tensor:
        """float32 (N,): edges into each node, self-loops left out; counted once."""
        if self._degrees is None:
            self._degrees = degrees_of(self.source)
        return self._degrees


def embeds(model: nn.Module) -> TypeGuard[TypedStack]:
    """Whether features of all nodes are embedded before the first layer."""
    return isinstance(model, TypedStack) and model.embeds


def out_width(layer: nn.Module) -> int:
    """Columns of the widest parameter of a layer, which no row that it makes is wider than."""
    return max((p.shape[-1] for p in layer.parameters() if p.dim() > 1), default=1)


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
