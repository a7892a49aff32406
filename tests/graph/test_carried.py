"""Named tensors through edits: what SciPy and PyTorch Geometric's utilities make of the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from zoo import random_edges

from graphweft._errors import ConfigError, DtypeError, GraphError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.loader.loader import Loader

NODES, EDGES = 30, 200


def named() -> Graph:
    ends, generator = random_edges(NODES, EDGES, seed=3), torch.Generator().manual_seed(0)
    graph = Graph(ends.src, ends.dst, NODES)
    assert graph.has_self_loops
    graph.ndata["pos"] = torch.randn(NODES, 2, generator=generator)
    graph.edata["w"] = torch.rand(EDGES, generator=generator, dtype=torch.float64)
    graph.edata["at"] = torch.randn(EDGES, 3, generator=generator)
    graph.edata["id"] = torch.arange(EDGES)
    return graph


def matrix(graph: Graph, name: str = "w") -> np.ndarray:
    src, dst = graph.edges()
    ends = (graph.edata[name].numpy(), (dst.numpy(), src.numpy()))
    return sp.coo_array(ends, shape=(graph.num_dst, graph.num_src)).toarray()


EDITS: dict[str, Callable[[Graph], Graph]] = {
    "edge_subgraph": lambda g: g.edge_subgraph(torch.arange(EDGES) % 3 == 0),
    "ids": lambda g: g.edge_subgraph([7, 2, 90]),
    "without_self_loops": lambda g: g.without_self_loops(),
    "reverse": lambda g: g.reverse(),
    "reverse first": lambda g: g.reverse().edge_subgraph([1, 5]).reverse(),
    "minus": lambda g: g - Graph(*(ends[:50] for ends in g.edges()), NODES),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edges_that_stay_keep_their_values(edit: str) -> None:
    graph = named()
    made = EDITS[edit](graph)
    assert made.ndata["pos"] is graph.ndata["pos"] or torch.equal(made.ndata["pos"], graph.ndata["pos"])
    src, dst = graph.edges()
    if edit == "reverse":
        src, dst = dst, src
    ids = made.edata["id"]
    assert made.num_edges > 0 and torch.equal(src[ids], made.edges()[0]) and torch.equal(dst[ids], made.edges()[1])
    for name in ("w", "at"):
        assert torch.equal(made.edata[name], graph.edata[name][ids])


@pytest.mark.parametrize("form", ["ids", "mask", "slice"])
def test_selections_are_those_of_the_weighted_matrix(form: str) -> None:
    graph, whole = named(), matrix(named())
    chosen: Any = {"ids": [4, 1, 9, 1], "mask": torch.arange(NODES) % 4 == 1, "slice": slice(3, 17, 2)}[form]
    rows = np.arange(NODES)[chosen.numpy() if form == "mask" else chosen]
    for made, wanted in (
        (graph[:, chosen], whole[rows]),
        (graph[chosen, :], whole[:, rows]),
        (graph[chosen, chosen], whole[rows][:, rows]),
    ):
        assert np.allclose(matrix(made), wanted)
    both = graph[chosen, chosen]
    assert torch.equal(both.srcdata["pos"], graph.ndata["pos"][rows])
    assert torch.equal(both.dstdata["pos"], graph.ndata["pos"][rows])
    assert not len(graph.edges_into([1])._fields.get("edata", {}))  # what layers take makes no copies


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("edit", ["to_simple", "to_bidirected"])
def test_merged_values_are_those_of_pyg(edit: str, reduce: str) -> None:
    utils = pytest.importorskip("torch_geometric.utils")
    graph = named()
    del graph.edata["id"]
    made = getattr(graph, edit)(reduce=reduce)
    call = {"to_simple": utils.coalesce, "to_bidirected": utils.to_undirected}[edit]
    values = [graph.edata["w"], graph.edata["at"]]
    index, (w, at) = call(torch.stack(graph.edges()), values, num_nodes=NODES, reduce=reduce)
    place = torch.argsort(index[1] * NODES + index[0])  # theirs by source, ours by destination
    assert torch.equal(torch.stack(made.edges()), index[:, place])
    assert torch.allclose(made.edata["w"], w[place]) and torch.allclose(made.edata["at"], at[place], atol=1e-6)
    assert torch.equal(made.ndata["pos"], graph.ndata["pos"])


def test_sums_are_those_of_scipy_and_gradients_come_back() -> None:
    graph, whole = named(), matrix(named())
    weights = graph.edata["w"].requires_grad_()
    del graph.edata["id"]
    both = graph.to_bidirected(reduce="add")
    both.edata["w"].sum().backward()
    assert torch.equal(weights.grad, torch.full((EDGES,), 2.0, dtype=torch.float64))
    graph.edata["w"] = weights.detach()
    assert np.allclose(matrix(graph.to_bidirected(reduce="sum")), whole + whole.T)
    assert np.allclose(matrix(graph.to_simple(reduce="sum")), whole)
    assert np.allclose(matrix(graph + graph.reverse()), whole + whole.T)


def test_new_edges_do_not_lose_values_in_silence() -> None:
    graph = named()
    for edit in (graph.to_bidirected, graph.to_simple):
        with pytest.raises(GraphError, match="expected reduce for edata w, at, id: one of sum, mean, min, max, drop"):
            edit()
        assert not len(edit(reduce="drop").edata) and "pos" in edit(reduce="drop").ndata
        with pytest.raises(GraphError, match="got 'median'"):
            edit(reduce="median")
        with pytest.raises(DtypeError, match=r"edata 'id': expected reduce 'min' or 'max' for torch.int64"):
            edit(reduce="mean")
    bare = Graph([0, 1], [1, 0])
    assert bare.to_bidirected().num_edges == bare.to_simple().num_edges == 2
    graph.edata["seen"] = torch.arange(EDGES) % 2 == 0
    assert graph.to_simple(reduce="max").edata["seen"].dtype == torch.bool


@pytest.mark.parametrize("fill", [1.0, 0.25, "mean", "add", "max", [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("missing_only", [False, True])
def test_self_loops_are_filled_as_by_pyg(fill: Any, missing_only: bool) -> None:
    utils = pytest.importorskip("torch_geometric.utils")
    graph = named()
    del graph.edata["id"], graph.edata["w"]
    made = graph.add_self_loops(missing_only=missing_only, fill_value=fill)
    call = utils.add_remaining_self_loops if missing_only else utils.add_self_loops
    given = torch.tensor(fill) if isinstance(fill, list) else fill
    index, at = call(torch.stack(graph.edges()), graph.edata["at"], given, num_nodes=NODES)
    mine = torch.cat([torch.stack(made.edges()).double(), made.edata["at"].T.double()]).T
    theirs = torch.cat([index.double(), at.T.double()]).T
    if missing_only:  # parallel loops are one there
        mine, theirs = mine[mine[:, 0] != mine[:, 1]], theirs[theirs[:, 0] != theirs[:, 1]]
        own = index[0] == index[1]
        loops = dict(zip(index[0][own].tolist(), at[own], strict=True))
        added = made.edges()[0][EDGES:].tolist()
        assert len(set(added)) == len(added) > 0
        assert torch.allclose(made.edata["at"][EDGES:], torch.stack([loops[node] for node in added]), atol=1e-6)
    assert np.allclose(sorted(mine.tolist()), sorted(theirs.tolist()))
    assert torch.equal(made.ndata["pos"], graph.ndata["pos"])


def test_loops_by_name_and_values_that_do_not_fit() -> None:
    graph = named()
    made = graph.add_self_loops(fill_value={"w": 0.5, "at": "sum", "id": -1})
    assert made.edata["id"][EDGES:].tolist() == [-1] * NODES and bool((made.edata["w"][EDGES:] == 0.5).all())
    with pytest.raises(GraphError, match="got none for 'at'"):
        graph.add_self_loops(fill_value={"w": 0.5})
    with pytest.raises(DtypeError, match=r"edata 'id': expected fill_value that fits torch.int64, got 0.5"):
        graph.add_self_loops(fill_value=0.5)
    with pytest.raises(ShapeError, match="edata 'w': expected fill_value of shape"):
        graph.add_self_loops(fill_value=[1.0, 2.0])


def test_sums_of_graphs_need_the_same_names() -> None:
    graph = named()
    with pytest.raises(GraphError, match="got 'at' on one"):
        graph + Graph([0], [1], NODES)
    twice = graph + graph
    assert torch.equal(twice.edata["at"], graph.edata["at"].repeat(2, 1)) and "pos" in twice.ndata
    assert torch.equal((twice - graph).edata["id"], graph.edata["id"])


def test_relations_have_their_rows() -> None:
    ab, ba = ("a", "to", "b"), ("b", "of", "a")
    graph = Graph.hetero({ab: ([0, 1, 2], [1, 0, 1]), ba: ([1], [2])}, {"a": 3, "b": 2})
    graph.ndata["x"], graph.edata["w"] = torch.arange(5), torch.arange(4)
    one = graph.relation_graph(ba)
    assert (one.edata["w"].tolist(), one.srcdata["x"].tolist(), one.dstdata["x"].tolist()) == ([3], [3, 4], [0, 1, 2])
    both = graph.add_inverse_relations()
    assert both.edata["w"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3] and both.ndata["x"].tolist() == [0, 1, 2, 3, 4]
    for relation in both.relations:
        turned = both.relation_graph(relation)
        name = relation[1].removeprefix("inverse ")
        ends = graph.relation_graph(ab if name == "to" else ba).edges()
        assert [t.tolist() for t in turned.edges()] == [
            t.tolist() for t in (ends if name == relation[1] else ends[::-1])
        ]
    kept = graph.edge_subgraph([0, 3])
    assert kept.edata["w"].tolist() == [0, 3] and kept.relations == graph.relations


def test_a_block_without_loops_has_the_rows_of_its_edges() -> None:
    graph = named()
    (batch,) = Loader(graph, torch.arange(NODES), [-1], batch_size=NODES, prefetch=0)
    block = batch.blocks[0].without_self_loops()
    assert 0 < block.num_edges < EDGES
    assert torch.equal(block.edata["id"], block.e_id) and torch.equal(block.srcdata["pos"], graph.ndata["pos"])


def test_a_graph_is_itself_where_it_is_and_a_device_that_is_not_there_is_one_line() -> None:
    graph = named()
    assert graph.to("cpu") is graph and graph.to(torch.device("cpu")) is graph
    with pytest.raises(ConfigError, match=r"Graph.to: expected a device of this machine \(cpu.*\), got 'cuda:99'"):
        graph.to("cuda:99")
