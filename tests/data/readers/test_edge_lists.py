"""Edge lists as other programs write them, against pandas-like tables made by the csv module and NumPy."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pytest

import graphweft as gw
from graphweft.data.prepare import save_npz

NAMES = ["ann", "bob", "eve", "Zoë", "o'neill, j."]
EDGES = [(0, 1), (1, 2), (3, 4), (2, 0), (4, 0)]
WEIGHTS = [0.5, 2.0, 1.25, 3.0, 0.0]


def load(tmp_path: Path, text: str, name: str = "e.csv") -> gw.Dataset:
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return gw.load(tmp_path / name)


def written(rows: list[list[object]], **options: object) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n", **options).writerows(rows)
    return file.getvalue()


def named_edges(ds: gw.Dataset) -> list[tuple[str, str]]:
    return [(ds.node_names[s], ds.node_names[d]) for s, d in zip(*(e.tolist() for e in ds.graph.edges()), strict=True)]


def edges(ds: gw.Dataset) -> list[tuple[int, int]]:
    return list(zip(*(e.tolist() for e in ds.graph.edges()), strict=True))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize(("titled", "index"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("weighted", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("texts", [True, False], ids=["texts", "numbers"])
def test_every_way_to_write_a_table(tmp_path, delimiter, quoting, titled, index, weighted, texts) -> None:
    rows = [[NAMES[s], NAMES[d]] if texts else [s, d] for s, d in EDGES]
    rows = [[*row, w] for row, w in zip(rows, WEIGHTS, strict=True)] if weighted else rows
    rows = [[at, *row] for at, row in enumerate(rows)] if index else rows
    head = [[*([""] if index else []), "source", "target", *(["weight"] if weighted else [])]] if titled else []
    ds = load(tmp_path, written(head + rows, delimiter=delimiter, quoting=quoting), "e.csv")
    if texts:
        assert ds.node_names == tuple(sorted(NAMES))
        assert named_edges(ds) == [(NAMES[s], NAMES[d]) for s, d in EDGES]
    else:
        assert edges(ds) == EDGES and ds.node_names == ()
    if weighted:
        np.testing.assert_array_equal(ds.edge_weight.numpy(), np.float32(WEIGHTS))
    else:
        assert ds.edge_weight is None
    assert any("index" in note for note in ds.notes) == index


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.0,1.0\n1.0,2.0\n", [(0, 1), (1, 2)]),
        ("src,dst\n0.0,1.0\n1.0,2.0\n", [(0, 1), (1, 2)]),
        ("0;1;0,5\n1;2;1,5\n", [(0, 1), (1, 2)]),
        ("target,source\n1,0\n2,1\n", [(0, 1), (1, 2)]),
        ("id,src,dst\n7,0,1\n8,1,2\n", [(0, 1), (1, 2)]),
        ("# a comment\n\n0 1\n1 2\n", [(0, 1), (1, 2)]),
        ("weight,from,to\n3,0,1\n4,1,2\n", [(0, 1), (1, 2)]),
    ],
)
def test_numbers_in_other_clothes(tmp_path: Path, text: str, found: list[tuple[int, int]]) -> None:
    ds = load(tmp_path, text)
    assert edges(ds) == found
    if ds.edge_weight is not None:
        assert ds.edge_weight.tolist() in ([0.5, 1.5], [3.0, 4.0])


def test_texts_without_titles_and_with_blanks(tmp_path: Path) -> None:
    ds = load(tmp_path, "ann bob\nbob eve\neve ann\n", "e.txt.gz")
    assert named_edges(ds) == [("ann", "bob"), ("bob", "eve"), ("eve", "ann")]
    assert "the first line was read as an edge" in ds.notes
    ds = load(tmp_path, "person,friend\nann,bob\nbob,eve\n")
    assert named_edges(ds) == [("ann", "bob"), ("bob", "eve")]
    assert any("read as titles: person, friend" in note for note in ds.notes)


def test_names_are_kept_in_the_npz_form(tmp_path: Path) -> None:
    ds = load(tmp_path, "source,target\nann,bob\nbob,Zoë\n")
    again = gw.load(save_npz(ds, tmp_path / "saved.npz"))
    assert again.node_names == ds.node_names == ("Zoë", "ann", "bob")
    assert edges(again) == edges(ds)


def test_what_is_guessed_is_in_the_notes(tmp_path: Path) -> None:
    assert any("'year' is read as the weight" in n for n in load(tmp_path, "src,dst,year\n0,1,1999\n1,0,2001\n").notes)
    counted = load(tmp_path, "0,5,7\n1,6,7\n2,5,6\n")
    assert any("the first column counts the lines" in note for note in counted.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "a,b,c,d\n1,2,3,4\n",
            r"two or three columns \(source, target, weight\), got 4 \(a, b, c, d\); write a file of",
        ),
        ("1,2,3,4\n", "got 4; write a file of these columns alone"),
        ("lonely\n", "got 1"),
        ("ann,bob\n1,2\n2,x\n3,4\n", "all numbers or all texts, got 'x' at edge 1"),
        ("src,dst\nann,bob\nann\n", "expected 2 columns, got 1 at row 2"),
        ("src,dst\nann,\nbob,eve\n", "empty one at row 1"),
        ("src,dst,kind\nann,bob,knows\nbob,eve,likes\n", "the weight, got 'knows' at edge 0"),
        ("src,dst\n0.5,1\n", "expected whole ids"),
        ("src,dst\n-1,1\n", "expected ids from 0, got -1"),
        ("src,dst\n" + "x" * 2000 + ",y\n", "at most 1000 characters"),
        ("src,dst\n", "expected edges, got none"),
    ],
)
def test_what_is_no_edge_list_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(gw.errors.DataError, match=words) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(str(tmp_path))


def test_one_damaged_row_of_many_is_named(tmp_path: Path) -> None:
    rows = [f"{i},{i + 1}" for i in range(3000)]
    rows[2500] = "17,1O"
    with pytest.raises(gw.errors.DataError, match=r"1O.*row 2500"):
        load(tmp_path, "\n".join(rows))
