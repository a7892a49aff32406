"""A plan: the calls of a compiled program in order, with the slots they read, write and free.

Comes in: a :class:`Compiled` program. Goes out: a :class:`Plan` that runs forward and backward over a list of slots.
A slot is emptied after its last reader, and its memory returns to the pool at once. What is kept from forward to
backward is exactly what a backward call reads. Called by ``function.py``; made by ``compile.py``.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from graphweft import _config
from graphweft._memory import POOL
from graphweft._trace import active, span
from graphweft.cost import Work, winners_pay
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Program, Value, number, structural_key
from graphweft.ir.residency import Residency, StructType, TensorType
from graphweft.passes.edges import cover_edges
from graphweft.passes.fuse import BACKWARD, FORWARD, group_values
from graphweft.passes.groups import Group
from graphweft.passes.hoist import frontier
from graphweft.passes.pipeline import Compiled
from graphweft.passes.work import Sizes
from graphweft.runtime.constants import is_consumed
from graphweft.runtime.feature_types import in_full, is_half
from graphweft.runtime.half_rows import HALF, half_attribute, makes_half, may_be_half, readers_of, stores_half
from graphweft.runtime.kernel_call import KernelCall, Slot, Slots, calls_text
from graphweft.runtime.lower import lower
from graphweft.runtime.profile import PROFILE
from graphweft.runtime.target import Launch, Target
from graphweft.storage.feature import is_dense

# operands of which only the shape is read; keeping a shape costs nothing
_SHAPE_ONLY = {Op.SCATTER_ROWS: 2, Op.FILL_ROWS: 1}
_PER_TYPE = (Residency.NTYPE, Residency.ETYPE)  # as small as what has no rows
_IN_PLACE = (Op.EDGE_SOFTMAX, Op.EDGE_SOFTMAX_GRAD)
_ROWS_MADE = (Op.MATMUL, Op.SPMM)
# read neither form of a graph, but its pairs
BY_PAIRS = frozenset({Op.TYPED_SPMM, Op.TYPED_SDDMM, Op.TYPED_OUTER})


@dataclass(frozen=True)
class HoistedValue:
    """A value computed once: its slot, its expression, and the inputs it depends on."""

    slot: int
    value: Value
    key: str
    leaves: tuple[str, ...]
    is_output: bool = False  # a kept value is not the caller's to change
    is_half: bool = False  # it is kept in bfloat16

    def text(self, names: Mapping[Value, str]) -> str:
        """``%3 = spmm of graph, x : src[N x 16] float32``, with the values' ``names``."""
        made = f"{names[self.value]} = {self.value.op.name.lower()} of {', '.join(self.leaves)} : {self.value.type}"
        return f"{made} kept in bfloat16" if self.is_half else made


class _Part(NamedTuple):
    """Launches that make one hoisted value: the names of inputs by slot, and the slot of the value."""

    names: tuple[str | None, ...]
    launches: tuple[Launch, ...]
    slot: int
    forms: Callable[[Any], object]


_BY_COLUMN = frozenset({Op.SPMM, Op.ROW_SCALE, Op.SCALE})  # of their rows, the columns are not mixed


