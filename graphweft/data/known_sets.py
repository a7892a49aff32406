"""What is published about the sets that can be loaded by name, and whether a copy is at hand.

Comes in: a folder of datasets. Goes out: a :class:`KnownSet` per name. Called by ``graphweft data``; nothing is read or
fetched. Sizes are those of the sets' own pages and papers; edges are directed ones as they are read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from graphweft._config import current
from graphweft.data.catalog import ENTRIES, Entry
from graphweft.data.load import find_copy
from graphweft.data.statistics import ALIASES, STATISTICS

# name -> nodes, edges, features, classes
_SIZES = {
    "coauthor-cs": (18_333, 163_788, 6_805, 15),
    "amazon-photo": (7_650, 238_162, 745, 8),
    "roman-empire": (22_662, 65_854, 300, 18),
    "amazon-ratings": (24_492, 186_100, 300, 5),
    "minesweeper": (10_000, 78_804, 7, 2),
    "tolokers": (11_758, 1_038_000, 10, 2),
    "questions": (48_921, 307_080, 301, 2),
    "chameleon-filtered": (890, 17_708, 2_325, 5),
    "squirrel-filtered": (2_223, 93_996, 2_089, 5),
    "ogbn-proteins": (132_534, 79_122_504, 0, 112),
    "ogbl-ddi": (4_267, 2_135_822, 0, 0),
    "ogbl-collab": (235_868, 2_358_104, 128, 0),
    "wiki-vote": (7_115, 103_689, 0, 0),
    "email-enron": (36_692, 367_662, 0, 0),
    "soc-slashdot0902": (82_168, 948_464, 0, 0),
}
# name -> graphs, nodes, edges, features, classes or values
_GRAPHS = {
    "ogbg-molesol": (1_128, 14_991, 30_856, 9, 1),
    "ogbg-molbace": (1_513, 51_577, 111_536, 9, 2),
    "ogbg-molhiv": (41_127, 1_049_163, 2_259_376, 9, 2),
    "enzymes": (600, 19_580, 74_564, 18, 6),
    "mutag": (188, 3_371, 7_442, 7, 2),
    "proteins": (1_113, 43_471, 162_088, 1, 2),
}
_SEVERAL = ("ogbn-proteins", "ppi", "yelp", "amazon-products")
_REGRESSION = ("ogbg-molesol",)


@dataclass(frozen=True)
class KnownSet:
    """One set.

    Attributes:
        name: What it is loaded by.
        task: "nodes", "nodes, several labels", "links", "graphs" or "graphs, values"; "structure" for a bare graph.
        graphs: Graphs of a set of graphs, else 1.
        num_nodes: Nodes in all.
        num_edges: Directed edges in all.
        num_features: Columns of the features; 0 for none.
        num_classes: Classes, labels or values; 0 for none.
        at: Where a copy lies; None where there is none.
        source: "fetched" by its name, or "by hand" where the publisher has no address to fetch it from.
    """

    name: str
    task: str
    graphs: int
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    at: Path | None
    source: str


def known_sets(root: str | os.PathLike[str] | None = None) -> list[KnownSet]:
    """All sets that have a name, those at hand under ``root`` with their place.

    Example:
        >>> found = {known.name: known for known in known_sets("/nowhere")}
        >>> found["cora"].num_nodes, found["cora"].task, found["cora"].at
        (2708, 'nodes', None)
    """
    folder = Path(current().data_dir if root is None else root).expanduser()
    return [_known(name, entry, folder) for name, entry in ENTRIES.items()]


def _known(name: str, entry: Entry, folder: Path) -> KnownSet:
    graphs = 1
    if name in _GRAPHS:
        graphs, nodes, edges, features, classes = _GRAPHS[name]
        task = "graphs, values" if name in _REGRESSION else "graphs"
    elif name in _SIZES:
        nodes, edges, features, classes = _SIZES[name]
        task = "nodes" if classes else "links" if name.startswith("ogbl-") else "structure"
    else:
        found = STATISTICS[ALIASES.get(name, name)]
        nodes, edges, features, classes = found.num_nodes, found.num_edges, found.num_features, found.num_classes
        task = "nodes"
    if name in _SEVERAL:
        task = "nodes, several labels"
    source = "fetched" if entry.files else "by hand"
    return KnownSet(name, task, graphs, nodes, edges, features, classes, find_copy(folder, name, entry), source)
