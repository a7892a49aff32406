"""Datasets from tables against what pandas makes of the same columns, whatever holds the table."""

from __future__ import annotations

import datetime
import json
import pickle
import sys
import uuid
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from fraud import fraud_tables, write_fraud

import graphweft as gw
from graphweft._errors import DataError, MissingPackageError
from graphweft.data.table_encoding import TableEncoding

ROLES = {"id": "user", "source": "sender", "target": "receiver", "label": "fraud"}
USERS, TRANSFERS = fraud_tables()


def same(a: gw.Dataset, b: gw.Dataset) -> None:
    """Everything but names and notes is equal to the bit."""
    for name in ("x", "y", "train_idx", "val_idx", "test_idx", "edge_weight", "edge_features", "edge_time", "node_ids"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        assert one is None or (one.dtype == other.dtype and torch.equal(one, other)), name
    for one, other in zip(a.graph.edges(), b.graph.edges(), strict=True):
        assert torch.equal(one, other)
    assert (a.node_names, a.class_names, a.num_classes, a.task) == (b.node_names, b.class_names, b.num_classes, b.task)


def expected_features() -> np.ndarray:
    """The node features as pandas makes them."""
    age, joined = USERS["age"], USERS["joined"].astype("datetime64[s]").astype("int64").astype(float)
    parts = [
        pd.get_dummies(USERS["country"]).reindex(columns=["DE", "FR", "MT", "NA", "PL"]).astype(float),
        USERS["country"].isna().astype(float).rename("country missing"),
        ((age - age.mean()) / age.std(ddof=0)).fillna(0.0),
        age.isna().astype(float).rename("age missing"),
        USERS["verified"].astype(float),
        (joined - joined.mean()) / joined.std(ddof=0),
    ]
    return pd.concat(parts, axis=1).to_numpy()


def test_columns_are_encoded_as_pandas_would() -> None:
    ds = gw.Dataset.from_tables(USERS, TRANSFERS, **ROLES, weight="amount", time="time")
    np.testing.assert_allclose(ds.x.numpy(), expected_features(), atol=1e-6)
    titles = ("country=DE", "country=FR", "country=MT", "country=NA", "country=PL", "country missing")
    assert ds.encoding.titles == (*titles, "age", "age missing", "verified", "joined")
    place = pd.Series(range(len(USERS)), index=USERS["user"])
    src, dst = ds.graph.edges()
    assert src.tolist() == place[TRANSFERS["sender"]].tolist()
    assert dst.tolist() == place[TRANSFERS["receiver"]].tolist()
    np.testing.assert_array_equal(ds.edge_weight.numpy(), TRANSFERS["amount"].to_numpy(np.float32))
    assert ds.edge_time.tolist() == TRANSFERS["time"].astype("datetime64[s]").astype("int64").tolist()
    assert ds.edge_features is None and ds.node_names == tuple(USERS["user"])
    assert ds.class_names == ("no", "yes") and ds.task == "classification"
    assert ds.y.tolist() == USERS["fraud"].map({"no": 0, "yes": 1}).fillna(-1).astype(int).tolist()
    labelled = int(USERS["fraud"].notna().sum())
    assert sum(ds.idx(part).numel() for part in ("train", "val", "test")) == labelled
    assert bool((ds.y[ds.train_idx] >= 0).all())


def test_edge_columns_without_a_meaning_are_features() -> None:
    ds = gw.Dataset.from_tables(USERS, TRANSFERS, **ROLES)
    for column, name in enumerate(("amount", "time")):
        values = TRANSFERS[name]
        values = values if name == "amount" else values.astype("datetime64[s]").astype("int64").astype(float)
        wanted = (values - values.mean()) / values.std(ddof=0)
        np.testing.assert_allclose(ds.edge_features[:, column].numpy(), wanted, atol=1e-6)


def test_every_holder_of_a_table_gives_the_same(tmp_path) -> None:
    paths = write_fraud(tmp_path)
    frames = [pd.read_csv(paths[0], keep_default_na=False, na_values=[""]), pd.read_csv(paths[1])]
    frames[0]["age"] = frames[0]["age"].astype(float)
    wanted = gw.Dataset.from_tables(*frames, **ROLES)
    ways = {
        "original": (USERS, TRANSFERS),
        "mapping of arrays": [{name: f[name].to_numpy() for name in f} for f in frames],
        "mapping of lists": [{name: f[name].tolist() for name in f} for f in frames],
        "pyarrow": [pa.Table.from_pandas(f) for f in frames],
        "nullable": [f.convert_dtypes() for f in frames],
        "arrow types": [f.convert_dtypes(dtype_backend="pyarrow") for f in frames],
        "categories": [frames[0].astype({"country": "category"}), frames[1]],
        "with a zone": [USERS.assign(joined=USERS["joined"].dt.tz_localize("UTC")), TRANSFERS],
    }
    for tables in ways.values():
        same(gw.Dataset.from_tables(*tables, **ROLES), wanted)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "txt", "parquet"])
