"""Options that several ranks cannot train with together yet.

Comes in: how many ranks there are, and options. Goes out: nothing, or a ConfigError. Called by the trainer, and by the
command before it starts ranks; imports no torch, so that what is refused is refused at once.
"""

from __future__ import annotations

from typing import Any

from graphweft._errors import ConfigError


def check_together(size: int, reduce: str, halo: str, task: str, mode: str, loss: Any, class_weight: Any) -> None:
    """Raises: ConfigError for what ``size`` ranks cannot train together yet.

    Example:
        >>> check_together(2, "any", "exact", "nodes", "macro", None, None)
        Traceback (most recent call last):
        graphweft._errors.ConfigError: mode=macro cannot be combined with ranks=2; use mode='mini' or one rank
    """
    if halo != "exact" and mode == "mini":
        raise ConfigError(f"halo={halo} cannot be combined with mode=mini; it is for mode='full' over ranks")
    if halo != "exact" and size == 1:
        raise ConfigError("halo: expected ranks=2 or more with it, got one process")
    if size == 1 and reduce != "ordered":
        return
    if mode == "macro":
        raise ConfigError(f"mode=macro cannot be combined with ranks={size}; use mode='mini' or one rank")
    if task not in ("nodes", "link"):
        raise ConfigError(f"task={task} cannot be combined with ranks={size}; use one rank")
    for name, given in (("loss", loss), ("class_weight", class_weight)):
        if given is not None:  # a mean over a slice of a batch may not be a share of the mean over the batch
            raise ConfigError(f"{name} cannot be combined with ranks={size}; use one rank")
    if mode != "mini" and reduce == "ordered":
        raise ConfigError(f"mode={mode} cannot be combined with rank_reduce=ordered; use mode='mini'")
