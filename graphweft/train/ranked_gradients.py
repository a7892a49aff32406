"""Gradients of a model as rows of numbers that ranks can add up.

Comes in: a model after its backward pass. Goes out: a row, and from the sum of rows the gradients. Called by the ways
to take a step over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.dist.ranks import Ranks


class GradientRows:
    """Gradients of a model as one row: numbers, then 1 for each parameter that has some, then the loss."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self._sizes = [parameter.numel() for parameter in self.parameters]
        self._numbers = sum(self._sizes)
        kinds = [parameter.dtype for parameter in self.parameters]
        self._dtype = torch.float64 if torch.float64 in kinds else torch.float32

    def rows(self, count: int) -> Tensor:
        """Room for the gradients of some slices, zeros."""
        return torch.zeros(count, self._numbers + len(self.parameters) + 1, dtype=self._dtype)

    def write(self, row: Tensor, share: float, loss: float) -> None:
        """The gradients that the parameters have, times ``share``."""
        given = [parameter.grad for parameter in self.parameters]
        found = [
            torch.zeros(parameter.numel(), dtype=self._dtype) if gradient is None else gradient.reshape(-1)
            for parameter, gradient in zip(self.parameters, given, strict=True)
        ]
        marks = [float(gradient is not None) for gradient in given]
        torch.cat([*found, torch.tensor([*marks, loss * share], dtype=self._dtype)], out=row)
        row[: self._numbers].mul_(share)

    def put(self, total: Tensor, weight: int, before: list[Tensor | None] | None) -> None:
        """Gives the parameters their summed gradients, times ``weight``, added to those from ``before``."""
        *parts, marks = torch.split(total, [*self._sizes, len(self.parameters) + 1])
        for index, (parameter, part, had) in enumerate(zip(self.parameters, parts, marks.tolist(), strict=False)):
            found = None
            if had > 0:
                found = part.view(parameter.shape).to(parameter.dtype)
                found = found * weight if weight != 1 else found
            known = None if before is None else before[index]
            parameter.grad = found if known is None else known if found is None else known + found


class LayerSums:
    """Sums gradients over ranks layer by layer: a layer's travel while those before it are computed.

    Args:
        ranks: All ranks, whose backward passes reach the layers in the same order.
        layers: The model's parts, each with parameters of its own.
        may_miss: Whether a parameter may have a gradient on some ranks alone; a number each then says so.

    Source: Morphling, section IV-D (pipelined backward pass).
    """

    def __init__(self, ranks: Ranks, layers: list[list[nn.Parameter]], may_miss: bool = False) -> None:
        self._ranks, self._layers, self._may_miss = ranks, layers, may_miss
        self._waits: list[tuple[list[nn.Parameter], Tensor, Callable[[], None]]] = []
        self._missing: list[int] = []

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Inside of it sums begin as soon as a layer's gradients are there; at its end all gradients are sums."""
        self._missing = [sum(p.requires_grad for p in layer) for layer in self._layers]
        with ExitStack() as hooks:
            for index, layer in enumerate(self._layers):
                for parameter in layer:
                    if parameter.requires_grad:
                        hook = parameter.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]
                        hooks.callback(hook.remove)
            yield
        for index, missing in enumerate(self._missing):
            if missing:  # some of its parameters are not read
                self._begin(index)
        for parameters, total, finish in self._waits:
            finish()
            marks = len(parameters) if self._may_miss else 0
            *parts, had = torch.split(total, [*(p.numel() for p in parameters), marks])
            for index, (parameter, found) in enumerate(zip(parameters, parts, strict=True)):
                if not marks or had[index] > 0:  # on some rank
                    parameter.grad = found.reshape(parameter.shape)
        self._waits.clear()

    def arrived(self, parameter: nn.Parameter) -> None:
        """Inside of :meth:`during_backward`: a gradient is there that torch's engine has not made."""
        at = next(index for index, layer in enumerate(self._layers) if any(parameter is one for one in layer))
        self._arrived(at, parameter)

    def _arrived(self, index: int, parameter: Tensor) -> None:
        self._missing[index] -= 1
        if self._missing[index] == 0:
            self._begin(index)

    def _begin(self, index: int) -> None:
        wanted = [p for p in self._layers[index] if p.requires_grad]
        parameters = wanted if self._may_miss else [p for p in wanted if p.grad is not None]
        if parameters:
            found = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters]
            if self._may_miss:
                found.append(torch.tensor([float(p.grad is not None) for p in parameters], dtype=found[0].dtype))
            total = torch.cat(found)
            self._waits.append((parameters, total, self._ranks.begin_add_up(total)))


class WholeSum:
    """Sums all gradients and the loss over ranks at once, as is cheapest on one host.

    Args:
        ranks: All ranks.
        layers: As :class:`LayerSums`; sums of layers are what bytes are counted by.
        may_miss: As :class:`LayerSums`.
    """

    def __init__(self, ranks: Ranks, layers: list[list[nn.Parameter]], may_miss: bool = False) -> None:
        self._ranks, self._may_miss = ranks, may_miss
        self._layers = [[p for p in layer if p.requires_grad] for layer in layers]

    @staticmethod
    def serves(ranks: Ranks, layers: list[list[nn.Parameter]]) -> bool:
        """Whether the ranks share a host, and the sum is small enough."""
        every = [p for layer in layers for p in layer]
        marks = 8 * (len(every) + 1)
        return len({p.dtype for p in every}) == 1 and ranks.adds_in_memory(sum(p.nbytes for p in every) + marks)

    def add(self, loss: float) -> Tensor:
        """Gradients become sums over ranks; the sum of losses, shape ()."""
        found: list[Tensor] = []
        parameters: list[nn.Parameter] = []
        sizes = [4]  # of the loss
        for layer in self._layers:
            own = layer if self._may_miss else [p for p in layer if p.grad is not None]
            found += [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in own]
            marks = len(own) if self._may_miss else 0
            sizes += [sum(p.nbytes for p in own) + marks * own[0].element_size()] if own else []
            parameters += own
        kind = found[0].dtype if found else torch.float32
        had = [float(p.grad is not None) for p in parameters] if self._may_miss else []
        total = torch.cat([*found, torch.tensor([*had, loss], dtype=kind)])
        self._ranks.add_up(total, sizes)
        parts = torch.split(total, [*(p.numel() for p in parameters), total.numel() - sum(map(torch.numel, found))])
        marked = parts[-1].tolist()
        for index, (parameter, part) in enumerate(zip(parameters, parts, strict=False)):
            if not self._may_miss or marked[index] > 0:  # on some rank
                parameter.grad = part.view(parameter.shape)
        return total[-1].float()


def check_model(ranks: Ranks, model: nn.Module) -> None:
    """Raises: ConfigError for a model whose result on a batch depends on who else is in it."""
    kinds = nn.modules.batchnorm._BatchNorm
    if any(isinstance(module, kinds) for module in model.modules()):
        raise conflict(ranks, "norm=batch", "norm='layer'")


def conflict(ranks: Ranks, what: str, remedy: str) -> ConfigError:
    """What is said of ``what``, which several ranks cannot share."""
    return ConfigError(f"{what} cannot be combined with ranks={ranks.size}; use {remedy} or one rank")
