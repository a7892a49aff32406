"""Graphs against SciPy: forms, degrees, derived graphs, bad input."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from zoo import CASES, SQUARE, Case, power_law_edges

from graphweft._errors import DtypeError, GraphError, IndexRangeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.sample.neighbor import NeighborSampler

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_square = pytest.mark.parametrize("case", SQUARE, ids=str)


def matrix(graph: Graph) -> sp.csr_array:
    """(num_dst, num_src) counts of edges, from ``edges()``."""
    src, dst = graph.edges()
    return sp.csr_array((np.ones(src.numel()), (dst.numpy(), src.numpy())), shape=(graph.num_dst, graph.num_src))


def same(left: sp.csr_array, right: sp.csr_array) -> bool:
    return left.shape == right.shape and abs(left - right).sum() == 0


@every_case
def test_edges_come_back_in_constructor_order(case: Case) -> None:
    graph = case.graph()
    src, dst = graph.edges()
    assert torch.equal(src, case.src)
    assert torch.equal(dst, case.dst)
    assert graph.num_edges == case.num_edges
    assert graph.is_square == (not case.bipartite)


@every_case
def test_csc_lists_in_edges_by_destination_then_edge_id(case: Case) -> None:
    csc = case.graph().csc
    order = case.edges_by_dst()
    assert csc.indptr.tolist() == [0, *np.cumsum(np.bincount(case.dst.numpy(), minlength=case.num_dst)).tolist()]
    assert csc.indices.tolist() == case.src.numpy()[order].tolist()
    ids = range(case.num_edges) if csc.edge_ids is None else csc.edge_ids.tolist()
    assert list(ids) == order.tolist()
    assert csc.is_wide == case.wide


@every_case
def test_csr_lists_out_edges_by_source_in_order_of_destination(case: Case) -> None:
    csr = case.graph().csr
    by_dst = case.edges_by_dst()
    order = by_dst[np.argsort(case.src.numpy()[by_dst], kind="stable")]
    assert csr.indptr.tolist() == [0, *np.cumsum(np.bincount(case.src.numpy(), minlength=case.num_src)).tolist()]
    assert csr.indices.tolist() == case.dst.numpy()[order].tolist()
    assert csr.edge_ids is None or csr.edge_ids.tolist() == order.tolist()


@every_case
def test_degrees_and_stats_are_those_of_the_matrix(case: Case) -> None:
    graph, expected = case.graph(), case.scipy()
    assert graph.in_degrees().tolist() == expected.sum(axis=1).tolist()
    assert graph.out_degrees().tolist() == expected.sum(axis=0).tolist()
    stats = graph.stats
    assert (stats.num_src, stats.num_dst, stats.num_edges) == (case.num_src, case.num_dst, case.num_edges)
    assert stats.max_in_degree == (expected.sum(axis=1).max() if case.num_dst else 0)
    assert stats.mean == case.num_edges / max(case.num_dst, 1)
    assert stats.has_loops == (not case.bipartite and expected.diagonal().sum() > 0)


@every_square
def test_symmetry_and_loops_are_found(case: Case) -> None:
    graph, expected = case.graph(), case.scipy()
    assert graph.is_symmetric == same(expected, expected.T.tocsr())
    assert graph.has_self_loops == bool(expected.diagonal().sum())


@every_case
def test_csr_structure_is_the_transpose_and_shares_arrays_when_symmetric(case: Case) -> None:
    graph = case.graph()
    form = graph.csr_structure
    data = np.ones(form.num_edges)
    built = sp.csr_array((data, form.indices.numpy(), form.indptr.numpy()), shape=(form.num_rows, form.num_cols))
    assert same(built, case.scipy().T.tocsr())
    if graph.is_symmetric:
        assert form.indices.data_ptr() == graph.csc.indices.data_ptr()


@every_case
def test_csc_structure_of_a_reversed_graph_needs_no_edge_ids(case: Case) -> None:
    graph = Graph.from_adjacency(case.graph().csr, bipartite=case.bipartite).reverse()
    form = graph.csc_structure
    built = sp.csr_array(
        (np.ones(form.num_edges), form.indices.numpy(), form.indptr.numpy()), shape=(form.num_rows, form.num_cols)
    )
    assert same(built, case.scipy())
    assert form.edge_ids is None or form is graph.csc


@every_case
def test_reverse_turns_every_edge_and_shares_arrays(case: Case) -> None:
    graph = case.graph()
    turned = graph.reverse()
    src, dst = turned.edges()
    assert torch.equal(src, case.dst)
    assert torch.equal(dst, case.src)
    assert turned.reverse() is graph
    assert graph.reverse() is turned
    assert turned.csr is graph.csc
    assert turned.csc is graph.csr
    assert turned.num_src == case.num_dst


def test_a_graph_with_its_reverse_is_freed_without_the_collector() -> None:
    gc.disable()
    try:
        graph = Graph([0, 1], [1, 2])
        graph.reverse().csc  # noqa: B018
        watch = weakref.ref(graph)
        del graph
        assert watch() is None
    finally:
        gc.enable()


@every_square
def test_without_self_loops_keeps_the_others_in_order(case: Case) -> None:
    graph = case.graph()
    plain = graph.without_self_loops()
    stay = case.src != case.dst
    src, dst = plain.edges()
    assert torch.equal(src, case.src[stay])
    assert torch.equal(dst, case.dst[stay])
    assert plain.without_self_loops() is plain
    assert graph.without_self_loops() is plain
    assert not plain.csc.has_loops()


@every_square
def test_add_self_loops_appends_one_edge_per_node(case: Case) -> None:
    graph = case.graph().add_self_loops()
    src, dst = graph.edges()
    nodes = torch.arange(case.num_src)
    assert torch.equal(src, torch.cat([case.src, nodes]))
    assert torch.equal(dst, torch.cat([case.dst, nodes]))
    assert graph.csc.edge_ids_ascend()
    full = case.graph().add_self_loops(missing_only=True)
    expected = case.scipy()
    expected.setdiag(np.maximum(expected.diagonal(), 1))
    assert same(matrix(full), expected.tocsr())


@every_square
def test_to_bidirected_is_the_symmetric_pattern_without_repeats(case: Case) -> None:
    both = case.graph().to_bidirected()
    expected = ((case.scipy() + case.scipy().T) > 0).astype(np.float64).tocsr()
    assert same(matrix(both), expected)
    assert both.is_symmetric
    assert both.csc.columns_ascend(strictly=True)


@every_case
def test_take_dst_is_a_row_subset(case: Case) -> None:
    graph = case.graph()
    rows = torch.arange(case.num_dst - 1, -1, -2)
    taken = graph.take_dst(rows)
    assert same(matrix(taken), case.scipy()[rows.numpy()])
    assert not taken.is_square
    assert graph.take_dst(rows.clone()) is taken
    ids = graph.in_edge_ids(rows)
    src, dst = taken.edges()
    assert torch.equal(case.src[ids], src)
    assert torch.equal(case.dst[ids], rows[dst])


@every_case
def test_pickle_and_deepcopy_keep_edges_and_fields(case: Case) -> None:
    graph = case.graph()
    graph.edata["w"] = torch.arange(case.num_edges)
    for twin in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph.reverse()))):
        ends = twin.edges() if twin.num_src == case.num_src and torch.equal(twin.edges()[0], case.src) else None
        ends = ends or twin.reverse().edges()
        assert torch.equal(ends[0], case.src)
        assert torch.equal(ends[1], case.dst)
        assert torch.equal(twin.edata["w"], graph.edata["w"])
        assert twin.is_square == graph.is_square
    assert copy.deepcopy(graph).edata["w"] is not graph.edata["w"]


def test_pickled_blocks_know_where_they_were_drawn() -> None:
    """Ids of edges and nodes, factors, the whole graph's degrees, and that a sampler drew them."""
    edges = power_law_edges(200, 3000, seed=0)
    graph = Graph(edges.src, edges.dst, num_nodes=200)
    sampler = NeighborSampler(graph, [3, 4])
    for sample in (sampler.sample([5, 9, 7]), pickle.loads(pickle.dumps(sampler.sample([5, 9, 7])))):
        for block, one in zip(sampler.sample([5, 9, 7]).blocks, sample.blocks, strict=True):
            twin = pickle.loads(pickle.dumps(one))
            assert torch.equal(twin.e_id, block.e_id) and torch.equal(twin.src_ids, block.src_ids)
            assert torch.equal(twin.src_degrees(), block.src_degrees()) and twin.is_drawn
            assert (twin.edge_norm is None) == (block.edge_norm is None)
    last = sampler.sample_open([5, 9, 7]).blocks[0]
    twin = pickle.loads(pickle.dumps(last))
    assert torch.equal(twin.dst_ids, last.dst_ids) and torch.equal(
        twin.without_self_loops().csc.indices, last.loopless.csc.indices
    )


