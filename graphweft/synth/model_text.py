"""The text of ``model.cpp``: the steps of a program as C++.

Comes in: a spec and its :class:`Steps`. Goes out: a text. Called by ``folder.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from graphweft.synth.layout import declared_elements, elements, function, indented, quoted, statements, wrapped
from graphweft.synth.operands import ALWAYS, Buffer
from graphweft.synth.spec import ProgramSpec
from graphweft.synth.steps import Statement, Steps


def source_text(spec: ProgramSpec, steps: Steps, data: str, over_ranks: bool = False, on_device: bool = False) -> str:
    """``model.cpp``: buffers, then the statements of preparation, step and evaluation.

    With ``over_ranks`` each process has a share of the nodes: gradients are added up over all, from the moment when
    they are known to the update. With ``on_device`` functions of elements are in a file of their own.
    """
    of_entries = "" if steps.plans.task == "classification" else '#include "entry_loss.h"\n'
    parts = [
        _opening(
            spec, of_entries + more_headers(steps, on_device) + (_RANKS if over_ranks else ""), bool(steps.plans.ones)
        ),
        _facts(spec, steps, data),
        *(declared_elements(steps) if on_device else elements(steps)),
        _state(steps, over_ranks),
        _constructor(steps),
        _step(steps, over_ranks),
        _evaluate(steps),
        _tensors(steps),
        "}  // namespace program\n",
    ]
    return "\n".join(parts)


_NORMS = {"batch_norm", "batch_norm_grad", "normalise", "row_sum", "row_add", "col_scale", "multiply", "fill_cols"}
_LOOSE = ("in_edges", "in_edges_by_stretches", "out_edges")  # forms without numbers of edges
_TASKS = {"classification": "classes", "multilabel": "labels", "regression": "values"}
_RANKS = '#include "room.h"\n#include "team.h"\n'


def title(spec: ProgramSpec) -> str:
    """The model in a line."""
    reduce = "" if spec.reduce == "auto" else f", {spec.reduce} over neighbours"
    return f"{spec.model.upper()} of {spec.layers} layers{reduce}"


def sizes_of(steps: Steps) -> tuple[int, int]:
    """Features and classes."""
    program = steps.plans.step.compiled.program
    x = next(v for v in program.inputs if v["name"] == "x")
    return int(x.tensor.dims[0]), int(dict(program.outputs)["out"].tensor.dims[0])


def more_headers(steps: Steps, on_device: bool = False) -> str:
    """What a model includes beside the usual kernels."""
    parts = (steps.forward, steps.backward, steps.evaluation)
    called = {line.partition("(")[0] for part in parts for statement in part for line in statement.lines}
    more = '#include "attention.h"\n' if any(name.startswith("Attention<") for name in called) else ""
    more += '#include "norms.h"\n' if called & _NORMS else ""
    return more + ('#include "graphweft/lanes.h"\n' if steps.nests and not on_device else "")


def _opening(spec: ProgramSpec, more: str, begins_with_ones: bool) -> str:
    standard = "#include <algorithm>\n\n" if begins_with_ones else ""
    return f"""// {title(spec)}, trained on all nodes at once.
//
// Each statement is one kernel; the line above it says what it does, the shape of its result and its bytes. All buffers
// lie in one arena, and buffers that are not in use at the same time share their room.
#include "model.h"

{standard}{more}#include "memory.h"
#include "random.h"

