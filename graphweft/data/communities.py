"""Random graphs with planted communities, power-law degrees and features that say something about the community.

Comes in: counts, laws, shares and a seed. Goes out: compressed in-edges, labels, features, as tensors. Called by
``synthetic``, which knows the named sets. Everything is a pure function of its arguments, for any number of threads.
Nodes are drawn in slots, community after community; ``members`` turns a slot into the public id.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graphweft import _memory
from graphweft._native import declare

_permutation = declare("gw_generate_permutation")
_weights = declare("gw_generate_weights")
_split = declare("gw_generate_split")
_alias = declare("gw_generate_alias")
_links = declare("gw_generate_links")
_compress = declare("gw_generate_compress")
_labels = declare("gw_generate_labels")
_values = declare("gw_generate_values_f32")
_bits = declare("gw_generate_bits_f32")
_words = declare("gw_generate_words")

# Stream numbers of the draws that this file keys; those of single links and entries are keyed in generate.h.
_MEMBERS, _OUT_RANKS, _IN_RANKS, _SPLIT, _LENGTHS = 1, 2, 3, 4, 5
_ROWS, _CENTERS, _LABEL_ROWS, _LABEL_CENTERS = 1, 2, 3, 4


@dataclass(frozen=True)
class PowerLaw:
    """P(x) ~ x^-exponent on [low, high]."""

    low: float
    high: float
    exponent: float

    @classmethod
    def with_mean(cls, mean: float, high: float, exponent: float) -> PowerLaw:
        """The law with this mean and upper end; all of the mass at the mean where ``high`` leaves no room.

        Example:
            >>> round(PowerLaw.with_mean(10.0, 1000.0, 2.5).low, 2)
            3.54
        """
        a = exponent - 1.0
        if mean <= 0 or high <= 1.01 * mean:
            return cls(max(mean, 1e-3), max(mean, 1e-3), exponent)

        def mean_from(low: float) -> float:
            mass: float = 1.0 - (low / high) ** a
            first: float = (low ** (1.0 - a) - high ** (1.0 - a)) * low**a * a / (a - 1.0)
            return first / mass

        below, above = 1e-6 * mean, mean
        for _ in range(100):
            middle = (below + above) / 2.0
            below, above = (middle, above) if mean_from(middle) < mean else (below, middle)
        return cls(above, high, exponent)


@dataclass(frozen=True)
class Communities:
    """Who belongs where.

    Attributes:
        block_ptr: (B + 1,) int64 bounds of the communities in slots.
        members: (N,) int32 public id of each slot.
        block_class: (B,) int32 class of each community, ascending.
    """

    block_ptr: torch.Tensor
    members: torch.Tensor
    block_class: torch.Tensor

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.members.shape[0]


def plant_communities(num_nodes: int, num_classes: int, per_class: int, seed: int, shuffled: bool) -> Communities:
    """Communities of unequal size (class k in proportion to 1 / sqrt(k + 1)), ``per_class`` of them to a class."""
    shares = [int(2**20 / (k + 1) ** 0.5) for k in range(num_classes) for _ in range(per_class)]
    total, running, bounds = sum(shares), 0, [0]
    for share in shares:
        running += share
        bounds.append(num_nodes * running // total)
    members = torch.empty(num_nodes, dtype=torch.int32)
    if shuffled:
        _permutation(num_nodes, seed, _MEMBERS, members.data_ptr())
    else:
        torch.arange(num_nodes, dtype=torch.int32, out=members)
    classes = torch.arange(num_classes, dtype=torch.int32).repeat_interleave(per_class)
    return Communities(torch.tensor(bounds), members, classes)


def draw_graph(
    plan: Communities,
    num_links: int,
    back: int,
    out_law: PowerLaw,
    in_law: PowerLaw | None,
    homophily: float,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """In-edges (indptr, indices) of ``num_links`` links, ``back`` of which run both ways; rows ascend, no duplicates.

    ``out_law`` shapes the links a node starts, ``in_law`` those it attracts (None: the same node by node).
    ``homophily`` is the share of links within a class to aim at; communities smaller than the degrees have no room.
    """
    n = plan.num_nodes
    blocks = plan.block_ptr.shape[0] - 1
    weights = torch.empty(n, dtype=torch.int32)  # read as unsigned
    own_ptr = torch.empty(n + 1, dtype=torch.int64)
    _weights(n, seed, _OUT_RANKS, out_law.low, out_law.high, out_law.exponent, weights.data_ptr())
    _split(n, weights.data_ptr(), num_links, (n - 1) // 2, own_ptr.data_ptr())
    if in_law is not None:
        _weights(n, seed, _IN_RANKS, in_law.low, in_law.high, in_law.exponent, weights.data_ptr())
    slot_cells, block_cells = torch.empty(n, dtype=torch.int64), torch.empty(blocks, dtype=torch.int64)
    block_ptr = plan.block_ptr.data_ptr()
    _alias(n, blocks, block_ptr, weights.data_ptr(), slot_cells.data_ptr(), block_cells.data_ptr())
    tables = (block_ptr, slot_cells.data_ptr(), block_cells.data_ptr())
    del weights
    links = int(own_ptr[-1])
    back = min(back, links)
    # Scratch comes from torch's allocator, which gives large blocks back to the system; the result from the pool.
    own = torch.empty(links, dtype=torch.int32)
    by_chance = _same_class_chance(plan)
    inside = min(max((homophily - by_chance) / max(1.0 - by_chance, 1e-9), 0.0), 1.0)
    _links(n, blocks, *tables, seed, inside, own_ptr.data_ptr(), own.data_ptr())
    del slot_cells
    indptr = _memory.empty((n + 1,), torch.int64)
    indices = _memory.empty((links + back,), torch.int32)
    cursor = torch.empty(n, dtype=torch.int64)
    _compress(
        n,
        own_ptr.data_ptr(),
        own.data_ptr(),
        plan.members.data_ptr(),
        back,
        cursor.data_ptr(),
        indptr.data_ptr(),
        indices.data_ptr(),
    )
    return indptr, indices


def _same_class_chance(plan: Communities) -> float:
    """Chance that two nodes have the same class, by class sizes."""
    sizes = (plan.block_ptr[1:] - plan.block_ptr[:-1]).tolist()
    classes = plan.block_class.tolist()
    per_class = [0] * (classes[-1] + 1)
    for size, k in zip(sizes, classes, strict=True):
        per_class[k] += size
    return sum(size * size for size in per_class) / float(plan.num_nodes) ** 2


def draw_labels(plan: Communities, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Class of each node's community (N,) int32, and its label (N,) int64, of which a share of ``noise`` is random."""
    topic = torch.empty(plan.num_nodes, dtype=torch.int32)
    label = _memory.empty((plan.num_nodes,), torch.int64)
    classes = int(plan.block_class[-1]) + 1
    _labels(
        plan.num_nodes,
        plan.block_class.shape[0],
        plan.block_ptr.data_ptr(),
        plan.block_class.data_ptr(),
        classes,
        seed,
        noise,
        plan.members.data_ptr(),
        topic.data_ptr(),
        label.data_ptr(),
    )
    return topic, label


