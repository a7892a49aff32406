"""Link prediction in mode "macro": pairs inside of groups of parts of a store, scores of the whole graph.

Comes in: a model, a store, how many parts make a group or how much memory there is. Goes out: epochs and scores for the
trainer. Which pairs are held out follows from a hash of their nodes; embeddings are evaluated part by part from all
neighbours in the training graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphweft._distinct import Ids
from graphweft._errors import ConfigError, DataError, MemoryBudgetError
from graphweft._memory import POOL
from graphweft.data.stored import StoredDataset
from graphweft.loader.groups import BesideGroups, group_bytes, kept_bytes, parts_within
from graphweft.loader.link_batch import LinkBatch
from graphweft.loader.link_groups import LinkGroupLoader, TrainingParts, share_of
from graphweft.nn.stack import Stack
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.storage.store import Store
from graphweft.train.grouped import OnGroups
from graphweft.train.link_task import MOST_SCORED, RANKED_AMONG, STAGES, LinkTask, check_link, check_stored_links
from graphweft.train.macro import Macro
from graphweft.train.options import FIRST, check_macro
from graphweft.train.part_inference import PartInference
from graphweft.train.samplers import fitting_fanouts
from graphweft.train.setup import Setup
from graphweft.train.stored_sizes import least_beside_links, least_told, link_outputs

_PIECE = 1 << 15  # pairs that are looked up at a time
_TURNS = 64  # of drawing, before pairs without an edge are taken to be too few


class GroupedLinks(OnGroups, LinkTask):
    """Trains on edges inside of groups of parts.

    Args:
        setup: With a store as ``ds`` and "parts:B/P" as ``macro``; None: as many parts as fit into ``memory``. Without
            ``memory`` groups have half of a quarter of the machine's.

    Raises: ConfigError for options that do not fit, or too little memory; DataError without edges to hold out.
    """

    def _set_up(self, setup: Setup) -> None:
        model, ds, macro, memory = setup.model, setup.ds, setup.drawn.macro, setup.memory
        check_link(setup.drawn._replace(macro=None))
        given, self._x = _checked(model, ds), setup.x
        assert isinstance(model, Stack)  # as was checked
        self._source, self._keep = given, 0 if macro is None else macro.keep
        self.fanouts = fitting_fanouts(model, setup.drawn.fanouts)
        beside = partial(least_beside_links, model, given, self.fanouts, setup.drawn.batch_size)
        self.group, self.is_asked = _count(given, macro, memory, beside), macro is not None and macro.stages is not None
        self._score_pairs(setup)
        self.loader: Any = self._load()
        self.store: Any = self.loader.source  # with the parts that stay in memory
        source = TrainingParts(self.store, setup.seed)
        budget = memory_bytes(memory) - kept_bytes(self.store, self._keep)
        self.inference = PartInference(model, source, budget, self.group, setup.scratch)
        self._names = torch.cat([given.node_ids(number) for number in range(len(given))])
        held = [self._names[pairs] for pairs in _held_out(given, setup.seed)]
        if min(pairs.shape[1] for pairs in held) == 0:
            raise DataError(f"{ds.name}: expected enough edges to hold some out, got {ds.num_edges}")
        self.split: Any = SimpleNamespace(val=held[0], test=held[1])
        self._negative: Any = _Negatives(given, self._names)

    def _load(self) -> Any:
        """The loader over the edges inside of groups."""
        drawn = (self.fanouts, self.drawn.batch_size, True, self.seed)
        return LinkGroupLoader(self._source, *drawn, count=self.group, keep=self._keep)

    def regroup(self, count: int) -> None:
        """Groups of so many parts from now on; before the first epoch."""
        self.group = self.inference.count = count
        self.loader = self._load()

    def rehearse(self, batch: LinkBatch) -> None:
        """The gradients of a batch, without an update."""
        self.model.train()
        self._gradients(batch)

    def let_go(self) -> None:
        """Nothing of a group is held between batches."""

    def evaluated_as(self) -> Any:
        """All nodes have embeddings, whatever the splits of nodes are."""
        ds = SimpleNamespace(store=self.store)
        assert isinstance(self.model, Stack)  # as was checked
        held, scoring = link_outputs(self.model, self.store, split=self.split)
        given = {"model": self.model, "inference": self.inference, "outputs": self.logits}
        return SimpleNamespace(ds=ds, counted=(held, scoring - held), **given)

    def use(self, edge_data: Any) -> None:
        """Raises: ConfigError for values of edges."""
        if edge_data.inputs is not None:
            raise ConfigError("task=link cannot be combined with edge_weight in mode=macro; use edge_data='ignore'")

    def logits(self) -> Tensor:
        """The embeddings, (N, C), in the order of the source, from all neighbours in the training graph."""
        found = self.inference.outputs(np.arange(self.store.num_nodes))
        made = torch.empty_like(found).index_copy_(0, self._names, found)
        if self.budget is not None:  # what tiles took would lie beside the pairs that are scored
            POOL.trim()
        return made

    def _tails(self, name: str, src: Tensor) -> Callable[[slice], Tensor]:
        """Destinations of all sources at once: finding some without an edge reads the whole structure."""
        found: Tensor = self._negative.tails(src, RANKED_AMONG, seed=self.seed, stage=STAGES[name])
        return found.__getitem__

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        drawn = {"drawn": list(self.fanouts), "batch_size": self.loader.batch_size, "task": "link"}
        kept = {"keep": self.loader.keep} if self.loader.keep else {}
        return {**drawn, **kept, "group": f"{self.group}/{len(self.store)}", "store": self.store.manifest.crc32}


class _Negatives:
    """Uniform pairs of a store that are no edges, in the numbers of the source."""

    def __init__(self, store: Store, names: Tensor) -> None:
        self._store, self._names = store, names.numpy()
        self._place = np.empty_like(self._names)
        self._place[self._names] = np.arange(len(self._names))

    def pairs(self, places: Tensor, *, seed: int, stage: int) -> tuple[Tensor, Tensor]:
        """One pair for each place."""
        rng = np.random.default_rng([seed, stage])
        src = rng.integers(0, len(self._names), places.numel())
        dst = self._without_edges(rng, src, 1, draws_both=True)
        return torch.from_numpy(self._names[src]), torch.from_numpy(self._names[dst])

    def tails(self, src: Tensor, amount: int, *, seed: int, stage: int) -> Tensor:
        """(n, amount) nodes that each source has no edge to."""
        rng = np.random.default_rng([seed, stage, 1])
        dst = self._without_edges(rng, self._place[src.numpy()], amount)
        for at in range(0, len(dst), _PIECE):
            dst[at : at + _PIECE] = self._names[dst[at : at + _PIECE]]
        return torch.from_numpy(dst).reshape(-1, amount)

    def _without_edges(self, rng: np.random.Generator, src: Ids, amount: int, draws_both: bool = False) -> Ids:
        """``amount`` destinations for each source, ids of the store; edges and loops are drawn again, in place.

        ``draws_both``: with their sources, of which each has one.
        """
        nodes = len(self._names)
        dst = rng.integers(0, nodes, amount * len(src))
        again = np.flatnonzero(_are_edges(self._store, src, dst, amount))
        for _ in range(_TURNS):
            if len(again) == 0:
                return dst
            if draws_both:
                src[again] = rng.integers(0, nodes, len(src))[again]
            dst[again] = rng.integers(0, nodes, len(again))
            again = again[_are_edges(self._store, src[again // amount], dst[again], 1)]
        raise DataError(
            f"expected pairs of nodes without an edge to evaluate against, found none for {len(again)} of {len(dst)} "
            f"in {_TURNS} turns; use mode=mini, which counts those that are left"
        )


def _are_edges(store: Store, src: Ids, dst: Ids, amount: int) -> NDArray[np.bool_]:
    """Which pairs are edges or loops, ``amount`` for each source: one pass over the structure, some pairs at a time."""
    nodes = store.num_nodes
    found: NDArray[np.bool_] = (dst.reshape(-1, amount) == src[:, None]).reshape(-1)
    for number, (start, end) in enumerate(itertools.pairwise(store.bounds.tolist())):
        keys: Ids | None = None
        for at in range(0, len(dst), _PIECE):
            some = dst[at : at + _PIECE]
            here = np.flatnonzero((some >= start) & (some < end))
            if not len(here):
                continue
            keys = _edge_keys(store, number) if keys is None else keys
            wanted = (some[here] - start) * nodes + src[(at + here) // amount]
            place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
            found[at + here] |= keys[place] == wanted if len(keys) else False
    return found


def _edge_keys(store: Store, number: int) -> Ids:
    """Row of the part times nodes, plus source, of all edges of a part: ascending, as rows are."""
    offsets, sources = store.structure(number)
    keys: Ids = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    keys *= store.num_nodes
    keys += sources
    return keys


def _held_out(store: Store, seed: int) -> list[Tensor]:
    """(2, at most 10,000) edges of validation and of the test, ids of the store, chosen by hash of part and place."""
    nodes = store.num_nodes
    found: list[list[Ids]] = [[], []]
    for number in range(len(store)):
        offsets, sources = store.structure(number)
        own = np.repeat(np.arange(store.bounds[number], store.bounds[number + 1]), np.diff(offsets))
        shares = share_of(sources, own, nodes, seed)
        for part in (0, 1):
            at = np.flatnonzero(shares == part + 1)
            found[part].append(np.stack([sources[at].astype(np.int64), own[at]]))
    chosen = []
    for pieces in found:
        ends = np.concatenate(pieces, axis=1)
        order = np.random.default_rng(seed).permutation(ends.shape[1])[:MOST_SCORED]
        chosen.append(torch.from_numpy(np.ascontiguousarray(ends[:, order])))
    return chosen


def _checked(model: nn.Module, ds: Any) -> Store:
    """Raises: ConfigError for a typed store, data in memory, or a model that is no stack of layers."""
    if not isinstance(ds, StoredDataset):
        raise ConfigError(
            "task=link with mode=macro cannot be combined with data in memory; it is for a gw.macro.Store"
        )
    check_stored_links(model, ds.store)
    return ds.store


def _count(store: Store, macro: Macro | None, memory: int | str | None, beside: BesideGroups) -> int:
    """Parts of a group. Raises: ConfigError for what groups of links do not have, or too little memory."""
    parts, budget = len(store), memory_bytes(memory)
    if macro is not None and (macro.hubs is not None or macro.reuse > 1 or macro.neighbours or macro.first != FIRST[0]):
        raise ConfigError("task=link cannot be combined with hubs, reuse, neighbours or first")
    if macro is not None and not isinstance(macro.stages, str | None):
        raise ConfigError(f"macro: expected parts:B/{parts} for a store of {parts} parts, got {macro.stages!r:.60}")
    keep = 0 if macro is None else macro.keep
    if macro is None or macro.stages is None:
        if memory is not None:
            return parts_within(store, budget, 0, 0, keep, beside, least_told)
        return parts_within(store, max((budget - kept_bytes(store, keep)) // 2, 1))
    kind, count, of = check_macro(macro.stages)
    if kind != "parts" or of != parts:
        raise ConfigError(f"macro: expected parts:B/{parts} for a store of {parts} parts, got {macro.stages}")
    groups = group_bytes(store, count, 0, 0, keep)
    needed = groups + beside(count)
    if memory is not None and needed > budget:
        needed = groups + beside(count, is_drawn=True)
    if memory is not None and needed > budget:
        least, got = least_told(needed), shown_bytes(budget)
        text = f"memory: expected at least {shown_bytes(least)} for groups of {count} parts, got {got}"
        raise MemoryBudgetError(text, least)
    return count


__all__ = ["GroupedLinks"]
