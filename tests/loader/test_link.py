"""The link loader: what batches hold, what is hidden, exact negatives, resume, threads, failures."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader.test_loader import WAYS, dataset, pieces, same
from torch import Tensor
from zoo import random_edges

from graphweft._errors import CheckpointError, ConfigError, GraphError, IndexRangeError, ShapeError
from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.loader.link import LinkLoader
from graphweft.loader.link_batch import LinkBatch
from graphweft.sample.negative import NegativeSampler
from graphweft.sample.neighbor import NeighborSampler

NAMES = ("edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index", "negative_mask")


def everything(batch: LinkBatch) -> list[Tensor]:
    return [*pieces(batch), *(t for name in NAMES if (t := getattr(batch, name)) is not None)]


def epochs(loader: LinkLoader, count: int) -> list[list[Tensor]]:
    return [everything(batch) for _ in range(count) for batch in loader]


def pairs(index: Tensor, n_id: Tensor) -> list[tuple[int, int]]:
    return list(zip(*n_id[index].tolist(), strict=True))


def small(nodes: int = 40, edges: int = 300) -> Graph:
    ends = random_edges(nodes, edges, seed=5)
    return Graph(ends.src, ends.dst, nodes)


@pytest.mark.parametrize("exclude", ["none", "target", "both"])
@pytest.mark.parametrize("negatives", ["none", "binary", "tail", "triplet", "in-batch"])
def test_batches_join_the_right_nodes_and_hide_the_right_edges(negatives: str, exclude: str) -> None:
    graph = small()
    src, dst = (ends.tolist() for ends in graph.edges())
    edges = set(zip(src, dst, strict=True))
    targets = torch.randperm(graph.num_edges)[:90]
    index = torch.stack(graph.edges())[:, targets]
    amount = 1 if negatives in ("none", "in-batch") else 3
    options: dict[str, Any] = {"negatives": negatives, "exclude": exclude, "amount": amount}
    loader = LinkLoader(graph, index, fanouts=(-1, 4), batch_size=25, shuffle=True, **options)
    seen = []
    for batch in loader:
        count = batch.batch_size
        wanted = list(zip(*index[:, batch.input_id].tolist(), strict=True))
        hidden = set() if exclude == "none" else set(wanted)
        hidden |= {(v, u) for u, v in wanted} if exclude == "both" else set()
        passed = {(src[e], dst[e]) for e in batch.e_id.tolist()}
        assert not passed & hidden
        # with all neighbours of the ends, nothing else is missing
        ends = set(batch.n_id[: batch.num_seeds].tolist())
        assert {pair for pair in edges if pair[1] in ends} - hidden <= passed
        if negatives in ("triplet", "in-batch"):
            assert batch.edge_label_index is None and batch.src_index is not None and batch.dst_pos_index is not None
            joined = pairs(torch.stack([batch.src_index, batch.dst_pos_index]), batch.n_id)
        else:
            assert batch.edge_label_index is not None
            joined = pairs(batch.edge_label_index[:, :count], batch.n_id)
            assert int(batch.edge_label_index.max()) < batch.num_seeds
        assert joined == wanted
        negative: list[tuple[int, int]] = []
        if negatives in ("binary", "tail"):
            assert batch.edge_label is not None and batch.edge_label_index is not None
            negative = pairs(batch.edge_label_index[:, count:], batch.n_id)
            assert batch.edge_label.tolist() == [1.0] * count + [0.0] * (3 * count)
        if negatives == "triplet":
            assert batch.dst_neg_index is not None and batch.dst_neg_index.shape == (count, 3)
            tails = batch.n_id[batch.dst_neg_index].tolist()
            negative = [(u, v) for (u, _), row in zip(wanted, tails, strict=True) for v in row]
        if negatives == "tail":
            assert [u for u, _ in negative] == [u for u, _ in wanted for _ in range(3)]
        assert len(negative) == (3 * count if negatives in ("binary", "tail", "triplet") else 0)
        assert not set(negative) & edges and all(u != v for u, v in negative)
        if negatives == "in-batch":
            assert batch.negative_mask is not None
            for i, (u, _) in enumerate(wanted):
                for j, (_, v) in enumerate(wanted):
                    assert bool(batch.negative_mask[i, j]) == ((u, v) not in edges and u != v)
        seen += batch.input_id.tolist()
    assert sorted(seen) == list(range(90))


def test_all_edges_are_targets_unless_some_are_named() -> None:
    graph = small()
    loader = LinkLoader(graph, fanouts=(2,), batch_size=64, negatives="none")
    found = [pair for batch in loader for pair in pairs(batch.edge_label_index, batch.n_id)]  # type: ignore[arg-type]
    assert found == list(zip(*(ends.tolist() for ends in graph.edges()), strict=True))


def test_positives_outside_the_graph_are_no_negatives() -> None:
    """All pairs but (0, 1) and the reverse of (2, 0) are known, by the graph or as positives."""
    graph = Graph([0, 1, 1], [2, 2, 0], 3)
    loader = LinkLoader(graph, [[2], [1]], fanouts=(1,), amount=50)
    batch = next(iter(loader))
    assert batch.edge_label_index is not None
    assert set(pairs(batch.edge_label_index[:, 1:], batch.n_id)) == {(0, 1), (2, 0)}
    known = Graph([0, 1, 1, 2, 2], [2, 2, 0, 1, 0], 3)
    batch = next(iter(LinkLoader(graph, [[2], [1]], fanouts=(1,), amount=50, known=known)))
    assert batch.edge_label_index is not None
    assert set(pairs(batch.edge_label_index[:, 1:], batch.n_id)) == {(0, 1)}


def test_labels_of_the_user_move_up_by_one() -> None:
    graph = small()
    labels = torch.arange(graph.num_edges) % 4
    for batch in LinkLoader(graph, edge_label=labels, fanouts=(2,), batch_size=50, shuffle=True):
        assert batch.edge_label is not None
        assert batch.edge_label.tolist() == [*(labels[batch.input_id] + 1).tolist(), *([0] * batch.batch_size)]
    batch = next(iter(LinkLoader(graph, edge_label=labels, fanouts=(2,), negatives="none")))
    assert torch.equal(batch.edge_label, labels)  # type: ignore[arg-type]


def test_rows_hold_what_the_dataset_has() -> None:
    ds = dataset()
    for batch in LinkLoader(ds, fanouts=(4, 3), batch_size=500):
        assert torch.equal(batch.x, ds.x[batch.n_id]) and torch.equal(batch.y, ds.y[batch.n_id])  # type: ignore
        assert batch.blocks[-1].num_dst == batch.num_seeds


def test_every_way_of_preparing_gives_the_same_batches(threads_restored: None) -> None:
    ds = dataset(edges=2000)
    runs = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        for way in WAYS:
            options: dict[str, Any] = {"negatives": "triplet", "amount": 2, "exclude": "both"}
            runs.append(epochs(LinkLoader(ds, None, None, (5, 3), 300, True, 3, **options, **way), 2))
    assert all(same(runs[0], other) for other in runs[1:])


def timed(nodes: int = 30, edges: int = 200) -> tuple[Graph, Tensor]:
    return small(nodes, edges), torch.from_numpy(np.random.default_rng(3).integers(0, 40, edges))


@pytest.mark.parametrize("strategy", ["uniform", "recent"])
@pytest.mark.parametrize("negatives", ["none", "binary", "tail", "triplet"])
def test_no_neighbour_is_later_than_the_edge_to_predict(negatives: str, strategy: str) -> None:
    graph, time = timed()
    src, dst = graph.edges()
    options: dict[str, Any] = {"negatives": negatives, "strategy": strategy, "exclude": "both", "window": 25}
    amount = 1 if negatives == "none" else 2
    loader = LinkLoader(graph, fanouts=(-1, 3), batch_size=20, amount=amount, time=time, **options)
    for batch in loader:
        count, owner = batch.batch_size, batch._sample.owner
        assert owner is not None and batch.edge_label_time is not None
        assert torch.equal(batch.edge_label_time, time[batch.input_id])
        edge = torch.arange(count)
        heads = 2 if negatives in ("binary", "tail") else 0
        tails = 0 if negatives == "none" else 2
        edge = torch.cat([edge, edge.repeat_interleave(heads), edge, edge.repeat_interleave(tails)])
        assert batch.num_seeds == edge.numel()
        target = edge[owner[batch.edge_index[1]]]  # which edge to predict a message is for
        assert torch.equal(owner[batch.edge_index[0]], owner[batch.edge_index[1]])
        limit = batch.edge_label_time[target]
        assert bool((time[batch.e_id] <= limit).all()) and bool((time[batch.e_id] >= limit - 25).all())
        u, v = src[batch.input_id][target], dst[batch.input_id][target]
        for a, b in ((u, v), (v, u)):
            joins = (src[batch.e_id] == a) & (dst[batch.e_id] == b)
            assert bool((time[batch.e_id][joins] < limit[joins]).all())
        # all eligible in-edges of an end are there
        for tree in range(0, batch.num_seeds, 7):
            i = int(edge[tree])
            at, node = int(batch.edge_label_time[i]), int(batch.n_id[tree])
            ends = {(int(src[batch.input_id[i]]), int(dst[batch.input_id[i]]))}
            ends |= {pair[::-1] for pair in ends}
            able = [
                e
                for e in range(graph.num_edges)
                if int(dst[e]) == node
                and at - 25 <= int(time[e]) <= at
                and not ((int(src[e]), node) in ends and int(time[e]) == at)
            ]
            assert sorted(batch.e_id[batch.edge_index[1] == tree].tolist()) == sorted(able)


def film_graph() -> tuple[Graph, tuple[str, str, str], tuple[str, str, str]]:
    rng = np.random.default_rng(0)
    users, films = rng.integers(0, 12, 60), rng.integers(0, 9, 60)
    likes, liked = ("user", "likes", "film"), ("film", "liked", "user")
    friends = ("user", "knows", "user")
    edges = {friends: (rng.integers(0, 12, 30), rng.integers(0, 12, 30)), likes: (users, films), liked: (films, users)}
    return Graph.hetero(edges, {"user": 12, "film": 9}), likes, liked


@pytest.mark.parametrize("with_times", [False, True])
def test_a_relation_is_predicted_on_a_typed_graph(with_times: bool) -> None:
    graph, likes, liked = film_graph()
    src, dst = graph.edges()
    ids, turned = graph.layout.edge_range(likes), graph.layout.edge_range(liked)
    known = set(zip(src[ids.start : ids.stop].tolist(), dst[ids.start : ids.stop].tolist(), strict=True))
    options: dict[str, Any] = {"time": torch.arange(graph.num_edges)} if with_times else {}
    loader = LinkLoader(
        graph, fanouts=(-1, 2), batch_size=16, relation=likes, reverse_relation=liked, exclude="both", **options
    )
    assert loader.num_items == 60
    for batch in loader:
        assert batch.edge_label_index is not None
        joined = pairs(batch.edge_label_index, batch.n_id)
        positive, negative = joined[: batch.batch_size], joined[batch.batch_size :]
        assert positive == [(int(src[ids.start + i]), int(dst[ids.start + i])) for i in batch.input_id.tolist()]
        assert not set(negative) & known and all(u < 12 <= v < 21 for u, v in negative)
        if with_times:
            continue
        for edge in batch.e_id.tolist():
            pair = (int(src[edge]), int(dst[edge]))
            assert not (edge in ids and pair in positive)
            assert not (edge in turned and pair[::-1] in positive)


def test_neighbours_and_negatives_are_the_samplers_own_under_seed_and_epoch() -> None:
    graph = small()
    loader = LinkLoader(graph, fanouts=(2, 2), batch_size=50, amount=2, seed=6)
    own, neighbours, (src, dst) = NegativeSampler(graph), NeighborSampler(graph, [2, 2]), graph.edges()
    for epoch in range(2):
        for batch in loader:
            assert batch.edge_label_index is not None
            drawn = batch.n_id[batch.edge_label_index[:, batch.batch_size :]]
            assert torch.equal(drawn, own.pairs(batch.input_id, 2, seed=6, epoch=epoch, stage=1 << 32))
            left = (src[batch.input_id], dst[batch.input_id])
            sample = neighbours.sample(batch.n_id[: batch.num_seeds], seed=6, epoch=epoch, exclude=left)
            assert torch.equal(batch.e_id, sample.e_id)


def test_tails_are_the_samplers_own_wherever_their_edges_come() -> None:
    graph = small()
    loader = LinkLoader(graph, fanouts=(2,), batch_size=50, shuffle=True, amount=2, seed=6, negatives="tail")
    own, src = NegativeSampler(graph), graph.edges()[0]
    for batch in loader:
        assert batch.edge_label_index is not None
        drawn = batch.n_id[batch.edge_label_index[1, batch.batch_size :]].view(-1, 2)
        assert torch.equal(drawn, own.tails(src[batch.input_id], 2, keys=batch.input_id, seed=6, stage=1 << 32))


def test_trees_of_one_node_draw_apart() -> None:
    """Two targets between the same nodes at the same time: every end has a tree of its own, drawn for itself."""
    graph = Graph([*range(2, 12), *range(2, 12)], [0] * 10 + [1] * 10, num_nodes=12)
    options: dict[str, Any] = {"time": torch.zeros(20), "edge_label_time": torch.ones(2), "negatives": "none"}
    loader, drawn = LinkLoader(graph, [[0, 0], [1, 1]], fanouts=(2,), exclude="none", **options), []
    for _ in range(8):
        for batch in loader:
            assert batch.owner is not None
            tree = batch.owner[batch.edge_index[1]]
            drawn.append([sorted(batch.e_id[tree == owner].tolist()) for owner in range(4)])
    assert any(one != two for one, two, *_ in drawn) and any(one != two for *_, one, two in drawn)


@pytest.mark.parametrize("kind", ["timed", "typed"])
def test_every_epoch_draws_anew_where_segments_are_drawn_from(kind: str) -> None:
    options: dict[str, Any] = {"fanouts": (2, 2), "batch_size": 50, "negatives": "none"}
    if kind == "timed":
        graph, time = timed()
        loader = LinkLoader(graph, time=time, **options)
    else:
        graph, likes, _ = film_graph()
        loader = LinkLoader(graph, relation=likes, **options)
    one, two = ([batch.e_id.tolist() for batch in loader] for _ in range(2))
    assert all(mine != other for mine, other in zip(one, two, strict=True))


@pytest.mark.parametrize("kind", ["shared", "timed", "typed"])
@pytest.mark.parametrize("stop", [0, 3, 8, 11])
def test_a_state_goes_on_at_the_next_batch(kind: str, stop: int) -> None:
    make = makers()[kind]
    whole = epochs(make(), 3)
    first, state, done = make(), None, 0
    if stop == 0:
        state = first.state_dict()
    while state is None:
        for _ in first:
            done += 1
            if done == stop:
                state = first.state_dict()
                break
    file = io.BytesIO()
    torch.save(state, file)
    assert len(file.getvalue()) < 8192
    file.seek(0)
    again = make(prefetch=2)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert same(epochs(again, 3 - (stop - 1) // len(again) if stop else 3), whole[stop:])


def makers() -> dict[str, Any]:
    typed, likes, liked = film_graph()
    graph, time = timed()
    ds = dataset(edges=900)
    shared: dict[str, Any] = {"shuffle": True, "seed": 4}

    def timed_data(**way: Any) -> LinkLoader:
        return LinkLoader(_with_x(graph), fanouts=(4, 2), batch_size=27, time=time, **shared, **way)

    def typed_data(**way: Any) -> LinkLoader:
        between: dict[str, Any] = {"relation": likes, "reverse_relation": liked, "exclude": "both"}
        return LinkLoader(_with_x(typed), fanouts=(4, 2), batch_size=8, negatives="triplet", **between, **shared, **way)

    return {
        "shared": lambda **way: LinkLoader(ds, fanouts=(4, 2), batch_size=120, amount=2, **shared, **way),
        "timed": timed_data,
        "typed": typed_data,
    }


def _with_x(graph: Graph) -> Dataset:
    nodes = graph.num_nodes
    x, every = torch.arange(nodes * 3.0).view(nodes, 3), torch.arange(nodes)
    return Dataset("x", graph, x, torch.zeros(nodes, dtype=torch.int64), every, every[:0], every[:0], 1)


CHILD = """
import sys, json, torch, zlib
sys.path[:0] = json.loads(sys.argv[1])
from loader.test_link import everything, makers
torch.set_num_threads(1)
for kind in sys.argv[3:]:
    loader = makers()[kind](prefetch=3)
    loader.load_state_dict(torch.load(f"{sys.argv[2]}/{kind}.pt", weights_only=True))
    for _ in range(2):
        for batch in loader:
            print(kind, zlib.crc32(b"".join(t.contiguous().numpy().tobytes() for t in everything(batch))))
