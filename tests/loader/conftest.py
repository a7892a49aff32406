"""A graph in parts, for tests of groups of parts. Other modules have fixtures of these names of their own."""

from __future__ import annotations

import pytest
import torch
from parted import PARTS

import graphweft as gw
from graphweft.loader.parts import MemoryParts


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.05)


@pytest.fixture(scope="module")
def part(ds: gw.Dataset) -> torch.Tensor:
    return gw.partition(ds.graph, PARTS).part


@pytest.fixture(scope="module")
def source(ds: gw.Dataset, part: torch.Tensor) -> MemoryParts:
    return MemoryParts(ds.graph, ds.x, ds.y, part, PARTS)
