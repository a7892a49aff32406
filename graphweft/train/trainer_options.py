"""The options of a trainer as one value, from which a run can be set up more than once.

Comes in: the arguments of :class:`Trainer`, which says what they mean. Goes out: :class:`TrainerOptions`. Used by the
trainer; what is allowed is in the table of :class:`TrainSpec`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import nn

from graphweft._checks import as_plain
from graphweft._errors import ConfigError
from graphweft.data.dataset import Dataset
from graphweft.dist.ranks import Ranks
from graphweft.schedule.subtasks import Subtasks
from graphweft.train.chosen import Chosen
from graphweft.train.options import USUAL_RATE
from graphweft.train.other_keywords import refuse
from graphweft.train.samplers import AnySampler

P = ParamSpec("P")
V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class TrainerOptions(Chosen):
    """The arguments of :class:`Trainer`, those of :class:`Chosen` among them."""

    model: nn.Module
    ds: Dataset
    lr: float = USUAL_RATE
    mode: str | None = None
    weight_decay: float = 0.0
    weight_decay_on: str = "all"
    optimizer: str | torch.optim.Optimizer = "adam"
    seed: int = 0
    _: KW_ONLY
    patience: int = 0
    stop_on: str = "accuracy"
    restore_best: bool = True
    eval_every: int = 1
    out: str | Path | None = None
    progress: bool = False
    keep_features: bool = True
    fanouts: Sequence[int] | None = None
    batch_size: int | None = None
    task: str = "nodes"
    macro: Any = None
    memory: int | str | None = None
    accumulate: int = 1
    sampler: str | AnySampler = "neighbor"
    prepare: str | Subtasks = "whole"
    edge_data: str = "use"
    trace: str | Path | None = None
    config: dict[str, Any] | None = None
    remember: dict[str, Any] | None = None
    ranks: Ranks | None = None
    device: Any = None
    schedule: Any = "auto"
    cuda_graphs: str = "auto"
    precision: str | None = None
    order: str = "auto"

    def check_kinds(self) -> None:
        """Raises: ConfigError for an option of another kind of object, which is not found where it is first used."""
        if not isinstance(self.ranks, Ranks | None):
            hint = "; graphweft train --ranks starts processes"
            raise ConfigError(f"ranks: expected gw.dist.Ranks, got {type(self.ranks).__name__}{hint}")
        for name in ("out", "trace"):
            if not isinstance(path := getattr(self, name), str | os.PathLike | None):
                raise ConfigError(f"{name}: expected a path, got {type(path).__name__}")
        for name in ("config", "remember"):
            if not isinstance(given := getattr(self, name), dict | None):
                raise ConfigError(f"{name}: expected a dict, got {type(given).__name__}")

    def chosen(self) -> Chosen:
        """The choices alone, without model and data."""
        return Chosen(**{field.name: getattr(self, field.name) for field in fields(Chosen)})


def takes(kind: Callable[P, V]) -> Callable[[Callable[[Any, V], None]], Callable[Concatenate[Any, P], None]]:
    """Lets an initialiser of one ``kind`` be called with the arguments that make it.

    Raises: ConfigError and TypeError as :func:`refuse`.

    Example:
        >>> class Shown:
        ...     @takes(Chosen)
        ...     def __init__(self, given):
        ...         print(given.loss, given.warmup)
        >>> _ = Shown(loss="l1")
        l1 0
    """
    known, made_by = tuple(inspect.signature(kind).parameters), cast(Any, kind)

    def wrap(take: Callable[[Any, V], None]) -> Callable[Concatenate[Any, P], None]:
        def initialise(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            refuse([name for name in kwargs if name not in known], known)
            try:
                given = made_by(*map(as_plain, args), **{name: as_plain(value) for name, value in kwargs.items()})
            except TypeError as failure:  # which names the function that was called
                raise TypeError(str(failure).replace(made_by.__qualname__, type(self).__qualname__)) from None
            take(self, given)

        functools.update_wrapper(initialise, made_by.__init__, assigned=())  # its signature
        return initialise

    return wrap


__all__ = ["TrainerOptions", "takes"]
