"""Synthetic twins of the sets that people publish on: same counts, same density, accuracy that means something.

Comes in: a name, a scale, a seed. Goes out: a :class:`Dataset` made on the spot, the same bit for bit on any number of
threads. Called by users, by ``graphweft train`` without data, and by the benchmarks.

A twin has planted communities, several to a class, and power-law degrees. Links prefer the own community, so that
neighbours tell the class; features alone tell it badly; some labels tell nothing. Real sets number their nodes by
crawl, time or topic, and what locality that leaves differs from set to set: twins number them at random, which is the
hard case for caches; ``order="community"`` numbers them community after community, which is the easy one.
"""

from __future__ import annotations

import dataclasses
import math
import operator

import torch

from graphweft import _machine, _memory
from graphweft._errors import ConfigError
from graphweft._torch_private import hosted
from graphweft.data.communities import (
    PowerLaw,
    binary_features,
    dense_features,
    draw_graph,
    draw_labels,
    draw_split,
    many_labels,
    plant_communities,
    word_features,
)
from graphweft.data.dataset import Dataset
from graphweft.data.statistics import STATISTICS, Statistics, find_statistics
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures

_MIN_NODES = 10
_MULTI_LABEL_TOPICS = 50  # communities' topics of a set whose nodes have many labels
_SPARSE_BELOW = 0.2  # densities below this are stored as bags of words
_DENSE_ABOVE = 0.9
_OUT_DEGREE_RATIO = 50.0  # directed sets: most links that a node starts, in units of the mean
_STRAY_LABEL = 0.04