class Plan:
    """Calls of one compiled program.

    Attributes:
        compiled: What it was made from.
        tensors: Names of the dense inputs that calls read, in the order ``run_forward`` takes them.
        fixed: Names of the other inputs (graphs, ids, seeds, sparse features).
        hoisted: Values to be in their slots before the first call.
        saved: Slots kept for the backward calls.
        forward, backward: The calls, as data.
        target: Who runs them.
        walks: First results of the calls that run generated kernels over edges.
        halves: Slots of results that are stored in bfloat16.
        source: The forward program before any pass, by which gradients are differentiated again.
        rest: Inputs of ``source`` that are not among ``tensors``.
        derived: What ``second.py`` has derived from ``source``.
    """

    def __init__(self, compiled: Compiled, target: Target, source: Program | None = None) -> None:
        program, self.target = compiled.program, target
        self.compiled = compiled
        self._slot = {value: index for index, value in enumerate(program.values)}
        self.width = len(program.values)
        inputs = [v for v in program.inputs if not v["name"].startswith("d:")]
        read = {operand for group in compiled.groups for operand in group.operands()}
        read |= {value for _, value in program.outputs}
        self.tensors = tuple(v["name"] for v in inputs if _dense(v) and v in read)
        self.source, self.derived = source, dict[Any, Any]()
        self.rest = tuple(v["name"] for v in (source.inputs if source else ()) if v["name"] not in self.tensors)
        self.fixed = tuple(v["name"] for v in inputs if not _dense(v) and v in read)
        self._place = {v["name"]: self._slot[v] for v in program.inputs}
        self.outputs = tuple((n, self._slot[v]) for n, v in program.outputs if not n.startswith("grad:"))
        grads = {n.removeprefix("grad:"): self._slot[v] for n, v in program.outputs if n.startswith("grad:")}
        self.gradients = tuple(grads.get(name) for name in self.tensors)
        self.seeds = tuple((v["name"][2:], self._slot[v]) for v in program.inputs if v["name"].startswith("d:"))
        self.hoisted = tuple(self._hoist(program))
        self._parts: dict[tuple[int, bool], _Part] = {}
        groups, pairs = _pair_extrema(compiled.groups)
        forward = [g for g in groups if compiled.phase[g.result] == FORWARD]
        backward = _contractions_first([g for g in groups if compiled.phase[g.result] == BACKWARD])
        self.saved = self._saved(backward)
        self.saved_shapes = frozenset(self.saved) - self._read_as_numbers(backward)
        self.saved_outputs = tuple(sorted({slot for _, slot in self.outputs} & set(self.saved)))
        self.forward = self._calls(forward, pairs, keep={*self.saved, *(s for _, s in self.outputs)})
        self.backward = self._calls(backward, pairs, keep={s for s in self.gradients if s is not None})
        self._readers = readers_of((*self.forward, *self.backward))
        self.halves = frozenset[int]()
        self.forward, self.backward = self._in_half(self.forward), self._in_half(self.backward)
        self.hoisted = tuple(map(self._rounded, self.hoisted))
        self.forward, self.backward = self._counted(self.forward), self._counted(self.backward)
        launches, self.walks = self.target.bind((*self.forward, *self.backward))
        self._forward = tuple(zip(launches, self.forward, strict=False))
        self._backward = tuple(zip(launches[len(self.forward) :], self.backward, strict=True))
        self._scaled = self._scaled_first()

    def interprets(self, call: KernelCall) -> bool:
        """Whether a call has no kernel, so that its body is run."""
        return call.value not in self.walks and self.target.launcher(call) is None

    @property
    def text(self) -> str:
        """The calls, one a line; equal texts mean equal plans."""
        values = self.compiled.program.values
        hoisted = [item.text(number(values)) for item in self.hoisted]
        parts = {
            "computed once": "\n".join(hoisted),
            "forward": calls_text(self.forward, values),
            "backward": calls_text(self.backward, values),
        }
        return "\n".join(f"{name}:\n{part}" for name, part in parts.items() if part)

    def dtype_of(self, output: str) -> torch.dtype:
        """Dtype of an output."""
        return dict(self.compiled.program.outputs)[output].tensor.dtype

    def forgets(self, output: str) -> bool:
        """Whether no backward call reads an output's numbers."""
        slot = dict(self.outputs)[output]
        return slot not in self.saved or slot in self.saved_shapes

    def bind(self, fixed: dict[str, Any], hoisted: tuple[Any, ...]) -> Slots:
        """Slots with everything but the dense inputs in place."""
        env: Slots = [None] * self.width
        for name in self.fixed:
            env[self._place[name]] = fixed[name]
        for item, result in zip(self.hoisted, hoisted, strict=True):
            env[item.slot] = result
        return env

    def run_forward(self, env: Slots, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Outputs in order; afterwards ``env`` holds what the backward calls read."""
        for name, tensor in zip(self.tensors, tensors, strict=True):
            env[self._place[name]] = tensor
        if self._scaled is not None and is_consumed(env[self._scaled]):
            run_steps(self._forward[self.scale_over(env) :], env)
        elif PROFILE.active or active() is not None:
            run_steps(self._forward, env)
        else:  # a loop here as well as in run_steps: a frame less between a call and its kernel
            for launch, call in self._forward:
                launch(env)
                for index in call.frees:
                    env[index] = None
        return tuple(env[slot] for _, slot in self.outputs)

    def run_forward_seen(self, env: Slots, tensors: tuple[Any, ...], seen: Callable[[str, Any], None]) -> None:
        """As :meth:`run_forward`; ``seen`` gets every output by name as soon as it is there, while caches hold it."""
        for name, tensor in zip(self.tensors, tensors, strict=True):
            env[self._place[name]] = tensor
        names = {slot: name for name, slot in self.outputs}
        for step in self._forward:
            run_steps((step,), env)
            for made in step[1].writes:
                if made.at in names:
                    seen(names[made.at], env[made.at])

    @property
    def scales(self) -> bool:
        """Whether the first call multiplies the rows of an input that no other call reads, and does nothing else."""
        return self._scaled is not None

    def scale_over(self, env: Slots) -> int:
        """Runs the first call, where it :attr:`scales` an input that its owner has given up, in the memory of that.

        Returns how many calls have been run.
        """
        if self._scaled is None or PROFILE.active:  # which runs calls again
            return 0
        with POOL.handing(env[self._scaled]):
            run_steps(self._forward[:1], env)
        return 1

    def _scaled_first(self) -> int | None:
        """The slot of an input whose rows the first call multiplies, to be read by no other."""
        call = self.forward[0] if self.forward else None
        if call is None or call.kernel != "rows" or len(call.writes) != 1:
            return None
        slot = call.reading("x")
        last = slot in call.frees and slot in {self._place[name] for name in self.tensors}
        return slot if last and {read.role for read in call.reads} == {"x", "row_scale"} else None

    def steps(self, backward: bool) -> tuple[tuple[Launch, KernelCall], ...]:
        """The calls of one phase with their launchers, for whoever runs several plans as one."""
        return self._backward if backward else self._forward

    def place(self, name: str) -> int:
        """The slot of an input."""
        return self._place[name]

    def kept(self, env: Slots) -> Slots:
        """The slots that backward calls read, but for dense inputs and outputs, which torch keeps."""
        others = {self._place[name] for name in self.tensors} | set(self.saved_outputs)
        kept: Slots = [None] * self.width
        for slot in self.saved:
            if slot in self.saved_shapes:
                kept[slot] = _shape_of(env[slot])
            elif slot not in others:
                kept[slot] = env[slot]
        return kept

    def read_backward(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The dense inputs, empty in the place of those that no backward call reads."""
        read = {slot for slot in self.saved if slot not in self.saved_shapes}
        given = zip(self.tensors, tensors, strict=True)
        return tuple(t if self._place[name] in read else t.new_empty(0) for name, t in given)

    def restore(self, env: Slots, tensors: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Puts back what torch kept."""
        for name, tensor in zip(self.tensors, tensors, strict=True):
            if env[self._place[name]] is None:
                env[self._place[name]] = tensor
        for slot, tensor in zip(self.saved_outputs, outputs, strict=True):
            env[slot] = tensor

    def run_backward(self, env: Slots, gradients: dict[str, Any]) -> tuple[Any, ...]:
        """Gradients of the dense inputs in order, None where there is none."""
        for name, slot in self.seeds:
            env[slot] = gradients.pop(name)
        run_steps(self._backward, env)
        return tuple(None if slot is None else env[slot] for slot in self.gradients)

    def run_backward_asking(self, env: Slots, ask: Callable[[str], Any]) -> tuple[Any, ...]:
        """As :meth:`run_backward`; ``ask`` is called for the gradient of an output where a call is about to read it."""
        waiting = {slot: name for name, slot in self.seeds}
        for step in self._backward:
            for read in step[1].reads:
                if read.at in waiting:
                    env[read.at] = ask(waiting.pop(read.at))
            run_steps((step,), env)
        return tuple(None if slot is None else env[slot] for slot in self.gradients)

    def evaluate_hoisted(self, item: HoistedValue, leaves: dict[str, Any], over: str | None = None) -> Any:
        """Computes a hoisted value from the inputs it depends on, by the same kernels.

        ``over``: the input whose memory the value takes, where :meth:`fits_over` says so.
        """
        key = item.slot, over is not None
        if key not in self._parts:
            self._parts[key] = self._part(item, over is not None)
        names, launches, slot, forms = self._parts[key]
        if is_half(leaves.get("x")) and not self.takes_half:
            leaves = {**leaves, "x": in_full(leaves["x"])}
        env: Slots = [None if name is None else leaves[name] for name in names]
        for launch in launches:
            launch(env)
        forms(env[slot])  # now, so that they do not come between the tensors of a step
        return env[slot]

    def _part(self, item: HoistedValue, over: bool) -> _Part:
        """The launches that make one hoisted value."""
        part, calls = self.preparation(item, over)
        slots = {value: index for index, value in enumerate(part.values)}
        names = tuple(v["name"] if v.op in LEAVES else None for v in part.values)
        forms = forms_of(item.value, self.compiled.program, self.compiled.hoisted if self.target.blocking else None)
        return _Part(names, self.target.bind(calls).launches, slots[item.value], forms)

    def preparation(self, item: HoistedValue, over: bool = False) -> tuple[Program, list[KernelCall]]:
        """The program of one hoisted value and the calls that make it, over slots in the order of its values."""
        part = Program(tuple(v for v in self.compiled.program.inputs if v["name"] in item.leaves), (("", item.value),))
        slots = {value: index for index, value in enumerate(part.values)}
        single = all(v.type.dtype == torch.float32 for v in part.values if isinstance(v.type, TensorType))
        phase = dict.fromkeys(part.values, FORWARD)
        rest = functools.partial(group_values, part, phase=phase, fuse=single)
        groups = cover_edges(part, set(), phase, rest) if self.compiled.walks else rest(set())
        calls = [lower(group, slots, over=over and group.result is item.value) for group in groups]
        if item.is_half:
            calls[-1] = replace(calls[-1], attrs=(*calls[-1].attrs, HALF))
        return part, calls

    def _rounded(self, item: HoistedValue) -> HoistedValue:
        """``item``, kept in bfloat16 where the plan asks for that and all that read it take such rows."""
        if "kept" not in self.compiled.rounds or item.is_output or not isinstance(item.value.type, TensorType):
            return item
        if not may_be_half(item.value, self._readers, self.target.takes_half):
            return item
        is_half = makes_half(self.preparation(item)[1], item.value)
        return replace(item, is_half=True, key=f"{item.key} bf16") if is_half else item

    def _in_half(self, given: tuple[KernelCall, ...]) -> tuple[KernelCall, ...]:
        """The calls, which store results in bfloat16 where all that read them take such rows; their slots are noted.

        Products round such rows anyway, so that only sums over edges of them change. Sums over edges of rows that lie
        so are stored so.
        """
        wanted = {slot for _, slot in self.outputs} | set(self.gradients)
        calls, halves = list(given), set(self.halves)
        for index, call in enumerate(calls if "results" in self.compiled.rounds else ()):
            if self.target.makes_half(call) or (call.kernel == "spmm" and call.operand("x") in halves):
                made = [s for s in call.writes if s.at not in wanted and self._stores_half(s)]
                calls[index] = replace(call, attrs=(*call.attrs, *map(half_attribute, made)))
                halves |= {slot.at for slot in made}
            elif call.kernel == "own_rows" and call.operand("x1") in halves:
                halves.add(call.writes[0].at)
        self.halves = frozenset(halves)
        return tuple(calls)

    def _stores_half(self, slot: Slot) -> bool:
        return stores_half(slot, self._readers, self.target.takes_half)

    @functools.cached_property
    def _lies_half(self) -> frozenset[int]:
        """Slots of rows in bfloat16, hoisted ones among them."""
        return self.halves | {item.slot for item in self.hoisted if item.is_half}

    def works_at(self, sizes: Sizes) -> dict[Value, tuple[Work, ...]]:
        """What the kernel of every group does, by its result, with rows as they lie."""
        values = self.compiled.program.values
        return self.compiled.works_at(replace(sizes, halves={values[slot] for slot in self._lies_half}))

    def _counted(self, calls: tuple[KernelCall, ...]) -> tuple[KernelCall, ...]:
        """The calls, which tell which of their rows lie in bfloat16 and count them so."""
        if not self._lies_half:
            return calls
        works, found = self.works_at(self.compiled.sizes), list[KernelCall]()
        for call in calls:
            halves = self._lies_half & {slot.at for slot in (*call.reads, *call.writes)}
            done = next((works[slot.value] for slot in call.writes if slot.value in works), call.works)
            found.append(replace(call, halves=halves, works=done))
        return tuple(found)

    @functools.cached_property
    def takes_half(self) -> bool:
        """Whether all that read the features take rows in bfloat16; else they are widened before."""
        x = next((v for v in self.compiled.program.inputs if v["name"] == "x"), None)
        parts = [self.preparation(item)[1] for item in self.hoisted if "x" in item.leaves]
        readers = readers_of((*self.forward, *self.backward, *(call for calls in parts for call in calls)))
        return x is None or may_be_half(x, readers, self.target.takes_half)

    def keeps_columns(self, item: HoistedValue, name: str) -> bool:
        """Whether every column of ``item`` follows from the same column of the input ``name``."""
        part = Program((), (("", item.value),)).values
        leaf = next((v for v in part if v.op is Op.INPUT and v["name"] == name), None)
        reached = {leaf}
        for value in part:
            if not reached.isdisjoint(value.inputs):
                if value.op not in _BY_COLUMN or not reached.isdisjoint(value.inputs[2:]):
                    return False
                reached.add(value)
        return leaf is not None and len(item.value.tensor.dims) == 1 and item.value in reached

    def fits_over(self, item: HoistedValue, name: str) -> bool:
        """Whether ``item`` is one aggregation of the input ``name``, which nothing else reads, of the same shape."""
        part = Program((), (("", item.value),))
        groups = group_values(part, set(), dict.fromkeys(part.values, FORWARD), fuse=True)
        leaf = next((v for v in part.values if v.op is Op.INPUT and v["name"] == name), None)
        readers = [group for group in groups if leaf in group.operands()]
        last = groups[-1]
        return (
            readers == [last]
            and last.result is item.value
            and last.anchor is not None
            and last.anchor.op is Op.SPMM
            and (last.scaled or last.anchor.inputs[1]) is leaf
            and leaf is not None
            and last.result.tensor.dims == leaf.tensor.dims
            and last.result.tensor.rows == leaf.tensor.rows
            and leaf.tensor.dtype == torch.float32
            and not item.is_half
        )

    def _hoist(self, program: Program) -> list[HoistedValue]:
        found, outputs = [], {slot for _, slot in self.outputs}
        off = _config.current().disabled_kernels  # other kernels may give other last bits
        maker = f"{self.target.name} without {off}" if off else self.target.name
        for value in frontier(program, self.compiled.hoisted):
            leaves = Program((), (("", value),)).values
            names = tuple(sorted({leaf["name"] for leaf in leaves if leaf.op in LEAVES}))
            key = f"{maker} {structural_key(value)}"
            found.append(HoistedValue(self._slot[value], value, key, names, self._slot[value] in outputs))
        return found

    def _saved(self, backward: list[Group]) -> tuple[int, ...]:
        """Slots that backward calls read and do not make themselves."""
        made = {v for group in backward for v in (group.result, *group.taps)}
        seeds = {slot for _, slot in self.seeds}
        read: set[int] = set()
        for group in backward:
            read.update(self._slot[v] for v in group.operands() if v not in made)
        return tuple(sorted(read - seeds))

    def _read_as_numbers(self, groups: list[Group]) -> set[int]:
        """Slots whose elements, not just their shape, some call reads."""
        read: set[int] = set()
        for group in groups:
            skipped = _SHAPE_ONLY.get(group.anchor.op) if group.anchor is not None else None
            operands = group.operands()
            read.update(self._slot[v] for i, v in enumerate(operands) if i != skipped)
        return read

    def _calls(self, groups: list[Group], pairs: dict[Value, Value], keep: set[int]) -> tuple[KernelCall, ...]:
        last: dict[int, int] = {}
        made_here = {group.result for group in groups if _is_new(group)}
        for index, group in enumerate(groups):
            for value in (*group.operands(), group.result, *group.taps):
                last[self._slot[value]] = index
        calls = []
        for index, group in enumerate(groups):
            frees = tuple(slot for slot, at in last.items() if at == index and slot not in keep)
            spent, works = _spent_operand(group, self.target.norms_in_place), self.compiled.works[group.result]
            over = spent in made_here and self._slot[spent] in frees
            call = lower(
                group,
                self._slot,
                pairs.get(group.result),
                works=works,
                frees=frees,
                over=over,
                rounds=self.compiled.rounds,
            )
            calls.append(call)
        return tuple(calls)


def run_steps(steps: Sequence[tuple[Launch, KernelCall]], env: Slots) -> None:
    """Call after call, timed where somebody asks; a slot is emptied after its last reader."""
    is_traced = active() is not None
    for launch, call in steps:
        if PROFILE.active:
            PROFILE.time(call.label, call.work, functools.partial(_rerun, launch, call, env), once=call.over)
        elif is_traced:
            with span(call.label, "kernel", kind=call.work.kind, amount=call.work.amount, bytes=call.work.bytes):
                launch(env)
        else:
            launch(env)
        for index in call.frees:
            env[index] = None


def _rerun(launch: Launch, call: KernelCall, env: Slots) -> None:
    """The call, after its former result has gone."""
    for slot in call.writes:
        env[slot.at] = None
    launch(env)


class Form(enum.Enum):
    """What calls read of a graph: nothing; rows without ids of edges; with them; those of its reverse as well."""

    NONE, ROWS, EDGES, BOTH = range(4)


_FORMS: dict[Form, Callable[[Any], object]] = {
    Form.NONE: lambda made: None,
    Form.ROWS: lambda made: made.csc_structure,
    Form.EDGES: lambda made: made.csc,
    Form.BOTH: lambda made: made.csc if winners_pay(made.num_dst, made.num_edges) else (made.csc, made.reverse().csc),
}


def forms_of(value: Value, program: Program, before: Collection[Value] | None = ()) -> Callable[[Any], object]:
    """Makes the compressed forms of a graph that the calls of ``program`` will read.

    ``before``: values that are made before the calls; None: nothing is made ahead.
    """
    return _FORMS[Form.NONE if before is None else form_of(value, program, before)]


def form_of(value: Value, program: Program, before: Collection[Value]) -> Form:
    """The compressed forms of a graph that the calls of ``program`` will read; ``before`` as for :func:`forms_of`."""
    if not isinstance(value.type, StructType):
        return Form.NONE
    readers = [v for v in program.users()[value] if v not in before and v.op not in BY_PAIRS]
    if not readers:
        return Form.NONE
    if any(reader.op is Op.SPMM_MAX_GRAD for reader in readers):
        return Form.BOTH
    if all(reader.op is Op.SPMM and len(reader.inputs) == 2 for reader in readers):
        return Form.ROWS
    return Form.EDGES


def _shape_of(item: Any) -> Any:
    """A tensor of the same shape over one element: carries the shape, keeps no memory."""
    return item.new_empty(()).expand(item.shape) if is_dense(item) else item


def _dense(value: Value) -> bool:
    """Whether an input is passed as a torch tensor that may want a gradient."""
    return value.op is Op.INPUT and hasattr(value.type, "dims") and not value.tensor.sparse


def _contractions_first(groups: list[Group]) -> list[Group]:
    """The same groups with every contraction over rows right after its operands.

    Its result is small, and the rows that it reads are still near and may be freed after it.
    """
    ordered: list[Group] = []
    left = list(groups)
    while left:
        to_come = {value for group in left for value in (group.result, *group.taps)}
        small = (
            index
            for index, group in enumerate(left)
            if isinstance(group.result.type, TensorType)
            and (group.result.type.rows is None or group.result.type.residency in _PER_TYPE)
            and to_come.isdisjoint(group.operands())
        )
        ordered.append(left.pop(next(small, 0)))
    return ordered


def _spent_operand(group: Group, norms: bool) -> Value | None:
    """What a call may write over where it is made for it alone.

    The numbers of edges of a softmax or its gradient; with ``norms`` the gradient that a norm is given.
    """
    if group.anchor is None or group.anchor is not group.result:
        return None
    if group.anchor.op is Op.BATCH_NORM_GRAD:
        return group.anchor.inputs[2] if norms else None
    if group.anchor.op in _IN_PLACE and group.anchor.inputs[-1].op is Op.TYPED_SDDMM:
        return group.anchor.inputs[-1]
    return None


def _is_new(group: Group) -> bool:
    """Whether a call's result lies in memory of its own, and is one that others may write over."""
    anchor = group.anchor
    if anchor is None:
        return False
    return anchor.op in _ROWS_MADE or (anchor.op is Op.TYPED_SDDMM and anchor is group.result)


def _pair_extrema(groups: list[Group]) -> tuple[list[Group], dict[Value, Value]]:
    """A maximum and its arg over the same operands become one call, in the forward phase; a second arg stays alone."""
    extrema = {(g.anchor.inputs, g.anchor["kind"]): g.result for g in groups if g.anchor and g.anchor.op is Op.SPMM_MAX}
    pairs: dict[Value, Value] = {}
    kept = []
    for group in groups:
        anchor = group.anchor
        partner = extrema.get((anchor.inputs, anchor["kind"])) if anchor and anchor.op is Op.SPMM_ARG else None
        if partner is None or partner in pairs:
            kept.append(group)
        else:
            pairs[partner] = group.result
    return kept, pairs


__all__ = ["BY_PAIRS", "HoistedValue", "Plan", "forms_of", "run_steps"]
