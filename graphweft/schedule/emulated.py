"""An emulated device: another process with cores, a link and speeds of its own.

Comes in: work to do there. Goes out: a place with operators for preparing, sending and training. Called by the trainer
and by users without a device, to try and to measure sharing out. Batches go through shared memory, one at a time; the
link takes its latency and the bytes at its rate; steps take as much longer than their work as was asked for.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from graphweft._errors import ConfigError, GraphWeftError
from graphweft.schedule.operators import Operators
from graphweft.schedule.packing import lay_out, pack, unpack
from graphweft.schedule.places import Work
from graphweft.schedule.shared_bytes import SharedBytes

_PATIENCE = 10.0  # seconds in which the process ends by itself


@dataclass(frozen=True)
class Speed:
    """How long steps take: ``times`` as long as their work does, and at least ``least`` seconds."""

    times: float = 1.0
    least: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.times) and self.times >= 1 and math.isfinite(self.least) and self.least >= 0):
            raise ConfigError(f"speed: expected times >= 1 and least >= 0, got {self}")

    def seconds(self, work: float) -> float:
        """Of a step whose work took so long.

        Example:
            >>> Speed(2.0, 0.5).seconds(0.1), Speed(2.0).seconds(0.1)
            (0.5, 0.2)
        """
        return max(self.times * work, self.least)


@dataclass(frozen=True)
class Link:
    """Between host and device: ``bandwidth`` in bytes a second, ``latency`` in seconds of a transfer."""

    bandwidth: float = math.inf
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and math.isfinite(self.latency) and self.latency >= 0):
            raise ConfigError(f"link: expected bandwidth > 0 and latency >= 0, got {self}")

    def seconds(self, count: int) -> float:
        """Of a transfer of so many bytes.

        Example:
            >>> Link(1e9, 1e-3).seconds(1_000_000)
            0.002
        """
        return self.latency + count / self.bandwidth


@dataclass(frozen=True)
class EmulatedDevice:
    """A process that emulates a device.

    Attributes:
        cores: Processors of the process; None: any.
        link: To the host. Batches that the device prepares are read over it as well:
        uncached: Share of their bytes; the others lie in a cache of the device.
        sampling: Factor of the time to prepare a batch.
        model: Factor of the time to train on a batch.
        name: Name of its operators.

    Example:
        >>> device = EmulatedDevice(link=Link(bandwidth=1e9, latency=1e-4), model=Speed(least=0.002))
        >>> device.name, device.model.seconds(0.001)
        ('emulated', 0.002)
    """

    cores: tuple[int, ...] | None = None
    link: Link = Link()
    sampling: Speed = Speed()
    model: Speed = Speed()
    uncached: float = 1.0
    name: str = "emulated"

    def __post_init__(self) -> None:
        there = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        if not 0 <= self.uncached <= 1:
            raise ConfigError(f"uncached: expected a share from 0 to 1, got {self.uncached!r}")
        if self.cores is not None and there is not None and not (self.cores and set(self.cores) <= there):
            raise ConfigError(f"cores: expected some of {', '.join(map(str, sorted(there)))}, got {self.cores}")

    def reading(self, count: int) -> float:
        """Seconds to transfer the rows of a batch of so many bytes over the link.

        Example:
            >>> EmulatedDevice(link=Link(1e6, 0.5), uncached=0.25).reading(2_000_000)
            1.0
        """
        return self.link.seconds(math.ceil(self.uncached * count)) if self.uncached else 0.0

    def open(self, work: Callable[..., Work], given: Any, known: Mapping[str, Any]) -> OpenDevice:
        """Starts the process, which then calls ``work(given)``.

        Raises: ConfigError for work that cannot be sent to another process; GraphWeftError if the work raises one.
        """
        return OpenDevice(self, work, given, known)


@dataclass(frozen=True)
class There:
    """A batch in the memory of the device."""

    batch: int


class OpenDevice:
    """The process at work, seen from the host.

    Attributes:
        bytes: Sent over the link so far.
    """

    def __init__(self, device: EmulatedDevice, work: Callable[..., Work], given: Any, known: Mapping[str, Any]) -> None:
        self.device, self._known, self.bytes = device, known, 0
        try:
            head, buffers = pack((device, work, given))
        except Exception as failure:
            said = " ".join(str(failure).split())[:200]
            raise ConfigError(f"{device.name}: expected work that pickle can send to a process, got {said}") from None
        self._orders, orders = Pipe()
        self._link, link = Pipe()
        self._memory = SharedBytes()
        passed = (orders.fileno(), link.fileno(), self._memory.fileno)
        command = [sys.executable, "-m", "graphweft.schedule.emulated_process", *map(str, passed)]
        path = os.pathsep.join([entry or str(Path.cwd()) for entry in sys.path])
        self._locks = {id(self._orders): threading.Lock(), id(self._link): threading.Lock()}
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed, env=environment)
        orders.close()
        link.close()
        try:
            self._begin(head, buffers)
        except BaseException:
            self.close()
            raise

    def _begin(self, head: bytes, buffers: list[memoryview]) -> None:
        """Sends the work, and waits until it is made."""
        try:
            self._orders.send_bytes(head)
            self._orders.send([buffer.nbytes for buffer in buffers])
            for buffer in buffers:
                if buffer.nbytes:
                    self._orders.send_bytes(buffer)
        except OSError:
            raise self._lost() from None
        self._answer(self._orders)

    def register(self, operators: Operators) -> None:
        """Adds ``batch_``, ``send_`` and ``model_`` operators under the device's name."""
        name = self.device.name
        operators.register(f"batch_{name}_prepare")(lambda batch, _: self._ask(self._orders, "prepare", batch))
        operators.register(f"send_{name}_copy")(self._send)
        operators.register(f"model_{name}_train")(lambda batch, there: self._ask(self._orders, "train", batch))

    def call(self, name: str, *given: Any) -> Any:
        """A method of the work, with values that pickle takes."""
        head, buffers = pack(given)
        answer = self._ask(self._orders, "call", (name, head, [bytes(buffer) for buffer in buffers]))
        return unpack(answer[0], [memoryview(bytearray(buffer)) for buffer in answer[1]])

    def close(self) -> None:
        """Ends the process, by force where it does not end by itself."""
        for connection in (self._orders, self._link):
            with contextlib.suppress(OSError):
                connection.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._memory.close()

    def _send(self, batch: int, prepared: Any) -> There:
        """A batch of the CPU goes through shared memory; returns once the device has a copy of its own."""
        head, buffers = pack(prepared, self._known)
        places, size = lay_out(buffers)
        memory = self._memory.room(size)
        for (begin, count), buffer in zip(places, buffers, strict=True):
            memory[begin : begin + count] = buffer
        self.bytes += size
        there: There = self._ask(self._link, "receive", (batch, head, places))
        return there

    def _ask(self, connection: Connection, order: str, given: Any) -> Any:
        with self._locks[id(connection)]:
            try:
                connection.send((order, given))
            except (OSError, ValueError):
                raise self._lost() from None
            return self._answer(connection)

    def _answer(self, connection: Connection) -> Any:
        try:
            kind, value = connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if kind == "failed":
            raise value if isinstance(value, GraphWeftError) else GraphWeftError(str(value))
        return value

    def _lost(self) -> GraphWeftError:
        """What is known of a process that no longer answers."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        status = self._process.poll()
        ended = "was closed" if status is None else f"ended with status {status}"
        return GraphWeftError(f"{self.device.name}: expected the device's process to go on, got one that {ended}")


__all__ = ["EmulatedDevice", "Link", "OpenDevice", "Speed", "There"]
