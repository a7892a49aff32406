"""Files in common formats that no reader takes are named, with what to do, instead of being read as something else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft import cli


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("pair.json", "[1,2]", "expected a table of edges, got JSON"),  # two columns for a reader of edges
        ("graph.json", json.dumps({"nodes": [], "links": []}), "expected a table of edges, got JSON"),
        ("graph.txt", '{"nodes": [1], "links": []}', "expected a table of edges, got JSON"),
        ("graph.graphml", "<?xml version='1.0'?>\n<graphml></graphml>", "expected a table of edges, got XML"),
        ("page.csv", "<!DOCTYPE html>\n<html></html>\n", "expected a table of edges, got XML"),
    ],
)
def test_texts(name: str, text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(gw.errors.DataError, match=expected):
        gw.load(tmp_path / name)


def test_arrays_and_saved_tensors_and_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "edges.npy", np.zeros((2, 3), int))
    torch.save({"edge_index": torch.zeros(2, 3)}, tmp_path / "data.pt")
    assert (
        cli.main(["partition", "--data", "cora", "--scale", "0.05", "--parts", "2", "--out", str(tmp_path / "p")]) == 0
    )
    for name, expected in (
        ("edges.npy", "got one array of NumPy; np.savez"),
        ("data.pt", "got a file of torch.save, which is not unpickled"),
        ("p", "got the parts of partition, from which graphweft train --ranks trains"),
    ):
        with pytest.raises(gw.errors.DataError, match=expected):
            gw.load(tmp_path / name)


def _files(folder: Path) -> gw.macro.GraphFiles:
    ring = np.arange(8)
    np.save(folder / "edges.npy", np.stack([ring, (ring + 1) % 8]))
    np.save(folder / "x.npy", np.eye(8, dtype=np.float32))
    np.save(folder / "y.npy", ring % 3)
    return gw.macro.GraphFiles(folder / "edges.npy", folder / "x.npy", folder / "y.npy", folder / "split.npz")


def test_split_files_of_stores_have_the_same_names(tmp_path: Path) -> None:
    files = _files(tmp_path)
    np.savez(tmp_path / "split.npz", train_idx=[4, 0], valid_idx=[2], test_idx=[3])
    ds = gw.load(gw.macro.prepare_store(files, tmp_path / "a", parts=2).path)
    assert [idx.tolist() for idx in (ds.train_idx, ds.val_idx, ds.test_idx)] == [[0, 4], [2], [3]]
    mask = np.array([1, 0, 0, 1, 0, 0, 0, 0])
    np.savez(tmp_path / "split.npz", train_mask=mask, val_mask=1 - mask)
    ds = gw.load(gw.macro.prepare_store(files, tmp_path / "b", parts=2).path)
    assert ds.train_idx.tolist() == [0, 3] and ds.val_idx.tolist() == [1, 2, 4, 5, 6, 7]  # no ids 0 and 1


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"train_idx": [0, 8]}, r"split.npz: train_idx: expected ids in \[0, 8\), got 8 at position 1"),
        ({"train_mask": [True] * 7}, r"split.npz: train_mask: expected 8 entries"),
        ({"other": [0]}, "split.npz: expected train_idx, val_idx and test_idx, or masks, got none of them"),
    ],
)
def test_bad_split_files(members: dict[str, list[int]], expected: str, tmp_path: Path) -> None:
    files = _files(tmp_path)
    np.savez(tmp_path / "split.npz", **{name: np.array(ids) for name, ids in members.items()})
    with pytest.raises(gw.errors.DataError, match=expected):
        gw.macro.prepare_store(files, tmp_path / "s", parts=2)


def test_a_split_file_that_is_no_archive(tmp_path: Path) -> None:
    files = _files(tmp_path)
    np.save(tmp_path / "split.npz.npy", np.zeros(8))
    (tmp_path / "split.npz.npy").rename(tmp_path / "split.npz")
    with pytest.raises(gw.errors.DataError, match=r"split.npz: expected a .npz archive"):
        gw.macro.prepare_store(files, tmp_path / "s", parts=2)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["doctor", "--network", "--calibrate"], "--network cannot be combined with --calibrate or --device"),
        (["doctor", "--network", "--device", "cpu"], "--network cannot be combined with --calibrate or --device"),
        (["doctor", "--device", ""], "--device: expected a name such as cuda, got ''"),
        (
            ["partition", "--data", "cora", "--scale", "0.05", "--parts", "2", "--out", "parts.txt"],
            "--out: expected a file name ending in .npz, or a folder, got parts.txt",
        ),
    ],
)
def test_options_that_would_be_left_out(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert expected in capsys.readouterr().err


def test_usual_parts_of_small_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ds = gw.Dataset("ring", gw.Graph([0, 1, 2], [1, 2, 0]), torch.eye(3), [0, 1, 0])
    assert len(gw.macro.prepare_store(ds, tmp_path / "s")) == 3
    assert cli.main(["partition", "--data", str(tmp_path / "s"), "--json"]) == 0
    assert '"parts": 3' in capsys.readouterr().out
    assert len(gw.macro.prepare_store(gw.synthetic("cora", scale=0.05), tmp_path / "t")) == 64
    with pytest.raises(gw.errors.ConfigError, match="explain: expected a model, a trainer or a function, got NoneType"):
        gw.explain(None)
