"""The real files: counts that their description gives, and the publishers' layouts against the prepared files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from graphweft.data.dataset import Dataset
from graphweft.data.load import load
from graphweft.storage.feature import SparseFeatures


class Counts(NamedTuple):
    nodes: int
    edges: int
    features: int
    density: float | None
    classes: int
    labelled: int
    split: tuple[int, int, int] | None


COUNTS = {
    "acm": Counts(11246, 17426, 0, None, 3, 4019, (60, 1000, 1000)),
    "aifb": Counts(8285, 29043, 0, None, 4, 176, (140, 0, 36)),
    "blogcatalog_attr": Counts(5196, 343486, 8189, 0.00868, 6, 5196, None),
    "citeseer": Counts(3327, 9104, 3703, 0.00854, 6, 3312, (120, 500, 1000)),
    "cora": Counts(2708, 10556, 1433, 0.01268, 7, 2708, (140, 500, 1000)),
    "dblp": Counts(26128, 119783, 0, None, 4, 4057, (80, 1000, 1000)),
    "email_enron": Counts(36692, 367662, 0, None, 0, 0, None),
    "enzymes_graphs": Counts(19580, 74564, 18, 0.85718, 6, 600, (480, 60, 60)),
    "facebook_pages": Counts(22470, 341825, 4714, 0.00297, 4, 22470, None),
    "karate": Counts(34, 156, 0, None, 0, 0, None),
    "mutag_graphs": Counts(3371, 7442, 7, None, 2, 188, None),
    "mutag_rdf": Counts(23644, 74227, 0, None, 2, 340, (272, 0, 68)),
    "nell": Counts(65755, 251550, 61278, 0.00011, 210, 3576, (105, 500, 969)),
    "ogbl_ddi": Counts(4267, 2135822, 0, None, 0, 0, None),
    "ogbn_arxiv_structure": Counts(169343, 1166243, 0, None, 40, 169343, (90941, 29799, 48603)),
    "ppi_small_structure": Counts(14755, 450540, 0, None, 0, 0, (9716, 1825, 3214)),
    "pubmed": Counts(19717, 88648, 500, None, 3, 19717, (60, 500, 1000)),
    "soc_slashdot0902": Counts(82168, 948464, 0, None, 0, 0, None),
    "squirrel_filtered": Counts(2223, 93996, 2089, 0.00699, 5, 2223, (1053, 718, 452)),
    "twitch_de": Counts(9498, 306276, 3170, 0.00641, 2, 9498, None),
    "wn18rr": Counts(40943, 86835, 0, None, 0, 0, None),
}
RELATIONS = {"acm": 2, "dblp": 3, "aifb": 45, "mutag_rdf": 23, "wn18rr": 11}


def _matrix(ds: Dataset) -> sp.csr_array:
    src, dst = ds.graph.edges()
    ones = np.ones(ds.num_edges, np.int32)
    return sp.csr_array((ones, (src.numpy(), dst.numpy())), shape=(ds.num_nodes, ds.num_nodes))


def _features(ds: Dataset) -> sp.csr_array:
    assert ds.x is not None
    return ds.x.to_scipy() if isinstance(ds.x, SparseFeatures) else sp.csr_array(ds.x.numpy())


def _same(a: sp.csr_array, b: sp.csr_array) -> bool:
    return a.shape == b.shape and abs(a - b).sum() == 0


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_those_of_the_description(name: str, shared_data: Path) -> None:
    want = COUNTS[name]
    ds = load(shared_data / f"{name}.npz")
    labelled = int((ds.y >= 0).sum()) if ds.y.dim() == 1 else ds.num_rows
    assert (ds.num_nodes, ds.num_edges, ds.num_features) == want[:3]
    assert (ds.num_classes, labelled) == (want.classes, want.labelled)
    if want.density is not None:
        assert 1 - ds.feature_sparsity == pytest.approx(want.density, abs=6e-6)
    sizes = tuple(idx.numel() for idx in (ds.train_idx, ds.val_idx, ds.test_idx))
    if want.split is not None:
        assert sizes == want.split
    else:
        assert sum(sizes) == labelled
    if name in RELATIONS:
        assert len(ds.graph.relations) == RELATIONS[name]


def test_typed_sets_have_their_types_and_features(shared_data: Path) -> None:
    acm, dblp = load(shared_data / "acm.npz"), load(shared_data / "dblp.npz")
    sizes = {t: len(acm.graph.layout.node_range(t)) for t in acm.graph.node_types}
    assert sizes == {"paper": 4019, "author": 7167, "subject": 60}
    edges = {name: len(acm.graph.layout.edge_range((s, name, d))) for s, name, d in acm.graph.relations}
    assert edges == {"paper-author": 13407, "paper-subject": 4019}
    assert {t: f.shape for t, f in acm.features.items()} == {"paper": (4019, 1902), "author": (7167, 1902)}
    assert {t: tuple(f.shape)[1] for t, f in dblp.features.items()} == {"author": 334, "paper": 4231, "term": 50}
    assert isinstance(dblp.features["term"], torch.Tensor)
    assert load(shared_data / "acm.npz", split="60").train_idx.numel() == 180
    assert load(shared_data / "acm.npz", split=1).train_idx.numel() == 120


def test_triples_of_wn18rr(shared_data: Path) -> None:
    ds = load(shared_data / "wn18rr.npz")
    assert {part: pair[0].shape for part, pair in ds.held_out.items()} == {"val": (2, 3034), "test": (2, 3134)}


@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_planetoid_files_give_the_prepared_set(name: str, shared_data: Path) -> None:
    raw = load(shared_data / "raw" / "planetoid" / f"ind.{name}.graph")
    ready = load(name, root=shared_data)
    assert _same(_matrix(raw), _matrix(ready)) and _same(_features(raw), _features(ready))
    assert torch.equal(raw.y, ready.y) and raw.num_classes == ready.num_classes
    for part in ("train", "val", "test"):
        assert torch.equal(raw.idx(part), ready.idx(part))


def test_heterophilous_file_gives_the_prepared_set(shared_data: Path) -> None:
    raw = load(shared_data / "raw" / "heterophilous" / "squirrel_filtered.npz", split=3)
    ready = load(shared_data / "squirrel_filtered.npz", split=3)
    assert _same(_matrix(raw), _matrix(ready)) and _same(_features(raw), _features(ready))
    assert torch.equal(raw.y, ready.y) and torch.equal(raw.train_idx, ready.train_idx)


@pytest.mark.parametrize(
    ("folder", "ready"),
    [
        ("graphsaint/ogbn-arxiv", "ogbn_arxiv_structure"),
        ("graphsaint/ppi", "ppi_small_structure"),
        ("ogb/ogbl_ddi", "ogbl_ddi"),
        ("tu/ENZYMES", "enzymes_graphs"),
    ],
)
def test_folders_give_the_prepared_sets(folder: str, ready: str, shared_data: Path) -> None:
    raw, want = load(shared_data / "raw" / folder), load(shared_data / f"{ready}.npz")
    assert _same(_matrix(raw), _matrix(want)) and torch.equal(raw.y, want.y)
    if want.graph_ptr is None:
        assert torch.equal(raw.train_idx, want.train_idx) and torch.equal(raw.test_idx, want.test_idx)
    else:
        assert raw.graph_ptr is not None and torch.equal(raw.graph_ptr, want.graph_ptr)
        assert torch.equal(raw.arrays["node_tag"], want.arrays["node_tag"])
        assert _same(_features(raw), _features(want))


def test_gnn_benchmark_counts(shared_data: Path) -> None:
    cora = load(shared_data / "raw" / "gnn-benchmark" / "cora.npz")
    assert (cora.num_nodes, cora.num_edges, cora.num_features, cora.num_classes) == (2708, 5429, 1433, 7)
    citeseer = load(shared_data / "raw" / "gnn-benchmark" / "citeseer.npz")
    assert (citeseer.num_nodes, citeseer.num_edges, citeseer.num_features) == (3312, 4715, 3703)


def test_edge_list_and_matrix_counts(shared_data: Path) -> None:
    vote = load(shared_data / "raw" / "snap" / "wiki-Vote.txt")
    assert (vote.num_nodes, vote.num_edges) == (7115, 103689)
    assert vote.node_ids is not None and vote.node_ids.numel() == 7115
    mtx = load(shared_data / "raw" / "mtx" / "p2p-Gnutella31.mtx")
    assert (mtx.num_nodes, mtx.num_edges) == (62586, 147892)


def test_molecules(shared_data: Path) -> None:
    esol, bace = (load(shared_data / "raw" / "ogb" / f"ogbg_mol{name}") for name in ("esol", "bace"))
    assert (esol.num_rows, bace.num_rows) == (1128, 1513)
    assert esol.task == "regression" and esol.y[0].item() == pytest.approx(-0.77)
    assert bace.task == "classification" and bace.num_classes == 2
    assert esol.train_idx.numel() + esol.val_idx.numel() + esol.test_idx.numel() == 1128
    assert esol.graph.is_symmetric and bace.graph.is_symmetric
