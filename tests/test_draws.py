"""Keys of draws: handed on as they are, apart within a step, repeated where a checkpoint repeats a call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from zoo import random_edges

import graphweft as gw
from graphweft._draws import call_key, keyed, mixed


@pytest.fixture(scope="module")
def graph() -> gw.Graph:
    ends = random_edges(50, 300, seed=0)
    return gw.Graph(ends.src, ends.dst, num_nodes=50)


@pytest.fixture
def model() -> gw.nn.GCN:
    torch.manual_seed(0)
    return gw.nn.GCN(8, 8, 4, dropout=0.5)


def test_a_key_reaches_the_first_call_and_tells_the_next_ones_apart() -> None:
    with keyed(7):
        first = [call_key() for _ in range(3)]
    with keyed(7):
        assert [call_key() for _ in range(3)] == first
    assert first[0] == 7 and len(set(first)) == 3
    with keyed(7):
        with keyed(8):
            assert call_key() == 8
        assert call_key() == 7


def test_the_callers_generator_does_not_notice() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with keyed(7):
        call_key()
        torch.rand(5)
    assert torch.equal(torch.rand(2), expected)


def test_outside_of_trainers_keys_follow_torchs_seed(graph: gw.Graph, model: gw.nn.GCN) -> None:
    x = torch.ones(50, 8)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(model(graph, x))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


def test_all_bits_of_a_key_count(graph: gw.Graph, model: gw.nn.GCN) -> None:
    """torch's own generator takes the low 32 of them."""
    outs = []
    for key in (5, 5, 5 + 2**40):
        with keyed(key):
            outs.append(model(graph, torch.ones(50, 8)))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    assert mixed(0, 1) != mixed(1, 0) and 0 <= mixed(2**64 - 1, 5) < 2**63


def test_a_checkpoint_repeats_its_call_with_the_same_draws(graph: gw.Graph, model: gw.nn.GCN) -> None:
    x = torch.ones(50, 8)

    def gradients(run: bool) -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        with keyed(11):
            before = model(graph, x)  # so that the call that is repeated is not the first
            out = checkpoint(model, graph, x, use_reentrant=False) if run else model(graph, x)
            (out.square().sum() + before.sum()).backward()
        return out.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    (out, found), (again, expected) = gradients(True), gradients(False)
    assert torch.equal(out, again)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
