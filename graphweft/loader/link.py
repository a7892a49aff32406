"""The link loader: batches of edges to predict, with negatives, and the neighbourhoods of their ends.

Comes in: a dataset or graph to pass messages over, and edges to predict. Goes out: :class:`LinkBatch` after batch.
Called by users' loops and by the link prediction task of the trainer. The edges of a batch, and where asked their
reverses, are taken out of the graph that its messages pass over: no model sees what it has to say.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor

from graphweft._checks import check_rows, checksum
from graphweft._errors import ConfigError, GraphError, ShapeError
from graphweft._torch_private import hosted
from graphweft.graph.graph import Graph
from graphweft.graph.ids import as_ids, require_ids
from graphweft.graph.typed import Relation
from graphweft.loader.batch import Data, check_tables, graph_of
from graphweft.loader.disk import FedLoader
from graphweft.loader.epoch_order import as_item_weight, as_share
from graphweft.loader.fetching import as_fetch, fetched
from graphweft.loader.link_batch import LinkBatch, make_link_batch
from graphweft.loader.other_keywords import refuse
from graphweft.sample.negative import NegativeSampler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample
from graphweft.sample.segment import LeftOut, SegmentSampler
from graphweft.sample.times import flat_times

NEGATIVES = ("none", "binary", "tail", "triplet", "in-batch")
EXCLUDES = ("none", "target", "both")
_NEGATIVE_STAGE = 1 << 32  # draws of negatives are keyed apart from those of neighbours


class LinkLoader(FedLoader[LinkBatch]):
    """Edges to predict, ``batch_size`` at a time, with the sampled neighbourhoods of their ends.

    Batches do not depend on the number of threads. ``state_dict`` resumes in the middle of an epoch, as for
    :class:`gw.Loader`. Negatives are exact: never a known edge and never a pair of a node with itself. All other pairs
    are equally likely.

    Args:
        ds: A dataset, or a graph alone; its edges carry the messages.
        edge_label_index: (2, P) ends of the edges to predict; None: all edges of the graph (of ``relation``). For a
            typed graph also (relation, ends).
        edge_label: (P,) labels; None: all edges are positives. Negatives have label 0. If negatives are drawn and the
            smallest label is 0, all labels are raised by 1.
        fanouts: As for :class:`gw.Loader`; by relation for a typed graph.
        batch_size: Edges of a batch.
        shuffle: A new order every epoch.
        seed: Keys order, neighbours and negatives.
        negatives: "binary" for pairs of any nodes, or "tail" for the positive's source with another destination;
            batches have ``edge_label_index`` and ``edge_label``. "triplet" is as "tail", with ``src_index``,
            ``dst_pos_index`` and ``dst_neg_index``. "in-batch" takes the destinations of the other positives;
            ``negative_mask`` marks the valid ones. "none" draws none.
        amount: Negatives per positive; with "binary" also a share such as 0.5, rounded up for a batch.
        negative_weight: Weights of the nodes in negatives; see ``weight`` of :class:`NegativeSampler`.
        distinct: Whether the negatives of a batch differ; with "tail" and "triplet", whether those of a source differ.
        known: Graph of all edges that are never negatives; None: the edges of the graph and of ``edge_label_index``.
        exclude: Edges that carry no messages. "target": the edges of the batch and parallel ones; "both": also their
            reverses, for undirected graphs; "none". Or a function of the sources and destinations of the batch's edges,
            int64 (n,) each. It returns a mask (n,) of the edges to exclude, or the sources and destinations of other
            edges, each into an end of the batch.
        relation: For a typed graph, the relation to predict; ids are then local to its types.
        reverse_relation: For a typed graph, the relation of the reverse edges, for ``exclude="both"``.
        replace, weight: As for :class:`gw.Loader`.
        time: (E,) times of the graph's edges; neighbours are never later than the edge to predict. Every end then has a
            tree of its own (see :class:`SegmentSampler`). Of the graph's edges between the ends, only those that are
            not earlier are excluded.
        edge_label_time: (P,) times of the edges to predict. Without ``edge_label_index`` the default are their times in
            ``time``.
        window, strategy: As for :class:`SegmentSampler`.
        drop_last, prefetch, workers, share, fetch: As for :class:`gw.Loader`.
        item_weight: As for :class:`gw.Loader`; "balanced" counts the classes of ``edge_label``.

    Raises: ConfigError, DtypeError, GraphError, IndexRangeError, ShapeError for arguments that do not fit.

    Example:
        >>> graph = Graph([0, 1, 2, 3], [1, 2, 3, 0])
        >>> loader = LinkLoader(graph, fanouts=[2], batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.n_id[batch.edge_label_index[:, :2]].tolist(), batch.edge_label.tolist()
        ([[0, 1], [1, 2]], [1.0, 1.0, 0.0, 0.0])
        >>> 0 in batch.e_id.tolist()
        False
    """

    who = "LinkLoader"

    @hosted
    def __init__(
        self,
        ds: Data | Graph,
        edge_label_index: Any = None,
        edge_label: Any = None,
        fanouts: Any = (15, 10),
        batch_size: int = 1024,
        shuffle: bool = False,
        seed: int = 0,
        *,
        negatives: str = "binary",
        amount: float = 1,
        negative_weight: Any = None,
        distinct: bool = False,
        known: Graph | None = None,
        exclude: Any = "target",
        relation: Relation | None = None,
        reverse_relation: Relation | None = None,
        replace: bool = False,
        weight: Any = None,
        time: Any = None,
        edge_label_time: Any = None,
        window: float | None = None,
        strategy: str = "uniform",
        drop_last: bool = False,
        prefetch: int | None = None,
        workers: int | None = None,
        item_weight: Any = None,
        share: Any = None,
        fetch: Any = None,
        **others: NoReturn,
    ) -> None:
        refuse("LinkLoader", others, LinkLoader)
        graph = graph_of("LinkLoader", ds)
        check_tables("LinkLoader", ds)
        if _names_relation(edge_label_index):
            relation, edge_label_index = edge_label_index
        _check_choice("negatives", negatives, NEGATIVES)
        if not callable(exclude):
            _check_choice("exclude", exclude, EXCLUDES)
        self._ds, self.negatives, self.exclude, self._relation = ds, negatives, exclude, relation
        self._relations = _relations(graph, relation, reverse_relation, exclude)
        time = flat_times("LinkLoader", graph, time)
        options = {"time": time, "window": window, "strategy": strategy}
        self.sampler = _sampler_of(graph, fanouts, replace, weight, options)
        self.src, self.dst = _targets(graph, edge_label_index, relation)
        count = self.src.numel()
        self.edge_label = None if edge_label is None else _labels(edge_label, count, negatives)
        size = self._as_count("batch_size", batch_size, 1)
        drawn = as_item_weight("LinkLoader", item_weight, self.edge_label, count, size)
        part = as_share("LinkLoader", share, count)
        super().__init__(count, batch_size, shuffle, seed, drop_last, prefetch, workers, drawn, part)
        self._fetch = as_fetch("LinkLoader", graph, fetch)
        self.amount: float = amount if _is_share(amount, negatives) else self._as_count("amount", amount, 1, 2**20)
        self._raised = _raised(self.edge_label)
        stretch = _stretch(graph, relation) if edge_label_index is None else None
        self.edge_label_time = _target_times(self.sampler, edge_label_time, time, stretch, count)
        how = _how_drawn(negatives, amount, negative_weight, distinct)
        self._negative = self._known(graph, known, relation, how) if negatives != "none" else None
        self._checksums = self._sums()

    def _sums(self) -> dict[str, Any]:
        """Checksums of what is predicted and of what negatives are drawn by."""
        return {
            "targets_checksum": checksum(torch.stack([self.src, self.dst])),
            "labels_checksum": checksum(self.edge_label),
            "target_times_checksum": checksum(self.edge_label_time),
            **({} if self._negative is None else self._negative.identity()),
        }

    @property
    def graph(self) -> Graph:
        """The graph whose edges carry messages."""
        return self.sampler.graph

    @property
    def data(self) -> Data | Graph:
        """The dataset or graph that was given."""
        return self._ds

    def _known(
        self, graph: Graph, known: Graph | None, relation: Relation | None, how: dict[str, Any]
    ) -> NegativeSampler:
        """Draws pairs that are in neither the graph nor the list of positives."""
        if known is not None:
            if known.num_nodes != graph.num_nodes or known.layout.node_offsets != graph.layout.node_offsets:
                raise GraphError(f"LinkLoader: expected known edges over the nodes of {graph!r}, got {known!r}")
            return NegativeSampler(known, relation, **how)
        sampler = NegativeSampler(graph, relation, **how)
        present = sampler.has_edges(self.src, self.dst)
        return sampler if bool(present.all()) else sampler.with_edges(self.src[~present], self.dst[~present])

    def _identity(self) -> dict[str, Any]:
        return {
            **super()._identity(),
            **self.sampler.identity(),
            "negatives": self.negatives,
            "amount": self.amount,
            "exclude": getattr(self.exclude, "__qualname__", str(self.exclude)),
            "num_targets": self.num_items,
            **self._checksums,
            "num_nodes": self.graph.num_nodes,
            "num_edges": self.graph.num_edges,
        }

    def make(self, places: Tensor, epoch: int) -> LinkBatch:
        """The batch of the targets at ``places``, with their negatives."""
        src, dst = self.src[places], self.dst[places]
        negative_src, negative_dst = self._draw(src, places, epoch)
        ends = torch.cat([src, negative_src, dst, negative_dst])
        if isinstance(self.sampler, SegmentSampler) and self.sampler.disjoint:
            sample, rows = self._in_trees(ends, src, dst, places, epoch)
        else:
            sample, rows = self._shared(ends, src, dst, epoch)
        batch = make_link_batch(sample, self._ds, places, self._relation)
        count, extra = src.numel(), negative_src.numel()
        self._label(batch, rows[: count + extra], rows[count + extra :], (src, dst), places)
        return fetched(batch, self._fetch)

    def _draw(self, src: Tensor, places: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Ends of the negatives; triplets have destinations only."""
        none = src[:0]
        if self._negative is None or self.negatives == "in-batch":
            return none, none
        key = {"seed": self.seed, "epoch": epoch, "stage": _NEGATIVE_STAGE}
        if self.negatives == "binary":
            few = self.amount < 1  # then the first of the edges have a negative each
            wanted = places[: math.ceil(self.amount * places.numel())] if few else places
            src, dst = self._negative.pairs(wanted, 1 if few else int(self.amount), **key)
            return src, dst
        amount = int(self.amount)
        tails = self._negative.tails(src, amount, keys=places, **key).reshape(-1)
        return (none if self.negatives == "triplet" else src.repeat_interleave(amount)), tails

    def _shared(self, ends: Tensor, src: Tensor, dst: Tensor, epoch: int) -> tuple[Sample, Tensor]:
        """One neighbourhood of all ends, each once, and their rows."""
        seeds, rows = torch.unique(ends, return_inverse=True)
        if isinstance(self.sampler, NeighborSampler):
            return self.sampler.sample(seeds, seed=self.seed, epoch=epoch, exclude=self._left(src, dst)), rows
        pairs = self._without(src, dst)
        return self.sampler.sample(seeds, seed=self.seed, epoch=epoch, exclude=_left_out(pairs)), rows

    def _left(self, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor] | None:
        """Sources and destinations of what messages of a batch of edges do without."""
        pairs = self._without(src, dst)
        return (torch.cat([s for s, _, _ in pairs]), torch.cat([d for _, d, _ in pairs])) if pairs else None

    def _in_trees(self, ends: Tensor, src: Tensor, dst: Tensor, places: Tensor, epoch: int) -> tuple[Sample, Tensor]:
        """A neighbourhood for every end at its time, and their rows: all of them, in order."""
        assert isinstance(self.sampler, SegmentSampler)
        count = places.numel()
        if self.amount < 1:
            raise ConfigError(f"LinkLoader: amount={self.amount} cannot be combined with a tree for every end; use 1")
        per = int(self.amount) if self._negative is not None and self.negatives != "in-batch" else 0
        heads = 0 if self.negatives == "triplet" else per
        edge = torch.arange(count)  # whose end a tree belongs to: sources, theirs of negatives, destinations, theirs
        edge = torch.cat([edge, edge.repeat_interleave(heads), edge, edge.repeat_interleave(per)])
        role = torch.arange(2 + heads + per)
        parts = torch.split(role, [1, heads, 1, per])
        keys = places[edge] * role.numel() + torch.cat([part.repeat(count) for part in parts])
        times = None if self.edge_label_time is None else self.edge_label_time[places[edge]]
        # every tree of an edge does without it, those of its negatives too: else its absence would tell them apart
        if callable(self.exclude):
            raise ConfigError("LinkLoader: exclude as a function cannot be combined with a tree for every end")
        pairs = self._without(src[edge], dst[edge])
        exclude = _left_out(pairs, torch.arange(edge.numel()))
        key = {"seed": self.seed, "epoch": epoch}
        sample = self.sampler.sample(ends, time=times, keys=keys, exclude=exclude, **key)
        return sample, torch.arange(ends.numel())

    def _without(self, src: Tensor, dst: Tensor) -> list[tuple[Tensor, Tensor, int]]:
        """What is taken out of the graph that messages pass over: sources, destinations, number of the relation."""
        if callable(self.exclude):
            return [(*_chosen(self.exclude(src, dst), src, dst), self._relations[0])]
        pairs = [] if self.exclude == "none" else [(src, dst, self._relations[0])]
        if self.exclude == "both":
            pairs.append((dst, src, self._relations[1]))
        return pairs

    def _label(
        self, batch: LinkBatch, src_rows: Tensor, dst_rows: Tensor, ends: tuple[Tensor, Tensor], places: Tensor
    ) -> None:
        """Says which rows the positives and negatives join."""
        count = places.numel()
        if self.edge_label_time is not None:
            batch.edge_label_time = self.edge_label_time[places]
        if self.negatives in ("triplet", "in-batch"):
            batch.src_index, batch.dst_pos_index = src_rows, dst_rows[:count]
            if self.negatives == "triplet":
                negative = dst_rows[count:]
                batch.dst_neg_index = negative if self.amount == 1 else negative.reshape(count, int(self.amount))
            else:
                assert self._negative is not None
                batch.negative_mask = self._negative.mask(*ends)
            return
        batch.edge_label_index = torch.stack([src_rows, dst_rows])
        labels = None if self.edge_label is None else self.edge_label[places]
        if self.negatives != "none":
            positive = torch.ones(count) if labels is None else labels + self._raised
            negative = torch.zeros((src_rows.numel() - count, *positive.shape[1:]), dtype=positive.dtype)
            labels = torch.cat([positive, negative])
        batch.edge_label = labels


def _sampler_of(
    graph: Graph, fanouts: Any, replace: bool, weight: Any, options: dict[str, Any]
) -> NeighborSampler | SegmentSampler:
    """Draws the neighbourhoods: by relation and time where there are some."""
    if not graph.is_typed and options == {"time": None, "window": None, "strategy": "uniform"}:
        return NeighborSampler(graph, fanouts, replace, weight)
    return SegmentSampler(graph, fanouts, replace, weight=weight, **options)


def _is_share(amount: Any, negatives: str) -> bool:
    """Whether ``amount`` is a share. Raises: ConfigError for one that the kind of negatives does not take."""
    if not (isinstance(amount, float) and 0 < amount < 1):
        return False
    if negatives != "binary":
        raise ConfigError(f"LinkLoader: amount={amount} cannot be combined with negatives {negatives!r}; use binary")
    return True


def _how_drawn(negatives: str, amount: float, weight: Any, distinct: bool) -> dict[str, Any]:
    """Options of the sampler of negatives. Raises: ConfigError for some where none are drawn."""
    for name, given in {"amount": amount != 1, "negative_weight": weight is not None, "distinct": distinct}.items():
        if given and negatives in ("none", "in-batch"):
            raise ConfigError(f"LinkLoader: {name} cannot be combined with negatives {negatives!r}, which draws none")
    return {"weight": weight, "distinct": bool(distinct)}


def _chosen(answer: Any, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """The edges that a function wants excluded. Raises: ConfigError for what is neither a mask nor ends."""
    if isinstance(answer, Tensor) and answer.dtype == torch.bool and answer.shape == src.shape:
        return src[answer], dst[answer]
    if isinstance(answer, tuple | list) and len(answer) == 2:
        first, second = (as_ids("LinkLoader", "exclude", side).long() for side in answer)
        ends = torch.cat([src, dst])
        if first.numel() == second.numel() and bool(torch.isin(second, ends).all()):
            return first, second
    got = f"{answer.dtype} of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
    raise ConfigError(
        f"LinkLoader: expected exclude to return a mask of {src.numel()} edges, or sources and destinations of edges "
        f"into ends of the batch, got {got}"
    )


def _target_times(sampler: Any, given: Any, time: Any, stretch: slice | None, count: int) -> Tensor | None:
    """Times of the edges to predict; where ``stretch`` says which edges of the graph they are, those of the graph."""
    if given is None and stretch is not None and time is not None:
        given = torch.as_tensor(time)[stretch]
    if isinstance(sampler, SegmentSampler):
        return sampler.seed_times(given, count)
    if given is not None:
        raise ConfigError("LinkLoader: expected time, one per edge of the graph, for edge_label_time, got None")
    return None


def _left_out(pairs: list[tuple[Tensor, Tensor, int]], tree: Tensor | None = None) -> LeftOut | None:
    if not pairs:
        return None
    src, dst = torch.cat([s for s, _, _ in pairs]), torch.cat([d for _, d, _ in pairs])
    relation = torch.cat([torch.full((s.numel(),), number) for s, _, number in pairs])
    owner = torch.zeros_like(src) if tree is None else tree.repeat(len(pairs))
    return LeftOut(owner, relation, src, dst)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"LinkLoader: expected {name} as one of {', '.join(choices)}, got {value!r}")


def _relations(graph: Graph, relation: Any, reverse: Any, exclude: str) -> tuple[int, int]:
    """Numbers of the relation to predict and of the one with its reverses."""
    if not graph.is_typed:
        if relation is not None or reverse is not None:
            raise ConfigError("LinkLoader: expected a typed graph for a relation, got one without types")
        return 0, 0
    if relation is None:
        names = ", ".join("-".join(known) for known in graph.relations)
        raise ConfigError(f"LinkLoader: expected the relation to predict, one of {names}, got None")
    graph.layout.edge_range(relation)
    if reverse is None:
        if exclude == "both":
            raise ConfigError("LinkLoader: expected reverse_relation for exclude='both' on a typed graph, got None")
        return graph.relations.index(relation), 0
    graph.layout.edge_range(reverse)
    if (reverse[0], reverse[2]) != (relation[2], relation[0]):
        turned = f"from {relation[2]} to {relation[0]}"
        raise ConfigError(f"LinkLoader: expected reverse_relation {turned}, got {'-'.join(reverse)}")
    return graph.relations.index(relation), graph.relations.index(reverse)


def _names_relation(index: Any) -> bool:
    pair = isinstance(index, tuple) and len(index) == 2 and isinstance(index[0], tuple)
    return pair and len(index[0]) > 0 and all(isinstance(name, str) for name in index[0])


def _stretch(graph: Graph, relation: Relation | None) -> slice:
    ids = range(graph.num_edges) if relation is None else graph.layout.edge_range(relation)
    return slice(ids.start, ids.stop)


def _targets(graph: Graph, index: Any, relation: Relation | None) -> tuple[Tensor, Tensor]:
    """Flat int64 ends of the edges to predict."""
    if index is None:
        src, dst = graph.edges()
        here = _stretch(graph, relation)
        return src[here].contiguous(), dst[here].contiguous()
    try:
        first, second = index
    except (TypeError, ValueError):
        raise ShapeError(f"LinkLoader: expected edge_label_index of shape (2, P), got {type(index).__name__}") from None
    ends = []
    sides = (None, None) if relation is None else (relation[0], relation[2])
    for name, ids, node_type in zip(("source", "destination"), (first, second), sides, strict=True):
        ids = as_ids("LinkLoader", f"edge_label_index {name}s", ids).long()
        nodes = range(graph.num_nodes) if node_type is None else graph.layout.node_range(node_type)
        require_ids("LinkLoader", f"edge_label_index {name}", ids, len(nodes))
        ends.append(ids + nodes.start if nodes.start else ids.clone())
    if ends[0].numel() != ends[1].numel():
        raise ShapeError(
            f"LinkLoader: expected as many sources as destinations, got {ends[0].numel()} and {ends[1].numel()}"
        )
    return ends[0], ends[1]


def _labels(labels: Any, count: int, negatives: str) -> Tensor:
    given: Tensor = torch.as_tensor(labels).detach().cpu()
    check_rows("LinkLoader edge_label", given, count, "edge")
    if negatives in ("triplet", "in-batch"):
        raise ConfigError(f"LinkLoader: edge_label cannot be combined with negatives={negatives!r}")
    return given


def _raised(labels: Tensor | None) -> int:
    """What labels are raised by: those from 0 on make room for the 0 of negatives, all ones have it already."""
    return int(labels is not None and labels.numel() > 0 and bool(labels.min() == 0))
