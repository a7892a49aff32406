"""Trials of the optimisers' steps on a device, against torch.optim in float64. Run by ``trials.py``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from cuda.halves import drawn
from cuda.recorded import Recorder, fused_updates
from torch import Tensor, nn

import graphweft as gw
from graphweft.runtime.cuda import updates
from graphweft.train.update import Update

SIZES = ((3, 5), (1,), (2, 521), (0, 4), (64,))
KINDS: tuple[tuple[type, type, dict[str, Any]], ...] = (
    (gw.optim.Adam, torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.8, 0.95)}),
    (gw.optim.AdamW, torch.optim.AdamW, {"weight_decay": 0.1, "eps": 1e-3}),
    (gw.optim.Adam, torch.optim.Adam, {"maximize": True}),
    (gw.optim.SGD, torch.optim.SGD, {"weight_decay": 0.1}),
    (gw.optim.SGD, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (gw.optim.SGD, torch.optim.SGD, {"momentum": 0.5, "nesterov": True, "maximize": True}),
)


def made(kind: Callable[..., Any], options: dict[str, Any], dtype: torch.dtype) -> tuple[Any, list[Tensor]]:
    """An optimiser of two groups with rates of their own; the last parameter has no gradient."""
    params = [nn.Parameter(drawn(*size, seed=at).to(dtype)) for at, size in enumerate(SIZES)]
    moved = nn.Parameter(drawn(9, seed=7)[1:].to(dtype))  # not aligned to 16 bytes in float32
    groups = [{"params": params[:2], "lr": 0.03}, {"params": [*params[2:], moved, nn.Parameter(drawn(2).to(dtype))]}]
    return kind(groups, lr=0.01, **options), [*params, moved]


def step(optimizer: Any, params: list[Tensor], at: int, scale: float | None = None) -> None:
    """With gradients of their own in every step, and rates that change."""
    for number, param in enumerate(params):
        param.grad = drawn(*param.shape, seed=10 * at + number).to(param.dtype)
        if scale is not None and param.dtype == torch.float64:
            param.grad *= scale
    for group in optimizer.param_groups:
        group["lr"] *= 0.9
    if scale is not None and params[0].dtype == torch.float32:
        optimizer.step_scaled(torch.tensor(scale))
    else:
        optimizer.step()


def same(mine: Any, others: Any) -> None:
    """Groups and state have one layout and close numbers."""
    state, wanted = mine.state_dict(), others.state_dict()
    assert state["param_groups"] == wanted["param_groups"] and set(state["state"]) == set(wanted["state"])
    for key, own in wanted["state"].items():
        assert set(own) == set(state["state"][key])
        for name, value in own.items():
            found = state["state"][key][name]
            if isinstance(value, Tensor):
                assert found.shape == value.shape
                torch.testing.assert_close(found.double(), value.double(), rtol=1e-5, atol=1e-6)
            else:
                assert found == value


def optimisers_step_as_torch_does() -> None:
    """Steps with and without a scale, then a checkpoint is taken up by the CPU's kernels, and its own by a device."""
    for kind, other, options in KINDS:
        mine, params = made(kind, options, torch.float32)
        wanted, exact = made(other, options, torch.float64)
        with fused_updates(), gw.config(target="cuda"):
            for at, scale in enumerate((None, None, 0.25)):
                step(mine, params, at, scale)
                step(wanted, exact, at, scale)
            same(mine, wanted)
            gradient = params[0].grad
            assert gradient is not None and torch.equal(gradient, drawn(*params[0].shape, seed=20))  # stays as it is
        onward, resumed = made(kind, options, torch.float32)
        with torch.no_grad():
            for param, value in zip(resumed, params, strict=True):
                param.copy_(value)
        onward.load_state_dict(copy.deepcopy(mine.state_dict()))
        step(onward, resumed, 3)  # by the native kernels
        step(wanted, exact, 3)
        same(onward, wanted)
        mine.load_state_dict(onward.state_dict())
        with torch.no_grad():
            for param, value in zip(params, resumed, strict=True):
                param.copy_(value)
        with fused_updates(), gw.config(target="cuda"):
            step(mine, params, 4)
            step(wanted, exact, 4)
            for own in mine.state.values():  # written by somebody else
                if "step" in own:
                    own["step"].fill_(9.0)
            for own in wanted.state.values():
                if "step" in own:
                    own["step"].fill_(9.0)
            step(mine, params, 5)
            step(wanted, exact, 5)
        same(mine, wanted)
        for param, value in zip(params, exact, strict=True):
            torch.testing.assert_close(param.double(), value, rtol=1e-5, atol=1e-6)


def steps_are_one_launch() -> None:
    """Whatever the number of parameters and groups; a table is sent once where gradients lie where they did."""
    launches, tables = list[object](), list[object]()
    inner, sent = updates.Updates._table, updates.Updates._sent
    mine, params = made(gw.optim.Adam, {}, torch.float32)
    for number, param in enumerate(params):
        param.grad = drawn(*param.shape, seed=number)

    def noted(self: Any, *given: Any) -> Any:
        launches.append(given)
        return inner(self, *given)

    def sending(self: Any, words: Any, size: int) -> Tensor:
        tables.append(size)
        return sent(self, words, size)

    updates.Updates._table, updates.Updates._sent = noted, sending  # type: ignore[method-assign]
    try:
        with fused_updates(), gw.config(target="cuda"):
            for _ in range(3):
                mine.step()
    finally:
        updates.Updates._table, updates.Updates._sent = inner, sent  # type: ignore[method-assign]
    assert len(launches) == 3 and len(tables) == 1


def a_recorded_step_is_the_step() -> None:
    """Launched again with other rates, between steps as they come, and after the state was put back: the same bits."""
    found: list[list[float]] = []
    for recorded in (False, True):
        mine, params = made(gw.optim.AdamW, {"weight_decay": 0.1}, torch.float32)
        model = nn.Module()
        model.params = nn.ParameterList(params)
        update = Update(model, mine, clip=0.5)

        def body(update: Update = update, params: list[Tensor] = params) -> None:
            for param in params:
                param.grad = param.detach() * 3 + 1  # new memory, within a recording its own
            update.step()

        with fused_updates(), gw.config(target="cuda"):
            body()
            update.write_rates()
            replay = Recorder(torch.device("cpu")).record(body)[0] if recorded else body
            held = [*params, *update.held()]
            before = [t.detach().clone() for t in held]
            for run in (replay, replay, body, replay):
                for group in mine.param_groups:
                    group["lr"] *= 0.7
                update.write_rates()
                run()
            after = [t.detach().clone() for t in params]
            with torch.no_grad():
                for tensor, value in zip(held, before, strict=True):
                    tensor.copy_(value)
            for run in (replay, body):
                run()
        found.append([n for t in (*after, *params, *mine.held()) for n in t.detach().reshape(-1).tolist()])
    assert found[0] == found[1]


TRIALS = (
    a_recorded_step_is_the_step,
    optimisers_step_as_torch_does,
    steps_are_one_launch,
)
