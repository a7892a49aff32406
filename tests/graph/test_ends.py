"""The forms in which edges are given, against SciPy, NumPy and pandas-like columns; what is refused, in one line."""

from __future__ import annotations

import types
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import graphweft as gw
from graphweft.interop.scipy import to_scipy

SRC, DST = [0, 3, 1, 3], [2, 1, 1, 1]


def pairs(graph: gw.Graph) -> list[tuple[int, int]]:
    return list(zip(*(ends.tolist() for ends in graph.edges()), strict=True))


@pytest.mark.parametrize(
    "edge_index",
    [
        torch.tensor([SRC, DST]),
        torch.tensor([SRC, DST], dtype=torch.int32),
        np.array([SRC, DST], np.uint16),
        [SRC, DST],
        (torch.tensor(SRC), torch.tensor(DST)),
    ],
    ids=["int64", "int32", "uint16", "lists", "tuple"],
)
def test_an_edge_index_alone(edge_index) -> None:
    graph = gw.Graph(edge_index)
    assert pairs(graph) == list(zip(SRC, DST, strict=True))
    assert graph.num_nodes == 4 and not len(graph.edata)
    assert gw.Graph(edge_index, num_nodes=9).num_nodes == 9


@pytest.mark.parametrize("kind", ["csr_array", "csc_array", "coo_array", "csr_matrix", "lil_array", "dok_array"])
def test_a_scipy_matrix(kind: str) -> None:
    rng = np.random.default_rng(0)
    dense = (rng.random((7, 7)) < 0.3) * rng.random((7, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = getattr(sp, kind)(dense)
    graph = gw.Graph(matrix)
    assert graph.is_square and graph.num_nodes == 7
    np.testing.assert_array_equal(to_scipy(graph, weight="weight").toarray(), dense)
    np.testing.assert_array_equal(to_scipy(gw.Graph(matrix.T), weight="weight").toarray(), dense.T)


def test_a_matrix_of_ones_has_no_weights_and_a_wide_one_is_bipartite() -> None:
    graph = gw.Graph(sp.csr_array(np.array([[0, 1, 0], [1, 0, 1]])))
    assert (graph.num_src, graph.num_dst, graph.is_square) == (2, 3, False)
    assert pairs(graph) == [(0, 1), (1, 0), (1, 2)] and not len(graph.edata)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_tensor_of_torch(layout: str) -> None:
    dense = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [3.0, 0.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = gw.Graph(dense.to_sparse() if layout == "coo" else dense.to_sparse_csr())
    assert pairs(graph) == [(0, 1), (1, 2), (2, 0)]
    assert graph.edata["weight"].tolist() == [2.0, 1.0, 3.0]


class _NetworkX:
    nodes = edges = ()

    def is_directed(self) -> bool:
        return True


class _SparseTensor:
    def sparse_sizes(self) -> None: ...

    def coo(self) -> None: ...


REFUSED = {
    "alone": ((torch.tensor([0, 1]),), gw.errors.DtypeError, r"dst beside src, or an edge index of shape \(2, edges\)"),
    "transposed": ((torch.zeros(5, 2, dtype=torch.long),), gw.errors.ShapeError, r"got shape \(5, 2\); .*edges\.T"),
    "dense": ((torch.zeros(5, 5, dtype=torch.long),), gw.errors.ShapeError, r"scipy\.sparse\.csr_array"),
    "count": ((torch.zeros(2, 5, dtype=torch.long), 9), gw.errors.ShapeError, "num_nodes="),
    "beside": ((sp.eye(3, format="csr"), [1, 2]), gw.errors.ShapeError, "no dst beside a sparse matrix"),
    "cube": ((torch.zeros(2, 2, 2, dtype=torch.long),), gw.errors.ShapeError, r"got shape \(2, 2, 2\)"),
    "fractions": ((torch.tensor([[0.5], [1.0]]),), gw.errors.DtypeError, "src of integers"),
    "texts": ((["ann"], ["bob"]), gw.errors.DtypeError, r"gw\.Graph\.from_ids\(src, dst\)"),
    "networkx": ((_NetworkX(),), gw.errors.DtypeError, r"gw\.interop\.from_networkx\(graph\)"),
    "SparseTensor": ((_SparseTensor(),), gw.errors.DtypeError, r"gw\.Graph\(row, column\)"),
    "pyg": ((types.SimpleNamespace(edge_index=0),), gw.errors.DtypeError, r"gw\.from_pyg\(data\)\.graph"),
    "gaps": (
        ([2**31 + 5], [0]),
        gw.errors.GraphError,
        r"got 2147483653 as the largest of 1 edges; gw\.Graph\.from_ids",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_set_of_edges_is_refused_in_one_line(name: str) -> None:
    given, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        gw.Graph(*given)
    assert "\n" not in str(caught.value)


def test_the_number_of_nodes_is_the_users_word() -> None:
    assert gw.Graph([20_000_000], [0], num_nodes=20_000_001).num_nodes == 20_000_001
    assert gw.Graph([9_000_000], [0]).num_nodes == 9_000_001  # 72 MB
    with pytest.raises(gw.errors.GraphError, match="memory"):
        gw.Graph([0], [1], num_nodes=2**50)


# Ids of any kind


@pytest.mark.parametrize(
    "ids",
    [
        np.array([7, 2**40, -3, 12]),
        np.array(["d", "a", "ä", "b"]),
        np.array(["d", "a", "bb", "b"], dtype=object),
        np.array([2**63 + 5, 1, 2, 3], dtype=np.uint64),
        np.array([b"x", b"yy", b"z", b"w"]),
    ],
    ids=["integers", "texts", "objects", "unsigned", "bytes"],
)
def test_from_ids_numbers_and_leads_back(ids: np.ndarray) -> None:
    src, dst = ids[SRC], ids[DST]
    graph, found = gw.Graph.from_ids(src, dst)
    text = np.char.decode(ids) if ids.dtype.kind == "S" else ids
    known = sorted(set(text.tolist()))
    assert found.values.tolist() == known == list(found) and len(found) == graph.num_nodes
    s, d = graph.edges()
    assert found[s].tolist() == text[SRC].tolist() and found[d].tolist() == text[DST].tolist()
    assert found.nodes(found.values).tolist() == list(range(len(known)))


def test_from_ids_keeps_the_order_of_nodes_that_are_given() -> None:
    graph, ids = gw.Graph.from_ids(["b", "a"], ["a", "z"], nodes=["z", "lonely", "a", "b"])
    assert graph.num_nodes == 4 and pairs(graph) == [(3, 2), (2, 0)]
    assert [ids[v] for v in range(4)] == ["z", "lonely", "a", "b"]
    assert int(ids.nodes("lonely")) == 1 and ids.nodes(["b", "z"]).tolist() == [3, 0]
    tensors, numbers = gw.Graph.from_ids(torch.tensor([10**12, 5]), torch.tensor([5, 5]))
    assert pairs(tensors) == [(1, 0), (0, 0)] and numbers[torch.tensor([1])].tolist() == [10**12]


@pytest.mark.parametrize(
    ("src", "dst", "nodes", "error", "words"),
    [
        (["a"], ["b", "c"], None, gw.errors.ShapeError, "one length, got 1 and 2"),
        (["a"], [1], None, gw.errors.DtypeError, "one kind"),
        (["a", 1], ["b", 2], None, gw.errors.DtypeError, "integers or of texts alone, got int, str"),
        (["a", None], ["b", "c"], None, gw.errors.DtypeError, "got NoneType, str"),
        ([0.5], [1.0], None, gw.errors.DtypeError, "integers or texts, got float64"),
        ([True], [False], None, gw.errors.DtypeError, "got bool"),
        (["a"], ["b"], ["a"], gw.errors.IndexRangeError, "got 'b' at position 0"),
        (["a"], ["b"], ["a", "b", "a"], gw.errors.ShapeError, "every node once, got 'a' twice"),
        ([[1]], [[2]], None, gw.errors.ShapeError, "1 dimension"),
        ([2**70], [1], None, gw.errors.DtypeError, "64 bits"),
    ],
)
def test_from_ids_refuses(src, dst, nodes, error, words) -> None:
    with pytest.raises(error, match=words) as caught:
        gw.Graph.from_ids(src, dst, nodes)
    assert "\n" not in str(caught.value)


def test_from_ids_without_edges() -> None:
    graph, ids = gw.Graph.from_ids([], [])
    assert graph.num_nodes == 0 == len(ids)
    assert gw.Graph.from_ids([], [], nodes=["a", "b"])[0].num_nodes == 2