namespace program {{
"""


def _facts(spec: ProgramSpec, steps: Steps, data: str) -> str:
    """Sizes, and what the program reports."""
    rows, (width, classes) = steps.plans.sizes.rows, sizes_of(steps)
    weights = sum(steps.parameters[name].count for name in steps.moments)
    weighted = steps.plans.has_weights
    numbered = weighted or any(form.split("(")[0] not in _LOOSE for _, form in steps.forms.values())
    more = f", {str(numbered).lower()}" + (", true" if weighted else "")
    if steps.plans.task != "classification":
        more = f"{more}{'' if weighted else ', false'}, Task::{_TASKS[steps.plans.task]}, {steps.plans.known}"
    path = "sparse" if steps.plans.is_sparse else "dense"
    return f"""// The graph that the plan was made for: orders of products and places of buffers follow from its sizes.
constexpr int64_t nodes = {rows["V"]}, edges = {steps.plans.file_edges}, features = {width}, classes = {classes};
constexpr int64_t train_rows = {steps.plans.train_rows}, nonzeros = {steps.plans.sizes.nonzeros.get("x", 0)};

// Name, data, layout of the features; layers, hidden width, parameters; epochs, seed and how often it is evaluated.
const Facts facts = {{"{spec.model}", {quoted(data)}, "{path}", {spec.layers}, {spec.hidden}, {weights},
                     {spec.epochs}, {spec.seed}, {spec.eval_every},
                     {{nodes, edges, features, classes, train_rows, nonzeros{more}}}}};
"""


def _state(steps: Steps, over_ranks: bool) -> str:
    """The struct of all buffers, graphs and lists."""
    buffers, rows = steps.table.buffers.values(), steps.plans.sizes.rows
    lines = [
        f"struct Model::State {{  // the arena: {steps.arena_bytes:,} bytes, of {_total(buffers):,} without sharing",
        f"  Arena arena{{{steps.arena_bytes}}};",
        "",
    ]
    if steps.columns is not None:
        lines.insert(1, "  const Graph graph;")
        lines.insert(2, "  const int64_t nodes = graph.own_nodes();")
        lines.insert(3, f"  const Room room{{nodes + graph.most_ghosts(), {steps.columns}}};")
        lines += ["  Sums sums;"]
    lines += [_member(buffer, steps) for buffer in buffers]
    lines += ["", *_labels(steps)]
    if steps.plans.rows is not None:
        lines += [
            "  const Ids train_ids{train.data(), int64_t(train.size())};",
        ]
    if steps.plans.is_sparse:
        lines += ["  const SparseFeatures x;", *_sparse("x", steps.by_column)]
    if steps.takes_features:
        made = f"x.take(train, {str(steps.by_column).lower()})"
        lines += [f"  const SparseFeatures x_train = {made};", *_sparse("x_train", steps.by_column)]
    if steps.columns is None:
        lines.append("  const Graph graph;")
    by_number = steps.plans.is_weighted and not over_ranks
    if by_number:
        lines.append("  const Numbers<float> edge_weight;")
    lines += [f"  const Graph {name} = {made};" for name, made in steps.graphs.items()]
    for name, (graph, form) in steps.forms.items():
        parts = "Back" if form.startswith("out_edges") else "Edges"
        kind = "gw_adjacency" if steps.columns is None else parts
        lines.append(f"  const {kind} {name} = {graph}.{form};")
    if "betas" in steps.plans.groups[0]:
        lines.append(f"  gw_adam_tensor_f32 updates[{len(steps.gradients)}] = {{}};")
    else:
        lines.append(f"  gw_sgd_tensor_f32 updates[{len(steps.gradients)}] = {{}};")
    of_classes = steps.plans.task == "classification"
    given = ["labels(data.labels)" if of_classes else "labels(data.entries)", "train(data.split.train)"]
    columns = "" if steps.by_column else ", false"
    normalize = str(steps.plans.is_normalized).lower()
    given += [f"x(data.read_sparse_features({normalize}{columns}))"] if steps.plans.is_sparse else []
    bare = steps.plans.file_edges != rows["E"]  # the plan is for the graph less its self-loops
    graph = "graph(data.graph.without_loops())" if bare else "graph(data.graph)"
    given.insert(0 if steps.columns is not None else len(given), graph)
    given += [f"edge_weight(data.edge_weights({str(not bare).lower()}))"] if by_number else []
    head = "  explicit State(const Dataset& data)"
    told = f"{head} : {', '.join(given)} {{}}"
    told = told if len(told) <= 120 else f"{head}\n      : {', '.join(given)} {{}}"
    lines += ["", told, "};", ""]
    return "\n".join(lines)


def _sparse(name: str, by_column: bool) -> list[str]:
    """What kernels read of sparse features."""
    sides = {"by_row": "values", **({"by_column": "values_by_column"} if by_column else {})}
    lines = [f"  const gw_adjacency {name}_{side} = {name}.{side}->native();" for side in sides]
    return [*lines, *(f"  const float *const {name}_{side}_values = {name}.{at}.data();" for side, at in sides.items())]


def _labels(steps: Steps) -> list[str]:
    """The lists of labels, and of training nodes."""
    kind = "int64_t" if steps.plans.task == "classification" else "float"
    lines = [f"  const Numbers<{kind}> labels;"] if kind == "float" else []
    lines.append(f"  const Numbers<int64_t> {'' if lines else 'labels, '}train;")
    return lines if steps.plans.rows is None else [*lines, f"  Numbers<{kind}> train_labels;"]


def _member(buffer: Buffer, steps: Steps) -> str:
    """The declaration of a buffer."""
    at = steps.offsets[buffer.name]
    if steps.columns is not None and buffer.rows == "nodes":
        shown = f"const Matrix {buffer.name}{{room.at({at}), nodes, {buffer.cols}}};"
        if buffer.ctype != "float":
            shown = f"{buffer.ctype}* const {buffer.name} = room.at<{buffer.ctype}>({at});"
        return f"  {shown}  // {_when(buffer)}"
    when = "always" if buffer.last >= ALWAYS and buffer.first == 0 else _when(buffer)
    text = f"const Matrix {buffer.name}{{arena.at<float>({at}), {buffer.rows}, {buffer.cols}}};"
    if buffer.ctype != "float":
        text = f"{buffer.ctype}* const {buffer.name} = arena.at<{buffer.ctype}>({at});"
    return f"  {text}  // {when}"


def _total(buffers: Iterable[Buffer]) -> int:
    return sum(buffer.nbytes for buffer in buffers)


def _when(buffer: Buffer) -> str:
    last = "to the end" if buffer.last >= ALWAYS else f"to {buffer.last}"
    return f"steps {buffer.first} {last}"


def _constructor(steps: Steps) -> str:
    lines = ["Model::Model(const Dataset& data, uint64_t seed) : state_(std::make_unique<State>(data)) {"]
    body = ["State& s = *state_;"]
    if "loop_weight" in steps.table.buffers:
        body.append("data.read_loop_weights(s.loop_weight.at);")
    if steps.plans.rows is not None:
        if steps.plans.task == "classification":
            body.append("for (const int64_t row : s.train) s.train_labels.push_back(s.labels[size_t(row)]);")
        else:
            body += ["for (const int64_t row : s.train)", "  s.train_labels.insert(s.train_labels.end(),"]
            body[-1] += " s.labels.data() + row * classes, s.labels.data() + (row + 1) * classes);"
    if steps.prepare or "x" in steps.table.buffers:
        body += _prepared(steps)
    body += ["", "// Weights, in the order in which the library draws them; the arena is zero."]
    body.append("Generator draws(seed);")
    for name in steps.plans.fans:
        weight = f"s.{steps.parameters[name].name}"
        body.append(f"draws.glorot({weight}.at, {weight}.rows * {weight}.cols, {steps.plans.fans[name]});")
    for name in sorted(steps.plans.ones):
        body.append(f"std::fill_n(s.{steps.parameters[name].name}.at, {steps.parameters[name].count}, 1.0f);")
    body += ["", *_updates(steps)]
    return "\n".join([*lines, *indented(body), "}", "", "Model::~Model() = default;", ""])


def _prepared(steps: Steps) -> list[str]:
    """Statements that are computed once, and where features are read and edges that nobody reads any more are dropped.

