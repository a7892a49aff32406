"""Side effects of user functions happen at every call, with real tensors, and are told; recording leaves none."""

from __future__ import annotations

import builtins
import collections
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweft as gw

GRAPH = gw.Graph([0, 1, 2, 3], [1, 1, 2, 2], num_nodes=4)
Message = Callable[[Any], dict[str, Tensor]]


def toggles_an_attribute() -> Message:
    class Layer(gw.MessagePassing):
        odd = False

        def message(self, edges: Any) -> dict[str, Tensor]:
            self.odd = not self.odd
            return {"m": edges.src["h"] * (2.0 if self.odd else 3.0)}

    return Layer().message


def toggles_a_class_attribute() -> Message:
    class State:
        odd = False

    def message(edges: Any) -> dict[str, Tensor]:
        State.odd = not State.odd
        return {"m": edges.src["h"] * (2.0 if State.odd else 3.0)}

    return message


def toggles_a_slot() -> Message:
    class State:
        __slots__ = ("odd",)

    state = State()

    def message(edges: Any) -> dict[str, Tensor]:
        state.odd = not getattr(state, "odd", False)
        return {"m": edges.src["h"] * (2.0 if state.odd else 3.0)}

    return message


def toggles_a_variable() -> Message:
    odd = False

    def message(edges: Any) -> dict[str, Tensor]:
        nonlocal odd
        odd = not odd
        return {"m": edges.src["h"] * (2.0 if odd else 3.0)}

    return message


ODD = False


def toggles_a_global() -> Message:
    global ODD
    ODD = False

    def message(edges: Any) -> dict[str, Tensor]:
        global ODD
        ODD = not ODD
        return {"m": edges.src["h"] * (2.0 if ODD else 3.0)}

    return message


def rotates_a_deque() -> Message:
    turns = collections.deque([2.0, 3.0])

    def message(edges: Any) -> dict[str, Tensor]:
        turns.rotate(-1)
        return {"m": edges.src["h"] * turns[-1]}

    return message


def grows_and_shrinks_a_set() -> Message:
    seen: set[str] = set()

    def message(edges: Any) -> dict[str, Tensor]:
        (seen.remove if "x" in seen else seen.add)("x")
        return {"m": edges.src["h"] * (2.0 if seen else 3.0)}

    return message


TOGGLES = [
    toggles_an_attribute,
    toggles_a_class_attribute,
    toggles_a_slot,
    toggles_a_variable,
    toggles_a_global,
    rotates_a_deque,
    grows_and_shrinks_a_set,
]


def call(message: Message) -> float:
    out = gw.update_all(
        GRAPH, message, lambda nodes: {"h": nodes.mailbox["m"].mean(1)}, ndata={"h": torch.ones(GRAPH.num_nodes, 1)}
    )
    return float(out["h"][1, 0])


@pytest.mark.parametrize("make", TOGGLES)
def test_a_side_effect_happens_once_a_call(make: Callable[[], Message]) -> None:
    message = make()
    with pytest.warns(gw.FallbackWarning, match="a change of .*: message runs .*test_side_effects.py"):
        assert [call(message) for _ in range(5)] == [2.0, 3.0, 2.0, 3.0, 2.0]


def test_attention_kept_on_the_layer_is_a_real_tensor_and_the_line_is_told() -> None:
    class Layer(gw.MessagePassing):
        def message(self, edges: Any) -> dict[str, Tensor]:
            self.scores = (edges.src["h"] * edges.dst["h"]).sum(-1).detach()
            return {"m": edges.src["h"]}

        def reduce(self, nodes: Any) -> dict[str, Tensor]:
            return {"h": nodes.mailbox["m"].sum(1)}

    layer, h = Layer(), torch.arange(8.0).view(4, 2)
    line = Layer.message.__code__.co_firstlineno + 1
    with pytest.warns(gw.FallbackWarning, match=rf"a change of Layer, 'scores': message runs .*:{line}\)"):
        out = layer.propagate(GRAPH, ndata={"h": h})["h"]
    torch.testing.assert_close(out, torch.stack([h[0] * 0, h[0] + h[1], h[2] + h[3], h[0] * 0]))
    src, dst = h[[0, 1, 2, 3]], h[[1, 1, 2, 2]]
    assert type(layer.scores) is Tensor
    torch.testing.assert_close(layer.scores, (src * dst).sum(-1))


