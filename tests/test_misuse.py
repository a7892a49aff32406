"""Wrong uses that a newcomer tries: one line with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft import cli

NODES = {"id": ["a", "b", "c"], "age": [1, 2, 3], "fraud": ["no", "yes", "no"]}
EDGES = {"source": ["a", "b"], "target": ["b", "c"]}


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.02, seed=0)


def _trainer(ds: gw.Dataset, **options: Any) -> gw.Trainer:
    return gw.Trainer(gw.nn.GCN(ds.num_features, 4, ds.num_classes), ds, **options)


WRONG: dict[str, tuple[Callable[[gw.Dataset], Any], str]] = {
    "labels of tables": (
        lambda ds: gw.Dataset.from_tables(NODES, EDGES, labels="fraud"),  # type: ignore[call-arg]
        r"Dataset\.from_tables: expected label in place of labels",
    ),
    "a slip in tables": (
        lambda ds: gw.Dataset.from_tables(NODES, EDGES, wieght="fraud"),  # type: ignore[call-arg]
        r"Dataset\.from_tables\(\) got an unexpected keyword argument 'wieght'; did you mean 'weight'\?",
    ),
    "labels of a dataset": (
        lambda ds: gw.Dataset("a", ds.graph, ds.x, labels=ds.y),  # type: ignore[call-arg]
        "Dataset: expected y in place of labels",
    ),
    "a slip in a dataset": (
        lambda ds: gw.Dataset("a", ds.graph, ds.x, ds.y, train_ids=[0]),  # type: ignore[call-arg]
        r"Dataset\(\) got an unexpected keyword argument 'train_ids'; did you mean 'train_idx'\?",
    ),
    "class ids with large gaps": (
        lambda ds: gw.Dataset("a", ds.graph, ds.x, ds.y.masked_fill(ds.y == 1, 1_000_000)),
        r"y: expected class ids from 0 without large gaps, got \d+ different ones up to 1000000; np\.unique",
    ),
    "a slip in a built-in function's field, with the user's line": (
        lambda ds: gw.update_all(ds.graph, gw.fn.copy_u("hh", "m"), gw.fn.sum("m", "h"), ndata={"h": ds.y.float()}),
        r"edges\.src\['hh'\]: .* got 'hh'.*\(.*test_misuse\.py:\d+\)$",
    ),
    "a slip in a built-in reduction's field, with the user's line": (
        lambda ds: gw.update_all(ds.graph, gw.fn.copy_u("h", "m"), gw.fn.sum("mm", "h"), ndata={"h": ds.y.float()}),
        r"nodes\.mailbox\['mm'\]: .* got 'mm'.*\(.*test_misuse\.py:\d+\)$",
    ),
    "features as one tensor": (
        lambda ds: gw.Dataset("a", ds.graph, features=ds.x),
        "features: expected a dict by node type, got Tensor; x= takes the features of all nodes",
    ),
    "a device that is not there": (
        lambda ds: _trainer(ds, device="gpu"),
        r"device: expected a device of this machine \(cpu.*\), got 'gpu'",
    ),
    "a class as model": (
        lambda ds: gw.Trainer(gw.nn.GCN, ds),  # type: ignore[arg-type]
        r"Trainer: expected model as a torch\.nn\.Module, got the class GCN",
    ),
    "names of PyTorch Geometric": (
        lambda ds: gw.nn.GAT(in_channels=4, hidden_channels=8, out_channels=2),
        "GAT: expected in_features in place of in_channels",
    ),
    "number of layers": (lambda ds: gw.nn.GCN(4, 8, 2, layers=3), "GCN: expected num_layers in place of layers"),
    "width of node2vec": (
        lambda ds: gw.nn.Node2Vec(ds.graph, embedding_dim=16),  # type: ignore[call-arg]
        "Node2Vec: expected width in place of embedding_dim",
    ),
    "a loader's slip": (
        lambda ds: gw.Loader(ds, fanouts=[2], batchsize=3),
        r"Loader\.__init__\(\) got an unexpected keyword argument 'batchsize'; did you mean 'batch_size'\?",
    ),
    "a link loader's slip": (
        lambda ds: gw.LinkLoader(ds, negative="tail"),
        r"'negative'; did you mean 'negatives'\?",
    ),
    "probabilities by another name": (
        lambda ds: _trainer(ds).predict(proba=True),  # type: ignore[call-arg]
        r"Trainer\.predict: expected probabilities in place of proba",
    ),
    "inspection of a name": (lambda ds: gw.inspect("cora"), r"inspect: expected a dataset, got str; gw\.load\(name\)"),  # type: ignore[arg-type]
    "inspection of a number": (lambda ds: gw.inspect(3), r"got int; gw\.Dataset\(name, graph\) makes one"),  # type: ignore[arg-type]
    "features without a graph": (
        lambda ds: gw.nn.GCN(ds.num_features, 4, 2)(ds.x),
        r"GCN: expected a graphweft Graph first, .* got Tensor; call model\(graph, x\)",
    ),
    "arguments in the order of PyTorch Geometric": (
        lambda ds: gw.nn.GCN(ds.num_features, 4, 2)(ds.x, torch.stack(ds.graph.edges())),
        r"got Tensor; call model\(graph, x\), and gw\.Graph\(edge_index\) makes a graph$",
    ),
    "features of NumPy": (
        lambda ds: gw.nn.GCN(ds.num_features, 4, 2)(ds.graph, ds.x.numpy()),
        r"GCN: expected features as a tensor or SparseFeatures, got ndarray; torch\.from_numpy\(x\) makes a tensor$",
    ),
    "a slip in a setting": (
        lambda ds: gw.config(optlevel=0).__enter__(),
        "expected fields of Config, got optlevel; did you mean opt_level$",
    ),
    "a setting that is none": (lambda ds: gw.config(zzz=0).__enter__(), "got zzz; they are opt_level, "),
    "a folder that is not there": (
        lambda ds: ds.save("/nosuch/a.npz"),
        r"/nosuch/a\.npz: expected a place to write to, got: No such file or directory$",
    ),
    "a field that is not there": (
        lambda ds: gw.update_all(ds.graph, gw.fn.copy_u("hh", "m"), gw.fn.sum("m", "h"), ndata={"h": ds.y.float()}),
        r"expected one of the source fields \('h'\), got 'hh'",
    ),
    "roots of negative sums": (
        lambda ds: _trainer(
            gw.Dataset("w", ds.graph, ds.x, ds.y, edge_weight=-torch.ones(ds.num_edges))
        ).fit(1),
        "edge weights go down to -1, and GCN takes roots of their sums",
    ),
}  # fmt: skip


@pytest.mark.parametrize("use", WRONG)
def test_wrong_use_names_the_remedy(ds: gw.Dataset, use: str) -> None:
    call, text = WRONG[use]
    with pytest.raises((gw.errors.GraphWeftError, TypeError), match=text) as caught:
        call(ds)
    assert "\n" not in str(caught.value)


def test_rows_in_place_of_a_dataset(ds: gw.Dataset, tmp_path: Path) -> None:
    _trainer(ds, out=tmp_path).fit(1)
    with pytest.raises(gw.errors.ConfigError, match=r"got list; predict\(\)\[ids\] are those of some nodes"):
        gw.load_run(tmp_path, ds=ds).predict([0, 1])  # type: ignore[arg-type]
    with pytest.raises(gw.errors.ConfigError, match=r"got Graph; gw\.Dataset\(name, graph, x\) makes one of it$"):
        gw.load_run(tmp_path, ds=ds).predict(ds.graph)  # type: ignore[arg-type]
    with pytest.raises(gw.errors.DataError, match="expected data, got the folder of a run, which graphweft evaluate, "):
        gw.load(tmp_path)


def test_names_of_a_module_of_ones_own_are_its_own() -> None:
    class Mine(gw.nn.GCN):
        def __init__(self, num_classes: int) -> None:
            super().__init__(4, 8, num_classes)

    assert Mine(num_classes=3).out_features == 3


def test_labels_of_one_class_give_a_warning(ds: gw.Dataset) -> None:
    one = gw.Dataset("one", ds.graph, ds.x, torch.zeros(ds.num_nodes, dtype=torch.int64), num_classes=2)
    with pytest.warns(
        gw.errors.DataWarning, match="one: all 120 labels of the training split are class 0; nothing is to be"
    ):
        gw.Trainer(gw.nn.GCN(ds.num_features, 4, 2), one)


def test_a_device_that_the_command_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("the machine has one")
    assert cli.main(["train", "--data", "cora", "--scale", "0.05", "--epochs", "1", "--device", "cuda"]) == 2
    assert "--device: expected a device of this machine (cpu), got 'cuda'" in capsys.readouterr().err


def test_resume_without_a_run_says_that_a_new_one_begins(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["train", "--data", "cora", "--scale", "0.05", "--epochs", "2", "--out", str(tmp_path / "a"), "--resume"]
    assert cli.main(options) == 0
    first = capsys.readouterr().err
    assert cli.main([*options, "--epochs", "3"]) == 0
    second = capsys.readouterr().err
    text = "holds no run to resume; a new one begins"
    assert first.count(text) == 1 and text not in second
