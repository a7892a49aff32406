"""Tables of predictions: probabilities against torch, files against pandas."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import graphweft as gw
from graphweft._errors import ConfigError, DataError, MissingPackageError
from graphweft.train import prediction
from graphweft.train.pair_scores import pair_scores
from graphweft.train.prediction import predictions_of, probabilities, write_columns
from graphweft.train.target import target_of

OUTPUTS = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
GRAPH = gw.Graph([0, 1, 2], [1, 2, 0])


def made(y: object, ids: object = None, **options: object) -> prediction.Predictions:
    ds = gw.Dataset("d", GRAPH, np.eye(3), y, node_ids=ids, **options)
    return predictions_of(ds, OUTPUTS, target_of(ds))


def test_probabilities_are_those_of_the_losses() -> None:
    torch.testing.assert_close(probabilities(OUTPUTS, "classification"), torch.exp(torch.log_softmax(OUTPUTS, 1)))
    torch.testing.assert_close(probabilities(OUTPUTS, "multilabel"), 1 / (1 + torch.exp(-OUTPUTS)))
    with pytest.raises(ConfigError, match="got the task regression, which predicts values"):
        probabilities(OUTPUTS, "regression")


@pytest.mark.parametrize("ids", [None, ["x", "y,z", 'q"q'], [5, 2**60, -7]])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_files_hold_every_number_to_the_bit(tmp_path, suffix, ids) -> None:
    found = made([0, 1, -1], ids, class_names=("no", "yes"))
    path = found.save(tmp_path / f"p.{suffix}")
    table = pd.read_parquet(path) if suffix == "parquet" else pd.read_csv(path, sep="\t" if suffix == "tsv" else ",")
    assert list(table) == ["node", "prediction", "p_no", "p_yes"]
    assert table["node"].tolist() == (ids or [0, 1, 2])
    assert table["prediction"].tolist() == [("no", "yes")[i] for i in OUTPUTS.argmax(1).tolist()]
    np.testing.assert_array_equal(table["p_yes"].to_numpy(np.float32), OUTPUTS.softmax(1)[:, 1].numpy())


def test_several_labels_and_values() -> None:
    several = made([[1, 0], [0, 1], [1, 1]], class_names=("a", "b"))
    held = [";".join(n for n, x in zip("ab", row, strict=True) if x > 0) for row in OUTPUTS.tolist()]
    assert several.columns()["prediction"].tolist() == held and list(several.columns())[2:] == ["p_a", "p_b"]
    values = made(np.ones((3, 2)), task="regression")
    assert list(values.columns()) == ["node", "prediction_0", "prediction_1"]
    assert values.columns()["prediction_1"].tolist() == OUTPUTS[:, 1].tolist()


def test_data_in_the_place_of_a_flag_are_refused() -> None:
    found = made([0, 1, -1])
    assert torch.equal(found.chosen(True), OUTPUTS.softmax(1)) and torch.equal(found.chosen(False), OUTPUTS.argmax(1))
    with pytest.raises(ConfigError, match=r"^predict: expected probabilities=True or False, got Dataset; gw.load_run"):
        found.chosen(found.ds)
    trainer = gw.Trainer(gw.nn.GCN(3, 4, 2), gw.Dataset("d", GRAPH, np.eye(3), [0, 1, 0], train_idx=[0, 1, 2]))
    with pytest.raises(ConfigError, match=r"got Dataset; gw\.load_run"):
        trainer.predict(found.ds)


def test_classes_keep_their_kind() -> None:
    edges = {"source": ["a"], "target": ["b"]}
    for label, names in (([10, 30, 10], [10, 30]), ([True, False, True], [False, True]), (["x", "y", "x"], ["x", "y"])):
        ds = gw.Dataset.from_tables({"id": ["a", "b", "c"], "f": [1, 2, 3], "y": label}, edges, label="y")
        found = predictions_of(ds, OUTPUTS, target_of(ds)).columns()
        assert found["prediction"].tolist() == [names[i] for i in OUTPUTS.argmax(1).tolist()]
        assert list(found) == ["id", "prediction", f"p_{names[0]}", f"p_{names[1]}"]


def test_ids_keep_their_name_where_it_is_that_of_a_prediction() -> None:
    edges = {"source": ["a"], "target": ["b"]}
    for name, others in (("prediction", ["prediction_", "p_x", "p_y"]), ("p_x", ["prediction", "p_x_", "p_y"])):
        nodes = {name: ["a", "b", "c"], "f": [1, 2, 3], "y": ["x", "y", "x"]}
        ds = gw.Dataset.from_tables(nodes, edges, id=name, label="y")
        found = predictions_of(ds, OUTPUTS, target_of(ds)).columns()
        assert list(found) == [name, *others] and found[name].tolist() == ["a", "b", "c"]
        assert found[others[0]].tolist() == ["xy"[i] for i in OUTPUTS.argmax(1).tolist()]
        assert torch.equal(torch.from_numpy(found[others[1]]), OUTPUTS.softmax(1)[:, 0])


def test_ends_of_pairs_keep_their_names() -> None:
    pairs = {"score": ["a", "b"], "target": ["b", "c"]}
    nodes = {"id": ["a", "b", "c"], "f": [1, 2, 3]}
    ds = gw.Dataset.from_tables(nodes, pairs, source="score", target="target")
    rows = torch.tensor([[1.0, 0.0], [2.0, 3.0], [0.0, 1.0]])
    found = pair_scores(predictions_of(ds, rows, None), pairs)
    assert list(found) == ["score", "target", "score_", "probability"] and found["score"].tolist() == ["a", "b"]
    assert found["score_"].tolist() == [2.0, 3.0]


def test_a_typed_graph_tells_of_its_labelled_type() -> None:
    graph = gw.Graph.hetero({("p", "by", "a"): ([0, 1], [0, 0])}, num_nodes={"p": 2, "a": 1})
    ds = gw.Dataset("t", graph, None, [0, 1, -1], target_type="p", features={"p": np.eye(2)})
    found = predictions_of(ds, OUTPUTS, target_of(ds)).columns()
    assert found["node"].tolist() == [0, 1] and len(found["prediction"]) == 2


def test_an_old_file_stays_whole_where_writing_fails(tmp_path, monkeypatch) -> None:
    path = tmp_path / "p.csv"
    path.write_text("old")

    def torn(file, *_) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(prediction, "_text", torn)
    with pytest.raises(KeyboardInterrupt):
        made([0, 1, 1]).save(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_one_line(tmp_path, monkeypatch) -> None:
    with pytest.raises(DataError, match=r"p.xls: expected a file name ending in .csv, .tsv or .parquet"):
        made([0, 1, 1]).save(tmp_path / "p.xls")
    with pytest.raises(DataError, match="expected a folder to write into, got none, which is not a folder"):
        write_columns(Path("none/p.csv"), {})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"writing Parquet needs pyarrow \(pip install graphweft\[tables\]\)"):
        made([0, 1, 1]).save(tmp_path / "p.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_a_trainer_gives_probabilities(mode) -> None:
    ds = gw.synthetic("cora", scale=0.1)
    trainer = gw.Trainer(gw.nn.GCN(ds.num_features, 8, ds.num_classes), ds, mode=mode)
    trainer.fit(2)
    found = trainer.predictions()
    assert torch.equal(trainer.predict(probabilities=True), found.outputs.softmax(1))
    assert torch.equal(trainer.predict(), found.outputs.argmax(1)) and torch.equal(found.labels, trainer.predict())
    assert "Predictions('synthetic:cora@0.1', 271 rows, node, prediction, p_0" in repr(found)
