"""How statements become lines: comments above them, names of the state, lines that are not too long.

Comes in: statements and :class:`Steps`. Goes out: lines of C++. Called by the writers of ``model.cpp``.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

from graphweft.codegen.cpp import lines as lines_of
from graphweft.synth.steps import Statement, Steps

_WIDTH = 120


def statements(found: Sequence[Statement], steps: Steps) -> list[str]:
    """Every statement below a comment that says what it does."""
    lines: list[str] = []
    for statement in found:
        lines += [f"// {statement.words}"] if len(statement.words) < _WIDTH - 6 else comment(statement.words)
        for line in statement.lines:
            lines += wrapped(with_state(line, steps))
    return lines


def comment(words: str) -> list[str]:
    """Words as lines of comment."""
    return [f"// {line}" for line in textwrap.wrap(words, _WIDTH - 8)]


def with_state(line: str, steps: Steps) -> str:
    """The statement with ``s.`` before the names of the state."""
    known = {*steps.table.buffers, *steps.graphs, *steps.forms, "graph", "edge_weight", "train_ids", "train"}
    sides = (f"{x}_by_{side}" for x in ("x", "x_train") for side in ("row", "column"))
    known |= {f"{side}{part}" for side in sides for part in ("", "_values")}
    out, word = [], ""
    for i, char in enumerate(line + " "):
        if char.isalnum() or char == "_":
            word += char
            continue
        if word:
            before = line[i - len(word) - 1 : i - len(word)]
            called = char == "(" and word not in steps.graphs
            out.append(f"s.{word}" if word in known and before not in (".", ":") and not called else word)
            word = ""
        out.append(char)
    return "".join(out).rstrip()


def wrapped(text: str) -> list[str]:
    """The statement over as many lines as it needs, broken between its outer arguments and parts of a list."""
    if len(text) <= _WIDTH - 2:
        return [text]
    start = min(text.find(c) for c in "({" if c in text) + 1
    lines, now, depth = [text[:start]], "", 0
    for char in text[start:]:
        now += char
        is_list = now.strip() == "{" or (char == "}" and depth == 0)
        depth += 0 if is_list else (char in "({[") - (char in ")}]")
        if depth == 0 and char == ",":
            lines, now = _appended(lines, now, start), ""
    return _appended(lines, now, start)


def _appended(lines: list[str], argument: str, indent: int) -> list[str]:
    """``lines`` with one more argument, on a line of its own where the last has no room for it."""
    word = argument.strip()
    joined = lines[-1] + ("" if lines[-1].endswith(("(", "{")) else " ") + word
    return [*lines[:-1], joined] if len(joined) <= _WIDTH - 2 else [*lines, " " * indent + word]


def elements(steps: Steps) -> list[str]:
    """The functions of elements that a program has, each as a function over a range of its operands."""
    texts = []
    for name, nest in steps.nests.items():
        head = f"void {name}(int64_t begin, int64_t end, const float* const* in, float* out)"
        body = ["gw::for_each_lanes<float>(begin, end, [&](int64_t at, auto part) GW_INLINE_LAMBDA {"]
        body += [f"  {line}" for line in lines_of(nest, "part.load(in[{}] + at)")]
        body += [f"  part.store(out + at, t{len(nest.statements) - 1});", "});"]
        texts.append("\n".join([*(f"// {line}" for line in str(nest).splitlines()), function(head, body)]))
    return ["namespace {\n", *texts, "}  // namespace\n"] if texts else []


def declared_elements(steps: Steps) -> list[str]:
    """The same where they are launched on a device, from a file of their own."""
    told = [f"void {name}(int64_t count, const float* const* in, float* out);" for name in steps.nests]
    return ["// Functions of elements, from elements.cu.", *told, ""] if told else []


def function(head: str, body: Sequence[str]) -> str:
    """A function of C++."""
    return "\n".join([f"{head} {{", *indented(body), "}", ""])


def indented(lines: Sequence[str]) -> list[str]:
    """Lines two places to the right."""
    return [f"  {line}" if line else "" for line in lines]


def quoted(text: str) -> str:
    """A literal of C++."""
    return json.dumps(text, ensure_ascii=False)


__all__ = ["comment", "declared_elements", "elements", "function", "indented", "quoted", "statements", "wrapped"]
