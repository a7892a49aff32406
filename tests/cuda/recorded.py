"""CUDA graphs without a device: what a step launches is written down and done again, on the same memory.

Comes in: the body of a step. Goes out: a :class:`Recorder` as ``cuda/recorder.py`` has one. A body that waits for a
number of the device is refused, as a capture refuses it; memory that a replay has not written holds NaN. The trials at
the end are run by ``trials.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from zoo import random_edges

import graphweft as gw
from graphweft import _optim_device, optim
from graphweft.measure import device_check
from graphweft.runtime import norms
from graphweft.runtime.captured import Step
from graphweft.runtime.cuda import jit, walks
from graphweft.runtime.cuda.graphs import GraphStep
from graphweft.runtime.cuda.recording import recording
from graphweft.runtime.cuda.target import CUDA
from graphweft.runtime.padded import Shapes
from graphweft.runtime.staged import Choice
from graphweft.train.target import Classes

WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "equal.default",
    "is_nonzero",
    "unique",
    "masked_select",
    "repeat_interleave",
)


class _Watch(TorchDispatchMode):
    """Writes operations of torch down; what Triton's interpreter does on the way is the launch's own."""

    def __init__(self, steps: list[Callable[[], None]]) -> None:
        super().__init__()
        self.steps, self.inside = steps, False
        self.new: set[int] = set()
        self.before: dict[Any, tuple[Tensor, Tensor]] = {}  # memory from outside that was written, as it was

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._keep(func, args)
        made = func(*args, **kwargs)
        if self.inside:
            return made
        if any(name in str(func) for name in WAITS) and kwargs.get("output_size") is None:
            raise RuntimeError(f"recorded: {func} waits for a number of the device")
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        leaves = [t for t in tree_leaves(made) if isinstance(t, Tensor)]
        new = {at: t for at, t in enumerate(leaves) if t.untyped_storage().data_ptr() not in given}

        self.new |= {t.untyped_storage().data_ptr() for t in new.values()}

        def again() -> None:
            if "empty" in str(func):
                for target in new.values():
                    target.fill_(torch.nan if target.is_floating_point() else 0)
                return
            found = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]
            for at, target in new.items():
                target.copy_(found[at])

        self.steps.append(again)
        return made

    def _keep(self, func: Any, args: Any) -> None:
        """A recording launches nothing: what it writes is put back at its end."""
        for said, given in zip(func._schema.arguments, args, strict=False):
            if said.alias_info is None or not said.alias_info.is_write:
                continue
            for t in tree_leaves(given):
                if isinstance(t, Tensor) and t.numel() and t.untyped_storage().data_ptr() not in self.new:
                    self.before.setdefault((t.data_ptr(), t.shape, t.stride()), (t, t.clone()))

    def put_back(self) -> None:
        with torch.no_grad():
            for tensor, value in reversed(self.before.values()):
                tensor.copy_(value)


class Recorder:
    """As the one of a device.

    Attributes:
        graphs: How many were recorded, in all.
        launched: Graphs that were launched.
    """

    graphs = launched = 0

    def __init__(self, device: torch.device) -> None:
        self.alive: list[Any] = []

    def warm(self, body: Callable[[], object], alone: bool = False) -> None:
        body()

    def record(self, body: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        steps: list[Callable[[], None]] = []
        inner, watch = jit.launch, _Watch(steps)

        def noted(*given: Any, **fixed: Any) -> None:
            watch.inside = True
            try:
                if not fixed.get("through"):  # a table of addresses is filled when the recording is over
                    inner(*given, **fixed)
            finally:
                watch.inside = False
            steps.append(lambda: inner(*given, **fixed))

        with pytest.MonkeyPatch.context() as patch, recording() as later, watch:
            for module in (jit, walks):
                patch.setattr(module, "launch", noted)
            made = body()
        watch.put_back()
        self.alive += [made, *(work() for work in later)]
        Recorder.graphs += 1

        def replay() -> None:
            Recorder.launched += 1
            with torch.no_grad():
                for step in steps:
                    step()

        return replay, made


@contextlib.contextmanager
def fused_updates() -> Iterator[None]:
    """Optimisers step by torch's fused kernels, as on a GPU, and norms keep their statistics by torch."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (optim, _optim_device):
            patch.setattr(module, "is_fused", lambda group: True)
        patch.setattr(optim, "_native_gradient", lambda parameter, gradient: None)
        patch.setattr(norms, "track", lambda *given: False)
        yield


