"""Full batches on a device, whose steps and evaluations are recorded once and launched again as graphs.

Comes in: what a :class:`FullBatch` takes. Goes out: the same losses, weights and scores. A step is one launch forward
with the loss, and one backward with the update; an evaluation is one. The first step runs call by call, as it makes
what later ones find, and so do steps that somebody traces. Made by ``steps.py`` where the target of the model's device
records launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft import _config
from graphweft._draws import call_key
from graphweft._errors import ConfigError
from graphweft._trace import active
from graphweft.nn.module import CompiledModule
from graphweft.nn.settings import settings_of
from graphweft.runtime.captured import draws_by_torch
from graphweft.runtime.compile import Arguments, CompiledFunction
from graphweft.runtime.constants import Reference, owning
from graphweft.runtime.function import Pullback
from graphweft.runtime.targets import target_of as plan_target
from graphweft.train.first_replay import Found, first_replay, kept
from graphweft.train.full_batch import FullBatch, is_plain
from graphweft.train.update import Update


class _Recorded(NamedTuple):
    """A step or an evaluation that was recorded.

    Attributes:
        made_for: What it depends on beside the numbers in its inputs.
        run: Launches it, with the key of its draws.
        update: The update that is part of it.
        draws: Whether it draws random numbers.
        alive: What it reads.
    """

    made_for: tuple[object, ...]
    run: Callable[[int], Any]
    update: Update | None
    draws: bool
    alive: Any


class DeviceFullBatch(FullBatch):
    """As :class:`FullBatch`, with recorded steps.

    Args:
        model: On a device.
        args: As for :class:`FullBatch`.
        asked: "auto", or "on", where a model whose steps cannot be recorded is an error.
        recorder: What records launches there.
        kwargs: As for :class:`FullBatch`.

    Attributes:
        refused: Why no step is replayed; "" where some are.
    """

    def __init__(self, model: Any, *args: Any, asked: str = "auto", recorder: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        self._recorder, self._asked = recorder, asked
        self.refused = self._not_evaluated = ""
        self._step_graphs: _Recorded | None = None
        self._evaluation: _Recorded | None = None
        self._seen: list[tuple[object, ...]] = []  # what the last steps call by call depended on
        self._evaluated: list[tuple[object, ...]] = []  # the same of evaluations
        self._replayed = self._fallbacks = 0
        self._now = (0, 0)  # of the last step: replayed, fallbacks
        self._kept: Any = None

    def prepare(self) -> None:
        """As for :class:`FullBatch`. Raises: ConfigError where replays were asked for and the model has none."""
        super().prepare()
        self.refused = self._why_not()
        if self.refused and self._asked == "on":
            raise ConfigError(f"cuda_graphs='on' cannot be combined with {self._name}: {self.refused}")

    def refresh(self) -> bool:
        """As for :class:`FullBatch`; what was recorded with other settings of the model is forgotten."""
        changed = super().refresh()
        settings = settings_of(self.model.train()) if is_plain(self.model) else ()
        if changed or settings != self._kept:
            self._forget()
        self._kept = settings
        return changed

    def _forget(self) -> None:
        self._step_graphs = self._evaluation = None
        self._seen, self._evaluated = [], []

    @property
    def _name(self) -> str:
        return type(self.model).__name__

    def _why_not(self) -> str:
        """Why no step can be recorded; "" where one can."""
        if self._engine or not is_plain(self.model) or _config.current().opt_level == 0:
            return "it is not compiled as a whole"
        if self.target.written_down(self.ds.y, plan_target(self.device)) is None:
            return "its loss is computed in Python"
        with owning(self.x, self._wanted):
            plan = self._function.ready(self._arguments(0))
        if plan is None:
            return "the interpreter runs it"
        return "its draws have no kernel of their own" if draws_by_torch(plan) else ""

    @property
    def _may(self) -> bool:
        """Whether something can be replayed now: nobody wants to see the calls or measures them."""
        return not self.refused and active() is None and not _config.current().tune and is_plain(self.model)

    def _lies(self) -> tuple[object, ...]:
        """What a recorded evaluation depends on beside the numbers in its inputs."""
        return (*self._state(), *(Reference(t) for t in self._used if t is not None))

    def _depends(self, update: Update | None) -> tuple[object, ...]:
        """What a recorded step depends on, likewise; ``update``: what is part of it, whose rates are written."""
        if update is not None:
            update.write_rates()
        return (*self._lies(), *(() if update is None else update.places()))

    @property
    def _update(self) -> Update | None:
        """The update where it can be part of the graph backward."""
        update = self.optimizer
        return update if isinstance(update, Update) and update.is_recordable() else None

    def step(self) -> Tensor:
        """One update of the parameters; the training loss before it, shape (), which the next step writes over."""
        if not self._may:
            self._count(False)
            return super().step()
        if not self.model.training:
            self.model.train()  # now, as a model draws nothing while it is evaluated
        known = self._step_graphs
        if known is not None and known.made_for == self._depends(known.update):
            self._count(True)
            return self._launched(known)
        self._step_graphs, update = None, self._update
        wanted = self._depends(update)
        if wanted not in self._seen:  # the first one makes the state of the optimiser, and compiles
            loss = super().step()
            self._seen = [self._depends(self._update), *self._seen[:3]]
            self._now = (0, 0)
            return loss
        with torch.random.fork_rng(devices=[]):
            found = self._first(wanted, update)
        self._count(found is not None)
        if found is None:
            return super().step()
        _ = call_key() if self._draws else 0  # a step takes one
        return found

    def _count(self, replayed: bool) -> None:
        self._now = (int(replayed), int(not replayed))
        self._replayed, self._fallbacks = self._replayed + self._now[0], self._fallbacks + self._now[1]

    def _launched(self, known: _Recorded) -> Tensor:
        """A step by its graphs."""
        loss, gradients = known.run(call_key() if known.draws else 0)
        self._place(gradients)
        if known.update is None:
            self.optimizer.step()
        return loss  # type: ignore[no-any-return]

    def _place(self, gradients: Mapping[str, Tensor | None]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients.get(name)

    def _arguments(self, key: int | Tensor) -> Arguments:
        """Of a step whose draws follow from ``key``."""
        model = self.model.train()
        assert isinstance(model, CompiledModule)  # others are not recorded
        made = model.arguments(self.ds.graph, self.x, self._wanted, self.edge_data.inputs)
        return replace(made, seed=key) if model.draws() else made

    def _linearized(self, arguments: Arguments) -> tuple[Tensor, Tensor, Pullback]:
        """The loss, its gradient by the logits, and what goes backward from it."""
        assert isinstance(self.model, CompiledModule)  # others are not recorded
        logits, pullback = self.model.linearized(arguments)
        return *self._loss(logits), pullback

    def _gone_back(self, update: Update | None, pullback: Pullback, gradient: Tensor) -> dict[str, Tensor | None]:
        """Gradients, and the update where it is part of the step."""
        gradients = pullback(gradient)
        if update is not None:
            self._place(gradients)
            update.step()
        return gradients

    def _first(self, wanted: tuple[object, ...], update: Update | None) -> Tensor | None:
        """Records a step and launches it; None, with nothing changed, where it cannot be, or is not the step."""
        buffers = list(self.model.buffers())
        held = buffers if update is None else [*self.model.parameters(), *buffers, *update.held()]
        key = call_key() if self._draws else 0

        def eager() -> Found:
            loss, gradient, pullback = self._linearized(self._arguments(key))
            return loss, self._gone_back(update, pullback, gradient)

        def work() -> Found | None:
            with owning(self.x, self._wanted):
                with kept(held):
                    self._step_graphs = self._as_graphs(wanted, update)
                return first_replay(eager, partial(self._step_graphs.run, key), held, exact=False)

        found, self.refused = self._trying(work)
        self._place({} if found is None else found[1])
        if found is None:
            self._step_graphs = None
            return None
        if update is None:
            self.optimizer.step()
        return found[0]  # type: ignore[no-any-return]

    def _as_graphs(self, wanted: tuple[object, ...], update: Update | None) -> _Recorded:
        """A step as two graphs."""
        key = torch.zeros(1, dtype=torch.int64, device=self.device)  # of draws, read by every launch that draws
        arguments = self._arguments(key)

        def whole() -> None:
            _, gradient, pullback = self._linearized(arguments)
            self._gone_back(update, pullback, gradient)

        self._recorder.warm(whole, alone=True)
        forward, made = self._recorder.record(lambda: self._linearized(arguments))
        loss, gradient, pullback = made
        backward, gradients = self._recorder.record(partial(self._gone_back, update, pullback, gradient))
        draws = self._draws

        def run(number: int) -> Found:
            if draws:
                key.fill_(number)
            forward()
            backward()
            return loss, gradients

        alive = (made, arguments, self._used, self._function.hoist(arguments))
        return _Recorded(wanted, run, update, draws, alive)

    @property
    def _draws(self) -> bool:
        """Whether a step, as the modules stand, draws random numbers."""
        return isinstance(self.model, CompiledModule) and self.model.draws()

    @property
    def _function(self) -> CompiledFunction:
        assert isinstance(self.model, CompiledModule)  # others are not recorded
        return self.model.function

    def _trying(self, work: Callable[[], Any]) -> tuple[Any, str]:
        """What ``work`` gives, and why it gives nothing: the device says no, or a replay is not the same."""
        try:
            found = work()
            return found, "" if found is not None else "a replay did not give the same"
        except torch.OutOfMemoryError:
            return None, f"{self.device} has no memory for what is recorded, which keeps its own"
        except RuntimeError as failure:  # what a recording does not allow, as waiting for a number of the device
            return None, f"it cannot be recorded: {' '.join(str(failure).split())[:200]}"

    def _logits(self) -> Tensor:
        """Logits of all nodes in evaluation mode, in memory that the next evaluation writes."""
        if not self._may or self._not_evaluated:
            return super()._logits()
        known, wanted = self._evaluation, self._lies()
        if known is not None and known.made_for == wanted:
            logits: Tensor = known.run(0)
            return logits
        self._evaluation = None
        as_comes = super()._logits()
        if wanted not in self._evaluated:
            self._evaluated = [wanted, *self._evaluated[:3]]
            return as_comes
        found, self._not_evaluated = self._trying(lambda: self._first_evaluation(wanted, as_comes))
        return as_comes if found is None else found

    def _first_evaluation(self, wanted: tuple[object, ...], as_comes: Tensor) -> Tensor | None:
        """Records an evaluation and launches it; None where the logits are others."""
        model = self.model.eval()
        assert isinstance(model, CompiledModule)  # others are not recorded
        with torch.no_grad(), owning(self.x, self._wanted):
            arguments = model.arguments(self.ds.graph, self.x, None, self.edge_data.inputs)
            hoisted = model.function.hoist(arguments)

            def body() -> Tensor:
                return model.function(arguments)["out"]

            self._recorder.warm(body, alone=True)
            launch, logits = self._recorder.record(body)

        def run(_: int) -> Tensor:
            launch()
            return logits  # type: ignore[no-any-return]

        found = run(0)
        if not torch.allclose(found, as_comes, rtol=1e-4, atol=1e-5, equal_nan=True):
            return None
        self._evaluation = _Recorded(wanted, run, None, False, (arguments, hoisted))
        return found

    def logits(self) -> Tensor:
        """Logits of all nodes in evaluation mode, shape (N, C)."""
        return self._logits().clone()

    def measured(self) -> dict[str, float]:
        """Whether the epoch was replayed."""
        if self.refused and self._asked != "on":
            return {}
        return {"replayed": float(self._now[0]), "fallbacks": float(self._now[1])}

    def replay_report(self) -> dict[str, Any]:
        """Launches of a step and of an evaluation, how many steps were replayed, and why none is."""
        known = self._step_graphs
        found: dict[str, Any] = {"launches": 0 if known is None else 2, "replayed": self._replayed}
        found |= {"fallbacks": self._fallbacks, "evaluation": 0 if self._evaluation is None else 1}
        if known is not None:
            found["updates"] = known.update is not None
        refused = {"refused": self.refused, "evaluation_refused": self._not_evaluated}
        return {**found, **{name: why for name, why in refused.items() if why}}


__all__ = ["DeviceFullBatch"]
