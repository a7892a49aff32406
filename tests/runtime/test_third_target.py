"""A target that is not of this library: kernels of its own in SciPy and torch, all else from calls' definitions.

The whole target is in this file: it joins by registration, and models run on it forward and backward.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from nn.models import features, make, random_graph
from torch import Tensor, nn

import graphweft as gw
from graphweft.runtime import targets
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch, Target

MODELS = ("gcn", "sage", "gin", "gat", "ngcf", "user_gat")


class Scipy(Target):
    """Counts the launches of its own kernels."""

    def __init__(self) -> None:
        super().__init__("scipy")
        self.ran: Counter[str] = Counter()
        self.launches("matmul")(self.matmul)
        self.launches("contract")(self.contract)
        self.launches("spmm")(self.spmm)

    def own(self, call: KernelCall, roles: set[str], make: Callable[..., Tensor]) -> Launch | None:
        """A launcher of ``make`` over the operands by role; None where the call does more, which its body defines."""
        if {slot.role for slot in call.reads} != roles or len(call.body) > 1:
            return None
        places, out = {slot.role: slot.at for slot in call.reads}, call.writes[0].at

        def run(slots: Slots) -> None:
            self.ran[call.kernel] += 1
            slots[out] = make(**{role: slots[at] for role, at in places.items()})

        return run

    def matmul(self, call: KernelCall) -> Launch | None:
        turned = bool(call.get("transposed"))
        return self.own(call, {"x", "weight"}, lambda x, weight: x @ (weight.t() if turned else weight))

    def contract(self, call: KernelCall) -> Launch | None:
        return self.own(call, {"x", "weight"}, lambda x, weight: x.t() @ weight)

    def spmm(self, call: KernelCall) -> Launch | None:
        own = float(call.get("self_coef", 0.0))

        def product(graph: gw.Graph, x: Tensor) -> Tensor:
            csc = graph.csc
            edges = (np.ones(csc.num_edges), csc.indices.numpy(), csc.indptr.numpy())
            rows = x.reshape(x.shape[0], -1)
            made = sp.csr_matrix(edges, (csc.num_rows, csc.num_cols)) @ rows.double().numpy()
            both = min(csc.num_rows, csc.num_cols)
            made[:both] += own * rows[:both].double().numpy()
            return torch.from_numpy(made).to(x).reshape(-1, *x.shape[1:])

        return self.own(call, {"graph", "x"}, product)


@pytest.fixture
def scipy_target(monkeypatch: pytest.MonkeyPatch) -> Scipy:
    target = Scipy()
    monkeypatch.setitem(targets._TARGETS, target.name, target)
    return target


def _slopes(out: Tensor, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output and the gradients of its squares."""
    grads = torch.autograd.grad(out.square().sum(), list(parts.values()), allow_unused=True)
    return {"out": out.detach(), **{n: g for n, g in zip(parts, grads, strict=True) if g is not None}}


def _step(model: nn.Module, graph: gw.Graph, x: Tensor) -> dict[str, Tensor]:
    twin, x = copy.deepcopy(model).to(x.dtype).eval(), x.clone().requires_grad_()
    return _slopes(twin(graph, x), {"x": x, **dict(twin.named_parameters())})


def _close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys() and len(found) > 2
    for name, oracle in expected.items():
        made = found[name].double()
        torch.testing.assert_close(made, oracle, rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("disabled", ["fuse", ""])
def test_models_run_on_a_target_that_joined_by_registration(name: str, disabled: str, scipy_target: Scipy) -> None:
    graph, x, model = random_graph(0), features(), make(name)
    with gw.config(opt_level=0):
        expected = _step(model, graph, x.double())
    with gw.config(target="scipy", disabled_passes=disabled):
        found = _step(model, graph, x)
    _close(found, expected)
    assert scipy_target.ran or not disabled, "expected its own kernels to run where nothing is fused into them"


def test_a_user_function_runs_on_it_forward_and_backward(scipy_target: Scipy) -> None:
    graph, torch_seed = random_graph(1), torch.Generator().manual_seed(2)
    x, w = features(1), torch.randn(6, 3, generator=torch_seed)

    def layer(x: Tensor, w: Tensor) -> dict[str, Tensor]:
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        found = gw.update_all(
            graph,
            lambda edges: {"m": torch.relu(edges.src["h"] @ w - 0.5 * (edges.dst["h"] @ w))},
            lambda nodes: {"h": nodes.mailbox["m"].sum(1)},
            lambda nodes: {"h": torch.tanh(nodes.data["h"])},
            ndata={"h": x},
        )
        return _slopes(found["h"], {"x": x, "w": w})

    src, dst = graph.edges()
    a, b = x.double().requires_grad_(), w.double().requires_grad_()
    messages = torch.relu((a @ b)[src] - 0.5 * (a @ b)[dst])
    by_hand = torch.tanh(torch.zeros(graph.num_nodes, 3, dtype=torch.float64).index_add(0, dst, messages))
    with gw.config(target="scipy"):
        _close(layer(x, w), _slopes(by_hand, {"x": a, "w": b}))
