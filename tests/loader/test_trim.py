"""Hops of a batch, counted as PyTorch Geometric counts them: its models train on them trimmed layer by layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loader.test_loader import dataset
from loader.test_samplers import KINDS
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.loader.link import LinkLoader
from graphweft.loader.loader import Loader
from graphweft.sample.segment import SegmentSampler

WIDTH = 3
FILMS = {
    ("user", "likes", "film"): 300,
    ("film", "liked", "user"): 250,
    ("user", "knows", "user"): 200,
    ("film", "unused", "film"): 0,
}


def with_edges(seed: int = 0) -> tuple[Any, Tensor]:
    ds = dataset()
    attr = torch.randn(ds.num_edges, WIDTH, generator=torch.Generator().manual_seed(seed))
    ds.graph.edata["edge_attr"] = attr
    return ds, attr


def films() -> tuple[Graph, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    nodes = {"user": 60, "film": 40}
    edges = {
        (a, name, b): tuple(torch.randint(0, nodes[end], (count,), generator=generator) for end in (a, b))
        for (a, name, b), count in FILMS.items()
    }
    return Graph.hetero(edges, nodes), {name: torch.randn(n, 5, generator=generator) for name, n in nodes.items()}


def layers(nn: Any, kind: str) -> list[Any]:
    if kind == "sage":
        return [nn.SAGEConv(20, 8), nn.SAGEConv(8, 5)]
    if kind == "gat":
        return [nn.GATConv(20, 8, heads=2, edge_dim=WIDTH), nn.GATConv(16, 5, edge_dim=WIDTH)]
    return [nn.TransformerConv(20, 8, edge_dim=WIDTH), nn.TransformerConv(8, 5, edge_dim=WIDTH)]


def forward(convs: list[Any], x: Tensor, edge_index: Tensor, attr: Tensor, hops: Any = None) -> Tensor:
    trim = pytest.importorskip("torch_geometric.utils").trim_to_layer
    for i, conv in enumerate(convs):
        if hops is not None:
            x, edge_index, attr = trim(i, *hops, x, edge_index, attr)
        takes = {} if type(conv).__name__ == "SAGEConv" else {"edge_attr": attr}
        x = conv(x, edge_index, **takes)
        x = x.relu() if i == 0 else x
    return x


@pytest.mark.parametrize("fanouts", [[-1, -1], [4, 3]])
@pytest.mark.parametrize("kind", ["sage", "gat", "transformer"])
def test_trimmed_models_of_pyg_give_what_they_give_on_the_subgraph_itself(kind: str, fanouts: list[int]) -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    convs = layers(nn, kind)
    ds, attr = with_edges()
    src, dst = ds.graph.edges()
    whole = forward(convs, ds.x, torch.stack([src, dst]), attr)
    for batch in Loader(ds, fanouts=fanouts, batch_size=60):
        count, hops = batch.batch_size, (batch.num_sampled_nodes, batch.num_sampled_edges)
        assert sum(hops[0]) == batch.num_nodes and sum(hops[1]) == batch.num_edges  # type: ignore[arg-type]
        assert torch.equal(batch.edge_attr, attr[batch.e_id])  # type: ignore[arg-type]
        place = {node: i for i, node in enumerate(batch.n_id.tolist())}  # by hand, from the ids alone
        edges = [[place[int(end[e])] for e in batch.e_id] for end in (src, dst)]
        plain = forward(convs, ds.x[batch.n_id], torch.tensor(edges), attr[batch.e_id])
        found = forward(convs, batch.x, batch.edge_index, batch.edge_attr, hops)  # type: ignore[arg-type]
        assert found.shape[0] < batch.num_nodes
        torch.testing.assert_close(found[:count], plain[:count])
        mine, its = (torch.autograd.grad(out[:count].square().sum(), convs[0].parameters()) for out in (found, plain))
        for one, other in zip(mine, its, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        if fanouts == [-1, -1]:
            torch.testing.assert_close(found[:count], whole[batch.n_id[:count]])


def test_trimmed_typed_models_of_pyg() -> None:
    nn, utils = (pytest.importorskip(f"torch_geometric.{name}") for name in ("nn", "utils"))
    torch.manual_seed(0)
    graph, features = films()

    class Films:
        y = torch.arange(100)

        def __init__(self) -> None:
            self.graph, self.x, self.features, self.train_idx = graph, None, features, torch.arange(60, 100)

    convs = [nn.HeteroConv({r: nn.SAGEConv((-1, -1), width) for r in graph.relations}, aggr="sum") for width in (8, 3)]
    whole = {r: torch.stack(graph.relation_graph(r).edges()) for r in graph.relations}
    h = {name: rows.relu() for name, rows in convs[0](features, whole).items()}
    expected = convs[1](h, whole)["film"]
    for batch in Loader(Films(), fanouts=[-1, -1], batch_size=9):  # type: ignore[arg-type]
        nodes, edges = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        assert {name: sum(hops) for name, hops in nodes.items()} == {n: batch[n].num_nodes for n in nodes}
        assert {r: sum(hops) for r, hops in edges.items() if hops} == {r: batch[r].num_edges for r in edges}
        assert batch.edge_attr_dict == {}
        x, index = batch.x_dict, batch.edge_index_dict
        for i, conv in enumerate(convs):
            x, index, _ = utils.trim_to_layer(i, nodes, edges, x, index)
            x = conv(x, index)
            x = x if i else {name: rows.relu() for name, rows in x.items()}
        torch.testing.assert_close(x["film"], expected[batch["film"].n_id[: batch["film"].batch_size]])


def test_edges_of_every_hop_lead_into_its_nodes() -> None:
    ds, _ = with_edges()
    times = torch.arange(ds.num_edges)
    trees = SegmentSampler(ds.graph, [3, 2], disjoint=True)
    link = LinkLoader(ds, fanouts=[3, 2], batch_size=40, time=times)
    loaders = [Loader(ds, sampler=trees), Loader(ds, sampler=KINDS["layer"](ds.graph)), link]
    for loader in loaders:
        batch = next(iter(loader))  # type: ignore[call-overload]
        nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
        assert len(edges) == len(nodes) - 1 and sum(nodes) == batch.num_nodes and sum(edges) == batch.num_edges
        hop = torch.repeat_interleave(torch.arange(len(nodes)), torch.tensor(nodes))
        assert torch.equal(hop[batch.edge_index[1]].bincount(minlength=len(edges)), torch.tensor(edges))
    batch = next(iter(loaders[0]))  # type: ignore[call-overload]
    assert batch.batch is batch.owner is not None


def test_a_graph_for_all_layers_has_no_hops() -> None:
    ds = dataset()
    for kind in ("shadow", "saint-edge", "cluster", "walk"):
        batch = next(iter(Loader(ds, sampler=KINDS[kind](ds.graph), batch_size=8)))
        assert batch.num_sampled_edges is None
