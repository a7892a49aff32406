"""Labels of edges: equal to a plain loop, learning, resuming bit for bit, by trainer, file and command."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_files import assert_same_run
from torch import Tensor, nn
from torch.nn import functional

import graphweft as gw
from graphweft import cli


def labelled(task: str = "classification", nodes: int = 120, seed: int = 0) -> gw.Dataset:
    """Edges whose label follows from the features of both ends, the direction included."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, nodes, (2, 6 * nodes), generator=generator)
    x = torch.randn(nodes, 6, generator=generator)
    value = x[src, 0] - x[dst, 1] + 0.5 * x[src, 2]
    y = value if task == "regression" else (value > 0).long() + (value > 1).long()
    y = torch.stack([value > 0, x[dst, 3] > 0], 1).float() if task == "multilabel" else y
    ds = gw.Dataset("edges", gw.Graph(src, dst, num_nodes=nodes), x)
    return ds.with_edge_labels(y, task="regression" if task == "regression" else None, seed=1)


class Pairs(nn.Module):
    """Called as a model of PyTorch Geometric, in plain torch: two layers of means, and their ``EdgeDecoder``."""

    def __init__(self, out: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.own, self.other = (nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8)]) for _ in range(2))
        self.lin1, self.lin2 = nn.Linear(16, 8), nn.Linear(8, out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        src, dst = edge_index
        count = torch.bincount(dst, minlength=x.shape[0]).clamp(min=1).unsqueeze(1)
        for place, (own, other) in enumerate(zip(self.own, self.other, strict=True)):
            mean = torch.zeros_like(x).index_add(0, dst, x[src]) / count
            x = own(x) + other(mean)
            x = torch.relu(x) if place == 0 else x
        row, col = edge_label_index
        out: Tensor = self.lin2(torch.relu(self.lin1(torch.cat([x[row], x[col]], dim=-1))))
        return out


LOSSES: dict[str, Any] = {
    "classification": functional.cross_entropy,
    "multilabel": functional.binary_cross_entropy_with_logits,
    "regression": lambda out, y: functional.mse_loss(out.squeeze(1), y),
}


def score(task: str, out: Tensor, y: Tensor) -> float:
    if task == "classification":
        return float((out.argmax(1) == y).double().mean())
    if task == "regression":
        return float((out.squeeze(1) - y).double().square().mean().sqrt())
    return 2 * int(((out > 0) & (y > 0.5)).sum()) / int((out > 0).sum() + (y > 0.5).sum())


@pytest.mark.parametrize("task", list(LOSSES))
def test_it_equals_a_plain_loop_over_the_whole_graph(task: str) -> None:
    """With all neighbours a batch has the outputs of the whole graph."""
    ds = labelled(task)
    model = Pairs(ds.num_classes)
    other = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    trainer = gw.Trainer(model, ds, fanouts=(-1, -1), batch_size=100, optimizer=optimizer, clip=0.5, restore_best=False)
    kind = "regression" if task == "regression" else "classification"
    assert trainer.task == f"edge_{kind}" and trainer.mode == "mini"
    drawn: list[Tensor] = []
    train_on = trainer._batch._train_on  # type: ignore[union-attr]

    def noted(batch: Any) -> Tensor:
        drawn.append(ds.train_idx.sort().values[batch.input_id])
        found: Tensor = train_on(batch)
        return found

    trainer._batch._train_on = noted  # type: ignore[method-assign, union-attr]
    history = trainer.fit(3)
    assert len(drawn) == 3 * 5 and torch.equal(torch.cat(drawn[:5]).sort().values, ds.train_idx.sort().values)
    adam, edges = torch.optim.Adam(other.parameters(), lr=0.02), torch.stack(ds.graph.edges()).long()
    assert torch.equal(edges, ds.edge_label_index)  # type: ignore[arg-type]
    for epoch in range(3):
        total = 0.0
        for rows in drawn[5 * epoch : 5 * epoch + 5]:
            adam.zero_grad()
            loss = LOSSES[task](other(ds.x, edges, edges[:, rows]), ds.y[rows])
            loss.backward()
            nn.utils.clip_grad_norm_(other.parameters(), 0.5)
            adam.step()
            total += float(loss.detach()) * rows.numel()
        assert history[epoch].loss == pytest.approx(total / ds.train_idx.numel(), rel=1e-4)
    with torch.no_grad():
        outputs = other(ds.x, edges, edges)
    for part in ("train", "val", "test"):
        rows = ds.idx(part)  # type: ignore[arg-type]
        assert trainer.evaluate(part) == pytest.approx(score(task, outputs[rows], ds.y[rows]), rel=1e-3, abs=5e-3)


@pytest.mark.parametrize("task", list(LOSSES))
def test_mode_full_takes_all_pairs_in_every_step(task: str) -> None:
    ds = labelled(task)
    model = gw.nn.EdgeModel.for_data(ds, 8)
    other = copy.deepcopy(model)
    trainer = gw.Trainer(model, ds, mode="full", lr=0.02, restore_best=False)
    assert trainer.mode == "full"
    history = trainer.fit(3)
    adam, rows = torch.optim.Adam(other.parameters(), lr=0.02), ds.train_idx.sort().values
    for epoch in range(3):
        adam.zero_grad()
        loss = LOSSES[task](other(ds.graph, ds.x, ds.edge_label_index[:, rows]), ds.y[rows])  # type: ignore[index]
        loss.backward()
        adam.step()
        assert history[epoch].loss == pytest.approx(float(loss.detach()), rel=1e-4)
    again = gw.Trainer(gw.nn.EdgeModel.for_data(ds, 8), ds, mode="full", lr=0.02, restore_best=False)
    again.load_state_dict(copy.deepcopy(trainer.state_dict()))
    assert trainer.fit(2)[-1].loss == again.fit(2)[-1].loss
    with pytest.raises(gw.errors.ConfigError, match="fanouts: expected mode mini as well"):
        gw.Trainer(model, ds, mode="full", fanouts=(5, 5))


def test_the_decoder_is_a_perceptron_over_both_rows() -> None:
    torch.manual_seed(0)
    decoder, rows, pairs = gw.nn.EdgeDecoder(5, 7, 3), torch.randn(6, 5), torch.randint(0, 6, (2, 40))
    both = torch.cat([rows[pairs[0]], rows[pairs[1]]], dim=1)
    torch.testing.assert_close(decoder(rows, pairs), decoder.last(torch.relu(decoder.first(both))))


@pytest.mark.parametrize("conv", ["sage", "gat"])
def test_the_blocks_of_a_batch_say_what_the_graph_says(conv: str) -> None:
    ds = labelled()
    torch.manual_seed(0)
    model = gw.nn.EdgeModel.for_data(ds, 8, conv=conv).eval()
    trainer = gw.Trainer(model, ds, fanouts=(-1, -1), batch_size=64)
    batch = next(iter(trainer._batch.loader))  # type: ignore[union-attr]
    model.eval()
    with torch.no_grad():
        rows = ds.train_idx.sort().values[batch.input_id]
        found = trainer._batch._forward(batch)  # type: ignore[union-attr]
        torch.testing.assert_close(found, model(ds.graph, ds.x, ds.edge_label_index[:, rows]), rtol=1e-4, atol=1e-5)  # type: ignore[index]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_it_learns_and_resumes_with_the_same_bits(tmp_path: Path, task: str) -> None:
    ds = labelled(task, nodes=200)

    def made(name: str) -> gw.Trainer:
        torch.manual_seed(0)
        model = gw.nn.EdgeModel.for_data(ds, 16, dropout=0.1)
        metrics = "f1_macro,roc_auc" if task == "classification" else "mae,r2"
        options: dict[str, Any] = {"metrics": metrics, "fanouts": (5, 5), "batch_size": 128, "scheduler": "step:5:0.5"}
        return gw.Trainer(model, ds, lr=0.02, out=tmp_path / name, **options)

    whole, parts = made("whole"), made("parts")
    whole.fit(12)
    parts.fit(5)
    again = made("parts")
    assert again.resume()
    again.fit(7)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    history = whole.history
    if task == "classification":
        assert whole.evaluate("test") > 0.75 and history[-1].metrics["test_roc_auc"] > 0.8  # type: ignore[operator]
    else:
        assert history[-1].test_r2 > 0.5 and whole.metric == "RMSE"  # type: ignore[operator]
    run = gw.load_run(tmp_path / "parts", ds=ds)
    assert type(run.model).__name__ == "EdgeModel" and torch.equal(run.predict(), whole.predict())
    other = labelled(task, nodes=90, seed=5)
    assert run.evaluate("all", other) == pytest.approx(score(task, run.outputs(other), other.y), rel=1e-4)


def test_a_random_split_of_values_has_those_below_0() -> None:
    ds = labelled("regression")
    assert ds.train_idx.numel() == 432 and bool((ds.y[ds.train_idx] < 0).any())


def test_weights_of_edges_reach_the_node_model() -> None:
    ds = labelled()
    losses = []
    for weight in (None, torch.ones(ds.num_edges), torch.linspace(0.1, 2, ds.num_edges)):
        weighted = gw.Dataset("w", ds.graph, ds.x, edge_weight=weight).with_edge_labels(ds.y, seed=1)
        torch.manual_seed(0)
        losses.append(gw.Trainer(gw.nn.EdgeModel.for_data(weighted, 8), weighted, fanouts=(3, 3)).fit(1)[0].loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[2] != pytest.approx(losses[0], rel=1e-4)


def test_file_command_and_table_of_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ds = labelled()
    ds.save(tmp_path / "e.npz")
    again = gw.load(tmp_path / "e.npz")
    assert torch.equal(again.edge_label_index, ds.edge_label_index) and torch.equal(again.train_idx, ds.train_idx)  # type: ignore[arg-type]
    words = [
        "--data",
        str(tmp_path / "e.npz"),
        "--task",
        "edge",
        "--hidden",
        "8",
        "--quiet",
        "--out",
        str(tmp_path / "r"),
    ]
    assert cli.main(["train", *words, "--epochs", "3", "--best", "f1_macro", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["task"], summary["model"], summary["metric"]) == ("edge_classification", "sage", "accuracy")
    assert cli.main(["train", "--out", str(tmp_path / "r"), "--resume", "--epochs", "5", "--quiet"]) == 0
    assert cli.main(["predict", str(tmp_path / "r"), "--out", str(tmp_path / "p.csv")]) == 0
    assert cli.main(["evaluate", str(tmp_path / "r")]) == 0
    assert cli.main(["inspect", str(tmp_path / "e.npz")]) == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert list(rows[0]) == ["source", "target", "prediction", "p_0", "p_1", "p_2"]
    ends = [[int(row["source"]), int(row["target"])] for row in rows]
    assert ends == ds.edge_label_index.T.tolist()  # type: ignore[union-attr]
    capsys.readouterr()
    assert cli.main(["train", "--data", str(tmp_path / "e.npz"), "--out", str(tmp_path / "no"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "expected labels of nodes for task nodes, got those of edges; use task edge" in error
    run = gw.load_run(tmp_path / "r")
    assert [int(row["prediction"]) for row in rows] == run.predict().tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "edge_regression"}, "task: expected edge_classification for edges, whose labels are for class"),
        ({"sampler": "shadow"}, "sampler=shadow cannot be combined with labels of edges"),
        ({"macro": "large:1/2"}, "macro=.* cannot be combined with labels of edges"),
        ({"prepare": "subtasks"}, "prepare=subtasks cannot be combined with labels of edges"),
        ({"model": gw.nn.SAGE(6, 8, 3)}, "expected a model of pairs, such as gw.nn.EdgeModel, got SAGE, which"),
        ({"model": nn.Bilinear(6, 6, 3)}, "expected a model"),
        ({"fanouts": (3,)}, "fanouts: expected 2 numbers, one per layer, got 3"),
        ({"mode": "macro"}, "macro"),
    ],
)
def test_wrong_use_is_told_in_one_line(options: dict[str, Any], message: str) -> None:
    ds = labelled()
    with pytest.raises(gw.errors.GraphWeftError, match=message) as found:
        gw.Trainer(**{"model": gw.nn.EdgeModel(6, 8, 3), "ds": ds, **options}).fit(1)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": [0, 1]}, "y"),
        ({"y": [0, 1], "edge_label_index": [[0, 1], [1, 500]]}, "edge_label_index: expected node ids from 0 to 119"),
        ({"y": [0, 1], "edge_label_index": [0, 1]}, r"edge_label_index: expected int64 of shape \(2, P\), got"),
        ({"y": [0], "edge_label_index": [[0.5], [1.0]]}, "edge_label_index: expected int64 of shape"),
    ],
)
def test_pairs_that_do_not_fit_are_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(gw.errors.DataError, match=message):
        labelled().with_edge_labels(**given)


