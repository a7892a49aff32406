"""SciPy matrices both ways."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from zoo import CASES, Case

from graphweft._errors import DtypeError, GraphError
from graphweft.interop.scipy import from_scipy, to_scipy


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_graph_is_its_matrix(case: Case) -> None:
    matrix = to_scipy(case.graph())
    assert matrix.shape == (case.num_src, case.num_dst)
    assert np.array_equal(matrix.toarray(), case.scipy().T.toarray())
    back = from_scipy(matrix)
    assert np.array_equal(to_scipy(back).toarray(), matrix.toarray())
    assert back.is_square == (case.num_src == case.num_dst)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_go_along(case: Case) -> None:
    graph = case.graph()
    weight = torch.randn(case.num_edges, dtype=torch.float64)
    graph.edata["w"] = weight
    expected = case.scipy(weight.numpy()).T.toarray()
    assert np.allclose(to_scipy(graph, weight="w").toarray(), expected)
    assert np.allclose(to_scipy(graph, weight=weight).toarray(), expected)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok"])
def test_every_format_is_read(kind: str) -> None:
    dense = np.array([[0, 1.5, 0], [2.5, 0, 0], [0, 0, 3.5]])
    graph = from_scipy(sp.coo_array(dense).asformat(kind), weight="w")
    assert np.array_equal(to_scipy(graph, weight="w").toarray(), dense)
    assert from_scipy(sp.csr_matrix(dense)).num_edges == 3


def test_bad_input_gives_one_clear_line() -> None:
    graph = from_scipy(sp.csr_array(np.eye(2)))
    with pytest.raises(DtypeError, match="expected a SciPy sparse matrix, got ndarray"):
        from_scipy(np.eye(2))
    with pytest.raises(GraphError, match="expected a matrix, got 1 dimension"):
        from_scipy(sp.coo_array(np.ones(3)))
    with pytest.raises(GraphError, match="expected an edge field, one of none, got 'w'"):
        to_scipy(graph, weight="w")
    with pytest.raises(GraphError, match="expected 2 weights, one per edge"):
        to_scipy(graph, weight=torch.ones(3))