"""


def test_a_new_process_goes_on_with_the_same_bits(tmp_path: Path, root: Path) -> None:
    kinds, expected = ("shared", "timed", "typed"), []
    for kind in kinds:
        loader = makers()[kind]()
        for epoch in range(2):
            for place, batch in enumerate(loader):
                if epoch == 0 and place == 2:
                    torch.save(loader.state_dict(), tmp_path / f"{kind}.pt")
                elif epoch > 0 or place > 2:
                    content = b"".join(t.contiguous().numpy().tobytes() for t in everything(batch))
                    expected.append(f"{kind} {zlib.crc32(content)}")
    command = [sys.executable, "-c", CHILD, json.dumps([str(root / "tests")]), str(tmp_path), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def test_a_state_of_another_loader_is_refused() -> None:
    graph = small()
    state = LinkLoader(graph, fanouts=(4,), batch_size=15).state_dict()
    index = torch.stack(graph.edges())
    for other in ({"negatives": "tail"}, {"amount": 2}, {"exclude": "both"}, {"edge_label_index": index.flip(0)}):
        with pytest.raises(CheckpointError, match="LinkLoader: expected a state with"):
            LinkLoader(graph, **{"fanouts": (4,), "batch_size": 15, **other}).load_state_dict(state)  # type: ignore
    weight = torch.arange(graph.num_edges).float()
    weighted = LinkLoader(graph, fanouts=(4,), weight=weight).state_dict()
    with pytest.raises(CheckpointError, match="LinkLoader: expected a state with weights_checksum"):
        LinkLoader(graph, fanouts=(4,), weight=weight.flip(0)).load_state_dict(weighted)
    edges, timed_edges = torch.arange(graph.num_edges), {"time": torch.arange(graph.num_edges)}
    for name, given in (("edge_label", {}), ("edge_label_time", {"edge_label_index": index, **timed_edges})):
        one, again, other = (
            LinkLoader(graph, fanouts=(4,), **{name: values}, **given)  # type: ignore[arg-type]
            for values in (edges, edges, edges + 1)
        )
        again.load_state_dict(one.state_dict())
        with pytest.raises(CheckpointError, match="LinkLoader: expected a state with"):
            other.load_state_dict(one.state_dict())


def test_sizes_at_the_edges() -> None:
    graph = small()
    index = torch.stack(graph.edges())[:, :5]
    assert [b.batch_size for b in LinkLoader(graph, index, fanouts=(2,), batch_size=99)] == [5]
    assert [b.batch_size for b in LinkLoader(graph, index, fanouts=(2,), batch_size=2, drop_last=True)] == [2, 2]
    assert list(LinkLoader(graph, index[:, :0], fanouts=(2,))) == []
    assert list(LinkLoader(Graph([], [], 0), fanouts=(2,))) == []
    twice = next(iter(LinkLoader(graph, index[:, [0, 0, 1]], fanouts=(2,), negatives="none")))
    assert pairs(twice.edge_label_index, twice.n_id) == [tuple(index[:, i].tolist()) for i in (0, 0, 1)]  # type: ignore


COMPLETE = Graph([0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1], 3)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda g: LinkLoader(g, [[0], [40]]), IndexRangeError, "destination ids in [0, 40), got 40 at position 0"),
        (lambda g: LinkLoader(g, [[0, 1], [2]]), ShapeError, "expected as many sources as destinations, got 2 and 1"),
        (lambda g: LinkLoader(g, torch.zeros(3, 5)), ShapeError, "expected edge_label_index of shape (2, P)"),
        (lambda g: LinkLoader(g, 7), ShapeError, "expected edge_label_index of shape (2, P), got int"),
        (lambda g: LinkLoader(g, edge_label=[1]), ShapeError, "expected 300 rows, one per edge, got 1 rows"),
        (lambda g: LinkLoader(g, negatives="some"), ConfigError, "expected negatives as one of none, binary"),
        (lambda g: LinkLoader(g, exclude="all"), ConfigError, "expected exclude as one of none, target, both"),
        (lambda g: LinkLoader(g, amount=2, negatives="none"), ConfigError, "amount cannot be combined with negatives"),
        (lambda g: LinkLoader(g, window=3), ConfigError, "expected time, one per edge, for a window"),
        (lambda g: LinkLoader(g, strategy="recent"), ConfigError, "expected time, one per edge, for a window"),
        (lambda g: LinkLoader(g, amount=0), ConfigError, "expected amount as an integer from 1"),
        (lambda g: LinkLoader(g, fanouts=(0,)), ConfigError, "expected fanouts >= 1, or -1 for all, got 0"),
        (lambda g: LinkLoader(g, batch_size=0), ConfigError, "LinkLoader: expected batch_size as an integer >= 1"),
        (lambda g: LinkLoader(g, relation=("a", "b", "c")), ConfigError, "expected a typed graph for a relation"),
        (lambda g: LinkLoader(g, edge_label_time=[1]), ConfigError, "expected time, one per edge of the graph"),
        (lambda g: LinkLoader(g, [[0], [1]], time=[0] * 300), ConfigError, "expected times of the seeds"),
        (lambda g: LinkLoader(g, time=[0] * 7), ShapeError, "expected 300 rows, one per edge, got 7 rows"),
        (lambda g: LinkLoader(g, known=Graph([], [], 3)), GraphError, "expected known edges over the nodes of"),
        (lambda g: LinkLoader(film_graph()[0]), ConfigError, "expected the relation to predict"),
        (
            lambda g: LinkLoader(film_graph()[0], relation=("user", "likes", "film"), exclude="both"),
            ConfigError,
            "expected reverse_relation for exclude='both'",
        ),
        (lambda g: next(iter(LinkLoader(COMPLETE))), GraphError, "expected a pair of nodes without an edge, got none"),
        (
            lambda g: next(iter(LinkLoader(COMPLETE, negatives="tail"))),
            GraphError,
            "expected a node that node 0 has no edge to, got none",
        ),
    ],
    ids=range(22),
)
def test_bad_input_is_one_line(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as failure:
        make(small())
    assert text in str(failure.value) and "\n" not in str(failure.value)


def test_a_pyg_model_learns_links_from_it_unchanged() -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    block = torch.arange(200) % 4
    draw = torch.randint(0, 200, (2, 6000))
    draw = draw[:, (block[draw[0]] == block[draw[1]])]
    graph = Graph(draw[0], draw[1], 200)
    every = torch.arange(200)
    ds = Dataset("blocks", graph, torch.randn(200, 16), block, every, every[:0], every[:0], 4)
    model = nn.GraphSAGE(16, 32, 2, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(6):
        for batch in LinkLoader(ds, fanouts=(10, 5), batch_size=256, shuffle=True):
            optimizer.zero_grad()
            h = model(batch.x, batch.edge_index)
            src, dst = batch.edge_label_index  # type: ignore[misc]
            loss = torch.nn.functional.binary_cross_entropy_with_logits((h[src] * h[dst]).sum(-1), batch.edge_label)  # type: ignore
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
