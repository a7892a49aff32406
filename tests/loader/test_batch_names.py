"""The names that code written for PyTorch Geometric and DGL asks loaders and batches for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft._errors import ConfigError, GraphError, IndexRangeError, ShapeError
from graphweft.loader.batch import Batch

pytest.importorskip("torch_geometric")
from torch_geometric.data import Data, HeteroData

LIKES, LIKED = ("user", "likes", "film"), ("film", "liked", "user")


def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(60, 5, generator=generator),
        y=torch.arange(60) % 4,
        edge_index=torch.randint(0, 60, (2, 400), generator=generator),
        edge_attr=torch.rand(400, 3, generator=generator),
        edge_weight=torch.rand(400, generator=generator),
        pos=torch.rand(60, 2, generator=generator),
        train_mask=torch.arange(60) % 3 == 1,
    )


def films() -> HeteroData:
    generator, out = torch.Generator().manual_seed(1), HeteroData()
    out["user"].x, out["film"].x = torch.randn(20, 4, generator=generator), torch.randn(9, 6, generator=generator)
    out["film"].y, out["film"].train_mask = torch.arange(9) % 2, torch.arange(9) % 2 == 1
    ends = torch.stack(
        [torch.randint(0, 20, (80,), generator=generator), torch.randint(0, 9, (80,), generator=generator)]
    )
    out[LIKES].edge_index, out[LIKED].edge_index = ends, ends.flip(0)
    out[LIKES].edge_attr = torch.rand(80, 2, generator=generator)
    out[LIKES].edge_weight = torch.rand(80, generator=generator)
    out[LIKES].time, out[LIKED].time = torch.arange(80), torch.arange(80)
    return out


def first(**options: Any) -> Batch:
    return next(iter(gw.Loader(gw.from_pyg(data()), fanouts=[4, 3], batch_size=8, prefetch=0, **options)))


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other)


def test_names_are_those_of_pyg_data_with_the_same_tensors() -> None:
    batch, there = first(), data()
    assert {"x", "y", "edge_index", "edge_attr", "edge_weight", "pos", "train_mask", "n_id", "e_id", "input_id"} == set(
        batch.keys()
    )
    twin = Data.from_dict(batch.to_dict())  # PyTorch Geometric's own answers about the same tensors
    assert twin.num_nodes == batch.num_nodes and twin.num_edges == batch.num_edges
    assert twin.num_features == batch.num_features == batch.num_node_features == 5
    assert twin.num_edge_features == batch.num_edge_features == 3
    assert twin.validate() and batch.validate()
    for name in ("x", "y", "pos", "train_mask"):
        assert name in batch and same(batch[name], there[name][batch.n_id])
    for name in ("edge_attr", "edge_weight"):
        assert name in batch and same(batch[name], there[name][batch.e_id])
    assert "adj_t" not in batch and 0 not in batch and dict(iter(batch)).keys() == batch.to_dict().keys()
    assert batch.root_n_id.tolist() == list(range(8)) and batch.num_graphs == 1
    with pytest.raises(GraphError, match=r"or a name among .*, got 'adj_t'"):
        batch["adj_t"]


def test_names_can_be_assigned_and_go_where_the_batch_goes() -> None:
    batch = first()
    batch.y = batch.y.float()
    batch.extra = torch.ones(3)
    batch.note = "two"
    assert batch.y.dtype == torch.float32 and "extra" in batch and batch.note == "two"
    batch["later"] = torch.zeros(2)
    twin = copy.copy(batch)
    twin.y = None
    assert twin.y is None and "y" not in twin and batch.y is not None
    del batch.extra
    assert batch.extra is None and "extra" not in batch
    assert batch.to("meta").later.device.type == batch.y.device.type == "meta"
    with pytest.raises(AttributeError):
        batch.num_nodes = 5


def test_other_edges_are_not_ignored_by_the_graphs_of_a_batch() -> None:
    batch = first()
    kept = batch.edge_index[:, :5]
    batch.edge_index = kept
    assert batch.num_edges == 5
    for name in ("blocks", "subgraph"):
        with pytest.raises(GraphError, match=f"{name}: expected edge_index as it was sampled"):
            getattr(batch, name)
    with pytest.raises(ShapeError, match="expected 5 rows, one per edge"):
        batch.validate()
    batch.edge_index = torch.full((2, 5), 999)
    with pytest.raises(IndexRangeError, match="got 999"):
        batch.validate()
    with pytest.warns(UserWarning, match="got 999"):
        assert not batch.validate(raise_on_error=False)


def test_only_the_named_tensors_move() -> None:
    batch = first().to("meta", "edge_index", "y", non_blocking=True)
    there = data().to("meta", "edge_index", "y", non_blocking=True)
    names = ["x", "y", "edge_index", "edge_attr", "pos"]
    assert [batch[n].device.type for n in names] == [there[n].device.type for n in names]
    assert batch.to("meta", "edge_attr", "x")["x"].device.type == "meta" and batch.pos.device.type == "cpu"
    assert batch.to("cpu", "adj_t" if "adj_t" in batch else "batch") is batch  # a usual name that is not there
    with pytest.raises(ConfigError, match="got 'edge_atr'"):
        batch.to("cpu", "edge_atr")
    with pytest.raises(ConfigError, match="write non_blocking"):
        batch.to("cpu", True)
    typed = next(iter(gw.Loader(gw.from_pyg(films()), "film", [3], batch_size=4))).to("meta", "edge_index", "x")
    other = films().to("meta", "edge_index", "x")
    for key, name in (("user", "x"), (LIKES, "edge_index"), (LIKES, "edge_attr"), ("film", "y")):
        assert typed[key][name].device.type == other[key][name].device.type, (key, name)


def test_clones_have_tensors_of_their_own() -> None:
    batch = first()
    twin = batch.clone()
    x, ids = batch.x.clone(), batch.n_id.clone()
    twin.x.zero_()
    twin.n_id.zero_()
    assert same(batch.x, x) and same(batch.n_id, ids)
    typed = next(iter(gw.Loader(gw.from_pyg(films()), "film", [3], batch_size=4)))
    typed["film"].seen = torch.ones(1)
    other = typed.clone()
    other["film"].x.zero_()
    other["film"].seen.zero_()
    assert typed["film"].x.abs().sum() > 0 and typed["film"].seen.tolist() == [1.0]


def test_pinning_needs_an_accelerator() -> None:
    if torch.accelerator.is_available():
        assert first().pin_memory().x.is_pinned()
    else:
        with pytest.warns(UserWarning, match="no accelerator"):
            first().pin_memory()


def test_seeds_of_a_mask_are_told_by_node_id() -> None:
    parts, mask = gw.from_pyg(data()), data().train_mask
    for seeds in (mask, mask.numpy(), mask.tolist()):
        for batch in gw.Loader(parts, seeds, [2], batch_size=7, shuffle=True):
            assert same(batch.input_id, batch.n_id[: batch.batch_size])  # as get_input_nodes of PyTorch Geometric
            assert same(data().y[batch.input_id], batch.y[: batch.batch_size])
    ids = mask.nonzero().reshape(-1)
    for batch in gw.Loader(parts, ids, [2], batch_size=7, shuffle=True):
        assert same(ids[batch.input_id], batch.n_id[: batch.batch_size])
    typed = gw.from_pyg(films())
    for batch in gw.Loader(typed, ("film", films()["film"].train_mask), [2], batch_size=3):
        assert same(batch["film"].input_id, batch["film"].n_id[: batch["film"].batch_size])


def test_typed_batches_collect_any_name() -> None:
    typed, there = gw.from_pyg(films()), films()
    batch = next(iter(gw.Loader(typed, ("film", [1, 4]), [3, 3], batch_size=2)))
    assert batch.metadata() == there.metadata() and batch.input_type == "film"
    assert batch.num_features == there.num_features
    assert set(batch.n_id_dict) == {"user", "film"} and batch.num_nodes_dict == {
        name: batch[name].num_nodes for name in ("film", "user")
    }
    assert same(batch.y_dict["film"], there["film"].y[batch["film"].n_id])
    assert same(batch.edge_weight_dict[LIKES], there[LIKES].edge_weight[batch[LIKES].e_id])
    assert batch["user", "film"] is batch[LIKES] and batch["likes"] is batch[LIKES]
    assert "film" in batch and LIKES in batch and "x" in batch["film"] and "y" not in batch["user"]
    with pytest.raises(AttributeError):
        batch.nothing_dict  # noqa: B018
    twin = HeteroData.from_dict(batch.to_dict())
    assert twin.metadata()[0] == list(batch.node_types) and twin["film"].num_nodes == batch["film"].num_nodes


def test_trees_and_times_by_type() -> None:
    typed = gw.from_pyg(films())
    times = {relation: films()[relation].time for relation in (LIKES, LIKED)}
    sampler = gw.sampling.SegmentSampler(typed.graph, [3, 2], time=times)
    loader = gw.Loader(typed, ("film", [2, 5, 2]), sampler=sampler, time=[70, 60, 30], batch_size=3)
    (batch,) = loader
    assert batch["film"].seed_time.tolist() == [70, 60, 30] and "seed_time" not in batch["user"]
    for name in ("film", "user"):
        start = typed.graph.layout.node_range(name).start
        for place, (node, tree) in enumerate(zip(batch[name].n_id.tolist(), batch[name].batch.tolist(), strict=True)):
            flat = int(batch.typed.order[batch.typed.graph.layout.node_range(name).start + place])
            assert int(batch.n_id[flat]) == node + start and int(batch.batch[flat]) == tree
    assert set(batch.batch_dict) == {"film", "user"} and batch.num_graphs == 3
    view = batch[LIKES]
    src, dst = view.edge_index
    assert same(batch["user"].batch[src], batch["film"].batch[dst])  # an edge stays in its tree
    with pytest.raises(GraphError, match=r"batch\.batch has every"):
        batch.ptr  # noqa: B018


@pytest.mark.parametrize("negatives", ["binary", "tail", "triplet"])
@pytest.mark.parametrize("timed", [False, True])
def test_link_batches_by_relation(negatives: str, timed: bool) -> None:
    there, typed = films(), gw.from_pyg(films())
    ends = there[LIKES].edge_index[:, :30]
    times = {relation: there[relation].time for relation in (LIKES, LIKED)} if timed else None
    loader = gw.LinkLoader(
        typed, (LIKES, ends), fanouts=[2], batch_size=10, negatives=negatives, time=times,
        edge_label_time=torch.arange(30) if timed else None,
    )  # fmt: skip
    for batch in loader:
        users, items, view = batch["user"].n_id, batch["film"].n_id, batch[LIKES]
        wanted = ends[:, batch.input_id]
        assert batch.input_type == LIKES and same(view.input_id, batch.input_id)
        if negatives == "triplet":
            src, pos = batch["user"].src_index, batch["film"].dst_pos_index
            flat = batch.dst_neg_index
            neg = batch["film"].dst_neg_index
            assert same(items[neg] + 20, batch.n_id[flat]) or same(items[neg], batch.n_id[flat])
        else:
            src, pos = view.edge_label_index[:, : batch.batch_size]
            assert same(view.edge_label, batch.edge_label)
            every = view.edge_label_index
            film0, user0 = (typed.graph.layout.node_range(name).start for name in ("film", "user"))
            assert same(users[every[0]] + user0, batch.n_id[batch.edge_label_index[0]])
            assert same(items[every[1]] + film0, batch.n_id[batch.edge_label_index[1]])
        assert same(torch.stack([users[src], items[pos]]), wanted)


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (torch.ones(40), 1.0),
        (torch.arange(40) % 3, None),
        (torch.ones(40, dtype=torch.bool), 1),
        (torch.full((40,), 2), 2),
    ],
)
def test_labels_rise_only_if_the_least_is_zero(labels: torch.Tensor, positive: float | None) -> None:
    """As link_loader.py of PyTorch Geometric: ``if edge_label.min() == 0: edge_label = edge_label + 1``."""
    parts = gw.from_pyg(data())
    wanted = labels + 1 if labels.min() == 0 else labels
    seen = []
    for batch in gw.LinkLoader(parts, data().edge_index[:, :40], labels, [2], batch_size=9):
        count = batch.batch_size
        assert same(batch.edge_label[:count], wanted[batch.input_id].to(batch.edge_label.dtype))
        assert not batch.edge_label[count:].any() and batch.edge_label.numel() == 2 * count
        seen += batch.edge_label[:count].tolist()
    assert positive is None or set(seen) == {positive}
    for batch in gw.LinkLoader(parts, data().edge_index[:, :40], labels, [2], batch_size=9, negatives="none"):
        assert same(batch.edge_label, labels[batch.input_id])


def test_graphs_of_a_batch_have_the_named_tensors() -> None:
    batch, there = first(), data()
    for block in batch.blocks:
        assert same(block.edata["edge_weight"], there.edge_weight[block.e_id])
        assert same(block.edata["edge_attr"], there.edge_attr[block.e_id])
        assert same(block.srcdata["pos"], there.pos[block.src_ids])
        assert same(block.dstdata["train_mask"], there.train_mask[block.dst_ids])
    assert same(batch.subgraph.edata["edge_weight"], batch.edge_weight)
    assert same(batch.subgraph.ndata["pos"], batch.pos)
    summed = gw.update_all(  # weighted sums over the seeds' edges, by hand and by the block
        batch.blocks[-1], lambda e: {"m": e.data["w"] * e.src["h"]}, lambda n: {"h": n.mailbox["m"].sum(1)},
        ndata={"h": (batch.x[: batch.blocks[-1].num_src], batch.x[: batch.blocks[-1].num_dst])},
        edata={"w": batch.blocks[-1].edata["edge_weight"][:, None]},
    )["h"]  # fmt: skip
    src, dst = batch.blocks[-1].edges()
    by_hand = torch.zeros(8, 5).index_add_(0, dst, batch.blocks[-1].edata["edge_weight"][:, None] * batch.x[src])
    assert torch.allclose(summed, by_hand, atol=1e-5)


def test_loaders_are_called_with_places() -> None:
    parts = gw.from_pyg(data())
    loader = gw.Loader(parts, torch.tensor([7, 3, 9]), [2], batch_size=2)
    assert loader.data is parts and loader([2, 0]).n_id[:2].tolist() == [9, 7]
    batches = list(gw.Loader(parts, torch.tensor([7, 3, 9]), [2], batch_size=2))
    assert same(loader([0, 1]).e_id, batches[0].e_id)
    with pytest.raises(IndexRangeError, match="got 3"):
        loader([3])
    links = gw.LinkLoader(parts, data().edge_index[:, :9], fanouts=[2], batch_size=4)
    assert links.data is parts and links([5]).input_id.tolist() == [5]
    with pytest.raises(ConfigError, match="expected iteration"):
        gw.macro.MultistageLoader(parts, [1, 2], (2,), 1, macro=gw.macro.LargeBatch(1))([0])


def test_a_relation_that_the_fan_outs_lack_is_left_out() -> None:
    typed = gw.from_pyg(films())
    one = next(iter(gw.Loader(typed, ("film", [1, 2]), {LIKES: [3, 2]}, batch_size=2)))
    two = next(iter(gw.Loader(typed, ("film", [1, 2]), {LIKES: [3, 2], LIKED: [0, 0]}, batch_size=2)))
    assert same(one.n_id, two.n_id) and same(one.e_id, two.e_id) and one[LIKED].num_edges == 0
    with pytest.raises(ConfigError, match="one relation at least"):
        gw.Loader(typed, ("film", [1]), {})
    with pytest.raises(GraphError, match=r"got .*'lkies'"):
        gw.Loader(typed, ("film", [1]), {("user", "lkies", "film"): [1]})


def test_no_workers_means_in_place() -> None:
    parts = gw.from_pyg(data())
    assert gw.Loader(parts, fanouts=[2], workers=0).way.workers == 0
    with pytest.raises(ConfigError, match="prefetch=4 cannot be combined with workers=0"):
        gw.Loader(parts, fanouts=[2], workers=0, prefetch=4)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("indices", "seeds"),
        ("graph_sampler", "sampler, or fanouts"),
        ("item_set", "seeds"),
        ("use_uva", "batches are made on the CPU"),
    ],
)
def test_keywords_of_dgl_are_answered(name: str, answer: str) -> None:
    with pytest.raises(ConfigError, match=rf"{answer}.* in place of {name}"):
        gw.Loader(gw.from_pyg(data()), **{name: [1]})


def test_a_sampler_in_the_place_of_fan_outs() -> None:
    parts = gw.from_pyg(data())
    with pytest.raises(ConfigError, match="NeighborSampler; write sampler="):
        gw.Loader(parts, [1], gw.sampling.NeighborSampler(parts.graph, [2]))
