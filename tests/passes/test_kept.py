"""What passes made of a program is read from the cache folder: the same plan, and the numbers of PyTorch Geometric."""

from __future__ import annotations

import base64
import hashlib
import io
import pickle
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.ir.ops import Op
from graphweft.nn import recorded
from graphweft.passes import kept
from graphweft.passes.certificate import Certificate
from graphweft.passes.pipeline import run_passes

pyg = pytest.importorskip("torch_geometric.nn")

NODES, EDGES = 700, 5000
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: pyg.GCNConv(6, 5),
    "gat": lambda: pyg.GATConv(6, 4, heads=2),
    "transformer": lambda: pyg.TransformerConv(6, 5),
    "edge": lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(12, 5), nn.ReLU())),
}


@pytest.fixture
def passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A cache folder of its own; texts of the programs that passes ran on."""
    ran: list[str] = []

    def counted(program: Any, request: Any) -> Any:
        ran.append(program.text)
        return run_passes(program, request)

    monkeypatch.setattr(kept, "run_passes", counted)
    with gw.config(cache_dir=str(tmp_path)):
        yield ran


def stored(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "plans").glob("*"))


def called(module: nn.Module, nodes: int = NODES, edges: int = EDGES) -> tuple[str, list[Tensor], list[Tensor]]:
    """As in a new process: the plan, the result with all gradients, and the same of the module in float64."""
    recorded._FUNCTIONS.clear()
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, nodes, (2, edges), generator=generator)
    x = torch.randn(nodes, 6, generator=generator, requires_grad=True)
    found = graded(gw.compile(module), x, index)
    (function,) = recorded._FUNCTIONS.values()
    (plan,) = function._plans.values()
    expected = graded(module.double(), x.detach().double().requires_grad_(), index)
    module.float()
    return plan.text, found, expected


def graded(module: nn.Module, x: Tensor, index: Tensor) -> list[Tensor]:
    result = module(x, index)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), [x, *module.parameters()])]


def check(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("name", LAYERS)
def test_the_second_process_runs_no_pass_and_has_the_same_plan(name: str, passes: list[str], tmp_path: Path) -> None:
    module = LAYERS[name]()
    made, first, expected = called(module)
    assert len(passes) == 1
    assert len(stored(tmp_path)) == 1
    read, second, _ = called(module)
    assert len(passes) == 1
    assert read == made
    check(first, expected)
    check(second, expected)
    assert all(map(torch.equal, first, second))


def test_what_a_plan_follows_from_is_told_apart(passes: list[str], tmp_path: Path) -> None:
    module = LAYERS["gcn"]()
    called(module)
    called(module, nodes=3000)  # of another class of sizes
    module.bias.requires_grad_(False)
    recorded._FUNCTIONS.clear()
    x, index = torch.randn(NODES, 6), torch.randint(0, NODES, (2, EDGES))
    gw.compile(module)(x, index)
    with gw.config(precision="bf16"):
        gw.compile(module)(x, index)
    with gw.config(disabled_passes="fuse"):
        gw.compile(module)(x, index)
    assert len(passes) == 5
    assert len(stored(tmp_path)) == 5
    recorded._FUNCTIONS.clear()
    with torch.no_grad():
        gw.compile(module)(x, index)
    assert len(passes) == 6


@pytest.mark.parametrize("damage", ["", "x", "half", "other"])
def test_damaged_files_count_as_nothing(damage: str, passes: list[str], tmp_path: Path) -> None:
    module = LAYERS["gcn"]()
    made, *_ = called(module)
    (file,) = stored(tmp_path)
    text = file.read_text()
    file.write_text({"half": text[: len(text) // 2], "other": text[:70] + "0" + text[71:]}.get(damage, damage))
    again, found, expected = called(module)
    assert len(passes) == 2
    assert again == made
    check(found, expected)
    assert len(file.read_text()) == len(text)  # written once more


def test_members_of_enumerations_are_read_however_python_pickles_them(
    passes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.0 to 3.11.3 names them through ``getattr``, which no file may ask for."""
    monkeypatch.setattr(Op, "__reduce_ex__", lambda member, protocol: (getattr, (type(member), member.name)))
    module = LAYERS["gcn"]()
    made, *_ = called(module)
    again, *_ = called(module)
    assert again == made and len(passes) == 1


def test_small_graphs_leave_no_file(passes: list[str], tmp_path: Path) -> None:
    called(LAYERS["gcn"](), nodes=20, edges=60)
    assert len(passes) == 1
    assert not stored(tmp_path)


def test_programs_that_were_not_certified_whole_leave_none(
    passes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undecided(program: Any, request: Any) -> Any:
        return replace(run_passes(program, request), certificates=[Certificate("fuse", "undecided")])

    monkeypatch.setattr(kept, "run_passes", undecided)
    called(LAYERS["gcn"]())
    assert not stored(tmp_path)


def test_nothing_but_parts_of_programs_is_made() -> None:
    class Other:
        def __reduce__(self) -> Any:
            return print, ("read",)

    body = zlib.compress(pickle.dumps(([], Other())))
    assert kept._loaded(f"{hashlib.sha256(body).hexdigest()} {base64.b85encode(body).decode()}") is None


@pytest.mark.parametrize("foreign", [torch.typename, subprocess.run, eval])
def test_a_file_makes_nothing_but_parts_of_programs(foreign: object) -> None:
    assert kept._Reader(io.BytesIO(pickle.dumps(torch.float64))).load() is torch.float64
    with pytest.raises(pickle.UnpicklingError, match="expected a part of a program"):
        kept._Reader(io.BytesIO(pickle.dumps(foreign))).load()
