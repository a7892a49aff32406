"""Memory found by letting regions come and go: epochs of batches that are ready beside each other's steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import graphweft as gw
from graphweft._config import config
from graphweft._memory import POOL, lean_heap
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program
from graphweft.ir.residency import IndexType, Residency, StructType, TensorType
from graphweft.passes.work import Sizes
from graphweft.runtime import rehearsal
from graphweft.runtime.compile import Arguments, CompiledFunction
from graphweft.runtime.footprint import value_bytes
from graphweft.runtime.rehearsal import Prepared, Run, Taken, taken_by_epochs, taken_bytes
from graphweft.sample.neighbor import NeighborSampler
from graphweft.train.needs_by_running import grown_while

MB = 1 << 20


def batch(held: int, making: int, step: int, by_torch: int = 0) -> Prepared:
    """One that holds, makes and steps on so many megabytes."""
    return Prepared((held * MB,), (making * MB,) if making else (), Run(beside=(step * MB,), by_torch=by_torch * MB))


@pytest.fixture(autouse=True)
def _usual_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "heap_is_lean", lambda: False)


def test_batches_that_are_ready_lie_beside_the_step() -> None:
    """One is trained on, so many are ahead; what passes while one is made is there for every thread that makes one."""
    epoch = [batch(4, 0, 2)] * 5
    assert [taken_by_epochs(epoch, ahead, 1).most // MB for ahead in (1, 2, 4)] == [10, 14, 22]
    assert taken_by_epochs(epoch, 0, 0).most == 6 * MB
    assert taken_by_epochs([batch(4, 2, 2)] * 5, 2, 1).most == 16 * MB
    assert taken_by_epochs([batch(4, 2, 2)] * 5, 2, 2).most == 18 * MB


def test_an_epoch_of_equal_batches_maps_nothing_once_there_was_one() -> None:
    epoch = [batch(4, 2, 6)] * 4
    first, second = (taken_by_epochs(epoch, 1, 1, epochs=count) for count in (1, 2))
    assert second.most == first.most == first.mapped
    assert second.mapped == 0


def test_batches_of_other_sizes_do_not_fit_each_others_gaps() -> None:
    small, large = batch(2, 0, 6), batch(6, 0, 8)
    most = max(taken_by_epochs([one] * 4, 1, 1).most for one in (small, large))
    assert taken_by_epochs([small, small, large, large, small], 1, 1, epochs=2).most > most


def test_an_evaluation_takes_what_steps_have_left_free() -> None:
    epoch = [batch(4, 0, 8)] * 2
    assert taken_by_epochs(epoch, 0, 0, Run(beside=(8 * MB,))).most == taken_by_epochs(epoch, 0, 0).most == 12 * MB
    assert taken_by_epochs(epoch, 0, 0, Run(beside=(20 * MB,))).most == 20 * MB  # mapped is what they lack
    kept = Run(beside=(8 * MB,), stays=(30 * MB,))  # counted elsewhere
    assert taken_by_epochs(epoch, 0, 0, kept, epochs=2).most == 12 * MB


def test_gradients_part_what_an_evaluation_could_take_unless_they_go_before() -> None:
    """They lie in the midst of the memory of a step, and what is left on both sides is too small."""
    step = 6 * MB
    noted = ((1, step), (2, MB), (3, step), (1, 0), (3, 0))  # the second one stays
    epoch, evaluation = [Prepared((), (), Run(noted=noted))] * 2, Run(beside=(12 * MB,))
    most = [taken_by_epochs(epoch, 0, 0, evaluation, 2, lets_go).most for lets_go in (True, False)]
    assert most == [14 * MB, step + 2 * MB + 12 * MB]


def test_blocks_that_a_lean_heap_gives_back_are_mapped_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = [batch(2, 0, 2, by_torch=3)] * 4
    assert taken_by_epochs(epoch, 0, 0, epochs=2) == Taken(7 * MB, 0, 0)
    monkeypatch.setattr(rehearsal, "heap_is_lean", lambda: True)
    assert taken_by_epochs(epoch, 0, 0, epochs=2) == Taken(7 * MB, 0, 12 * MB)


def test_the_heap_keeps_free_memory_by_the_largest_block_that_it_gave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice its size, but no more than twice 32 MiB; a lean heap keeps none."""

    def most(*sizes: int) -> int:
        heap = rehearsal._Imagined()
        for region in [heap.lend(size, by_torch=True) for size in sizes]:
            heap.take_back(region)
        return heap.most

    assert most(3 * MB, 3 * MB) == 6 * MB + 6 * MB
    assert most(100 * MB) == 100 * MB + 64 * MB
    assert most(1 << 16) < MB
    monkeypatch.setattr(rehearsal, "heap_is_lean", lambda: True)
    assert most(3 * MB, 3 * MB) == 6 * MB