    Features are read behind the statements that ask a graph, where those need none, so that what graphs take while they
    are made is free by then.
    """
    asks, reads = re.compile(rf"\b(?:{'|'.join(('graph', *steps.graphs))})\.\w+\("), re.compile(r"\bx\b")
    later = [*steps.forward, *steps.backward, *steps.evaluation]
    drops = any("_by_stretches" in form for _, form in steps.forms.values())
    drops = drops and not any(asks.search(line) for made in later for line in made.lines)
    asking = [i for i, made in enumerate(steps.prepare) if any(map(asks.search, made.lines))]
    end = asking[-1] + 1 if asking and drops else 0
    of_graphs = steps.prepare[:end]
    features = [f"data.read_features(s.x.at, {str(steps.plans.is_normalized).lower()});"]
    features = features if "x" in steps.table.buffers else []
    first = any(reads.search(line) for made in of_graphs for line in made.lines)
    body = ["", "// Computed once.", *(features if first else []), *statements(of_graphs, steps)]
    if drops:
        body += ["// Edges that are read by stretches alone lie in no other order any more."]
        body += [f"s.{name}.drop_unread();" for name in ("graph", *steps.graphs)]
    return [*body, *([] if first else features), *statements(steps.prepare[end:], steps)]


def _updates(steps: Steps) -> list[str]:
    """The optimiser's table, made once: addresses never change."""
    lines = [f"// {_optimizer(steps)}."]
    index = 0
    for group in steps.plans.groups:
        decay = repr(float(group["weight_decay"]))
        for name in group["names"]:
            if name not in steps.gradients:
                continue
            parameter, gradient = steps.parameters[name].name, steps.gradients[name].name
            if "betas" in group:
                mean, square, count = (buffer.name for buffer in steps.moments[name])
                betas = ", ".join(repr(float(beta)) for beta in group["betas"])
                numbers = f"{float(group['lr'])!r}, {betas}, {float(group['eps'])!r}, {decay}"
                decoupled = int(bool(group.get("decoupled_weight_decay")))
                state = f"s.{mean}.at, s.{square}.at, s.{count}.at"
                tail = f"{decoupled}, 0"
            else:
                numbers, state, tail = f"{float(group['lr'])!r}, 0.0, 0.0, {decay}", "nullptr", "0, 0, 0"
            size = f"s.{parameter}.rows * s.{parameter}.cols"
            text = f"s.updates[{index}] = {{{size}, s.{parameter}.at, s.{gradient}.at, {state}, {numbers}, {tail}}};"
            lines += wrapped(text)
            index += 1
    return lines


def _optimizer(steps: Steps) -> str:
    group = steps.plans.groups[0]
    if "betas" not in group:
        return "SGD: size, parameter, gradient, no momentum; rate, momentum, dampening and decay"
    kind = "AdamW" if group.get("decoupled_weight_decay") else "Adam"
    return f"{kind}: size, parameter, gradient, both means and the steps done; rate, betas, epsilon and decay"


def _step(steps: Steps, over_ranks: bool) -> str:
    sgd = "betas" not in steps.plans.groups[0]
    labels, ids = ("s.train_labels", "all_rows") if steps.plans.rows is not None else ("s.labels", "")
    if steps.plans.rows is None:
        ids = "{s.train.data(), int64_t(s.train.size())}"
    body = ["State& s = *state_;"]
    if steps.draws:
        own = " + uint64_t(Team::rank())" if over_ranks else ""  # each draws for its own nodes
        body.append(f"const uint64_t draw = epoch_key(seed{own}, epoch);")
    body += ["", "// Forward.", *statements(steps.forward, steps)]
    if steps.plans.task == "classification":
        kind, call, of = "Loss", "cross_entropy(", ", train_rows" if over_ranks else ""
        words = "softmax cross-entropy of the training nodes"
    else:
        of_labels = steps.plans.task == "multilabel"
        kind, call, of = (
            "EntryLoss",
            f"entry_loss(Entries::{'binary' if of_labels else 'squared'}, ",
            ", facts.expected.known",
        )
        words = f"{'binary cross-entropy' if of_labels else 'squared error'} of the known labels of the training nodes"
    kind = kind if over_ranks else f"const {kind}"
    ids = ids or "all_rows"
    arguments = f"s.{steps.logits}, {labels}.data(), {ids}, s.{steps.d_logits}.at{of}"
    loss = f"{kind} loss = {call}{arguments});"
    words += ", its gradient over the logits" if steps.logits == steps.d_logits else " and its gradient"
    body += ["", f"// {words}", *wrapped(loss), *(["s.sums.start(loss);"] if over_ranks else [])]
    body += ["", "// Backward.", *(_summed(steps) if over_ranks else statements(steps.backward, steps))]
    count = len(steps.gradients)
    body += [
        "",
        "// Update.",
        *(["s.sums.finish();"] if over_ranks else []),
        f"check({'gw_sgd_f32' if sgd else 'gw_adam_f32'}(s.updates, {count}));",
    ]
    body += _tracked(steps)
    body.append("return loss.mean();")
    seed, epoch = ("seed", "epoch") if steps.draws else ("/*seed*/", "/*epoch*/")
    return function(f"float Model::step(uint64_t {seed}, uint64_t {epoch})", body)


def _tracked(steps: Steps) -> list[str]:
    """Running statistics of batch norms move towards those of this step."""
    lines = []
    for name, found in steps.statistics.items():
        mean, variance, count = (
            steps.parameters[f"{name}.{part}"].name for part in ("running_mean", "running_var", "num_batches_tracked")
        )
        arguments = f"s.{found.name}, nodes, {steps.plans.momenta[name]!r}, s.{mean}, s.{variance}, s.{count}"
        lines += wrapped(f"track({arguments});")
    return ["", "// Running statistics.", *lines] if lines else []


def _summed(steps: Steps) -> list[str]:
    """The statements of the backward pass; the sum of a gradient over all ranks is begun as soon as it is known."""
    gradients, lines = {buffer.name for buffer in steps.gradients.values()}, []
    done: dict[int, list[str]] = {}  # by the last statement that makes or reads them
    for index, statement in enumerate(steps.backward):
        for name in gradients.intersection(statement.made):
            later = (i for i in range(index, len(steps.backward)) if _names(steps.backward[i], name))
            done.setdefault(max(later, default=index), []).append(name)
    for index, statement in enumerate(steps.backward):
        lines += statements([statement], steps)
        lines += [f's.sums.start("{name}", s.{name});' for name in sorted(done.get(index, ()))]
    return lines


def _names(statement: Statement, name: str) -> bool:
    return any(re.search(rf"\b{name}\b", line) for line in statement.lines)


def _evaluate(steps: Steps) -> str:
    body = ["State& s = *state_;", *statements(steps.evaluation, steps), f"return s.{steps.eval_logits};"]
    return function("Matrix Model::evaluate()", body)


def _tensors(steps: Steps) -> str:
    lines = ["std::vector<Tensor> Model::weights() const {", "  const State& s = *state_;", "  return {"]
    counters = steps.plans.counters  # first, so that each tensor lies at a multiple of its elements' size
    for name in sorted(steps.plans.shapes, key=lambda name: name not in counters):
        lines.append(f"      {_tensor(name, steps.plans.shapes[name], steps.parameters[name], name in counters)},")
    lines += ["  };", "}", "", "std::vector<Tensor> Model::optimizer_state() const {"]
    rows = []
    for name, found in steps.moments.items():
        for key, buffer in zip(("exp_avg", "exp_avg_sq", "step"), found, strict=False):
            shape = () if key == "step" else steps.plans.shapes[name]
            rows.append(f"      {_tensor(f'optimizer.{key}.{name}', shape, buffer)},")
    if not rows:
        return "\n".join([*lines, "  return {};", "}", ""])
    return "\n".join([*lines, "  const State& s = *state_;", "  return {", *rows, "  };", "}", ""])


def _tensor(name: str, shape: tuple[int, ...], buffer: Buffer, counts: bool = False) -> str:
    at = f"s.{buffer.name}, true" if counts else f"s.{buffer.name}.at"
    return f'{{"{name}", {{{", ".join(map(str, shape))}}}, {at}}}'


__all__ = ["more_headers", "sizes_of", "source_text", "title"]
