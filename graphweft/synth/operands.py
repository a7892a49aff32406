"""Names, shapes and lifetimes of the buffers of a program.

Comes in: IR values. Goes out: :class:`Buffer` and the :class:`Table` that names each once. Called by ``steps.py`` and
the printers of ``statements.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphweft.synth.arena import Lifetime

ALWAYS = 1 << 30  # a last step that comes after all others


@dataclass
class Buffer:
    """A matrix in the arena.

    Attributes:
        name: In the program.
        rows: C++ text of the number of rows.
        cols: Number of columns.
        count: Number of elements.
        ctype: Of an element.
        first: The step that writes it first.
        last: The step that reads it last.
        over: The buffer whose place it may take, as the step that writes it reads that element by element.
        shape: As a reader knows it: ``[nodes x 32]``.
    """

    name: str
    rows: str
    cols: str
    count: int
    shape: str
    ctype: str = "float"
    first: int = 0
    last: int = 0
    over: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes: four an element, eight where it counts something."""
        return self.count * (8 if self.ctype == "int64_t" else 4)

    @property
    def lifetime(self) -> Lifetime:
        """From first write to last read."""
        return Lifetime(max(self.nbytes, 4), self.first, self.last)


@dataclass
class Table:
    """All buffers of a program by name, in the order of their first use."""

    symbols: Mapping[str, tuple[str, int]]  # of leading sizes: the C++ name and the number
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def add(self, wanted: str, symbol: str | None, dims: tuple[int, ...], at: int, ctype: str = "float") -> Buffer:
        """A new buffer, first written at step ``at``."""
        name, number = wanted, 2
        while name in self.buffers:
            name, number = f"{wanted}_{number}", number + 1
        lead, count = self.symbols[symbol] if symbol is not None else ("1", 1)
        if symbol is None and len(dims) > 1:
            lead, count, dims = str(dims[0]), dims[0], dims[1:]
        cols = 1
        for size in dims:
            cols *= size
        shown = " x ".join(([lead] if symbol is not None or lead != "1" else []) + [str(d) for d in dims])
        made = Buffer(name, lead, str(cols), count * cols, f"[{shown}]", ctype, at, at)
        self.buffers[name] = made
        return made


__all__ = ["ALWAYS", "Buffer", "Table"]
