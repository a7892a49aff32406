"""The picture of a run: loss above, accuracies below, as a PNG.

Comes in: a history. Goes out: an image file, written atomically. Called by the trainer at the end of a fit. Drawn
without ``pyplot`` and without a display.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from graphweft.train.atomic import write_atomic
from graphweft.train.history import History
from graphweft.train.scores import ERRORS, axis_of, shown

_INK, _GRID = "#333333", "#e4e4e4"
_LOSS = "#4c566a"
_CURVES = {"train": "#9aa5b1", "val": "#e08214", "test": "#2166ac"}


def write_plot(path: Path, history: History, title: str, metric: str = "accuracy") -> None:
    """Loss and ``metric`` over epochs, with the best validation epoch marked.

    Raises: OSError when the folder cannot be written.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else it tells of its font cache on standard error
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.4))
    figure.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold", color=_INK)
    epochs = history.column("epoch")
    upper.plot(epochs, _numbers(history, "loss"), color=_LOSS, linewidth=1.8, marker=_marker(history))
    upper.set_ylabel("training loss", color=_INK)
    best = history.best
    for name, color in _CURVES.items():
        points = [(r.epoch, value) for r in history if (value := r.score(name)) is not None]
        if points:
            x, y = zip(*points, strict=True)
            label = f"{name}  {shown(y[-1], metric)}"
            lower.plot(x, y, color=color, linewidth=1.8, label=label, marker=_marker(history))
    best_score = None if best is None else best.score("val")
    if best is not None and best_score is not None:
        for axis in (upper, lower):
            axis.axvline(best.epoch, color=_CURVES["val"], linewidth=1, linestyle=":")
        lower.plot([best.epoch], [best_score], "o", color=_CURVES["val"], markersize=6, zorder=5)
        note = f"best validation: {shown(best_score, metric)} at epoch {best.epoch}"
        upper.set_title(note, loc="right", fontsize=9, color=_INK)
    lower.set_ylabel(axis_of(metric), color=_INK)
    lower.set_xlabel("epoch", color=_INK)
    for axis in (upper, lower):
        _tidy(axis)
    if lower.lines:
        errors = metric in ERRORS
        if not errors:
            lower.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        lower.legend(
            frameon=False,
            loc="upper right" if errors else "lower right",
            fontsize=9,
            title="last epoch",
            title_fontsize=9,
        )
    write_atomic(path, lambda file: figure.savefig(file, format="png"))


def _tidy(axis: Any) -> None:
    """Light grid, no box."""
    axis.grid(color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK, labelsize=9)
    axis.margins(x=0.01)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#999999")


def _numbers(history: History, name: str) -> list[float]:
    return [float("nan") if value is None else float(value) for value in history.column(name)]


def _marker(history: History) -> str | None:
    """A single epoch is no line; it is drawn as a point."""
    return "o" if len(history) == 1 else None
