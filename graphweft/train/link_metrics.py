"""How well scores tell edges from other pairs, and how high an edge ranks among others, with ties defined.

Comes in: scores. Goes out: numbers in [0, 1]; None where there is nothing to count. Called by the link prediction task
and by users. Ties: in :func:`roc_auc` a tied pair counts half; :func:`average_precision` takes equal scores as one
threshold; a rank is the mean of the best and the worst place that ties allow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft._errors import ConfigError, ShapeError


def roc_auc(positive: Tensor, negative: Tensor) -> float | None:
    """Probability that a positive scores higher than a negative: the area under the ROC curve (Mann and Whitney, 1947).

    Shape: positive (P,), negative (N,).

    Example:
        >>> roc_auc(torch.tensor([0.9, 0.5]), torch.tensor([0.5, 0.1]))
        0.875
    """
    positive, negative = _scores("roc_auc", positive), _scores("roc_auc", negative).sort().values
    if positive.numel() == 0 or negative.numel() == 0:
        return None
    below = torch.searchsorted(negative, positive, side="left")
    not_above = torch.searchsorted(negative, positive, side="right")
    twice = int(below.sum()) + int(not_above.sum())
    return twice / (2 * positive.numel() * negative.numel())


def average_precision(positive: Tensor, negative: Tensor) -> float | None:
    """Mean over positives of the precision at their score; no interpolation.

    Shape: positive (P,), negative (N,).

    Example:
        >>> average_precision(torch.tensor([0.9, 0.4]), torch.tensor([0.5]))
        0.8333333333333333
    """
    positive = _scores("average_precision", positive).sort().values
    negative = _scores("average_precision", negative).sort().values
    if positive.numel() == 0:
        return None
    true = positive.numel() - torch.searchsorted(positive, positive, side="left")
    false = negative.numel() - torch.searchsorted(negative, positive, side="left")
    return float((true.double() / (true + false)).mean())


def ranks(positive: Tensor, negative: Tensor) -> Tensor:
    """float64 (P,): place of every positive among its negatives, 1 being the best.

    Shape: positive (P,); negative (P, N), a row per positive, or (N,), the same for all.

    Raises: ShapeError, ConfigError for a score that is not a number.

    Example:
        >>> ranks(torch.tensor([0.5, 0.5]), torch.tensor([[0.1, 0.9], [0.5, 0.5]])).tolist()
        [2.0, 2.0]
    """
    positive, negative = _scores("ranks", positive), _scores("ranks", negative, dims=(1, 2))
    if negative.dim() == 1:
        ordered = negative.sort().values
        above = negative.numel() - torch.searchsorted(ordered, positive, side="right")
        not_below = negative.numel() - torch.searchsorted(ordered, positive, side="left")
    else:
        if negative.shape[0] != positive.shape[0]:
            raise ShapeError(f"ranks: expected {positive.shape[0]} rows of negatives, got {negative.shape[0]}")
        above = (negative > positive[:, None]).sum(1)
        not_below = (negative >= positive[:, None]).sum(1)
    return 1 + (above + not_below).double() / 2


def mean_reciprocal(places: Tensor) -> float | None:
    """Mean of 1 / place of some :func:`ranks`."""
    return float((1 / places).mean()) if places.numel() else None


def hits_at(k: int, positive: Tensor, negative: Tensor) -> float | None:
    """Share of the positives whose rank is at most ``k``. Shapes as for :func:`ranks`.

    Raises: ConfigError for k below 1.

    Example:
        >>> hits_at(1, torch.tensor([0.5, 0.5]), torch.tensor([[0.1, 0.2], [0.6, 0.1]]))
        0.5
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"hits_at: expected k as an integer >= 1, got {k!r}")
    return share_within(k, ranks(positive, negative))


def share_within(k: int, places: Tensor) -> float | None:
    """Share of some :func:`ranks` that are at most ``k``."""
    return float((places <= k).double().mean()) if places.numel() else None


def _scores(who: str, scores: Tensor, dims: tuple[int, ...] = (1,)) -> Tensor:
    """float64 scores. Raises: ShapeError, ConfigError for one that is not a number."""
    try:
        scores = torch.as_tensor(scores).detach().double()
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"{who}: expected scores as numbers, got {type(scores).__name__}") from None
    if scores.dim() not in dims:
        raise ShapeError(f"{who}: expected scores with {' or '.join(map(str, dims))} dimensions, got {scores.dim()}")
    if bool(scores.isnan().any()):
        raise ConfigError(f"{who}: expected scores that are numbers, got nan")
    return scores
