"""Adjacencies whose arrays were made on a device, beside those of host memory; the device here is the host."""

from __future__ import annotations

import pickle

import pytest
import torch
from zoo import CASES

import graphweft as gw
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import _with_last
from graphweft.graph.far_adjacency import FarAdjacency


def same(found: Adjacency, wanted: Adjacency) -> None:
    assert torch.equal(found.indptr, wanted.indptr) and torch.equal(found.indices, wanted.indices)
    assert found.indices.dtype == wanted.indices.dtype and found.num_cols == wanted.num_cols
    assert (found.edge_ids is None) == (wanted.edge_ids is None)
    if found.edge_ids is not None and wanted.edge_ids is not None:
        assert torch.equal(found.edge_ids, wanted.edge_ids) and found.edge_ids.dtype == wanted.edge_ids.dtype


@pytest.mark.parametrize("case", [case for case in CASES if case.num_edges < 300], ids=lambda case: case.name)
def test_what_is_made_on_the_device_is_what_the_host_makes(case) -> None:
    graph: gw.Graph = case.graph()
    for given in (graph.csc, Adjacency(graph.csc.indptr, graph.csc.indices, None, graph.num_src)):
        far = FarAdjacency(given)
        assert (far.num_rows, far.num_edges, far.nbytes) == (given.num_rows, given.num_edges, given.nbytes)
        for edge_ids in (True, False):
            same(far.transpose(edge_ids=edge_ids), given.transpose(edge_ids=edge_ids))
        last = torch.arange(given.num_rows, dtype=given.indices.dtype)
        same(far.with_last(last), _with_last(Adjacency(given.indptr, given.indices, None, given.num_cols), last))
        assert not {"indptr", "indices", "edge_ids"} & set(vars(far)), "nothing was copied to host memory"
        same(pickle.loads(pickle.dumps(far)), given)
        same(far, given)