def test_the_task_needs_labels_of_edges() -> None:
    ds = gw.synthetic("default", scale=0.01)
    with pytest.raises(gw.errors.DataError, match=r"expected labels of edges for the task edge.*with_edge_labels"):
        gw.Trainer(gw.nn.EdgeModel(ds.num_features, 4, 2), ds, task="edge")


USERS = 150


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Transfers with a label that follows from the ages of both users; some are not known."""
    pandas = pytest.importorskip("pandas")
    draw = np.random.Generator(np.random.PCG64(0))
    age = draw.normal(40, 10, USERS).round(1)
    ends = draw.integers(0, USERS, (2, 900))
    fraud = np.where(age[ends[0]] > age[ends[1]], "yes", "no").astype(object)
    fraud[::10] = None
    names = np.array([f"u{i:03d}" for i in range(USERS)])
    pandas.DataFrame({"user": names, "age": age}).to_csv(tmp_path / "users.csv", index=False)
    columns = {"sender": names[ends[0]], "receiver": names[ends[1]], "fraud": fraud}
    pandas.DataFrame(columns).to_csv(tmp_path / "transfers.csv", index=False)
    return tmp_path


ROLES = ["--id", "user", "--source", "sender", "--target", "receiver", "--edge-label", "fraud"]


def test_labels_of_edges_from_two_tables_to_predictions(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], threads_restored: None
) -> None:
    monkeypatch.chdir(tables)
    files = ["--nodes", "users.csv", "--edges", "transfers.csv"]
    words = [*files, *ROLES, "--epochs", "40", "--lr", "0.02", "--batch-size", "128", "--out", "run", "--quiet"]
    assert cli.main(["train", *words, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["task"] == "edge_classification" and summary["test_acc_at_best_val"] > 0.85
    assert cli.main(["predict", "run", "--out", "p.csv"]) == 0
    rows = list(csv.DictReader(Path("p.csv").read_text().splitlines()))
    given = list(csv.DictReader(Path("transfers.csv").read_text().splitlines()))
    assert list(rows[0]) == ["sender", "receiver", "prediction", "p_no", "p_yes"]
    assert [(r["sender"], r["receiver"]) for r in rows] == [(r["sender"], r["receiver"]) for r in given]
    known = [(r["prediction"], g["fraud"]) for r, g in zip(rows, given, strict=True) if g["fraud"]]
    assert len(known) == 810 and np.mean([a == b for a, b in known]) > 0.85
    Path("new.csv").write_text("sender,receiver\n" + "".join(f"{r['sender']},{r['receiver']}\n" for r in given))
    assert cli.main(["predict", "run", "--nodes", "users.csv", "--edges", "new.csv", "--out", "n.csv"]) == 0
    later = list(csv.DictReader(Path("n.csv").read_text().splitlines()))
    assert [row["prediction"] for row in later] == [row["prediction"] for row in rows]


def test_edges_that_are_dropped_lead_back_or_have_a_split() -> None:
    nodes = {"id": ["a", "b", "c"], "v": [1.0, 2.0, 4.0]}
    edges = {"source": ["a", "x", "b", "c"], "target": ["b", "a", "c", "a"], "score": [0.5, 1.5, -2.5, None]}
    roles: dict[str, Any] = {"edge_label": "score", "split": "part", "unknown_ids": "drop", "bidirected": True}
    ds = gw.Dataset.from_tables(nodes, {**edges, "part": ["train", "val", "test", ""]}, **roles)
    assert ds.task == "regression" and ds.num_edges == 6 and ds.num_rows == 3
    assert ds.edge_label_index.tolist() == [[0, 1, 2], [1, 2, 0]]  # type: ignore[union-attr]
    assert ds.y.nan_to_num(9).tolist() == [0.5, -2.5, 9]
    assert (ds.train_idx.tolist(), ds.val_idx.tolist(), ds.test_idx.tolist()) == ([0], [], [1])
    with pytest.raises(gw.errors.DataError, match=r"^label cannot be combined with edge_label"):
        gw.Dataset.from_tables(nodes, edges, label="v", edge_label="score")
    with pytest.raises(
        gw.errors.DataError, match="edge_label: expected a column of edges, got 'scor'; did you mean 'score'"
    ):
        gw.Dataset.from_tables(nodes, edges, edge_label="scor")


def test_features_of_a_pair_reach_the_decoder(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 60, (2, 500), generator=draw)
    known = torch.randn(500, 3, generator=draw)
    base = gw.Dataset("paid", gw.Graph(src, dst, num_nodes=60), torch.randn(60, 4, generator=draw), edge_features=known)
    ds = base.with_edge_labels((known[:, 0] > 0).long(), seed=0)
    torch.manual_seed(0)
    model = gw.nn.EdgeModel.for_data(ds, hidden=16, pair_dim=3)
    trainer = gw.Trainer(model, ds, lr=0.05, batch_size=64, out=tmp_path / "run")
    trainer.fit(epochs=15)
    assert trainer.evaluate("test") > 0.9
    with torch.no_grad():
        rows = model.encoder(ds.graph, trainer.x)
        first, last = model.decoder.first, model.decoder.last
        both = first(torch.cat([rows[src], rows[dst]], dim=1)) + known @ model.decoder.of_pair.weight.T
        expected = last(both.relu())
    assert torch.allclose(trainer._batch.logits(), expected, atol=1e-5)
    assert torch.equal(gw.load_run(tmp_path / "run", ds=ds).predict(), trainer.predict())
    plain = gw.Dataset("plain", base.graph, base.x).with_edge_labels(ds.y)
    with pytest.raises(
        gw.errors.DataError, match=r"expected 3 features of the edges that have labels \(pair_dim\), got none"
    ):
        gw.Trainer(gw.nn.EdgeModel.for_data(plain, hidden=8, pair_dim=3), plain)
    with pytest.raises(gw.errors.ShapeError, match=r"pair_attr of shape \(500, 3\), got none"):
        model(ds.graph, ds.x)
    with pytest.raises(gw.errors.ConfigError, match="pair_dim as an integer >= 0, got -1"):
        gw.nn.EdgeDecoder(4, 4, 2, pair_dim=-1)
