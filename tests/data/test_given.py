"""Datasets from what people have: arrays, lists, masks, any integer dtype; what follows from the labels."""

from __future__ import annotations

import dataclasses
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import graphweft as gw
from graphweft.data import checks

N = 10
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 3)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, -1])
TRAIN, VAL, TEST = np.array([0, 1, 2]), np.array([3, 4]), np.array([5, 6])


def graph() -> gw.Graph:
    return gw.Graph(np.arange(N), (np.arange(N) + 1) % N)


def mask(ids: np.ndarray) -> np.ndarray:
    out = np.zeros(N, bool)
    out[ids] = True
    return out


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, lambda a: a.tolist()], ids=["numpy", "torch", "list"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("masks", [True, False])
def test_every_kind_of_array(kind, dtype, masks) -> None:
    parts = [mask(ids) if masks else ids.astype(dtype) for ids in (TRAIN, VAL, TEST)]
    ds = gw.Dataset("d", graph(), kind(X), kind(Y.astype(dtype)), *(kind(part) for part in parts))
    np.testing.assert_array_equal(ds.x.numpy(), X)
    assert ds.y.tolist() == Y.tolist() and ds.num_classes == 3 and ds.task == "classification"
    assert [ds.idx(part).tolist() for part in ("train", "val", "test")] == [a.tolist() for a in (TRAIN, VAL, TEST)]
    assert {ds.y.dtype, ds.train_idx.dtype} == {torch.int64} and ds.x.dtype == torch.float32


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8, bool])
def test_features_of_any_dtype(dtype) -> None:
    values = (X * 10).astype(dtype)
    np.testing.assert_array_equal(gw.Dataset("d", graph(), values).x.numpy(), values.astype(np.float32))
    np.testing.assert_array_equal(
        gw.Dataset("d", graph(), torch.as_tensor(values)).x.numpy(), values.astype(np.float32)
    )


