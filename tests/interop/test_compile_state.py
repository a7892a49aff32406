"""Python state that a compiled module's code reads and changes outside its own attributes: as often as without."""

from __future__ import annotations

import array
import collections
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import graphweft as gw
from graphweft.nn.compiled import calls_of

pytestmark = pytest.mark.filterwarnings("ignore::graphweft.FallbackWarning")
Act = Callable[[Tensor], Tensor]


def total(x: Tensor, edge_index: Tensor) -> Tensor:
    """The sum over in-edges, as PyTorch computes it."""
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def with_list() -> Act:
    """A function that counts in a captured list."""
    held = [0.0]

    def act(h: Tensor) -> Tensor:
        held[0] += 0.25
        return h * held[0]

    return act


def with_nonlocal() -> Act:
    """A function that counts in a captured variable."""
    held = 0.0

    def act(h: Tensor) -> Tensor:
        nonlocal held
        held += 0.25
        return h * held

    return act


def with_default() -> Act:
    """A function that counts in the value of a parameter."""

    def act(h: Tensor, held: list[float] = [0.0]) -> Tensor:  # noqa: B006
        held[0] += 0.25
        return h * held[0]

    return act


def with_attribute() -> Act:
    """A function that counts in an attribute of its own."""

    def act(h: Tensor) -> Tensor:
        own: Any = act
        own.calls = calls = int(getattr(own, "calls", 0)) + 1
        return h * calls

    return act


COUNT = 0
KEPT: dict[str, Tensor] = {}
TABLE: dict[str, Any] = {}


def with_global() -> Act:
    """A function that counts in a global variable."""

    def act(h: Tensor) -> Tensor:
        global COUNT
        COUNT += 1
        return h * COUNT

    return act


class Counter:
    """An object that counts."""

    calls = 0

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared

    def __call__(self, h: Tensor) -> Tensor:
        """The input times the number of calls."""
        if self.shared:
            Counter.calls += 1
        else:
            self.calls += 1
        return h * self.calls

    def scaled(self, h: Tensor) -> Tensor:
        """The same, as a method."""
        return self(h)


def keeping() -> Act:
    """A function that keeps its argument in a global dict."""

    def act(h: Tensor) -> Tensor:
        KEPT["h"] = h
        return h

    return act


