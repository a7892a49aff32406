"""CUDA graphs: launches that are recorded once, and launched again as one.

Comes in: a function that launches. Goes out: a function that launches the same again, in the same memory. Called by
``graphs.py`` for steps and by ``sampling.py`` for batches.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from graphweft.runtime.cuda.recording import recording
from graphweft.runtime.cuda.streams import borrowed

_alone = threading.Lock()  # beginning a recording waits for the device, which another one refuses
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
        current = torch.cuda.current_stream(self._device)
        with borrowed(self._device) as aside:
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
        with _alone, torch.cuda.device(self._device), borrowed(self._device) as stream:
            # Loaders draw batches on threads and streams of their own meanwhile, which is no part of it.
            record = torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local")
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


__all__ = ["Recorder", "recorder_on"]
