"""The process of an emulated device: prepares and trains in one thread, receives batches in another.

Comes in: orders through two pipes, batches through shared memory. Goes out: answers. Started by ``emulated.py``; ends
when the host closes its ends of the pipes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from graphweft._errors import GraphWeftError
from graphweft._workers import set_width
from graphweft.schedule.emulated import EmulatedDevice, There
from graphweft.schedule.packing import copied, pack, unpack
from graphweft.schedule.places import Work
from graphweft.schedule.shared_bytes import SharedBytes

_PATIENCE = 5.0  # seconds in which a batch that is being received arrives


class _Device:
    """What lies in the device's memory, and what it does with it."""

    def __init__(self, device: EmulatedDevice, work: Work, memory: SharedBytes) -> None:
        self._device, self._work, self._memory = device, work, memory
        self._here: dict[int, Any] = {}

    def prepare(self, batch: int) -> There:
        """Prepares a batch here; its rows come over the link."""
        begin = time.perf_counter()
        self._here[batch] = made = self._work.prepare(batch)
        taken = self._device.sampling.seconds(time.perf_counter() - begin)
        moved = sum(buffer.nbytes for buffer in pack(made, self._work.known)[1])
        _until(begin + max(taken, self._device.reading(moved)))
        return There(batch)

    def receive(self, given: tuple[int, bytes, list[tuple[int, int]]]) -> There:
        """Takes a batch out of shared memory."""
        begin = time.perf_counter()
        batch, head, places = given
        buffers = copied(self._memory.room(places[-1][0] + places[-1][1] if places else 0), places)
        self._here[batch] = unpack(head, buffers, self._work.known)
        _until(begin + self._device.link.seconds(sum(size for _, size in places)))
        return There(batch)

    def train(self, batch: int) -> Any:
        """Trains a batch that is here."""
        begin = time.perf_counter()
        result = self._work.train(batch, self._here.pop(batch))
        _until(begin + self._device.model.seconds(time.perf_counter() - begin))
        return result

    def call(self, given: tuple[str, bytes, list[bytes]]) -> Any:
        """Another method of the work."""
        name, head, buffers = given
        arguments = unpack(head, [memoryview(bytearray(buffer)) for buffer in buffers])
        answer, parts = pack(getattr(self._work, name)(*arguments))
        return answer, [bytes(part) for part in parts]


def _until(moment: float) -> None:
    """Sleeps until a moment of the clock."""
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


def _serve(connection: Connection, orders: dict[str, Callable[[Any], Any]]) -> None:
    """Answers orders until the other end is closed."""
    while True:
        try:
            order, given = connection.recv()
        except (EOFError, OSError):
            return
        _send(connection, lambda order=order, given=given: orders[order](given))  # type: ignore[misc]


def _send(connection: Connection, make: Callable[[], Any]) -> bool:
    """Answers with what ``make`` returns, or why it does not; whether it did."""
    try:
        answer = ("done", make())
    except Exception as failure:
        said = " ".join(str(failure).split())
        own = isinstance(failure, GraphWeftError)
        answer = ("failed", type(failure)(said) if own else GraphWeftError(f"{type(failure).__name__}: {said}"))
    try:
        connection.send(answer)
    except OSError:
        return False
    return answer[0] == "done"


def _begin(orders: Connection, memory: SharedBytes) -> _Device:
    """The device of what the host sends first."""
    head, sizes = orders.recv_bytes(), orders.recv()
    buffers = [memoryview(bytearray(orders.recv_bytes() if size else b"")) for size in sizes]
    device, work, given = unpack(head, buffers)
    if device.cores is not None:
        os.sched_setaffinity(0, device.cores)
        torch.set_num_threads(len(device.cores))
        set_width(len(device.cores))
    return _Device(device, work(given), memory)


def main() -> None:
    """Serves the two pipes whose numbers are the first arguments; the third is that of the shared memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host ends this process
    orders, link = (Connection(int(number)) for number in sys.argv[1:3])
    made: list[_Device] = []
    memory = SharedBytes(int(sys.argv[3]))
    if not _send(orders, lambda: made.append(_begin(orders, memory))):
        return
    device = made[0]
    receiver = threading.Thread(target=_serve, args=(link, {"receive": device.receive}), daemon=True)
    receiver.start()
    _serve(orders, {"prepare": device.prepare, "train": device.train, "call": device.call})
    receiver.join(_PATIENCE)  # the host closes both pipes; a thread in native code must not outlive the interpreter
    memory.close()


if __name__ == "__main__":
    main()