def test_only_the_compressed_form_is_kept() -> None:
    edges = power_law_edges(1000, 20000, seed=0)
    graph = Graph(edges.src, edges.dst, num_nodes=1000)
    assert graph.csc.nbytes == 8 * 1001 + 2 * 4 * 20000
    order = np.argsort(edges.dst, kind="stable")
    ascending = Graph(edges.src[order], edges.dst[order], num_nodes=1000)
    assert ascending.csc.edge_ids is None


def test_from_csc_keeps_fitting_arrays_and_numbers_edges_by_position() -> None:
    indptr, indices = torch.tensor([0, 2, 2, 3]), torch.tensor([2, 1, 0], dtype=torch.int32)
    graph = Graph.from_csc(indptr, indices)
    assert graph.csc.indices.data_ptr() == indices.data_ptr()
    assert [t.tolist() for t in graph.edges()] == [[2, 1, 0], [0, 0, 2]]
    assert Graph.from_csc(indptr, indices, num_src=9).num_src == 9
    assert not Graph.from_csc(indptr, indices, num_src=9).is_square
    assert Graph.from_csc(indptr, indices, num_src=3).is_square


def test_from_csc_with_edge_ids_orders_rows_by_id() -> None:
    graph = Graph.from_csc([0, 3, 4], [0, 1, 1, 0], edge_ids=[2, 0, 3, 1])
    assert [t.tolist() for t in graph.edges()] == [[1, 0, 0, 1], [0, 1, 0, 0]]
    assert graph.csc.edge_ids is not None
    assert graph.csc.edge_ids.tolist() == [0, 2, 3, 1]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integer_tensors_of_all_kinds_are_taken(dtype: torch.dtype) -> None:
    graph = Graph(torch.tensor([0, 1], dtype=dtype), torch.tensor([1, 2]))
    assert [t.tolist() for t in graph.edges()] == [[0, 1], [1, 2]]


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i2", ">i4", ">i8", "<i4"])
def test_integer_arrays_of_all_kinds_are_taken(dtype: str) -> None:
    frozen = np.array([0, 9, 1, 9], dtype=dtype)[::2]
    frozen.flags.writeable = False
    assert [t.tolist() for t in Graph(frozen, [1, 2]).edges()] == [[0, 1], [1, 2]]


