"""The table of published statistics: spelling of names, consistency of its rows, errors."""

from __future__ import annotations

import pytest

from graphweft._errors import ConfigError
from graphweft.data.statistics import ALIASES, STATISTICS, find_statistics

# Nodes, directed edges stored, features, classes, as the sets' own pages give them.
PUBLISHED = {
    "corafull": (19_793, 126_842, 8_710, 70),
    "physics": (34_493, 495_924, 8_415, 5),
    "ppi": (56_944, 1_612_348, 50, 121),
    "nell": (65_755, 251_550, 61_278, 210),
    "flickr": (89_250, 899_756, 500, 7),
    "reddit": (232_965, 114_615_892, 602, 41),
    "yelp": (716_847, 13_954_819, 300, 100),
    "amazonproducts": (1_569_960, 264_339_468, 200, 107),
    "ogbn-arxiv": (169_343, 1_166_243, 128, 40),
    "ogbn-products": (2_449_029, 123_718_280, 100, 47),
    "amazon-computers": (13_752, 491_722, 767, 10),
    "ogbn-papers100m": (111_059_956, 1_615_685_872, 128, 172),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(name: str) -> None:
    entry = STATISTICS[name]
    assert (entry.num_nodes, entry.num_edges, entry.num_features, entry.num_classes) == PUBLISHED[name]


@pytest.mark.parametrize("entry", STATISTICS.values(), ids=lambda entry: entry.name)
def test_rows_do_not_contradict_themselves(entry) -> None:
    assert 0 < entry.feature_density <= 1
    whole = entry.num_nodes if isinstance(entry.split[0], int) else 1.0
    assert 0 < sum(entry.split) <= whole + 1e-9
    assert entry.num_links <= entry.num_edges <= 2 * entry.num_links + 1
    assert entry.max_degree < entry.num_nodes


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("arxiv", "ogbn-arxiv"),
        ("OGBN_Products", "ogbn-products"),
        (" papers100M ", "ogbn-papers100m"),
        ("Computers", "amazon-computers"),
        ("AmazonProducts", "amazonproducts"),
        ("communities", "default"),
        ("Reddit", "reddit"),
    ],
)
def test_names_are_found_as_people_write_them(spelling: str, name: str) -> None:
    assert find_statistics(spelling) is STATISTICS[name]


def test_every_alias_leads_somewhere() -> None:
    assert set(ALIASES.values()) <= set(STATISTICS)


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(ConfigError, match=r"did you mean reddit\?.*got 'redditt'$"):
        find_statistics("redditt")
    with pytest.raises(ConfigError, match=r"one of default, .*got 'qqqq'$") as caught:
        find_statistics("qqqq")
    assert "\n" not in str(caught.value)
