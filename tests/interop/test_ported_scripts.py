"""Scripts as people write them for PyTorch Geometric, on small graphs, with our loaders in place of theirs."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import graphweft as gw
from graphweft._errors import ConfigError, DtypeError, GraphError, IndexRangeError

pytest.importorskip("torch_geometric")
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import GraphConv, HeteroConv, SAGEConv
from tqdm import tqdm

N, E, CLASSES = 200, 2400, 3
CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
WRITTEN, AT = ("paper", "written_by", "author"), ("author", "at", "place")


def data() -> Data:
    generator = torch.Generator().manual_seed(3)
    part = torch.randint(0, 3, (N,), generator=generator)
    y = torch.randint(0, CLASSES, (N,), generator=generator)
    return Data(
        x=torch.randn(N, 8, generator=generator) + 2 * F.one_hot(y, 8),
        edge_index=torch.randint(0, N, (2, E), generator=generator),
        edge_attr=torch.rand(E, 2, generator=generator),
        edge_weight=torch.rand(E, generator=generator),
        time=torch.randint(0, 100, (E,), generator=generator),
        y=y[:, None],
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
    )


def papers() -> HeteroData:
    generator, out = torch.Generator().manual_seed(4), HeteroData()
    out["paper"].x, out["author"].x = torch.randn(60, 8, generator=generator), torch.randn(40, 8, generator=generator)
    out["paper"].y, out["paper"].train_mask = torch.arange(60) % CLASSES, torch.arange(60) % 3 == 0
    out["place"].num_nodes = 5
    counts = {"paper": 60, "author": 40, "place": 5}
    for relation in (CITES, WRITES, WRITTEN, AT):
        ends = [torch.randint(0, counts[kind], (150,), generator=generator) for kind in relation[::2]]
        out[relation].edge_index, out[relation].edge_attr = torch.stack(ends), torch.rand(150, 2, generator=generator)
        out[relation].time = torch.randint(0, 50, (150,), generator=generator)
    return out


class Sage(nn.Module):
    def __init__(self, width: int = 16, out: int = CLASSES) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(8, width), SAGEConv(width, out)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)

    @torch.no_grad()
    def inference(self, whole: Tensor, loader: Any) -> Tensor:
        for conv in self.convs:
            rows = []
            for batch in loader:
                h = conv(whole[batch.n_id.to(whole.device)], batch.edge_index)[: batch.batch_size]
                rows.append(h.relu() if conv is self.convs[0] else h)
            whole = torch.cat(rows)
        return whole


def test_sage_on_products_with_inference_by_layers() -> None:
    torch.manual_seed(0)
    graph = data()
    parts = gw.from_pyg(graph)
    loader = gw.Loader(parts, parts.train_idx, fanouts=[10, 5], batch_size=16, shuffle=True, workers=2)
    model, losses = Sage(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(8):
        total = seen = 0
        for batch in tqdm(loader, disable=True):
            batch = batch.to("cpu", non_blocking=True)
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size].squeeze(1))
            loss.backward()
            optimizer.step()
            total, seen = total + float(loss.detach()) * batch.batch_size, seen + batch.batch_size
        assert seen == int(graph.train_mask.sum()) and len(loader) == -(-seen // 16)
        losses.append(total / seen)
    assert losses[-1] < 0.6 * losses[0]
    everyone = gw.Loader(parts, torch.arange(N), fanouts=[-1], batch_size=64)
    assert torch.allclose(model.inference(graph.x, everyone), model(graph.x, graph.edge_index), atol=1e-5)


def test_clusters_and_saint_mask_what_is_trained_on() -> None:
    graph = data()
    parts = gw.from_pyg(graph)
    clusters = gw.sampling.ClusterSampler(parts.graph, gw.partition(parts.graph, 8).part)
    seen = 0
    for batch in gw.Loader(parts, sampler=clusters, batch_size=2, shuffle=True):
        out = Sage()(batch.x, batch.edge_index)
        assert torch.isfinite(F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask].squeeze(1)))
        assert torch.equal(batch.train_mask, graph.train_mask[batch.n_id])
        seen += int(batch.train_mask.sum())
    assert seen == int(graph.train_mask.sum())
    conv = GraphConv(8, CLASSES, aggr="add")
    for batch in gw.Loader(parts, sampler=gw.sampling.SaintWalkSampler(parts.graph, 2, coverage=5), batch_size=20):
        losses = F.cross_entropy(conv(batch.x, batch.edge_index, batch.edge_norm), batch.y.squeeze(1), reduction="none")
        assert torch.isfinite((losses * batch.node_norm)[batch.train_mask].sum())


def test_links_with_labels_and_relations() -> None:
    parts = gw.from_pyg(data())
    batch = next(iter(gw.LinkLoader(parts, fanouts=[5, 5], batch_size=32, negatives="binary", amount=2, shuffle=True)))
    h = Sage(out=8)(batch.x, batch.edge_index)
    src, dst = batch.edge_label_index
    F.binary_cross_entropy_with_logits((h[src] * h[dst]).sum(-1), batch.edge_label).backward()
    assert batch.edge_label.tolist() == [1.0] * 32 + [0.0] * 64
    typed, some = gw.from_pyg(papers()), papers()[WRITES].edge_index[:, :20]
    given = gw.LinkLoader(typed, (WRITES, some), fanouts=[3], batch_size=20)
    named = gw.LinkLoader(typed, some, fanouts=[3], batch_size=20, relation=WRITES)
    one, other = next(iter(given)), next(iter(named))
    assert torch.equal(one.n_id, other.n_id) and torch.equal(one.edge_label_index, other.edge_label_index)


def test_papers_with_convolutions_by_relation() -> None:
    torch.manual_seed(0)
    graph = papers()
    parts = gw.from_pyg(graph)
    fanouts = {relation: [5, 3] for relation in graph.edge_types}
    loader = gw.Loader(parts, ("paper", graph["paper"].train_mask), fanouts, batch_size=8, shuffle=True)
    embedding = nn.Embedding(5, 8)
    layers = nn.ModuleList([HeteroConv({r: SAGEConv((-1, -1), 8) for r in graph.edge_types}) for _ in range(2)])
    head, seen = nn.Linear(8, CLASSES), []
    for batch in loader:
        x = {**batch.x_dict, "place": embedding(batch["place"].n_id)}
        for layer in layers:
            x = {kind: rows.relu() for kind, rows in layer(x, batch.edge_index_dict).items()}
        count = batch["paper"].batch_size
        F.cross_entropy(head(x["paper"])[:count], batch["paper"].y[:count]).backward()
        assert bool(batch["paper"].train_mask[:count].all())
        seen += batch["paper"].n_id[:count].tolist()
    assert sorted(seen) == graph["paper"].train_mask.nonzero().reshape(-1).tolist()
    everyone = gw.Loader(parts, "paper", fanouts=[2], batch_size=60)
    assert next(iter(everyone))["paper"].n_id[:60].tolist() == list(range(60))


def test_times_of_edges_relations_and_nodes() -> None:
    graph, parts = data(), gw.from_pyg(data())
    sampler = gw.sampling.SegmentSampler(parts.graph, [5, 3], time=parts.graph.edata["time"], strategy="recent")
    when = torch.full((parts.train_idx.numel(),), 40)
    for batch in gw.Loader(parts, parts.train_idx, sampler=sampler, time=when, batch_size=16):
        assert bool((batch.time <= 40).all()) and torch.equal(batch.time, graph.time[batch.e_id])
        assert batch.batch.numel() == batch.num_nodes
    typed = gw.from_pyg(papers())
    times = {relation: table["time"] for relation, table in typed.edge_tables.items()}
    flat = torch.cat([times[relation] for relation in typed.graph.relations])
    seeds, when = torch.arange(8), torch.full((8,), 25)
    by_relation = gw.sampling.SegmentSampler(typed.graph, [3, 2], time=dict(reversed(times.items()))).sample(
        seeds, time=when
    )
    assert torch.equal(
        by_relation.e_id, gw.sampling.SegmentSampler(typed.graph, [3, 2], time=flat).sample(seeds, time=when).e_id
    )
    links = gw.LinkLoader(typed, relation=CITES, fanouts=[2], time=times, batch_size=150, negatives="none")
    assert torch.equal(next(iter(links)).edge_label_time, times[CITES])
    of_nodes = torch.arange(N)
    sampler = gw.sampling.SegmentSampler(parts.graph, [-1], time=of_nodes[parts.graph.edges()[0]])
    sample = sampler.sample(torch.tensor([50, 150]), time=torch.tensor([50, 150]))
    assert bool((sample.n_id <= torch.tensor([50, 150])[sample.owner]).all())
    with pytest.raises(ConfigError, match="expected times for every relation, got none for paper-cites-paper"):
        gw.sampling.SegmentSampler(typed.graph, [2], time={WRITES: times[WRITES]})


@pytest.mark.parametrize("how", ["compiled", "autocast", "half"])
def test_models_run_as_they_do_elsewhere(how: str) -> None:
    graph = data()
    if how == "half":
        graph.x = graph.x.half()
    parts = gw.from_pyg(graph)
    model: Any = Sage()
    if how == "compiled":
        model = torch.compile(model, dynamic=True, backend="eager")
    for batch in gw.Loader(parts, parts.train_idx, fanouts=[5, 5], batch_size=32):
        assert torch.equal(batch.x, graph.x[batch.n_id])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
            out = model(batch.x.float(), batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size].squeeze(1))
        loss.backward()
        assert torch.isfinite(loss)


@pytest.mark.parametrize("before", [True, False])
def test_a_batch_goes_whole_to_a_device(before: bool) -> None:
    names = ["x", "y", "edge_index", "edge_attr", "edge_weight", "n_id", "e_id", "input_id", "train_mask", "time"]
    batch = next(iter(gw.Loader(gw.from_pyg(data()), fanouts=[4, 2], batch_size=16)))
    if before:
        assert all(getattr(batch, name).device.type == "cpu" for name in names)
    shapes = {name: getattr(batch.cpu(), name).shape for name in names}
    assert batch.to("meta", non_blocking=True) is batch
    assert {name: getattr(batch, name).shape for name in names} == shapes
    assert {getattr(batch, name).device.type for name in names} == {"meta"}
    typed = next(iter(gw.Loader(gw.from_pyg(papers()), fanouts=[3], batch_size=8)))
    if before:
        assert typed["paper"].x is typed["paper"].x
    typed.to("meta")
    views = [
        typed["paper"].x,
        typed["paper"].y,
        typed["paper"].n_id,
        typed["paper"].train_mask,
        typed["paper"].input_id,
    ]
    views += [typed[CITES].edge_index, typed[CITES].edge_attr, typed[CITES].e_id, typed[CITES].time]
    views += [*typed.x_dict.values(), *typed.edge_index_dict.values(), *typed.edge_attr_dict.values()]
    assert {rows.device.type for rows in views} == {"meta"}
    link = next(iter(gw.LinkLoader(gw.from_pyg(data()), fanouts=[2], batch_size=8))).to("meta", non_blocking=True)
    assert link.edge_label.device.type == link.edge_label_index.device.type == link.x.device.type == "meta"


def test_batches_are_copied_with_their_names() -> None:
    batch = next(iter(gw.Loader(gw.from_pyg(data()), fanouts=[4], batch_size=16)))
    for other in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert torch.equal(other.train_mask, batch.train_mask) and torch.equal(other.x, batch.x)
    typed = next(iter(gw.Loader(gw.from_pyg(papers()), fanouts=[3], batch_size=8)))
    assert torch.equal(pickle.loads(pickle.dumps(typed))[CITES].time, typed[CITES].time)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "data": (lambda: gw.Loader(data()), GraphError, r"got Data; gw.from_pyg\(data\) makes one of it"),
    "typed data": (lambda: gw.LinkLoader(papers()), GraphError, r"got HeteroData; gw.from_pyg\(data\)"),
    "train data": (lambda: gw.Trainer(Sage(), data()), ConfigError, r"got Data; gw.from_pyg\(data\).dataset\(\) makes"),
    "train parts": (lambda: gw.Trainer(Sage(), gw.from_pyg(data())), ConfigError, r"GraphParts; its .dataset\(\) is"),
    "no such word": (lambda: gw.Loader(gw.from_pyg(data()), fanout=[2]), TypeError, "unexpected keyword argument 'fan"),
    "weight": (lambda: gw.Loader(gw.from_pyg(data()), weight="edge_weight"), DtypeError, "weights as numbers.*got str"),
    "no type": (lambda: gw.Loader(gw.from_pyg(papers()), "pape"), GraphError, "one of the node types paper, author"),
    "types": (
        lambda: gw.Loader(gw.from_pyg(data()), ("paper", [1])),
        GraphError,
        "expected a typed graph for seeds",
    ),
    "local ids": (lambda: gw.Loader(gw.from_pyg(papers()), ("author", [40])), IndexRangeError, r"\[0, 40\), got 40"),
    "disjoint": (
        lambda: gw.sampling.InducedSampler(gw.sampling.SegmentSampler(gw.from_pyg(data()).graph, [2], disjoint=True)),
        ConfigError,
        "expected a sampler whose seeds share nodes",
    ),
    "owners": (
        lambda: gw.sampling.InducedSampler(gw.sampling.ShadowSampler(gw.from_pyg(data()).graph, [2])).sample([1]),
        ConfigError,
        "got one with owners",
    ),
    "name": (
        lambda: next(iter(gw.Loader(gw.from_pyg(data()), fanouts=[2]))).position,
        AttributeError,
        r"a tensor of the graph's \(train_mask.*\), got 'position'",
    ),
    "typed name": (
        lambda: next(iter(gw.Loader(gw.from_pyg(papers()), fanouts=[2])))["paper"].year,
        AttributeError,
        "a tensor of 'paper', one of train_mask, got 'year'",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_place_here_is_told_in_one_line(kind: str) -> None:
    make, error, text = REFUSED[kind]
    with pytest.raises(error, match=text) as told:
        make()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("pair", [(gw.Loader, NeighborLoader), (gw.LinkLoader, LinkNeighborLoader)], ids=str)
def test_every_keyword_of_their_loaders_is_ours_or_answered(pair: tuple[Any, Any]) -> None:
    mine, theirs = pair
    known = inspect.signature(theirs).parameters.keys() | inspect.signature(DataLoader).parameters.keys()
    own = inspect.signature(mine).parameters.keys()
    strange = known - own - {"data", "dataset", "kwargs", "in_order"}
    assert len(strange) > 20
    for name in strange:
        with pytest.raises(ConfigError, match=rf"^{mine.__name__}: expected .+ in place of {name}$") as told:
            mine(gw.from_pyg(data()), **{name: 1})
        for word in re.findall(r"(\w+)=", str(told.value).split(" in place of ")[0].split("(")[0]):
            assert word in own
