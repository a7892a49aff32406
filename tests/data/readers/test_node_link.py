"""GraphSAGE's files, and PPI's three parts of whole graphs, against PyTorch Geometric's reader of the same files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import graphweft as gw


def _parts(folder: Path) -> None:
    """Twenty, two and two graphs, numbered from 1 as in the published files."""
    draw, first = np.random.default_rng(0), 1
    for part, graphs in (("train", 20), ("valid", 2), ("test", 2)):
        sizes = draw.integers(5, 12, graphs)
        owner = np.repeat(np.arange(graphs), sizes)
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(owner)))
        start = np.cumsum(sizes) - sizes
        for number in range(graphs):
            for u, v in draw.integers(0, sizes[number], (15, 2)) + start[number]:
                graph.add_edges_from([(int(u), int(v)), (int(v), int(u))])
        (folder / f"{part}_graph.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
        np.save(folder / f"{part}_feats.npy", draw.random((len(owner), 4)))
        np.save(folder / f"{part}_labels.npy", draw.integers(0, 2, (len(owner), 6)))
        np.save(folder / f"{part}_graph_id.npy", owner + first)
        first += graphs


def test_the_parts_are_those_of_pyg(tmp_path: Path) -> None:
    pyg = pytest.importorskip("torch_geometric.datasets", reason="the peer of this test")
    raw = tmp_path / "raw"
    raw.mkdir()
    _parts(raw)
    ds = gw.load(raw)
    assert ds.task == "multilabel" and ds.num_classes == 6
    assert ds.arrays["graph_id"].unique().numel() == 24
    src, dst = ds.graph.edges()
    first = 0
    for part, idx in (("train", ds.train_idx), ("val", ds.val_idx), ("test", ds.test_idx)):
        for graph in pyg.PPI(str(tmp_path), split=part):
            rows = torch.arange(first, first + graph.num_nodes)
            assert torch.equal(ds.x[rows], graph.x) and torch.equal(ds.y[rows], graph.y)
            assert torch.isin(rows, idx).all() and ds.arrays["graph_id"][rows].unique().numel() == 1
            mine = torch.stack([src, dst])[:, torch.isin(src, rows)] - first
            mine = mine[:, mine[0] != mine[1]]  # the peer leaves self-loops out
            theirs = graph.edge_index
            assert sorted(map(tuple, mine.T.tolist())) == sorted(map(tuple, theirs.T.tolist()))
            first += graph.num_nodes
    assert first == ds.num_nodes
    trainer = gw.Trainer(gw.nn.SAGE(4, 8, 6), ds, mode="mini", sampler="graphs", batch_size=2)
    assert len(trainer.fit(epochs=1)) == 1 and trainer.metric == "micro-F1"


def _graphsage(folder: Path) -> dict[str, Any]:
    nodes = [{"id": f"n{i}", "test": i == 4, "val": i == 3} for i in range(5)]
    held: dict[str, Any] = {
        "toy-G.json": {
            "directed": False,
            "nodes": nodes,
            "links": [{"source": 0, "target": 1}, {"source": 4, "target": 2}],
        },
        "toy-id_map.json": {"n0": 4, "n1": 3, "n2": 2, "n3": 1, "n4": 0},
        "toy-class_map.json": {f"n{i}": [i % 2, 1] for i in range(5)},
    }
    for name, content in held.items():
        (folder / name).write_text(json.dumps(content))
    np.save(folder / "toy-feats.npy", np.arange(10.0).reshape(5, 2))
    return held


def test_graphsage_files_are_put_in_order_by_their_map(tmp_path: Path) -> None:
    _graphsage(tmp_path)
    ds = gw.load(tmp_path)
    pairs = set(zip(*(ends.tolist() for ends in ds.graph.edges()), strict=True))
    assert pairs == {(4, 3), (3, 4), (0, 2), (2, 0)}
    assert ds.y.tolist() == [[0, 1], [1, 1], [0, 1], [1, 1], [0, 1]] and ds.x.tolist()[4] == [8.0, 9.0]
    assert (ds.train_idx.tolist(), ds.val_idx.tolist(), ds.test_idx.tolist()) == ([2, 3, 4], [1], [0])
    (tmp_path / "toy-id_map.json").unlink()
    assert gw.load(tmp_path).test_idx.tolist() == [4]


@pytest.mark.parametrize("file", ["toy-G.json", "toy-id_map.json", "toy-class_map.json"])
def test_damaged_files_are_named(file: str, tmp_path: Path) -> None:
    held = _graphsage(tmp_path)
    wrong: dict[str, list[Callable[[Any], Any]]] = {
        "toy-G.json": [
            lambda data: {**data, "links": [{"source": 0, "target": 9}]},
            lambda data: {**data, "links": [3]},
            lambda data: {**data, "nodes": None},
        ],
        "toy-id_map.json": [lambda data: {**data, "n0": 3}, lambda data: {**data, "n0": "4"}, lambda data: {}],
        "toy-class_map.json": [lambda data: {**data, "other": [0, 1]}, lambda data: {"n0": [0, 1]}],
    }
    for change in wrong[file]:
        (tmp_path / file).write_text(json.dumps(change(held[file])))
        with pytest.raises(gw.errors.DataError, match=r"class_map|toy-") as failure:
            gw.load(tmp_path)
        assert "\n" not in str(failure.value) and str(tmp_path) in str(failure.value)


def test_missing_and_unlike_tables_of_parts_are_named(tmp_path: Path) -> None:
    _parts(tmp_path)
    rows = np.load(tmp_path / "test_feats.npy")
    for table, text in [(rows[:, :2], "one shape in all parts"), (rows[:3], "test_feats.npy: expected numbers of")]:
        np.save(tmp_path / "test_feats.npy", table)
        with pytest.raises(gw.errors.DataError, match=text):
            gw.load(tmp_path)
    (tmp_path / "test_feats.npy").unlink()
    with pytest.raises(gw.errors.DataError, match=r"test_feats.npy: expected the file beside the graphs, got none"):
        gw.load(tmp_path)
