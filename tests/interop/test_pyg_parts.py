"""Nothing that PyTorch Geometric's objects hold gets lost on the way, and all of it comes back."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import graphweft as gw
from graphweft._errors import ConfigError, DataError, DtypeError, GraphError, IndexRangeError
from graphweft.interop.parts import GraphParts

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData, TemporalData
from torch_geometric.transforms import RandomLinkSplit, ToSparseTensor

N, E = 6, 9
WRITES, CITES, BACK = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "rev_writes", "author")


def edges() -> Tensor:
    """Unsorted, with parallel edges and a loop."""
    return torch.tensor([[5, 0, 0, 3, 2, 0, 1, 4, 3], [1, 2, 2, 0, 2, 5, 0, 1, 1]])


def rows(count: int, *width: int) -> Tensor:
    return torch.rand(count, *width, generator=torch.Generator().manual_seed(count))


def mask(*ids: int, of: int = N) -> Tensor:
    out = torch.zeros(of, dtype=torch.bool)
    out[list(ids)] = True
    return out


def full() -> Data:
    return Data(
        x=rows(N, 4),
        edge_index=edges(),
        edge_attr=rows(E, 3),
        edge_weight=rows(E),
        edge_type=torch.arange(E) % 3,
        y=torch.arange(N).reshape(N, 1),
        pos=rows(N, 2),
        node_year=torch.arange(N),
        train_mask=mask(0, 3),
        val_mask=mask(1),
        test_mask=mask(2, 5),
        name="toy",
        scale=torch.tensor(3.0),
        edge_label_index=torch.tensor([[0, 1], [2, 3]]),
        edge_label=torch.tensor([1.0, 0.0]),
    )


def hetero() -> HeteroData:
    data = HeteroData()
    data["paper"].x, data["paper"].y = rows(4, 3), torch.tensor([0, 1, -1, 1])
    data["paper"].train_mask, data["paper"].val_mask = mask(0, 2, of=4), mask(1, of=4)
    data["paper"].test_mask = mask(3, of=4)
    data["paper"].year = torch.tensor([2001, 2003, 1999, 2020])
    data["author"].num_nodes = 3
    data["venue"].x = rows(2, 5)
    data[WRITES].edge_index = torch.tensor([[2, 0, 0, 1, 0], [3, 1, 1, 0, 2]])
    data[WRITES].edge_attr, data[WRITES].time = rows(5, 2), torch.arange(5)
    data[CITES].edge_index = torch.tensor([[0, 3, 1], [1, 0, 1]])
    data[CITES].edge_weight = rows(3)
    data[BACK].edge_index = torch.zeros(2, 0, dtype=torch.long)
    data[CITES].edge_label_index, data[CITES].edge_label = torch.tensor([[0], [2]]), torch.ones(1)
    data.note = "toy"
    return data


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    return bool(one == other)


def flattened(data: Any) -> dict[Any, Any]:
    stored = data.to_dict()
    if not isinstance(data, HeteroData):
        return dict(stored)
    whole = {key: value for key, value in stored.pop("_global_store").items()}
    return whole | {(kind, key): value for kind, store in stored.items() for key, value in store.items()}


def same(one: Any, other: Any, declared: bool = True) -> None:
    """Every entry of ``one`` is in ``other``, which has no more than numbers of nodes beside."""
    mine, theirs = flattened(one), flattened(other)
    more = {key for key in theirs.keys() - mine.keys() if "num_nodes" not in (key, *key[1:])}
    assert mine.keys() <= theirs.keys() and not more
    assert [key for key in mine if not alike(mine[key], theirs[key])] == []


def test_all_of_a_data_comes_back() -> None:
    data = full()
    parts = gw.from_pyg(data)
    same(data, gw.interop.to_pyg(parts))
    assert torch.equal(torch.stack(parts.graph.edges()), data.edge_index)
    assert set(parts.graph.edata) == {"edge_attr", "edge_weight", "edge_type"}
    assert {"pos", "node_year"} <= set(parts.graph.ndata)
    assert set(parts.extra) == {"name", "scale", "edge_label_index", "edge_label"}
    assert [ids.tolist() for ids in (parts.train_idx, parts.val_idx, parts.test_idx)] == [[0, 3], [1], [2, 5]]


def test_all_of_a_hetero_data_comes_back() -> None:
    data = hetero()
    parts = gw.from_pyg(data)
    same(data, gw.interop.to_pyg(parts))
    start = parts.graph.layout.node_range("paper").start
    assert [(ids - start).tolist() for ids in (parts.train_idx, parts.val_idx, parts.test_idx)] == [[0, 2], [1], [3]]
    assert torch.equal(parts.edge_tables[WRITES]["edge_attr"], data[WRITES].edge_attr)
    assert torch.equal(parts.node_tables["paper"]["year"], data["paper"].year)
    assert parts.extra["note"] == "toy" and torch.equal(parts.extra[CITES, "edge_label"], torch.ones(1))


def test_batches_have_the_edge_tensors_of_their_relations() -> None:
    data, parts = hetero(), gw.from_pyg(hetero())
    batch = next(iter(gw.Loader(parts, fanouts=[-1, -1], batch_size=2)))
    for relation, name in ((WRITES, "edge_attr"), (CITES, "edge_weight"), (WRITES, "time")):
        assert torch.equal(getattr(batch[relation], name), data[relation][name][batch[relation].e_id])
    assert batch[CITES].edge_attr is None and set(batch.edge_attr_dict) == {WRITES}
    assert torch.equal(batch["paper"].year, data["paper"].year[batch["paper"].n_id])
    assert torch.equal(batch["paper"].train_mask[:2], torch.tensor([True, True]))


@pytest.mark.parametrize("form", ["mask", "idx", "index", "valid", "uint8"])
def test_splits_in_every_form(form: str) -> None:
    ids, data = torch.tensor([4, 1]), Data(edge_index=edges(), num_nodes=N)
    if form in ("idx", "index"):
        data[f"val_{form}"] = ids
    elif form == "valid":
        data.valid_mask = mask(4, 1)
    else:
        data.val_mask = mask(4, 1).to(torch.uint8 if form == "uint8" else torch.bool)
    found = gw.from_pyg(data)
    assert sorted(found.val_idx.tolist()) == [1, 4] and found.train_idx is None
    assert form not in ("idx", "index") or found.val_idx.tolist() == [4, 1]
    assert gw.interop.to_pyg(found).val_mask.nonzero().reshape(-1).tolist() == [1, 4]


def test_one_of_several_splits_is_chosen_and_none_by_silence() -> None:
    several = torch.stack([mask(0), mask(1, 2), mask(5)], dim=1)
    data = Data(edge_index=edges(), num_nodes=N, train_mask=several, val_mask=several.roll(1, 1), test_mask=mask(4))
    with pytest.warns(UserWarning, match=r"^from_pyg: several splits in train_mask, val_mask; none is taken, split=0"):
        parts = gw.from_pyg(data)
    assert parts.train_idx is None and parts.test_idx.tolist() == [4]
    assert torch.equal(parts.graph.ndata["train_mask"], several)
    chosen = gw.from_pyg(data, split=1)
    assert chosen.train_idx.tolist() == [1, 2] and chosen.val_idx.tolist() == [0] and chosen.test_idx.tolist() == [4]
    with pytest.raises(ConfigError, match=r"expected split in \[0, 3\), as train_mask holds, got 3"):
        gw.from_pyg(data, split=3)
    assert gw.from_pyg(Data(edge_index=edges(), num_nodes=N, train_mask=several[:, :1])).train_idx.tolist() == [0]


def test_splits_that_come_apart_from_the_data() -> None:
    given = {"train": torch.tensor([5, 0]), "valid": np.array([1]), "test": mask(2)}
    parts = gw.from_pyg(full(), split=given)
    assert [ids.tolist() for ids in (parts.train_idx, parts.val_idx, parts.test_idx)] == [[5, 0], [1], [2]]
    typed = gw.from_pyg(hetero(), split={"train": {"paper": torch.tensor([3])}, "valid": {"paper": [0]}})
    start = typed.graph.layout.node_range("paper").start
    assert typed.train_idx.tolist() == [start + 3] and typed.val_idx.tolist() == [start] and typed.test_idx is None
    masks = [parts.graph.ndata[f"{part}_mask"].nonzero().reshape(-1).tolist() for part in ("train", "val", "test")]
    assert masks == [[0, 5], [1], [2]]
    table = typed.node_tables["paper"]
    assert [table[f"{part}_mask"].sum().item() for part in ("train", "val", "test")] == [1, 1, 0]
    assert bool(table["train_mask"][3]) and set(table) == {"train_mask", "val_mask", "test_mask", "year"}
    with pytest.raises(ConfigError, match="expected split with train, val"):
        gw.from_pyg(full(), split={"holdout": [1]})
    with pytest.raises(IndexRangeError, match="got 6 at position 0"):
        gw.from_pyg(full(), split={"train": [6]})


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "torch_sparse"])
@pytest.mark.parametrize("valued", ["weight", "ones", "columns"])
def test_adjacencies_keep_their_values(layout: str, valued: str) -> None:
    src, dst = torch.tensor([[0, 3, 1, 4, 2], [1, 1, 0, 2, 5]])
    values = {"weight": rows(5), "ones": torch.ones(5), "columns": rows(5, 2)}[valued]
    if layout in ("csr", "csc") and valued == "columns":
        pytest.skip("torch converts no such matrix")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adj_t: Any = torch.sparse_coo_tensor(torch.stack([dst, src]), values, (N, N, *values.shape[1:]))
        if layout == "torch_sparse":
            adj_t = SimpleNamespace(coo=lambda: (dst, src, None if valued == "ones" else values))
        elif layout != "coo":
            adj_t = adj_t.coalesce().to_sparse_csr() if layout == "csr" else adj_t.coalesce().to_sparse_csc()
    data = Data(x=rows(N, 2))
    data.adj_t = adj_t
    if layout == "torch_sparse":
        data.num_nodes = N
    found = gw.from_pyg(data).graph
    name = {"weight": "edge_weight", "columns": "edge_attr"}.get(valued)
    assert set(found.edata) == ({name} if name else set())
    a, b = found.edges()
    ends = enumerate(zip(a.tolist(), b.tolist(), strict=True))
    mine = {(i, j): found.edata[name][at].tolist() if name else 1 for at, (i, j) in ends}
    wanted = zip(src.tolist(), dst.tolist(), values.tolist(), strict=True)
    assert mine == {(i, j): value if name else 1 for i, j, value in wanted}


def test_transforms_of_torch_geometric_change_no_edge() -> None:
    data = Data(
        x=rows(N, 2), edge_index=torch.tensor([[0, 3, 1], [1, 1, 0]]), edge_weight=rows(3), edge_attr=rows(3, 2)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        turned = gw.from_pyg(ToSparseTensor()(data.clone())).graph
        both = gw.from_pyg(ToSparseTensor(remove_edge_index=False)(data.clone())).graph
    for found in (turned, both):
        a, b = found.edges()
        at = {(i, j): k for k, (i, j) in enumerate(zip(*data.edge_index.tolist(), strict=True))}
        order = [at[i, j] for i, j in zip(a.tolist(), b.tolist(), strict=True)]
        assert torch.equal(found.edata["edge_weight"], data.edge_weight[order])
        assert torch.equal(found.edata["edge_attr"], data.edge_attr[order])
    unlabelled = Data(x=data.x, edge_index=edges(), edge_attr=rows(E, 2))
    parts = gw.from_pyg(RandomLinkSplit(num_val=0.2, is_undirected=False)(unlabelled)[0])
    assert parts.extra["edge_label_index"].shape[0] == 2 and "edge_label" in parts.extra
    loader = gw.LinkLoader(parts, parts.extra["edge_label_index"], fanouts=[2], negatives="none", exclude="none")
    assert next(iter(loader)).batch_size == parts.extra["edge_label_index"].shape[1]


def test_edge_indices_arrays_and_rows_of_any_kind() -> None:
    index = EdgeIndex(edges(), sparse_size=(N, N))
    data = Data(x=np.asarray(rows(N, 2)), edge_index=index, weight_of_node=np.arange(N), h=rows(N, 3).half())
    parts = gw.from_pyg(data)
    assert type(parts.graph.edges()[0]) is Tensor and torch.equal(torch.stack(parts.graph.edges()), edges())
    assert torch.equal(parts.x, rows(N, 2)) and parts.graph.ndata["h"].dtype == torch.float16
    assert parts.graph.ndata["weight_of_node"].tolist() == list(range(N))
    learned = Data(x=rows(N, 2).requires_grad_(), edge_index=edges())
    assert not gw.from_pyg(learned).x.requires_grad
    sparse = Data(edge_index=edges(), num_nodes=N)
    sparse.x = sp.csr_matrix(np.eye(N, 3, dtype=np.float32))
    assert torch.equal(gw.from_pyg(sparse).x.to_dense(), torch.eye(N, 3))


def test_as_many_nodes_as_edges() -> None:
    data = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), x=rows(3, 1), edge_attr=rows(3, 2), pos=rows(3, 4))
    found = gw.from_pyg(data).graph
    assert set(found.edata) == {"edge_attr"} and set(found.ndata) == {"pos"}


def test_a_batch_of_graphs_keeps_their_borders() -> None:
    graphs = [Data(x=rows(k, 2), edge_index=torch.tensor([[0], [k - 1]]), y=torch.tensor([k % 2])) for k in (1, 3, 2)]
    batch = Batch.from_data_list(graphs)
    parts = gw.from_pyg(batch)
    assert parts.graph_ptr.tolist() == [0, 1, 4, 6] and parts.dataset().num_rows == 3
    again = gw.interop.to_pyg(parts)
    assert torch.equal(again.batch, batch.batch) and torch.equal(again.ptr, batch.ptr)
    on_nodes = Batch.from_data_list([Data(x=rows(2, 2), edge_index=torch.tensor([[0], [1]]), y=torch.ones(2))] * 3)
    kept = gw.from_pyg(on_nodes)
    assert kept.graph_ptr is None and torch.equal(kept.graph.ndata["batch"], on_nodes.batch)
    assert torch.equal(kept.extra["ptr"], on_nodes.ptr)


def test_events_become_edges_with_times() -> None:
    events = TemporalData(src=torch.tensor([0, 1, 0]), dst=torch.tensor([3, 3, 2]), t=torch.tensor([5, 7, 9]))
    events.msg = rows(3, 4)
    parts = gw.from_pyg(events)
    assert parts.graph.num_nodes == 4 and set(parts.graph.edata) == {"t", "msg"}
    sampler = gw.sampling.SegmentSampler(parts.graph, [2], time=parts.graph.edata["t"])
    assert sampler.sample([3], time=[6]).e_id.tolist() == [0]


LABELS = {
    "ids": (torch.tensor([0, 2, 1]), [0, 2, 1], 3, "classification"),
    "one column": (torch.tensor([[0], [2], [1]]), [0, 2, 1], 3, "classification"),
    "whole floats": (torch.tensor([[0.0], [float("nan")], [1.0]]), [0, -1, 1], 2, "classification"),
    "bools": (torch.tensor([True, False, True]), [1, 0, 1], 2, "classification"),
    "several": (torch.tensor([[1, 0], [0, 0], [1, 1]]), [[1, 0], [0, 0], [1, 1]], 2, "multilabel"),
    "values": (torch.tensor([0.5, 1.0, 2.0]), [[0.5], [1.0], [2.0]], 1, "regression"),
    "negative": (torch.tensor([-7, 0, 1]), [-1, 0, 1], 2, "classification"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_every_kind_make_a_dataset(kind: str) -> None:
    y, wanted, classes, task = LABELS[kind]
    parts = gw.from_pyg(Data(x=rows(3, 2).double(), edge_index=torch.tensor([[0], [1]]), y=y))
    ds = parts.dataset(kind)
    assert torch.equal(parts.y, y) or kind == "whole floats"
    assert ds.y.tolist() == wanted and ds.num_classes == classes and ds.task == task and ds.x.dtype == torch.float32


def test_a_dataset_trains() -> None:
    ds = gw.from_pyg(full()).dataset()
    assert ds.edge_features.shape == (E, 3) and ds.edge_weight.shape == (E,)
    with pytest.warns(gw.errors.DataWarning, match="edge_features not used by SAGE"):
        trainer = gw.Trainer(gw.nn.SAGE(4, 8, N, num_layers=2), ds, mode="mini", fanouts=(2, 2), batch_size=2)
    assert len(trainer.fit(epochs=1)) == 1
    with pytest.warns(UserWarning) as told:
        typed = gw.from_pyg(hetero()).dataset()
    texts = " ".join(str(each.message) for each in told)
    for name in ("edge_attr of one width", "edge_weight of one width", "year of paper", "time of author-writes-paper"):
        assert name in texts
    assert typed.target_type == "paper" and typed.num_classes == 2
    start = typed.graph.layout.node_range("paper").start
    assert typed.y[start : start + 4].tolist() == [0, 1, -1, 1] and int((typed.y >= 0).sum()) == 3
    back = gw.interop.to_pyg(typed)
    assert torch.equal(back["paper"].y, hetero()["paper"].y) and "y" not in back["venue"]
    assert torch.equal(back["paper"].train_mask, hetero()["paper"].train_mask)


def test_edge_tables_alike_on_every_relation_are_one_table() -> None:
    data = hetero()
    for relation in data.edge_types:
        data[relation].edge_attr = rows(data[relation].num_edges, 2)
    del data[CITES].edge_weight, data[WRITES].time, data["paper"].year
    ds = gw.from_pyg(data).dataset()
    assert torch.equal(ds.edge_features, torch.cat([data[relation].edge_attr for relation in ds.graph.relations]))


def test_named_tensors_of_a_typed_graph_go_to_their_types() -> None:
    graph = gw.Graph.hetero({WRITES: ([0, 1], [2, 0]), CITES: ([0], [1])}, {"author": 2, "paper": 3})
    graph.ndata["h"], graph.edata["w"] = torch.arange(5), torch.arange(3)
    data = gw.interop.to_pyg(graph, train_idx=torch.tensor([3]), y=torch.arange(5), edge_attr={CITES: torch.ones(1, 2)})
    assert data["paper"].train_mask.tolist() == [False, True, False] and "train_mask" not in data["author"]
    assert data["paper"].y.tolist() == [2, 3, 4] and data[CITES].edge_attr.shape == (1, 2)
    assert data["author"].h.tolist() == [0, 1] and data[WRITES].w.tolist() == [0, 1] and data[CITES].w.tolist() == [2]
    with pytest.raises(ConfigError, match="expected pos of a typed graph as a dict by type or relation"):
        gw.interop.to_pyg(graph, pos=torch.ones(5))
    with pytest.raises(ConfigError, match="expected y by node type or relation, got 'venue'"):
        gw.interop.to_pyg(graph, y={"venue": torch.ones(1)})


def test_types_without_a_number_of_nodes() -> None:
    data = HeteroData()
    data["a", "to", "b"].edge_index = torch.tensor([[4, 0], [1, 2]])
    assert gw.from_pyg(data).graph.num_nodes == 8
    data["b"].y = torch.arange(7)
    parts = gw.from_pyg(data)
    assert len(parts.graph.layout.node_range("b")) == 7 and parts.labels["b"].tolist() == list(range(7))


BAD = {
    "mask": (lambda d: setattr(d, "train_mask", mask(0, of=5)), GraphError, "train_mask with 6 rows, one per node"),
    "ids": (lambda d: setattr(d, "train_idx", torch.tensor([9])), IndexRangeError, "got 9 at position 0"),
    "twice": (lambda d: setattr(d, "train_idx", torch.tensor([1])), GraphError, "to name the same rows"),
    "attr": (lambda d: setattr(d, "edge_attr", rows(4, 2)), GraphError, "edge_attr with 9 rows, one per edge"),
    "x": (lambda d: (setattr(d, "num_nodes", 6), setattr(d, "x", rows(5, 2))), GraphError, "x with 6 rows"),
    "text": (lambda d: setattr(d, "x", "nothing"), DtypeError, "expected x as a matrix, got str"),
    "none": (lambda d: setattr(d, "edge_index", None), GraphError, "expected edge_index or a sparse adj_t, got none"),
    "dense": (lambda d: (setattr(d, "edge_index", None), setattr(d, "adj_t", rows(6, 6))), DtypeError, "sparse matrix"),
}


@pytest.mark.parametrize("kind", BAD)
def test_parts_that_do_not_fit_are_one_line(kind: str) -> None:
    damage, error, text = BAD[kind]
    data = full()
    damage(data)
    with pytest.raises(error, match=text) as told:
        gw.from_pyg(data)
    assert "\n" not in str(told.value) and str(told.value).startswith("from_pyg: ")


def test_typed_parts_that_do_not_fit_name_their_type() -> None:
    data = hetero()
    data[CITES].edge_attr = rows(2, 2)
    with pytest.raises(GraphError, match=r"^from_pyg: paper-cites-paper: expected edge_attr with 3 rows"):
        gw.from_pyg(data)
    data = hetero()
    data["paper"].y = torch.arange(2)
    with pytest.raises(GraphError, match=r"^from_pyg: paper: expected y with 4 rows"):
        gw.from_pyg(data)


def test_datasets_that_cannot_be() -> None:
    data = hetero()
    data["venue"].train_mask, data["venue"].y = mask(0, of=2), torch.tensor([0, 1])
    with pytest.raises(DataError, match="expected labels on one node type, got labels on paper, venue"):
        gw.from_pyg(data).dataset()
    graph = gw.Graph([0], [1])
    with pytest.raises(DataError, match="y: expected class ids in one column, or 0 and 1 in several"):
        GraphParts(graph, y=torch.tensor([[1, 2], [3, 4]])).dataset()
    with pytest.raises(DataError, match="y: expected 2 rows"):
        GraphParts(graph, y=torch.tensor([1])).dataset()
