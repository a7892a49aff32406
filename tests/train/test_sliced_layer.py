"""Layers by slices of columns: the rows of the whole graph, and no more bytes than tables, sums and edges have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft.storage.block_file import BlockFile
from graphweft.storage.block_io import bytes_of
from graphweft.train import part_inference, scratch
from graphweft.train.column_slices import ColumnSlices
from graphweft.train.node_set import NodeSet
from graphweft.train.part_inference import PartInference
from graphweft.train.scratch import Scratch
from graphweft.train.tiles import Tiles

NODES, WIDTH, HIDDEN, CLASSES, EDGES = 8000, 40, 24, 5, 64_000
TILES = Tiles(100_000, 0, 2_000_000)  # of tiles that share few rows, and for slices


@pytest.fixture(scope="module")
def given() -> gw.Dataset:
    """Edges anywhere, some twice, a hub, self-loops, and nodes without in-edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, NODES, EDGES), rng.integers(50, NODES, EDGES)
    dst[:3000], src[3000:3200] = 77, dst[3000:3200]
    x = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0))
    return gw.Dataset("random", gw.Graph(src, dst, num_nodes=NODES), x, torch.arange(NODES) % CLASSES, seed=0)


@pytest.fixture(scope="module")
def stored(given: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "random"
    return gw.macro.prepare_store(given, path, parts=7, method="hash").path


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Layers that went by slices, and bytes that were written for them."""
    found = {"layers": 0, "written": 0}
    reduced, write = part_inference.reduced, Scratch.write_pages

    def counted(*args: Any) -> Any:
        found["layers"] += 1
        return reduced(*args)

    def written(file: Scratch, rows: Tensor, offset: int) -> None:
        found["written"] += len(bytes_of(rows))
        write(file, rows, offset)

    monkeypatch.setattr(part_inference, "reduced", counted)
    monkeypatch.setattr(Scratch, "write_pages", written)
    return found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that were read of files, and of maps the pages that rows lie on."""
    found = {"bytes": 0}
    requested, soon = BlockFile._read, BlockFile.read_soon

    def counted(file: BlockFile, offset: int, out: memoryview, least: int) -> None:
        found["bytes"] += least
        requested(file, offset, out, least)

    def paged(file: BlockFile, begins: list[int], length: int) -> None:
        found["bytes"] += 4096 * len(begins)
        soon(file, begins, length)

    monkeypatch.setattr(BlockFile, "_read", counted)
    monkeypatch.setattr(BlockFile, "read_soon", paged)
    return found


def _neighbours(graph: gw.Graph, x: Tensor, kind: str, without_loops: bool = False) -> tuple[Tensor, Tensor]:
    """Sums, means or maxima over in-edges, and how many there are, by torch."""
    src, dst = (ends.long() for ends in graph.edges())
    keep = src != dst if without_loops else torch.ones(len(src), dtype=torch.bool)
    src, dst = src[keep], dst[keep]
    count = torch.bincount(dst, minlength=len(x)).double().unsqueeze(1)
    if kind == "max":
        index = dst.unsqueeze(1).expand(-1, x.shape[1])
        return torch.zeros_like(x).scatter_reduce_(0, index, x[src], "amax", include_self=False), count
    total = torch.zeros_like(x).index_add_(0, dst, x[src])
    return (total / count.clamp(min=1) if kind == "mean" else total), count


def _layer(kind: str, layer: Any, graph: gw.Graph, x: Tensor) -> Tensor:
    """A layer in float64."""
    p = {name: value.double() for name, value in layer.state_dict().items()}
    if kind == "SAGE":
        return _neighbours(graph, x, layer.reduce)[0] @ p["neighbor_weight"] + x @ p["self_weight"] + p["bias"]
    if kind == "GIN":
        z = _neighbours(graph, x, "sum")[0] + (1 + p["eps"]) * x
        return torch.relu(z @ p["weight1"] + p["bias1"]) @ p["weight2"] + p["bias2"]
    _, count = _neighbours(graph, x, "sum", True)
    scale = (count + 1) ** -0.5 if layer.reduce == "sum" else torch.ones_like(count)
    total = _neighbours(graph, x * scale, "sum", True)[0] + x * scale
    return (total * scale if layer.reduce == "sum" else total / (count + 1)) @ p["weight"] + p["bias"]


@pytest.mark.parametrize(
    ("kind", "reduce", "wants_all"),
    [
        ("SAGE", "mean", True),
        ("SAGE", "sum", False),
        ("SAGE", "max", True),
        ("GCN", "sum", False),
        ("GCN", "mean", True),
        ("GIN", "sum", False),
    ],
)
def test_outputs_in_float64(
    kind: str, reduce: str, wants_all: bool, given: gw.Dataset, stored: Path, taken: dict[str, int]
) -> None:
    torch.manual_seed(0)
    model = getattr(gw.nn, kind)(WIDTH, HIDDEN, CLASSES, num_layers=2, reduce=reduce).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1)
    x = given.x.double()
    x = _layer(kind, model.layers[1], given.graph, torch.relu(_layer(kind, model.layers[0], given.graph, x)))
    store = gw.macro.Store(stored)
    wanted = np.arange(NODES) if wants_all else np.arange(0, NODES, 3)
    inference = PartInference(model, store, 1 << 24, 1)
    inference.tiles = TILES
    found = inference.outputs(wanted)
    order = torch.cat([store.node_ids(number) for number in range(7)])[torch.from_numpy(wanted)]
    torch.testing.assert_close(found.double(), x[order], rtol=1e-4, atol=1e-4)
    assert taken["layers"] == 2


