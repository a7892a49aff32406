"""Every kernel compiled ahead of time for devices that are not here: registers, spills, widths of loads, no atomics."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from codegen.regions import REGIONS
from codegen.test_edges import arguments, fields_of, function_of
from cuda.ahead import TARGETS, compiled
from zoo import CASES

import graphweft as gw
from graphweft.passes import pipeline
from graphweft.runtime.cuda import edges, kernels, walks
from graphweft.runtime.cuda.jit import generated

FLOAT, SHORT, LONG = "*fp32", "*i32", "*i64"
MOST_REGISTERS = 64


def _sums(width: int, stages: int, part: int = 0) -> tuple[Any, ...]:
    columns = min(128, walks.padded(width))
    fixed = {"HAS_WEIGHT": stages > 0, "HAS_IDS": False, "HAS_SCALE": stages > 0, "OWN": 0.5 * (stages > 0)}
    fixed |= {"F": width, "STAGES": stages, "BE": edges.edges_at_once(columns, 4), "BF": columns}
    fixed |= {"BS": min(fixed["BE"], max(1, 128 // columns)), "PART": part}
    return kernels.sum_edges, fixed


ROWS_OF_64 = {"F": 64, "BE": 2, "BF": 64}
NUMBERS_OF_EDGES = {"H": 4, "HAS_IDS": True, "BE": 32, "BH": 4}
CASES_OF_KERNELS: dict[str, tuple[Any, ...]] = {
    **{f"sums, {width} wide": _sums(width, 0) for width in (64, 128, 256)},
    "sums, all stages": _sums(64, 63),
    "sums, pieces of hubs": _sums(64, 63, 1),
    "sums, joined": _sums(64, 63, 2),
    "stages of rows": (kernels.finish_rows, {"F": 64, "HAS_IDS": True, "STAGES": 63, "BR": 4, "BF": 64}),
    **{
        f"{name}, part {part}": (kernel, fixed | {"PART": part})
        for name, kernel, parts, fixed in (
            ("extrema", kernels.extremum_of_edges, (0, 1, 2), {"MINIMUM": False, "WANT_ARG": True} | ROWS_OF_64),
            ("gradient of extrema", kernels.extremum_gradient, (0, 1, 2), ROWS_OF_64),
            ("softmax", kernels.softmax_of_edges, (0, 1, 2, 3), {"LOG": False} | NUMBERS_OF_EDGES),
            ("gradient of softmax", kernels.softmax_gradient, (0, 1, 2, 3), NUMBERS_OF_EDGES),
        )
        for part in parts
    },
    "dropout": (kernels.drop_elements, {"FACTOR": 2.0, "F": 64, "HAS_IDS": False, "THRESHOLD": 9, "BLOCK": 1024}),
}
IDS = {"offsets": LONG, "pieces": SHORT, "owners": SHORT, "columns": SHORT, "ids": SHORT, "arg": SHORT, "args": SHORT}
NUMBERS = {"short": "i64", "rows": "i64", "count": "i64", "share": "i64"}
WORDS = {name: "i64" for name in ("seed_low", "seed_high", "stream_low", "stream_high")}


def _types(names: list[str]) -> dict[str, str]:
    return {name: (IDS | NUMBERS | WORDS).get(name, FLOAT) for name in names}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES_OF_KERNELS)
def test_kernels_fit_into_registers_and_read_by_vectors(name: str, target: int) -> None:
    kernel, fixed = CASES_OF_KERNELS[name]
    fn = kernel.compiled
    code = compiled(fn, _types(fn.arg_names), fixed, target, 4 if name == "dropout" else 1)
    assert code.spills == 0 and code.registers <= MOST_REGISTERS and not code.atomics, code
    assert code.shared <= 4096, code
    if name.startswith("sums"):
        assert code.widest == 16, code.loads  # bytes: the width is a multiple of 4


def _walks(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The kernels of a region and its gradients."""
    found = []
    render = walks.render_walk
    monkeypatch.setattr(walks, "render_walk", lambda nest: (found.append((nest, render(nest))), found[-1][1])[1])
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)
    graph = next(case.graph() for case in CASES if case.name == "multi_edges")
    with gw.config(target="cuda", certify=False):
        function_of(REGIONS[name]).compile(arguments(graph, fields_of(graph, torch.float32)))
    return found


@pytest.mark.parametrize("name", ["product_of_ends", "dot_as_gate", "two_levels"])
def test_generated_walks_compile_without_spills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for nest, made in _walks(name, monkeypatch):
        fn = generated(made.text, "walk", walks._FUNCTIONS)
        at_once, warps = walks.tile_of(made)
        fixed = {"HAS_IDS": True, "BE": at_once}
        code = compiled(fn, _types(fn.arg_names), fixed, 90, warps, fusion=not made.sums)
        assert code.spills == 0 and not code.atomics, (str(nest), code)
        assert code.registers <= 255 and code.shared <= 48 << 10, (str(nest), code)
