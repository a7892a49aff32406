"""Launchers of generated kernels over edges: the walks of a plan, in two translation units, compiled at most once.

Comes in: groups that walk the edges of a graph. Goes out: for each a callable from the graph and the tensors it reads
to its results, or None where nothing can be compiled, and the caller runs the values one by one. The text depends on
the program alone, never on a graph. Called by ``plan.py`` and ``lower.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from graphweft import _config
from graphweft._errors import CertificateWarning, IRError
from graphweft._memory import empty
from graphweft._native import declare
from graphweft.codegen.edge_cpp import render_unit
from graphweft.codegen.edge_nest import edge_nest, work
from graphweft.graph.graph import Graph
from graphweft.ir.program import Value
from graphweft.passes.certificate import MEMORY, Certificate, key_of
from graphweft.passes.groups import EdgeWalk, Group
from graphweft.runtime import build
from graphweft.runtime.walk_trials import WalkProgram, difference

_RUN = declare("gw_run_nest")
_SEVERAL = 3  # walks from which a second compiler pays

# (the graph whose rows are walked, what is read) -> results, first the group's own, then its taps
Walk = Callable[..., list[Tensor]]
Walks = dict[Value, tuple[Walk, tuple[Value, ...]]]


def edge_kernels(groups: Sequence[Group]) -> Walks:
    """For every walk among ``groups``, by its result: the kernel and the values that it reads, in order.

    Kernels that failed their trial are left out, with one warning, unless ``config(certify=False)``.
    """
    try:
        units = _units(groups)
    except IRError as failure:
        _warn_unused("the", str(failure))
        return {}
    libraries = build.load_all([unit.text for unit in units])
    if None in libraries:
        return {}
    made: Walks = {}
    refuted: list[str] = []
    for library, unit in zip(libraries, units, strict=True):
        assert library is not None  # seen above
        for number, (group, read, _) in enumerate(unit.walks):
            kernel = _launcher(library, number, group, len(read))
            verdict = _certified(kernel, unit, number) if _config.current().certify else None
            if verdict is not None:
                refuted.append(verdict)
            else:
                made[group.result] = (kernel, read)
    if refuted:
        _warn_unused(str(len(refuted)), refuted[0])
    return made


def _warn_unused(count: str, reason: str) -> None:
    message = f"{count} generated walks over edges are not used by this program: {reason}; results stay correct"
    warnings.warn(message, CertificateWarning, stacklevel=2)


def _certified(kernel: Walk, unit: _Unit, number: int) -> str | None:
    """What is wrong with a kernel, by a trial or as an earlier one found."""
    group, read, width = unit.walks[number]
    key = key_of(build.key(unit.text), str(number), WalkProgram(group, read).program.text)
    known = MEMORY.get(key)
    if known is None:
        found = difference(kernel, group, read, width)
        known = Certificate("walk", "holds" if found is None else "refuted", found or "")
        MEMORY.put(key, known)
    return known.detail if known.verdict == "refuted" else None


def start_edge_kernels(groups: Iterable[Group]) -> None:
    """Begins to compile the walks among ``groups`` while the caller goes on."""
    with contextlib.suppress(IRError):  # edge_kernels says it
        build.start([unit.text for unit in _units(groups)])


class _Unit(NamedTuple):
    """One translation unit: its text, and its walks in order, each with what it reads and computes."""

    text: str
    walks: list[tuple[EdgeWalk, tuple[Value, ...], int]]


def _units(groups: Iterable[Group]) -> list[_Unit]:
    """The units of the walks among ``groups``, the same whatever their order."""
    nests = []
    for group in groups:
        if isinstance(group, EdgeWalk):
            nest, read = edge_nest(group.chain, (group.result, *group.taps), group.walk)
            nests.append((nest, (group, read, work(nest))))
    nests.sort(key=lambda item: str(item[0]))
    parts = _parts([len(nest.steps) + len(nest.sinks) for nest, _ in nests]) if nests else []
    return [_Unit(render_unit([nests[at][0] for at in part]), [nests[at][1] for at in part]) for part in parts]


def _parts(lengths: Sequence[int]) -> list[list[int]]:
    """Nests by translation unit: two of about the same text where there are enough of them."""
    if len(lengths) < _SEVERAL:
        return [list(range(len(lengths)))]
    parts: list[list[int]] = [[], []]
    sizes = [0, 0]
    for at in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        least = sizes.index(min(sizes))
        parts[least].append(at)
        sizes[least] += lengths[at]
    return [sorted(part) for part in parts]


def _launcher(library: ctypes.CDLL, number: int, group: EdgeWalk, count: int) -> Walk:
    function = getattr(library, f"gw_nest_{number}")
    function.restype = ctypes.c_void_p
    nest = function()
    results = (group.result, *group.taps)
    dims = [value.tensor.dims for value in results]
    struct = group.walk.struct
    rows = [value.tensor.rows for value in results]
    real = results[0].tensor.dtype
    inputs, outputs = ctypes.c_void_p * max(count, 1), ctypes.c_void_p * len(results)

    def walk(graph: Graph, tensors: Sequence[Tensor], memory: Callable[..., Tensor] = empty) -> list[Tensor]:
        sizes = {struct.edge: graph.num_edges, struct.dst: graph.num_dst}
        made = [memory((*(() if r is None else (sizes[r],)), *d), real) for r, d in zip(rows, dims, strict=True)]
        given = [t.to(real).contiguous() if t.dtype != real or not t.is_contiguous() else t for t in tensors]
        adjacency = graph.csc
        _RUN(adjacency.native, nest, inputs(*(t.data_ptr() for t in given)), outputs(*(t.data_ptr() for t in made)))
        return made

    return walk
