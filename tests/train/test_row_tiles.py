"""Inference over parts reads each row a few times at most, however its tiles are cut, and no row that nobody reads."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft.loader.parts import MemoryParts
from graphweft.train import scratch
from graphweft.train.node_set import NodeSet
from graphweft.train.part_inference import PartInference
from graphweft.train.row_tiles import RowTiles
from graphweft.train.tiles import TileCost, Tiles

NODES, WIDTH, EDGES = 6000, 64, 36_000


@pytest.fixture(scope="module")
def random_graph() -> gw.Dataset:
    """Edges anywhere: no order of nodes puts the ends of many of them together."""
    rng = np.random.default_rng(0)
    graph = gw.Graph(*rng.integers(0, NODES, (2, EDGES)), num_nodes=NODES)
    x, y = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0)), torch.arange(NODES) % 5
    return gw.Dataset("random", graph, x, y, seed=0)


@pytest.fixture(scope="module")
def stored(random_graph: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "random"
    return gw.macro.prepare_store(random_graph, path, parts=8, method="hash").path


def test_a_set_of_nodes_against_numpy() -> None:
    is_member = np.random.default_rng(0).random(1003) < 0.4
    ids, found = np.flatnonzero(is_member), NodeSet(is_member)
    assert found.count == len(ids)
    for first, end in ((0, 1003), (5, 6), (13, 900), (8, 16), (1003, 1003)):
        assert found.within(first, end).tolist() == ids[(ids >= first) & (ids < end)].tolist()
    assert found.places(ids).tolist() == list(range(len(ids)))


@pytest.mark.parametrize("most", [1, 40, 1000, 10**6])
def test_tiles_have_every_edge_once_and_every_source_once(most: int) -> None:
    rng = np.random.default_rng(1)
    graph = gw.Graph(*rng.integers(0, 300, (2, 1500)), num_nodes=300)
    part = torch.from_numpy(rng.integers(0, 4, 300))
    source = MemoryParts(graph, torch.eye(300), torch.zeros(300), part, 4)
    wanted = NodeSet(rng.random(300) < 0.7)
    src, dst = (torch.from_numpy(source.new_id)[ends.long()].numpy() for ends in graph.edges())
    expected = sorted((a, b) for a, b in zip(src.tolist(), dst.tolist(), strict=True) if wanted.within(b, b + 1).size)
    edges: list[tuple[int, int]] = []
    own: list[int] = []
    for tile in RowTiles(source, wanted.within, most, TileCost(1, 1, 0)).tiles():
        ids = tile.ids
        assert len(np.unique(ids)) == len(ids) == len(np.union1d(tile.own, tile.sources))
        assert tile.cost <= most or len(tile.own) == 1
        rows = np.repeat(tile.own, np.diff(tile.indptr))
        edges += zip(ids[tile.columns].tolist(), rows.tolist(), strict=True)
        own += tile.own.tolist()
    assert sorted(edges) == expected
    assert own == wanted.within(0, 300).tolist()


def _evaluated(store: gw.macro.Store, model: gw.nn.SAGE, wanted: np.ndarray, tile: int) -> tuple[torch.Tensor, int]:
    """Outputs, and bytes of features that were read for them."""
    store.verify()  # checksums are not compared again
    store.piece = 1 << 16
    inference = PartInference(model, store, 1 << 24, 1)
    inference.tiles = Tiles(tile, 0)
    blocks = [part.block(name).nbytes for part in store.manifest.parts for name in ("indptr", "indices")]
    before = store.counts.nbytes
    found = inference.outputs(wanted)
    # degrees, nodes that the last layer reads, and the cut of each layer, twice
    return found, store.counts.nbytes - before - 6 * sum(blocks)


@pytest.mark.parametrize("has_room", [True, False])
def test_rows_of_random_edges_are_read_twice_not_once_a_tile(
    has_room: bool, random_graph: gw.Dataset, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of other tiles are put in order in one pass; on a full disk tiles read them themselves."""
    if not has_room:
        monkeypatch.setattr(scratch, "temporary", _full)
    store = gw.macro.Store(stored)
    torch.manual_seed(0)
    model = gw.nn.SAGE(WIDTH, 32, 5, num_layers=2).eval()
    found, nbytes = _evaluated(store, model, np.arange(NODES), 600_000)
    order = torch.cat([store.node_ids(number) for number in range(8)])
    torch.testing.assert_close(found, model(random_graph.graph, random_graph.x)[order], rtol=1e-4, atol=1e-5)
    features = 4 * NODES * WIDTH
    assert (nbytes <= 2.2 * features) == has_room


def _full(*_: object) -> None:
    raise gw.errors.DataError("disk: expected room, got: no space")


def test_rows_that_no_wanted_node_reads_are_not_read(tmp_path: Path) -> None:
    """A ring: two layers reach two nodes further back."""
    ids = torch.arange(NODES)
    x = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0))
    ds = gw.Dataset("ring", gw.Graph(ids, (ids + 1) % NODES), x, ids % 5, seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "ring", parts=8, method="range")
    torch.manual_seed(0)
    model = gw.nn.SAGE(WIDTH, 32, 5, num_layers=2).eval()
    wanted = np.arange(2000, 2100)
    assert [nodes.count for nodes in PartInference(model, store, 1 << 24, 1).computed(wanted)] == [101, 100]
    found, nbytes = _evaluated(store, model, wanted, 1 << 20)
    torch.testing.assert_close(found, model(ds.graph, ds.x)[wanted], rtol=1e-4, atol=1e-5)
    assert nbytes <= 2 * 4 * 110 * WIDTH + 2 * 4096  # structure of parts without wanted nodes is not read either


def test_a_tile_is_gone_before_the_next_one_is_made(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = gw.nn.SAGE(WIDTH, 8, 5, num_layers=2)
    made, closed = list[weakref.ref[np.ndarray]](), RowTiles._closed

    def alone(self: RowTiles, held: object) -> object:
        assert all(one() is None for one in made)
        tile = closed(self, held)
        made.append(weakref.ref(tile.columns))
        return tile

    monkeypatch.setattr(RowTiles, "_closed", alone)
    inference = PartInference(model, gw.macro.Store(stored), 1 << 24, 1)
    inference.tiles = Tiles(1 << 17, 0)
    inference.outputs(np.arange(NODES))
    assert len(made) > 8
