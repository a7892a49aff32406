"""What objects show in a notebook: the numbers that they hold, as well-formed tables with escaped texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

import graphweft as gw


def _read(shown: Any) -> tuple[str, list[list[str]]]:
    """Caption and cells of the table, read by a strict parser."""
    tree = ElementTree.fromstring(shown._repr_html_())
    assert tree.tag == "table"
    caption = tree.find("caption")
    assert caption is not None
    return str(caption.text), [[cell.text or "" for cell in row] for row in tree.iter("tr")]


def _facts(shown: Any) -> dict[str, str]:
    return dict(_read(shown)[1])


def test_graphs() -> None:
    graph = gw.Graph([0, 1, 1], [1, 2, 2], num_nodes=1200)
    graph.ndata["<b>"] = torch.zeros(1200, 4)
    graph.edata["w"] = torch.zeros(3, dtype=torch.float64)
    assert _read(graph)[0] == "Graph"
    assert _facts(graph) == {
        "nodes": "1,200", "edges": "3", 'ndata["<b>"]': "(1200, 4) float32", 'edata["w"]': "(3,) float64",
    }  # fmt: skip
    pairs = gw.Graph.from_csc([0, 1, 2], [3, 4], num_src=5)
    assert _facts(pairs) == {"sources": "5", "destinations": "2", "edges": "2"}
    typed = gw.Graph.hetero({("author", "writes", "paper"): ([0, 1], [0, 0])}, {"author": 3, "paper": 2})
    assert _facts(typed) == {"nodes: author": "3", "nodes: paper": "2", "edges: author-writes-paper": "2"}


def test_datasets() -> None:
    graph = gw.Graph([0, 1, 2], [1, 2, 0])
    ds = gw.Dataset("a & b", graph, torch.ones(3, 2), [0, 1, 1], train_idx=[0], val_idx=[1], test_idx=[2],
                    class_names=("no", "yes"), edge_weight=torch.ones(3))  # fmt: skip
    caption, rows = _read(ds)
    assert caption == "Dataset a & b"
    assert dict(rows) == {
        "nodes": "3", "edges": "3", "features": "2 dense", "edge weights": "yes", "task": "classification",
        "classes": "2 (no, yes)", "split": "train 1, val 1, test 1",
    }  # fmt: skip
    graphs = gw.GraphDataset.from_list([graph, graph], [torch.ones(3, 2)] * 2, [0, 1], name="two")
    facts = _facts(graphs)
    assert _read(graphs)[0] == "GraphDataset two" and (facts["graphs"], facts["nodes"], facts["edges"]) == (
        "2",
        "6",
        "6",
    )
    bare = _facts(gw.Dataset("bare", graph))
    assert bare["features"] == "none" and bare["task"] == "none" and bare["classes"] == "0"


def test_stores(tmp_path: Path) -> None:
    ds = gw.synthetic("default", scale=0.02)
    gw.macro.prepare_store(ds, tmp_path / "store", parts=2)
    model = gw.nn.SAGE(ds.num_features, 4, ds.num_classes)
    trainer = gw.Trainer(model, gw.macro.Store(tmp_path / "store"), mode="macro", macro="parts:1/2")
    assert _facts(trainer.ds)["nodes"] == f"{ds.num_nodes:,}"


def test_histories_and_runs(tmp_path: Path) -> None:
    ds = gw.synthetic("default", scale=0.02)
    trainer = gw.Trainer(gw.nn.GCN(ds.num_features, 4, ds.num_classes), ds, lr=0.1, out=tmp_path)
    assert "no epochs" in repr(trainer.history) and _read(trainer.history)[1] == [[""]]
    history = trainer.fit(4)
    best = history.best
    assert best is not None
    shown = f"History(4 epochs, loss {history[-1].loss:.4g}, best epoch {best.epoch}: val {100 * best.val_acc:.1f} %"  # type: ignore[operator]
    assert repr(history).startswith(shown)
    caption, (heads, *rows) = _read(history)
    assert caption.endswith(", 4 epochs") and [row[0] for row in rows] == ["first", "best", "last"]
    for record, row in zip((history[0], best, history[-1]), rows, strict=True):
        cells = dict(zip(heads, row, strict=True))
        assert cells["epoch"] == str(record.epoch) and cells["loss"] == f"{record.loss:.4g}"
    facts = _facts(gw.load_run(tmp_path, ds=ds))
    assert facts["epochs"] == "4" and facts["best epoch"] == str(best.epoch) and facts["model"] == "GCN"
    assert facts["test accuracy"] == f"{100 * best.test_acc:.1f} %"  # type: ignore[operator]


def test_trainers() -> None:
    ds = gw.synthetic("default", scale=0.02)
    trainer = gw.Trainer(gw.nn.GCN(ds.num_features, 4, ds.num_classes), ds, lr=0.1)
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    assert repr(trainer) == f"Trainer(GCN on {ds.name}, task='nodes', mode='full', parameters {count}, epochs 0)"
    history = trainer.fit(3)
    best, facts = history.best, _facts(trainer)
    assert best is not None and best.val_acc is not None
    assert (
        facts["epochs"] == "3" and facts["loss"] == f"{history[-1].loss:.4g}" and facts["best epoch"] == str(best.epoch)
    )
    assert facts["val accuracy"] == f"{100 * best.val_acc:.1f} %" and facts["val accuracy"] in repr(trainer)


def test_plans_name_every_way() -> None:
    plan = gw.plan("gcn", gw.synthetic("cora", scale=0.2))
    caption, (heads, *rows) = _read(plan)
    assert caption.startswith("Plan for ") and heads[1] == "mode"
    assert [row[1] for row in rows] == [plan.mode, *(other.strategy.mode for other in plan.others)]
    assert rows[0][0] == "taken" and [row[-1] for row in rows[1:]] == [other.reason for other in plan.others]
    shown = repr(plan)
    assert shown.startswith(f"Plan({plan.mode} on ") and f"epoch {rows[0][3]}" in shown and "\n" not in shown


def test_predictions_show_their_first_rows() -> None:
    ds = gw.synthetic("default", scale=0.02)
    trainer = gw.Trainer(gw.nn.GCN(ds.num_features, 4, ds.num_classes), ds)
    found = trainer.predictions()
    caption, (heads, *rows) = _read(found)
    assert caption == f"Predictions for {ds.name}, {ds.num_nodes} rows, the first 10" and heads == list(found.columns())
    assert [int(row[1]) for row in rows] == trainer.predict()[:10].tolist()
    assert [row[2] for row in rows] == [f"{p:.4g}" for p in trainer.predict(probabilities=True)[:10, 0].tolist()]


def test_batches_show_sizes_blocks_and_tensors() -> None:
    ds = gw.synthetic("default", scale=0.02)
    ds.graph.edata["w<"] = torch.rand(ds.num_edges)
    batch = next(iter(gw.Loader(ds, fanouts=[3, 2], batch_size=8)))
    facts = _facts(batch)
    assert (facts["seeds"], facts["nodes"], facts["edges"]) == ("8", str(batch.num_nodes), str(batch.num_edges))
    assert (
        facts["x"] == f"({batch.num_nodes}, {ds.num_features}) float32"
        and facts["w<"] == f"({batch.num_edges},) float32"
    )
    last = batch.blocks[1]
    assert facts["blocks[1]"] == f"{last.num_src} sources, 8 destinations, {last.num_edges} edges"
    cora = gw.synthetic("cora", scale=0.1)
    sparse = next(iter(gw.Loader(cora, fanouts=[2], batch_size=4)))
    assert _facts(sparse)["x"] == f"({sparse.num_nodes}, {cora.num_features}) sparse"
    links = next(iter(gw.LinkLoader(ds, fanouts=[2], batch_size=4)))
    assert _read(links)[0] == "LinkBatch" and _facts(links)["edge_label_index"].startswith("(2, 8)")


def test_samplers_show_what_decides_their_draws() -> None:
    graph = gw.Graph([0, 1, 2], [1, 2, 0])
    whole = "Graph(num_nodes=3, num_edges=3)"
    shown = {
        gw.sampling.NeighborSampler(
            graph, [3, 2], replace=True
        ): f"NeighborSampler({whole}, fanouts=[3, 2], replace=True)",
        gw.sampling.LaborSampler(graph, [4]): f"LaborSampler({whole}, labor_fanouts=[4], iterations=0)",
        gw.sampling.HGTSampler(graph, [4]): f"HGTSampler({whole}, hgt_samples=[[4]])",
        gw.sampling.ClusterSampler(graph, [0, 0, 1]): f"ClusterSampler({whole}, parts=2)",
        gw.sampling.NegativeSampler(graph): "NegativeSampler(3 nodes, 3 known edges)",
    }
    assert [repr(sampler) for sampler in shown] == list(shown.values())
