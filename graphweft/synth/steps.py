"""A training run as a list of C++ statements over named buffers.

Comes in: the plans of a step and of an evaluation. Goes out: :class:`Steps`: statements in order, each with what it
does, its buffers with their lifetimes, and the graphs that they read. Called by ``model_text.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from graphweft._errors import ConfigError
from graphweft.codegen.loops import RowNest
from graphweft.cost import winners_pay
from graphweft.graph.stretches import stretches_of
from graphweft.ir.ops import Op
from graphweft.ir.program import Value, number, structural_key
from graphweft.ir.residency import StructType, TensorType
from graphweft.runtime.attention import Attention, Score
from graphweft.runtime.kernel_call import KernelCall
from graphweft.runtime.plan import Plan
from graphweft.runtime.sparse import PANEL_ROW, wants_panel
from graphweft.synth.arena import ALIGNMENT, Lifetime, place
from graphweft.synth.operands import ALWAYS, Buffer, Table
from graphweft.synth.plans import StepPlans
from graphweft.synth.statements import print_call

_STRUCTURE = {Op.WITHOUT_LOOPS: "loopless", Op.ONE_LOOP: "looped", Op.REVERSE: "turned", Op.TAKE_DST: "into_train"}
_WORDS = {
    "spmm": "sum",
    "spmm_self": "sum",
    "spmm_max": "extreme",
    "spmm_max_grad": "routed",
    "matmul": "product",
    "sparse_matmul": "product",
    "matmul_terms": "product",
    "contract": "contraction",
    "dropout": "kept",
    "take_rows": "taken",
    "scatter_rows": "scattered",
    "scale": "scaled",
    "mul_scalar": "scaled",
    "in_degree": "degree",
    "inverse_degree": "factor",
    "reduce": "degree",
    "add": "total",
    "add_const": "shifted",
    "pow": "factor",
    "attention": "attended",
    "attention_grad": "routed",
    "einsum": "by_head",
    "ewise": "elements",
    "row_nest": "elements",
    "batch_norm": "normed",
    "normalise": "normed",
    "batch_norm_grad": "normed",
    "row_sum": "row_sum",
    "row_add": "shifted",
    "col_scale": "scaled",
    "mul": "multiplied",
    "fill_cols": "filled",
    "sum_dims": "over_heads",
    "expand": "by_head",
}
_TAKEN = "features of train"  # sparse ones, in the place of a buffer
_FORMS = {
    "in_edges": "edges",
    "in_edges_in_order": "ordered_edges",
    "in_edges_by_stretches": "summed_edges",
    "in_edges_in_order_by_stretches": "compared_edges",
    "weighted_in_edges": "weighted_edges",
    "out_edges": "edges_back",
    "out_edges_in_order": "ordered_edges_back",
    "out_edges_side_by_side": "out_edges",
}


@dataclass(frozen=True)
class Statement:
    """What a step does, in words, and the C++ that does it."""

    words: str
    lines: tuple[str, ...]
    made: tuple[str, ...] = ()  # names of the buffers that it writes


@dataclass
class Steps:
    """A program but for its text.

    Attributes:
        prepare, forward, backward, evaluation: Statements in order.
        graphs: C++ expressions of graphs by name, in the order in which they are made.
        forms: Compressed forms by name: the graph's name and the function that gives it.
        table: All buffers, with their lifetimes.
        offsets: Bytes into the arena by buffer.
        arena_bytes: Size of the arena.
        columns: Of all buffers of nodes together, where a program is for any number of nodes: those then have offsets
            by columns, and a room of their own. None where the arena has them, too.
        parameters: Buffers of parameters and of the model's other tensors by their name in the model.
        gradients: Buffers of gradients by the name of the parameter.
        statistics: Means and variances that each batch norm made of its rows, by the name of the norm.
        moments: What the optimiser remembers of each parameter that it moves.
        logits: The matrix that the loss reads; its gradient is in ``d_logits``, which may be the same.
        d_logits: As above.
        eval_logits: The logits of an evaluation.
        draws: Whether a step draws random numbers.
        by_column: Whether sparse features are read by column.
        takes_features: Whether a step reads the training nodes' rows of sparse features.
        nests: Functions of elements by their name.
        heads: Heads that kernels are called for: how many, their channels, and whether they may share them.
    """

    plans: StepPlans
    table: Table
    prepare: list[Statement] = field(default_factory=list)
    forward: list[Statement] = field(default_factory=list)
    backward: list[Statement] = field(default_factory=list)
    evaluation: list[Statement] = field(default_factory=list)
    graphs: dict[str, str] = field(default_factory=dict)
    forms: dict[str, tuple[str, str]] = field(default_factory=dict)
    parameters: dict[str, Buffer] = field(default_factory=dict)
    gradients: dict[str, Buffer] = field(default_factory=dict)
    statistics: dict[str, Buffer] = field(default_factory=dict)
    moments: dict[str, tuple[Buffer, ...]] = field(default_factory=dict)
    logits: str = ""
    d_logits: str = ""
    eval_logits: str = ""
    draws: bool = False
    by_column: bool = False
    takes_features: bool = False
    nests: dict[str, RowNest] = field(default_factory=dict)
    heads: set[tuple[int, int, bool]] = field(default_factory=set)
    offsets: dict[str, int] = field(default_factory=dict)
    arena_bytes: int = 0
    columns: int | None = None


class Manner(NamedTuple):
    """How statements are written for a target.

    Attributes:
        any_size: For a number of nodes that is not known yet.
        panels: Products over edges may want room for a copy of part of their rows.
        implicit: Gradients by sparse features read them by row, so that they are not kept by column.
        on_device: Gradients of attention that is scored by products of rows have room for numbers of every edge.
        edges_bring_weights: Weights lie beside the edges of every form, not in one list by edge number.
        stretches: Sums may read edges by stretches of columns.
        winners: Gradients of extrema may read no edges, only where each value came from.
    """

    any_size: bool = False
    panels: bool = True
    implicit: bool = False
    on_device: bool = False
    edges_bring_weights: bool = False
    stretches: bool = True
    winners: bool = True


def steps_of(plans: StepPlans, manner: Manner | None = None) -> Steps:
    """All statements of a program. Raises: ConfigError for a part that programs do not have."""
    return _Walk(plans, manner or Manner()).run()


def prediction_steps(plans: StepPlans) -> Steps:
    """All statements of a prediction on a graph of any size. Raises: as :func:`steps_of`."""
    return _Walk(plans, Manner(any_size=True, panels=False, stretches=False)).predict()


class _Walk:
    """Goes over the calls in the order of a run and keeps time; one step a call."""

    def __init__(self, plans: StepPlans, manner: Manner) -> None:
        rows = plans.sizes.rows
        symbols = {"V": ("nodes", rows["V"]), "R": ("train_rows", rows.get("R", 0))}
        self.steps = Steps(plans, Table(symbols))
        self.plans, self.now, self._manner = plans, 0, manner
        self.implicit = manner.implicit
        self._given = ""  # a buffer that the caller has
        self._kept: dict[str, Any] = {}  # what was prepared, by the structure of its expression
        self._bound: dict[Value, Any] = {}
        self._names: Mapping[Value, str] = {}
        self._wanted: dict[Value, str] = {}
        self._prefix = ""

    def run(self) -> Steps:
        """Everything, then a place for every buffer."""
        steps, plans = self.steps, self.plans
        self._add_parameters()
        self._add_moments()
        for plan in (plans.step, plans.evaluation):
            self._open(plan)
            self._prepare(plan)
        prepared = self.now
        self._open(plans.step)
        outputs = dict(plans.step.compiled.program.outputs)
        self._wanted = {v: f"d_{_identifier(n[5:])}" for n, v in outputs.items() if n.startswith("grad:")}
        self._wanted[outputs["out"]] = "logits"
        steps.forward = self._print(plans.step.forward)
        self._add_loss(outputs["out"])
        self._prefix = "d_"
        steps.backward = self._print(plans.step.backward)
        self.now += 1
        for name, value in outputs.items():
            if name.startswith("grad:") and name[5:] in steps.moments:
                steps.gradients[name[5:]] = self._read(value)
            if name.endswith(".stats"):
                steps.statistics[name.removesuffix(".stats")] = self._read(value)
        self._evaluate()
        self._settle(prepared)
        return steps

    def predict(self) -> Steps:
        """What is computed of a graph, then what is computed of its features."""
        steps, plan = self.steps, self.plans.evaluation
        self._given = "x"
        self._add_parameters(counters=False)
        self._open(plan)
        self._prepare(plan, lambda part: "x" not in part)
        prepared = self.now
        of_graph, steps.prepare = steps.prepare, []
        self._prepare(plan, lambda part: "x" in part)
        of_features, steps.prepare = steps.prepare, of_graph
        self._evaluate("logits", "")
        steps.evaluation = [*of_features, *steps.evaluation]
        self._settle(prepared)
        return steps

    def _add_parameters(self, counters: bool = True) -> None:
        """All tensors of the model, with or without those that count."""
        for name, shape in self.plans.shapes.items():
            is_counter = name in self.plans.counters
            if is_counter and not counters:
                continue
            ctype = "int64_t" if is_counter else "float"
            self.steps.parameters[name] = made = self.steps.table.add(_identifier(name), None, shape, 0, ctype)
            made.last = ALWAYS

    def _add_moments(self) -> None:
        """State of the optimiser; of SGD without momentum none."""
        is_adam = "betas" in self.plans.groups[0]
        for group in self.plans.groups:
            for name in group["names"]:
                shape, base = self.plans.shapes[name], _identifier(name)
                wanted = (("mean", shape), ("square", shape), ("steps", ())) if is_adam else ()
                found = [self.steps.table.add(f"{base}_{word}", None, tuple(dims), 0) for word, dims in wanted]
                for buffer in found:
                    buffer.last = ALWAYS
                self.steps.moments[name] = tuple(found)

    def _add_loss(self, out: Value) -> None:
        """The gradient by the logits, over them where no backward call reads those."""
        steps, plan = self.steps, self.plans.step
        self.now += 1
        logits = self._read(out)
        made = logits
        if not plan.forgets("out"):
            made = steps.table.add("d_logits", out.tensor.rows, out.tensor.dims, self.now)
        steps.logits, steps.d_logits = logits.name, made.name
        seed = next(v for v in plan.compiled.program.inputs if v["name"] == "d:out")
        self._bound[seed] = made

    def _evaluate(self, name: str = "eval_logits", prefix: str = "eval_") -> None:
        """The statements of an evaluation; its logits are read after it."""
        steps, plan = self.steps, self.plans.evaluation
        self._open(plan)
        out = dict(plan.compiled.program.outputs)["out"]
        self._wanted, self._prefix = {out: name}, prefix
        steps.evaluation = self._print(plan.forward)
        logits = self._read(out)
        logits.last, steps.eval_logits = ALWAYS, logits.name

    def _settle(self, prepared: int) -> None:
        """What was prepared and is read in epochs stays; then every buffer gets its place."""
        self._drop_unread_graphs()
        buffers = list(self.steps.table.buffers.values())
        for buffer in buffers:
            if buffer.first <= prepared < buffer.last:
                buffer.last = ALWAYS
        if self._manner.any_size:
            self._place_by_columns(buffers)
            return
        places = self._shared_places(buffers)
        offsets, self.steps.arena_bytes = place([_united(shared) for shared in places])
        self.steps.offsets = {b.name: at for shared, at in zip(places, offsets, strict=True) for b in shared}

    def _shared_places(self, buffers: Sequence[Buffer]) -> list[list[Buffer]]:
        """Buffers that take each other's place, one after the other."""
        found: dict[str, list[Buffer]] = {}
        for buffer in buffers:
            below = self.steps.table.buffers.get(buffer.over)
            if below is not None and below.last == buffer.first and below.nbytes == buffer.nbytes:
                found[buffer.name] = found[below.name]
                found[below.name].append(buffer)
            else:
                found[buffer.name] = [buffer]
        return list({id(shared): shared for shared in found.values()}.values())

    def _drop_unread_graphs(self) -> None:
        """Graphs that no statement reads, in whatever form, are not made."""
        steps = self.steps
        lines = [line for part in (steps.prepare, steps.evaluation) for statement in part for line in statement.lines]
        read = {graph for graph, _ in steps.forms.values()} | set(re.findall(r"\w+", " ".join(lines)))
        for name, made in reversed(list(steps.graphs.items())):
            if name in read:
                read.add(made.partition(".")[0])
            else:
                del steps.graphs[name]

    def _place_by_columns(self, buffers: Sequence[Buffer]) -> None:
        """Buffers of nodes lie behind the columns of those that they meet, the others in the arena."""
        of_nodes = [buffer for buffer in buffers if buffer.rows == "nodes" and buffer.name != self._given]
        fixed = [buffer for buffer in buffers if buffer.rows != "nodes"]
        offsets, self.steps.arena_bytes = place([buffer.lifetime for buffer in fixed])
        self.steps.offsets = {buffer.name: at for buffer, at in zip(fixed, offsets, strict=True)}
        lines = [Lifetime(ALIGNMENT * int(buffer.cols), buffer.first, buffer.last) for buffer in of_nodes]
        offsets, total = place(lines)
        self.steps.offsets |= {b.name: offset // ALIGNMENT for b, offset in zip(of_nodes, offsets, strict=True)}
        self.steps.columns = total // ALIGNMENT

    def _open(self, plan: Plan) -> None:
        """Binds the inputs of a plan, and what was prepared for it."""
        program = plan.compiled.program
        self._names, self._wanted, self._prefix = number(program.values), {}, ""
        self._bound = {value: self._input(value) for value in program.inputs if value["name"] != "d:out"}
        for item in plan.hoisted:
            found = self._kept.get(structural_key(item.value))
            if found is not None:
                self._bound[item.value] = found

    def _input(self, value: Value) -> Any:
        name = value["name"]
        if name in self.steps.parameters:
            return self.steps.parameters[name]
        if name == "edge:loop":
            known = self.steps.table.buffers.get("loop_weight")
            return known or self.steps.table.add("loop_weight", value.tensor.rows, value.tensor.dims, 0)
        if name != "x":
            known_names = {"edge:weight": "edge_weight", "graph": "graph", "rows": "train", "seed": "draw"}
            if name not in known_names:
                raise ConfigError("data: expected no weights of edges for a model that scores edges by them, got some")
            return known_names[name]
        if value.tensor.sparse:
            return "features"
        known = self.steps.table.buffers.get("x")
        return known or self.steps.table.add("x", value.tensor.rows, value.tensor.dims, 0)

    def _prepare(self, plan: Plan, wanted: Callable[[Collection[str]], bool] = lambda _: True) -> None:
        """What is computed once for a plan, less what another plan has had computed; ``wanted`` by what it reads."""
        for item in plan.hoisted:
            if not wanted(item.leaves):
                continue
            part, calls = plan.preparation(item)
            self._bound = {value: self._input(value) for value in part.inputs}
            self._names = number(part.values)
            for call in calls:
                if call.value.op is Op.CONST:
                    continue  # read by functions of elements alone, which are refused by name
                key = structural_key(call.value)
                if key not in self._kept:
                    printed = self._print([call])
                    self.steps.prepare += [statement for statement in printed if statement.lines]
                    self._kept[key] = self._bound[call.value]
                self._bound[call.value] = self._kept[key]

    def _print(self, calls: Sequence[KernelCall]) -> list[Statement]:
        printed = []
        for call in calls:
            self.now += 1
            if isinstance(call.value.type, StructType):
                self._bound[call.value] = self._graph(call.value)
                continue
            if call.kernel in ("dropout", "take_rows") and call.value.inputs[0].tensor.sparse:
                self._bound[call.value] = self._of_features(call)  # read through ``features``
                continue
            if call.kernel in ("reshape", "detach"):
                self._bound[call.value] = self._bound[call.value.inputs[0]]  # the same numbers
                continue
            if call.kernel == "ewise" and not call.value.tensor.dtype.is_floating_point:
                self._bound[call.value] = call  # a comparison is made again where it is read
                continue
            lines = print_call(call, self)
            made = [self._bound[slot.value] for slot in call.writes]
            shown = ", ".join(f"{b.name} {b.shape}, {b.nbytes:,} bytes" for b in made)
            printed.append(Statement(f"{call.label} -> {shown}", tuple(lines), tuple(b.name for b in made)))
        return printed

    def _of_features(self, call: KernelCall) -> Any:
        """What stands for sparse features that are dropped, or for those of the training nodes."""
        if call.kernel == "dropout":
            return call.value
        if self._bound[call.value.inputs[0]] != "features":
            raise ConfigError(
                "model: expected parts that a program can hold, got rows of sparse features that are dropped; "
                "use dropout=0 or more layers"
            )
        self.steps.takes_features = True
        return _TAKEN

    def _graph(self, value: Value) -> str:
        """The name of a graph made of another, and how it is made."""
        if value.op not in _STRUCTURE:
            raise ConfigError(f"model: expected graphs that a program makes, got {value.op.name.lower()}")
        base = self._bound[value.inputs[0]]
        word = _STRUCTURE[value.op]
        name = word if base == "graph" else f"{base}_{word}"
        calls = {
            Op.WITHOUT_LOOPS: "without_loops()",
            Op.ONE_LOOP: "one_loop()",
            Op.REVERSE: "reverse()",
            Op.TAKE_DST: f"take_dst(train, {str(bool(value.get('loops'))).lower()})",
        }
        self.steps.graphs[name] = f"{base}.{calls[value.op]}"
        return name

    # what printers ask for

    def _read(self, value: Value) -> Buffer:
        found = self._bound[value]
        if not isinstance(found, Buffer):
            raise ConfigError(f"model: expected rows of numbers, got {value.op.name.lower()} as an operand")
        found.last = max(found.last, self.now)
        return found

    def matrix(self, value: Value) -> str:
        """The matrix of an operand."""
        return self._read(value).name

    def numbers(self, value: Value) -> str:
        """The address of an operand's first number."""
        return f"{self._read(value).name}.at"

    def edges(self, graph: Value, form: str, *given: int) -> str:
        """A compressed form of a graph, which is made by what is ``given``; or with "graph" the graph itself."""
        name = self._bound[graph]
        if form == "graph":
            return str(name)
        made = f"{name}_{_FORMS[form]}" if name != "graph" else _FORMS[form]
        self.steps.forms[made] = (name, f"{form}({', '.join(map(str, given))})")
        return made

    def read_often(self, graph: Value, form: str) -> str:
        """The same, by stretches of columns as well where the order pays: sums read them many times."""
        kind, rows = graph.type, self.plans.sizes.rows
        assert isinstance(kind, StructType)
        count = stretches_of(rows[kind.dst], rows[kind.edge], rows[kind.src])
        return (
            self.edges(graph, f"{form}_by_stretches", count)
            if count and self._manner.stretches
            else self.edges(graph, form)
        )

    def reads_winners(self, graph: Value) -> bool:
        """Whether gradients of extrema read no edges, only where each value came from."""
        kind, rows = graph.type, self.plans.sizes.rows
        assert isinstance(kind, StructType)
        return self._manner.winners and winners_pay(rows[kind.dst], rows[kind.edge])

    def ids(self, value: Value) -> str:
        """A list of row ids."""
        return f"{self._bound[value]}_ids"  # those of the training nodes, which alone a full-batch program reads

    def weighted(self, graph: Value, value: Value) -> tuple[str, str]:
        """Edges by destination with their weights, which are those that were given."""
        if self._bound.get(value) != "edge_weight":
            raise ConfigError("data: expected weights of edges that a model reads as they are, got others made of them")
        if self._manner.edges_bring_weights:
            return self.edges(graph, "weighted_in_edges"), ""
        return self.edges(graph, "in_edges_in_order"), "edge_weight.data()"

    def seed(self, value: Value) -> str:
        """The seed of this epoch's draws."""
        self.steps.draws = True
        return "draw"

    def made(self, call: KernelCall, role: str, over: Value | None = None) -> str:
        """The matrix of a result, which may take the place of ``over`` where that is not read again."""
        value = next(slot.value for slot in call.writes if slot.role == role)
        if isinstance(self._bound.get(value), Buffer) and self._bound[value].first == self.now:
            return str(self._bound[value].name)
        kind = value.type
        assert isinstance(kind, TensorType)  # graphs are made elsewhere
        word = role if role in ("col_sum", "arg", "stats", "products", "sums") else _WORDS.get(call.kernel, call.kernel)
        name = self._wanted.get(value) or f"{self._prefix}{word}{self._names[value].removeprefix('%')}"
        ctype = "float" if kind.dtype.is_floating_point else "int32_t"
        found = self.steps.table.add(_identifier(name), kind.rows, kind.dims, self.now, ctype)
        below = self._bound.get(over) if over is not None else None
        found.over = below.name if isinstance(below, Buffer) else ""
        self._bound[value] = found
        return found.name

    def elementwise(self, nest: RowNest) -> str:
        """The name of a function of elements; equal ones have one."""
        known = {found: name for name, found in self.steps.nests.items()}
        name = known.get(nest) or f"elements{len(known)}"
        self.steps.nests[name] = nest
        return name

    def over_heads(self, count: int, channels: int, shared: bool = False) -> None:
        """Has kernels compiled for such heads."""
        self.steps.heads.add((count, channels, shared))

    def region(self, call: KernelCall) -> tuple[Value, ...]:
        """The values that a call over elements computes, with the comparisons that it reads."""
        body = call.body if call.kernel == "row_nest" else (call.value,)
        read = dict.fromkeys(operand for value in body for operand in value.inputs)
        unstored = [self._bound[value].value for value in read if isinstance(self._bound.get(value), KernelCall)]
        return (*unstored, *body)

    def room(self, like: Value, cols: int) -> str:
        """The matrix of scratch with ``cols`` numbers for every row of a value."""
        made = self.steps.table.add(f"room{self.now}", like.tensor.rows, (cols,), self.now)
        return made.name

    def slopes(self, graph: Value, kind: Attention, width: int) -> str:
        """Room for the gradients of all scores; empty where there are more of them than numbers in the rows.

        A device wants it where scores are products: for shares as well, and for rows of the vector's gradient.
        """
        struct, rows = graph.type, self.plans.sizes.rows
        assert isinstance(struct, StructType)
        if self._manner.on_device:
            of_vector = rows[struct.dst] * width if kind.score is Score.ADD2 else 0
            count = 0 if kind.score is Score.ADD else 2 * rows[struct.edge] * kind.heads + of_vector
        else:
            count = 0 if self._manner.any_size else kind.kept_slopes(rows[struct.edge], rows[struct.dst], width)
        if count == 0:
            return ""
        return f"{self.steps.table.add(f'slopes{self.now}', None, (count,), self.now).name}.at"

    def panel(self, graph: Value, x: Value, extrema: bool = False) -> str:
        """Room for a copy of part of the rows that a sum over edges, or ``extrema``, read."""
        kind, rows = graph.type, self.plans.sizes.rows
        assert isinstance(kind, StructType)
        return self._panel(rows[kind.src], rows[kind.edge], x.tensor.dims[0], extrema)

    def _panel(self, columns: int, edges: int, width: int, extrema: bool = False) -> str:
        if not self._manner.panels or not wants_panel(columns, edges, 4 * width, extrema):
            return ""
        made = self.steps.table.add(f"panel{self.now}", None, (columns, PANEL_ROW // 4), self.now)
        return f"{made.name}.at"

    def features(self, value: Value, by_column: bool, width: int) -> tuple[list[str], str, str, str]:
        """Of sparse features: statements before the product, their structure, their values, and room as above."""
        found, rows = self._bound[value], self.plans.sizes.rows
        taken = found == _TAKEN
        nonzeros = self.plans.train_nonzeros if taken else self.plans.sizes.nonzeros["x"]
        nodes, count = rows["R"] if taken else rows["V"], self._width()
        panel = self._panel(nodes if by_column else count, nonzeros, width)
        side = "by_column" if by_column else "by_row"
        self.steps.by_column |= by_column
        name = "x_train" if taken else "x"
        structure, values = f"{name}_{side}", f"{name}_{side}_values"
        if taken or found == "features":
            return [], structure, values, panel
        seed = self.seed(found.inputs[1])
        kept = self.steps.table.add(f"kept_entries{self.now}", None, (nonzeros, 1), self.now)
        p, stream = repr(float(found["p"])), str(found["stream"])
        arguments = (structure, values, str(count), f"Layout::{side}", p, seed, stream, f"{kept.name}.at")
        return [f"sparse_dropout({', '.join(arguments)});"], structure, f"{kept.name}.at", panel

    def _width(self) -> int:
        program = self.plans.step.compiled.program
        x = next(v for v in program.inputs if v["name"] == "x")
        return int(x.tensor.dims[0])


def _united(shared: Sequence[Buffer]) -> Lifetime:
    """The lifetime of a place that buffers of one size take one after the other."""
    return shared[0].lifetime._replace(last=shared[-1].last)


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


__all__ = ["Manner", "Statement", "Steps", "steps_of"]
