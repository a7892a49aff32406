"""The named sets: their files at the publishers, how they are called, and what is known of them.

Comes in: a name. Goes out: an :class:`Entry`. Read by ``load``; nothing is fetched here. A checksum is given where
the file is known byte for byte; the others are checked by the server's length and by their reader.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """One file of a set: where it is fetched, what it is called here, its SHA-256 where known."""

    url: str
    file_name: str
    sha256: str | None = None


@dataclass(frozen=True)
class Entry:
    """One named set.

    Attributes:
        name: The name to load it by; the commonest one of the field.
        files: What is fetched; empty where the publisher has no direct address.
        folder: Folder under the root that the files go to, "" for the root itself.
        target: What is read, relative to that folder: a file, or "" for the folder.
        others: Names of files or folders under a root in which a copy is recognised too.
        homepage: Where a person can get it.
        num_nodes: Nodes, to recognise a copy; 0 where not used.
        num_classes: Classes as published, where the files alone cannot tell.
    """

    name: str
    files: tuple[RemoteFile, ...]
    folder: str
    target: str
    others: tuple[str, ...] = ()
    homepage: str = ""
    num_nodes: int = 0
    num_classes: int | None = None


_PLANETOID = "https://raw.githubusercontent.com/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data"
_PLANETOID_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_PLANETOID_SUMS = {
    "cora": (
        "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    ),
    "citeseer": (
        "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    ),
}
_GNN_BENCHMARK = "https://raw.githubusercontent.com/shchur/gnn-benchmark/master/data/npz"
_HETEROPHILOUS = "https://raw.githubusercontent.com/yandex-research/heterophilous-graphs/a431395582e929d88271309716bea4fe24ce6318/data"
_OGB = "https://snap.stanford.edu/ogb/data"
_SNAP = "https://snap.stanford.edu/data"
_TU = "https://www.chrsmrrs.com/graphkerneldatasets"


def _planetoid(name: str) -> Entry:
    sums = _PLANETOID_SUMS.get(name, (None,) * len(_PLANETOID_PARTS))
    files = tuple(
        RemoteFile(f"{_PLANETOID}/ind.{name}.{part}", f"ind.{name}.{part}", digest)
        for part, digest in zip(_PLANETOID_PARTS, sums, strict=True)
    )
    return Entry(name, files, "planetoid", f"ind.{name}.graph", homepage="https://github.com/kimiyoung/planetoid")


def _gnn_benchmark(name: str, file_name: str) -> Entry:
    files = (RemoteFile(f"{_GNN_BENCHMARK}/{file_name}", file_name),)
    page = "https://github.com/shchur/gnn-benchmark"
    return Entry(name, files, "gnn-benchmark", file_name, (file_name,), page)


def _heterophilous(name: str, digest: str | None = None) -> Entry:
    file_name = f"{name.replace('-', '_')}.npz"
    files = (RemoteFile(f"{_HETEROPHILOUS}/{file_name}", file_name, digest),)
    page = "https://github.com/yandex-research/heterophilous-graphs"
    return Entry(name, files, "heterophilous", file_name, (file_name,), page)


def _ogb(name: str, path: str, inside: str) -> Entry:
    files = (RemoteFile(f"{_OGB}/{path}.zip", f"{inside}.zip"),)
    return Entry(
        name, files, "ogb", name.replace("-", "_"), (name.replace("-", "_"), inside), "https://ogb.stanford.edu"
    )


def _snap(name: str, file_name: str) -> Entry:
    files = (RemoteFile(f"{_SNAP}/{file_name}", file_name),)
    return Entry(
        name, files, "snap", file_name, (file_name, file_name.removesuffix(".gz")), "https://snap.stanford.edu/data"
    )


def _tu(name: str) -> Entry:
    files = (RemoteFile(f"{_TU}/{name}.zip", f"{name}.zip"),)
    return Entry(name.lower(), files, "tu", name, (name,), "https://chrsmrrs.github.io/datasets")


def _by_hand(name: str, homepage: str, num_nodes: int = 0, num_classes: int | None = None) -> Entry:
    return Entry(name, (), name, "", (), homepage, num_nodes, num_classes)


def _entries() -> Iterable[Entry]:
    yield from map(_planetoid, ("cora", "citeseer", "pubmed"))
    yield from (
        _gnn_benchmark(name, file_name)
        for name, file_name in {
            "cora-full": "cora_full.npz",
            "coauthor-cs": "ms_academic_cs.npz",
            "coauthor-physics": "ms_academic_phy.npz",
            "amazon-computers": "amazon_electronics_computers.npz",
            "amazon-photo": "amazon_electronics_photo.npz",
        }.items()
    )
    yield from map(_heterophilous, ("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions"))
    yield _heterophilous("chameleon-filtered")
    yield _heterophilous("squirrel-filtered", "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7")
    yield _ogb("ogbn-arxiv", "nodeproppred/arxiv", "arxiv")
    yield _ogb("ogbn-products", "nodeproppred/products", "products")
    yield _ogb("ogbn-proteins", "nodeproppred/proteins", "proteins")
    yield _ogb("ogbl-ddi", "linkproppred/ddi", "ddi")
    yield _ogb("ogbl-collab", "linkproppred/collab", "collab")
    yield _ogb("ogbg-molesol", "graphproppred/csv_mol_download/esol", "esol")
    yield _ogb("ogbg-molbace", "graphproppred/csv_mol_download/bace", "bace")
    yield _ogb("ogbg-molhiv", "graphproppred/csv_mol_download/hiv", "hiv")
    yield _snap("wiki-vote", "wiki-Vote.txt.gz")
    yield _snap("email-enron", "email-Enron.txt.gz")
    yield _snap("soc-slashdot0902", "soc-Slashdot0902.txt.gz")
    yield from map(_tu, ("ENZYMES", "MUTAG", "PROTEINS"))
    graphsaint = "https://github.com/GraphSAINT/GraphSAINT (adj_full.npz, feats.npy, class_map.json, role.json)"
    yield from (_by_hand(name, graphsaint) for name in ("reddit", "flickr", "yelp", "ppi", "amazon-products"))
    yield _by_hand("nell", "https://github.com/kimiyoung/planetoid (as one .npz)", num_nodes=65_755, num_classes=210)


ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _entries()}
_ALIASES = {
    "corafull": "cora-full",
    "computers": "amazon-computers",
    "photo": "amazon-photo",
    "cs": "coauthor-cs",
    "physics": "coauthor-physics",
    "arxiv": "ogbn-arxiv",
    "products": "ogbn-products",
}


def near_names(name: str) -> list[str]:
    """Known names that are written almost like ``name``, the nearest first.

    Example:
        >>> near_names("coora"), near_names("karate club")
        (['cora'], [])
    """
    key = name.lower().replace("_", "-")
    found = difflib.get_close_matches(key, [*ENTRIES, *_ALIASES], n=3, cutoff=0.7)
    return list(dict.fromkeys(_ALIASES.get(name, name) for name in found))


def find_entry(name: str) -> Entry | None:
    """The entry of a name; case, and ``_`` for ``-``, do not matter.

    Example:
        >>> find_entry("OGBN_Arxiv").name
        'ogbn-arxiv'
    """
    key = name.lower().replace("_", "-")
    return ENTRIES.get(_ALIASES.get(key, key))