@hosted
def synthetic(
    name: str = "default",
    scale: float = 1.0,
    seed: int = 0,
    *,
    nonzeros_per_row: int | None = None,
    bidirected: bool | None = None,
    homophily: float | None = None,
    num_nodes: int | None = None,
    num_edges: int | None = None,
    num_features: int | None = None,
    num_classes: int | None = None,
    order: str = "random",
    multilabel: bool = False,
) -> Dataset:
    """A graph with the published statistics of the set ``name``, with features, labels and a split.

    Args:
        name: A name of ``graphweft.data.statistics``, in any case, with or without ``ogbn-``; "default" is small.
        scale: Factor of the numbers of nodes and edges. The mean degree stays, but is limited for few nodes.
        seed: Another seed gives another graph with the same statistics.
        nonzeros_per_row: Number of nonzero features of every node, as a bag of words, in place of the published
            density.
        bidirected: Whether to store both directions of every link; None: as published.
        homophily: Approximate share of edges within a class.
        num_nodes: Nodes before scaling; None: the published number.
        num_edges: Directed edges before scaling, where an undirected edge counts twice; None: the published number.
        num_features: Columns of the features; None: the published number.
        num_classes: Classes; None: the published number.
        order: "random" for random ids; "community" for consecutive ids within a community.
        multilabel: Whether nodes have any number of labels, (nodes, classes), for the sets that are published so (ppi,
            yelp, amazonproducts). False gives every node one class, as in benchmarks of node classification.

    Raises: ConfigError for an unknown name, a value out of range, ``multilabel`` with another set, or a graph that does
    not fit into this machine's memory.

    Example:
        >>> ds = synthetic("products", scale=0.001, seed=0)
        >>> ds.num_nodes, ds.num_features, ds.num_classes
        (2449, 100, 47)
    """
    entry = find_statistics(name)
    given = {"num_nodes": num_nodes, "num_edges": num_edges, "num_features": num_features, "num_classes": num_classes}
    entry = _changed(entry, {key: value for key, value in given.items() if value is not None}, homophily)
    if multilabel and not entry.multi_label:
        known = ", ".join(known.name for known in STATISTICS.values() if known.multi_label)
        raise ConfigError(f"synthetic: expected multilabel=True with one of {known}, got {entry.name}")
    entry = dataclasses.replace(entry, multi_label=bool(multilabel))
    _check_options(entry, scale, nonzeros_per_row, order)
    seed = _checked_seed(seed)
    plan = _Plan.of(entry, scale, bidirected, nonzeros_per_row)
    _check_memory(name, scale, plan)
    return _draw(plan, seed, shuffled=order == "random")


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The numbers of one twin: what the entry of the table becomes at a scale."""

    entry: Statistics
    name: str
    nodes: int
    links: int
    back: int
    nonzeros: int  # of bags of words; 0 for densely stored features
    fixed_rows: bool
    topics: int

    @classmethod
    def of(cls, entry: Statistics, scale: float, bidirected: bool | None, per_row: int | None) -> _Plan:
        """Counts at ``scale``; half of all pairs of nodes are linked at most."""
        nodes = round(entry.num_nodes * scale)
        links = min(round(entry.num_links * scale), nodes * (nodes - 1) // 4)
        back = links if entry.symmetric else min(round((entry.num_edges - entry.num_links) * scale), links)
        if bidirected is not None:
            back = links if bidirected else 0
        nonzeros = 0
        if per_row is not None:
            nonzeros = per_row * nodes
        elif entry.feature_density < _SPARSE_BELOW:
            nonzeros = round(_words_per_row(entry) * nodes)
        topics = _MULTI_LABEL_TOPICS if entry.multi_label else entry.num_classes
        name = f"synthetic:{entry.name}" + ("" if scale == 1 else f"@{scale:g}")
        return cls(entry, name, nodes, links, back, nonzeros, per_row is not None, topics)

    @property
    def mean_degree(self) -> float:
        """Neighbours of a node, either way."""
        return 2.0 * self.links / self.nodes

    def nbytes(self) -> int:
        """Bytes at the peak: the set itself, and scratch for drawing it."""
        entry = self.entry
        graph = 8 * self.nodes + 4 * (self.links + self.back)
        scratch = 4 * self.links + 40 * self.nodes
        features = 8 * self.nonzeros + 8 * self.nodes if self.nonzeros else 4 * self.nodes * entry.num_features
        labels = 4 * self.nodes * entry.num_classes if entry.multi_label else 8 * self.nodes
        return graph + labels + max(scratch, features + 16 * self.nodes)


def _words_per_row(entry: Statistics) -> float:
    return entry.feature_density * entry.num_features


def _draw(plan: _Plan, seed: int, shuffled: bool) -> Dataset:
    """The set itself, every part by its own streams of the seed."""
    entry, n = plan.entry, plan.nodes
    room = plan.topics * max(64.0, 12.0 * plan.mean_degree)
    communities = plant_communities(n, plan.topics, min(max(int(n / room), 1), 8), seed, shuffled)
    out_law, in_law = _degree_laws(plan)
    indptr, indices = draw_graph(communities, plan.links, plan.back, out_law, in_law, _class_homophily(plan), seed)
    noise = 0.0 if entry.multi_label else entry.label_noise
    topic, y = draw_labels(communities, noise, seed)
    if entry.multi_label:
        y = many_labels(topic, plan.topics, entry.num_classes, entry.labels_per_node, _STRAY_LABEL, seed)
    train, val, test = draw_split(n, _split_counts(plan), seed)
    return Dataset(
        name=plan.name,
        graph=Graph.from_csc(indptr, indices),
        x=_draw_features(plan, topic, seed),
        y=y,
        train_idx=train,
        val_idx=val,
        test_idx=test,
        num_classes=entry.num_classes,
        task="multilabel" if entry.multi_label else "classification",
        notes=("made by graphweft.synthetic: the counts are the published ones, the content is random",),
    )


def _draw_features(plan: _Plan, topic: torch.Tensor, seed: int) -> torch.Tensor | SparseFeatures:
    entry, width = plan.entry, plan.entry.num_features
    if plan.nonzeros:
        per_row, published = plan.nonzeros / plan.nodes, _words_per_row(entry)
        more = per_row / published if entry.feature_density < _SPARSE_BELOW else 1.0  # the other words' noise grows so
        focus = min(entry.words_on_topic * math.sqrt(more) / per_row, 0.8)
        indptr, indices = word_features(topic, plan.topics, width, plan.nonzeros, focus, plan.fixed_rows, seed)
        values = _memory.empty((indices.shape[0],)).fill_(1.0)
        return SparseFeatures(indptr, indices, values, (plan.nodes, width))
    distance = _distance_for(entry.signal, plan.topics)
    if entry.feature_density < _DENSE_ABOVE:
        return binary_features(topic, plan.topics, width, entry.feature_density, distance, seed)
    return dense_features(topic, plan.topics, width, distance, seed)


def _degree_laws(plan: _Plan) -> tuple[PowerLaw, PowerLaw | None]:
    """Laws of the links a node owns and of those it attracts. The largest degree falls with the root of the scale."""
    entry, mean = plan.entry, plan.links / plan.nodes
    largest = entry.max_degree * math.sqrt(plan.nodes / entry.num_nodes)
    if entry.symmetric:
        return PowerLaw.with_mean(mean, min(largest / 2.0, plan.nodes / 4.0), entry.exponent), None
    owned = PowerLaw.with_mean(mean, min(_OUT_DEGREE_RATIO * mean, plan.nodes / 4.0), 3.0)
    return owned, PowerLaw.with_mean(mean, min(largest, plan.nodes / 2.0), entry.exponent)


def _class_homophily(plan: _Plan) -> float:
    """Share of links within classes that gives the wanted share of equal labels, given the random labels."""
    if plan.entry.multi_label:
        return plan.entry.homophily
    kept = (1.0 - plan.entry.label_noise) ** 2
    return (plan.entry.homophily - (1.0 - kept) / plan.topics) / kept


def _split_counts(plan: _Plan) -> tuple[int, int, int]:
    """Nodes of the three sets: published shares of the nodes there are, at least one for training."""
    split, n = plan.entry.split, plan.nodes
    shares = [part / plan.entry.num_nodes if isinstance(part, int) else part for part in split]
    train = max(round(shares[0] * n), 1)
    if sum(shares) > 0.999:
        val = round(shares[1] * n)
        return train, val, n - train - val
    return train, max(round(shares[1] * n), 1), max(round(shares[2] * n), 1)


def _distance_for(accuracy: float, topics: int) -> float:
    """Distance of the topics' centres, in deviations of the noise, at which the best guess is right this often."""

    def right(distance: float) -> float:
        steps = [-8.0 + 0.05 * i for i in range(480)]
        normal = (math.exp(-0.5 * (t - distance) ** 2) for t in steps)
        beaten = ((0.5 * math.erfc(-t / math.sqrt(2.0))) ** (topics - 1) for t in steps)
        area: float = 0.05 / math.sqrt(2.0 * math.pi) * sum(map(operator.mul, normal, beaten))
        return area

    low, high = 0.0, 10.0
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if right(middle) < accuracy else (low, middle)
    return high


