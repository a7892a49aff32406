"""Pictures of runs: loss above, scores below, one run by its splits or several beside each other.

Comes in: histories. Goes out: a figure, or an image file, written atomically. Called by the trainer at the end of a
fit, by ``History.plot`` and the command ``plot``. Drawn without ``pyplot`` and without a display.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from graphweft._errors import ConfigError
from graphweft.train.atomic import write_atomic
from graphweft.train.record import EpochRecord
from graphweft.train.scores import ERRORS, axis_of, shown

PICTURES = (".png", ".svg", ".pdf")
_INK, _GRID = "#333333", "#e4e4e4"
_CURVES = {"train": "#9aa5b1", "val": "#e08214", "test": "#2166ac"}
_RUNS = ("#2166ac", "#e08214", "#1b7837", "#b2182b", "#762a83", "#35978f", "#8c510a", "#c51b7d", "#4d4d4d", "#a6761d")
_STYLES = ("-", "--", ":", "-.")
_GAP = 0.01  # of the figure's width, between a legend and what is beside it
_MOST_NAMED = len(_RUNS) * 2  # runs that a legend has room for


class Epochs(Protocol):
    """A history as it is drawn."""

    def __iter__(self) -> Iterator[EpochRecord]: ...
    def __len__(self) -> int: ...
    @property
    def best(self) -> EpochRecord | None:
        """The best validation epoch."""


class NamedRun(NamedTuple):
    """A run among others.

    Attributes:
        name: In the legend.
        history: Its epochs.
    """

    name: str
    history: Epochs


def write_plot(path: Path, history: Epochs, title: str, metric: str = "accuracy") -> None:
    """Writes :func:`picture_of` a run. Raises: OSError when the folder cannot be written."""
    write_picture(path, picture_of(history, title, metric))


def write_picture(path: Path, figure: Any) -> None:
    """Writes a figure as its name says. Raises: ConfigError for another ending; OSError."""
    check_picture("path", path)
    kind = path.suffix.lower().lstrip(".")
    quick = {"pil_kwargs": {"compress_level": 1}} if kind == "png" else {}  # smaller files take most of the time
    write_atomic(path, lambda file: figure.savefig(file, format=kind, **quick))


def check_picture(name: str, path: str | Path) -> None:
    """Raises: ConfigError for a file that is no picture."""
    if Path(path).suffix.lower() not in PICTURES:
        raise ConfigError(f"{name}: expected a file name ending in .png, .svg or .pdf, got {str(path)!r}")


def picture_of(history: Epochs, title: str, metric: str = "accuracy") -> Any:
    """Losses and ``metric`` of every split over epochs, the best validation epoch marked, its test score above."""
    figure, upper, lower = _panels(title, metric)
    marker = "o" if len(history) == 1 else None
    losses = {"train": [(r.epoch, r.loss) for r in history]}
    losses["val"] = [(r.epoch, r.val_loss) for r in history if r.val_loss is not None]
    scores = {part: [(r.epoch, value) for r in history if (value := r.score(part)) is not None] for part in _CURVES}
    for axis, curves, of in ((upper, losses, None), (lower, scores, metric)):
        for part, points in curves.items():
            if points:
                x, y = zip(*points, strict=True)
                last = f"{y[-1]:.3g}" if of is None else shown(y[-1], of)
                label = f"{part}  {last}"
                axis.plot(x, y, color=_CURVES[part], linewidth=1.8, label=label, marker=marker)
    best = history.best
    best_score = None if best is None else best.score("val")
    if best is not None and best_score is not None:
        for axis in (upper, lower):
            axis.axvline(best.epoch, color=_CURVES["val"], linewidth=1, linestyle=":")
        lower.plot([best.epoch], [best_score], "o", color=_CURVES["val"], markersize=6, zorder=5)
        upper.set_title(best_note(best, metric), loc="right", fontsize=9, color=_INK)
    _legends(figure, (upper, lower), "last epoch")
    return figure


def best_note(best: EpochRecord, metric: str) -> str:
    """What is to be known of the best epoch.

    Example:
        >>> best_note(EpochRecord(7, 0.1, val_acc=0.8, test_acc=0.75), "accuracy")
        'best validation: 80.0 % at epoch 7, test 75.0 %'
    """
    score, test = best.score("val"), best.score("test")
    told = "" if score is None else f"best validation: {shown(score, metric)} at epoch {best.epoch}"
    return told if test is None else f"{told}, test {shown(test, metric)}"


def picture_of_several(runs: Sequence[NamedRun], title: str, metric: str) -> Any:
    """Validation loss (the training loss where there is none) and validation score of every run.

    The legend has the test score of each run's best epoch.
    """
    figure, upper, lower = _panels(title, metric)
    upper.set_ylabel("validation loss" if _have_losses(runs) else "training loss", color=_INK)
    lower.set_ylabel(f"validation {axis_of(metric)}", color=_INK)
    for place, run in enumerate(runs):
        look = {"color": _RUNS[place % len(_RUNS)], "linestyle": _STYLES[place // len(_RUNS) % len(_STYLES)]}
        losses = [(r.epoch, r.val_loss if _have_losses(runs) else r.loss) for r in run.history]
        scores = [(r.epoch, r.score("val")) for r in run.history]
        best = run.history.best
        test = None if best is None else best.score("test")
        label = run.name if test is None else f"{run.name}  {shown(test, metric)}"
        label = label if place < _MOST_NAMED else "_"
        for axis, points, named in ((upper, losses, "_"), (lower, scores, label)):
            there = [point for point in points if point[1] is not None]
            x, y = zip(*there, strict=True) if there else ((), ())
            axis.plot(x, y, **look, linewidth=1.5, label=named, marker="o" if len(there) == 1 else None)
        if best is not None and best.score("val") is not None:
            lower.plot([best.epoch], [best.score("val")], "o", color=look["color"], markersize=5, zorder=5)
    more = f"\nand {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    _legends(figure, (lower,), f"test at the best epoch{more}")
    return figure


def _have_losses(runs: Sequence[NamedRun]) -> bool:
    """Whether every run has validation losses."""
    return all(any(record.val_loss is not None for record in run.history) for run in runs)


def _panels(title: str, metric: str) -> tuple[Any, Any, Any]:
    """A figure with a panel for losses above one for scores."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else it tells of its font cache on standard error
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), dpi=140)
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.4))
    figure.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold", color=_INK)
    upper.set_ylabel("loss", color=_INK)
    lower.set_ylabel(axis_of(metric), color=_INK)
    lower.set_xlabel("epoch", color=_INK)
    for axis in (upper, lower):
        _tidy(axis)
    if metric not in ERRORS:
        lower.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    return figure, upper, lower


def _legends(figure: Any, axes: Sequence[Any], title: str) -> None:
    """Beside the curves, which they would cover, and as much room as they need.

    Matplotlib's own layouts give the same room in as much time as all drawing takes.
    """
    width, renderer = 0.0, figure.canvas.get_renderer()
    for axis in axes:
        if axis.get_legend_handles_labels()[0]:
            legend = axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize=9, title=title)
            legend.get_title().set_fontsize(9)
            width = max(width, legend.get_window_extent(renderer).width / figure.bbox.width + _GAP)
    figure.subplots_adjust(left=0.085, right=max(0.4, 1 - _GAP - width), bottom=0.085, top=0.9, hspace=0.08)


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
