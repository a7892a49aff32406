"""One table of the sets that people publish results on: what is known about each, and the shape of its synthetic twin.

Comes in: a name as people write it. Goes out: its :class:`Statistics`. Read by ``synthetic`` and by the reports that
compare a measured graph with the published one.

Counts are those of the sets' own pages and papers: OGB (Hu et al. 2020), GraphSAINT (Zeng et al. 2020), Coauthor and
Amazon (Shchur et al. 2018), CoraFull (Bojchevski and Guennemann 2018), NELL, Cora, Citeseer and PubMed (Yang et al.
2016), PPI and Reddit (Hamilton et al. 2017). The fields under "shape" are ours.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from graphweft._errors import ConfigError

COMMON_SPLIT = (0.6, 0.2, 0.2)


@dataclass(frozen=True)
class Statistics:
    """What is published about a set, then the shape of its twin.

    Attributes:
        name: The name as published, lower case.
        num_nodes: Nodes.
        num_edges: Directed edges as stored: an undirected edge counts twice.
        num_features: Width of a feature row.
        feature_density: Share of the feature entries that are not zero; 1 for dense sets.
        num_classes: Classes, or labels of a multi-label set.
        split: Train, validation and test nodes of the standard split: counts, or shares of the nodes.
        num_links: Unordered pairs of linked nodes.
        symmetric: Whether both directions are stored.
        multi_label: Whether a node has any number of labels.
        homophily: Share of edges between equal labels; where none is published, or labels are many, between equal
            communities, and ours.
        max_degree: Shape: largest degree to aim at, of the order of the real set's.
        exponent: Shape: exponent of the degree's power law.
        label_noise: Shape: share of nodes whose label says nothing, which keeps accuracy below 100 %.
        signal: Shape: accuracy that the features alone are meant to allow, roughly.
        words_on_topic: Shape: words of a bag of words that follow the topic: enough to guess by, not enough to know.
        labels_per_node: Shape: share of the labels that a node of a multi-label set has.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    feature_density: float
    num_classes: int
    split: tuple[int, int, int] | tuple[float, float, float] = COMMON_SPLIT
    num_links: int = 0
    symmetric: bool = True
    multi_label: bool = False
    homophily: float = 0.6
    max_degree: int = 1000
    exponent: float = 2.5
    label_noise: float = 0.05
    signal: float = 0.5
    words_on_topic: float = 4.0
    labels_per_node: float = 0.1

    def __post_init__(self) -> None:
        if not self.num_links:
            object.__setattr__(self, "num_links", self.num_edges // 2 if self.symmetric else self.num_edges)


STATISTICS: dict[str, Statistics] = {
    entry.name: entry
    for entry in (
        Statistics("default", 10_000, 100_000, 64, 1.0, 8, homophily=0.7, max_degree=400),
        Statistics(
            "cora", 2_708, 10_556, 1_433, 0.0127, 7, (140, 500, 1_000), homophily=0.810, max_degree=168, exponent=3.0
        ),
        Statistics(
            "citeseer", 3_327, 9_104, 3_703, 0.0085, 6, (120, 500, 1_000), homophily=0.736, max_degree=99, exponent=3.0
        ),
        Statistics(
            "pubmed", 19_717, 88_648, 500, 0.0999, 3, (60, 500, 1_000), homophily=0.802, max_degree=171, exponent=2.5
        ),
        Statistics(
            "corafull", 19_793, 126_842, 8_710, 0.0066, 70, homophily=0.567, max_degree=300, exponent=3.0,
            label_noise=0.1,
        ),
        Statistics(
            "physics", 34_493, 495_924, 8_415, 0.0039, 5, homophily=0.931, max_degree=380, exponent=3.0,
            label_noise=0.02, words_on_topic=2.0,
        ),
        Statistics(
            "ppi", 56_944, 1_612_348, 50, 1.0, 121, (0.79, 0.11, 0.10), multi_label=True, max_degree=720,
            labels_per_node=0.3,
        ),
        Statistics("nell", 65_755, 251_550, 61_278, 0.00011, 210, (105, 500, 969), max_degree=4_549, exponent=2.4),
        Statistics(
            "flickr", 89_250, 899_756, 500, 0.46, 7, (0.5, 0.25, 0.25), homophily=0.319, max_degree=5_425, exponent=2.3,
            label_noise=0.1,
        ),
        Statistics(
            "reddit", 232_965, 114_615_892, 602, 1.0, 41, (153_431, 23_831, 55_703), homophily=0.756, max_degree=21_657,
            exponent=2.2, label_noise=0.03,
        ),
        Statistics(
            "yelp", 716_847, 13_954_819, 300, 1.0, 100, (0.75, 0.10, 0.15), multi_label=True, max_degree=5_000,
            exponent=2.4,
        ),
        Statistics(
            "amazonproducts", 1_569_960, 264_339_468, 200, 1.0, 107, (0.85, 0.05, 0.10), multi_label=True,
            max_degree=66_000, exponent=2.2,
        ),
        Statistics(
            "ogbn-arxiv", 169_343, 1_166_243, 128, 1.0, 40, (90_941, 29_799, 48_603), 1_157_799, False, homophily=0.655,
            max_degree=13_155, exponent=2.4, label_noise=0.08,
        ),
        Statistics(
            "ogbn-products", 2_449_029, 123_718_280, 100, 1.0, 47, (196_615, 39_323, 2_213_091), homophily=0.808,
            max_degree=17_481, exponent=2.5, label_noise=0.05,
        ),
        Statistics(
            "amazon-computers", 13_752, 491_722, 767, 0.35, 10, homophily=0.777, max_degree=2_992, exponent=2.4
        ),
        Statistics(
            "ogbn-papers100m", 111_059_956, 1_615_685_872, 128, 1.0, 172, (1_207_179, 125_265, 214_338), 1_614_062_364,
            False, max_degree=251_471, exponent=2.3,
        ),
    )
}  # fmt: skip

ALIASES = {
    "communities": "default",
    "cora-full": "corafull",
    "coauthor-physics": "physics",
    "arxiv": "ogbn-arxiv",
    "products": "ogbn-products",
    "papers100m": "ogbn-papers100m",
    "computers": "amazon-computers",
    "amazoncomputers": "amazon-computers",
    "amazon-products": "amazonproducts",
}


def find_statistics(name: str) -> Statistics:
    """The entry for ``name``: any case, ``_`` for ``-``, with or without ``ogbn-``.

    Raises: ConfigError that lists the nearest names.

    Example:
        >>> find_statistics("OGBN_Products").num_nodes
        2449029
        >>> find_statistics("redit")
        Traceback (most recent call last):
        graphweft._errors.ConfigError: synthetic: expected the name of a known set (did you mean reddit?), got 'redit'
    """
    key = str(name).strip().lower().replace("_", "-")
    entry = STATISTICS.get(ALIASES.get(key, key))
    if entry is not None:
        return entry
    near = difflib.get_close_matches(key, [*STATISTICS, *ALIASES], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(STATISTICS)}"
    raise ConfigError(f"synthetic: expected the name of a known set ({hint}), got {name!r}")
