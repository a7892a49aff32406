"""DGL's graphs both ways: against DGL where it is installed, else the way in against an object of the same shape."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft._errors import ConfigError, DtypeError, GraphError, MissingPackageError

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
ENDS = {
    WRITES: (torch.tensor([2, 0, 0, 1]), torch.tensor([3, 1, 1, 0])),
    CITES: (torch.tensor([0, 3, 1]), torch.tensor([1, 0, 1])),
}


class Standin:
    """The part of a DGLGraph that is read."""

    is_block = False

    def __init__(self, ends: dict[Any, tuple[Tensor, Tensor]], counts: dict[str, int]) -> None:
        self.canonical_etypes, self.ntypes, self._ends, self._counts = list(ends), list(counts), ends, counts
        self.nodes = {kind: SimpleNamespace(data={}) for kind in counts}
        self.edges: Any = _Edges(ends)

    def num_nodes(self, kind: str) -> int:
        return self._counts[kind]

    def batch_num_nodes(self, kind: str) -> Tensor:
        return torch.tensor([self._counts[kind]])


class _Edges:
    def __init__(self, ends: dict[Any, tuple[Tensor, Tensor]]) -> None:
        self._ends, self._data = ends, {relation: SimpleNamespace(data={}) for relation in ends}

    def __call__(self, etype: Any, order: str) -> tuple[Tensor, Tensor]:
        assert order == "eid"
        return self._ends[etype]

    def __getitem__(self, relation: Any) -> Any:
        return self._data[relation]


def made(ends: dict[Any, tuple[Tensor, Tensor]], counts: dict[str, int]) -> Any:
    try:
        import dgl
    except ImportError:
        return Standin(ends, counts)
    return dgl.heterograph(ends, counts)


def plain() -> Any:
    graph = made({("_N", "_E", "_N"): (torch.tensor([3, 0, 0, 1]), torch.tensor([1, 2, 2, 0]))}, {"_N": 4})
    data = graph.nodes["_N"].data
    data["feat"], data["label"], data["x"] = torch.rand(4, 3), torch.arange(4), torch.rand(4, 2)
    data["train_mask"] = torch.tensor([True, False, True, False])
    data["val_mask"] = torch.tensor([0, 1, 0, 0], dtype=torch.uint8)
    graph.edges["_N", "_E", "_N"].data["w"] = torch.rand(4)
    return graph


def typed() -> Any:
    graph = made(ENDS, {"author": 3, "paper": 4})
    graph.nodes["paper"].data["feat"], graph.nodes["paper"].data["label"] = torch.rand(4, 3), torch.arange(4)
    graph.nodes["paper"].data["train_mask"] = torch.tensor([True, False, False, True])
    graph.nodes["author"].data["year"] = torch.arange(3)
    graph.edges[WRITES].data["time"] = torch.arange(4)
    return graph


def held(graph: Any) -> dict[Any, Tensor]:
    out = {(kind, name): t for kind in graph.ntypes for name, t in graph.nodes[kind].data.items()}
    for relation in graph.canonical_etypes:
        src, dst = graph.edges(etype=relation, order="eid")
        out[relation, "src"], out[relation, "dst"] = src, dst
        out.update({(relation, name): t for name, t in graph.edges[relation].data.items()})
    return out


def test_tensors_of_a_graph_find_their_places() -> None:
    graph = plain()
    parts, data = gw.interop.from_dgl(graph), graph.nodes["_N"].data
    assert [t.tolist() for t in parts.graph.edges()] == [[3, 0, 0, 1], [1, 2, 2, 0]]
    assert torch.equal(parts.x, data["feat"]) and torch.equal(parts.y, data["label"])
    assert torch.equal(parts.graph.ndata["x"], data["x"])
    assert torch.equal(parts.graph.edata["w"], graph.edges["_N", "_E", "_N"].data["w"])
    assert parts.train_idx.tolist() == [0, 2] and parts.val_idx.tolist() == [1] and parts.test_idx is None
    other = gw.interop.from_dgl(graph, split={"test": [3]}, features="x", labels="none")
    assert torch.equal(other.x, data["x"]) and other.y is None and other.test_idx.tolist() == [3]
    assert set(other.graph.ndata) == {"feat", "label", "train_mask", "val_mask", "test_mask"}
    assert not bool(other.graph.ndata["train_mask"].any())
    batch = next(iter(gw.Loader(parts, fanouts=[-1], batch_size=2)))
    assert torch.equal(batch.w, parts.graph.edata["w"][batch.e_id])


def test_tensors_of_types_and_relations_find_their_places() -> None:
    graph = typed()
    parts = gw.interop.from_dgl(graph)
    assert parts.graph.relations == (WRITES, CITES) and parts.graph.node_types == ("author", "paper")
    assert torch.equal(parts.features["paper"], graph.nodes["paper"].data["feat"])
    assert parts.labels["paper"].tolist() == [0, 1, 2, 3] and parts.node_tables["author"]["year"].tolist() == [0, 1, 2]
    assert parts.edge_tables[WRITES]["time"].tolist() == [0, 1, 2, 3] and parts.train_idx.tolist() == [3, 6]
    batch = next(iter(gw.Loader(parts, ("paper", [1]), fanouts=[-1])))
    assert batch[WRITES].time.tolist() == [1, 2]


@pytest.mark.parametrize("kind", [plain, typed])
def test_all_of_it_comes_back(kind: Any) -> None:
    pytest.importorskip("dgl")
    graph = kind()
    mine, back = held(graph), held(gw.interop.to_dgl(gw.interop.from_dgl(graph)))
    assert mine.keys() <= back.keys()
    assert all(torch.equal(tensor.to(back[key].dtype), back[key]) for key, tensor in mine.items())
    ds = gw.synthetic("default", scale=0.02)
    graph = gw.interop.to_dgl(ds)
    assert torch.equal(graph.ndata["feat"], ds.x) and torch.equal(graph.ndata["train_mask"], ds.train_mask)
    assert torch.equal(torch.stack(graph.edges(order="eid")), torch.stack(ds.graph.edges()))
    with pytest.warns(UserWarning, match="to_dgl: expected tensors of nodes and edges, got note, left out"):
        gw.interop.to_dgl(SimpleNamespace(graph=ds.graph, extra={"note": 1}))


def test_what_is_no_graph_of_dgl_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DtypeError, match="from_dgl: expected a DGLGraph, got int"):
        gw.interop.from_dgl(3)
    with pytest.raises(ConfigError, match="from_dgl: expected split as a number or a dict"):
        gw.interop.from_dgl(plain(), split="train")  # type: ignore[arg-type]
    block = Standin(ENDS, {"author": 3, "paper": 4})
    block.is_block = True
    with pytest.raises(GraphError, match="from_dgl: expected a graph, got a block"):
        gw.interop.from_dgl(block)
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(MissingPackageError, match="to_dgl: expected the package dgl, which is not installed"):
        gw.interop.to_dgl(gw.Graph([0], [1]))
