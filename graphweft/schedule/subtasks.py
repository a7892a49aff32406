"""A batch prepared as subtasks: sampling S, renumbering R, feature lookup K and transfer T, hop by hop.

Comes in: a neighbour sampler, seeds, keys and a table of features. Goes out: the batch that the sampler alone would
make, bit for bit, with its rows of features. Called by loaders that are given :class:`Subtasks`.

For hop h: ``S{h}.{p}`` draws part p of its rows; ``H{h}`` writes what is new into the table of numbers; ``R{h}`` writes
the block; ``K.{c}`` gathers a chunk of new nodes' rows; ``T.{c}`` and ``TR{h}`` send chunks and blocks to the second
tier. S{h+1} runs beside R{h} and K of hop h. H and R hold the table, one at a time, while draws touch nothing shared.
T waits until the last hop is numbered, when sizes are known; chunks go through two staging buffers in turn, so chunk c
is sent before chunk c + 2 is gathered. Source: GraphTensor, section IV-D, figures 12 to 14.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from graphweft import _machine
from graphweft._errors import ConfigError
from graphweft._memory import empty
from graphweft.runtime.tier import Tier
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import OpenSample, Sample
from graphweft.sample.steps import SteppedDraw
from graphweft.schedule.executor import Executor, as_count
from graphweft.schedule.tasks import Ran, Task, TaskGraph
from graphweft.storage.gather import gather_rows_into

_TABLE = "table of numbers"


@dataclass(frozen=True)
class Structure:
    """A block's arrays in the second tier."""

    indptr: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Prepared:
    """What the subtasks of a batch made.

    Attributes:
        sample: Nodes and edges.
        x: Rows of the features, (num_nodes, F); None where none were asked for.
        structure: Arrays of the blocks in the second tier, the input layer's first; empty without one.
        log: What ran when.
    """

    sample: Sample | OpenSample
    x: Tensor | None
    structure: tuple[Structure, ...]
    log: tuple[Ran, ...]


