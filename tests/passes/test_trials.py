"""Trials of rewrites leave nothing behind."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft._budget import own_bytes
from graphweft._memory import POOL, lean_heap
from graphweft.passes import certificate
from graphweft.passes.certificate import MEMORY, Certifier
from graphweft.passes.trials import plain_torch, trial_bytes
from graphweft.train.needs_by_running import grown_while


def test_a_function_that_saves_its_own_result_does_not_hold_itself() -> None:
    with plain_torch():
        x = torch.zeros(1 << 10, requires_grad=True)
        made = [x.exp(), x.sigmoid(), torch.relu(x + 1), x.softmax(0)]
        (gradient,) = torch.autograd.grad(made[0].sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
        assert torch.equal(gradient, torch.ones_like(x)) and torch.equal(second, torch.ones_like(x))
        left = [weakref.ref(tensor) for tensor in made]
        del x, made, gradient, second
    assert [ref() for ref in left] == [None] * len(left)


@pytest.mark.own_process
def test_what_was_tried_is_let_go(tmp_path: Path) -> None:
    """Numbers of trials are float64, as none of the model's are."""

    def held() -> int:
        gc.collect()
        return sum(isinstance(item, torch.Tensor) and item.dtype == torch.float64 for item in gc.get_objects())

    graph = gw.Graph([0, 1, 2], [1, 2, 0])
    before, memory = held(), list[int]()
    for hidden in (128, 256):
        MEMORY.clear()
        with gw.config(cache_dir=str(tmp_path / str(hidden)), certify=True):  # where no program was tried yet
            gw.nn.GAT(5, hidden, 2, num_layers=2, heads=2)(graph, torch.ones(3, 5)).sum().backward()
        gc.collect()
        POOL.trim()
        memory.append(own_bytes())
    assert held() == before
    assert memory[1] - memory[0] < 2 << 20


@pytest.mark.own_process
@pytest.mark.parametrize("kind", ["GCN", "Transformer", "HGT", "RGCN"])
def test_what_a_trial_takes_is_counted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four types of nodes, and sixteen relations of which each has tables of its own."""
    types = range(4)
    edges = {(f"t{a}", "to", f"t{b}"): ([0, 1], [1, 0]) for a in types for b in types}
    graph = gw.Graph.hetero(edges, {f"t{a}": 2 for a in types})
    more = {"num_relations": 16} if kind in ("HGT", "RGCN") else {}
    more |= {"num_node_types": 4} if kind == "HGT" else {}
    model = getattr(gw.nn, kind)(32, 64, 8, num_layers=2, **more)
    taken, tried = list[tuple[int, int]](), Certifier._tried

    def measured(self: Certifier, name: str, trial: Any, doubled: Any) -> Any:
        most, found = grown_while(lambda: tried(self, name, trial, doubled))
        taken.append((most, trial_bytes(doubled(self._program), certificate._NODES, self._types)))
        return found

    monkeypatch.setattr(Certifier, "_tried", measured)
    lean_heap()
    MEMORY.clear()
    with gw.config(cache_dir=str(tmp_path), certify=True):
        model(graph if more else gw.Graph([0, 1], [1, 0]), torch.ones(8 if more else 2, 32)).sum().backward()
    assert taken and all(most < told + (1 << 20) and told < 8 * most + (4 << 20) for most, told in taken)