def whole_steps_are_three_graphs() -> None:
    """Full batches by kernels, with dropout: two graphs a step and one an evaluation, beside steps without graphs."""
    found, every = random_edges(8, 16, 3), torch.arange(8)
    graph, x = gw.Graph(found.src, found.dst, num_nodes=8), torch.randn(8, 4, generator=torch.Generator())
    ds = gw.Dataset("small", graph, x, every % 3, every[:4], every[4:6], every[6:], 3)
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CUDA, "recorder", Recorder)
        for graphs in ("off", "on"):
            torch.manual_seed(0)
            net = gw.nn.GCN(4, 4, 3, dropout=0.4)
            Recorder.graphs = Recorder.launched = 0
            with gw.config(target="cuda", certify=False):
                trainer = gw.Trainer(net, ds, lr=0.05, cuda_graphs=graphs)
                trainer.fit(3)
            seen.append([(r.loss, r.val_loss) for r in trainer.history] + [p.tolist() for p in net.parameters()])
            assert Recorder.graphs == (3 if graphs == "on" else 0), trainer.replays
    assert trainer.replays == {"launches": 2, "replayed": 2, "fallbacks": 0, "evaluation": 1, "updates": False}
    assert seen[0] == seen[1]


def a_recorded_step_is_right_for_another_batch() -> None:
    """Recorded over one batch, replayed for another, beside the CPU's step without padding."""
    ends = random_edges(40, 160, 3)
    graph, x, y = gw.Graph(ends.src, ends.dst, num_nodes=40), torch.randn(40, 6), torch.arange(40) % 3
    kinds = {"GIN": {}, "GATv2": {"heads": 2, "v2": True, "dropout": 0.3}}  # the doctor has others
    for name, options in kinds.items():
        torch.manual_seed(1)
        net = getattr(gw.nn, name.removesuffix("v2"))(6, 4, 3, num_layers=2, **options).train()
        sampler, here = gw.sampling.NeighborSampler(graph, (2, 2)), torch.device("cpu")
        tensors, first = dict(net.named_parameters()) | dict(net.named_buffers()), sampler.sample(torch.arange(4))
        with gw.config(target="cpu"):
            plain = net.staged(sampler, x).compile(tensors, True, first)
        with gw.config(target="cuda"):
            plan = net.staged(sampler, x).compile(tensors, True, first, Choice(numbered=True))
            batches = [plan.prepare(torch.arange(4) + at, (at, 0)) for at in (0, 13)]
            shapes = Shapes(plan.plan)
            assert not shapes.refused, shapes.refused
            sizes = [shapes.of(4, batch.values) for batch in batches]
            bounds = sizes[0].joined(sizes[1]).widened(0.3)
            step = Step(plan, shapes, tensors, Classes().written_down(y, CUDA), net.draws(), here)
            captured = GraphStep.capture(step, bounds, batches[0], y[batches[0].seeds], Recorder)
            assert captured is not None
            batch = batches[1]
            loss, gradients = captured(batch, y[batch.seeds], (1 << 40) + 5)
        with gw.config(target="cpu"):
            outputs, pullback = plain.linearize(plain.prepare(batch.seeds, (13, 0)), tensors, (1 << 40) + 5)
            wanted, slope = Classes().loss(outputs["out"], y[batch.seeds])
            slopes = pullback(slope)
        torch.testing.assert_close(loss, wanted)
        for key in dict(net.named_parameters()):
            torch.testing.assert_close(gradients[key], slopes[key], rtol=1e-5, atol=1e-6)


def the_doctor_finds_replayed_batches_right() -> None:
    """As on a device, by an emulated capture."""
    found = random_edges(12, 30, 5)
    graph = gw.Graph(found.src, found.dst, num_nodes=12)
    with gw.config(target="cuda", certify=False):
        works = device_check.replays(graph, torch.device("cpu"), Recorder)  # type: ignore[arg-type]
        checks = [device_check._checked(name, work, torch.device("cpu"), 0) for name, work in works.items()]
    assert len(checks) == 3 and all(check.holds for check in checks), checks


TRIALS = (
    a_recorded_step_is_right_for_another_batch,
    the_doctor_finds_replayed_batches_right,
    whole_steps_are_three_graphs,
)
