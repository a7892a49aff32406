"""Whatever user code raises is told in one line: the stage, what came, and the user's own line."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw

Function = Callable[[Any], dict[str, Tensor]]
WIDE, LONG = torch.ones(3, 3, dtype=torch.float64), torch.ones(5, 3)


class Forgetful(gw.MessagePassing):
    """Its module has another name."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": self.linear(edges.src["h"])}


def copy(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["h"]}


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1)}


CASES: dict[str, tuple[tuple[Function, ...], type[Exception], str]] = {
    "unlike dtypes by an operator": (
        (lambda e: {"m": e.src["h"] @ WIDE}, total),
        gw.errors.DtypeError,
        r"message: matmul on edges.src\['h'\] of shape \(4, 3\) float32 and a captured tensor of shape \(3, 3\) floa",
    ),
    "unlike dtypes in a reduction": (
        (copy, lambda n: {"h": n.mailbox["m"].sum(1) @ WIDE}),
        gw.errors.DtypeError,
        r"reduce: matmul on nodes.mailbox\['m'\]",
    ),
    "unlike dtypes in an update": (
        (copy, total, lambda n: {"h": n.data["h"] @ WIDE}),
        gw.errors.DtypeError,
        r"update: matmul on nodes.data\['h'\]",
    ),
    "unlike dtypes by a function": (
        (lambda e: {"m": nn.functional.linear(e.src["h"], WIDE)}, total),
        gw.errors.DtypeError,
        "message: linear on",
    ),
    "shapes that do not multiply": (
        (lambda e: {"m": e.src["h"] @ LONG}, total),
        gw.errors.ShapeError,
        "message: matmul on",
    ),
    "shapes that do not broadcast": (
        (copy, lambda n: {"h": (n.mailbox["m"] * LONG[:, 0]).sum(1)}),
        gw.errors.ShapeError,
        r"reduce: mul on nodes.mailbox\['m'\] of shape \(\d, \d, 3\) float32 and a captured tensor of shape \(5,\)",
    ),
    "a dimension that does not exist": (
        (lambda e: {"m": e.src["h"].sum(5)}, total),
        gw.errors.ShapeError,
        "message: sum on",
    ),
    "an index out of the table's range": (
        (lambda e: {"m": WIDE.float()[e.data["k"]]}, total),
        gw.errors.ShapeError,
        r"message: __getitem__ on a captured tensor of shape \(3, 3\) float32 and edges.data\['k'\] of shape \(4,\) "
        "int64: index 3 is out of bounds",
    ),
    "an embedding out of range": (
        (lambda e: {"m": nn.functional.embedding(e.data["k"], LONG[:2])}, total),
        gw.errors.ShapeError,
        r"message: embedding on .*edges.data\['k'\]",
    ),
    "a class that one_hot has not": (
        (lambda e: {"m": nn.functional.one_hot(e.data["k"], 3).float()}, total),
        gw.errors.ShapeError,
        r"message: one_hot on edges.data\['k'\] of shape \(4,\) int64: Class values must be smaller",
    ),
    "a softmax over no dimension": (
        (copy, lambda n: {"h": torch.softmax(n.mailbox["m"], 4).sum(1)}),
        gw.errors.ShapeError,
        r"reduce: softmax on nodes.mailbox\['m'\] of shape .*: Dimension out of range",
    ),
    "a difference of flags": (
        (lambda e: {"m": (e.src["h"] > 0) - (e.dst["h"] > 0)}, total),
        gw.errors.ShapeError,
        r"message: sub on edges.src\['h'\] of shape \(4, 3\) bool and edges.dst\['h'\]",
    ),
    "an attribute of a module": (
        (Forgetful().message, total),
        AttributeError,
        "message: AttributeError: 'Forgetful' object has no attribute 'linear'",
    ),
    "an attribute of a tensor": (
        (copy, lambda n: {"h": n.mailbox["m"].total(1)}),
        AttributeError,
        "reduce: AttributeError: 'Tensor' object has no attribute 'total'",
    ),
    "arguments of the wrong kind": (
        (copy, lambda n: {"h": torch.sum(n.mailbox["m"], "x")}),  # type: ignore[call-overload]
        TypeError,
        "reduce: TypeError: sum\\(\\) received an invalid combination of arguments - got \\(Tensor, str\\)",
    ),
    "an operator without meaning": (
        (lambda e: {"m": e.src["h"] @ "x"}, total),
        TypeError,
        "message: TypeError: unsupported operand",
    ),
    "an unknown name": (
        (copy, lambda n: {"h": unknown}),  # type: ignore[name-defined]  # noqa: F821
        NameError,
        "reduce: NameError: name 'unknown' is not defined",
    ),
    "a missing key": ((lambda e: {"m": copy(e)["z"]}, total), KeyError, "message: KeyError: 'z'"),
    "an index out of range": ((lambda e: {"m": [e.src["h"]][1]}, total), IndexError, "message: IndexError: list index"),
    "a bad value": (
        (lambda e: {"m": e.src["h"] * int("x")}, total),
        ValueError,
        "message: ValueError: invalid literal",
    ),
    "a division": ((lambda e: {"m": e.src["h"] * (1 // 0)}, total), ZeroDivisionError, "ZeroDivisionError: integer"),
}


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("name", CASES)
def test_failures_are_told_in_one_line_with_the_users_own(
    name: str, level: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    functions, kind, says = CASES[name]
    graph = gw.Graph([0, 1, 2, 3], [1, 1, 2, 2], num_nodes=4)
    with gw.config(opt_level=level), pytest.raises(kind) as caught:
        gw.update_all(graph, *functions, ndata={"h": torch.ones(4, 3)}, edata={"k": torch.arange(4)})
    assert isinstance(caught.value, gw.errors.GraphWeftError)
    text = str(caught.value)
    assert "\n" not in text
    assert re.match(rf"{says}|.*{says}", text), text
    place = re.search(rf"\({re.escape(__file__)}:(\d+)\)$", text)
    assert place, text
    assert name == "an attribute of a module" or int(place[1]) in _lines(functions)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "".join(capfd.readouterr()) == ""


def _lines(functions: tuple[Function, ...]) -> set[int]:
    """Lines of the functions' own text."""
    found = set()
    for function in functions:
        lines, start = inspect.getsourcelines(function)
        found |= set(range(start, start + len(lines)))
    return found


def test_errors_of_the_users_own_pass_with_a_note() -> None:
    class Odd(Exception):
        """Of the user."""

    def message(edges: Any) -> dict[str, Tensor]:
        raise Odd("no such day")

    graph = gw.Graph([0, 1], [1, 0])
    with pytest.raises(Odd, match="no such day") as caught:
        gw.update_all(graph, message, total, ndata={"h": torch.ones(2, 3)})
    assert any(
        re.search(r"in the message function \(.*test_failures.py:\d+\)", note) for note in caught.value.__notes__
    )


def test_a_failure_that_user_code_handles_is_not_told_later() -> None:
    def message(edges: Any) -> dict[str, Tensor]:
        try:
            return {"m": edges.src["h"] @ WIDE}
        except TypeError:
            return {"m": edges.src["h"] @ "x"}

    graph = gw.Graph([0, 1], [1, 0])
    with pytest.raises(TypeError, match="unsupported operand"):
        gw.update_all(graph, message, total, ndata={"h": torch.ones(2, 3)})
