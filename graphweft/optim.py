"""SGD, Adam and AdamW whose step is one native call over all float32 CPU tensors.

Comes in: parameters with gradients. Goes out: updated parameters; each parameter and state value is read and written
once a step. State, groups and ``state_dict`` are torch's own: the classes extend those of ``torch.optim`` and state
moves both ways. Parameters on a device are stepped by one launch of its target's kernel; other dtypes, and devices
without one, take torch's functional path within the same step. Called by the trainer and by users' own loops.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any, overload

import torch
from torch.optim.adam import adam as _torch_adam
from torch.optim.sgd import sgd as _torch_sgd

from graphweft import _native
from graphweft._abi import AdamTensor, SgdTensor
from graphweft._errors import ConfigError
from graphweft._optim_device import DeviceSteps, is_fused
from graphweft._torch_private import step_is_watched

__all__ = ["SGD", "Adam", "AdamW"]

_I64, _F64 = ctypes.c_int64, ctypes.c_double


_adam_step = _native.declare("gw_adam_f32")
_sgd_step = _native.declare("gw_sgd_f32")

Closure = Callable[[], float]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the native kernels can walk the tensor as one run of float32 values."""
    return tensor.dtype is torch.float32 and tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous()


def _native_gradient(param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor | None:
    """The gradient in the parameter's order where both take the native path, else None."""
    if not _is_plain(param):
        return None
    if _is_plain(grad):
        return grad
    return grad.contiguous() if grad.dtype is torch.float32 and grad.layout is torch.strided and grad.is_cpu else None


def _evaluate(closure: Closure | None) -> float | None:
    """The closure's loss, with gradients enabled; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _bare(name: str) -> Any:
    """``torch.optim.Optimizer``'s method as written, without the decorator around it."""
    method = getattr(torch.optim.Optimizer, name)
    return getattr(method, "__wrapped__", method)


def _when_asked(step: Callable[..., Any]) -> Callable[..., Any]:
    """``step`` with torch's hooks and its note to the profiler where there are any: the note alone takes longer than
    all else of a small step.
    """
    watched = torch.optim.Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def call(self: Any, closure: Closure | None = None) -> Any:
        return (watched if step_is_watched(self) else step)(self, closure)

    call.hooked = True  # type: ignore[attr-defined]  # torch does not wrap it once more
    return call


class _WithoutCompiler(DeviceSteps):
    """Keeps torch's compiler out: its decorator on these methods imports 800 modules: seconds, and memory."""

    add_param_group = _bare("add_param_group")
    state_dict = _bare("state_dict")
    load_state_dict = _bare("load_state_dict")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's, without a note to its profiler, which takes longer than the rest for small models."""
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none or param.grad is None:
                    param.grad = None
                elif param.grad.grad_fn is not None:
                    param.grad.detach_().zero_()
                else:
                    param.grad.requires_grad_(False).zero_()


_CALLS = 4  # prepared ones that are kept
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_moments_of, _gradient_of, _place_of = itemgetter(*_MOMENTS), attrgetter("grad"), torch.Tensor.data_ptr
_Knobs = tuple[float, float, float, float, float, bool, bool]


def _knobs(group: dict[str, Any]) -> _Knobs:
    """The settings of a group in the order of ``AdamTensor``."""
    beta1, beta2 = group["betas"]
    numbers = (float(group["lr"]), float(beta1), float(beta2), float(group["eps"]), float(group["weight_decay"]))
    return (*numbers, bool(group.get("decoupled_weight_decay", False)), bool(group["maximize"]))


_Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _nothing() -> None:
    """Stands for a gradient that is not there."""


def _references(gradients: list[torch.Tensor | None]) -> list[Callable[[], torch.Tensor | None]]:
    """What gives the gradients while they live: a dead one is not the same as none."""
    return [_nothing if gradient is None else weakref.ref(gradient) for gradient in gradients]


def _places(tensors: list[torch.Tensor], gradients: list[torch.Tensor | None]) -> list[int]:
    """Where parameters and gradients lie."""
    return [*map(_place_of, tensors), *(_place_of(gradient) for gradient in gradients if gradient is not None)]


@dataclass
class _Prepared:
    """A native call ready to be made again while parameters, gradients, state and settings are the same objects.

    It is looked at in every step, so the loops over parameters are those of the interpreter.
    """

    knobs: list[_Knobs]
    params: list[torch.Tensor]
    moments: list[tuple[torch.Tensor, dict[str, Any], _Moments]]
    table: ctypes.Array[AdamTensor]
    count: int
    rest: list[tuple[int, list[torch.Tensor]]]  # numbers of groups, with the parameters that torch steps
    copied: list[torch.Tensor]
    gradients: list[Callable[[], torch.Tensor | None]] = field(init=False)
    places: list[int] = field(init=False)

    def __post_init__(self) -> None:
        if self.rest or self.copied:  # torch's part and copies are new every step: nobody looks at this one again
            return
        self._take(list(map(_gradient_of, self.params)))
        self._stepped = [param for param, _, _ in self.moments]
        self._states = [own for _, own, _ in self.moments]
        self._kept = list(chain.from_iterable(kept for _, _, kept in self.moments))

    def _take(self, gradients: list[torch.Tensor | None]) -> None:
        self.gradients, self.places = _references(gradients), _places(self.params, gradients)

    def has_state(self, state: dict[torch.Tensor, Any]) -> bool:
        """Whether ``state`` still has what the call reads and writes: a user may clear or replace it."""
        if not all(map(is_, map(state.get, self._stepped), self._states)):
            return False
        try:
            return all(map(is_, chain.from_iterable(map(_moments_of, self._states)), self._kept))
        except KeyError:
            return False

    def fits(self, knobs: list[_Knobs]) -> bool:
        """Whether the call would be the same."""
        found = list(map(_gradient_of, self.params))
        known = [reference() for reference in self.gradients]
        return knobs == self.knobs and all(map(is_, found, known)) and self.places == _places(self.params, found)

    def renew(self, knobs: list[_Knobs]) -> bool:
        """Reads other gradients of the same parameters from now on; False where more has changed."""
        if knobs != self.knobs or self.rest or self.copied or len(self.params) != self.count:
            return False
        found = list(map(_gradient_of, self.params))
        if not all(grad is not None and _is_plain(grad) for grad in found) or not all(map(_is_plain, self.params)):
            return False
        if list(map(_place_of, self.params)) != self.places[: self.count]:
            return False
        self._take(found)
        for row, at in zip(self.table, self.places[self.count :], strict=True):
            row.grad = at
        return True


class Adam(_WithoutCompiler, torch.optim.Adam):
    """Adam as ``torch.optim.Adam`` (Kingma and Ba, ICLR 2015), fused into one pass over parameters and state.

    Args:
        params: Tensors or parameter groups.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the root of the second mean.
        weight_decay: Added to the gradient, times the parameter.
        amsgrad: Must be False; the option exists for compatibility with torch's signature and state.
        maximize: Ascend instead of descend.

    Raises: ConfigError where ``amsgrad`` is set, ValueError from torch for values out of range.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = Adam([weight], lr=0.5)
        >>> weight.sum().backward(); optimizer.step(); weight.data
        tensor([0.5000, 0.5000, 0.5000])
    """

    _decoupled, _kind = False, "adam"
    _known: tuple[_Prepared, ...] = ()  # the latest first

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            decoupled_weight_decay=self._decoupled,
        )
        self._refuse_amsgrad()

    def _refuse_amsgrad(self) -> None:
        if any(group["amsgrad"] for group in self.param_groups):
            raise ConfigError(f"{type(self).__name__}: expected amsgrad=False, got True; use torch.optim for amsgrad")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """State from a checkpoint or a pickle, torch's or our own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._known = ()
        self._refuse_amsgrad()
        if self._decoupled:
            for group in self.param_groups:
                group["decoupled_weight_decay"] = True

    def _settings(self, group: dict[str, Any]) -> tuple[float, ...]:
        return _knobs(group)[1:]

    def _changed(self, number: int, param: torch.Tensor) -> tuple[bool, tuple[torch.Tensor, ...]]:
        return False, self._moments(param)

    def _moments(self, param: torch.Tensor) -> _Moments:
        """The parameter's state by ``_MOMENTS``, made on its first step in torch's layout."""
        state: dict[str, Any] = self.state[param]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        if state["step"].device != param.device:  # of a run on a device
            state["step"] = state["step"].to(param.device)
        mean, square, step = (state[name] for name in _MOMENTS)
        return mean, square, step

    def _native_state(self, param: torch.Tensor) -> _Moments | None:
        """The same; None for a kind that the native kernel does not step."""
        mean, square, step = self._moments(param)
        return (mean, square, step) if _is_plain(mean) and _is_plain(square) and _is_plain(step) else None

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Closure) -> float: ...
    @_when_asked
    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:
        """One step over all groups; returns the closure's loss."""
        loss = _evaluate(closure)
        knobs = [_knobs(group) for group in self.param_groups]
        known = self._call(knobs)
        for number, rest in self._by_kernels(known.rest) if known.rest else ():
            self._torch_step({**self.param_groups[number], "params": rest, "number": number})
        if known.count:
            _adam_step(known.table, known.count)
        if known.rest or known.copied:  # torch's part, and gradients that were made contiguous, are new every step
            self._known = ()
        return loss

    def _call(self, knobs: list[_Knobs]) -> _Prepared:
        """The native call for the gradients as they are: recorded steps leave theirs in a few places by turns."""
        known = self._known
        at = next((at for at, one in enumerate(known) if one.fits(knobs)), len(known))
        if at == len(known) >= _CALLS and known[-1].renew(knobs):
            at -= 1
        if at == len(known) or not known[at].has_state(self.state):
            known, at = (self._prepare(knobs), *known[: _CALLS - 1]), 0
        self._known = (known[at], *known[:at], *known[at + 1 :])
        return known[at]

    def _prepare(self, knobs: list[_Knobs]) -> _Prepared:
        """The table of the native call, and what is left for torch."""
        rows: list[AdamTensor] = []
        params: list[torch.Tensor] = []
        moments: list[tuple[torch.Tensor, dict[str, Any], _Moments]] = []
        copied: list[torch.Tensor] = []  # live until the call is over
        left: list[tuple[int, list[torch.Tensor]]] = []
        for number, (group, settings) in enumerate(zip(self.param_groups, knobs, strict=True)):
            rest: list[torch.Tensor] = []
            for param in group["params"]:
                params.append(param)
                if param.grad is None:
                    continue
                grad = None if group["differentiable"] else _native_gradient(param, param.grad)
                state = None if grad is None else self._native_state(param)
                if grad is None or state is None:
                    rest.append(param)
                    continue
                if grad is not param.grad:
                    copied.append(grad)
                moments.append((param, self.state[param], state))
                places = (param.data_ptr(), grad.data_ptr(), *(moment.data_ptr() for moment in state))
                rows.append(AdamTensor(param.numel(), *places, *settings))
            if rest:
                left.append((number, rest))
        return _Prepared(knobs, params, moments, (AdamTensor * len(rows))(*rows), len(rows), left, copied)

    def _torch_step(self, group: dict[str, Any]) -> None:
        """Torch's functional Adam over one group."""
        if is_fused(group):
            group = self._fused(group)
        params: list[torch.Tensor] = []
        grads: list[torch.Tensor] = []
        means: list[torch.Tensor] = []
        squares: list[torch.Tensor] = []
        steps: list[torch.Tensor] = []
        has_complex = self._init_group(group, params, grads, means, squares, [], steps)  # type: ignore[no-untyped-call]
        _torch_adam(
            params,
            grads,
            means,
            squares,
            [],
            steps,
            foreach=group["foreach"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            fused=group["fused"],
            has_complex=has_complex,
            decoupled_weight_decay=bool(group.get("decoupled_weight_decay", False)),
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )


class AdamW(Adam):
    """AdamW as ``torch.optim.AdamW`` (Loshchilov and Hutter, ICLR 2019): weight decay shrinks the parameter itself.

    Arguments are those of :class:`Adam`; the default of ``weight_decay`` is 0.01.

    Raises: ConfigError where ``amsgrad`` is set, ValueError from torch for values out of range.
    """

    _decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class SGD(_WithoutCompiler, torch.optim.SGD):
    """Stochastic gradient descent as ``torch.optim.SGD``, fused into one pass over parameters and momentum.

    Args:
        params: Tensors or parameter groups.
        lr: Learning rate.
        momentum: Decay of the momentum buffer; 0 keeps none.
        dampening: Share of a new gradient that is not added to the buffer.
        weight_decay: Added to the gradient, times the parameter.
        nesterov: Whether to use Nesterov momentum.
        maximize: Ascend instead of descend.

    Raises: ValueError from torch for values out of range.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = SGD([weight], lr=0.25)
        >>> weight.sum().backward(); optimizer.step(); weight.data
        tensor([0.7500, 0.7500])
    """

    _kind = "sgd"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Closure) -> float: ...
    @_when_asked
    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:
        """One step over all groups; returns the closure's loss."""
        loss = _evaluate(closure)
        rows: list[SgdTensor] = []
        alive: list[torch.Tensor] = []  # gradients made contiguous live until the call is over
        left: list[tuple[int, list[torch.Tensor]]] = []
        for number, group in enumerate(self.param_groups):
            momentum = float(group["momentum"])
            knobs = (float(group["lr"]), momentum, float(group["dampening"]), float(group["weight_decay"]))
            flags = (bool(group["nesterov"]), bool(group["maximize"]))
            rest: list[torch.Tensor] = []
            for param in group["params"]:
                if param.grad is None:
                    continue
                grad = None if group["differentiable"] else _native_gradient(param, param.grad)
                first, buffer = (False, None) if grad is None or momentum == 0.0 else self._momentum_of(param)
                if grad is None or (buffer is not None and not _is_plain(buffer)):
                    rest.append(param)
                    continue
                alive.append(grad)
                addresses = (param.data_ptr(), grad.data_ptr(), None if buffer is None else buffer.data_ptr())
                rows.append(SgdTensor(param.numel(), *addresses, *knobs, *flags, first))
            if rest:
                left.append((number, rest))
        for number, rest in self._by_kernels(left) if left else ():
            self._torch_step({**self.param_groups[number], "params": rest, "number": number})
        if rows:
            _sgd_step((SgdTensor * len(rows))(*rows), len(rows))
        return loss

    def _settings(self, group: dict[str, Any]) -> tuple[float, ...]:
        named = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")
        return tuple(float(group[name]) for name in named)

    def _changed(self, number: int, param: torch.Tensor) -> tuple[bool, tuple[torch.Tensor, ...]]:
        first, buffer = self._momentum_of(param) if self.param_groups[number]["momentum"] else (False, None)
        return first, () if buffer is None else (buffer,)

    def _momentum_of(self, param: torch.Tensor) -> tuple[bool, torch.Tensor]:
        """Whether the step is the parameter's first, and its buffer, which that step fills."""
        state: dict[str, Any] = self.state[param]
        buffer: torch.Tensor | None = state.get("momentum_buffer")
        if buffer is not None:
            return False, buffer
        state["momentum_buffer"] = fresh = torch.empty_like(param)
        return True, fresh

    def _torch_step(self, group: dict[str, Any]) -> None:
        """Torch's functional SGD over one group."""
        group = self._fused(group) if is_fused(group) else group
        params: list[torch.Tensor] = []
        grads: list[torch.Tensor] = []
        buffers: list[torch.Tensor | None] = []
        sparse = self._init_group(group, params, grads, buffers)  # type: ignore[no-untyped-call]
        _torch_sgd(
            params,
            grads,
            buffers,
            has_sparse_grad=sparse,
            foreach=group["foreach"],
            fused=group["fused"],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
        )
        if group["momentum"] != 0:
            for param, buffer in zip(params, buffers, strict=True):
                self.state[param]["momentum_buffer"] = buffer
