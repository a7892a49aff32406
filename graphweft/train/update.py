"""One update of the parameters: clipping, the optimiser's step, and averages of what it made.

Comes in: a model whose parameters have gradients. Goes out: other parameters. Called, in the place of the optimiser, by
the ways to take a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import CheckpointError
from graphweft.optim import SGD, Adam
from graphweft.train.learning_rate import check_rates


class Update:
    """An optimiser with what is done before and after its step.

    Clipping is ``torch.nn.utils.clip_grad_value_``, then ``clip_grad_norm_``. Averages are those of
    ``torch.optim.swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn(decay)``: the first update copies the
    parameters, later ones move the averages by ``1 - decay`` of the way.

    Args:
        model: Its parameters are clipped and averaged.
        optimizer: Makes the step.
        clip: Largest norm of all gradients together; None: any.
        clip_value: Largest absolute value of an entry; None: any.
        ema: Decay of the averages; None: there are none.

    Attributes:
        optimizer: What makes the step.
        averages: Averaged parameters by name; empty before the first update, or where none are kept.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        clip: float | None = None,
        clip_value: float | None = None,
        ema: float | None = None,
    ) -> None:
        self._model, self.optimizer = model, optimizer
        self._own = optimizer if isinstance(optimizer, Adam | SGD) else None  # one that a device can record
        self._clip, self._clip_value, self._ema = clip, clip_value, ema
        self.averages: dict[str, Tensor] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimiser's."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """One update. Raises: ConfigError for a rate that is not finite, with the parameters as they are."""
        check_rates(self.optimizer, "lr")
        if self._clip_value is not None:
            nn.utils.clip_grad_value_(self._model.parameters(), self._clip_value)
        self._clipped_step()
        if self._ema is not None:
            self._average(1 - self._ema)

    def _clipped_step(self) -> None:
        """The optimiser's step; a kernel of a device scales gradients itself, which stay as they are."""
        optimizer = self.optimizer
        if self._clip is None:
            optimizer.step()
        elif self._own is not None and self._own.scales():
            norm = nn.utils.get_total_norm(p.grad for p in self._model.parameters() if p.grad is not None)
            self._own.step_scaled((self._clip / (norm + 1e-6)).clamp(max=1.0))
        else:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
            optimizer.step()

    def is_recordable(self) -> bool:
        """Whether a device can record an update and launch it again: all that it writes is there.

        That is so after the first update, by the optimisers of ``gw.optim``, where torch has one kernel for all
        parameters of a group.
        """
        if self._own is None or not self._own.is_recordable():
            return False
        return self._ema is None or len(self.averages) == len(dict(self._model.named_parameters()))

    def write_rates(self) -> None:
        """Writes learning rates that have changed to where a recorded update reads them; checks them as a step."""
        check_rates(self.optimizer, "lr")
        if self._own is not None:
            self._own.write_rates()

    def places(self) -> tuple[Any, ...]:
        """What a recorded update depends on beside parameters and gradients."""
        known = () if self._own is None else self._own.places()
        return (*known, *(average.data_ptr() for average in self.averages.values()))

    def held(self) -> list[Tensor]:
        """The state that an update changes beside the parameters."""
        known = [] if self._own is None else self._own.held()
        return [*known, *self.averages.values()]

    def _average(self, share: float) -> None:
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                if name in self.averages:
                    self.averages[name].lerp_(parameter, share)
                else:
                    self.averages[name] = parameter.detach().clone()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model has the averaged parameters within the block, where there are some."""
        parameters = dict(self._model.named_parameters())
        kept = {name: parameters[name].detach().clone() for name in self.averages}
        self._put(self.averages)
        try:
            yield
        finally:
            self._put(kept)

    def _put(self, values: dict[str, Tensor]) -> None:
        parameters = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, value in values.items():
                parameters[name].copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """The averages."""
        return {name: average.clone() for name, average in self.averages.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`. Raises: CheckpointError for averages of another model."""
        shapes = {name: parameter.shape for name, parameter in self._model.named_parameters()}
        for name, average in state.items():
            if shapes.get(name) != average.shape:
                raise CheckpointError(f"checkpoint: expected averages of this model, got {name} {tuple(average.shape)}")
        self.averages = {name: average.clone() for name, average in state.items()}