class Subtasks:
    """Prepares batches as subtasks on several threads.

    Args:
        threads: Threads; None: one per processor.
        parts: Number of parts of the draw of a hop; None: one per thread.
        chunk_rows: Rows of features gathered and sent at once.
        tier: Memory that batches are sent to; None: they stay in host memory.

    Raises: ConfigError for a number below 1.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> sampler = NeighborSampler(Graph([1, 2, 3, 3], [0, 0, 0, 1]), [-1, 1])
        >>> with Subtasks(threads=2) as subtasks:
        ...     batch = subtasks.prepare(sampler, torch.tensor([0]), (0, 0, 0), torch.eye(4))
        >>> batch.sample.n_id.tolist(), batch.x.tolist()[1]
        ([0, 1, 2, 3], [0.0, 1.0, 0.0, 0.0])
    """

    def __init__(
        self, threads: int | None = None, parts: int | None = None, chunk_rows: int = 1 << 14, tier: Tier | None = None
    ) -> None:
        if tier is not None and not isinstance(tier, Tier):
            raise ConfigError(f"tier: expected a Tier, got {type(tier).__name__}")
        self.executor = Executor(threads if threads is not None else _machine.processors())
        self.parts = self.executor.threads if parts is None else as_count("parts", parts)
        self.chunk_rows, self.tier = as_count("chunk_rows", chunk_rows), tier
        self._rank = itertools.count()

    def prepare(
        self,
        sampler: NeighborSampler,
        seeds: Tensor,
        key: tuple[int, int, int],
        x: Tensor | None = None,
        is_open: bool = False,
    ) -> Prepared:
        """The batch of ``seeds``, drawn with (seed, epoch, stage). Several threads may call it at once.

        Raises: as :meth:`NeighborSampler.sample`.
        """
        with SteppedDraw(sampler, seeds, key, self.parts, is_open) as steps:
            batch = _Batch(steps, x, self.tier, self.chunk_rows)
            graph = TaskGraph(batch.first())
            self.executor.run(graph, next(self._rank))
            return batch.done(graph)

    def sample(
        self, sampler: NeighborSampler, seeds: Tensor, key: tuple[int, int, int], is_open: bool = False
    ) -> Sample | OpenSample:
        """Draws the structure without features."""
        return self.prepare(sampler, seeds, key, is_open=is_open).sample

    def close(self) -> None:
        """Stops the threads."""
        self.executor.close()

    def __enter__(self) -> Subtasks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Batch:
    """The tasks of one batch, made as sizes become known, and what they leave."""

    def __init__(self, steps: SteppedDraw, x: Tensor | None, tier: Tier | None, chunk_rows: int) -> None:
        self._steps, self._table, self._tier, self._chunk_rows = steps, x, tier, chunk_rows
        self._last = steps.hops - 1
        self._rows: Tensor | None = None  # of the batch's nodes: as many as are known, or at most will be
        self._staging: list[Tensor] = []
        if x is not None and tier is not None:
            self._staging = [tier.staging((chunk_rows, *x.shape[1:]), x.dtype) for _ in range(2)]
        self._structure: dict[int, Structure] = {}
        self._chunks = self._known = 0
        self._waiting: list[tuple[int, Tensor]] = []  # first row and ids of what cannot be gathered yet
        self._result: Sample | OpenSample | None = None

    def first(self) -> list[Task]:
        """The draws of the first hop, and the lookup of the seeds."""
        return [*self._hop(0), *self._lookup(self._steps.seeds)]

    def done(self, graph: TaskGraph) -> Prepared:
        """What all tasks made."""
        assert self._result is not None  # all tasks have ended
        rows = None if self._rows is None else self._rows[: self._known]
        if rows is None and self._table is not None:  # a batch without nodes
            rows = (self._tier or Tier()).room((0, *self._table.shape[1:]), self._table.dtype)
        structure = tuple(self._structure[hop] for hop in sorted(self._structure, reverse=True))
        return Prepared(self._result, rows, structure, tuple(graph.log))

    def _hop(self, hop: int) -> Iterable[Task]:
        """Draws and numbering of a hop, and the arrays of its block."""
        steps, before = self._steps, (f"H{hop - 1}",) if hop else ()
        draws = [
            Task(f"S{hop}.{part}", "sample", partial(steps.draw, hop, part), before) for part in range(steps.parts)
        ]
        names = tuple(task.name for task in draws)
        if hop == self._last and steps.is_open:
            settled = (f"R{hop - 1}",) if hop else ()
            return [*draws, Task("finish", "structure", self._finish, (*names, *settled))]
        tasks = [*draws, Task(f"H{hop}", "renumber", partial(self._number, hop), names, _TABLE)]
        tasks.append(Task(f"R{hop}", "renumber", partial(self._settle, hop), self._settled_before(hop), _TABLE))
        if hop == self._last:
            tasks.append(Task("finish", "structure", self._finish, (f"R{hop}",)))
            if self._tier is not None:
                ready = (f"H{hop}", "finish")
                tasks += [Task(f"TR{h}", "transfer", partial(self._send_block, h), ready) for h in range(hop + 1)]
        return tasks

    @staticmethod
    def _settled_before(hop: int) -> tuple[str, ...]:
        return (f"H{hop}", f"R{hop - 1}") if hop else (f"H{hop}",)

    def _number(self, hop: int) -> list[Task]:
        """The new nodes of a hop; then their lookup, and the next hop."""
        fresh = self._steps.number(hop)
        return [*(self._hop(hop + 1) if hop < self._last else ()), *self._lookup(fresh, is_last=hop == self._last)]

    def _settle(self, hop: int) -> None:
        self._steps.settle(hop)

    def _finish(self) -> None:
        self._result = self._steps.finish()

    def _lookup(self, ids: Tensor, is_last: bool = False) -> list[Task]:
        """Tasks that fetch the rows of new nodes, chunk by chunk."""
        if self._table is None:
            return []
        self._waiting.append((self._known, ids))
        self._known += ids.numel()
        if self._tier is None:
            return self._lookup_in_place(is_last)
        tasks = []
        for first, rows in self._taken():
            chunk = self._chunks
            self._chunks += 1
            free = (f"T.{chunk - 2}",) if chunk >= 2 else ()
            tasks.append(Task(f"K.{chunk}", "lookup", partial(self._stage, chunk, rows), free))
            sent = (f"K.{chunk}", f"H{self._last}", *((f"T.{chunk - 1}",) if chunk else ()))
            go = partial(self._send, chunk, first, rows.numel())
            tasks.append(Task(f"T.{chunk}", "transfer", go, sent))
        return tasks

    def _lookup_in_place(self, is_last: bool) -> list[Task]:
        """Without a tier rows are gathered to where they stay, once it is known how many there are at most."""
        most = self._known if is_last else self._steps.most_nodes
        if most is None:
            return []
        assert self._table is not None  # there is something to look up
        if self._rows is None:
            self._rows = empty((most, *self._table.shape[1:]), self._table.dtype)
        tasks = []
        for first, ids in self._taken():
            chunk = self._chunks
            self._chunks += 1
            tasks.append(Task(f"K.{chunk}", "lookup", partial(self._gather, first, ids)))
        return tasks

    def _taken(self) -> Iterable[tuple[int, Tensor]]:
        """What waits, in chunks of rows."""
        waiting, self._waiting = self._waiting, []
        for first, ids in waiting:
            for at in range(0, ids.numel(), self._chunk_rows):
                yield first + at, ids[at : at + self._chunk_rows]

    def _gather(self, first: int, ids: Tensor) -> None:
        assert self._rows is not None and self._table is not None  # made before the task was
        gather_rows_into(self._table, ids, self._rows[first : first + ids.numel()])

    def _stage(self, chunk: int, ids: Tensor) -> None:
        """Gathers a chunk into one of the two buffers."""
        assert self._table is not None  # only then are there such tasks
        gather_rows_into(self._table, ids, self._staging[chunk % 2][: ids.numel()])

    def _send(self, chunk: int, first: int, count: int) -> None:
        assert self._tier is not None and self._table is not None  # only then are there such tasks
        if self._rows is None:
            self._rows = self._tier.room((self._known, *self._table.shape[1:]), self._table.dtype)
        self._tier.send(self._staging[chunk % 2][:count], self._rows[first : first + count])

    def _send_block(self, hop: int) -> None:
        assert self._tier is not None and self._result is not None  # the task comes after
        csc = self._result.blocks[self._last - hop].csc
        arrays = []
        for source in (csc.indptr, csc.indices):
            target = self._tier.room(tuple(source.shape), source.dtype)
            self._tier.send(source, target)
            arrays.append(target)
        self._structure[hop] = Structure(*arrays)
