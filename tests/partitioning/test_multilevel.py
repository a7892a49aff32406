"""The multilevel partitioner against NumPy, METIS and the limits that it promises, in memory and from a file."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from zoo import SQUARE, Case, power_law_edges, random_edges

import graphweft as gw
from graphweft._native import declare
from graphweft.data.graph_files import FilesInput, GraphFiles
from graphweft.data.stored_rows import sorted_rows
from graphweft.graph.adjacency import Adjacency
from graphweft.partitioning import multilevel as module
from graphweft.partitioning.between import Between
from graphweft.partitioning.multilevel import TOLERANCE, InMemory, multilevel, neighbours_together
from graphweft.partitioning.partition import label_distance, undirected

DISTANCE = 0.1


def two_levels(classes: int, per: int, size: int, seed: int) -> tuple[gw.Graph, torch.Tensor]:
    """Every class in ``per`` communities of its own, nodes in random order."""
    rng = np.random.default_rng(seed)
    n = classes * per * size
    name = rng.permutation(n)
    inside = rng.integers(0, n, 10 * n)
    other = inside // size * size + rng.integers(0, size, inside.size)
    src, dst = np.concatenate([inside, rng.integers(0, n, n)]), np.concatenate([other, rng.integers(0, n, n)])
    keep = src != dst
    graph = gw.Graph(name[src[keep]], name[dst[keep]], num_nodes=n).to_bidirected()
    labels = np.empty(n, np.int64)
    labels[name] = np.arange(n) // size % classes
    return graph, torch.from_numpy(labels)


class Pieces:
    """A structure in pieces of some rows."""

    def __init__(self, csc: Adjacency, rows: int) -> None:
        self._csc, self._rows = csc, rows
        self.num_nodes, self.num_entries = csc.num_rows, csc.num_edges

    def pieces(self) -> Iterator[tuple[int, Adjacency]]:
        indptr, indices = self._csc.indptr, self._csc.indices
        for first in range(0, self.num_nodes, self._rows):
            last = min(first + self._rows, self.num_nodes)
            begin, end = int(indptr[first]), int(indptr[last])
            yield first, Adjacency(indptr[first : last + 1] - begin, indices[begin:end], None, self.num_nodes)


@pytest.mark.parametrize("k", [8, 16])
def test_as_few_cuts_as_metis_where_classes_and_communities_differ(k: int) -> None:
    pytest.importorskip("pymetis")
    graph, labels = two_levels(6, 50, 20, seed=k)
    found, metis = gw.partition(graph, k, "multilevel", labels), gw.partition(graph, k, "metis", labels)
    assert found.report.label_distance is not None and metis.report.label_distance is not None
    assert float(found.report.label_distance.max()) <= DISTANCE
    assert float(metis.report.label_distance.max()) > DISTANCE
    assert found.report.cut_share <= 1.5 * metis.report.cut_share
    assert found.report.balance <= TOLERANCE + k / graph.num_nodes


@pytest.mark.parametrize("case", SQUARE, ids=str)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_limits_on_the_zoo(case: Case, k: int) -> None:
    graph = case.graph()
    labels = torch.arange(graph.num_nodes) % 4 - 1
    for given in (None, labels):
        part = gw.partition(graph, k, "multilevel", given).part
        sizes = torch.bincount(part.long(), minlength=k)
        most = max(TOLERANCE * graph.num_nodes / k, -(-graph.num_nodes // k))
        assert part.numel() == graph.num_nodes and int(sizes.max()) <= most + (0 if given is None else 3)
        assert torch.equal(part, gw.partition(graph, k, "multilevel", given).part)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_give_what_the_whole_gives(seed: int) -> None:
    """Limits are added up piece by piece, so weights are whole numbers here and sums exact."""
    made = power_law_edges(256, 2000, seed) if seed % 2 else random_edges(256, 1500, seed)
    graph = undirected(gw.Graph(made.src, made.dst, num_nodes=256))
    labels = torch.arange(256) % 2
    whole = multilevel(InMemory(graph.csc), 8, labels, seed=seed)
    for rows in (1, 37, 255):
        assert torch.equal(multilevel(Pieces(graph.csc, rows), 8, labels, seed=seed), whole)


def test_the_graph_between_clusters_is_that_of_scipy() -> None:
    made = power_law_edges(120, 900, 3)
    graph = undirected(gw.Graph(made.src, made.dst, num_nodes=120))
    cluster = np.random.default_rng(0).integers(0, 17, 120).astype(np.int32)
    cluster[:17] = np.arange(17)
    csc = graph.csc
    dense = sp.csr_matrix((np.ones(csc.num_edges), csc.indices.numpy(), csc.indptr.numpy()), (120, 120))
    member = sp.csr_matrix((np.ones(120), (np.arange(120), cluster)), (120, 17))
    expected = (member.T @ dense @ member).toarray()
    np.fill_diagonal(expected, 0)
    for rows in (120, 11):
        between = Between(17, 1 << 20)
        for first, piece in Pieces(csc, rows).pieces():
            between.add(first, piece, None, cluster)
        found, weight = between.graph()
        got = sp.csr_matrix((weight, found.indices.numpy(), found.indptr.numpy()), (17, 17)).toarray()
        assert np.array_equal(got, expected)


def test_a_sample_of_the_graph_between_clusters_is_symmetric_and_small() -> None:
    made = random_edges(400, 6000, 1)
    graph = undirected(gw.Graph(made.src, made.dst, num_nodes=400))
    between = Between(400, 3000)
    for first, piece in Pieces(graph.csc, 50).pieces():
        between.add(first, piece, None, np.arange(400, dtype=np.int32))
    found, weight = between.graph()
    got = sp.csr_matrix((weight, found.indices.numpy(), found.indptr.numpy()), (400, 400))
    assert 0 < got.nnz <= 3000 and (got != got.T).nnz == 0


def test_clusters_have_one_label_and_keep_to_their_weight() -> None:
    cluster_kernel = declare("gw_multilevel_cluster")
    graph, labels = two_levels(3, 8, 20, seed=0)
    of, heavy = np.arange(480, dtype=np.int32), np.ones(480, np.int64)
    kinds, most = labels.numpy().astype(np.int32), np.array([7, 11, 20])
    moved = ctypes.c_int64()
    for _ in range(3):
        arrays = (kinds.ctypes.data, most.ctypes.data, of.ctypes.data, heavy.ctypes.data)
        cluster_kernel(ctypes.byref(graph.csc.native), 0, None, None, *arrays, ctypes.byref(moved))
    assert np.array_equal(heavy, np.bincount(of, minlength=480))
    assert all(len(set(kinds[of == c])) == 1 for c in set(of))
    for label, limit in enumerate(most):
        assert 1 < heavy[of[kinds == label]].max() <= limit


@pytest.mark.parametrize("memory", [1 << 14, 1 << 26])
def test_rows_in_a_file_are_those_of_the_graph(memory: int, tmp_path: Path) -> None:
    made = power_law_edges(300, 2500, 7)
    np.save(tmp_path / "edges.npy", np.stack([made.src, made.dst]))
    source = FilesInput(GraphFiles(tmp_path / "edges.npy", num_nodes=300))
    rows = sorted_rows(source, tmp_path, memory, lambda count: None)
    expected = sp.csr_matrix((np.ones(len(made.src)), (made.src, made.dst)), (300, 300))
    expected = ((expected + expected.T) > 0).astype(np.int64).tolil()
    expected.setdiag(0)
    for _ in range(2):  # a pass can be made again
        found = []
        for first, piece in rows.pieces():
            assert first == sum(len(part.toarray()) for part in found)
            data = (np.ones(piece.num_edges, np.int64), piece.indices.numpy(), piece.indptr.numpy())
            found.append(sp.csr_matrix(data, (piece.num_rows, 300)))
        assert np.array_equal(sp.vstack(found).toarray(), expected.toarray())
    assert rows.num_entries == expected.tocsr().nnz
    rows.remove()
    assert [file.name for file in tmp_path.iterdir()] == ["edges.npy"]


def test_a_structure_beyond_the_budget_is_partitioned_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, labels = two_levels(4, 20, 25, seed=3)
    src, dst = graph.edges()
    np.save(tmp_path / "edges.npy", np.stack([src.numpy(), dst.numpy()]))
    np.save(tmp_path / "y.npy", labels.numpy())
    files = gw.macro.GraphFiles(tmp_path / "edges.npy", y=tmp_path / "y.npy")
    memory = gw.macro.prepare_store(files, tmp_path / "memory", parts=8, memory="256MB")
    monkeypatch.setattr("graphweft.data.prepare_store._fits", lambda source, budget: False)
    disk = gw.macro.prepare_store(files, tmp_path / "disk", parts=8, memory="256MB")
    assert disk.manifest.method == memory.manifest.method == "multilevel"
    assert sorted(file.suffix for file in disk.path.iterdir()) == [".bin"] * 8 + [".json"]
    cuts = []
    for store in (memory, disk):
        part = np.searchsorted(store.bounds[1:], np.arange(store.num_nodes), "right")
        inside = [int((part[store.part(p).indices.numpy()] == p).sum()) for p in range(8)]
        cuts.append(1 - sum(inside) / store.num_edges)
    assert cuts[1] <= 1.2 * cuts[0] < 0.5  # at random: 0.875


def test_nodes_without_a_label_do_not_count_in_the_distance() -> None:
    graph, labels = two_levels(4, 25, 20, seed=5)
    labels = torch.where(torch.arange(labels.numel()) % 3 == 0, labels, -1)
    found = gw.partition(graph, 8, "multilevel", labels, distance=0.15)
    assert float(label_distance(found.part, 8, labels).max()) <= 0.15
    looser = gw.partition(graph, 8, "multilevel", labels, distance=0.9)
    assert looser.report.cut <= found.report.cut


@pytest.mark.parametrize("distance", [0, -1.0, 1.5, "near"])
def test_a_distance_out_of_range_is_refused(distance: object) -> None:
    with pytest.raises(gw.errors.ConfigError, match="expected distance above 0, up to 1, got"):
        gw.partition(gw.Graph([0], [1]), 2, "multilevel", distance=distance)  # type: ignore[arg-type]


def test_neighbours_stand_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Communities whose nodes are in random order, beside SciPy's order of least bandwidth."""
    graph, _ = two_levels(4, 8, 50, seed=3)
    nodes = graph.num_nodes
    order = neighbours_together(graph.csc, 64).numpy()
    with monkeypatch.context() as small:
        small.setattr(module, "_ENTRIES_OF_ORDER", graph.num_edges)
        assert np.array_equal(order, neighbours_together(graph.csc, 64).numpy())
        small.setattr(module, "_ENTRIES_OF_ORDER", 3000)  # pieces, and a sample between clusters
        pieces = list(module._InPieces(graph.csc).pieces())
        assert max(rows.num_edges for _, rows in pieces) <= 3000 and len(pieces) > 3
        assert [first for first, _ in pieces[1:]] == np.cumsum([rows.num_rows for _, rows in pieces])[:-1].tolist()
        assert torch.equal(torch.cat([rows.indices for _, rows in pieces]), graph.csc.indices)
        assert np.array_equal(np.sort(neighbours_together(graph.csc, 64).numpy()), np.arange(nodes))
    assert np.array_equal(np.sort(order), np.arange(nodes))
    src, dst = (ends.numpy() for ends in graph.edges())
    matrix = sp.csr_matrix((np.ones(src.size), (dst, src)), shape=(nodes, nodes))

    def apart(found: np.ndarray) -> float:
        place = np.empty(nodes, np.int64)
        place[found] = np.arange(nodes)
        return float(np.abs(place[src] - place[dst]).mean())

    other = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    assert apart(order) < 0.4 * min(apart(other), apart(np.arange(nodes)))
    alone = Adjacency(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32), None, 3)
    assert neighbours_together(alone, 64).tolist() == [0, 1, 2]
