"""The text of ``model.cpp`` of a library that predicts.

Comes in: a spec and the :class:`Steps` of a prediction. Goes out: a text over ``csrc/program/predict``. Called by
``folder.py``.
"""

from __future__ import annotations

from graphweft.synth.layout import elements, function, statements
from graphweft.synth.model_text import more_headers, sizes_of, title
from graphweft.synth.operands import ALWAYS, Buffer
from graphweft.synth.spec import ProgramSpec
from graphweft.synth.steps import Steps


def serving_text(spec: ProgramSpec, steps: Steps) -> str:
    """``model.cpp``: weights, buffers, what is made of a graph, and the statements of a prediction."""
    parts = [_opening(spec, steps), *elements(steps), _places(steps), _state(steps), _constructor(steps), _run(steps)]
    return "\n".join([*parts, "}  // namespace program\n"])


def _opening(spec: ProgramSpec, steps: Steps) -> str:
    width, classes = sizes_of(steps)
    more, is_weighted = more_headers(steps), steps.plans.is_weighted
    more += '#include "edge_weights.h"\n' if is_weighted else ""
    of_edges, reads = ("; it reads weights of edges", ", true") if is_weighted else ("", "")
    return f"""// {title(spec)}: predictions.
//
// Each statement is one kernel; the line above it says what it does and the shape of its result, for the graph that the
// plan was made for. Buffers have a row for each node of a graph of any size, and those that are not in use at the same
// time share their room.
#include "serving.h"

{more}
namespace program {{

// Features, classes, numbers in all weights, columns of all buffers together{of_edges}.
const Serving serving = {{{width}, {classes}, {steps.arena_bytes // 4}, {steps.columns}{reads}}};
"""


def _places(steps: Steps) -> str:
    lines = [
        f'      {{"{name}", {{{", ".join(map(str, shape))}}}, {_place(steps, name)}}},'
        for name, shape in steps.plans.shapes.items()
    ]
    return "\n".join(["std::vector<Place> places() {", "  return {", *lines, "  };", "}", ""])


def _place(steps: Steps, name: str) -> str:
    """Where its numbers begin; those of a counter are not read."""
    return "-1" if name in steps.plans.counters else str(_first(steps, steps.parameters[name]))


def _first(steps: Steps, buffer: Buffer) -> int:
    """Where the numbers of a parameter begin among all weights."""
    return steps.offsets[buffer.name] // 4


def _state(steps: Steps) -> str:
    lines = ["struct Pass::State {", "  const int64_t nodes;", "  const Room room;", ""]
    names = {buffer.name for buffer in steps.parameters.values()}
    for buffer in steps.table.buffers.values():
        if buffer.name == "x":
            lines.append(f"  Matrix x{{nullptr, nodes, {buffer.cols}}};")
        elif buffer.name in names:
            at = f"const_cast<float*>(weights) + {_first(steps, buffer)}"
            lines.append(f"  const Matrix {buffer.name}{{{at}, {buffer.rows}, {buffer.cols}}};")
        else:
            last = "to the end" if buffer.last >= ALWAYS else f"to {buffer.last}"
            at = f"room.at({steps.offsets[buffer.name]})"
            when = f"steps {buffer.first} {last}"
            lines.append(f"  const Matrix {buffer.name}{{{at}, nodes, {buffer.cols}}};  // {when}")
    lines += ["", "  const Graph graph;"]
    if steps.plans.is_weighted:
        lines.append("  const Numbers<float> edge_weight;")
    lines += [f"  const Graph {name} = {made};" for name, made in steps.graphs.items()]
    lines += [f"  const gw_adjacency {name} = {graph}.{form};" for name, (graph, form) in steps.forms.items()]
    lines.insert(1, "  const float* const weights;")
    bare = _is_bare(steps)
    given = f"weights(numbers), nodes(count), room(count), graph(over{'.without_loops()' if bare else ''})"
    head = "State(const float* numbers, const Graph& over, int64_t count)"
    if steps.plans.is_weighted:
        of_edges = "weights_without_loops(over, by_edge)" if bare else "by_edge, by_edge + over.num_edges()"
        given, head = f"{given}, edge_weight({of_edges})", f"{head[:-1]}, const float* by_edge)"
    return "\n".join([*lines, "", f"  {head}", f"      : {given} {{}}", "};", ""])


def _is_bare(steps: Steps) -> bool:
    """Whether the plan is for a graph less its self-loops."""
    return steps.plans.is_weighted and "loop_weight" in steps.table.buffers


def _constructor(steps: Steps) -> str:
    by_edge = "edge_weights" if steps.plans.is_weighted else "/*edge_weights*/"
    head = f"Pass::Pass(const float* weights, const Graph& graph, int64_t nodes, const float* {by_edge})"
    body = statements(steps.prepare, steps)
    if "loop_weight" in steps.table.buffers:
        body.insert(0, "read_loop_weights(graph, edge_weights, nodes, s.loop_weight.at);")
    body = ["State& s = *state_;", "// Of the graph alone.", *body] if body else []
    arguments = "weights, graph, nodes" + (", edge_weights" if steps.plans.is_weighted else "")
    made = function(f"{head}\n    : state_(std::make_unique<State>({arguments}))", body)
    return f"{made}\nPass::~Pass() = default;\n"


def _run(steps: Steps) -> str:
    reads = "x" in steps.table.buffers
    body = ["State& s = *state_;", *(["s.x.at = const_cast<float*>(x);"] if reads else [])]
    body += [*statements(steps.evaluation, steps), f"return s.{steps.eval_logits};"]
    return function("Matrix Pass::run(const float* x)", body)


__all__ = ["serving_text"]