def test_files_are_read_as_their_tables(tmp_path, suffix) -> None:
    users = USERS.assign(country=USERS["country"].replace("NA", "NL"))
    names = tmp_path / f"users.{suffix}", tmp_path / f"transfers.{suffix}"
    for frame, name in zip((users, TRANSFERS), names, strict=True):
        if suffix == "parquet":
            frame.to_parquet(name)
        else:
            frame.to_csv(name, index=suffix == "txt", sep={"tsv": "\t", "txt": ";"}.get(suffix, ","))
    ds = gw.Dataset.from_tables(str(names[0]), names[1], **ROLES)
    same(ds, gw.Dataset.from_tables(users, TRANSFERS, **ROLES))
    assert ds.name == "users"
    assert any("counts the rows" in note for note in ds.notes) == (suffix == "txt")


def ring(ids: list, **columns) -> tuple[dict, dict]:
    """A node table and the edges of a ring."""
    return {"id": ids, **columns}, {"source": ids, "target": [*ids[1:], ids[0]]}


@pytest.mark.parametrize(
    "ids",
    [
        ["ann", "bob", "eve"],
        [2**62, 7, -5],
        ["007", "7", "08"],
        [uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)],
        [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2), datetime.date(2024, 1, 3)],
        [("a", 1), ("a", 2), ("b", 1)],
        [1.5, 2.5, 3.5],
        ["NA", "null", "nan"],
    ],
    ids=lambda ids: str(ids[0]),
)
def test_ids_of_any_kind(ids) -> None:
    if isinstance(ids[0], tuple):
        with pytest.raises(DataError, match=r"one value a row, got tuple"):
            gw.Dataset.from_tables(*ring(ids, x=[1, 2, 3]))
        return
    ds = gw.Dataset.from_tables(*ring(ids, x=[1, 2, 3]))
    assert ds.graph.edges()[0].tolist() == [0, 1, 2] and ds.graph.edges()[1].tolist() == [1, 2, 0]
    kept = list(ds.node_names) if ds.node_ids is None else ds.node_ids.tolist()
    if isinstance(ids[0], int | str | float):
        assert kept == (ids if isinstance(ids[0], int) else list(map(str, ids)))
    assert len(set(map(str, kept))) == 3


def test_ids_of_files_are_kept_as_they_are_written(tmp_path) -> None:
    (tmp_path / "n.csv").write_text("id,x\n007,1\n7,2\nNA,3\n")
    (tmp_path / "e.csv").write_text("source,target\n7,007\nNA,7\n")
    ds = gw.Dataset.from_tables(tmp_path / "n.csv", tmp_path / "e.csv")
    assert ds.node_names == ("007", "7", "NA") and ds.graph.edges()[0].tolist() == [1, 2]
    (tmp_path / "n.csv").write_text("id,x\n10,1\n7,2\n")
    (tmp_path / "e.csv").write_text("source,target\n7,10\n")
    ds = gw.Dataset.from_tables(tmp_path / "n.csv", tmp_path / "e.csv")
    assert ds.node_ids.tolist() == [10, 7] and ds.node_ids.dtype == torch.int64


def test_integers_that_a_gap_made_floats_are_the_same_ids() -> None:
    edges = pd.DataFrame({"source": [1.0, 2.0], "target": [2, 3]})
    ds = gw.Dataset.from_tables({"id": [1, 2, 3], "x": [0, 1, 2]}, edges)
    assert ds.node_ids.tolist() == [1, 2, 3] and ds.graph.edges()[0].tolist() == [0, 1]


def test_edges_alone() -> None:
    ds = gw.Dataset.from_tables(edges={"source": ["b", "c"], "target": ["c", "a"], "weight": [1, 2]}, weight="weight")
    assert ds.node_names == ("a", "b", "c") and ds.x is None and ds.edge_weight.tolist() == [1, 2]
    assert ds.graph.edges()[0].tolist() == [1, 2]
    assert ds.with_features("degree").num_features == 3