def _changed(entry: Statistics, changes: dict[str, int], homophily: float | None) -> Statistics:
    """The entry with the caller's numbers in place of the published ones."""
    for key, value in changes.items():
        least = {"num_nodes": _MIN_NODES, "num_classes": 2, "num_features": 1, "num_edges": 0}[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**40:
            raise ConfigError(f"synthetic: expected {key} to be an integer >= {least}, got {value!r}")
    if homophily is not None and not 0.0 <= homophily <= 1.0:
        raise ConfigError(f"synthetic: expected homophily in [0, 1], got {homophily!r}")
    replaced: dict[str, object] = dict(changes)
    if "num_edges" in changes:
        ratio = entry.num_links / entry.num_edges
        replaced["num_links"] = round(changes["num_edges"] * ratio)
    if "num_nodes" in changes and isinstance(entry.split[0], int):
        replaced["split"] = tuple(part / entry.num_nodes for part in entry.split)
    if homophily is not None:
        replaced["homophily"] = homophily
    return dataclasses.replace(entry, **replaced)  # type: ignore[arg-type]


def _check_options(entry: Statistics, scale: float, per_row: int | None, order: str) -> None:
    least = _MIN_NODES / entry.num_nodes
    most = (2**31 - 1) / entry.num_nodes
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not number or not least <= scale <= most:
        raise ConfigError(f"synthetic: expected scale in [{least:.2g}, {most:.4g}] for {entry.name}, got {scale!r}")
    if per_row is not None and (
        isinstance(per_row, bool) or not isinstance(per_row, int) or not 1 <= per_row <= entry.num_features
    ):
        raise ConfigError(f"synthetic: expected nonzeros_per_row in [1, {entry.num_features}], got {per_row!r}")
    if order not in ("random", "community"):
        raise ConfigError(f"synthetic: expected order 'random' or 'community', got {order!r}")


def _checked_seed(seed: int) -> int:
    try:
        value = operator.index(seed)
    except TypeError:
        value = -1
    if not 0 <= value < 2**64:
        raise ConfigError(f"synthetic: expected seed in [0, 2^64), got {seed!r}")
    return value


def _check_memory(name: str, scale: float, plan: _Plan) -> None:
    needed, free = plan.nbytes(), _machine.free_memory()
    if needed > free:
        fits = scale * 0.9 * free / needed
        raise ConfigError(
            f"synthetic: expected a graph that fits in {free / 2**30:.1f} GiB of free memory, "
            f"got {name} at scale {scale:g} with {needed / 2**30:.1f} GiB; scale {fits:.2g} fits"
        )