def test_tensors_and_sizes_in_a_list_are_those_of_the_calls() -> None:
    kept: list[Any] = []

    def message(edges: Any) -> dict[str, Tensor]:
        kept.append((edges.src["h"].shape, edges.src["h"].detach()))
        return {"m": edges.src["h"]}

    with pytest.warns(gw.FallbackWarning, match="a change of a captured list"):
        call(message), call(message)
    assert [shape for shape, _ in kept] == [(4, 1), (4, 1)]
    assert all(type(tensor) is Tensor and bool((tensor == 1).all()) for _, tensor in kept)


def test_what_is_made_at_the_first_call_is_kept_and_the_next_call_is_compiled() -> None:
    made: dict[str, Tensor] = {}

    def message(edges: Any) -> dict[str, Tensor]:
        if "weight" not in made:
            made["weight"] = torch.full((1,), 2.0)
        return {"m": edges.src["h"] * made["weight"]}

    with pytest.warns(gw.FallbackWarning, match="a change of a captured dict, 'weight'"):
        assert call(message) == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error", gw.FallbackWarning)
        assert call(message) == 2.0
        made["weight"] += 1
        assert call(message) == 3.0


@pytest.mark.parametrize("what", ["a tensor", "a shape", "a text"])
def test_printing_shows_numbers_at_every_call(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    def message(edges: Any) -> dict[str, Tensor]:
        h = edges.src["h"]
        print(h.sum() if what == "a tensor" else h.shape if what == "a shape" else f"sum {h.sum()}")
        return {"m": h}

    with pytest.warns(gw.FallbackWarning, match="print.*: message runs .*test_side_effects.py"):
        call(message), call(message)
    first, second = capsys.readouterr().out.splitlines()
    assert first == second == {"a tensor": "tensor(4.)", "a shape": "torch.Size([4, 1])", "a text": "sum 4.0"}[what]


def test_code_that_asks_for_the_gradient_mode_sees_that_of_the_call() -> None:
    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] * (2.0 if torch.is_grad_enabled() else 3.0)}

    with pytest.warns(gw.FallbackWarning, match="asks whether gradients are recorded"):
        assert call(message) == 2.0
    with torch.no_grad():
        assert call(message) == 3.0


def test_other_threads_print_and_ask_while_functions_are_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that another thread could meet is replaced, not even a moment; an own profiler stays in place."""
    before, asked = (print, torch.is_grad_enabled), torch.is_grad_enabled
    seen: set[bool] = set()
    stop, started = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.add((builtins.print, torch.is_grad_enabled) == before)
            seen.add(asked())
            started.set()

    def message(edges: Any) -> dict[str, Tensor]:
        seen.add((builtins.print, torch.is_grad_enabled) == before)
        print("one message")
        return {"m": edges.src["h"]}

    def profile(*_: Any) -> None:
        return None

    watcher = threading.Thread(target=watch)
    watcher.start()
    started.wait()
    sys.setprofile(profile)
    try:
        with pytest.warns(gw.FallbackWarning, match="printing"):
            call(message)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
        stop.set()
        watcher.join()
    assert seen == {True}
    assert capsys.readouterr().out == "one message\n"


def test_a_print_under_another_name_is_seen() -> None:
    show = print

    def message(edges: Any) -> dict[str, Tensor]:
        show("", end="")
        return {"m": edges.src["h"]}

    with pytest.warns(gw.FallbackWarning, match="printing"):
        assert call(message) == 1.0
