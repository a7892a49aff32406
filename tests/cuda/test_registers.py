"""What the generated walks and the attention of models take, compiled for devices that are not here: no spilled
register and at most 64 of them, for heads of 9 to 256 channels; kept in ``tests/golden/cuda_walks.txt``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

import triton
from cuda import ahead, emulated
from nn.models import UserGAT
from torch import nn
from typed_zoo import academic
from zoo import random_edges

import graphweft as gw
from graphweft.passes import pipeline

GOLDEN = Path(__file__).parents[1] / "golden" / "cuda_walks.txt"
TARGETS = {36: (90,), 256: (80, 90)}  # by width
MOST_REGISTERS = 64
WATCHED = ("walk", "attend", "score_rows", "sum_rows")
TYPED = academic()
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "gat": lambda w: gw.nn.GAT(w, w, w, heads=4, dropout=0.5),
    "gatv2": lambda w: gw.nn.GAT(w, w, w, heads=4, dropout=0.5, v2=True),
    "gat with features of edges": lambda w: gw.nn.GAT(w, w, w, heads=4, edge_dim=3),
    "gatv2 with features of edges": lambda w: gw.nn.GAT(w, w, w, heads=4, v2=True, edge_dim=3),
    "transformer": lambda w: gw.nn.Transformer(w, w, w, heads=4),
    "cgat": lambda w: gw.nn.CGAT(w, w, w, heads=4),
    "pna": lambda w: gw.nn.PNAConv(w, w),
    "hgt": lambda w: gw.nn.HGT(w, w, w, num_node_types=len(TYPED.node_types), num_relations=len(TYPED.relations)),
    "user's gat": lambda w: UserGAT(w, w),
}


def launches(name: str, width: int) -> list[emulated.Launch]:
    """Of one step of a model, compiled and not run."""
    torch.manual_seed(1)  # Triton makes other code for keys of dropout that are multiples of 16
    found = random_edges(12, 30, 1)
    graph = TYPED if name == "hgt" else gw.Graph(found.src, found.dst, num_nodes=12)
    given = {"edge_attr": torch.randn(graph.num_edges, 3)} if "features" in name else {}
    with emulated.watching(run_it=False) as seen, gw.config(target="cuda", certify=False):
        MODELS[name](width).train()(
            graph, torch.randn(graph.num_nodes, width, requires_grad=True), **given
        ).square().sum().backward()
    return [launch for launch in seen if launch.kernel.__name__.startswith(WATCHED)]


@pytest.fixture(scope="module")
def found() -> dict[str, ahead.Code]:
    """What every kernel takes, by model, width, place among its launches, and target."""
    made: dict[str, ahead.Code] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "WORTH_A_KERNEL", 0)
        for name in MODELS:
            for width, targets in TARGETS.items():
                for k, launch in enumerate(launches(name, width)):
                    for target in targets:
                        key = f"{name}, {width} wide, {k + 1}: {launch.kernel.__name__}, sm_{target}"
                        made[key] = ahead.code_of(launch.code_for(target), target)
    return made


def test_walks_of_models_fit_into_registers(found: dict[str, ahead.Code]) -> None:
    assert len(found) > 100 and {name.split(", ")[0] for name in found} == set(MODELS)
    for name, code in found.items():
        assert code.spills == 0 and not code.atomics and code.shared <= 48 << 10, (name, code)
        assert code.registers <= MOST_REGISTERS, (name, code)


def test_the_table_is_that_of_this_compiler(found: dict[str, ahead.Code]) -> None:
    """Delete the golden file to record it anew; another Triton makes other code, of which the bars above hold."""
    lines = [f"{name}: registers {c.registers} spills {c.spills} shared {c.shared}" for name, c in found.items()]
    made = "\n".join([f"triton {triton.__version__}", *lines]) + "\n"
    if not GOLDEN.exists():
        GOLDEN.write_text(made)
    wanted = GOLDEN.read_text()
    if wanted.splitlines()[0] != made.splitlines()[0]:
        pytest.skip(f"recorded with {wanted.splitlines()[0]}, here is triton {triton.__version__}")
    assert made.splitlines() == wanted.splitlines()
