"""Values that follow from a graph alone."""

from __future__ import annotations

import gc
import weakref

import graphweft as gw
from graphweft.graph.derived import derived, is_derived


class _Made:
    """Something that a weak reference can watch."""


calls: list[object] = []


def _one(graph: gw.Graph, power: int = 1) -> _Made:
    calls.append((graph, power))
    return _Made()


def _nothing(graph: gw.Graph) -> None:
    calls.append(graph)


def test_a_value_is_made_once_for_each_owner_recipe_and_argument() -> None:
    first, second = gw.Graph([0, 1], [1, 2]), gw.Graph([0, 1], [1, 2])
    calls.clear()
    made = {derived(graph, _one, *rest) for graph in (first, second) for rest in ((), (2,)) for _ in range(3)}
    assert len(made) == len(calls) == 4
    assert is_derived(first, _one, 2) and not is_derived(first, _one, 3)
    derived(first, _nothing), derived(first, _nothing)
    assert len(calls) == 5  # None is a value too


def test_a_value_goes_with_its_owner() -> None:
    graph = gw.Graph([0, 1], [1, 2])
    value = weakref.ref(derived(graph, _one))
    calls.clear()
    assert value() is not None
    del graph
    gc.collect()
    assert value() is None
