"""What is found in a dataset, against NetworkX and PyTorch Geometric."""

from __future__ import annotations

import json
import math
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from fraud import fraud_tables
from zoo import ZOO

import graphweft as gw
from graphweft.inspection import plot_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its import warns of torch.jit
    from torch_geometric.utils import homophily


def as_networkx(ds: gw.Dataset) -> nx.MultiDiGraph:
    graph = nx.MultiDiGraph()
    graph.add_nodes_from((v, {"y": c}) for v, c in enumerate(ds.y.tolist()))
    graph.add_edges_from(zip(*(ends.tolist() for ends in ds.graph.edges()), strict=True))
    return graph


@pytest.mark.parametrize("name", [name for name in ZOO if ZOO[name].num_nodes])
def test_structure_is_what_networkx_finds(name) -> None:
    src, dst, nodes = ZOO[name]
    ds = gw.Dataset(name, gw.Graph(src, dst, num_nodes=nodes), y=np.arange(nodes) % 2)
    found, graph = gw.inspect(ds), as_networkx(ds)
    degrees = [d for _, d in graph.in_degree()], [d for _, d in graph.out_degree()]
    for told, wanted in zip((found.in_degrees, found.out_degrees), degrees, strict=True):
        assert (told.least, told.largest) == (min(wanted), max(wanted))
        assert told.median == np.median(wanted) and told.mean == pytest.approx(np.mean(wanted))
    parts = list(nx.weakly_connected_components(graph))
    assert found.components == len(parts)
    assert found.largest_component == pytest.approx(max(map(len, parts)) / nodes)
    assert found.self_loops == nx.number_of_selfloops(graph)
    assert found.duplicates == graph.number_of_edges() - nx.DiGraph(graph).number_of_edges()
    graph.remove_edges_from(list(nx.selfloop_edges(graph, keys=True)))
    assert found.isolated == nx.number_of_isolates(graph)
    if graph.number_of_edges() and found.duplicates == 0:
        assert found.reciprocal == pytest.approx(nx.overall_reciprocity(nx.DiGraph(graph)))
        edge_index = torch.stack(ds.graph.edges()).long()
        edge_index = edge_index[:, edge_index[0] != edge_index[1]]
        assert found.homophily == pytest.approx(homophily(edge_index, ds.y, method="edge"))


def test_homophily_is_that_of_the_peers(shared_data) -> None:
    ds = gw.load(shared_data / "squirrel_filtered.npz")
    found = gw.inspect(ds)
    edge_index = torch.stack(ds.graph.edges()).long()
    assert found.homophily == pytest.approx(homophily(edge_index, ds.y, method="edge"))
    graph = as_networkx(ds)
    assert found.adjusted_homophily == pytest.approx(nx.attribute_assortativity_coefficient(graph, "y"))
    counts = np.bincount(ds.y.numpy())
    assert list(found.balance.values()) == sorted(counts.tolist(), reverse=True)
    assert found.labelled == ds.num_nodes and sum(found.split.values()) == ds.num_nodes
    assert found.empty_features == int((ds.x.to_dense() == 0).all(1).sum())


def test_unlabelled_nodes_do_not_count() -> None:
    ds = gw.Dataset("d", gw.Graph([0, 1, 2, 3], [1, 2, 3, 0]), y=[0, 0, 1, -1], train_idx=[0, 3])
    found = gw.inspect(ds)
    assert found.homophily == 0.5 and found.labelled == 3 and found.split == {"train": 1, "val": 0, "test": 0}
    alone = gw.inspect(gw.Dataset("d", gw.Graph([0, 1], [1, 0]), y=[0, 0]))
    assert alone.homophily == 1.0 and alone.adjusted_homophily is None
    bare = gw.inspect(gw.Dataset("d", gw.Graph([0, 1], [1, 0])))
    assert (bare.task, bare.homophily, bare.balance, bare.split, bare.labelled) == ("none", None, {}, {}, 0)


def test_edges_of_several_relations_are_no_duplicates() -> None:
    edges = {("a", "x", "a"): ([0, 0], [1, 1]), ("a", "y", "a"): ([0], [1])}
    found = gw.inspect(gw.Dataset("t", gw.Graph.hetero(edges, num_nodes={"a": 2, "b": 1})))
    assert found.duplicates == 1 and found.node_types == {"a": 2, "b": 1}
    assert found.relations == {"a-x-a": 2, "a-y-a": 1} and found.isolated == 1


def test_lines_json_and_html_say_the_same() -> None:
    users, transfers = fraud_tables()
    roles = {"id": "user", "source": "sender", "target": "receiver", "label": "fraud"}
    ds = gw.Dataset.from_tables(users, transfers, **roles, weight="amount", time="time")
    found = gw.inspect(ds)
    text = str(found)
    for line in (
        "users" if ds.name == "users" else "nodes",
        f"labelled         {int(users['fraud'].notna().sum())} (train ",
        "balance          no ",
        "edge weights     ",
        "edge times       ",
        "note: node features: country (5 categories, missing ones marked), age (number, missing ones marked)",
    ):
        assert line in text
    html = found._repr_html_()
    assert html.startswith("<table>") and "<th>homophily</th>" in html and "<script" not in html
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["balance"] == found.balance


def test_names_of_a_source_cannot_break_a_page() -> None:
    ds = gw.Dataset("<b>x</b>", gw.Graph([0], [1]), y=[0, 1], class_names=("<i>", "&"))
    html = gw.inspect(ds)._repr_html_()
    assert "<b>" not in html and "<i>" not in html and "&lt;i&gt;" in html


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression", "none", "graphs"])
def test_every_kind_of_dataset_is_drawn(task, tmp_path) -> None:
    graph, rng = gw.Graph([0, 1, 2, 3], [1, 2, 3, 3]), np.random.default_rng(0)
    y = {
        "classification": [0, 1, 1, -1],
        "multilabel": [[0, 1], [1, 1], [1, 0], [0, 0]],
        "regression": rng.random(4),
        "none": None,
        "graphs": [0, 1],
    }[task]
    options = {"task": "regression"} if task == "regression" else {}
    options |= {"graph_ptr": [0, 2, 4]} if task == "graphs" else {}
    ds = gw.Dataset("d", graph, y=y, **options)
    path = plot_dataset(ds, tmp_path / "d.png")
    assert path.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [path]
    assert math.isfinite(gw.inspect(ds).largest_component)
