"""Sampling, gathering, structure and model as one compiled program, run in two stages.

Comes in: a function that writes the program of a mini-batch, a sampler and the table of features. Goes out: a
:class:`StagedPlan`. Its first stage makes everything that depends on seeds and key alone: blocks, ids, degrees,
normalisation, reversed blocks, and, where asked for, gathered or aggregated rows. It runs on a loader's threads. Its
second stage is the model: forward, and backward by a pullback. Called by the mini-batch trainer.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphweft import _config
from graphweft._errors import ShapeError
from graphweft._trace import span
from graphweft.cost import CostModel, Work, draw_work
from graphweft.graph.graph import Graph
from graphweft.graph.placed import on_device
from graphweft.ir.drawing import block_of
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Builder, Program, Value, written
from graphweft.ir.residency import HOST, IndexType, Residency, StructType, TensorType
from graphweft.passes.fuse import FORWARD, group_values
from graphweft.passes.hoist import constant_values
from graphweft.passes.pipeline import Request, run_passes
from graphweft.passes.placement import Order
from graphweft.passes.stage_fuse import fold_gathers
from graphweft.passes.transfers import MOVER
from graphweft.passes.work import Sizes, group_work
from graphweft.runtime.feature_types import is_half, is_single, meant_dtype
from graphweft.runtime.footprint import value_bytes
from graphweft.runtime.function import Pullback, linearize
from graphweft.runtime.kernel_call import Slots
from graphweft.runtime.lower import lower
from graphweft.runtime.plan import Plan, forms_of
from graphweft.runtime.relocation import Relocation
from graphweft.runtime.targets import target_of
from graphweft.runtime.tier import Tier
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import OpenSample, Sample
from graphweft.storage.feature import Features, SparseFeatures, is_dense, stored
from graphweft.storage.int8_features import Int8Features

# writes a batch's program: (builder, inputs by name, training) -> outputs by name
Describe = Callable[[Builder, dict[str, Value], bool], dict[str, Value]]
# draws a batch: (sampler, seeds, (seed, epoch, stage), whether the last hop stays open)
Draw = Callable[[NeighborSampler, Tensor, tuple[int, int, int], bool], Sample | OpenSample]

STRUCTURE_AHEAD, ROWS_AHEAD = ("key", "seeds"), ("key", "seeds", "x")


@dataclass(frozen=True)
class Choice:
    """What is open in a batch's program and may be decided by measuring.

    Attributes:
        ahead: Inputs whose consequences are computed in the first stage: structure alone, or what is read of the
            features as well.
        orders: Order of aggregation and transform by weight; None: as the cost model says.
        numbered: The outermost block is compressed over the batch's own numbers and reads gathered rows; else it may
            be left open, over all nodes, and read the table of features itself.
    """

    ahead: tuple[str, ...] = STRUCTURE_AHEAD
    orders: tuple[tuple[str, Order], ...] | None = None
    numbered: bool = False

    def __str__(self) -> str:
        first = "numbered" if self.numbered else "open"
        rows = "rows gathered ahead" if self.ahead == ROWS_AHEAD else "structure ahead"
        orders = "" if self.orders is None else "".join(f", {name} {order.value}" for name, order in self.orders)
        return f"first block {first}, {rows}{orders}"


@dataclass(frozen=True)
class PreparedBatch:
    """What the first stage leaves to the second.

    Attributes:
        plan: What prepared it, and runs its second stage.
        seeds: int64 (batch_size,) ids of the seeds.
        rows: Destinations of every hop, the seeds' first.
        seconds: What the first stage took.
        moved: The table that rows are read from, and the places of the seeds in it; None: the rows of all nodes.
    """

    plan: StagedPlan
    seeds: Tensor
    rows: tuple[int, ...]
    values: tuple[Any, ...]
    seconds: float = 0.0
    moved: tuple[Tensor, Tensor] | None = None

    @property
    def batch_size(self) -> int:
        """Number of seeds."""
        return self.seeds.numel()


class StagedFunction:
    """The program of a mini-batch and its plans.

    Args:
        describe: Writes the program over the inputs ``graph``, ``x``, ``seeds``, ``key``, ``seed`` and parameters.
        sampler: Draws the neighbourhoods.
        x: Rows of all nodes, dense or sparse.
        tier: Where the second stage runs; dense rows of the first move there while the rest of it goes on.
        device: Where the second stage runs on the rows of ``x``, which lies there; None: where the graph is.
    """

    def __init__(
        self,
        describe: Describe,
        sampler: NeighborSampler,
        x: Features,
        tier: Tier | None = None,
        device: torch.device | None = None,
    ) -> None:
        if x.shape[0] != sampler.graph.num_nodes:
            raise ShapeError(f"batches: expected features of {sampler.graph.num_nodes} nodes, got {x.shape[0]} rows")
        self._describe, self.sampler, self.x = describe, sampler, x
        self.device = device or sampler.graph.device
        self.tier = tier if is_dense(x) else None  # other rows stay where they are

    def program(self, parameters: Mapping[str, Tensor], training: bool) -> Program:
        """The forward program as described: sampler, gather and layers."""
        x = self.x
        types: dict[str, Any] = {
            "graph": StructType("N", "N", "E"),
            "x": TensorType(Residency.SRC, "N", tuple(x.shape[1:]), meant_dtype(x), isinstance(x, SparseFeatures)),
            "seeds": IndexType("B", "N"),
            "key": IndexType(None, None),
            "seed": IndexType(None, None),
        }
        for name, tensor in parameters.items():
            types[name] = TensorType(Residency.SHARED, None, tuple(tensor.shape), tensor.dtype)
        return written(types, lambda builder, inputs: self._describe(builder, inputs, training))

    def compile(
        self, parameters: Mapping[str, Tensor], training: bool, reference: Sample, choice: Choice | None = None
    ) -> StagedPlan:
        """The plan, decided by the sizes of the ``reference`` batch."""
        active, program = _config.current(), self.program(parameters, training)
        single = is_single(self.x, parameters.values())
        names = {value["name"] for value in program.inputs}
        choice = choice or Choice()
        off = frozenset(name for name in active.disabled_passes.split(",") if name)
        if isinstance(self.x, SparseFeatures | Int8Features) or self.tier is not None:
            choice = replace(choice, ahead=ROWS_AHEAD)  # the table itself does not move
        if isinstance(self.x, Int8Features):
            choice = replace(choice, numbered=True)  # nothing but a gather reads levels
        target = target_of(self.device)
        request = Request(
            level=max(active.opt_level if single else min(active.opt_level, 2), 1),
            wanted=tuple(name for name, t in parameters.items() if t.requires_grad and name in names),
            constants=choice.ahead,
            sizes=lambda joint: batch_sizes(joint, self.sampler.graph, self.x, reference),
            model=CostModel(),
            disabled=(off | {"stages"} if choice.numbered else off) - {"hoist"},
            worth=target.worth,
            is_built=target.is_built,
            joins=target.joins,
            orders=None if choice.orders is None else dict(choice.orders),
            hoists_from=1,
            rounds=target.rounds_in_batches if active.precision == "bf16" else frozenset(),
            place=HOST if self.tier is None else "tier",
        )
        return StagedPlan(self, Plan(run_passes(program, request), target), choice)

    def choices(self, plan: StagedPlan, most: int) -> list[Choice]:
        """All that may be chosen in place of ``plan``, formats times orders; formats alone where that is too many."""
        forms = [
            Choice(ahead, None, numbered)
            for ahead in ((STRUCTURE_AHEAD, ROWS_AHEAD) if is_dense(self.x) else (ROWS_AHEAD,))
            for numbered in ((True,) if isinstance(self.x, Int8Features) else (False, True))
        ]
        names = sorted(plan.plan.compiled.orders)
        if len(forms) * 2 ** len(names) > most:
            return forms
        orders = [tuple(zip(names, taken, strict=True)) for taken in itertools.product(Order, repeat=len(names))]
        return [replace(form, orders=taken) for form in forms for taken in orders]


class StagedPlan:
    """A compiled batch.

    Attributes:
        plan: The calls of the second stage; what the first stage makes is in ``plan.hoisted``.
    """

    def __init__(self, owner: StagedFunction, plan: Plan, choice: Choice) -> None:
        self.plan, self.choice = plan, choice
        self._x = owner.x
        self._owner, self._preparation = owner, _Preparation(owner, plan)
        self._there: _Preparation | None = None  # of batches that are drawn on a device
        self._relocation = Relocation(plan)

    def prepare(self, seeds: Tensor, key: tuple[int, int], draw: Draw | None = None) -> PreparedBatch:
        """The first stage for the seeds, int64 ids, of a batch keyed by (seed, epoch); from any thread.

        ``draw``: what draws in the sampler's place, with the same result.
        """
        begun = time.perf_counter()
        made = self._preparation
        if draw is not None and self._owner.device != self._owner.sampler.graph.device:
            made = self._there = self._there or _Preparation(self._owner, self.plan, self._owner.device)
        rows, values = made.run(seeds, key, draw)
        return PreparedBatch(self, seeds, rows, values, time.perf_counter() - begun)

    def draw(self, seeds: Tensor, key: tuple[int, int]) -> Sample | OpenSample:
        """What the sampler draws in host memory, with the forms of its blocks that the second stage reads.

        Given to :meth:`prepare` as a draw it makes the batch that a draw on the device makes, number for number, since
        the rest of the first stage runs there.
        """
        found = list[Sample | OpenSample]()

        def kept(sampler: NeighborSampler, seeds: Tensor, key: tuple[int, int, int], is_open: bool) -> Any:
            draw = sampler.sample_open if is_open else sampler.sample
            found.append(draw(seeds, seed=key[0], epoch=key[1], stage=key[2]))
            return found[-1]

        self._preparation.run(seeds, key, kept)
        return found[-1]

    def linearize(
        self, batch: PreparedBatch, parameters: Mapping[str, Tensor], seed: int
    ) -> tuple[dict[str, Tensor], Pullback]:
        """Outputs by name, and the function from the gradient of "out" to those of the parameters; it works once."""
        x, seeds = (self._x, batch.seeds) if batch.moved is None else batch.moved
        return self._linearize(x, seeds, batch.values, parameters, seed)

    def over_values(
        self, values: tuple[Any, ...], seeds: Tensor, parameters: Mapping[str, Tensor], seed: int | Tensor
    ) -> tuple[dict[str, Tensor], Pullback]:
        """As :meth:`linearize`, from what a first stage made, wherever that was copied to."""
        return self._linearize(self._x, seeds, values, parameters, seed)

    def _linearize(
        self, x: Features, seeds: Tensor, values: tuple[Any, ...], parameters: Mapping[str, Tensor], seed: int | Tensor
    ) -> tuple[dict[str, Tensor], Pullback]:
        plan = self.plan
        named: dict[str, Any] = {"x": x, "seeds": seeds, "seed": seed, **parameters}
        with torch.no_grad():
            env = plan.bind({name: named[name] for name in plan.fixed}, values)
            tensors = tuple(t if is_half(t := named[name]) else t.contiguous() for name in plan.tensors)
        return linearize(plan, env, tensors)

    @property
    def nodes(self) -> int:
        """Nodes of the whole graph."""
        return self._x.shape[0]

    @property
    def address(self) -> int:
        """Where the rows of features lie."""
        return stored(self._x).data_ptr()

    @property
    def reads_rows_alone(self) -> bool:
        """Whether :meth:`over` is possible: the second stage reads nothing of the whole graph but rows of nodes."""
        return self._relocation.is_possible

    def nodes_read(self, batch: PreparedBatch) -> Tensor:
        """int64, ascending: the nodes whose rows the second stage reads."""
        return self._relocation.nodes(batch.seeds, batch.values)

    def over(self, batch: PreparedBatch, table: Tensor, place: Tensor) -> PreparedBatch:
        """The batch over a table that has the rows of :meth:`nodes_read` alone, that of node i at ``place[i]``."""
        values, seeds = self._relocation.moved(batch.seeds, batch.values, place, table.shape[0])
        return replace(batch, values=values, moved=(table, seeds))

    def preparation_works(self, sizes: Sizes) -> list[Work]:
        """What the first stage does for a batch, but for its draw."""
        return [group_work(group, sizes) for group in self._preparation.groups]

    def draw_work(self, sizes: Sizes, in_turn: bool = False) -> Work:
        """What the draw of a batch does, beside the step of another batch or in turn with it."""
        hops = {value["hop"]: value for value in self._preparation.draws}
        edges = sum(sizes.rows.get(value.struct.edge, 0) for value in hops.values())
        turned = (value.struct.src if value.get("turned") else value.struct.dst for value in hops.values())
        return draw_work(edges, sum(sizes.rows.get(symbol, 0) for symbol in turned), in_turn=in_turn)

    def prepared_bytes(self, sizes: Sizes) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Bytes of the parts that a prepared batch holds, and of those that pass while it is made, draws included."""
        made = self._preparation
        kept = dict.fromkeys(item.value for item in self.plan.hoisted)  # in order, so that the same is found each time
        held = tuple(size for value in kept for size in _held_bytes(value, sizes))
        passing = [*(group.result for group in made.groups), *made.draws]
        gone = tuple(size for value in passing if value not in kept for size in _held_bytes(value, sizes))
        return held, gone if sum(gone) > sum(held) / 2 else tuple(size / 2 for size in held)

    def gathered(self) -> list[Value]:
        """Matrices of rows that either stage copies out of the table of features."""
        second = [group.anchor for group in self.plan.compiled.groups if group.anchor is not None]
        return [v for v in (*self._preparation.computed, *second) if v.op is Op.TAKE_ROWS and v.tensor.dims]