@pytest.fixture(scope="module")
def weighted(given: gw.Dataset) -> gw.Dataset:
    return replace(given, edge_weight=torch.rand(EDGES, generator=torch.Generator().manual_seed(1)) + 0.1)


@pytest.fixture(scope="module")
def weighted_store(weighted: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "weighted"
    return gw.macro.prepare_store(weighted, path, parts=7, method="hash").path


@pytest.mark.parametrize(
    ("kind", "reduce", "hidden"),
    [
        ("SAGE", "mean", HIDDEN),
        ("SAGE", "sum", WIDTH),
        ("SAGE", "max", HIDDEN),
        ("GCN", "sum", WIDTH),
        ("GCN", "mean", HIDDEN),
        ("GIN", "sum", HIDDEN),
    ],
)
def test_weights_of_edges(
    kind: str, reduce: str, hidden: int, weighted: gw.Dataset, weighted_store: Path, taken: dict[str, int]
) -> None:
    """As in memory; a maximum of weighted rows goes by tiles."""
    torch.manual_seed(0)
    model = getattr(gw.nn, kind)(WIDTH, hidden, CLASSES, num_layers=2, reduce=reduce).eval()
    store = gw.macro.Store(weighted_store)
    inference = PartInference(model, store, 1 << 24, 1)
    inference.tiles, inference.weighted = TILES, True
    found = inference.outputs(np.arange(NODES))
    order = torch.cat([store.node_ids(number) for number in range(7)])
    known = model(weighted.graph, weighted.x, edge_weight=weighted.edge_weight)
    torch.testing.assert_close(found, known[order], rtol=1e-4, atol=1e-4)
    assert taken["layers"] == (0 if reduce == "max" else 2)


@pytest.mark.parametrize("task", ["nodes", "link"])
def test_an_evaluation_of_weighted_batches_reads_about_the_bytes_of_one_without(
    task: str, stored: Path, weighted_store: Path, read: dict[str, int]
) -> None:
    """Its hidden rows lie in a file, and are read in large runs, not a page for each edge."""
    found = []
    for path in (stored, weighted_store):
        torch.manual_seed(0)
        model, store = gw.nn.SAGE(WIDTH, HIDDEN, CLASSES, num_layers=3), gw.macro.Store(path)
        store.verify()
        batch: Any = gw.Trainer(model, store, mode="mini", task=task, memory="256MB", fanouts=(3, 3, 3))._batch
        batch.inference.tiles = TILES
        batch.outputs()  # degrees
        read["bytes"] = 0
        batch.outputs()
        assert read["bytes"] > 4 * NODES * (WIDTH + 2 * HIDDEN)
        found.append(read["bytes"])
    assert found[1] <= 1.3 * found[0]  # weights lie beside edges


@pytest.mark.parametrize(("kind", "hidden"), [("SAGE", WIDTH), ("GCN", HIDDEN)])
def test_what_follows_a_layer(kind: str, hidden: int, given: gw.Dataset, stored: Path, taken: dict[str, int]) -> None:
    """Norms, residuals and other activations, as by tiles, which read each row for each edge."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_layers": 2, "norm": "batch", "residual": True, "activation": "elu"}
    model = getattr(gw.nn, kind)(WIDTH, hidden, CLASSES, **options)
    model.train()(given.graph, given.x)  # statistics
    store = gw.macro.Store(stored)
    inference = PartInference(model, store, 1 << 24, 1)
    inference.tiles = TILES
    found = inference.outputs(np.arange(NODES))
    order = torch.cat([store.node_ids(number) for number in range(7)])
    torch.testing.assert_close(found, model.eval()(given.graph, given.x)[order], rtol=1e-4, atol=1e-4)
    assert taken["layers"] == 2


def test_bytes_grow_with_rows_and_edges_not_with_rows_of_edges(stored: Path, taken: dict[str, int]) -> None:
    """Features are read twice; products, sums and edges written once. A row an edge is eight times the features."""
    torch.manual_seed(0)
    model = gw.nn.SAGE(WIDTH, HIDDEN, CLASSES, num_layers=1)
    store = gw.macro.Store(stored)
    store.verify()
    structure = sum(part.block(name).nbytes for part in store.manifest.parts for name in ("indptr", "indices"))
    features, before = 4 * NODES * WIDTH, store.counts.nbytes
    inference = PartInference(model, store, 1 << 24, 1)
    inference.tiles = TILES
    inference.outputs(np.arange(NODES))
    assert taken["layers"] == 1
    # degrees, a first look at tiles, and lists of edges
    assert store.counts.nbytes - before <= 2.2 * features + 3.2 * structure
    assert taken["written"] <= 2.1 * 4 * NODES * HIDDEN + 1.1 * 4 * (EDGES + NODES)  # HIDDEN is less than WIDTH


def test_tiles_read_rows_where_the_disk_has_no_room(
    given: gw.Dataset, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise gw.errors.DataError("disk: expected room, got: no space")

    monkeypatch.setattr(scratch, "temporary", full)
    torch.manual_seed(0)
    model, store = gw.nn.SAGE(WIDTH, HIDDEN, CLASSES, num_layers=1).eval(), gw.macro.Store(stored)
    inference = PartInference(model, store, 1 << 24, 1)
    inference.tiles = TILES
    order = torch.cat([store.node_ids(number) for number in range(7)])
    found = inference.outputs(np.arange(NODES))
    torch.testing.assert_close(found, model(given.graph, given.x)[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "width", "columns"), [(2500, 7, 3), (1024, 4, 9), (1, 1, 1)])
def test_slices_hold_what_was_put_into_them(rows: int, width: int, columns: int) -> None:
    x, held = torch.randn(rows, width), ColumnSlices(rows, width, columns, None)
    for first in range(0, rows, 1024):
        held.put(first, x[first : first + 1024])
    cuts = held.cuts
    assert max(np.diff(cuts)) <= columns
    for number in range(len(held)):
        assert torch.equal(held.slice(number), x[:, cuts[number] : cuts[number + 1]])
    assert torch.equal(held.rows(0, rows), x)
    assert torch.equal(held.rows(rows // 3, rows // 2), x[rows // 3 : rows // 2])


def test_members_at_places_against_numpy() -> None:
    is_member = np.random.default_rng(0).random(1003) < 0.1
    ids, found = np.flatnonzero(is_member), NodeSet(is_member)
    for first, end in ((0, 0), (0, 1), (3, 40), (0, len(ids)), (len(ids) - 1, len(ids)), (17, 18)):
        assert found.at(first, end).tolist() == ids[first:end].tolist()
