"""Memory of a run, predicted and measured."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.train.footprint import check_fits, least_bytes, peak_rss_mb


def test_the_least_is_counted_over_parameters_and_outputs() -> None:
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.Linear(20, 20, bias=False), nn.Linear(20, 3, bias=False))
    outputs = [module(torch.zeros(7, module.in_features)) for module in model]
    expected = 4 * (5 * sum(p.numel() for p in model.parameters()) + 2 * sum(o.numel() for o in outputs))
    assert least_bytes(7, 10, 20, 3, 3) == expected


def test_a_model_larger_than_the_machine_is_refused() -> None:
    check_fits(1000, 10, 20, 3, 2)
    with pytest.raises(ConfigError, match=r"hidden: expected a model that fits the \d+ GiB .* at least \d+ GiB"):
        check_fits(10**6, 1000, 10**8, 3, 3)


def test_the_peak_is_of_this_program_alone() -> None:
    code = """
import sys
from graphweft.train.footprint import peak_rss_mb
before = peak_rss_mb()
block = bytearray(64 << 20)
block[::4096] = b"x" * len(block[::4096])
grown = peak_rss_mb()
del block
sys.exit(0 if 60 < grown - before < 80 and peak_rss_mb() >= grown - 1 and before < 400 else 1)
"""
    ballast = bytearray(600 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])  # a parent's memory must not count in a child
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert peak_rss_mb() > 600
