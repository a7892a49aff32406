"""What is counted of a batch on a store is what its sampler draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft.loader.groups import read_group
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.segment import SegmentSampler
from graphweft.storage.stored_structure import StoredNodes
from graphweft.train.batch_estimate import batch_estimate
from graphweft.train.drawn_hops import drawn_hops, inner_edges, some_of


def _store(folder: Path, **more: Any) -> gw.macro.Store:
    """Communities of 50 nodes, in which most edges lie, and a hub for every 100 nodes."""
    nodes, rng = 4_000, np.random.default_rng(0)
    src = rng.integers(0, nodes, 8 * nodes)
    inside = src // 50 * 50 + rng.integers(0, 50, len(src))
    dst = np.where(rng.random(len(src)) < 0.8, inside, src // 100 * 100)
    x, y = rng.random((nodes, 4), np.float32), np.arange(nodes) % 3
    ds = gw.Dataset("communities", gw.Graph(src, dst, num_nodes=nodes), x, y, seed=0)
    return gw.macro.prepare_store(ds, folder / "store", parts=5, method="range", **more)


@pytest.mark.parametrize("fanouts", [(5, 5), (10, 3), (3, 10), (4, 4, 4), (-1, 2), (2, -1)])
def test_as_many_nodes_and_edges_are_counted_as_a_sampler_draws(fanouts: tuple[int, ...], tmp_path: Path) -> None:
    store = _store(tmp_path)
    stored = StoredNodes(store)
    sampler, places = NeighborSampler(stored.graph, fanouts), torch.arange(0, store.num_nodes, 30)
    nodes, edges = np.zeros((2, len(fanouts)))
    for key in range(8):
        blocks = sampler.sample(places, seed=key).blocks
        nodes += [block.num_src for block in reversed(blocks)]
        edges += [block.num_edges for block in reversed(blocks)]
    found = drawn_hops(store, stored.row_ids[places].numpy(), fanouts)
    assert [hop.nodes for hop in found] == pytest.approx(nodes / 8, rel=0.06)
    assert [hop.edges for hop in found] == pytest.approx(edges / 8, rel=0.06)


def test_a_graph_with_communities_and_hubs_has_fewer_rows_than_uniform_draws_say(tmp_path: Path) -> None:
    store = _store(tmp_path)
    model = gw.nn.SAGE(4, 8, 3, num_layers=3)
    seeds = some_of(np.arange(store.num_nodes), 64)
    told = batch_estimate(model, 4, (5, 5, 5), 64, store.num_nodes, store.num_edges)
    hops = drawn_hops(store, seeds, (5, 5, 5))
    counted = batch_estimate(model, 4, (5, 5, 5), 64, store.num_nodes, store.num_edges, hops=hops)
    assert counted.rows == hops[-1].nodes < 0.75 * told.rows and counted.step < told.step


def test_edges_from_parts_that_are_not_in_a_group_are_left_out(tmp_path: Path) -> None:
    store = _store(tmp_path)
    group = read_group(store, [1, 3])
    seeds = torch.arange(0, group.graph.num_nodes, 20)
    blocks = NeighborSampler(group.graph, (-1, -1)).sample(seeds).blocks
    found = drawn_hops(store, group.n_id[seeds].numpy(), (-1, -1), [3, 1])
    assert [hop.nodes for hop in found] == [block.num_src for block in reversed(blocks)]
    assert [hop.edges for hop in found] == [block.num_edges for block in reversed(blocks)]


@pytest.mark.parametrize("fanouts", [(3, 3), (-1, -1)])
def test_relations_draw_apart(fanouts: tuple[int, ...], tmp_path: Path) -> None:
    rng, nodes = np.random.default_rng(0), {"a": 900, "b": 600}
    names = [("a", "to", "b"), ("b", "to", "a"), ("a", "likes", "a"), ("b", "likes", "a")]
    edges = {name: (rng.integers(0, nodes[name[0]], 4_000), rng.integers(0, nodes[name[2]], 4_000)) for name in names}
    y = np.where(np.arange(1_500) < 900, np.arange(1_500) % 3, -1)
    x = {name: rng.random((count, 4), np.float32) for name, count in nodes.items()}
    ds = gw.Dataset("typed", gw.Graph.hetero(edges, nodes), None, y, features=x, target_type="a", seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=4, method="hash")
    stored, places = StoredNodes(store), torch.arange(0, 900, 40)
    counts = []
    for key in range(8):
        counts.append(len(SegmentSampler(stored.graph, fanouts).sample(places, seed=key).n_id))
    found = drawn_hops(store, stored.row_ids[places].numpy(), fanouts)
    assert found[-1].nodes == pytest.approx(np.mean(counts), rel=0.0 if fanouts[0] < 0 else 0.05)


@pytest.mark.parametrize("parts", [None, [0, 2]])
def test_ends_of_edges_are_those_of_edges_of_the_group(parts: list[int] | None, tmp_path: Path) -> None:
    store = _store(tmp_path)
    src, dst = inner_edges(store, 300, parts)
    group = read_group(store, range(len(store)) if parts is None else parts)
    known = {tuple(ends) for ends in group.n_id[torch.stack(group.graph.edges()).long()].T.tolist()}
    assert len(src) == pytest.approx(300, abs=5)
    assert all(ends in known for ends in zip(src.tolist(), dst.tolist(), strict=True))
