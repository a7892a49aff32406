"""What a recorded run is cut into: programs with what they read and give, and steps between them.

Comes in: nothing. Goes out: plain data. Made by ``regions.py``, read by ``nn/recorded.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from graphweft.frontend.moves import EdgeSet
from graphweft.frontend.tape import Step, Var
from graphweft.ir.program import Program
from graphweft.ir.residency import Residency


@dataclass(frozen=True)
class Given:
    """A tensor that a region reads.

    Attributes:
        source: A value, or structure itself.
        residency: What its rows are.
        axis: Which of its dimensions the rows are; they come first in the program.
        graph: The graph whose edges the rows are, where it is not the first one.
    """

    source: Var | Tensor
    residency: Residency
    axis: int = 0
    graph: str = ""


@dataclass(frozen=True)
class Taken:
    """A value that a region gives: the order of the program's dimensions that makes the recorded one, and its shape."""

    var: Var
    order: tuple[int, ...]


@dataclass
class Region:
    """One program.

    Attributes:
        edges: Its graph.
        others: More graphs over the same nodes, by the name of their input.
        steps: What it computes.
        given: Its inputs by name.
        taken: Its outputs by name.
        program: The program; its outputs have the names of ``taken``.
        draws: Whether it draws random numbers.
    """

    edges: EdgeSet
    others: dict[str, EdgeSet] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    given: dict[str, Given] = field(default_factory=dict)
    taken: dict[str, Taken] = field(default_factory=dict)
    program: Program | None = None
    draws: bool = False


@dataclass(frozen=True)
class Planned:
    """A tape in parts.

    Attributes:
        parts: Regions and steps in the order of their run.
        apart: Steps between regions, which run as they stand, with the reason.
    """

    parts: list[Region | Step]
    apart: list[tuple[Step, str]]


__all__ = ["Given", "Planned", "Region", "Taken"]
