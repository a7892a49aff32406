"""A Python number that changes between calls becomes an input at its second value; nothing is ever baked in wrongly."""

from __future__ import annotations

import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft._errors import RecompileWarning
from graphweft.frontend import udf
from graphweft.nn import call_site, user_call

GRAPH = gw.Graph([0, 1, 2, 3, 0, 4, 4, 1], [1, 2, 3, 0, 2, 0, 3, 3], num_nodes=5)
H = torch.linspace(-2.0, 3.0, 15).reshape(5, 3)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[int]]:
    """Every recording from here on: positions of the numbers that were inputs."""
    made: list[frozenset[int]] = []
    record = udf.raise_call

    def counted(call: Any, captured: Any, opened: frozenset[int] = frozenset()) -> Any:
        made.append(opened)
        return record(call, captured, opened)

    monkeypatch.setattr(user_call, "raise_call", counted)
    monkeypatch.setattr(call_site, "raise_call", counted)
    monkeypatch.setattr(user_call, "stable_text", lambda key: None)  # nothing comes from the cache folder
    monkeypatch.setattr(user_call, "_CALLS", OrderedDict())
    monkeypatch.setattr(user_call, "_SITES", OrderedDict())
    return made


class Layer(gw.MessagePassing):
    def __init__(self, code: Callable[[Any, Any], Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.code, self.tau, self.k, self.held = code, 1.5, 2, {"inner": [0.5]}
        self.config = SimpleNamespace(rate=0.5)
        self.part = nn.Module()
        self.part.rate = 0.5  # type: ignore[assignment]
        self.linear = nn.Linear(3, 3, dtype=dtype)

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": self.code(self, edges)}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": self.linear(nodes.mailbox["m"].sum(1))}

    def forward(self, graph: gw.Graph, h: Tensor) -> Tensor:
        return self.propagate(graph, ndata={"h": h})["h"]


def check(layer: Layer, h: Tensor = H) -> None:
    """Result and gradients are those of plain execution."""
    h = h.detach().requires_grad_()
    weights = torch.linspace(0.5, 1.5, 15, dtype=h.dtype).reshape(5, 3)
    leaves = [h, *layer.parameters()]
    out = layer(GRAPH, h)
    with gw.config(opt_level=0):
        expected = layer(GRAPH, h)
    torch.testing.assert_close(out, expected)
    mine = torch.autograd.grad((out * weights).sum(), leaves)
    theirs = torch.autograd.grad((expected * weights).sum(), leaves)
    for one, two in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, two)


def set_tau(layer: Any, value: float) -> None:
    layer.tau = value


def set_k(layer: Any, value: float) -> None:
    layer.k = round(10 * value)


def set_numpy(layer: Any, value: float) -> None:
    layer.tau = np.float64(value)


def set_held(layer: Any, value: float) -> None:
    layer.held["inner"][0] = value


def set_config(layer: Any, value: float) -> None:
    layer.config.rate = value


def set_part(layer: Any, value: float) -> None:
    layer.part.rate = value


