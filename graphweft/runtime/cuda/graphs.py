"""A step on a device as two CUDA graphs: one launch forward, with the loss, and one backward, with the update.

Comes in: a step and bounds. Goes out: :class:`GraphStep`; None where launches take numbers of the host that change.
Registered in ``captures.py``. :class:`Recorder` is all that is asked of a device.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from graphweft.runtime.captured import Step, draws_by_torch
from graphweft.runtime.cuda.recording import recording
from graphweft.runtime.padded import Bounds, Room
from graphweft.runtime.staged import PreparedBatch

_WARM = 3  # runs before a step is recorded, in which kernels are compiled and libraries take their memory


class Recorder:
    """Records what is launched on a device, and launches it again.

    Args:
        device: Which.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()

    def warm(self, body: Callable[[], object], alone: bool = False) -> None:
        """Runs ``body`` some times, aside from the current stream.

        ``alone``: no other thread uses the device, so that one that waits for a number of the device is found here and
        not by a recording, which it would break. Raises: RuntimeError for it.
        """
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(self._device)
        aside.wait_stream(current)
        try:
            with torch.cuda.stream(aside):
                for at in range(_WARM):
                    with _refusing_to_wait() if alone and at + 1 == _WARM else contextlib.nullcontext():
                        body()
        finally:  # what follows may write what was read there
            current.wait_stream(aside)

    def record(self, body: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """What launches again what ``body`` launched, and the result of ``body``, whose memory that writes."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        # Loaders draw batches on threads and streams of their own meanwhile, which is no part of it.
        record = torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local")
        with torch.cuda.device(self._device):
            try:
                with recording() as later, record:
                    made = body()
            except RuntimeError:
                torch.cuda.set_stream(current)  # where ending a recording fails, torch stays on its stream
                raise
            kept = [work() for work in later]

        def replay() -> None:
            graph.replay()
            _ = kept, later  # live as long

        return replay if later else graph.replay, made


@contextlib.contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """What waits for a number of the device is an error in the block."""
    former = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode(former)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")  # torch calls it a prototype
        torch.cuda.set_sync_debug_mode(mode)


def recorder_on(device: torch.device) -> Recorder | None:
    """What records launches on ``device``; None for one without CUDA graphs."""
    return Recorder(device) if device.type == "cuda" else None


class GraphStep:
    """See :class:`Captured`."""

    launches, exact = 2, False  # products of more rows may be added up in another order

    def __init__(self, step: Step, room: Room, recorder: Recorder) -> None:
        self._room, self.updates = room, step.update is not None
        loss = step.loss(room.labels)
        self._key = torch.zeros(1, dtype=torch.int64, device=step.device)  # of draws, read by every launch that draws
        key: int | Tensor = self._key if step.draws else 0

        def whole() -> None:
            _, gradient, pullback = step.forward(room, loss, key)
            pullback(gradient)

        recorder.warm(whole)
        self._forward, found = recorder.record(lambda: step.forward(room, loss, key))
        self._loss, gradient, pullback = found
        self._backward, self._gradients = recorder.record(lambda: step.backward(pullback, gradient))
        self._draws, self._alive = step.draws, (found, step)

    @classmethod
    def capture(
        cls,
        step: Step,
        bounds: Bounds,
        batch: PreparedBatch,
        labels: Tensor,
        recorder: Callable[[torch.device], Recorder] | None = None,
    ) -> GraphStep | None:
        """The step, recorded; None where a draw is made by the interpreter, which reads its key in host memory."""
        if recorder is None and step.device.type != "cuda":
            return None
        plan = step.plan.plan
        if step.draws and draws_by_torch(plan):
            return None
        return cls(step, step.room(bounds, batch, labels), (recorder or Recorder)(step.device))

    def __call__(self, batch: PreparedBatch, labels: Tensor, key: int) -> tuple[Any, dict[str, Tensor | None]]:
        """Loss and gradients, in memory that the next batch writes; the update is done where it was recorded."""
        self._room.fill(batch.seeds, batch.values, labels)
        if self._draws:
            self._key.fill_(key)
        self._forward()
        self._backward()
        return self._loss, self._gradients


__all__ = ["GraphStep", "Recorder", "recorder_on"]
