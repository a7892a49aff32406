"""From two CSV files to a CSV of predictions in three commands; wrong use is one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fraud import fraud_tables, write_fraud

import graphweft as gw
from graphweft.cli import main

TRAIN = "train --nodes users.csv --edges transfers.csv --id user --source sender --target receiver --label fraud"
DROP = "--drop amount,time"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the two tables and a run on them."""
    folder = tmp_path_factory.mktemp("fraud")
    write_fraud(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*TRAIN.split(), *DROP.split(), "--bidirected", "--out", "run", "--epochs", "60", "--quiet"]) == 0
    return folder


@pytest.fixture
def inside(place, monkeypatch, threads_restored) -> Path:
    monkeypatch.chdir(place)
    return place


def told(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_fraud_story(inside, capsys) -> None:
    users, transfers = fraud_tables()
    out = told(capsys, "predict", "run", "--out", "predictions.csv")
    assert out == "predictions.csv: 400 rows, columns user, prediction, p_no, p_yes\n"
    table = pd.read_csv("predictions.csv")
    assert table["user"].tolist() == users["user"].tolist()
    np.testing.assert_allclose(table[["p_no", "p_yes"]].sum(axis=1), 1, atol=1e-6)
    assert (table["prediction"] == np.where(table["p_yes"] > 0.5, "yes", "no")).all()
    known = users["fraud"].notna()
    assert (table["prediction"] == users["fraud"])[known].mean() > 0.9
    roles = {"id": "user", "source": "sender", "target": "receiver", "label": "fraud"}
    ds = gw.Dataset.from_tables("users.csv", "transfers.csv", **roles, drop=["amount", "time"], bidirected=True)
    torch.manual_seed(0)
    trainer = gw.Trainer(gw.nn.GCN(ds.num_features, 32, ds.num_classes), ds, lr=0.01)
    trainer.fit(60)
    trainer.predictions().save("program.csv")
    assert Path("program.csv").read_bytes() == Path("predictions.csv").read_bytes()
    chances = trainer.predict(probabilities=True)[:, 1].numpy()
    np.testing.assert_array_equal(table["p_yes"].to_numpy(np.float32), chances)
    assert transfers["sender"].isin(table["user"]).all()


def test_other_tables_of_the_same_columns(inside, capsys) -> None:
    users, transfers = fraud_tables(users=200, transfers=1500, seed=3)
    users.drop(columns="fraud").to_csv("new.csv", index=False)
    users.to_parquet("labelled.parquet")
    transfers.to_csv("new_edges.csv", index=False)
    files = ["--nodes", "new.csv", "--edges", "new_edges.csv"]
    told(capsys, "predict", "run", *files, "--out", "new.parquet")
    table = pd.read_parquet("new.parquet")
    assert table["user"].tolist() == users["user"].tolist() and list(table) == ["user", "prediction", "p_no", "p_yes"]
    told(capsys, "predict", "run", *files, "--out", "new_predictions.tsv")
    assert pd.read_csv("new_predictions.tsv", sep="\t")["prediction"].tolist() == table["prediction"].tolist()
    known = users["fraud"].notna()
    right = float((table["prediction"] == users["fraud"])[known].mean())
    labelled = ["--nodes", "labelled.parquet", "--edges", "new_edges.csv"]
    scores = json.loads(told(capsys, "evaluate", "run", *labelled, "--json"))
    assert scores["split"] == "all" and scores["accuracy"] == pytest.approx(right) and right > 0.8
    assert "expected nodes with a label in the all split, got none" in refused(capsys, "evaluate", "run", *files)


def test_what_other_tables_have_more_is_told(inside, capsys) -> None:
    users, _ = fraud_tables()
    users.loc[3, "country"] = "ZZ"
    users.assign(credit=1).to_csv("more.csv", index=False)
    out = told(capsys, "predict", "run", "--nodes", "more.csv", "--edges", "transfers.csv", "--out", "more_p.csv")
    assert out.splitlines()[:2] == [
        "note: more.csv: column 'credit' not used, as the first table had none such",
        "note: more.csv, column 'country': 1 value is not among the categories so far ('ZZ' the first)",
    ]


def test_pairs_get_the_product_of_their_embeddings(inside, capsys) -> None:
    table = "train --edges transfers.csv --source sender --target receiver --task link --features degree --quiet"
    assert main([*table.split(), *DROP.split(), "--epochs", "2", "--hidden", "8", "--out", "links"]) == 0
    capsys.readouterr()
    told(capsys, "predict", "links", "--out", "rows.csv")
    rows = pd.read_csv("rows.csv").set_index("node")
    pairs = pd.read_csv("transfers.csv")[["sender", "receiver"]].head(9)
    wanted = (rows.loc[pairs["sender"]].to_numpy() * rows.loc[pairs["receiver"]].to_numpy()).sum(1)
    for names in (["sender", "receiver"], ["source", "target"]):
        pairs.columns = names
        pairs.to_csv("pairs.csv", index=False)
        out = told(capsys, "predict", "links", "--pairs", "pairs.csv", "--out", "scored.csv")
        assert out == f"scored.csv: 9 rows, columns {', '.join(names)}, score, probability\n"
        scored = pd.read_csv("scored.csv")
        assert scored[names].equals(pairs)
        np.testing.assert_allclose(scored["score"], wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(scored["probability"], 1 / (1 + np.exp(-wanted)), rtol=1e-4)
    pairs.assign(target="nobody").to_csv("pairs.csv", index=False)
    line = "pairs.csv, column 'target': expected ids of nodes, got 'nobody' in row 1"
    assert line in refused(capsys, "predict", "links", "--pairs", "pairs.csv")
    line = "pairs: expected a run with embeddings, as of the task link or gae, got classification"
    assert line in refused(capsys, "predict", "run", "--pairs", "pairs.csv")


def test_evaluate_gives_the_scores_of_the_best_epoch(inside, capsys) -> None:
    summary = json.loads(Path("run/summary.json").read_text())
    scores = json.loads(told(capsys, "evaluate", "run", "--json"))
    assert scores["accuracy"] == summary["test_acc_at_best_val"] and scores["auc"] == summary["test_auc_at_best_val"]
    text = told(capsys, "evaluate", "run", "--split", "val")
    assert f"val: accuracy {100 * summary['best_val_acc']:.1f} %   loss " in text and "ROC AUC" in text
    assert text.startswith("Run('run', GCN on users, 60 epochs, best epoch ")


def test_runs_of_named_data_predict_too(tmp_path, monkeypatch, capsys, threads_restored) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--data", "cora", "--scale", "0.1", "--epochs", "2", "--out", "run", "--quiet"]) == 0
    capsys.readouterr()
    report = json.loads(told(capsys, "predict", "run", "--out", "p.csv", "--json"))
    with Path("p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert report == {
        "out": "p.csv",
        "rows": len(rows),
        "columns": ["node", "prediction", *[f"p_{i}" for i in range(7)]],
    }
    assert [row["node"] for row in rows] == list(map(str, range(len(rows))))
    assert all(float(row[f"p_{row['prediction']}"]) == max(float(row[f"p_{i}"]) for i in range(7)) for row in rows)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "train --nodes users.csv --edges transfers.csv --id usr",
            "--id: expected a column of users.csv, got 'usr'; d",
        ),
        ("train --nodes users.csv", "--edges: expected the table of edges beside that of nodes, got none"),
        ("train --label fraud", "--label: expected tables with it (--nodes FILE --edges FILE), got none"),
        (
            "train --nodes users.csv --edges transfers.csv --data cora",
            "--nodes and --edges cannot be combined with --data",
        ),
        ("train --nodes gone.csv --edges transfers.csv", "gone.csv: expected a file or folder, got: No such file"),
        (f"{TRAIN} --max-categories x", "--max-categories: expected an integer, got 'x'"),
        (f"{TRAIN} --unknown-ids keep", "--unknown-ids: expected one of error, drop, got 'keep'"),
        (f"{TRAIN} --drop amont", "--drop: expected a column of either table, got 'amont'; did you mean 'amount'?"),
        ("predict gone", "gone: expected the folder of a run, with last.pt in it, got none"),
        ("predict run --out p.xls", "p.xls: expected a file name ending in .csv, .tsv or .parquet, got another"),
        ("predict run --out no/p.csv", "no/p.csv: expected a folder to write into, got no, which is not a folder"),
        ("predict run --nodes users.csv", "--edges: expected the table of edges beside that of nodes, got none"),
        ("predict run --edges transfers.csv --data x", "--nodes and --edges cannot be combined with --data"),
        ("predict run --edges transfers.csv", "--nodes: expected a table with the column 'user', as the first one had"),
        ("evaluate run --split dev", "--split: expected one of train, val, test, all, got 'dev'"),
    ],
)
def test_wrong_use_is_one_line(inside, capsys, arguments, line) -> None:
    assert line in refused(capsys, *arguments.split())


def test_a_resumed_run_keeps_its_tables(inside, capsys) -> None:
    first = [*TRAIN.split(), *DROP.split(), "--out", "resumed", "--epochs", "3", "--quiet", "--json"]
    told(capsys, *first)
    more = json.loads(told(capsys, "train", "--out", "resumed", "--resume", "--epochs", "5", "--quiet", "--json"))
    assert more["dataset"] == "users" and more["epochs"] == 5 and more["resumed_after_epoch"] == 3
    other = [*first, "--label", "verified", "--resume"]
    assert "expected label 'fraud' as in the run that resumed holds, got 'verified'" in refused(capsys, *other)


def test_the_usual_folder_is_called_like_the_node_table(inside, capsys) -> None:
    told(capsys, *TRAIN.split(), *DROP.split(), "--epochs", "1", "--quiet")
    assert Path("runs/users/last.pt").is_file()