Set = Callable[[Any, float], None]
INPUTS: dict[str, tuple[Callable[[Any, Any], Tensor], Set]] = {
    "quotient": (lambda s, e: e.src["h"] / s.tau, set_tau),
    "mixture": (lambda s, e: e.src["h"] * s.tau + (1 - s.tau) * e.dst["h"], set_tau),
    "decay": (lambda s, e: e.src["h"] * math.exp(-s.tau), set_tau),
    "bounds": (lambda s, e: torch.clamp(e.src["h"], min=-s.tau, max=s.tau), set_tau),
    "choice": (lambda s, e: torch.where(e.src["h"] > s.tau, e.src["h"], s.tau), set_tau),
    "alpha": (lambda s, e: torch.add(e.src["h"], e.dst["h"], alpha=s.tau), set_tau),
    "softmax": (lambda s, e: torch.softmax(e.src["h"] / s.tau, -1), set_tau),
    "tensor": (lambda s, e: e.src["h"] * torch.tensor(s.tau), set_tau),
    "full": (lambda s, e: e.src["h"] + torch.full_like(e.src["h"], s.tau), set_tau),
    "integer": (lambda s, e: e.src["h"] * s.k + s.k, set_k),
    "numpy": (lambda s, e: e.src["h"] * s.tau, set_numpy),
    "held": (lambda s, e: e.src["h"] * s.held["inner"][0], set_held),
    "config": (lambda s, e: e.src["h"] * s.config.rate, set_config),
    "part": (lambda s, e: e.src["h"] * s.part.rate, set_part),
}
CONSTANTS: dict[str, tuple[Callable[[Any, Any], Tensor], Set]] = {
    "branch": (lambda s, e: e.src["h"] * (2 if s.tau > 1.2 else s.tau), set_tau),
    "size": (lambda s, e: e.src["h"] + e.src["h"][:, : s.k % 3].sum(1, keepdim=True), set_k),
    "power": (lambda s, e: e.src["h"].abs() ** s.tau, set_tau),
    "slope": (lambda s, e: nn.functional.leaky_relu(e.src["h"], s.tau), set_tau),
    "class": (lambda s, e: e.src["h"] * (s.tau if isinstance(s.tau, float) else 7.0), set_tau),
    "text": (lambda s, e: e.src["h"] * {"0.4": 1.0, "0.9": 2.0}.get(f"{s.tau}", 3.0), set_tau),
}
VALUES = [0.4, 0.9, 1.3, 0.4, 2.1]


@pytest.mark.parametrize("name", INPUTS)
def test_the_second_value_makes_it_an_input(name: str, recordings: list[frozenset[int]]) -> None:
    code, change = INPUTS[name]
    layer = Layer(code)
    for value in VALUES:
        change(layer, value)
        check(layer)
    assert [len(opened) for opened in recordings] == [0, 1]


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_number_that_decides_more_than_a_number_stays_constant(name: str, recordings: list[frozenset[int]]) -> None:
    code, change = CONSTANTS[name]
    layer = Layer(code)
    for value in VALUES:
        change(layer, value)
        check(layer)
    assert [len(opened) for opened in recordings if not opened] == [0] * 4  # one for each value


def test_the_eighth_compile_is_told_with_the_name() -> None:
    layer = Layer(lambda s, e: e.src["h"].abs() ** s.config.rate)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(20):
            layer.config.rate = 1.1 + 0.1 * step
            layer(GRAPH, H)
    assert [w.category for w in told] == [RecompileWarning]
    text = str(told[0].message)
    assert "8 times, as self.config.rate changes" in text and "\n" not in text
    assert told[0].filename == __file__


def test_closures_globals_and_params(recordings: list[frozenset[int]]) -> None:
    def run(rate: float, params: tuple[float, ...]) -> Tensor:
        def message(edges: Any, scale: float) -> dict[str, Tensor]:
            return {"m": edges.src["h"] * rate * scale * _RATE}

        return gw.update_all(
            GRAPH, message, lambda nodes: {"h": nodes.mailbox["m"].sum(1)}, ndata={"h": H}, params=params
        )["h"]

    global _RATE
    src, dst = GRAPH.edges()
    total = torch.zeros(5, 3).index_add(0, dst, H[src])
    try:
        for rate, scale, _RATE in [
            (0.5, 1.5, 1.25),
            (0.7, 1.5, 1.25),
            (0.7, 2.5, 1.25),
            (0.7, 2.5, 3.5),
            (0.1, 0.3, 0.7),
        ]:
            torch.testing.assert_close(run(rate, (scale,)), total * rate * scale * _RATE)
    finally:
        _RATE = 1.25
    assert [len(opened) for opened in recordings] == [0, 1, 2, 3]


_RATE = 1.25


