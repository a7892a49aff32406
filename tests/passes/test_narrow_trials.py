"""Trials of programs with wide inputs: they are narrow there, and wide again where that decides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import random_edges

import graphweft as gw
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program
from graphweft.ir.residency import Residency, TensorType
from graphweft.passes import certificate
from graphweft.passes.certificate import MEMORY
from graphweft.passes.trials import Doubled, narrower


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path) -> Any:
    """No verdict of another test."""
    MEMORY.clear()
    with gw.config(cache_dir=str(tmp_path), certify=True):
        yield
    MEMORY.clear()


def graph() -> gw.Graph:
    made = random_edges(60, 400, seed=4)
    return gw.Graph(made.src, made.dst, num_nodes=60)


@pytest.mark.parametrize(("kind", "widths"), [(gw.nn.GCN, {3000, 2000}), (gw.nn.GAT, {3000})])
def test_wide_inputs_are_tried_narrow(kind: Any, widths: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of 3,000 x 2,000 numbers would take 48 MB in float64, and each run has its own."""
    seen = list[int]()
    original = certificate._Bench.usable

    def counted(bench: Any, program: Program) -> bool:
        seen.extend(x.numel() for x in bench._trial.inputs.values() if isinstance(x, Tensor))
        return original(bench, program)

    monkeypatch.setattr(certificate._Bench, "usable", counted)
    module = kind(3000, 2000, 7)
    module(graph(), torch.randn(60, 3000)).sum().backward()
    assert {c.verdict for c in module.function.plans()[-1].compiled.certificates} == {"holds"}
    assert max(seen) <= 48 * (48 if 2000 in widths else 2000)


@pytest.mark.filterwarnings("error")
def test_nothing_is_refuted_with_narrow_inputs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite may name a width, and be right at that width."""
    original, widths = certificate._Bench.whole, set[int]()

    def only_wide(bench: Any, outcome: Any, doubled: Doubled) -> str | None:
        width = bench.program.input("x").tensor.dims[0]
        widths.add(width)
        return original(bench, outcome, doubled) if width == 300 else "it differs"

    monkeypatch.setattr(certificate._Bench, "whole", only_wide)
    module = gw.nn.GCN(300, 4, 2)
    module(graph(), torch.randn(60, 300)).sum().backward()
    assert {c.verdict for c in module.function.plans()[-1].compiled.certificates} == {"holds"}
    assert len(widths) == 2


def test_widths_that_an_attribute_names_are_kept() -> None:
    builder = Builder()
    x = builder.add(Op.INPUT, name="x", type=TensorType(Residency.DST, "V", (300,)))
    w = builder.add(Op.INPUT, name="w", type=TensorType(Residency.SHARED, None, (300, 200)))
    product = builder.add(Op.MATMUL, x, w)
    assert [len(way) for way in narrower(Program((x, w), (("out", product),)))] == [2, 1, 0]
    half = builder.add(Op.SLICE, product, axis=0, start=0, stop=200, step=1)
    ways = narrower(Program((x, w), (("out", half),)))
    assert [set(way) for way in ways] == [{300}, set()]
    made = Doubled(ways[0])(Program((x, w), (("out", half),)))
    assert {v["name"]: v.tensor.dims for v in made.inputs} == {"x": (24,), "w": (24, 200)}
