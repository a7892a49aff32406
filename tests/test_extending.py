"""What docs/architecture.md says it takes to add something, done by those lines alone.

``tests/ir`` holds the tables of operations together; ``tests/runtime/test_third_target.py`` adds a target.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import graphweft as gw
from graphweft import run
from graphweft.data.dataset import Dataset
from graphweft.data.readers import registry
from graphweft.data.readers.assemble import ReadOptions
from graphweft.train import options, steps
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.option_table import options_of
from graphweft.train.spec import TrainSpec

ROOT = Path(__file__).resolve().parents[1]


class NextClass(MiniBatch):
    """Predicts the class after that of a node."""

    def _loss(self, logits: Tensor, seeds: Tensor, norm: Tensor | None = None) -> tuple[Tensor, Tensor]:
        leaf = logits.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(leaf, (self.ds.y[seeds] + 1) % self.ds.num_classes)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        return {**super().identity(), "task": "next"}


@pytest.fixture
def next_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two lines that name a task."""
    monkeypatch.setitem(options.LABELS_OF, "next", "nodes")
    monkeypatch.setattr(options, "TASKS", tuple(name for name in options.LABELS_OF if name != "unsupervised"))
    monkeypatch.setitem(steps._KINDS, "next", NextClass)


@pytest.mark.usefixtures("next_task")
def test_a_task_is_a_class_and_two_lines(tmp_path: Path) -> None:
    ds = gw.synthetic("cora", scale=0.1, seed=0)
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes)
    drawn: dict[str, Any] = {"mode": "mini", "fanouts": (4, 4), "batch_size": 40}
    trainer = gw.Trainer(model, ds, task="next", out=tmp_path, eval_every=15, **drawn)
    trainer.fit(15)
    found = trainer.predict()[ds.train_idx]
    labels = ds.y[ds.train_idx]
    assert (found == (labels + 1) % ds.num_classes).double().mean() > 0.8 > 0.2 > (found == labels).double().mean()
    assert torch.equal(gw.load_run(tmp_path).predict(ds), trainer.predict())
    assert torch.load(tmp_path / "last.pt", weights_only=True)["config"]["task"] == "next"


@pytest.mark.usefixtures("next_task")
def test_the_command_trains_it(tmp_path: Path) -> None:
    spec = TrainSpec(
        data="cora", scale=0.1, task="next", mode="mini", fanouts="4,4", model="sage", epochs=2, out=str(tmp_path)
    )
    summary = run.run(spec)
    assert (summary["task"], summary["epochs"], summary["num_classes"]) == ("next", 2, 7)


def is_json_edges(names: list[str]) -> bool:
    """A folder with a file ``edges.json``."""
    return "edges.json" in names


def read_json_edges(folder: Path, options: ReadOptions) -> Dataset:
    """Pairs of ids, and a number of nodes."""
    read = json.loads((folder / "edges.json").read_text())
    src, dst = torch.tensor(read["edges"]).T
    graph, nothing = gw.Graph(src, dst, num_nodes=read["nodes"]), torch.empty(0, dtype=torch.int64)
    y = torch.full((read["nodes"],), -1)
    return Dataset(options.name or "edges", graph, None, y, nothing, nothing, nothing, num_classes=0)


def test_a_format_is_two_functions_and_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FOLDERS", (*registry.FOLDERS, (is_json_edges, read_json_edges)))
    edges = [[0, 1], [2, 1], [3, 0], [1, 2]]
    (tmp_path / "edges.json").write_text(json.dumps({"nodes": 4, "edges": edges}))
    ds = gw.load(tmp_path)
    expected = sp.csr_matrix((np.ones(4), np.array(edges).T), (4, 4))
    src, dst = ds.graph.edges()
    found = sp.csr_matrix((np.ones(4), (src.numpy(), dst.numpy())), (4, 4))
    assert np.array_equal(found.toarray(), expected.toarray())
    (tmp_path / "edges.json").write_text("{")
    with pytest.raises(gw.errors.DataError, match=f"^{re.escape(str(tmp_path))}: expected an undamaged dataset"):
        gw.load(tmp_path)


def test_an_option_that_the_trainer_has_as_well_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(run, "Trainer", lambda model, ds, **keywords: given.update(keywords) or _Made())
    spec = TrainSpec(mode="mini", accumulate=3, clip=0.5, ema=0.9, edge_data="ignore", cuda_graphs="off", patience=4)
    run.make_trainer(spec, gw.synthetic("cora", scale=0.05, seed=0), torch.nn.Linear(1, 1))
    made_of_others = {"out", "fanouts", "macro", "metrics", "model", "ranks"}
    shared = set(options_of(TrainSpec)) & run._KEYWORDS - made_of_others
    assert len(shared) > 25 and {"accumulate", "clip", "ema", "edge_data", "cuda_graphs", "patience"} <= shared
    assert {name: given[name] for name in shared} == {name: getattr(spec, name) for name in shared}


class _Made:
    """A trainer that does nothing."""

    mode = "mini"


PAGES = sorted((ROOT / "docs").glob("architecture*.md"))
ROOMS = ("graphweft", "csrc", "tests", "docs", "benchmarks", ".ci")
MADE = {"model.cpp", "lib/first_use.json"}  # by a program that is written, and by compiling
FILE = re.compile(r"[\w./-]+\.(?:py|h|cpp|cu|md|txt|json)")


def _code_of(page: Path) -> set[str]:
    """What a page has between backticks, but for examples of names."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {text for text in re.findall(r"`([^`\n]+)`", prose) if "NAME" not in text}


def _files() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.*")}


def test_every_file_that_the_pages_name_is_there() -> None:
    named = {text for page in PAGES for text in _code_of(page) if FILE.fullmatch(text)}
    ends = {"/".join(path.split("/")[-count:]) for path in _files() for count in range(1, len(path.split("/")) + 1)}
    assert len(named) > 300 and sorted(named - ends - MADE) == []


def test_every_name_in_the_pages_is_in_the_code() -> None:
    named = {text for page in PAGES for text in _code_of(page) if not FILE.fullmatch(text)}
    words = {word for text in named for word in re.findall(r"[A-Za-z_]\w*", text)}
    kinds = {".py", ".h", ".cpp", ".cu", ".json", ".txt"}
    known = {Path(path).stem for path in _files()}.union(
        *(re.findall(r"[A-Za-z_]\w*", (ROOT / path).read_text(encoding="utf-8", errors="replace"))
          for path in _files() if Path(path).suffix in kinds)
    )  # fmt: skip
    assert len(words) > 300 and sorted(words - known) == []
