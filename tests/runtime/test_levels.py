"""The lower instruction set levels: attention, margins and sampling there, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from graphweft._native import LEVEL, LEVELS, usable_levels

WORK = """
import copy, hashlib, json, sys
import torch
import graphweft as gw
from graphweft import _native
from graphweft.nn import CGAT, GAT, SAGE
from graphweft.sample.neighbor import NeighborSampler

torch.manual_seed(0)
src, dst = torch.randint(0, 300, (2, 4000))
graph, x = gw.Graph(src, dst * dst // 300, num_nodes=300), torch.randn(300, 20)
errors = {}
for name, model in {
    "gat": GAT(20, 24, 5, heads=3), "gatv2": GAT(20, 24, 5, heads=3, v2=True), "cgat": CGAT(20, 24, 5, heads=3),
    "wide": GAT(20, 40, 5, heads=1), "max": SAGE(20, 24, 5, reduce="max"),
}.items():
    oracle = copy.deepcopy(model).double()
    with gw.config(opt_level=0):
        expected = oracle(graph, x.double())
        expected.square().mean().backward()
    got = model(graph, x)
    got.square().mean().backward()
    pairs = [(got, expected), *((p.grad, q.grad) for p, q in zip(model.parameters(), oracle.parameters()))]
    errors[name] = max(float((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)
digest = hashlib.sha256()
for replace in (False, True):
    sample = NeighborSampler(graph, [5, 4, 3], replace=replace).sample(torch.arange(0, 300, 7), seed=3)
    for block in sample.blocks:
        for ids in block.edges():
            digest.update(ids.numpy().tobytes())
    digest.update(sample.n_id.numpy().tobytes())
print(json.dumps({"level": _native.LEVEL, "errors": errors, "sample": digest.hexdigest()}))
"""


def _at(level: str) -> dict:
    environment = os.environ | {"GRAPHWEFT_CPU_LEVEL": level}
    done = subprocess.run([sys.executable, "-c", WORK], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def best() -> dict:
    return _at(LEVEL)


@pytest.mark.parametrize("level", usable_levels(LEVELS.index(LEVEL) - 1))
def test_lower_levels_compute_the_same_models_and_draw_the_same_samples(level: str, best: dict) -> None:
    found = _at(level)
    assert found["level"] == level != best["level"]
    assert max(found["errors"].values()) < 2e-4, found["errors"]
    assert max(best["errors"].values()) < 2e-4, best["errors"]
    assert found["sample"] == best["sample"]