class _Preparation:
    """The calls of the first stage; ``place``: the device that batches are drawn on, where they run then."""

    def __init__(self, owner: StagedFunction, plan: Plan, place: torch.device | None = None) -> None:
        self._sampler, self._place = owner.sampler, place
        wanted = [item.value for item in plan.hoisted]
        first = sorted(wanted, key=lambda value: value.op is not Op.MOVE_START)  # the rest is made while rows move
        part = Program(plan.compiled.program.inputs, tuple((str(i), value) for i, value in enumerate(first)))
        self._slot = {value: index for index, value in enumerate(part.values)}
        self._wanted = [(self._slot[value], forms_of(value, plan.compiled.program)) for value in wanted]
        self.draws = [v for v in part.values if v.op is Op.SAMPLE]
        constant = constant_values(part, ())
        graph = owner.sampler.graph if place is None else on_device(owner.sampler.graph, place)
        named = {"graph": graph, "x": owner.x, MOVER: owner.tier}
        self._base: Slots = [None] * len(part.values)
        for value in part.values:
            if value.op in LEAVES:
                self._base[self._slot[value]] = named.get(value["name"])
            elif value in constant:
                operands = [self._base[self._slot[operand]] for operand in value.inputs]
                self._base[self._slot[value]] = evaluate(value, operands)
        single = all(v.type.dtype == torch.float32 for v in part.values if isinstance(v.type, TensorType))
        fuse = single and _config.current().opt_level >= 3 and not isinstance(owner.x, Int8Features)
        groups = group_values(part, {*constant, *self.draws}, dict.fromkeys(part.values, FORWARD), fuse)
        groups = fold_gathers(part, groups) if fuse else groups
        self.groups = groups
        self.computed = [group.anchor for group in groups if group.anchor is not None]
        self.calls = [lower(group, self._slot) for group in groups]
        self._launches = target_of(graph.device).bind(self.calls).launches
        self._leaves = {v["name"]: self._slot[v] for v in part.inputs if v["name"] in STRUCTURE_AHEAD}

    def run(self, seeds: Tensor, key: tuple[int, int], draw: Draw | None) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """Destinations of every hop, and what the second stage reads."""
        env = list(self._base)
        for name, given in (("seeds", seeds), ("key", key)):
            if name in self._leaves:
                there = given if self._place is None or not isinstance(given, Tensor) else given.to(self._place)
                env[self._leaves[name]] = there
        drawn: dict[bool, Sample | OpenSample] = {}
        rows: tuple[int, ...] = ()
        with torch.no_grad():
            opened = any(value.get("open") for value in self.draws)
            for value in self.draws:
                # an open draw serves all hops but the last, which it does not number
                is_open = opened and (bool(value.get("open")) or value["hop"] < len(value["fanouts"]) - 1)
                sample = drawn.get(is_open) or self._draw(seeds, key, is_open, draw)
                drawn[is_open] = sample
                rows = tuple(block.num_dst for block in reversed(sample.blocks))
                block = block_of(value, sample)
                env[self._slot[value]] = block if self._place is None else on_device(block, self._place)
            with span("structure", "structure"):
                for launch in self._launches:
                    launch(env)
                for slot, form in self._wanted:
                    form(env[slot])
        return rows, tuple(env[slot] for slot, _ in self._wanted)

    def _draw(self, seeds: Tensor, key: tuple[int, int], is_open: bool, other: Draw | None) -> Sample | OpenSample:
        if other is not None:
            return other(self._sampler, seeds, (*key, 0), is_open)
        draw = self._sampler.sample_open if is_open else self._sampler.sample
        return draw(seeds, seed=key[0], epoch=key[1])


