"""Memory of typed models as edges grow and nodes stay: the structure, a few numbers an edge, no row of features."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import graphweft as gw
from graphweft._memory import POOL, Pool
from graphweft.graph.graph import Graph
from graphweft.graph.typed_pairs import TypedPairs, same_type_degrees
from graphweft.nn.hgt import HGT
from graphweft.nn.rgcn import RGCN

NODES, RELATIONS, FEW, MANY = 400, 4, 300_000, 600_000  # an id an edge is then a region of the pool


class Arena(Pool):
    """A pool that tells whenever it lends."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Callable[[], None]] = []

    def _take(self, size: int) -> int:
        address = super()._take(size)
        for listener in self.listeners:
            listener()
        return address


class Meter(TorchDispatchMode):
    """Most bytes at once in the pool and in live tensors that torch's own operations made."""

    def __init__(self, pool: Arena) -> None:
        super().__init__()
        self.pool, self.live, self.peak = pool, 0, 0
        self.seen: set[int] = set()
        pool.listeners.append(self.sample)

    def sample(self) -> None:
        """What is there now."""
        self.peak = max(self.peak, self.live + self.pool.stats().lent)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts new storages until they die."""
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor) or self.pool.owns(tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
            if key and key not in given and key not in self.seen:
                self.seen.add(key)
                self.live += storage.nbytes()
                self.sample()
                weakref.finalize(storage, self._gone, key, storage.nbytes())
        return out

    def _gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size


def peak(body: Callable[[], object]) -> int:
    """Most bytes at once that ``body`` holds beside what it was given."""
    arena = Arena()
    with POOL.within(arena), Meter(arena) as meter:
        body()
    return meter.peak


def edges(count: int) -> dict[tuple[str, str, str], Any]:
    """Random ends, as int64 arrays."""
    rng = np.random.default_rng(0)
    return {("n", f"r{r}", "n"): rng.integers(0, NODES, (2, count // RELATIONS)) for r in range(RELATIONS)}


def per_edge(make: Callable[[int], Callable[[], object]]) -> float:
    """Bytes that one more edge takes."""
    few, many = (peak(make(count)) for count in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def graph(count: int) -> Graph:
    """A typed graph whose arrays are not counted."""
    return Graph.hetero(edges(count), {"n": NODES})


def training(model: torch.nn.Module, count: int) -> Callable[[], object]:
    """Two steps from the lists of edges on."""
    given, x = edges(count), torch.ones(NODES, 6)

    def body() -> None:
        made = Graph.hetero(given, {"n": NODES})
        for _ in range(2):
            model(made, x).sum().backward()

    with gw.config(certify=False):
        model(graph(8 * RELATIONS), x).sum().backward()  # compiled before anything is counted
    return body


def test_the_meter_counts_what_torch_makes() -> None:
    found = peak(lambda: torch.arange(10_000).mul(2).add(1))  # no more than two of the three live at once
    assert found in (160_000, 240_000)


def test_a_graph_takes_two_ids_an_edge_and_two_of_scratch() -> None:
    def make(count: int) -> Callable[[], object]:
        given = edges(count)
        return lambda: Graph.hetero(given, {"n": NODES})

    assert per_edge(make) <= 16.5


def test_pairs_take_four_ids_an_edge_and_two_of_scratch() -> None:
    def make(count: int) -> Callable[[], object]:
        made = graph(count)
        return lambda: TypedPairs.of(made)

    assert per_edge(make) <= 24.5


def test_degrees_take_a_number_and_an_id_an_edge() -> None:
    def make(count: int) -> Callable[[], object]:
        made = graph(count)
        return lambda: same_type_degrees(made)

    assert per_edge(make) <= 8.5


def test_rgcn_trains_with_the_structure_and_three_numbers_an_edge() -> None:
    model = RGCN(6, 16, 3, num_relations=RELATIONS)
    assert per_edge(lambda count: training(model, count)) <= 24 + 3 * 4 + 0.5


@pytest.mark.parametrize("heads", [1, 4])
def test_hgt_trains_with_the_structure_and_three_numbers_an_edge_and_head(heads: int) -> None:
    model = HGT(6, 16, 3, num_node_types=1, num_relations=RELATIONS, heads=heads)
    scratch = 8 if heads == 1 else 0  # of the structure, where that is more
    assert per_edge(lambda count: training(model, count)) <= 24 + max(scratch, 3 * 4 * heads) + 0.5
