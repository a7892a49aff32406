"""Trials of the choice between the kernel and torch's CSR by what was measured. Run by ``trials.py``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from cuda.halves import dense_of, drawn
from torch import Tensor
from zoo import random_edges

import graphweft as gw
from graphweft.runtime.cuda import measured, products
from graphweft.runtime.cuda.target import CUDA
from graphweft.runtime.kernel_call import KernelCall, Slot

HOST = torch.device("cpu")


def sums(graph: gw.Graph, x: Tensor, weight: Tensor) -> Tensor:
    """What the launcher of a plain weighted product gives."""
    reads = (Slot("graph", 0, None), Slot("x", 1, None), Slot("weight", 2, None))  # type: ignore[arg-type]
    call = KernelCall("spmm", reads, (Slot("out", 3, None),), (("self_coef", 0.0),), (), "spmm")  # type: ignore[arg-type]
    run = CUDA._table["spmm", torch.float32](call)
    assert run is not None
    slots = [graph, x, weight, None]
    run(slots)
    made = slots[3]
    assert isinstance(made, Tensor)
    return made


def plain_products_are_taken_as_measured() -> None:
    """By the nearest width; the kernel without a measurement. Both give the product."""
    ends, took, inner = random_edges(30, 90, 2), list[int](), products.csr_product
    graph, weight = gw.Graph(ends.src, ends.dst, num_nodes=30), drawn(90, seed=1)

    def noted(graph: gw.Graph, x: Tensor, weight: Tensor) -> Tensor:
        took.append(x.shape[1])
        return inner(graph, x, weight)

    products.csr_product = noted
    try:
        for found, wanted in (({}, []), ({"16": 2.0, "64": 0.8}, [50, 64]), ({"16": 0.97}, [])):
            with tempfile.TemporaryDirectory() as folder, gw.config(cache_dir=folder):
                took.clear()
                measured._read.cache_clear()
                if found:
                    text = json.dumps({"version": 1, "csr": found})
                    (Path(folder) / measured.name_of(HOST)).write_text(text)
                for width in (5, 50, 64):
                    x = drawn(30, width)
                    exact = dense_of(graph, weight) @ x.double()
                    torch.testing.assert_close(sums(graph, x, weight).double(), exact, rtol=1e-5, atol=1e-5)
                assert took == wanted, (found, took)
    finally:
        products.csr_product = inner
        measured._read.cache_clear()


TRIALS = (plain_products_are_taken_as_measured,)