@pytest.mark.parametrize(
    ("label", "task", "classes", "y"),
    [
        (["b", "a", None], "classification", ("a", "b"), [1, 0, -1]),
        ([10, 9, 10], "classification", ("9", "10"), [1, 0, 1]),
        ([10.0, np.nan, 9.0], "classification", ("9", "10"), [1, -1, 0]),
        ([True, False, None], "classification", ("False", "True"), [1, 0, -1]),
        ([0.5, 1.5, np.nan], "regression", (), [0.5, 1.5, np.nan]),
        ([Decimal("0.5"), 2, None], "regression", (), [0.5, 2.0, np.nan]),
    ],
)
def test_labels_of_every_kind(label, task, classes, y) -> None:
    ds = gw.Dataset.from_tables(*ring(["a", "b", "c"], x=[1, 2, 3], y=label), label="y")
    assert ds.task == task and ds.class_names == classes
    np.testing.assert_array_equal(ds.y.numpy(), np.array(y, ds.y.numpy().dtype))
    assert ds.num_classes == (len(classes) or 1)


def test_several_label_columns() -> None:
    tables = ring(["a", "b", "c"], x=[1, 2, 3], one=[1, 0, None], two=[0, 1, 1])
    ds = gw.Dataset.from_tables(*tables, label=["one", "two"])
    assert ds.task == "multilabel" and ds.class_names == ("one", "two") and ds.x.shape == (3, 1)
    np.testing.assert_array_equal(ds.y.numpy(), np.array([[1, 0], [0, 1], [np.nan, 1]], np.float32))
    values = gw.Dataset.from_tables(*ring([0, 1], x=[1, 2], a=[0.5, 1], b=[2, 3]), label=["a", "b"])
    assert values.task == "regression" and values.y.tolist() == [[0.5, 2.0], [1.0, 3.0]]


def test_whole_numbers_can_be_values() -> None:
    tables = ring(list(range(200)), x=list(range(200)), age=list(range(200)))
    with pytest.raises(DataError, match=r"got 200 different whole numbers; say task='regression' for values"):
        gw.Dataset.from_tables(*tables, label="age")
    assert gw.Dataset.from_tables(*tables, label="age", task="regression").y.tolist() == list(range(200))
    assert gw.Dataset.from_tables(*tables, label="age", task="classification").num_classes == 200


def test_a_split_column() -> None:
    tables = ring(list("abcde"), x=range(5), y=[0, 1, 0, 1, 0], part=["train", "Valid", "test", None, "train"])
    ds = gw.Dataset.from_tables(*tables, label="y", split="part")
    assert [ds.idx(part).tolist() for part in ("train", "val", "test")] == [[0, 4], [1], [2]]
    assert ds.num_features == 1


def test_the_random_split_follows_the_seed() -> None:
    first, again, other = (gw.Dataset.from_tables(USERS, TRANSFERS, **ROLES, seed=seed) for seed in (1, 1, 2))
    same(first, again)
    assert not torch.equal(first.train_idx, other.train_idx)


def test_edges_that_lead_back() -> None:
    one = gw.Dataset.from_tables(USERS, TRANSFERS, **ROLES, time="time")
    both = gw.Dataset.from_tables(USERS, TRANSFERS, **ROLES, time="time", bidirected=True)
    (src, dst), (src2, dst2) = one.graph.edges(), both.graph.edges()
    assert torch.equal(src2, torch.cat([src, dst])) and torch.equal(dst2, torch.cat([dst, src]))
    assert torch.equal(both.edge_time, torch.cat([one.edge_time, one.edge_time]))
    assert torch.equal(both.edge_features, torch.cat([one.edge_features, one.edge_features]))


def test_a_later_table_is_encoded_like_the_first() -> None:
    first = gw.Dataset.from_tables(USERS, TRANSFERS, **ROLES)
    encoding = TableEncoding.from_dict(json.loads(json.dumps(first.encoding.to_dict())))
    assert encoding == first.encoding == pickle.loads(pickle.dumps(first)).encoding
    again = gw.Dataset.from_tables(USERS, TRANSFERS, encoding=encoding)
    same(again, first)
    rows = np.arange(0, len(USERS), 3)
    part = USERS.iloc[rows].drop(columns="fraud")
    inside = TRANSFERS[TRANSFERS["sender"].isin(part["user"]) & TRANSFERS["receiver"].isin(part["user"])]
    later = gw.Dataset.from_tables(part, inside, encoding=encoding)
    assert torch.equal(later.x, first.x[rows]) and later.num_classes == 2 and bool((later.y == -1).all())
    assert later.class_names == first.class_names and later.encoding == encoding
    new = USERS.assign(country="XX")
    told = gw.Dataset.from_tables(new, TRANSFERS, encoding=encoding)
    assert bool((told.x[:, :6] == 0).all())
    assert any("400 values are not among the categories so far ('XX' the first)" in note for note in told.notes)