BAD = {
    "float": (lambda: Graph([0.0], [1]), DtypeError, "Graph: expected src of integers, got float64"),
    "nan": (lambda: Graph([float("nan")], [1]), DtypeError, "expected src of integers, got float64"),
    "bool": (lambda: Graph([0], torch.tensor([True])), DtypeError, "expected dst of integers, got torch.bool"),
    "none": (lambda: Graph(None, [1]), DtypeError, "expected src as a tensor, an array or a list, got NoneType"),
    "text": (lambda: Graph("01", [1]), DtypeError, "got str"),
    "words": (lambda: Graph(["a"], [1]), DtypeError, "expected src of integers"),
    "ragged": (lambda: Graph([[0], [1, 2]], [1]), ShapeError, "ragged"),
    "2d": (lambda: Graph(torch.zeros(2, 3, dtype=torch.long), [1]), ShapeError, r"1 dimension, got shape \(2, 3\)"),
    "lengths": (lambda: Graph([0, 1], [1]), ShapeError, "expected src and dst of one length, got 2 and 1"),
    "negative": (
        lambda: Graph([0, -1], [1, 0]),
        IndexRangeError,
        r"expected src ids in \[0, 2\), got -1 at position 1",
    ),
    "range": (lambda: Graph([0], [3], 3), IndexRangeError, r"Graph: expected dst ids in \[0, 3\), got 3 at position 0"),
    "negative_nodes": (lambda: Graph([], [], -1), GraphError, "expected num_nodes >= 0, got -1"),
    "huge_nodes": (lambda: Graph([0], [1], 2**40), GraphError, "expected num_nodes <= .* got 1099511627776"),
    "huge_id": (lambda: Graph([2**50], [1]), GraphError, "without large gaps, got 1125899906842624"),
    "over_64": (lambda: Graph(np.array([2**63], dtype=np.uint64), [1]), IndexRangeError, "fit 64 bits"),
    "over_64_list": (lambda: Graph([2**80], [1]), DtypeError, "got object"),
    "float_nodes": (lambda: Graph([0], [1], 2.0), DtypeError, "expected num_nodes as an integer, got 2.0"),
    "nan_nodes": (lambda: Graph([0], [1], float("nan")), DtypeError, "expected num_nodes as an integer, got nan"),
    "bool_nodes": (lambda: Graph([0], [0], True), DtypeError, "expected num_nodes as an integer, got True"),
    "three_counts": (lambda: Graph([0], [1], (1, 2, 3)), ShapeError, "got 3 numbers"),
    "csc_empty": (lambda: Graph.from_csc([], []), ShapeError, "one entry more than nodes"),
    "csc_start": (lambda: Graph.from_csc([1, 1], []), GraphError, "start at 0, got 1 at position 0"),
    "csc_falls": (lambda: Graph.from_csc([0, 2, 1], [0]), GraphError, "ascend, got 1 at position 2 after 2"),
    "csc_end": (lambda: Graph.from_csc([0, 1], [0, 0]), GraphError, "end at the number of indices, 2, got 1 at"),
    "csc_range": (lambda: Graph.from_csc([0, 1], [1]), IndexRangeError, r"indices in \[0, 1\), got 1 at position 0"),
    "csc_ids": (lambda: Graph.from_csc([0, 2], [0, 0], edge_ids=[1, 1]), GraphError, "without repetition, got 1 at"),
    "csc_ids_long": (
        lambda: Graph.from_csc([0, 1], [0], edge_ids=[0, 1]),
        ShapeError,
        "one edge id per index, 1, got 2",
    ),
    "csc_huge": (lambda: Graph.from_csc([0, 1], [0], num_src=2**45), GraphError, "expected num_src <="),
    "take": (lambda: Graph([0], [1]).take_dst([5]), IndexRangeError, r"dst ids in \[0, 2\), got 5 at position 0"),
    "take_mask": (lambda: Graph([0], [1]).take_dst([True]), ShapeError, "a mask of 2 dst entries"),
    "loops": (lambda: Graph([0], [1], (1, 2)).add_self_loops(), GraphError, "expected one set of nodes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_clear_line(name: str) -> None:
    make, error, words = BAD[name]
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("empty", [[], np.array([]), torch.tensor([]), torch.empty(0, dtype=torch.int32)])
def test_no_edges_of_any_kind_are_fine(empty: object) -> None:
    assert Graph(empty, empty).num_nodes == 0
    assert Graph(empty, empty, num_nodes=3).in_degrees().tolist() == [0, 0, 0]


def test_a_graph_cannot_be_changed() -> None:
    graph = Graph([0], [1])
    with pytest.raises(AttributeError):
        graph.num_nodes = 5
    with pytest.raises(AttributeError):
        graph.anything = 5


def test_fields_hold_rows_of_the_graph() -> None:
    graph = Graph([0, 1], [1, 2])
    graph.ndata["h"] = torch.ones(3, 2)
    graph.edata["w"] = [0.5, 1.5]
    assert graph.reverse().ndata["h"] is graph.ndata["h"]
    assert graph.srcdata is graph.ndata
    with pytest.raises(ShapeError, match=r"ndata\['x'\]: expected 3 rows, one per node, got 2 rows"):
        graph.ndata["x"] = torch.ones(2)
    sides = Graph([0], [1], num_nodes=(1, 2))
    sides.srcdata["h"] = torch.ones(1)
    assert sides.reverse().dstdata["h"] is sides.srcdata["h"]
    with pytest.raises(GraphError, match=r"Graph.ndata: expected one set of nodes"):
        sides.ndata  # noqa: B018


@pytest.mark.parametrize("name", ["cora", "facebook_pages", "ogbn_arxiv_structure"])
def test_real_graphs_are_what_scipy_makes_of_them(name: str, shared_data: Path) -> None:
    with np.load(shared_data / f"{name}.npz", allow_pickle=False) as file:
        indptr, indices = file["indptr"], file["indices"]
    n = len(indptr) - 1
    matrix = sp.csr_array((np.ones(len(indices)), indices, indptr), shape=(n, n))  # rows are sources
    graph = Graph.from_csc(indptr, indices).reverse()
    assert graph.is_symmetric == same(matrix, matrix.T.tocsr())
    assert graph.has_self_loops == bool(matrix.diagonal().sum())
    turned = matrix.T.tocsr()
    turned.sort_indices()
    assert np.array_equal(graph.csc.indices.numpy(), turned.indices)
    assert np.array_equal(graph.csc.indptr.numpy(), turned.indptr)
    assert graph.in_degrees().tolist() == turned.sum(axis=1).tolist()
    both = graph.to_bidirected()
    assert both.num_edges == ((matrix + matrix.T) > 0).sum()
    assert both.is_symmetric


def test_order_within_rows_does_not_depend_on_what_was_asked_before() -> None:
    """Of a symmetric graph, whose forms without edge ids share arrays."""
    generator = torch.Generator().manual_seed(0)
    one = torch.randint(0, 30, (200,), generator=generator)
    other = torch.randint(0, 30, (200,), generator=generator)
    shuffled = torch.randperm(400, generator=generator)
    src, dst = torch.cat([one, other])[shuffled], torch.cat([other, one])[shuffled]
    plain, asked = Graph(src, dst, 30), Graph(src, dst, 30)
    assert plain.is_symmetric and not torch.equal(asked.csr.indices, asked.csc.indices)  # else the test says nothing
    for name in ("csc_structure", "csr_structure"):
        assert torch.equal(getattr(plain, name).indices, getattr(asked, name).indices)
