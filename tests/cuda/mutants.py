"""Kernels with a seeded mistake each, which the emulator has to find: ``python mutants.py`` prints a line each.

A mutant is found by a fault (memory, a race, a barrier) or by an error above 1e-5; the kernel as it stands passes the
same run. The first ones change the kernel's source, the others the compiled text or the grid.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
from cuda import emulated, graphs, sampling
from triton.runtime.jit import JITFunction
from zoo import CASES

import graphweft as gw
from graphweft.runtime import sparse
from graphweft.runtime.cuda import attention_kernels, edges, hubs, jit, kernels, sampling_kernels
from graphweft.runtime.cuda.jit import Kernel, find_triton

ZOO = {case.name: case for case in CASES}
Grid = tuple[int, ...]


class Mutant(NamedTuple):
    """A mistake.

    Attributes:
        kernel: Which one has it.
        old, new: Of its text; the first place, or a pattern for compiled text.
        graph, width: The run that is to find it.
        compiled: Whether the compiled text has it; "grid": the launch.
        most: Edges from which a row is cut.
    """

    kernel: str
    old: str
    new: str
    graph: str = "random"
    width: int = 5
    compiled: str = ""
    most: int = hubs.HUB


SUM, BEST, SOFT = "sum_edges", "extremum_of_edges", "softmax_of_edges"
MUTANTS = {
    "mask of edges dropped": Mutant(SUM, "mask=some[:, None] & here[None, :]", "mask=here[None, :]"),
    "mask of columns dropped": Mutant(SUM, "tl.load(columns + p, mask=some, other=0)", "tl.load(columns + p)"),
    "stride of the tile": Mutant(SUM, "col[:, None] * F", "col[:, None] * BF"),
    "last edge left out": Mutant(SUM, "offsets + at * STEP + 1)", "offsets + at * STEP + 1) - 1"),
    "mask of the store dropped": Mutant(SUM, "total, mask=here)", "total)"),
    "two rows to one place": Mutant(SUM, "y + row * F", "y + row // 2 * F"),
    "own row instead of the sum": Mutant(SUM, "total += mine", "total = mine"),
    "factor of the row": Mutant(SUM, "scale + col, mask=some", "scale + p, mask=some"),
    "row beyond the last": Mutant("finish_rows", "tl.minimum(row, rows - 1)", "row"),
    "wrong tile of columns": Mutant("finish_rows", "tl.program_id(1) * BF", "tl.program_id(1)", width=130),
    "zero wins over negative numbers": Mutant(BEST, "[BE, BF], least", "[BE, BF], 0.0"),
    "last of equal sources": Mutant(BEST, "else t <= best", "else t < best", "star"),
    "block not added up": Mutant(SUM, "block += t", "block = t", "star"),
    "rows of all sources": Mutant("extremum_gradient", "== own", ">= own"),
    "sum not rescaled": Mutant(SOFT, "total * shrink + tl.sum(tl.exp", "total + tl.sum(tl.exp", "star"),
    "zeros among the scores": Mutant(SOFT, 'other=float("-inf")).to', "other=0.0).to"),
    "neighbour's edges overwritten": Mutant(SOFT, "t, mask=here)", "t)"),
    "row's sum left out": Mutant("softmax_gradient", " - total[None, :]", ""),
    "draws of another element": Mutant("drop_elements", "(at % 32) // 4", "(at % 16) // 4", width=64),
    "attention not rescaled": Mutant("attend", "block * shrink[:, None]", "block", "star"),
    "attention's share left out": Mutant("attend_gradient_of_sources", "(dot - share)", "dot"),
    "slope of the leaky unit": Mutant("attend_gradient_of_targets", "> 0, 1.0, SLOPE)", "> 0, SLOPE, 1.0)"),
    "a piece left out": Mutant(SUM, "p < last", "p < last - 1", "star", most=4),
    "pieces of the next row": Mutant(BEST, "pieces + row + 1)", "pieces + row + 2)", "star", most=4),
    "edges of a hub twice": Mutant(SUM, "last > piece, begin, end", "last > piece, end, end", "star", most=4),
    "last of equal pieces": Mutant(BEST, "(at - piece)", "(last - at)", "star", most=4),
    "pieces not rescaled": Mutant(SOFT, "part * tl.exp(t - base[None, :])", "part", "star", most=4),
    "attention's pieces not rescaled": Mutant("attend", "s = tl.load(part_tops", "s = 0 * tl.load(part_tops", "star",
                                              most=4),
    "another piece's sums": Mutant("attend_gradient_of_targets", "made + unit * H", "made + row * H", "star", most=4),
    "draws of another hop": Mutant("draw_few", "i // 4, hop)", "i // 4, hop + 1)"),
    "draws beside the bound": Mutant("draw_few", "else last + 1", "else last"),
    "drawn twice": Mutant("draw_few", "tl.where(taken, last, now)", "now"),
    "order not moved": Mutant("draw_few", "place >= at", "place > at"),
    "shuffle not kept": Mutant("draw_many", "room + place, mine", "room + i, mine", "star"),
    "numbers by place": Mutant("number_new", "tl.load(upto + at, mask=new, other=1) - 1", "at"),
    "known nodes numbered again": Mutant("first_new", "& (known < 0)", ""),
    "edges of the next row": Mutant("keep_first", "values + start + i", "values + begin + i"),
    "missing barrier": Mutant(SOFT, r"bar\.(warp\.)?sync[^;]*;", "", compiled="all"),
    "missing barrier after reading": Mutant(SOFT, r"bar\.sync[^;]*;", "", compiled="all"),
    "lanes that do not meet": Mutant(SUM, r"(shfl\.sync\.bfly[^,]*,[^,]*), 16,", r"\1, 1,", width=64, compiled="all"),
    "shift of a row": Mutant(SUM, r"ld\.global\.v4\.b32 (\{[^}]*\}), \[ (%\w+) \+ 0 \]",
                             r"ld.global.v4.b32 \1, [ \2 + 4 ]", width=64, compiled="one"),
    "guard turned round": Mutant(SUM, r"@(%p\d+) st\.global", r"@!\1 st.global", width=64, compiled="one"),
    "wrong program": Mutant(BEST, r"%ctaid\.x", "%ctaid.y", compiled="all"),
    "edges up to the last and one more": Mutant(SUM, r"setp\.lt\.s64", "setp.le.s64", compiled="all"),
    "difference instead of a sum": Mutant(SUM, r"add\.f32", "sub.f32", width=64, compiled="one"),
    "shared memory of another kernel": Mutant(SOFT, r"mov\.b32\s+(%r\d+), global_smem", r"mov.b32 \1, 4096",
                                              compiled="one"),
    "one program too many": Mutant(SUM, "", "+1", compiled="grid"),
    "one program too few": Mutant(SUM, "", "-1", compiled="grid"),
}  # fmt: skip


def errors(mutant: Mutant) -> float:
    """The largest error of the run that is to find it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hubs, "HUB", mutant.most)
        return _errors(mutant)