def test_a_later_table_of_other_columns_is_refused() -> None:
    encoding = gw.Dataset.from_tables(USERS, TRANSFERS, **ROLES).encoding
    with pytest.raises(DataError, match=r"expected a column of nodes, got 'age'; did you mean 'ages'"):
        gw.Dataset.from_tables(USERS.rename(columns={"age": "ages"}), TRANSFERS, encoding=encoding)
    with pytest.raises(DataError, match=r"nodes, column 'age': expected numbers, got 'old' in row 1 \(text\)"):
        gw.Dataset.from_tables(USERS.assign(age="old"), TRANSFERS, encoding=encoding)
    with pytest.raises(DataError, match=r"column 'fraud': expected a class among no, yes, got 'maybe'"):
        gw.Dataset.from_tables(USERS.assign(fraud="maybe"), TRANSFERS, encoding=encoding)
    with pytest.raises(DataError, match=r"nodes: expected a table with the column 'user', as the first one had"):
        gw.Dataset.from_tables(None, TRANSFERS, encoding=encoding)


@pytest.mark.parametrize(("task", "label"), [("multilabel", ["a", "b"]), ("regression", "c")])
def test_a_later_table_without_labels_of_other_tasks(task, label) -> None:
    tables = ring(["u", "v"], x=[1, 2], a=[0, 1], b=[1, 1], c=[0.5, 1.5])
    ds = gw.Dataset.from_tables(*tables, label=label)
    later = gw.Dataset.from_tables(*ring(["s", "t"], x=[1, 2], a=[0, 1], b=[1, 1], c=[1, 2]), encoding=ds.encoding)
    assert later.task == task and later.x.shape == ds.x.shape
    bare = {name: values for name, values in tables[0].items() if name not in (*label, label)}
    later = gw.Dataset.from_tables(bare, tables[1], encoding=ds.encoding)
    assert bool(later.y.isnan().all()) and later.y.shape == ds.y.shape


def test_drop_and_categories() -> None:
    ids = [f"n{i}" for i in range(40)]
    tables = ring(ids, memo=[f"text {i}" for i in range(40)], zip=[i % 3 for i in range(40)])
    message = (
        r"nodes, column 'memo': expected numbers, or at most 64 categories that repeat, got 40 different texts in 40 "
        r"rows; leave the column out with drop=\['memo'\] \(--drop memo\), make numbers of it first, or take it as "
        r"categories with categories=\['memo'\], max_categories=40 \(--categories memo --max-categories 40\)"
    )
    with pytest.raises(DataError, match=message):
        gw.Dataset.from_tables(*tables)
    assert gw.Dataset.from_tables(*tables, drop="memo").encoding.titles == ("zip",)
    ds = gw.Dataset.from_tables(*tables, drop=["memo"], categories=["zip"])
    assert ds.encoding.titles == ("zip=0", "zip=1", "zip=2")
    assert gw.Dataset.from_tables(*tables, categories="memo", max_categories=40).num_features == 41


def test_a_column_of_the_other_table_is_dropped_by_the_name_of_a_role() -> None:
    nodes, edges = ring(["ann", "bob", "eve"], age=[1, 2, 3], time=[7, 8, 9])
    edges["time"] = [3, 1, 2]
    ds = gw.Dataset.from_tables(nodes, edges, time="time", drop=["time"])
    assert ds.encoding.titles == ("age",) and ds.edge_time.numel() == 3


def test_a_column_of_numbers_with_texts_among_them_says_so() -> None:
    ids = list(range(100))
    with pytest.raises(DataError, match=r"most are numbers, the first that is none is '1,5'"):
        gw.Dataset.from_tables(*ring(ids, size=["1,5" if i == 3 else str(i) for i in ids]))


def test_a_column_without_values_is_left_out() -> None:
    ds = gw.Dataset.from_tables(*ring([1, 2], x=[1, 2], nothing=[None, None]))
    assert ds.num_features == 1 and any("column 'nothing' has no value" in note for note in ds.notes)