class Acts(nn.Module):
    """A sum over in-edges and a function that an attribute holds."""

    def __init__(self, act: Act) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The function of the sum."""
        return self.act(total(x, edge_index))


MAKERS: dict[str, Callable[[], Act]] = {
    "list": with_list,
    "nonlocal": with_nonlocal,
    "default": with_default,
    "attribute": with_attribute,
    "global": with_global,
    "object": Counter,
    "class": functools.partial(Counter, True),
    "method": lambda: Counter().scaled,
    "partial": lambda: functools.partial(Counter().scaled),
}


def graph() -> tuple[Tensor, Tensor]:
    """Rows and edges."""
    return torch.randn(9, 3, dtype=torch.float64), torch.randint(0, 9, (2, 30))


@pytest.mark.parametrize("kind", MAKERS)
def test_changes_of_what_code_holds_happen_in_every_call(kind: str) -> None:
    """Also once, not twice, where a recording was tried first."""
    x, edge_index = graph()
    made = []
    for compiled in (False, True):
        globals()["COUNT"] = Counter.calls = 0
        module: Any = Acts(MAKERS[kind]())
        module = gw.compile(module) if compiled else module
        made.append(torch.stack([module(x, edge_index) for _ in range(4)]))
    torch.testing.assert_close(made[1], made[0])


def test_tensors_kept_outside_are_those_of_the_last_call() -> None:
    """None of an earlier one, and no stand-in."""
    x, edge_index = graph()
    module = gw.compile(Acts(keeping()))
    for scale in (1.0, 2.0, 3.0):
        module(scale * x, edge_index)
        torch.testing.assert_close(KEPT["h"], total(scale * x, edge_index))


def test_state_that_is_only_read_is_read_in_every_call() -> None:
    """An object behind a bound method, its class, the value of a parameter: the module stays compiled."""

    class Scale:
        by = 2.0

        def __init__(self) -> None:
            self.and_by = 1.0

        def apply(self, h: Tensor, more: dict[str, float] = {"by": 1.0}) -> Tensor:  # noqa: B006
            return h * (self.by * self.and_by * more["by"])

    x, edge_index = graph()
    scale = Scale()
    module = gw.compile(Acts(scale.apply))

    def check(factor: float) -> None:
        torch.testing.assert_close(module(x, edge_index), factor * total(x, edge_index))
        assert calls_of(module).last is not None

    check(2.0)
    scale.and_by = 5.0
    check(10.0)
    Scale.by = 3.0
    check(15.0)
    Scale.apply.__defaults__[0]["by"] = 2.0  # type: ignore[index]
    check(30.0)


HOLDERS: dict[str, Callable[[], Any]] = {
    "NumPy array": lambda: np.ones(3),
    "long NumPy array": lambda: np.ones(4000),
    "NumPy array of objects": lambda: np.array([1.0, None], dtype=object),
    "deque": lambda: collections.deque([1.0, 2.0]),
    "UserList": lambda: collections.UserList([1.0, 2.0]),
    "array": lambda: array.array("d", [1.0, 2.0]),
    "bytearray": lambda: bytearray([1, 2]),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_numbers_in_holders_that_change_in_place(kind: str) -> None:
    """They are read in every call, as attributes and as globals."""
    x, edge_index = graph()

    def act(h: Tensor) -> Tensor:
        return h * float(TABLE["numbers"][0])

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = HOLDERS[kind]()

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return act(total(x, edge_index) * float(self.numbers[0]))

    plain, TABLE["numbers"] = Reads(), HOLDERS[kind]()
    module = gw.compile(plain)
    for place in (None, plain.numbers, TABLE["numbers"], plain.numbers):
        if place is not None:
            place[0] = place[0] + 2
        factor = float(plain.numbers[0]) * float(TABLE["numbers"][0])
        for _ in range(2):
            torch.testing.assert_close(module(x, edge_index), factor * total(x, edge_index))
    assert calls_of(module).last is not None


def test_gradients_that_forward_enables_under_no_grad() -> None:
    """A result that torch tracks there is tracked; what was computed outside is not."""

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3).double()

        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            with torch.enable_grad():
                energy = total(self.lin(x), edge_index).tanh().sum()
            return energy, 2 * energy, total(x, edge_index)

    x, edge_index = graph()
    module = Energy()
    compiled = gw.compile(module)
    with torch.no_grad():
        results, expected = compiled(x, edge_index), module.forward(x, edge_index)
    assert [made.requires_grad for made in results] == [True, False, False]
    torch.testing.assert_close(results, Energy.forward(module, x, edge_index))
    one, other = (torch.autograd.grad(r[0], module.lin.weight)[0] for r in (results, expected))
    torch.testing.assert_close(one, other)


class Doubled(nn.Module):
    """Sums of projected rows."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = self.linear(x)
        return torch.zeros_like(rows).index_add(0, edge_index[1], rows[edge_index[0]])


def test_a_hook_on_all_modules_runs_as_long_as_it_is_set() -> None:
    plain = Doubled(nn.Linear(3, 2))
    compiled = gw.compile(plain)
    x, edge_index = torch.rand(4, 3), torch.tensor([[0, 1, 2, 3, 1], [1, 2, 3, 0, 3]])
    torch.testing.assert_close(compiled(x, edge_index), plain(x, edge_index))
    handle = register_module_forward_hook(
        lambda module, given, out: out * 1.5 if isinstance(module, nn.Linear) else None
    )
    try:
        with pytest.warns(gw.FallbackWarning, match="hooks on modules inside"):
            found = compiled(x, edge_index)
    finally:
        handle.remove()
    torch.testing.assert_close(found, 1.5 * plain(x, edge_index))
    torch.testing.assert_close(compiled(x, edge_index), plain(x, edge_index))


def test_the_call_in_which_lazy_modules_get_their_parameters_warns_of_nothing() -> None:
    compiled = gw.compile(Doubled(nn.LazyLinear(2)))
    x, edge_index = torch.rand(4, 3), torch.tensor([[0, 1, 2, 3, 1], [1, 2, 3, 0, 3]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", gw.FallbackWarning)
        first = compiled(x, edge_index)
        torch.testing.assert_close(compiled(x, edge_index), first)
    torch.testing.assert_close(first, Doubled(compiled.linear)(x, edge_index))
    assert "1 program" in gw.explain(compiled, x, edge_index)
