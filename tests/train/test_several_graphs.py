"""Nodes of several graphs with an inductive split: as PyTorch Geometric's loop, by trainer, file and command."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweft as gw
from graphweft import cli

pyg_data = pytest.importorskip("torch_geometric.data")
pyg_loader = pytest.importorskip("torch_geometric.loader")
pyg_nn = pytest.importorskip("torch_geometric.nn")

LABELS = 5


def graphs(count: int = 24, seed: int = 0) -> list[Any]:
    """As PPI: graphs of different sizes, several labels a node, which follow from the features of neighbours."""
    generator = torch.Generator().manual_seed(seed)
    rule = torch.randn(8, LABELS, generator=generator)
    found = []
    for i in range(count):
        nodes = 20 + 3 * i
        ends = torch.randint(0, nodes, (2, 4 * nodes), generator=generator)
        ends = ends[:, ends[0] != ends[1]]
        ends = torch.unique(torch.cat([ends, ends.flip(0)], dim=1), dim=1)
        x = torch.randn(nodes, 8, generator=generator)
        sums = torch.zeros_like(x).index_add(0, ends[1], x[ends[0]])
        y = ((x + sums / ends[1].bincount(minlength=nodes).clamp(min=1).unsqueeze(1)) @ rule > 0).float()
        found.append(pyg_data.Data(x=x, edge_index=ends, y=y))
    return found


def micro_f1(outputs: Tensor, labels: Tensor) -> float:
    """As scikit-learn's ``f1_score(average="micro")``."""
    said, there = outputs > 0, labels > 0.5
    return 2 * int((said & there).sum()) / int(said.sum() + there.sum())


@pytest.fixture(scope="module")
def ppi() -> tuple[list[Any], gw.Dataset]:
    data = graphs()
    return data, gw.Dataset.from_graphs(data[:20], data[20:22], data[22:], name="ppi")


def test_the_parts_are_graphs(ppi: tuple[list[Any], gw.Dataset]) -> None:
    data, ds = ppi
    owner = ds.arrays["graph_id"]
    assert (ds.task, ds.num_classes, int(owner.max())) == ("multilabel", LABELS, 23)
    for part, wanted in (("train", range(20)), ("val", (20, 21)), ("test", (22, 23))):
        assert sorted(set(owner[ds.idx(part)].tolist())) == list(wanted)  # type: ignore[arg-type]
    whole = pyg_data.Batch.from_data_list(data)
    assert torch.equal(ds.x, whole.x) and torch.equal(ds.y, whole.y)
    assert torch.equal(torch.stack(ds.graph.edges()), whole.edge_index) and torch.equal(owner, whole.batch)


@pytest.mark.parametrize("kind", ["GraphSAGE", "GAT"])
def test_micro_f1_is_that_of_a_loop_of_pytorch_geometric(ppi: tuple[list[Any], gw.Dataset], kind: str) -> None:
    """The same model of theirs, trained over the same order of graphs by a loop over their batches."""
    data, ds = ppi
    torch.manual_seed(1)
    model = getattr(pyg_nn, kind)(8, 16, 2, LABELS)
    theirs = copy.deepcopy(model)
    order: list[list[int]] = []

    class Notes:
        def on_batch_end(self, trainer: gw.Trainer, batch: int, loss: float) -> None:
            order.append(drawn.pop())

    drawn: list[list[int]] = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = gw.Trainer(
        model,
        ds,
        mode="mini",
        sampler="graphs",
        batch_size=2,
        optimizer=optimizer,
        callbacks=Notes(),
        restore_best=False,
    )
    forward = trainer._batch._train_on  # type: ignore[union-attr]

    def train_on(batch: Any) -> Tensor:
        drawn.append(list(dict.fromkeys(ds.arrays["graph_id"][batch.n_id].tolist())))
        found: Tensor = forward(batch)
        return found

    trainer._batch._train_on = train_on  # type: ignore[method-assign, union-attr]
    history = trainer.fit(4)
    for e in range(4):
        assert sorted(one for batch in order[10 * e : 10 * e + 10] for one in batch) == list(range(20))
    assert order[:10] != order[10:20]
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01)
    theirs.train()
    for epoch in range(4):
        total = 0.0
        for batch in pyg_loader.DataLoader(data, batch_sampler=order[10 * epoch : 10 * epoch + 10]):
            adam.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(theirs(batch.x, batch.edge_index), batch.y)
            loss.backward()
            adam.step()
            total += float(loss.detach()) * batch.num_nodes
        assert history[epoch].loss == pytest.approx(total / ds.train_idx.numel(), rel=1e-4)
    theirs.eval()
    with torch.no_grad():
        for part, held in (("val", data[20:22]), ("test", data[22:])):
            outputs = torch.cat([theirs(one.x, one.edge_index) for one in held])
            found = micro_f1(outputs, torch.cat([one.y for one in held]))
            assert trainer.evaluate(part) == pytest.approx(found, abs=2e-3)