NODES, EDGES = ring(["ann", "bob", "eve"], age=[1, 2, 3], y=["p", "q", "p"])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"id": "ids"}, r"id: expected a column of nodes, got 'ids'; did you mean 'id'\?"),
        ({"label": "label"}, r"label: expected a column of nodes, got 'label'; its columns are id, age, y"),
        ({"source": "sorce"}, r"source: expected a column of edges, got 'sorce'; did you mean 'source'\?"),
        ({"target": 3}, r"target: expected a column of edges, got 3; its columns are source, target"),
        ({"time": "when"}, r"time: expected a column of edges, got 'when'"),
        ({"split": "part"}, r"split: expected a column of nodes, got 'part'"),
        ({"drop": "Age2"}, r"drop: expected a column of either table, got 'Age2'; did you mean 'age'\?"),
        ({"label": "id"}, r"'id': expected one meaning for a column, got it named twice"),
        ({"label": "y", "drop": ["y"]}, r"label='y' cannot be combined with drop='y'"),
        ({"label": ("y", "age"), "drop": ["age"]}, r"label='age' cannot be combined with drop='age'"),
        ({"id": "id", "categories": ["id"]}, r"id='id' cannot be combined with categories='id'"),
        ({"drop": ["age"], "categories": ["age"]}, r"drop='age' cannot be combined with categories='age'"),
        ({"unknown_ids": "keep"}, r"unknown_ids: expected error or drop, got 'keep'"),
        ({"task": "guess"}, r"task: expected classification, multilabel, regression, got 'guess'"),
        ({"label": "y", "task": "regression"}, r"nodes, column 'y': expected numbers, got 'p' in row 1"),
        ({"nodes": 5}, r"nodes: expected a DataFrame, a mapping from names to columns, or a file, got int"),
        ({"nodes": {}}, r"nodes: expected a table with columns, got none"),
        ({"edges": None}, r"edges: expected a table with a row for every edge, got None"),
        ({"nodes": {**NODES, "age": [1]}}, r"nodes: expected columns of one length, got 3 in the first and 1 in 'age'"),
        ({"nodes": {**NODES, "age": [[1], [2], [3]]}}, r"column 'age': expected one value a row, got list"),
        ({"nodes": {**NODES, "age": [1, np.inf, 3]}}, r"column 'age': expected finite numbers, got inf in row 2"),
        ({"nodes": {**NODES, "age": np.ones((3, 2))}}, r"column 'age': expected one value a row, got shape \(3, 2\)"),
        (
            {"nodes": {**NODES, "id": ["ann", "eve", "eve"]}},
            r"nodes, column 'id': expected every id once, got 'eve' in rows 2 and 3",
        ),
        (
            {"nodes": {**NODES, "id": ["ann", None, "eve"]}},
            r"expected an id in every row, got 1 row\(s\) without one, row 2 the first",
        ),
        (
            {"edges": {"source": ["ann", "tom"], "target": ["tim", "bob"]}},
            r"edges, column 'source': expected ids of nodes, column 'id', got 'tom' in row 2; 2 ends are unknown in 2 "
            r"of 2 edges; add the nodes, or leave these edges out with unknown_ids='drop' \(--unknown-ids drop\)",
        ),
        (
            {"edges": {"source": [1, 2], "target": [2, 1]}},
            r"nodes, column 'id': expected ids of the kind of edges, column 'source', which has numbers, got 'ann'",
        ),
        ({"nodes": None, "label": "y"}, r"label: expected nodes, the table that has this column, got edges only"),
    ],
)
def test_what_does_not_fit_is_one_line(change, line) -> None:
    given = {"nodes": NODES, "edges": EDGES, **change}
    with pytest.raises(DataError, match=line) as caught:
        gw.Dataset.from_tables(**given)
    assert "\n" not in str(caught.value)


def test_an_index_and_values_in_place_of_a_name_say_so() -> None:
    frame, edges = pd.DataFrame({"user": ["a", "b"], "y": [0, 1]}), {"source": ["a"], "target": ["b"]}
    with pytest.raises(DataError, match=r"^id: expected a column of nodes, got its index 'user'; use .reset_index"):
        gw.Dataset.from_tables(frame.set_index("user"), edges, id="user", label="y")
    with pytest.raises(DataError, match=r"^id: expected the name of a column, got Series; put it into the table$"):
        gw.Dataset.from_tables(frame, edges, id=frame["user"], label="y")
    with pytest.raises(DataError, match=r"expected labels to train on, got none \(--label names their column\); the"):
        gw.Dataset.from_tables(frame, edges, id="user").check_trainable()


