"""How scores are shown: fractions as per cent, errors as numbers.

Comes in: a score and the name of its metric. Goes out: text. Called by progress, plots and the command line; imports
no torch.
"""

from __future__ import annotations

ERRORS = ("RMSE", "MAE")  # metrics in the units of the labels, lower being better
_PLAIN = ("r2", "rmse", "mae")  # metrics by name that are no share of anything
PARTS = ("train", "val", "test")


def shown(value: float, metric: str) -> str:
    """The score for people.

    Example:
        >>> shown(0.8125, "accuracy"), shown(0.8125, "RMSE"), shown(-1.25, "r2")
        ('81.2 %', '0.8125', '-1.25')
    """
    return f"{value:.4g}" if metric in ERRORS or metric.lower() in _PLAIN else f"{100 * value:.1f} %"


def axis_of(metric: str) -> str:
    """What an axis of the metric is called."""
    return f"{metric} (lower is better)" if metric in ERRORS else metric
