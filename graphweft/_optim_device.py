"""Steps of optimisers on devices: one launch of a kernel of the target, or torch's fused ones.

Comes in: parameter groups and state of a ``torch.optim.Optimizer``. Goes out: the step, and what a device needs to
record it and launch it again. Learning rates lie in the memory of the device, so that a recorded step follows a
schedule. Part of the classes of ``optim.py``.
"""

from __future__ import annotations

import abc
from collections import defaultdict
from operator import is_
from typing import Any

import torch

from graphweft import _config
from graphweft.runtime.cuda.updates import Stepped, Updates
from graphweft.runtime.targets import target_of


def is_run(tensor: torch.Tensor) -> bool:
    """Whether the kernels of devices can walk it: one run of float32 values."""
    return tensor.dtype is torch.float32 and tensor.layout is torch.strided and tensor.is_contiguous()


def is_fused(group: dict[str, Any]) -> bool:
    """Whether torch has one kernel for all parameters, as on CUDA devices, and nobody asked for another."""
    asked = group["foreach"] is not None or group["fused"] is not None or group["differentiable"]
    dense = all(p.grad is None or not p.grad.is_sparse for p in group["params"])
    return not asked and dense and all(p.is_cuda and p.is_floating_point() for p in group["params"])


class DeviceSteps(abc.ABC):
    """What classes of ``torch.optim`` have beside for devices."""

    param_groups: list[dict[str, Any]]
    state: defaultdict[torch.Tensor, Any]
    _kind: str  # of the kernels
    _scale: torch.Tensor | None = None  # of the gradients of the step under way
    _updates: dict[torch.device, Updates | None] = {}  # noqa: RUF012  # replaced when there is one
    _ready_for: Any = None  # the state that recorded steps are ready for
    _rates: tuple[tuple[torch.Tensor, float], ...] = ()  # by group: where the kernel reads it, and what is there
    _walked: dict[torch.Tensor, tuple[torch.Tensor, ...]] = {}  # noqa: RUF012  # state that kernels walk, by parameter

    def write_rates(self) -> None:
        """Writes learning rates that have changed to where kernels of a device read them.

        Afterwards a step can be recorded where :meth:`is_recordable` says so.
        """
        if self._ready_for is not self.state or not all(own is None or own.is_ready for own in self._updates.values()):
            self._make_ready()
        known, self._rates = self._rates, ()
        for at, group in enumerate(self.param_groups):
            place = group["params"][0].device if group["params"] else torch.device("cpu")
            rate = 0.0 if isinstance(group["lr"], torch.Tensor) else float(group["lr"])  # a tensor is read itself
            held = known[at] if at < len(known) and known[at][0].device == place else None
            if held is None:
                held = torch.full((), rate, dtype=torch.float32, device=place), rate
            elif held[1] != rate:
                held = held[0].fill_(rate), rate
            self._rates = (*self._rates, held)

    def _make_ready(self) -> None:
        """Takes what a recorded step needs of memory; parameters without state may be part of it."""
        for place, updates in self._updates.items():
            params = [p for group in self.param_groups for p in group["params"] if p.device == place]
            if updates is not None:
                updates.ready(params, {p: self.state[p]["step"] for p in params if "step" in self.state.get(p, {})})
        self._ready_for = self.state

    def _updates_on(self, place: torch.device) -> Updates | None:
        """What steps parameters there in one launch; None where torch does."""
        make, config = target_of(place).updates, _config.current()
        if make is None or not config.opt_level or self._kind in config.disabled_kernels.split(","):
            return None
        if place not in self._updates:
            self._updates = {**self._updates, place: make(self._kind, place)}
        return self._updates[place]

    @abc.abstractmethod
    def _changed(self, number: int, param: torch.Tensor) -> tuple[bool, tuple[torch.Tensor, ...]]:
        """Whether the step fills the state of a parameter, and that state, made on its first step."""

    @abc.abstractmethod
    def _settings(self, group: dict[str, Any]) -> tuple[float, ...]:
        """What a kernel is told of a group beside its rate."""

    def _row(self, number: int, param: torch.Tensor) -> Stepped | None:
        """What a kernel of a device is told of a parameter; None where torch steps it."""
        grad = param.grad
        if grad is None or not param.numel() or not is_run(param) or not is_run(grad):
            return None
        first, state = self._changed(number, param)
        known = self._walked.get(param, ())
        if len(known) != len(state) or not all(map(is_, known, state)):
            if not all(is_run(t) and t.device == param.device for t in state):
                return None
            self._walked = self._walked or {}
            self._walked[param] = state
        return Stepped(number, param, grad, state, first)

    def _by_kernels(self, left: list[tuple[int, list[torch.Tensor]]]) -> list[tuple[int, list[torch.Tensor]]]:
        """Steps parameters on devices, in one launch on each; gives those that are left for torch."""
        others, found = list[tuple[int, list[torch.Tensor]]](), defaultdict[torch.device, list[Stepped]](list)
        fused = [number for number, _ in left if is_fused(self.param_groups[number])]
        if fused:
            self.write_rates()
        kernels = {place: self._updates_on(place) for place in {p.device for _, params in left for p in params}}
        for number, params in left:
            may = number in fused and not isinstance(self.param_groups[number]["lr"], torch.Tensor)
            rest = list[torch.Tensor]()
            for param in params:
                row = self._row(number, param) if may and kernels[param.device] is not None else None
                if row is None:
                    rest.append(param)
                else:
                    found[param.device].append(row)
            if rest:
                others.append((number, rest))
        for place, rows in found.items():
            updates = kernels[place]
            assert updates is not None  # asked for above
            knobs = [self._settings(group) for group in self.param_groups]
            updates(rows, knobs, [rate for rate, _ in self._rates], self._scale)
        if self._scale is not None:
            for grad in (p.grad for _, params in others for p in params):
                if grad is not None:
                    grad.mul_(self._scale)
        return others

    def scales(self) -> bool:
        """Whether :meth:`step_scaled` saves a pass over the gradients: a device's kernel makes the step."""
        groups = [group for group in self.param_groups if group["params"]]
        return all(is_fused(g) and self._updates_on(p.device) is not None for g in groups for p in g["params"])

    def step_scaled(self, scale: torch.Tensor) -> None:
        """A step by gradients times ``scale``, shape () there, which leaves them as they are; see :meth:`scales`."""
        self._scale = scale
        try:
            self.step()
        finally:
            self._scale = None

    @abc.abstractmethod
    def step(self) -> Any:
        """One step."""

    def _fused(self, group: dict[str, Any]) -> dict[str, Any]:
        """``group`` for torch's fused kernel, with its rate in the memory of the device."""
        if isinstance(group["lr"], torch.Tensor):
            return {**group, "fused": True}
        if "amsgrad" in group:
            for param in group["params"]:  # counts of steps lie where the kernel reads them
                if "step" in self.state.get(param, {}):
                    self.state[param]["step"] = self.state[param]["step"].to(param.device)
        return {**group, "fused": True, "lr": self._rates[group["number"]][0]}

    def is_recordable(self) -> bool:
        """Whether a step is launches alone, which read and write memory that is there: see ``train/update.py``."""
        keeps = any(group.get("momentum", 1.0) != 0 for group in self.param_groups)
        trained = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        return (
            all(is_fused(group) and not isinstance(group["lr"], torch.Tensor) for group in self.param_groups)
            and bool(trained)
            and (not keeps or all(self.state.get(p) for p in trained))
            and all(t.device == p.device for p in trained for t in self._state_of(p))
        )

    def _state_of(self, param: torch.Tensor) -> list[torch.Tensor]:
        """What is kept of a parameter; a step moves what a checkpoint left elsewhere."""
        return [t for t in self.state.get(param, {}).values() if isinstance(t, torch.Tensor)]

    def places(self) -> tuple[Any, ...]:
        """What a recorded step depends on: settings but rates, and where its state lies."""
        settings = [(k, v) for group in self.param_groups for k, v in group.items() if k not in ("params", "lr")]
        return (*settings, *(t.data_ptr() for t in self.held()), *(rate.data_ptr() for rate, _ in self._rates))

    def held(self) -> list[torch.Tensor]:
        """The state that a step changes."""
        counts = [t for updates in self._updates.values() if updates is not None for t in updates.held()]
        return [*(t for param in self.state for t in self._state_of(param)), *counts]


__all__ = ["DeviceSteps", "is_fused", "is_run"]