def test_edges_with_unknown_ends_can_be_left_out() -> None:
    edges = {"source": ["ann", "tom", "bob"], "target": ["bob", "eve", "tim"], "w": [1, 2, 3]}
    ds = gw.Dataset.from_tables(NODES, edges, unknown_ids="drop", weight="w")
    assert ds.num_edges == 1 and ds.edge_weight.tolist() == [1.0]
    assert any("2 edges have ends that are not among the nodes" in note for note in ds.notes)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("n.xlsx", b"PK", r"n.xlsx: expected a table as .csv, .tsv or .parquet, got another suffix"),
        ("n.csv", b"", r"n.csv: expected a regular file with content, got an empty one"),
        ("n.csv", b"id,x\n1,2,3,4\n\x00", r"n.csv: expected"),
        ("n.csv", b"id,x\n\xff\xfe,1\n", r"n.csv: expected a text in UTF-8, got another encoding"),
        ("n.csv", b"\n1,2\n", r"n.csv: expected a first line with the names of the columns"),
        ("n.csv", b'id,x,"x"\n1,2,3\n', r"n.csv: expected different names of columns, got 'x' twice"),
        ("n.parquet", b"none", r"n.parquet: expected an undamaged table"),
        ("gone.csv", None, r"gone.csv: expected a file or folder, got: No such file or directory"),
    ],
)
def test_files_that_are_none(tmp_path, name, content, line) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=line) as caught:
        gw.Dataset.from_tables(tmp_path / name, EDGES)
    assert "\n" not in str(caught.value)


def test_without_pandas_files_are_refused_and_tables_are_read(tmp_path, monkeypatch) -> None:
    paths = write_fraud(tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingPackageError, match=r"users.csv: reading it needs pandas \(pip install graphweft\[tables\]\)"
    ):
        gw.Dataset.from_tables(*paths, **ROLES)
    assert gw.Dataset.from_tables(NODES, EDGES).num_nodes == 3


def test_what_a_dataset_keeps_survives_changes() -> None:
    ds = gw.Dataset.from_tables(USERS, TRANSFERS, **ROLES, time="time")
    changed = replace(ds.row_normalized(), name="other")
    assert changed.encoding is ds.encoding and changed.edge_time is ds.edge_time
    with pytest.raises(DataError, match=r"edge_time: expected 3000 times, got shape \(2,\)"):
        replace(ds, edge_time=[1, 2])
    with pytest.raises(DataError, match=r"edge_time: expected finite times, got nan"):
        replace(ds, edge_time=np.full(3000, np.nan))


def test_training_on_tables_learns() -> None:
    ds = gw.Dataset.from_tables(USERS, TRANSFERS.drop(columns=["amount", "time"]), **ROLES, bidirected=True)
    trainer = gw.Trainer(gw.nn.SAGE(ds.num_features, 16, ds.num_classes), ds, lr=0.01)
    trainer.fit(epochs=60)
    guess = trainer.history.constant_guess
    assert trainer.evaluate("test") > max(0.85, guess + 0.1)


PAIRED = {"id": "user", "source": "from", "target": "to"}
THREE = {"user": ["a", "b", "c"], "age": [1.0, 2.0, 4.0]}


def test_a_table_without_edges_has_ids_of_any_kind() -> None:
    for people in (THREE, {**THREE, "user": [7, 8, 9]}):
        ds = gw.Dataset.from_tables(people, {"from": [], "to": []}, **PAIRED)
        assert (ds.num_nodes, ds.num_edges) == (3, 0)


def test_no_edge_between_the_nodes_is_an_error_though_unknown_ends_may_be_dropped() -> None:
    line = r"^edges, column 'from': expected edges between ids of nodes, column 'user', got none among 2 edges$"
    with pytest.raises(DataError, match=line):
        gw.Dataset.from_tables(THREE, {"from": ["A", "B"], "to": ["B", "C"]}, **PAIRED, unknown_ids="drop")


@pytest.mark.parametrize("label", [["no", "no", None], [True, True, True], [3, 3, 3]])
def test_labels_of_one_class_are_refused(label: list) -> None:
    people = {**THREE, "y": label}
    edges = {"from": ["a"], "to": ["b"]}
    with pytest.raises(DataError, match=r"^nodes, column 'y': expected at least two classes, got '.*' in every row"):
        gw.Dataset.from_tables(people, edges, **PAIRED, label="y")
    if label[0] != "no":
        assert gw.Dataset.from_tables(people, edges, **PAIRED, label="y", task="regression").y.tolist() == label
