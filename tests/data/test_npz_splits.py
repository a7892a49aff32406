"""Splits of ``.npz`` files as lists of ids, under the names that other frameworks write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphweft as gw
from graphweft import cli

TRAIN, VAL, TEST = [4, 0, 2], [1, 3], [5, 6, 7]


def _read(folder: Path, **members: Any) -> gw.Dataset:
    ring = np.arange(8)
    held = {"edge_index": np.stack([ring, (ring + 1) % 8]), "x": np.eye(8, dtype=np.float32), "y": ring % 3}
    np.savez(folder / "ring.npz", **held, **members)
    return gw.load(folder / "ring.npz")


def _split(ds: gw.Dataset) -> list[list[int]]:
    return [idx.tolist() for idx in (ds.train_idx, ds.val_idx, ds.test_idx)]


@pytest.mark.parametrize(
    "names",
    [
        ("train_idx", "val_idx", "test_idx"),
        ("train_idx", "valid_idx", "test_idx"),
        ("train_index", "validation_index", "test_index"),
        ("train_indices", "val_indices", "test_indices"),
        ("train_ids", "val_ids", "test_ids"),
        ("idx_train", "idx_val", "idx_test"),
        ("train", "valid", "test"),
        ("train", "val", "test"),
    ],
    ids=lambda names: names[1],
)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_lists_of_ids_are_the_split(names: tuple[str, ...], dtype: Any, tmp_path: Path) -> None:
    ds = _read(tmp_path, **{n: np.array(ids, dtype) for n, ids in zip(names, (TRAIN, VAL, TEST), strict=True)})
    assert _split(ds) == [TRAIN, VAL, TEST]  # in the order of the file
    assert not any("random" in note or names[1] in note for note in ds.notes)


def test_masks_under_the_same_names_and_beside_lists(tmp_path: Path) -> None:
    masks = np.zeros((3, 8), bool)
    for mask, ids in zip(masks, (TRAIN, VAL, TEST), strict=True):
        mask[ids] = True
    expected = [sorted(TRAIN), VAL, TEST]
    assert _split(_read(tmp_path, train_idx=masks[0], val_idx=masks[1], test_idx=masks[2])) == expected
    assert _split(_read(tmp_path, train_mask=masks[0], valid_mask=masks[1], test_idx=np.array(TEST))) == expected
    assert _split(_read(tmp_path, train_mask=masks[0], train_idx=np.array(TRAIN))) == [TRAIN, [], []]
    assert _split(_read(tmp_path, train_idx=np.array(TRAIN), val_idx=np.array([]), test_idx=np.array(TEST))) == [
        TRAIN,
        [],
        TEST,
    ]


def test_what_may_be_something_else_is_none(tmp_path: Path) -> None:
    for members in (
        {"train": np.array(TRAIN)},
        {"train": np.ones((3, 2)), "test": np.array(TEST)},
        {"train": np.array(TRAIN), "test": np.array([0.5, 1.5])},
    ):
        ds = _read(tmp_path, **members)
        assert sum(map(len, _split(ds))) == 8 and any("train" in note for note in ds.notes)  # told to be unused


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"train_idx": [0, 8]}, r"train_idx: expected .*8.*got 8"),
        ({"train_idx": [0, -1]}, r"train_idx: expected .*got -1"),
        ({"train_idx": [0.0, 1.0]}, "train_idx: expected integers"),
        ({"train_idx": [[0, 1], [2, 3]]}, "train_idx: expected"),
        (
            {"train_idx": [0, 1] * 4},
            "train_idx: expected ids of rows, got 0 or 1 for every row; .*train_mask",
        ),
        ({"train_idx": [3, 0, 2, 0, 3]}, "train_idx: expected each id once, got 0 again at position 3"),
        ({"val_idx": [0, 1]}, "train_idx: expected it beside val_idx, got none"),
        ({"valid_mask": [True] * 8}, "train_mask: expected it beside valid_mask, got none"),
        ({"train_idx": [0], "idx_train": [1]}, "train_idx: expected one list of this part, got idx_train as well"),
        (
            {"train_idx": [0], "val_idx": [1], "valid_idx": [2]},
            "val_idx: expected one list of this part, got valid",
        ),
    ],
)
def test_bad_lists_are_one_line(
    members: dict[str, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(gw.errors.DataError, match=expected) as caught:
        _read(tmp_path, **{name: np.array(ids) for name, ids in members.items()})
    assert "\n" not in str(caught.value)
    assert cli.main(["train", "--data", str(tmp_path / "ring.npz"), "--epochs", "1", "--out", str(tmp_path / "r")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()[-1:]) == 1
