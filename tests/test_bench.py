from __future__ import annotations

import csv
from pathlib import Path

import pytest

from graphweft._errors import ConfigError
from graphweft.data.synthetic import synthetic
from graphweft.measure import bench


def test_every_system_agrees_and_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_geometric")
    ds = synthetic("default", scale=0.02, seed=3)
    out = tmp_path / "results" / "bench.csv"
    records = bench.main(ds, hidden=8, layers=2, rounds=3, epochs=2, out=out)
    assert [record["system"] for record in records] == ["graphweft", "pyg edge_index", "pyg CSR"]
    assert all(record["epochs"] == 6 for record in records)
    assert records[0]["times_ours"] == 1.0
    table = capsys.readouterr().out
    assert f"{ds.num_nodes:,} nodes" in table
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["system"] for row in rows] == [record["system"] for record in records]
    assert all(row["processor"] and row["threads"] for row in rows)


def test_sparse_features_and_several_labels_agree_too() -> None:
    pytest.importorskip("torch_geometric")
    sparse = bench.compare(synthetic("corafull", scale=0.01), hidden=4, layers=2, rounds=1, epochs=1)
    assert [row.features for row in sparse] == ["sparse", "dense", "sparse"]
    several = bench.compare(synthetic("ppi", scale=0.005), hidden=4, layers=3, rounds=1, epochs=1)
    assert len(several) == 3


@pytest.mark.parametrize("model", ["sage", "gin", "gat", "gatv2"])
def test_built_in_models_begin_as_those_of_pyg(model: str) -> None:
    pytest.importorskip("torch_geometric")
    rows = bench.compare(synthetic("default", scale=0.01), hidden=4, layers=2, rounds=1, epochs=1, model=model)
    assert [row.system for row in rows] == ["graphweft", "pyg edge_index"]  # whose first losses agree


_LAYER = """
import torch
from torch_geometric.nn import MessagePassing

class Layer(MessagePassing):
    def __init__(self, a, b):
        super().__init__(aggr="mean")
        self.lin = torch.nn.Linear(a, b)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

class Bare(torch.nn.Module):
    def forward(self, x):
        return x
"""


def test_a_layer_from_a_file_is_compared_with_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    file = tmp_path / "layer_of_mine.py"
    file.write_text(_LAYER)
    ds = synthetic("default", scale=0.01)
    rows = bench.compare(ds, hidden=4, layers=2, rounds=1, epochs=1, model=f"{file}:Layer")
    assert [row.system for row in rows] == ["graphweft", "as written"]
    wrong = {
        "gatt": "expected one of gcn, sage, gin, gat, gatv2, or a layer as my_layer.py:Layer, got 'gatt'",
        f"{file}:Lay": r"expected a class of modules in .*Layer",
        f"{tmp_path / 'no.py'}:Layer": "expected a file",
        f"{file}:Bare": r"expected a layer called as layer\(x, edge_index\)",
    }
    for given, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            bench.compare(ds, hidden=4, model=given)


def test_another_result_is_refused() -> None:
    bench.refcheck({"a": [1.0, 2.0], "b": [1.0005, 2.0]}, "a")
    with pytest.raises(bench.BenchError, match="b: expected loss 2 in epoch 1, as a has, got nan"):
        bench.refcheck({"a": [1.0, 2.0], "b": [1.0, float("nan")]}, "a")


def test_a_file_with_other_columns_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    bench.write_csv(path, [{"a": 1, "b": 2}])
    bench.write_csv(path, [{"a": 3, "b": 4}])
    bench.write_csv(path, [{"a": 5, "c": 6}])
    assert path.read_text().split() == ["a,b", "1,2", "3,4"]
    assert (tmp_path / "rows-2.csv").read_text().split() == ["a,c", "5,6"]