def _errors(mutant: Mutant) -> float:
    graph = ZOO[mutant.graph].graph()
    if mutant.kernel.startswith("attend"):
        return graphs.of_region(graph, "attention, add")
    if hasattr(sampling_kernels, mutant.kernel):
        seeds = torch.arange(0, graph.num_nodes, 2)
        drawn = (sampling.differences(graph, *how, seeds, 9) for how in sampling.FANOUTS[3:8])
        return float("inf") if any(drawn) else 0.0
    seed = graphs.WIDTHS.index(mutant.width)
    found = graphs.of_kernels(graph, seed)
    x = graphs.drawn(graph.num_src, mutant.width, seed=1).sign()  # equal ones abound
    ties = edges.extremum(graph, x, False, True)[1]
    same = ties is not None and torch.equal(ties, sparse.spmm_max(graph.csc, x)[1])  # type: ignore[arg-type]
    return max(float("inf") if far != far else far for far in (*found.values(), 0.0 if same else 1.0))


def changed(kernel: Kernel, mutant: Mutant) -> Any:
    """The kernel from its text with the mistake, which may lie in a function that it calls."""
    names = dict(kernel.function.__globals__)
    text = inspect.getsource(kernel.function)
    if mutant.old not in text:
        called = {name: item.fn for name, item in names.items() if isinstance(item, JITFunction) and f"{name}(" in text}
        name = next(name for name, function in called.items() if mutant.old in inspect.getsource(function))
        names[name] = find_triton().jit(_defined(inspect.getsource(called[name]), mutant, name, names))
    return kernel.of(_defined(text, mutant, mutant.kernel, names))


def _defined(text: str, mutant: Mutant, name: str, names: dict[str, Any]) -> Any:
    """A function of a text with the mistake, among ``names``."""
    text = re.sub(r"^@\w+\n", "", text).replace(mutant.old, mutant.new, 1)
    place = f"<mutant {hash(text):x}>"
    linecache.cache[place] = (len(text), None, text.splitlines(True), place)
    exec(compile(text, place, "exec"), names)
    return names[name]


def verdict(mutant: Mutant) -> str:
    """How it is found; empty if it is not."""
    kernel = (vars(kernels) | vars(attention_kernels) | vars(sampling_kernels))[mutant.kernel]
    applied = []

    def of_text(text: str) -> str:
        if f".entry {mutant.kernel}(" not in text or not mutant.compiled or mutant.compiled == "grid":
            return text
        made, count = re.subn(mutant.old, mutant.new, text, count=0 if mutant.compiled == "all" else 1)
        applied.append(count)
        return made

    before = kernel.compiled
    if not mutant.compiled:
        kernel.__dict__["compiled"] = changed(kernel, mutant)
        applied.append(1)
    try:
        with emulated.watching(of_text):
            if mutant.compiled == "grid":
                applied.append(1)
                watched = jit.launch
                jit.launch = (
                    lambda fn, grid, *given, **fixed: watched(  # type: ignore[assignment]
                        fn, (grid[0] + int(mutant.new), *grid[1:]) if fn is before else grid, *given, **fixed
                    )
                )
            far = errors(mutant)
    except Exception as failure:
        assert any(applied), mutant
        return f"{type(failure).__name__}: {failure}".replace("\n", " ")[:160]
    finally:
        kernel.__dict__["compiled"] = before
    assert any(applied), mutant
    return f"error {far:.1e}" if far > graphs.CLOSE else ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    gw.passes.pipeline.WORTH_A_KERNEL = 0
    for mutant in {
        (m.graph, m.width, m.most, m.kernel in vars(sampling_kernels)): m for m in MUTANTS.values()
    }.values():
        with emulated.watching():
            assert errors(mutant) <= graphs.CLOSE, mutant
    for name, mutant in MUTANTS.items():
        print(f"{name}\t{verdict(mutant) or 'NOT FOUND'}", flush=True)
