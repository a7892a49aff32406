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
