"""How a trainer shows itself: what it trains, how, and how far it is.

Comes in: a trainer. Goes out: one line, or a table for notebooks. A base of :class:`graphweft.train.trainer.Trainer`.
"""

from __future__ import annotations

from typing import Any

from graphweft import _html
from graphweft.train.scores import shown


class ShownAsFacts:
    """Model, data, mode, epochs and the best scores."""

    def __repr__(self) -> str:
        facts = _facts(self)
        told = ", ".join(f"{name} {value}" for name, value in facts[4:])
        return f"Trainer({facts[0][1]} on {facts[1][1]}, task={facts[2][1]!r}, mode={facts[3][1]!r}, {told})"

    def _repr_html_(self) -> str:
        return _html.facts("Trainer", _facts(self))


def _facts(trainer: Any) -> list[tuple[str, str]]:
    """Names and texts; model, data, task and mode first."""
    history, metric = trainer.history, trainer.metric
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    facts = [
        ("model", type(trainer.model).__name__),
        ("data", trainer.ds.name),
        ("task", trainer.task),
        ("mode", trainer.mode),
        ("parameters", f"{count:,}"),
        ("epochs", f"{len(history):,}"),
    ]
    if history.last is not None:
        facts.append(("loss", f"{history.last.loss:.4g}"))
    if history.best is not None:
        facts.append(("best epoch", f"{history.best.epoch:,}"))
        scores = ((part, history.best.score(part)) for part in ("val", "test"))
        facts += [(f"{part} {metric}", shown(value, metric)) for part, value in scores if value is not None]
    return facts