def _held_bytes(value: Value, sizes: Sizes) -> tuple[float, ...]:
    """Memory of a value of the first stage, array by array: of a block offsets and edges."""
    if isinstance(value.type, StructType):
        return 8.0 * sizes.rows.get(value.type.dst, 0), 8.0 * sizes.rows.get(value.type.edge, 0)
    if isinstance(value.type, IndexType):
        return (8.0 * sizes.rows.get(str(value.type.rows), 1),)
    return (value_bytes(value, sizes),)


def batch_sizes(program: Program, graph: Graph, x: Features, reference: Sample) -> Sizes:
    """The numbers behind a batch program's symbols, from one numbered batch."""
    rows = {"N": graph.num_nodes, "E": graph.num_edges, "B": reference.batch_size}
    for value in program.values:
        if value.op is Op.SAMPLE:
            block, struct = reference.blocks[-1 - value["hop"]], value.struct
            src, dst = (struct.dst, struct.src) if value.get("turned") else (struct.src, struct.dst)
            rows[dst] = block.num_dst
            rows[src] = graph.num_nodes if value.get("open") else block.num_src
            edges = block.num_edges if value.get("loops") is None else block.without_self_loops().num_edges
            rows[struct.edge] = edges + (block.num_dst if value.get("loops") == "one" else 0)
    nonzeros = {"x": x.nnz} if isinstance(x, SparseFeatures) else {}
    return Sizes(rows, nonzeros)


def sampled_hops(builder: Builder, inputs: Mapping[str, Value], fanouts: Sequence[int]) -> list[Value]:
    """The blocks of one draw, the seeds' own first."""
    operands = (inputs["graph"], inputs["seeds"], inputs["key"])
    return [builder.add(Op.SAMPLE, *operands, fanouts=tuple(fanouts), hop=hop) for hop in range(len(fanouts))]