def _quantiles(scale: float) -> torch.Tensor:
    """The 65,536 quantiles of a normal distribution: sixteen random bits pick one."""
    places = (torch.arange(1 << 16, dtype=torch.float64) + 0.5) / (1 << 16)
    table: torch.Tensor = torch.special.ndtri(places) * scale
    return table.float()


def _normal_table(rows: int, width: int, scale: float, seed: int, stream: int) -> torch.Tensor:
    """Independent normal numbers (rows, width), for the few rows of topics."""
    out = torch.empty(rows, width)
    zeros, topic = torch.zeros(1, width), torch.zeros(rows, dtype=torch.int32)
    table = _quantiles(scale)
    _values(rows, width, topic.data_ptr(), seed, stream, zeros.data_ptr(), table.data_ptr(), out.data_ptr())
    return out


def dense_features(topic: torch.Tensor, topics: int, width: int, distance: float, seed: int) -> torch.Tensor:
    """Normal noise of deviation 1 around one centre per topic, centres about ``distance`` from the origin."""
    centers = _normal_table(topics, width, distance / width**0.5, seed, _CENTERS)
    out = _memory.empty((topic.shape[0], width))
    table = _quantiles(1.0)
    _values(*out.shape, topic.data_ptr(), seed, _ROWS, centers.data_ptr(), table.data_ptr(), out.data_ptr())
    return out


