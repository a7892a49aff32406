"""Code written for other libraries is refused in one line that says where the same lives here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft._errors import GraphWeftError

GRAPH = gw.Graph([0, 1, 2, 3, 0], [1, 2, 3, 0, 2])
X = torch.randn(4, 3)


def copy(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["x"]}


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1)}


class Named(gw.MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="mean")


class Convolution(gw.MessagePassing):
    def message(self, x_j: Tensor, edge_attr: Tensor) -> Any:  # type: ignore[override]
        return x_j * edge_attr

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return total(nodes)


class Single(Convolution):
    def message(self, x_j: Tensor) -> Any:  # type: ignore[override]
        return 2 * x_j


def update(**options: Any) -> Callable[[], Any]:
    given: dict[str, Any] = {"message": copy, "reduce": total, "ndata": {"x": X}, **options}
    return lambda: gw.update_all(GRAPH, **given)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "reduce_by_name": (update(reduce="mean"), 'nodes.mailbox["m"].mean(1)'),
    "message_by_name": (update(message="u_mul_e"), 'edges.src["h"] * edges.data["w"]'),
    "message_of_dgl": (update(message=SimpleNamespace(name="copy_u")), 'edges.src["h"]'),
    "reduce_of_dgl": (update(reduce=SimpleNamespace(name="max")), "amax(1)"),
    "apply_node_func": (update(apply_node_func=total), "the argument is called update"),
    "node_keyword": (lambda: Convolution().propagate(GRAPH, x=X), "ndata={'x': x}"),
    "edge_keyword": (lambda: Convolution().propagate(GRAPH, w=torch.ones(5, 1)), "edata={'w': w}"),
    "size_keyword": (lambda: Convolution().propagate(GRAPH, size=None), "gw.Graph"),
    "aggr": (Named, 'nodes.mailbox["m"].mean(1)'),
    "edge_index": (lambda: Convolution().propagate(torch.zeros(2, 5)), "gw.Graph(edge_index[0], edge_index[1]"),  # type: ignore[arg-type]
    "blocks": (lambda: Convolution().propagate((GRAPH,)), "batch.blocks[i]"),  # type: ignore[arg-type]
    "two_arguments": (lambda: Convolution().propagate(GRAPH, ndata={"x": X}), "x_j is edges.src['x'], edge_attr is"),
    "one_argument": (lambda: Single().propagate(GRAPH, ndata={"x": X}), "x_j is edges.src['x']"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_habit_of_another_library_is_answered_in_one_line(name: str) -> None:
    run, remedy = CASES[name]
    with pytest.raises(GraphWeftError) as told:
        run()
    text = str(told.value)
    assert remedy in text and "\n" not in text
    assert "test_habits.py" in text


def test_the_remedies_are_right() -> None:
    """What the errors propose is what the built-in functions of those names compute."""
    w = torch.rand(5, 1)
    out = gw.update_all(
        GRAPH,
        lambda edges: {"m": edges.src["h"] * edges.data["w"]},
        lambda nodes: {"h": nodes.mailbox["m"].amax(1)},
        ndata={"h": X},
        edata={"w": w},
    )["h"]
    src, dst = GRAPH.edges()
    sent = X[src] * w
    expected = torch.stack([sent[dst == node].max(0).values for node in range(4)])
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("kind", [torch.float64, torch.int64])
def test_a_mix_of_dtypes_names_the_field_and_the_cast(kind: torch.dtype) -> None:
    linear = torch.nn.Linear(3, 2)
    with pytest.raises(gw.errors.DtypeError, match=r"cast edges.src\['x'\] by .float\(\) \("):
        gw.update_all(GRAPH, lambda edges: {"m": linear(edges.src["x"])}, total, ndata={"x": X.to(kind)})


def test_a_module_that_passes_arguments_on_is_left_alone() -> None:
    class Mixin:
        def __init__(self, width: int) -> None:
            self.width = width

    class Layer(gw.MessagePassing, Mixin):
        call_super_init = True

        def __init__(self) -> None:
            super().__init__(width=3)

    assert Layer().width == 3