def test_a_compiled_model_learns_and_resumes(ppi: tuple[list[Any], gw.Dataset], tmp_path: Path) -> None:
    _, ds = ppi

    def made(name: str) -> gw.Trainer:
        torch.manual_seed(0)
        model = gw.nn.SAGE(8, 32, LABELS, norm="batch", dropout=0.1)
        options: dict[str, Any] = {"sampler": "graphs", "batch_size": 4, "lr": 0.02, "out": tmp_path / name}
        return gw.Trainer(model, ds, mode="mini", metrics="f1_macro,roc_auc", **options)

    whole, parts = made("whole"), made("parts")
    whole.fit(12)
    parts.fit(5)
    again = made("parts")
    assert again.resume()
    again.fit(7)
    assert whole.history["loss"] == again.history["loss"] and torch.equal(whole.predict(), again.predict())
    assert whole.metric == "micro-F1" and whole.evaluate("test") > 0.8
    outputs = whole.predictions().outputs[ds.test_idx]
    assert whole.evaluate("test") == pytest.approx(micro_f1(outputs, ds.y[ds.test_idx]))
    alone = gw.Dataset.from_graphs(graphs()[22:])  # the test graphs on their own have the same outputs
    whole.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(whole.model(alone.graph, alone.x), outputs, rtol=1e-4, atol=1e-5)
    with pytest.raises(gw.errors.CheckpointError, match="batch_size"):
        gw.Trainer(
            gw.nn.SAGE(8, 32, LABELS, norm="batch", dropout=0.1),
            ds,
            0.02,
            "mini",
            sampler="graphs",
            out=tmp_path / "parts",
        ).resume()


def test_graphs_with_few_training_nodes_come_with_all_nodes() -> None:
    """Seeds are the training nodes of a graph; graphs without one are not drawn."""
    ring = gw.Graph(torch.arange(12), torch.arange(12).view(3, 4).roll(-1, 1).reshape(-1))
    owner = torch.arange(3).repeat_interleave(4)
    sampler = gw.sampling.GraphSampler(ring, owner).holding(torch.tensor([1, 10]))
    assert sampler.num_items == 2
    wanted = torch.zeros(12, dtype=torch.bool)
    wanted[[1, 10]] = True
    sample = sampler.draw(torch.tensor([1, 0]), wanted)
    assert sample.batch_size == 2 and sample.n_id[:2].tolist() == [10, 1] and sample.n_id.numel() == 8
    pairs = {(int(sample.n_id[a]), int(sample.n_id[b])) for a, b in sample.edge_index.T.tolist()}
    assert pairs == {(a, b) for a, b in zip(*(e.tolist() for e in ring.edges()), strict=True) if a // 4 != 1}


def test_file_and_command(ppi: tuple[list[Any], gw.Dataset], tmp_path: Path, capsys: Any) -> None:
    _, ds = ppi
    ds.save(tmp_path / "ppi.npz")
    again = gw.load(tmp_path / "ppi.npz")
    assert torch.equal(again.arrays["graph_id"], ds.arrays["graph_id"]) and torch.equal(again.y, ds.y)
    words = [
        "--mode",
        "mini",
        "--sampler",
        "graphs",
        "--model",
        "sage",
        "--hidden",
        "16",
        "--epochs",
        "2",
        "--quiet",
        "--json",
    ]
    assert cli.main(["train", "--data", str(tmp_path / "ppi.npz"), *words, "--out", str(tmp_path / "run")]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["metric"] == "micro-F1" and 0 < summary["test_acc"] < 1
    options = gw.load_run(tmp_path / "run").options
    assert options["batch_size"] == 1 and "GraphSampler" in options["drawn"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: gw.Dataset.from_graphs([]), "from_graphs: expected at least one graph to train on, got none"),
        (lambda: gw.Dataset.from_graphs([gw.Graph([0], [1])]), r"train\[0\]: expected labels y of its nodes, got none"),
        (lambda: gw.Dataset.from_graphs(graphs(2), [3]), r"val\[0\]: expected a gw.Graph, a sample, or a Data of PyT"),
        (
            lambda: gw.Dataset.from_graphs(
                [pyg_data.Data(x=torch.ones(3, 1), edge_index=torch.zeros(2, 0).long(), y=1)]
            ),
            r"train\[0\] y: expected labels of its nodes, .*gw.GraphDataset has one label a graph",
        ),
        (
            lambda: gw.sampling.GraphSampler(gw.Graph([0], [1]), [0, 1]),
            "GraphSampler: expected edges within graphs, got edge 0",
        ),
        (lambda: _one(sampler="graphs"), "sampler='graphs' cannot be combined with one graph; gw.Dataset.from_graphs"),
        (lambda: _one(sampler="graphs", mode="full"), "sampler: expected mode mini as well, got mode 'full'"),
        (lambda: _one(sampler="graphs", fanouts=(2, 2)), "fanouts=2,2 cannot be combined with sampler=graphs"),
    ],
)
def test_wrong_use_is_one_line(act: Any, message: str) -> None:
    with pytest.raises(gw.errors.GraphWeftError, match=message) as found:
        act()
    assert "\n" not in str(found.value)


def _one(mode: str = "mini", **options: Any) -> gw.Trainer:
    ds = gw.synthetic("cora", scale=0.05)
    model: nn.Module = gw.nn.GCN(ds.num_features, 4, ds.num_classes)
    return gw.Trainer(model, ds, mode=mode, **options)
