"""The pickle subset: what Planetoid files hold is rebuilt, everything else is refused."""

from __future__ import annotations

import os
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from graphweft._errors import DataError
from graphweft.data.readers import pickle_subset
from graphweft.data.readers.pickle_subset import load_subset


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(5),
        np.eye(3, dtype=np.int32),
        np.arange(4, dtype=">f8"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
)
def test_arrays(array: np.ndarray, protocol: int) -> None:
    np.testing.assert_array_equal(load_subset(pickle.dumps(array, protocol=protocol)), array)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_matrices(protocol: int) -> None:
    matrix = sp.random(7, 9, 0.3, format="csr", random_state=1, dtype=np.float32)
    got = load_subset(pickle.dumps(sp.csr_matrix(matrix), protocol=protocol))
    assert got.shape == (7, 9) and abs(got - matrix).sum() == 0


@pytest.mark.parametrize("protocol", [1, 2, 3, 4])
def test_neighbour_lists(protocol: int) -> None:
    graph = defaultdict(list, {0: [1, 2], 300: [0], 70000: []})
    assert load_subset(pickle.dumps(graph, protocol=protocol)) == dict(graph)


class _Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.parts = (function, arguments)

    def __reduce__(self) -> Any:
        return self.parts


@pytest.mark.parametrize(
    "call", [_Call(os.mkdir, "made-by-a-pickle"), _Call(eval, "1"), _Call(getattr, 1, "real"), _Call(bytearray, 10)]
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_is_called(call: _Call, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="expected a pickle of numbers"):
        load_subset(pickle.dumps(call, protocol=protocol))
    assert not (tmp_path / "made-by-a-pickle").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"garbage",
        b"\x80\x02(((t.",
        b"\x80\x02" + b"(" * 200_000 + b"t" * 200_000 + b".",  # deep, and never walked
        b"\x80\x02}(K\x01" + b"2\x86" * 60 + b"K\x01u.",  # a key that would take 2**60 steps to hash
        b"\x80\x02K\x01r\xff\xff\xff\x7f.",  # a memo of two thousand million entries
        b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",  # eight exabytes announced
        b"I" + b"9" * 10_000 + b"\n.",
        b"\x80\x02cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
        pickle.dumps(np.array([None]), protocol=2),
        pickle.dumps({(1, 2): 3}, protocol=2),
        pickle.dumps(1.5, protocol=2),
        pickle.dumps({1, 2}, protocol=4),
    ],
)
def test_hostile_and_damaged_pickles_are_refused_at_once(data: bytes) -> None:
    with pytest.raises(DataError, match=r"^expected an? "):
        load_subset(data)


def test_array_whose_bytes_do_not_fit_its_shape_is_refused() -> None:
    data = pickle.dumps(np.arange(4, dtype=np.int32), protocol=2).replace(b"K\x04\x85", b"K\x05\x85")
    with pytest.raises(DataError, match="16 bytes for an array of shape"):
        load_subset(data)


def test_matrix_whose_parts_contradict_is_refused() -> None:
    matrix = sp.csr_matrix(np.eye(3))
    matrix.indices[1] = 9
    with pytest.raises(DataError, match="parts contradict"):
        load_subset(pickle.dumps(matrix, protocol=2))


def test_endless_instructions_are_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_subset, "_MAX_STEPS", 1000)
    with pytest.raises(DataError, match="more than 1000 instructions"):
        load_subset(b"\x80\x02" + b"]" * 2000 + b".")
