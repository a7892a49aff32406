"""METIS through pymetis, with what is done when its result is not balanced.

Comes in: a graph and a number of parts. Goes out: the part of every node, and which branch made it. Called by
:mod:`graphweft.partitioning.partition`. Source: Morphling, phase I; a failure is an exception, an empty part, or parts
above the tolerance, for METIS itself rarely reports one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft._errors import MissingPackageError
from graphweft.graph.graph import Graph

log = logging.getLogger("graphweft.partition")

Solver = Callable[[Graph, int, float, bool], Tensor]


class Branch(NamedTuple):
    """One way to ask METIS."""

    name: str
    tolerance: float  # largest part over mean
    recursive: bool


BRANCHES = (Branch("metis-kway", 1.03, False), Branch("metis-recursive", 1.20, True))


def metis(graph: Graph, k: int, solve: Solver | None = None) -> tuple[Tensor, str] | None:
    """k-way partitioning within 1.03 of balance; where that fails, recursive bisection within 1.20; else None.

    The graph is taken as undirected, without self-loops and parallel edges. Which branch was taken is logged to
    ``graphweft.partition``.

    Raises: MissingPackageError without pymetis.
    """
    if solve is None:
        _require()
        solve = _pymetis
    undirected = graph.loopless.to_bidirected(reduce="drop")
    for branch in BRANCHES:
        try:
            part = solve(undirected, k, branch.tolerance, branch.recursive)
        except (RuntimeError, ValueError, MemoryError, OverflowError) as failure:
            log.warning("%s failed: %s", branch.name, " ".join(str(failure).split()))
            continue
        fault = _fault(part, k, branch.tolerance)
        if fault is None:
            log.info("%s: %d parts within %.2f of balance", branch.name, k, branch.tolerance)
            return part, branch.name
        log.warning("%s failed: %s", branch.name, fault)
    return None


def _fault(part: Tensor, k: int, tolerance: float) -> str | None:
    """Why an assignment is not acceptable; None if it is. Whole nodes bound what balance is possible."""
    sizes = torch.bincount(part.long(), minlength=k)
    most, allowed = int(sizes.max()), max(tolerance * part.numel() / k, float(-(-part.numel() // k)))
    if int(sizes.min()) == 0:
        return f"part {int(sizes.argmin())} is empty"
    if most > allowed:
        return f"expected parts of up to {allowed:.0f} nodes, got {most}"
    return None


def _require() -> Any:
    try:
        import pymetis
    except ImportError:
        raise MissingPackageError(
            "partition: method 'metis' needs pymetis (pip install graphweft[metis]); method 'gap' needs nothing"
        ) from None
    return pymetis


def _pymetis(graph: Graph, k: int, tolerance: float, recursive: bool) -> Tensor:
    pymetis = _require()
    csc = graph.csc
    options = pymetis.Options(ufactor=round(1000 * (tolerance - 1)), seed=0)  # sorted heavy-edge matching by default
    adjacency = pymetis.CSRAdjacency(adj_starts=csc.indptr.numpy(), adjacent=csc.indices.numpy())
    found = pymetis.part_graph(k, adjacency, options=options, recursive=recursive)
    return torch.as_tensor(found.vertex_part, dtype=torch.int32)
