"""Formats and orders of a batch's program by brute force: every choice runs some batches of the warm-up epoch.

Comes in: choices, how to compile one, and the seconds that batches took under each: sampling, forward and backward
together. Goes out: the plan of the next batch, in the end the fastest. Called by the mini-batch trainer under
``config(tune=True)`` alone, since what is chosen by a clock may round differently from run to run. Batches that are
measured are trained on: there is no extra epoch. Source: Joestar, section 5.3 (format selection).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from graphweft.loader.fastest_choice import FastestChoice
from graphweft.runtime.staged import Choice, StagedPlan

MOST_CHOICES = 16


class FormatTrial:
    """Tries ``choices`` on ``tries`` batches each, then stays with the one of the least median.

    Args:
        choices: What may be chosen.
        compile: The plan of a choice; called once for each, by whichever thread first needs it.
        tries: Batches a choice.
    """

    def __init__(self, choices: Sequence[Choice], compile: Callable[[Choice], StagedPlan], tries: int = 2) -> None:
        self._fastest: FastestChoice[Choice] = FastestChoice(choices, tries)
        self._compile, self._plans, self._lock = compile, dict[Choice, StagedPlan](), threading.Lock()

    @property
    def settled(self) -> bool:
        """Every choice was tried."""
        return self._fastest.settled

    @property
    def choice(self) -> Choice:
        """What the next batch runs under; the fastest once settled."""
        return self._fastest.way

    @property
    def table(self) -> dict[Choice, float]:
        """Median seconds of a batch under each choice so far."""
        return self._fastest.seconds()

    def plan(self) -> StagedPlan:
        """The plan of :attr:`choice`; from any thread."""
        with self._lock:
            choice = self.choice
            if choice not in self._plans:
                self._plans[choice] = self._compile(choice)
            return self._plans[choice]

    def record(self, choice: Choice, seconds: float) -> None:
        """A batch took ``seconds``, its preparation included."""
        with self._lock:
            self._fastest.record(choice, seconds)

    def explain(self) -> str:
        """The measured table, the fastest first."""
        rows = sorted(self.table.items(), key=lambda row: row[1])
        lines = [f"{1e3 * seconds:9.2f} ms  {choice}" for choice, seconds in rows]
        state = "chosen" if self.settled else "under trial"
        return "\n".join([f"formats of a batch, by sampling + forward + backward; {state}: {self.choice}", *lines])
