"""Stores hold what was stored, and damaged ones are told by file and offset."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from stored_kinds import academic

import graphweft as gw
from graphweft.data.stored import read_store
from graphweft.storage.store_format import BLOCKS, MANIFEST, layout


def _edges(ds: gw.Dataset) -> scipy.sparse.csr_array:
    src, dst = (ends.numpy() for ends in ds.graph.edges())
    return scipy.sparse.coo_array((np.ones(len(src)), (src, dst)), shape=(ds.num_nodes,) * 2).tocsr()


def _graph(nodes: int, edges: int, seed: int = 0) -> gw.Graph:
    ends = np.random.default_rng(seed).integers(0, nodes, (2, edges))
    return gw.Graph(*ends, num_nodes=nodes)


def _kinds() -> dict[str, gw.Dataset]:
    rng = np.random.default_rng(1)
    graph, x = _graph(50, 300), rng.normal(size=(50, 7)).astype(np.float32)
    classes = rng.integers(-1, 3, 50)
    return {
        "classes": gw.Dataset("classes", graph, x, classes),
        "several labels": gw.Dataset("several", graph, x, (rng.random((50, 4)) < 0.3).astype(np.float32)),
        "values": gw.Dataset("values", graph, x, rng.normal(size=50).astype(np.float32), task="regression"),
        "columns": gw.Dataset("columns", graph, x, rng.normal(size=(50, 2)).astype(np.float32), task="regression"),
        "sparse": gw.Dataset("sparse", graph, gw.data.SparseFeatures.from_dense(torch.from_numpy(x).relu()), classes),
        "no features": gw.Dataset("bare", graph, None, classes),
        "weights": gw.Dataset("weights", graph, x, classes, edge_weight=rng.random(300)),
        "no edges": gw.Dataset("lonely", gw.Graph([], [], num_nodes=9), np.eye(9, dtype=np.float32), [0, 1, 2] * 3),
    }


@pytest.mark.parametrize("kind", _kinds())
@pytest.mark.parametrize("parts", [1, 5])
def test_a_store_holds_every_kind_of_dataset(kind: str, parts: int, tmp_path: Path) -> None:
    ds = _kinds()[kind]
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=parts, memory="64MB", method="hash")
    again = gw.load(tmp_path / "s")
    assert store.verify() > 0
    assert (_edges(ds) != _edges(again)).nnz == 0
    x = ds.x.to_dense() if isinstance(ds.x, gw.data.SparseFeatures) else ds.x
    assert (x is None and again.x is None) or torch.equal(x, again.x)
    assert torch.equal(ds.y.nan_to_num(7.5), again.y.nan_to_num(7.5)) and ds.y.dtype == again.y.dtype
    assert (ds.task, ds.num_classes) == (again.task, again.num_classes)
    for part in ("train", "val", "test"):
        assert ds.idx(part).sort().values.tolist() == again.idx(part).tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_features_are_rounded_to_the_dtype_of_the_store(dtype: str, tmp_path: Path) -> None:
    ds = _kinds()["classes"]
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=3, dtype=dtype)
    assert torch.equal(read_store(store).x, ds.x.to(getattr(torch, dtype)).float())


def test_blocks_are_aligned_and_maps_agree_with_reads(tmp_path: Path) -> None:
    store = gw.macro.prepare_store(_kinds()["classes"], tmp_path / "s", parts=4)
    for number, entry in enumerate(store.manifest.parts):
        assert [b.offset % 4096 for b in entry.blocks] == [0] * 6
        assert (tmp_path / "s" / entry.file).stat().st_size == entry.nbytes
        read, seen = store.part(number), store.part(number, mapped=True)
        assert all(torch.equal(getattr(read, name), getattr(seen, name)) for name in ("x", "y", "indptr", "indices"))
        rows = np.diff(read.indptr.numpy())
        keys = np.repeat(np.arange(len(rows)), rows) * store.num_nodes + read.indices.numpy()
        assert (np.diff(keys) >= 0).all()


def _edges_by_relation(ds: gw.Dataset) -> list[list[tuple[int, int, float]]]:
    src, dst = (ends.tolist() for ends in ds.graph.edges())
    weights = [0.0] * len(src) if ds.edge_weight is None else ds.edge_weight.tolist()
    rows = list(zip(src, dst, weights, strict=True))
    return [sorted(rows[a:b]) for a, b in itertools.pairwise(ds.graph.layout.edge_offsets)]


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("method", ["hash", "multilevel"])
def test_a_store_holds_a_typed_graph(method: str, weights: bool, tmp_path: Path) -> None:
    ds = academic(weights)
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=4, memory="64MB", method=method)
    again = gw.load(tmp_path / "s")
    assert again.graph.layout == ds.graph.layout and again.target_type == "paper"
    assert _edges_by_relation(again) == _edges_by_relation(ds)
    assert {name: x.shape for name, x in again.features.items()} == {n: x.shape for n, x in ds.features.items()}
    assert all(torch.equal(again.features[name], ds.features[name]) for name in ds.features)
    assert torch.equal(again.y, ds.y) and torch.equal(again.val_idx, ds.val_idx)
    assert store.num_features == 640 + 20 + 240 + 9 and store.row_width == 640
    held = json.loads((tmp_path / "s" / MANIFEST).read_text())
    assert held["version"] == 2 and [r[1] for r in held["types"]["relations"]][:2] == ["writes", "cites"]
    for number in range(4):
        part = store.part(number)
        assert part.relations is not None and (part.weights is not None) == weights
        rows = np.repeat(np.arange(part.num_nodes), np.diff(part.indptr.numpy()))
        keys = (rows * 6 + part.relations.numpy()) * store.num_nodes + part.indices.numpy()
        assert (np.diff(keys) >= 0).all()
        assert [len(part.features[t]) for t in (1, 2)] == list(store.manifest.parts[number].types[1:3])


def test_weights_go_with_their_edges(tmp_path: Path) -> None:
    ds = _kinds()["weights"]
    gw.macro.prepare_store(ds, tmp_path / "s", parts=3, method="hash")
    again = gw.load(tmp_path / "s")
    rows = []
    for held in (ds, again):
        assert held.edge_weight is not None
        ends = [side.tolist() for side in held.graph.edges()]
        rows.append(sorted(zip(*ends, held.edge_weight.tolist(), strict=True)))
    assert rows[0] == rows[1]


def test_a_store_of_version_1_opens(tmp_path: Path) -> None:
    """One without types and weights is written as before they were there."""
    gw.macro.prepare_store(_kinds()["classes"], tmp_path / "s", parts=2)
    held = json.loads((tmp_path / "s" / MANIFEST).read_text())
    assert held["version"] == 1 and "types" not in held
    assert set(held["shape"]) == {"num_features", "feature_dtype", "index_dtype", "label_dtype", "label_columns"}
    assert "types" not in held["parts"][0]
    assert gw.macro.Store(tmp_path / "s").types is None


def test_a_given_partition_is_kept(tmp_path: Path) -> None:
    ds = _kinds()["classes"]
    part = torch.arange(50) % 3
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=3, part=part)
    for number in range(3):
        assert store.part(number).node_ids.tolist() == (part == number).nonzero().reshape(-1).tolist()


def _with_block(name: str, path: Path) -> gw.macro.Store:
    """A store of two parts with a block of that name."""
    ds = _kinds()["classes"] if name == "x" else academic(weights=True)
    return gw.macro.prepare_store(ds, path, parts=2, method="hash")


@pytest.mark.parametrize("name", (*BLOCKS, "x.1", "x.2"))
def test_a_flipped_bit_is_told_with_its_block(name: str, tmp_path: Path) -> None:
    store = _with_block(name, tmp_path / "s")
    entry = store.manifest.parts[1]
    block = entry.block(name)
    file = tmp_path / "s" / entry.file
    held = bytearray(file.read_bytes())
    held[block.offset + block.nbytes // 2] ^= 4
    file.write_bytes(held)
    fresh = gw.macro.Store(tmp_path / "s")
    fresh.part(0)
    with pytest.raises(gw.errors.DataError, match=f"{entry.file}: .*checksum.*block {name} at byte {block.offset}"):
        fresh.part(1)
    with pytest.raises(gw.errors.DataError, match="damaged"):
        fresh.verify()


@pytest.mark.parametrize("name", (*BLOCKS, "x.1", "x.2"))
def test_a_truncated_file_is_told_with_its_block(name: str, tmp_path: Path) -> None:
    store = _with_block(name, tmp_path / "s")
    entry = store.manifest.parts[0]
    block = entry.block(name)
    file = tmp_path / "s" / entry.file
    file.write_bytes(file.read_bytes()[: block.offset + block.nbytes - 1])
    fresh = gw.macro.Store(tmp_path / "s")
    with pytest.raises(gw.errors.DataError, match=f"{entry.file}: .*block {name} .*truncated"):
        fresh.block(0, name)


def test_a_part_that_is_gone_is_told(tmp_path: Path) -> None:
    gw.macro.prepare_store(_kinds()["classes"], tmp_path / "s", parts=2)
    (tmp_path / "s" / "part-00001.bin").unlink()
    with pytest.raises(gw.errors.DataError, match=r"part-00001.bin: expected the file of part 1, got: No such file"):
        gw.macro.Store(tmp_path / "s").part(1)


def test_every_flipped_byte_of_a_manifest_is_told(tmp_path: Path) -> None:
    gw.macro.prepare_store(_kinds()["no edges"], tmp_path / "s", parts=1)
    file = tmp_path / "s" / MANIFEST
    held = file.read_bytes()
    for at in range(0, len(held), 7):
        file.write_bytes(held[:at] + bytes([held[at] ^ 1]) + held[at + 1 :])
        try:
            found = json.loads(file.read_bytes())
        except ValueError:
            found = None
        if found == json.loads(held):  # blanks between fields
            continue
        with pytest.raises(gw.errors.DataError, match="manifest"):
            gw.macro.Store(tmp_path / "s")


def test_what_is_no_store_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(gw.errors.DataError, match=r"expected a store with manifest\.json"):
        gw.macro.Store(tmp_path / "none")
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(gw.errors.DataError, match="expected the manifest of a store"):
        gw.macro.Store(tmp_path)


def test_a_layout_has_room_for_all_blocks(tmp_path: Path) -> None:
    store = gw.macro.prepare_store(_kinds()["several labels"], tmp_path / "s", parts=2)
    entry = store.manifest.parts[0]
    blocks = layout(store.manifest.shape, entry.nodes, entry.edges)
    ends = [(b.offset, b.offset + b.nbytes) for b in blocks]
    assert all(end <= following for (_, end), (following, _) in itertools.pairwise(ends))
