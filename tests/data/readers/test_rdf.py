"""N-Triples with lists of labels: what is read, what is refused, and the real files against their prepared forms."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from graphweft._errors import DataError
from graphweft.data.load import load

STATEMENTS = """# people
<http://x/a> <http://x/knows> <http://x/b> .
<http://x/b>\t<http://x/knows> <http://x/a>.
<http://x/a> <http://x/knows> <http://x/b> .
_:n1 <http://x/name> "Ann \\"A\\" # <x>"@en-GB . # a literal

<http://x/b> <http://x/age> "7"^^<http://www.w3.org/2001/XMLSchema#int> .
<http://x/c> <http://x/sees> _:n1 .
"""
TRAIN = "person\tid\tlabel_group\r\nhttp://x/a\t1.0\tred\r\nhttp://x/c\t2.0\tblue\r\n"
TEST = "id\tperson\tlabel_group\r\n3\thttp://x/b\tred\r\n"


def _folder(folder: Path, statements: str = STATEMENTS, train: str = TRAIN) -> Path:
    (folder / "people.nt.gz").write_bytes(gzip.compress(statements.encode()))
    (folder / "trainingSet.tsv").write_text(train, encoding="utf-8")
    (folder / "testSet.tsv").write_text(TEST, encoding="utf-8")
    return folder


def test_statements_and_lists(tmp_path: Path) -> None:
    ds = load(_folder(tmp_path))
    assert ds.num_nodes == 6  # a, b, _:n1, two literals, c
    assert {r[1]: len(ds.graph.layout.edge_range(r)) for r in ds.graph.relations} == {
        "http://x/knows": 2,
        "http://x/name": 1,
        "http://x/age": 1,
        "http://x/sees": 1,
    }
    assert ds.class_names == ("blue", "red")
    assert ds.y[ds.train_idx].tolist() == [1, 0] and ds.y[ds.test_idx].tolist() == [1]
    assert int((ds.y >= 0).sum()) == 3
    src, dst = ds.graph.relation_graph(("node", "http://x/knows", "node")).edges()
    assert src.tolist() == dst.flip(0).tolist()


def test_a_file_alone_has_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "people.nt"
    path.write_text(STATEMENTS, encoding="utf-8")
    ds = load(path)
    assert (ds.name, ds.num_nodes, ds.num_edges, ds.num_classes) == ("people", 6, 5, 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("<http://x/a> <http://x/knows> <http://x/b>", "line 3: expected 'subject predicate object .'"),
        ("<http://x/a> <http://x/kno", "line 3: expected"),
        ('"literal" <http://x/knows> <http://x/b> .', "line 3: expected"),
        ("<http://x/a> _:blank <http://x/b> .", "line 3: expected"),
        ("<http://x/a b> <http://x/knows> <http://x/b> .", "line 3: expected"),
        ('<http://x/a> <http://x/knows> "open .', "line 3: expected"),
        ("<a> <b> <c> . <d> <e> <f> .", "line 3: expected"),
        ("\x00", "expected text, got binary data"),
    ],
)
def test_a_broken_line_is_named(line: str, words: str, tmp_path: Path) -> None:
    lines = STATEMENTS.splitlines()
    lines[2] = line
    with pytest.raises(DataError, match=words) as caught:
        load(_folder(tmp_path, "\n".join(lines)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("person\tid\n", "expected a column of entities and one of labels, got person, id"),
        ("person\tlabel\nhttp://x/nobody\tred\n", "row 2: expected an entity of the graph, got http://x/nobody"),
        ("person\tlabel\nhttp://x/a\n", "row 2: expected 2 cells, got 1"),
    ],
)
def test_a_broken_list_is_named(train: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        load(_folder(tmp_path, train=train))


def test_truncated_and_empty_files_give_one_line(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    packed = (folder / "people.nt.gz").read_bytes()
    for content in (packed[: len(packed) // 2], packed[:5], gzip.compress(b"# nothing\n")):
        (folder / "people.nt.gz").write_bytes(content)
        with pytest.raises(DataError) as caught:
            load(folder)
        assert "\n" not in str(caught.value)
    (folder / "second.nt").write_text(STATEMENTS, encoding="utf-8")
    with pytest.raises(DataError, match="expected one N-Triples file"):
        load(folder)


@pytest.mark.parametrize(("raw", "prepared"), [("aifb", "aifb"), ("mutag", "mutag_rdf")])
def test_real_files_hold_what_their_prepared_forms_hold(raw: str, prepared: str, shared_data: Path) -> None:
    ours, theirs = load(shared_data / "raw" / "rdf" / raw), load(shared_data / f"{prepared}.npz")
    assert (ours.num_nodes, ours.num_edges, ours.num_classes) == (
        theirs.num_nodes,
        theirs.num_edges,
        theirs.num_classes,
    )
    sizes = [sorted(len(ds.graph.layout.edge_range(r)) for r in ds.graph.relations) for ds in (ours, theirs)]
    assert sizes[0] == sizes[1]
    for part in ("train", "test"):
        counts = [ds.y[ds.idx(part)].bincount().tolist() for ds in (ours, theirs)]
        assert counts[0] == counts[1]
    for degrees in ("in_degrees", "out_degrees"):
        found = [getattr(ds.graph, degrees)().sort().values.tolist() for ds in (ours, theirs)]
        assert found[0] == found[1]