def binary_features(
    topic: torch.Tensor, topics: int, width: int, density: float, distance: float, seed: int
) -> torch.Tensor:
    """Zeros and ones, stored densely: each topic has its own chances, ``density`` on average."""
    spread = distance * (density * (1.0 - density) / width) ** 0.5
    chances = _normal_table(topics, width, spread, seed, _CENTERS).double()
    chances += density - chances.mean(dim=1, keepdim=True)
    return _fill_bits(topic, chances.clamp_(0.01, 0.99), seed, _ROWS)


def many_labels(topic: torch.Tensor, topics: int, width: int, share: float, noise: float, seed: int) -> torch.Tensor:
    """(N, width) of zeros and ones: most of the topic's own labels and ``noise`` of the others, ``share`` in all."""
    likely = max(0.0, (share - noise) / (0.9 - noise))
    mine = _normal_table(topics, width, 1.0, seed, _LABEL_CENTERS).double()
    is_mine = mine < torch.special.ndtri(torch.tensor(likely, dtype=torch.float64))
    return _fill_bits(topic, torch.where(is_mine, 0.9, noise).double(), seed, _LABEL_ROWS)


def _fill_bits(topic: torch.Tensor, chances: torch.Tensor, seed: int, stream: int) -> torch.Tensor:
    table = (chances * 65536.0).round().int().contiguous()
    out = _memory.empty((topic.shape[0], chances.shape[1]))
    _bits(*out.shape, topic.data_ptr(), seed, stream, table.data_ptr(), out.data_ptr())
    return out


def word_features(
    topic: torch.Tensor, topics: int, width: int, nonzeros: int, focus: float, fixed: bool, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bags of words (indptr, indices), ``nonzeros`` words in all; rows ascend, no word twice.

    Words have the popularity of Zipf's law; a share ``focus`` of a row's draws takes one of the topic's own words.
    Row lengths vary around the mean, or are all the same (``fixed``).
    """
    n = topic.shape[0]
    indptr = _memory.empty((n + 1,), torch.int64)
    weights = torch.empty(n, dtype=torch.int32)
    law = PowerLaw(1.0, 1.0, 2.0) if fixed else PowerLaw.with_mean(4.0, 20.0, 3.0)
    _weights(n, seed, _LENGTHS, law.low, law.high, law.exponent, weights.data_ptr())
    _split(n, weights.data_ptr(), nonzeros, width, indptr.data_ptr())
    indices = _memory.empty((int(indptr[-1]),), torch.int32)
    popularity = ((1 << 24) // (torch.arange(width) + 10)).int()
    _words(
        n, width, topic.data_ptr(), topics, seed, focus, popularity.data_ptr(), indptr.data_ptr(), indices.data_ptr()
    )
    return indptr, indices


def draw_split(
    num_nodes: int, counts: tuple[int, int, int], seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Disjoint random sets of these sizes, each ascending, int64."""
    place = torch.empty(num_nodes, dtype=torch.int32)
    _permutation(num_nodes, seed, _SPLIT, place.data_ptr())
    train, val, test = counts
    first = (place < train).nonzero().reshape(-1)
    second = ((place >= train) & (place < train + val)).nonzero().reshape(-1)
    third = ((place >= train + val) & (place < train + val + test)).nonzero().reshape(-1)
    return first, second, third