def test_noted_regions_come_and_go_and_what_stays_is_the_gradients() -> None:
    """Two regions of 4 MB pass one after the other, 2 MB stay; what others gave back is no part of it."""
    noted = ((1, 4 * MB), (1, 0), (7, 0), (1, 4 * MB), (2, 2 * MB), (1, 0))
    assert taken_bytes(Run(noted=noted)) == 6 * MB
    stays = Prepared((2 * MB,), (), Run(noted=noted))
    assert taken_by_epochs([stays] * 3, 0, 0).most == 8 * MB


def test_gaps_between_noted_regions_are_counted() -> None:
    """What is free in two pieces of 2 MB does not serve 4 MB."""
    noted = ((1, 2 * MB), (2, 2 * MB), (3, 2 * MB), (3, 0), (1, 0), (4, 4 * MB))
    assert sum(size for _, size in noted[:3]) == 6 * MB < taken_bytes(Run(noted=noted))


@pytest.mark.own_process
def test_the_ends_of_edges_that_the_interpreter_finds_are_counted() -> None:
    """A number for every edge from its source, and its sums, in torch's own memory: both ends and the id are more.

    Sums go to the sources, so that they are no kernel's.
    """
    lean_heap()
    ends = torch.randint(50_000, (2, 1_500_000), generator=torch.Generator().manual_seed(0))
    graph, builder = gw.Graph(*ends, 50_000), Builder()
    given = builder.add(Op.GRAPH, name="graph", type=StructType("V", "V", "E"))
    along = builder.add(Op.REVERSE, given)
    x = builder.add(Op.INPUT, name="x", type=TensorType(Residency.SRC, "V", (1,), torch.float32))
    made = builder.add(Op.REDUCE, along, builder.add(Op.BROADCAST_SRC, given, x), kind="sum")
    function = CompiledFunction.of(Program((given, x), (("out", made),)))
    rows = torch.ones(50_000, 1)
    arguments = Arguments(graph, None, {}, None, 0, False, {"x": (rows, Residency.SRC)})
    with torch.no_grad(), config(opt_level=1, disabled_kernels="edge_nest"):
        plan, sizes = function.sized_plan(arguments)
        assert all(map(plan.interprets, plan.forward))
        function(arguments)  # with the forms of the graph
        POOL.trim()
        most, _ = grown_while(lambda: function(arguments))
    assert taken_bytes(Run(plan, sizes)) == pytest.approx(most, rel=0.15)


@pytest.mark.own_process
@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_a_draw_that_is_turned_around_are_put_in_another_order(turned: bool) -> None:
    """Sums of 8 numbers an edge by the interpreter, into the destinations of a draw and into its sources."""
    lean_heap()
    ends = torch.randint(20_000, (2, 300_000), generator=torch.Generator().manual_seed(0))
    block = NeighborSampler(gw.Graph(*ends, 20_000), [-1]).sample(range(20_000)).blocks[0]
    builder = Builder()
    given = builder.add(Op.GRAPH, name="graph", type=StructType("V", "V", "E"))
    seeds = builder.add(Op.INPUT, name="seeds", type=IndexType("B", "V"))
    key = builder.add(Op.INPUT, name="key", type=IndexType(None, None))
    draw = builder.add(Op.SAMPLE, given, seeds, key, fanouts=(-1,), hop=0, turned=turned)
    kind = TensorType(Residency.EDGE, draw.struct.edge, (8,), torch.float32)
    made = builder.add(Op.REDUCE, draw, builder.add(Op.INPUT, name="x", type=kind), kind="sum")
    count, graph = block.num_edges, block.reverse() if turned else block
    sizes = Sizes({"V": 20_000, "E": count, draw.struct.src: graph.num_src, draw.struct.dst: graph.num_dst})
    sizes = replace(sizes, rows={**sizes.rows, draw.struct.edge: count})
    rows = torch.ones(count, 8)
    evaluate(made, [graph, rows])  # with the forms of the graph
    POOL.trim()
    most, _ = grown_while(lambda: evaluate(made, [graph, rows]))
    assert sum(rehearsal._beside(made, sizes)) + value_bytes(made, sizes) == pytest.approx(most, rel=0.15)
