"""The processes that train together, and what they tell each other.

Comes in: the environment of torchrun or of ``graphweft train --ranks``. Goes out: :class:`Ranks`: sums of gradients,
rows and small facts from all, over torch.distributed. Called by trainers. Every method but those that say otherwise is
called by all ranks, in the same order. One process alone is a group too, so callers need not ask.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as distributed_c10d
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]

from graphweft import _config
from graphweft._errors import CheckpointError, ConfigError, GraphWeftError, RankError
from graphweft._trace import span
from graphweft.dist.board import Board
from graphweft.dist.launch import ENDING, FOLDER, LOST, SLICES, STARTER, is_rank
from graphweft.dist.reports import Reports
from graphweft.dist.same_host import MOST_SUMMED, SameHost
from graphweft.partitioning.report import HALO, ring_bytes

REDUCE = ("any", "ordered")
T = TypeVar("T")


class LostError(RankError):
    """Another rank does not answer."""


class Ranks:
    """This process (rank) in the group of processes that train together.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        reduce: How gradients are summed: in "any" order, as an all-reduce does, or "ordered". With "ordered", results
            do not depend on the number of ranks: a batch is cut into ``slices``, whose gradients are added in order,
            regardless of the rank that computed them.
        slices: Number of slices of a batch; with "any", one per rank.
        halo: How rows of other ranks' nodes are exchanged in full batches. "exact": without loss. "bf16": rounded to
            bfloat16, half of the bytes. "int8": one byte per number and four per row; the rounding error is added to
            the next exchange. "stale": in training, rows and gradients of the previous step are used while the current
            ones are exchanged. "sampled": in training, a random half of the rows is exchanged in every step, multiplied
            by 2.
        bytes_sent: Bytes that this rank has sent so far. An all-reduce counts as one in a ring, 2 (P - 1) / P of its
            bytes.
        host: Name of the machine.

    Example:
        >>> alone = Ranks()
        >>> alone.size, alone.is_first, alone.agreed(3), alone.texts("here")
        (1, True, 3, ['here'])
    """

    def __init__(self, rank: int = 0, size: int = 1, reduce: str = "any", slices: int = 0, halo: str = "exact") -> None:
        for name, given, known in (("rank_reduce", reduce, REDUCE), ("halo", halo, HALO)):
            if given not in known:
                raise ConfigError(f"{name}: expected one of {', '.join(known)}, got {given!r}")
        self.halo = halo
        usual = SLICES if reduce == "ordered" else size
        self.rank, self.size, self.reduce, self.slices = rank, size, reduce, slices or usual
        if self.slices < size:
            raise ConfigError(f"rank_reduce=ordered cannot be combined with more than {self.slices} ranks, got {size}")
        self.bytes_sent, self.host = 0, socket.gethostname()
        self._phase = "starting"
        self._board: Board | None = None
        self._reports: Reports | None = None
        self._near: SameHost | None = None
        self._owner = False

    @classmethod
    def join(cls, reduce: str = "any", halo: str = "exact") -> Ranks:
        """Joins the group of torchrun or ``--ranks``, as the environment describes it. Without one, returns a group of
        one process.

        An existing default group of torch.distributed is used.

        Raises: ConfigError; RankError if other ranks do not join in time.
        """
        folder = os.environ.get(FOLDER)
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), reduce, halo=halo)
        if not is_rank():
            return cls(reduce=reduce, halo=halo)
        rank, size = _number("RANK"), _number("WORLD_SIZE")
        ranks = cls(rank, size, reduce, halo=halo)
        if size == 1:
            return ranks
        if folder is not None:
            ranks._board = Board(Path(folder) / "board", size)
            ranks._board.keep_beating(rank, _number(STARTER))
            ranks.at("joining")
        ranks._connect(folder)
        with ranks._watched():
            ranks._near = SameHost.join(ranks.texts, rank, size, _config.current().rank_timeout)
        return ranks

    def _connect(self, folder: str | None) -> None:
        wait = timedelta(seconds=_config.current().rank_timeout)
        with self._watched():
            if folder is None:
                try:
                    dist.init_process_group("gloo", timeout=wait)
                except ValueError as failure:
                    what = str(failure).splitlines()[0][:200]
                    raise ConfigError(f"ranks: expected the environment that torchrun sets, got: {what}") from None
                self._reports = Reports(distributed_c10d._get_default_store(), self.rank, self.size, self.host)
            else:
                store = FileStore(str(Path(folder) / "store"), self.size)
                dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=wait)
            self._owner = True

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress and results."""
        return self.rank == 0

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are on one machine and read each other's memory."""
        return self.size == 1 or self._near is not None

    @property
    def is_shared(self) -> bool:
        """Whether work is cut into slices."""
        return self.size > 1 or self.reduce == "ordered"

    @property
    def own_slices(self) -> range:
        """The slices of a batch that this rank computes."""
        return range(*self._span(self.slices, self.rank))

    def bounds(self, items: int, slice_: int) -> tuple[int, int]:
        """Start and stop of a slice of ``items``."""
        return items * slice_ // self.slices, items * (slice_ + 1) // self.slices

    def cuts(self, items: int) -> list[tuple[int, int]]:
        """Start and stop of the ``items`` of every rank."""
        return [self._span(items, rank) for rank in range(self.size)]

    def at(self, phase: str) -> None:
        """Sets the text that describes the current work of this rank. Any rank may call it at any time."""
        self._phase = phase
        if self._board is not None:
            self._board.set_phase(self.rank, phase)

    def sum_slices(self, mine: Tensor) -> Tensor:
        """The sum over all slices of rows (own slices, width), shape (width,)."""
        if self.reduce == "any":
            total = mine.sum(0)
            self.add_up(total)
            return total
        width = mine.shape[1]
        cuts = [self._span(width, rank) for rank in range(self.size)]
        counts = [len(range(*self._span(self.slices, rank))) for rank in range(self.size)]
        first, last = cuts[self.rank]
        received = [mine.new_empty(count, last - first) for count in counts]
        self.exchange([mine[:, a:b].contiguous() for a, b in cuts], received)
        total = mine.new_zeros(last - first)
        for row in torch.cat(received):
            total += row
        parts = [mine.new_empty(b - a) for a, b in cuts]
        self.exchange([total] * self.size, parts)
        return torch.cat(parts)

    def add_up(self, tensor: Tensor, sizes: Sequence[int] | None = None) -> None:
        """Sums ``tensor`` over the ranks in place, in any order. ``sizes``: bytes of the sums that it combines."""
        self.begin_add_up(tensor, sizes)()

    def adds_in_memory(self, nbytes: int) -> bool:
        """Whether a sum of so many bytes goes through shared memory rather than sockets."""
        return self._near is not None and nbytes <= MOST_SUMMED

    def begin_add_up(self, tensor: Tensor, sizes: Sequence[int] | None = None) -> Callable[[], None]:
        """Starts :meth:`add_up` and returns a function that waits for its end. Do not use the tensor before."""
        if self.size == 1:
            return lambda: None
        self.bytes_sent += sum(ring_bytes(nbytes, self.size) for nbytes in sizes or [tensor.nbytes])
        wait: Callable[[], object]
        with self._watched():
            if self._near is not None and self._near.adds(tensor):
                wait = self._near.begin_sum(tensor)
            else:
                work = dist.all_reduce(tensor, async_op=True)
                wait = (lambda: None) if work is None else work.wait

        def finish() -> None:
            with self._watched(), span("sum over ranks", "network"):
                wait()

        return finish

    def exchange(self, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
        """Sends ``sent[r]`` to each rank r and fills ``received[r]`` from it; sizes are known to both, 0 sends nothing.

        All receives are posted before the first send, which is twice as fast on a slow link.
        """
        finish = self.begin_exchange(sent, received)
        finish()

    def begin_exchange(
        self, sent: Sequence[Tensor], received: Sequence[Tensor], kept: bool = False
    ) -> Callable[[], None]:
        """Starts :meth:`exchange` and returns a function that waits for its end. Do not use the tensors before.

        ``kept``: the sent tensors are never changed again, so that ranks of one host need not wait for each other at
            the end.
        """
        received[self.rank].copy_(sent[self.rank])
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        if self._near is not None:
            with self._watched():
                end = self._near.begin(sent, received, kept)
            self.bytes_sent += sum(sent[r].nbytes for r in others)

            def watched() -> None:
                with self._watched():
                    end()

            return watched
        works: list[dist.Work | None] = []
        with self._watched():
            works += [dist.irecv(received[r], r) for r in others if received[r].numel()]
            works += [dist.isend(sent[r], r) for r in others if sent[r].numel()]
        self.bytes_sent += sum(sent[r].nbytes for r in others)

        def finish() -> None:
            with self._watched(), span("exchange", "network"):
                for work in works:
                    if work is not None:
                        work.wait()

        return finish

    def let_go(self) -> None:
        """Frees sent tensors that have arrived. Any rank may call it at any time."""
        if self._near is not None:
            self._near.let_go()

    def gather_rows(self, table: Tensor, cuts: Sequence[tuple[int, int]]) -> None:
        """Fills rows ``cuts[r]`` of ``table`` from each rank r, which has computed them."""
        if self.size == 1:
            return
        a, b = cuts[self.rank]
        self.exchange([table[a:b]] * self.size, [table[c:d] for c, d in cuts])

    def agreed(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        return max(int(text) for text in self.texts(str(number)))

    def total(self, number: int) -> int:
        """The sum of all ranks' numbers."""
        return sum(int(text) for text in self.texts(str(number)))

    def texts(self, text: str) -> list[str]:
        """The text of every rank, by rank."""
        if self.size == 1:
            return [text]
        data = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._watched():
            dist.all_gather(sizes, torch.tensor([data.numel()]))
        parts = [torch.empty(int(size), dtype=torch.uint8) for size in sizes]
        before = self.bytes_sent
        self.exchange([data] * self.size, parts)
        self.bytes_sent = before  # bookkeeping, not training
        return [bytes(part.tolist()[:-1]).decode() for part in parts]

    def from_first(self, make: Callable[[], bytes | None]) -> bytes | None:
        """Returns the result of ``make`` on rank 0 to every rank. Other ranks do not call ``make``.

        Raises: an error of GraphWeft that ``make`` raises; on the other ranks it is a CheckpointError.
        """
        if self.size == 1:
            return make()
        data: bytes | None = None
        failure: GraphWeftError | None = None
        if self.is_first:
            try:
                data = make()
            except GraphWeftError as found:
                failure = found
        state = "" if data is None else "data"
        said = self.texts(state if failure is None else f"!{failure}")[0]
        if said.startswith("!"):
            raise failure or CheckpointError(said[1:])
        if not said:
            return None
        size = torch.tensor([0 if data is None else len(data)])
        with self._watched():
            dist.broadcast(size, 0)
            whole = torch.empty(int(size), dtype=torch.uint8)
            if data is not None:
                whole = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.broadcast(whole, 0)
        return whole.numpy().tobytes()

    def leave(self) -> None:
        """Waits for the other ranks, then ends the group."""
        if self._owner and dist.is_initialized():
            self.at("leaving")
            with self._watched():
                dist.barrier()
            dist.destroy_process_group()
            self._owner = False

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Context manager for the work of this rank. A failure ends every rank, and one line names the rank that
        failed.

        Raises: RankError; without a text if another rank or the starting process prints the message.
        """
        try:
            yield
            self.leave()
            if self._board is not None:
                self._board.end(self.rank, ENDING)
        except LostError as failure:
            raise self._told(failure) from failure.__cause__
        except RankError:
            raise
        except KeyboardInterrupt:
            if self.is_first:
                raise
            raise RankError("", 130) from None
        except Exception as failure:
            if self.is_first:
                if self._reports is not None:
                    self._reports.leave(str(failure))
                raise
            raise self._told(RankError(f"{type(failure).__name__}: {failure}"), own=True) from failure

    def _told(self, failure: RankError, own: bool = False) -> RankError:
        """The failure as this rank has to say it."""
        text = str(failure)
        if not text or self.size == 1:
            return failure
        if self._board is not None:
            self._board.set_failure(self.rank, text)
            return RankError("", 1 if own else LOST)
        if self._reports is None:
            return failure
        return RankError(self._reports.told(text, self._phase, own), failure.status)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """What torch.distributed raises for a lost rank, as ours."""
        try:
            yield
        except RuntimeError as failure:
            text = str(failure).splitlines()[0][:200]
            late = "imed out" in text or "timeout" in text.lower()
            what = f"waited {_config.current().rank_timeout} s for another rank" if late else "lost another rank"
            raise LostError(f"rank {self.rank} on {self.host} {what} in {self._phase} ({text})") from failure

    def _span(self, items: int, rank: int) -> tuple[int, int]:
        return items * rank // self.size, items * (rank + 1) // self.size


def local_size() -> int:
    """Ranks on this machine."""
    return max(1, _number("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else 1)


def _number(name: str) -> int:
    """A count from the environment. Raises: ConfigError."""
    text = os.environ.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{name}: expected a number in the environment, got {text!r}")
    return int(text)
