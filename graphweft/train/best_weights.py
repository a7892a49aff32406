"""The best weights of a run beside the last: which of them the model holds, and when.

Comes in: a model. Goes out: the model with the weights of the best validation epoch after training, and with the last
ones when training goes on. Called by the trainer. Weights are copied in place, so that whatever points to them stays
right.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft._memory import POOL, empty

State = dict[str, Any]


class BestWeights:
    """Keeps a copy of the best weights and, while the model holds them, of the last.

    Attributes:
        restores: Whether the model holds the best weights after training, as Keras' ``restore_best_weights``.
        best: The best so far; empty where there are none.
    """

    def __init__(self, model: nn.Module, restores: bool) -> None:
        if not isinstance(restores, bool):
            raise ConfigError(f"restore_best: expected True or False, got {restores!r}")
        self._model, self.restores = model, restores
        self._last: State | None = None  # while the model holds others
        self._put: State = {}  # those others
        self.best: State = {}

    def keep(self, averages: Mapping[str, Tensor]) -> None:
        """The model, with ``averages`` in the places of its parameters, has the best weights so far."""
        self.best = _copy(self._averaged(averages), self.best)

    def with_averages(self, averages: Mapping[str, Tensor]) -> State:
        """A copy of the weights that training continues from, with ``averages`` in the places of parameters."""
        return _copy(self._averaged(averages))

    def _averaged(self, averages: Mapping[str, Tensor]) -> State:
        return {name: averages.get(name, value) for name, value in self.last().items()}

    def last(self) -> State:
        """The weights that training continues from: the last ones, or those that a user has put in since."""
        present: State = self._model.state_dict()
        return self._last if self._last is not None and _same(present, self._put) else present

    def put_last(self) -> None:
        """Before training continues. Weights that a user has put in after the last training stay."""
        last = self.last()
        if last is self._last:
            self._model.load_state_dict(last)
        self._last = None

    def put_best(self, averages: Mapping[str, Tensor]) -> None:
        """After training: the best weights, or where there are none, or they are not wanted, the averages.

        Warns: UserWarning where the model has other weights than when the best epoch was.
        """
        if self._last is not None:
            return
        wanted = self.best if self.restores else {}
        if not wanted and not averages:
            return
        wanted = wanted or self.with_averages(averages)
        present = self._model.state_dict()
        if _same(present, wanted):
            return
        if not _fits(present, wanted):
            text = "restore_best: the model has other parameters than in its best epoch, so it keeps the last weights"
            warnings.warn(text, stacklevel=3)
            return
        self._last, self._put = _copy(present), wanted
        self._model.load_state_dict(wanted)

    def forget(self) -> None:
        """No weights are the best any more."""
        self.best = {}

    def load(self, last: Mapping[str, Any], best: Mapping[str, Any]) -> None:
        """Both from a checkpoint; the model holds the last."""
        kept = _copy(best)
        self._model.load_state_dict(last)
        self.best, self._last = kept, None


def _copy(state: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> State:
    """A copy, in the memory of ``into`` where that has such tensors: there are never two of the best weights."""
    room = into or {}
    return {
        name: _copied(value, room.get(name)) if isinstance(value, Tensor) else value for name, value in state.items()
    }


def _copied(value: Any, room: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if isinstance(room, Tensor) and (room.shape, room.dtype, room.device) == (value.shape, value.dtype, value.device):
        return room.copy_(value)
    if value.device.type != "cpu" or value.layout != torch.strided or value.nbytes < POOL.page:
        return value.clone()  # a page of the pool that only a small copy lies in would stay until the end
    return empty(tuple(value.shape), value.dtype).copy_(value)


def _fits(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether both have the same names and shapes."""
    return a.keys() == b.keys() and all(getattr(a[name], "shape", ()) == getattr(b[name], "shape", ()) for name in a)


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether both hold the same numbers."""
    tensors = [name for name, value in a.items() if isinstance(value, Tensor)]
    return _fits(a, b) and all(torch.equal(a[name], b[name].to(a[name].device)) for name in tensors)
