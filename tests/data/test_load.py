"""Names and paths: where a copy is found, when something is fetched, what is said when nothing is there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from layouts import LAYOUTS, NODES

from graphweft._config import config
from graphweft._errors import DataError, DataWarning, DownloadError
from graphweft.data import catalog, download
from graphweft.data import load as load_module
from graphweft.data.catalog import ENTRIES, find_entry
from graphweft.data.load import load


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reaches for the network fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def _put(layout: str, folder: Path, rename: tuple[str, str] = ("", "")) -> None:
    for name, content in LAYOUTS[layout].files.items():
        path = folder / name.replace(*rename)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "layout", "place", "rename"),
    [
        ("cora", "npz_sparse", "", ("g.npz", "cora.npz")),
        ("cora", "planetoid", "", ("toy", "cora")),
        ("cora", "planetoid", "planetoid", ("toy", "cora")),
        ("Cora", "planetoid", "cora/raw", ("toy", "cora")),
        ("cora", "planetoid", "raw/planetoid", ("toy", "cora")),
        ("ogbn-arxiv", "ogb_nodes", "ogbn_arxiv", ("", "")),
        ("ogbn_arxiv", "ogb_nodes", "ogb/ogbn_arxiv", ("", "")),
        ("ogbn-arxiv", "ogb_nodes", "arxiv", ("", "")),
        ("amazon-computers", "gnn_benchmark", "", ("g.npz", "amazon_electronics_computers.npz")),
        ("computers", "gnn_benchmark", "gnn-benchmark", ("g.npz", "amazon_electronics_computers.npz")),
        ("reddit", "graphsaint", "reddit", ("", "")),
        ("wiki-vote", "snap", "", ("g.txt", "wiki-Vote.txt")),
        ("pubmed", "npz_sparse", "pubmed", ("g.npz", "pubmed.npz")),
        ("mine", "npz_dense", "", ("g.npz", "mine.npz")),
        ("mine", "graphsaint", "mine", ("", "")),
    ],
)
def test_copy_under_the_root_is_found(
    name: str, layout: str, place: str, rename: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _put(layout, tmp_path / "root" / place, rename)
    ds = load(name, root=tmp_path / "root")
    entry = find_entry(name)
    assert ds.name == (entry.name if entry else name) and ds.num_nodes <= NODES
    with config(data_dir=str(tmp_path / "root")):
        assert load(name).num_edges == ds.num_edges


def test_path_needs_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _put("npz_dense", tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in ("g.npz", "./g.npz", tmp_path / "g.npz"):
        assert load(path).num_nodes == NODES


def test_known_name_that_is_not_there_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        load("citeseer", root=tmp_path, download=False)
    text = str(caught.value)
    assert "ind.citeseer.allx" in text and str(tmp_path / "planetoid") in text and "\n" not in text
    with pytest.raises(DownloadError, match=r"reddit: expected a copy under .*no address.*GraphSAINT"):
        load("reddit", root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_failed_fetch_names_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str, target: Path, *_: object) -> Path:
        raise download.FetchError("long", "no connection")

    monkeypatch.setattr(load_module, "fetch", fail)
    with pytest.raises(
        DownloadError, match=r"fetching ind\.cora\.x failed: no connection.*ind\.cora\.test\.index from https"
    ):
        load("cora", root=tmp_path)


def test_fetched_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def give(url: str, target: Path, *_: object) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(LAYOUTS["planetoid"].files[target.name.replace("cora", "toy")])
        return target

    monkeypatch.setattr(load_module, "fetch", give)
    ds = load("cora", root=tmp_path)
    assert ds.name == "cora" and ds.num_nodes == NODES
    monkeypatch.setattr(load_module, "fetch", None)
    assert load("cora", root=tmp_path).num_nodes == NODES


@pytest.mark.parametrize(
    "name", ["no-such-set", "", "a\0b", "./nothing", "nothing.npz", "/nowhere/at/all", "~/no-such-file"]
)
def test_what_is_neither_name_nor_path_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected") as caught:
        load(name, root=tmp_path)
    assert "\n" not in str(caught.value)


def test_things_that_are_no_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.npz").touch()
    (tmp_path / "dangling").symlink_to("nothing")
    for name, message in {
        "fifo": "expected a regular file, got a fifo",
        "loop": "expected a file or folder",
        "folder": "expected a folder in Planetoid, OGB, GraphSAINT, TU or RDF layout",
        "empty.npz": "got an empty one",
        "dangling": "expected a file or folder",
    }.items():
        with pytest.raises(DataError, match=message):
            load(tmp_path / name)
    for device in ("/dev/zero", "/dev/null"):
        with pytest.raises(DataError, match="got a character device"):
            load(device)


def test_fifo_inside_a_folder_does_not_block(tmp_path: Path) -> None:
    _put("graphsaint", tmp_path)
    (tmp_path / "feats.npy").unlink()
    os.mkfifo(tmp_path / "feats.npy")
    with pytest.raises(DataError, match=r"feats\.npy: expected a regular file, got a fifo"):
        load(tmp_path)


def test_seed_and_split_reach_the_reader(tmp_path: Path) -> None:
    _put("gnn_benchmark", tmp_path)
    assert not torch.equal(load(tmp_path / "g.npz", seed=1).train_idx, load(tmp_path / "g.npz", seed=2).train_idx)
    _put("npz_dense", tmp_path)
    with pytest.warns(DataWarning, match="rows in common"):
        assert load(tmp_path / "g.npz", split=1).train_idx.tolist() == [*range(4, 12)]


def test_catalog_is_sound() -> None:
    for name, entry in ENTRIES.items():
        assert name == entry.name == entry.name.lower() and find_entry(name) is entry
        assert entry.files or entry.homepage
        for remote in entry.files:
            assert remote.url.startswith("https://") and "/" not in remote.file_name
            assert remote.sha256 is None or len(remote.sha256) == 64
    assert all(alias in ENTRIES for alias in catalog._ALIASES.values())