def test_numbers_are_pythons_until_they_meet_a_tensor(recordings: list[frozenset[int]]) -> None:
    """``1 - rate`` in float32 would lose all its digits; results in float32 stay float32."""
    layer = Layer(lambda s, e: e.src["h"] * (1 - s.tau) * 1e6)
    for layer.tau in (0.99999991, 0.99999993, 0.99999995, 0.99999997):
        check(layer)
        assert layer(GRAPH, H).dtype == torch.float32
    assert len(recordings) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_other_dtypes(dtype: torch.dtype, recordings: list[frozenset[int]]) -> None:
    layer = Layer(lambda s, e: e.src["h"] * s.tau + s.k)
    h = (10 * H).to(dtype)
    for tau, k in [(0.5, 2), (0.7, 2), (0.7, 5), (1.9, 7)]:
        layer.tau, layer.k = tau, k
        code = {"h": lambda s, e: {"m": s.code(s, e)}}["h"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out = gw.apply_edges(GRAPH, lambda e, c=code: c(layer, e), ndata={"h": h})["m"]
        expected = h[GRAPH.edges()[0]] * tau + k
        torch.testing.assert_close(out, expected)
        assert out.dtype == expected.dtype
    assert [len(opened) for opened in recordings] == [0, 1, 2]


def test_infinity_and_zero_are_what_python_makes_of_them() -> None:
    layer = Layer(lambda s, e: torch.clamp(e.src["h"], max=s.tau) * s.part.rate)
    for layer.tau in (0.5, 0.7, math.inf, 0.9, 0.0, -1.0):
        check(layer)
    inverse = Layer(lambda s, e: e.src["h"] * (1 / s.tau))
    for inverse.tau in (0.5, 0.7, 0.9):
        check(inverse)
    inverse.tau = 0.0
    with pytest.raises(ZeroDivisionError, match=r"message: ZeroDivisionError: .*test_numbers.py"):
        inverse(GRAPH, H)


def test_a_number_on_two_ways(recordings: list[frozenset[int]]) -> None:
    """The same object is read through the layer and through a closure; a constant of the same value stays one."""
    shared = SimpleNamespace(rate=0.5, other=0.5)
    layer = Layer(lambda s, e: e.src["h"] * s.config.rate + shared.rate * e.dst["h"] + shared.other)
    layer.config = shared
    for shared.rate in (0.5, 0.75, 1.25, 2.0):
        check(layer)
    assert [len(opened) for opened in recordings] == [0, 1]
    for shared.other in (1.5, 2.5):
        check(layer)


def test_what_the_user_holds_is_never_touched(recordings: list[frozenset[int]]) -> None:
    """Another thread sees a Python number at all times, also while the functions are recorded."""
    layer, seen, stop = Layer(INPUTS["mixture"][0]), set(), threading.Event()
    code = layer.code

    def watch() -> None:
        while not stop.is_set():
            seen.add((type(layer.tau), type(layer.config.rate), layer.code is code))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for layer.tau in (0.25, 0.5, 0.75):
            check(layer)
    finally:
        stop.set()
        watcher.join()
    assert seen == {(float, float, True)} and len(recordings) == 2


def test_side_effects_are_seen_where_numbers_are_inputs() -> None:
    class Counting(Layer):
        calls = 0.0

        def message(self, edges: Any) -> dict[str, Tensor]:
            if self.tau is not None:
                self.last = self.tau * 2
            return super().message(edges)

    layer = Counting(INPUTS["quotient"][0])
    for layer.tau in (0.5, 0.7, 0.9):
        layer.__dict__.pop("last", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = layer(GRAPH, H)
        with gw.config(opt_level=0):
            torch.testing.assert_close(out, layer(GRAPH, H))


def test_layers_that_differ_in_a_number_share_a_program(recordings: list[frozenset[int]]) -> None:
    layers = [Layer(INPUTS["quotient"][0]) for _ in range(4)]
    for layer, tau in zip(layers, (0.5, 0.7, 0.9, 1.1), strict=True):
        layer.tau = tau
    for _ in range(2):
        for layer in layers:
            check(layer)
    assert len(recordings) == 2


def test_what_falls_back_is_not_recorded_for_every_value(recordings: list[frozenset[int]]) -> None:
    layer = Layer(lambda s, e: e.src["h"].sort(dim=0).values * s.tau)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for layer.tau in (0.5, 0.7, 0.9, 1.1, 1.3):
            check(layer)
    assert len(told) == 1 and len(recordings) <= 6


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
