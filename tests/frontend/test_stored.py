"""Recorded functions in the cache folder: the same program without recording, and never that of other code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from frontend.functions import CASES, FALLS_BACK, TYPED, World
from frontend.test_compiled import call_of, compare, typed_graph, zoo_graph
from torch import Tensor, nn

import graphweft as gw
from graphweft.frontend.captured import capture
from graphweft.frontend.stable_key import stable_text
from graphweft.nn import user_call

Forget = Callable[[], list[str]]


@pytest.fixture
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty cache folder; calling it forgets what this process knows and gives the recordings since then."""
    made: list[str] = []
    record = user_call.raise_call
    monkeypatch.setattr(user_call, "raise_call", lambda *given: made.append("recorded") or record(*given))

    def again() -> list[str]:
        monkeypatch.setattr(user_call, "_CALLS", OrderedDict())
        made.clear()
        return made

    for table in ("RULES", "DECOMPOSITIONS"):  # with rules that other tests registered nothing would be stored
        rules = getattr(user_call, table).items()
        own = {op: rule for op, rule in rules if getattr(rule, "__module__", "").startswith("graphweft.")}
        monkeypatch.setattr(user_call, table, own)
    with gw.config(cache_dir=str(tmp_path), certify=False):
        yield again


def files(folder: Path) -> list[Path]:
    return sorted((folder / "functions").glob("*.json")) if (folder / "functions").exists() else []


NAMES = [name for name in CASES if name not in FALLS_BACK]
# whether what the first captures has a row per edge depends on the graph; the second's class is made at run time
UNSTORED = ("captured_edge_tensor", "weight_norm")


@pytest.mark.parametrize(
    "name", [*NAMES[::8], *(pytest.param(n, marks=pytest.mark.slow) for i, n in enumerate(NAMES) if i % 8)]
)
def test_a_stored_program_equals_plain_execution(name: str, forget: Forget, tmp_path: Path) -> None:
    """Graphs without and with nodes that receive nothing take the two forms of one file."""
    graphs = [typed_graph()] if name in TYPED else [zoo_graph("multi_edges"), zoo_graph("isolated")]
    worlds = [World(graph) for graph in graphs]
    functions = [CASES[name](world) for world in worlds]
    forget()
    for world, given in zip(worlds, functions, strict=True):
        compare(world, given)
    stored = files(tmp_path)
    made = forget()
    for world, given in zip(worlds, functions, strict=True):
        compare(world, given)
    assert bool(stored) == (name not in UNSTORED) and bool(made) == (name in UNSTORED)


def test_most_functions_are_stored(forget: Forget, tmp_path: Path) -> None:
    worlds = {name: World(typed_graph() if name in TYPED else zoo_graph("random")) for name in CASES}
    calls = {name: call_of(world, CASES[name](world)) for name, world in worlds.items() if name not in FALLS_BACK}
    told = [stable_text(capture((c.message, c.reduce, c.update, c.params)).key) is not None for c in calls.values()]
    assert sum(told) > 0.9 * len(told)


class Scaled(gw.MessagePassing):
    rate = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.flag = nn.Linear(3, 2), True

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": self.linear(edges.src["h"]) * (self.rate if self.flag else 1.0)}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1)}


def test_changed_constants_and_code_are_recorded_anew(forget: Forget, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, h, layer = zoo_graph("random"), torch.randn(40, 3), Scaled()
    forget()
    first = layer.propagate(graph, ndata={"h": h})["h"]
    made = forget()
    torch.testing.assert_close(layer.propagate(graph, ndata={"h": h})["h"], first, rtol=0, atol=0)
    assert not made
    monkeypatch.setattr(Scaled, "rate", 3.0)
    torch.testing.assert_close(layer.propagate(graph, ndata={"h": h})["h"], first * 1.5)
    layer.flag = False
    torch.testing.assert_close(layer.propagate(graph, ndata={"h": h})["h"], first / 2)
    assert len(made) == 2
    before = torch.get_default_dtype()
    out = gw.update_all(
        graph, lambda e: {"m": e.src["h"] * torch.ones(3)}, Scaled.reduce.__get__(layer), ndata={"h": h}
    )
    torch.set_default_dtype(torch.float64)
    try:
        wide = gw.update_all(
            graph, lambda e: {"m": e.src["h"] * torch.ones(3)}, Scaled.reduce.__get__(layer), ndata={"h": h}
        )
    finally:
        torch.set_default_dtype(before)
    assert (out["h"].dtype, wide["h"].dtype) == (torch.float32, torch.float64)


class Odd:
    sizes = Path("12")  # a class attribute that the key does not hold

    def __call__(self, x: Tensor) -> Tensor:
        return x * len(self.sizes.name)


class Hidden:
    def __init__(self, value: float) -> None:
        self.value = value

    def __mul__(self, x: Tensor) -> Tensor:  # code that the key does not hold
        return x * self.value


ODD, HIDDEN = Odd(), Hidden(2.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda e: {"m": ODD(e.src["h"])},
        lambda e: {"m": HIDDEN * e.src["h"]},
        lambda e: {"m": e.src["h"] * float(os.environ.get("GRAPHWEFT_TEST_FACTOR", "1"))},
        lambda e: {"m": e.src["h"] * len(Path(__file__).name)},
        lambda e: {"m": e.src["h"] * hash("a")},
        lambda e: {"m": e.src["h"] * torch.get_num_threads()},
        lambda e: {"m": Hidden(2.0) * e.src["h"]},
    ],
)
def test_what_a_key_cannot_tell_is_not_stored(function: Any) -> None:
    assert stable_text(capture((function,)).key) is None


def test_torn_and_foreign_files_count_as_nothing(forget: Forget, tmp_path: Path) -> None:
    graph, h, layer = zoo_graph("random"), torch.randn(40, 3), Scaled()
    forget()
    first = layer.propagate(graph, ndata={"h": h})["h"]
    (path,) = files(tmp_path)
    whole = path.read_text()
    for damaged in (whole[: len(whole) // 2], "", "[]", whole.replace("EWISE", "EWISF"), whole.replace("2.0", "2.5")):
        path.write_text(damaged)
        made = forget()
        torch.testing.assert_close(layer.propagate(graph, ndata={"h": h})["h"], first, rtol=0, atol=0)
        assert made
    assert json.loads(path.read_text()) == json.loads(whole)


def test_another_process_records_nothing(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        import torch
        import graphweft as gw
        from graphweft.nn import user_call
        if sys.argv[1] == "again":
            user_call.raise_call = None
        FACTOR = float(sys.argv[2])
        graph = gw.Graph([0, 1, 2], [1, 2, 0])
        out = gw.update_all(
            graph, lambda e: {"m": e.src["h"] * FACTOR}, lambda n: {"h": n.mailbox["m"].sum(1)},
            ndata={"h": torch.ones(3, 2)},
        )
        print(float(out["h"].sum()))
        """
    )
    script = tmp_path / "script.py"
    script.write_text(program)

    def run(*given: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "GRAPHWEFT_CACHE_DIR": str(tmp_path)}
        return subprocess.run([sys.executable, str(script), *given], env=environment, capture_output=True, text=True)

    assert run("first", "2").stdout == "12.0\n"
    assert run("again", "2").stdout == "12.0\n"
    assert "NoneType" in run("again", "3").stderr
    script.write_text(program.replace("* FACTOR}", "/ FACTOR}"))
    assert "NoneType" in run("again", "2").stderr
    assert run("first", "2").stdout == "3.0\n"
