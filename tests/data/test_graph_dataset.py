"""Sets of graphs: made from lists, files and PyTorch Geometric; subsets, splits, folds, saving."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from graphs import learnable, many, write_tu

import graphweft as gw
from graphweft.data.load import holds_graphs


def _same(a: gw.GraphDataset, b: gw.GraphDataset) -> None:
    assert torch.equal(torch.stack(a.graph.edges()), torch.stack(b.graph.edges()))
    assert torch.equal(a.graph_ptr, b.graph_ptr) and torch.equal(a.y, b.y) and a.task == b.task
    for name in ("x", "edge_weight", "edge_features"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None and other is None) or torch.equal(one, other), name
    assert [a.idx(p).tolist() for p in ("train", "val", "test")] == [
        b.idx(p).tolist() for p in ("train", "val", "test")
    ]


def test_every_graph_comes_back_as_it_was_given() -> None:
    graphs, _, _, _ = many(30, "directed", seed=2)
    x = [torch.randn(g.num_nodes, 3) for g in graphs]
    w = [torch.rand(g.num_edges) for g in graphs]
    e = [torch.randn(g.num_edges, 2) for g in graphs]
    y = [i % 3 for i in range(30)]
    ds = gw.GraphDataset.from_list(graphs, x=x, y=y, edge_weight=w, edge_features=e, name="thirty")
    assert len(ds) == ds.num_graphs == 30 and ds.num_classes == 3 and ds.num_features == 3
    assert repr(ds).startswith("GraphDataset('thirty', 30 graphs, ")
    for i, sample in enumerate(ds):
        assert torch.equal(torch.stack(sample.graph.edges()), torch.stack(graphs[i].edges()))
        assert sample.graph.num_nodes == graphs[i].num_nodes and int(sample.y) == y[i]
        assert torch.equal(sample.x, x[i]) and torch.equal(sample.edge_weight, w[i])
        assert torch.equal(sample.edge_features, e[i])
    assert torch.equal(ds[-1].x, x[-1]) and torch.equal(ds[np.int64(4)].x, x[4])
    with pytest.raises(IndexError, match="expected a graph from 0 to 29, got 30"):
        ds[30]


@pytest.mark.parametrize("key", [[4, 1, 1], slice(3, 9, 2), "mask", torch.tensor([7]), np.array([2, 0])])
def test_a_subset_has_its_graphs_and_their_parts_of_the_split(key: object) -> None:
    ds = learnable(40)
    if isinstance(key, str):
        key = torch.arange(40) % 7 == 0
    ids = torch.arange(40)[torch.as_tensor(key) if not isinstance(key, slice) else key].tolist()
    part = ds[key]
    assert len(part) == len(ids) and isinstance(part, gw.GraphDataset)
    for i, g in enumerate(ids):
        assert torch.equal(part[i].x, ds[g].x) and int(part[i].y) == int(ds[g].y)
        assert torch.equal(torch.stack(part[i].graph.edges()), torch.stack(ds[g].graph.edges()))
        for name in ("train", "val", "test"):
            assert (i in part.idx(name).tolist()) == (g in ds.idx(name).tolist())
    with pytest.raises(gw.errors.IndexRangeError):
        ds[[0, 40]]
    with pytest.raises(gw.errors.DataError, match="expected at least one graph"):
        ds[[]]


def test_edges_in_mixed_order_are_put_graph_after_graph_with_their_rows() -> None:
    src, dst = [2, 0, 3, 1], [3, 1, 2, 0]
    weight = [1.0, 2.0, 3.0, 4.0]
    ds = gw.GraphDataset("mixed", gw.Graph(src, dst), None, [0, 1], graph_ptr=[0, 2, 4], edge_weight=weight)
    assert [ends.tolist() for ends in ds.graph.edges()] == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert ds.edge_weight.tolist() == [2.0, 4.0, 1.0, 3.0] and ds[1].edge_weight.tolist() == [1.0, 3.0]


def test_saving_and_loading(tmp_path: Path) -> None:
    ds = learnable(20, task="regression")
    file = ds.save(tmp_path / "set.npz")
    back = gw.load(file)
    assert isinstance(back, gw.GraphDataset) and holds_graphs(str(file))
    _same(back, ds)


@pytest.mark.parametrize("regression", [False, True])
def test_tu_folders(tmp_path: Path, regression: bool) -> None:
    ds = write_tu(tmp_path / "SET", "SET", regression=regression)
    assert isinstance(ds, gw.GraphDataset) and len(ds) == 12 and ds.num_features == 2
    assert ds.task == ("regression" if regression else "classification") and ds.num_classes == (1 if regression else 2)
    assert holds_graphs(str(tmp_path / "SET"))
    lines = (tmp_path / "SET" / "SET_A.txt").read_text().split("\n")[:-1]
    tags = [int(v) for v in (tmp_path / "SET" / "SET_edge_labels.txt").read_text().split()]
    want = Counter((*(int(v) - 1 for v in line.split(",")), tag) for line, tag in zip(lines, tags, strict=True))
    src, dst = ds.graph.edges()
    kinds = ds.edge_features.argmax(1) + min(tags)
    assert want == Counter(zip(src.tolist(), dst.tolist(), kinds.tolist(), strict=True))
    assert ds.edge_features.sum(1).eq(1).all()
    tagged = ds.with_tags()
    assert tagged.num_features == 5 and torch.equal(tagged.x[:, 2:].argmax(1), ds.arrays["node_tag"])


def test_tu_folders_that_do_not_fit(tmp_path: Path) -> None:
    write_tu(tmp_path / "SET", "SET")
    file = tmp_path / "SET" / "SET_edge_labels.txt"
    file.write_text(file.read_text() + "1\n")
    with pytest.raises(gw.errors.DataError, match=r"SET_edge_labels\.txt: expected .* rows, one per edge"):
        gw.load(tmp_path / "SET")


def test_against_pyg_s_reader_on_real_folders(shared_data: Path) -> None:
    read_tu_data = pytest.importorskip("torch_geometric.io", reason="the peer of this test").read_tu_data
    folder = shared_data / "raw" / "tu" / "ENZYMES" / "raw"
    if not folder.is_dir():
        pytest.skip(f"no TU folder at {folder}")
    data, slices, sizes = read_tu_data(str(folder), "ENZYMES")
    ds = gw.load(folder.parent).with_tags()
    assert torch.equal(ds.graph_ptr, slices["x"]) and torch.equal(ds.y, data.y)
    assert torch.equal(ds.x, data.x[:, : ds.num_features]) and sizes["num_node_labels"] == 3
    for i in (0, 17, 599):
        a, b = slices["edge_index"][i : i + 2].tolist()
        theirs = {tuple(pair) for pair in data.edge_index[:, a:b].T.tolist()}
        assert {tuple(pair) for pair in torch.stack(ds[i].graph.edges()).T.tolist()} == theirs


def test_from_pyg_and_back(tmp_path: Path) -> None:
    pyg = pytest.importorskip("torch_geometric.data", reason="the peer of this test")
    graphs, _, _, _ = many(9, "directed", seed=5)
    items = [
        pyg.Data(
            x=torch.randn(g.num_nodes, 2), edge_index=torch.stack(g.edges()), y=torch.tensor([i % 2]),
            edge_attr=torch.randn(g.num_edges, 3),
        )
        for i, g in enumerate(graphs)
    ]  # fmt: skip
    ds = gw.GraphDataset.from_pyg(items, name="nine")
    assert ds.y.tolist() == [i % 2 for i in range(9)] and ds.edge_features.shape[1] == 3
    for i, item in enumerate(items):
        assert torch.equal(ds[i].x, item.x) and torch.equal(torch.stack(ds[i].graph.edges()), item.edge_index)
    whole = gw.from_pyg(pyg.Batch.from_data_list(items)).dataset("nine")
    _same(gw.GraphDataset.of(whole), ds)


def test_splits_and_folds_keep_the_shares_of_classes() -> None:
    ds = learnable(200)
    made = ds.split(0.7, 0.2, 0.1, seed=3)
    parts = [set(made.idx(p).tolist()) for p in ("train", "val", "test")]
    assert [len(p) for p in parts] == [140, 40, 20] and len(set.union(*parts)) == 200
    share = float(ds.y.float().mean())
    for p in parts:
        assert abs(float(ds.y[sorted(p)].float().mean()) - share) <= 1 / len(p) + 1e-6
    assert torch.equal(ds.split(0.7, 0.2, 0.1, seed=3).train_idx, made.train_idx)
    assert not torch.equal(ds.split(0.7, 0.2, 0.1, seed=4).train_idx, made.train_idx)
    folds = ds.folds(10, seed=1)
    assert sorted(torch.cat([f.test_idx for f in folds]).tolist()) == list(range(200))
    for i, f in enumerate(folds):
        assert torch.equal(f.val_idx, folds[(i + 1) % 10].test_idx) and f.train_idx.numel() == 160
        assert abs(int(ds.y[f.test_idx].sum()) - int(ds.y.sum()) / 10) <= 1
    assert all(f.train_idx.numel() == 180 and f.val_idx.numel() == 0 for f in ds.folds(10, validation=False))
    values = learnable(50, task="regression").folds(5)
    assert sorted(torch.cat([f.test_idx for f in values]).tolist()) == list(range(50))


def test_features_where_a_set_has_none() -> None:
    graphs, _, _, _ = many(10, "symmetric", seed=4)
    ds = gw.GraphDataset.from_list(graphs, y=[0, 1] * 5)
    with pytest.raises(gw.errors.DataError, match="expected node features x, got none"):
        ds.check_trainable()
    made = ds.with_features("degree_onehot")
    assert isinstance(made, gw.GraphDataset)
    assert torch.equal(made.x.argmax(1), ds.graph.in_degrees()) and made.x.sum(1).eq(1).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: gw.GraphDataset("one", g[0]), "one: expected graph_ptr, the offsets of the graphs, got none"),
        (lambda g: gw.GraphDataset.from_list([]), "from_list: expected at least one graph"),
        (lambda g: gw.GraphDataset.from_list(g, y=[1]), "expected y of 3 graphs, got 1"),
        (
            lambda g: gw.GraphDataset.from_list([g[0], networkx.path_graph(3)]),
            r"graphs\[1\]: expected .*, got Graph of networkx; gw.interop.from_networkx makes one",
        ),
        (lambda g: gw.GraphDataset.from_list([g[0], 7]), r"graphs\[1\]: expected a gw.Graph, .*, got int"),
        (
            lambda g: gw.GraphDataset.from_list(g, x=[torch.ones(g[0].num_nodes, 2)] * 3),
            r"graphs\[\d\] x: expected shape",
        ),
        (lambda g: gw.GraphDataset("two", gw.Graph([0], [3]), graph_ptr=[0, 2, 4]), "expected edges within graphs"),
        (lambda g: learnable(30).split(0.8, 0.3), "expected shares from 0 to 1 that add up to at most 1"),
        (lambda g: learnable(30).folds(2), "expected k as an integer from 3 to 30, got 2"),
        (lambda g: learnable(30).with_tags(), "made: expected node tags of the source, got none"),
    ],
)
def test_wrong_use_is_told_in_one_line(call: object, message: str) -> None:
    graphs, _, _, _ = many(3, "directed", seed=11)
    with pytest.raises(gw.errors.GraphWeftError, match=message) as found:
        call(graphs)  # type: ignore[operator]
    assert "\n" not in str(found.value)
