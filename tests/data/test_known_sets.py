"""The table of known names against the files that are at hand."""

from __future__ import annotations

import pytest

import graphweft as gw
from graphweft.data.catalog import ENTRIES
from graphweft.data.known_sets import known_sets


def test_every_name_is_told() -> None:
    found = known_sets("/nowhere")
    assert [one.name for one in found] == list(ENTRIES)
    assert all(one.at is None and one.num_nodes > 0 and one.num_edges > 0 for one in found)
    assert {one.name for one in found if one.source == "by hand"} == {n for n, e in ENTRIES.items() if not e.files}


@pytest.mark.parametrize(
    "name", ["cora", "citeseer", "pubmed", "squirrel-filtered", "enzymes", "ogbg-molesol", "wiki-vote"]
)
def test_sizes_are_those_of_the_files(name, shared_data) -> None:
    (known,) = [one for one in known_sets(shared_data) if one.name == name]
    assert known.at is not None
    ds = gw.load(name, root=shared_data)
    graphs = 1 if ds.graph_ptr is None else ds.num_rows
    sizes = (graphs, ds.num_nodes, ds.num_edges, ds.num_features, ds.num_classes)
    assert sizes == (known.graphs, known.num_nodes, known.num_edges, known.num_features, known.num_classes)