def test_sparse_features_of_scipy_and_torch() -> None:
    dense = np.where(X > 0, X, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forms = [
            sp.csr_array(dense),
            sp.coo_matrix(dense),
            torch.tensor(dense).to_sparse_csr(),
            torch.tensor(dense).to_sparse(),
        ]
    for form in forms:
        ds = gw.Dataset("d", graph(), form)
        assert isinstance(ds.x, gw.data.SparseFeatures)
        np.testing.assert_array_equal(ds.x.to_dense().numpy(), dense)


def test_positional_arguments_are_where_they_were() -> None:
    x, y, parts = torch.as_tensor(X), torch.as_tensor(Y), [torch.as_tensor(part) for part in (TRAIN, VAL, TEST)]
    weight, rows = torch.rand(N), torch.rand(N, 2)
    ds = gw.Dataset("d", graph(), x, y, *parts, 5, "classification", weight, rows, {}, None, None, torch.arange(N))
    assert ds.x is x and ds.y is y and ds.train_idx is parts[0] and ds.num_classes == 5
    assert ds.edge_weight is weight and ds.edge_features is rows and ds.node_ids.tolist() == list(range(N))
    copy = pickle.loads(pickle.dumps(ds))
    assert torch.equal(copy.x, x) and copy.num_classes == 5


def test_what_follows_from_the_labels() -> None:
    several = (RNG.random((N, 4)) < 0.5).astype(np.int64)
    ds = gw.Dataset("d", graph(), X, several)
    assert (ds.task, ds.num_classes, ds.y.dtype) == ("multilabel", 4, torch.float32)
    ds = gw.Dataset("d", graph(), X, np.linspace(0, 1, N), task="regression")
    assert (ds.task, ds.num_classes, tuple(ds.y.shape)) == ("regression", 1, (N,))
    assert gw.Dataset("d", graph(), X, Y.reshape(-1, 1)).y.tolist() == Y.tolist()
    bare = gw.Dataset("d", graph())
    assert bare.num_classes == 0 and bare.train_idx.numel() == 0 and bare.notes == ()


def test_the_default_split_is_60_20_20_of_the_labelled_rows_by_seed() -> None:
    first, again, other = (gw.Dataset("d", graph(), X, Y, seed=seed) for seed in (0, 0, 1))
    assert [first.idx(part).numel() for part in ("train", "val", "test")] == [6, 1, 2]
    every = torch.cat([first.train_idx, first.val_idx, first.test_idx])
    assert sorted(every.tolist()) == list(range(9))  # row 9 has no label
    assert torch.equal(first.train_idx, again.train_idx) and not torch.equal(first.train_idx, other.train_idx)
    assert "60/20/20 at random by seed 1" in other.notes[0]
    given = gw.Dataset("d", graph(), X, Y, train_idx=mask(TRAIN))
    assert given.val_idx.numel() == 0 and given.notes == ()
    assert dataclasses.replace(first, name="e").notes == first.notes


REFUSED = {
    "name": (lambda: gw.Dataset(graph(), X), r"a name first, as in gw\.Dataset\('mine', graph, x, y\), got Graph"),
    "graph": (lambda: gw.Dataset("d", torch.zeros(2, 3)), r"gw\.Graph\(edge_index\) makes one"),
    "objects": (lambda: gw.Dataset("d", graph(), [["a", "b"]] * N), "x: expected numbers, got <U1"),
    "ragged": (lambda: gw.Dataset("d", graph(), [[1], [1, 2]] * 5), "x: expected numbers, got rows of unequal lengths"),
    "texts": (lambda: gw.Dataset("d", graph(), X, ["a"] * N), r"np\.unique\(y, return_inverse=True\)"),
    "floats": (lambda: gw.Dataset("d", graph(), X, np.arange(N) / 2), "task='regression' for values"),
    "whole floats": (lambda: gw.Dataset("d", graph(), X, np.arange(N) * 1.0), "task='regression' for values"),
    "columns": (lambda: gw.Dataset("d", graph(), X, np.full((N, 2), 7)), "0 and 1 in several, or task='regression'"),
    "short mask": (lambda: gw.Dataset("d", graph(), X, Y, np.ones(3, bool)), "train_idx: expected a mask of 10 rows"),
    "masks": (lambda: gw.Dataset("d", graph(), X, Y, np.ones((N, 4), bool)), r"one mask, got \(10, 4\).*mask\[:, 0\]"),
    "0 and 1": (lambda: gw.Dataset("d", graph(), X, Y, mask(TRAIN).astype(np.uint8)), "a mask needs dtype bool"),
    "no ids": (lambda: gw.Dataset("d", graph(), X, Y, [0.5]), "expected a vector of ids or a boolean mask"),
    "names": (lambda: gw.Dataset("d", graph(), X, node_names=["a"]), "node_names: expected 10 names, got 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(gw.errors.DataError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_ids_of_any_kind_go_along() -> None:
    g, ids = gw.Graph.from_ids(["ann", "bob"], ["bob", "eve"])
    assert gw.Dataset("d", g, node_ids=ids).node_names == ("ann", "bob", "eve")
    g, ids = gw.Graph.from_ids([2**40, 7], [7, 9])
    assert gw.Dataset("d", g, node_ids=ids).node_ids.tolist() == [7, 9, 2**40]


def test_common_rows_of_a_split_are_told_once() -> None:
    with pytest.warns(
        gw.errors.DataWarning, match="d: parts .* in common: 2 in train and val, 3 in train and test, 2 in val"
    ):
        ds = gw.Dataset("d", graph(), X, Y, [0, 1, 2, 3], [2, 3], mask(np.array([1, 2, 3, 4])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataclasses.replace(ds, name="e").row_normalized()
    with pytest.warns(gw.errors.DataWarning, match="1 in train and val"):
        dataclasses.replace(ds, val_idx=torch.tensor([2]), test_idx=torch.tensor([9]))


def test_features_are_read_for_faults_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    slow = checks.first_not_finite
    monkeypatch.setattr(checks, "first_not_finite", lambda values: read.append(values) or slow(values))
    x = torch.as_tensor(X.copy())
    ds = gw.Dataset("d", graph(), x, Y, edge_weight=torch.rand(N))
    count = len(read)
    again = dataclasses.replace(ds, name="e", notes=("n",))
    assert count == 2 == len(read) and again.x is x
    x[3, 1] = float("nan")  # changed since, so it is read again
    with pytest.raises(gw.errors.DataError, match="got nan at row 3, column 1"):
        dataclasses.replace(ds, name="f")
    with pytest.raises(gw.errors.DataError, match=r"y: expected labels in \[-1, 2\)"):  # other facts, other check
        dataclasses.replace(gw.Dataset("d", graph(), X, Y), num_classes=2)
