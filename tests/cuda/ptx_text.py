"""The text of a PTX kernel, taken apart: instructions, labels, widths of registers, constants.

Comes in: what Triton compiles. Goes out: a :class:`Program`. Called by ``ptx.py``. Source: the PTX ISA, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from cuda.ptx_arithmetic import width_of

Array = Any


class Fault(Exception):
    """A kernel does what it must not."""


class Instruction(NamedTuple):
    """One line: its guard and whether that is negated, the opcode at its dots, operands."""

    guard: str | None
    negated: bool
    parts: tuple[str, ...]
    operands: tuple[str, ...]
    text: str


class Program:
    """A kernel's text, taken apart."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"//[^\n]*", "", text)
        found = re.search(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*)", text, re.S)
        assert found is not None, "ptx: expected an entry"
        self.name = found[1]
        self.parameters = re.findall(r"\.param\s+\.(\w+)[^,]*?\b(" + re.escape(self.name) + r"_param_\d+)", found[2])
        threads = re.search(r"\.reqntid\s+(\d+)", text)
        assert threads is not None, "ptx: expected the number of threads"
        self.threads = int(threads[1])
        body = found[3][found[3].index("{") + 1 :].split("$L__func_end")[0]
        self.widths = {"%cc": 1}  # of registers named one by one; of numbered ones by prefix
        self.local = 0
        self.constants = dict[str, Array]()
        for name, numbers in re.findall(r"\.global[^;]*?\.b8\s+(\w+)\[\d+\] = \{([^}]*)\}", text):
            self.constants[name] = np.array([int(n) for n in numbers.split(",")], np.uint8)
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self._steps: list[Any] | None = None
        for line in body.splitlines():
            self._line(line.strip())

    def _line(self, line: str) -> None:
        if scoped := re.match(r"\{ \.reg \.\w+ tmp; (.*;) \}$", line):  # half of a register, the other one is left
            line = scoped[1].replace("tmp", "_")
        if label := re.match(r"([\w$]+):$", line):
            self.labels[label[1]] = len(self.code)
        elif register := re.match(r"\.reg\s+\.(\w+)\s+(%\w+)(<\d+>)?;", line):
            self.widths[register[2]] = width_of(register[1])
        elif local := re.match(r"\.local .*\[(\d+)\];", line):
            self.local += int(local[1])
        elif line and line[0] not in "./}{":
            self.code.append(_instruction(line.rstrip(";").strip()))

    def steps(self, step: Callable[[Instruction], Any]) -> list[Any]:
        """What ``step`` makes of every instruction, once."""
        if self._steps is None:
            self._steps = [step(instruction) for instruction in self.code]
        return self._steps

    def width(self, register: str) -> int:
        """Bits of a register."""
        found = self.widths.get(register) or self.widths.get(register.rstrip("0123456789"))
        if found is None:
            raise Fault(f"{register} is not declared")
        return found


def _instruction(line: str) -> Instruction:
    guard = re.match(r"@(!?)(%\w+)\s+(.*)", line)
    text = guard[3] if guard else line
    opcode, _, rest = text.partition(" ") if " " in text and "\t" not in text.split(" ")[0] else text.partition("\t")
    operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)
    parts = tuple(re.sub(r"::\w+", "", opcode.strip()).split("."))
    return Instruction(
        guard[2] if guard else None,
        bool(guard and guard[1]),
        parts,
        tuple(o.strip() for o in operands),
        line,
    )


__all__ = ["Fault", "Instruction", "Program"]
