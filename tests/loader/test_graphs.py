"""The loader of graphs against PyTorch Geometric's batches; order, resume, wrong use."""

from __future__ import annotations

import pytest
import torch
from graphs import learnable, many

import graphweft as gw


def _whole(kind: str = "directed") -> gw.GraphDataset:
    graphs, _, _, _ = many(50, kind, seed=7)
    return gw.GraphDataset.from_list(
        graphs,
        x=[torch.randn(g.num_nodes, 3) for g in graphs],
        y=[i % 4 for i in range(50)],
        edge_weight=[torch.rand(g.num_edges) for g in graphs],
        edge_features=[torch.randn(g.num_edges, 2) for g in graphs],
    )


@pytest.mark.parametrize("kind", ["directed", "symmetric", "loops"])
def test_batches_are_those_of_pyg(kind: str) -> None:
    pyg = pytest.importorskip("torch_geometric.data", reason="the peer of this test")
    ds = _whole(kind)
    items = [
        pyg.Data(
            x=s.x, y=s.y.reshape(1), edge_index=torch.stack(s.graph.edges()), edge_attr=s.edge_features,
            edge_weight=s.edge_weight,
        )
        for s in ds
    ]  # fmt: skip
    seen = []
    for batch in gw.GraphLoader(ds, batch_size=16, shuffle=True, seed=3):
        theirs = pyg.Batch.from_data_list([items[i] for i in batch.index.tolist()])
        for name in ("x", "y", "edge_index", "batch", "ptr", "edge_attr", "edge_weight", "num_graphs", "num_nodes"):
            mine, other = getattr(batch, name), getattr(theirs, name)
            assert torch.equal(mine, other) if isinstance(mine, torch.Tensor) else mine == other, name
        assert batch.graph.is_drawn and repr(batch).startswith(f"GraphBatch({batch.num_graphs} graphs, ")
        seen += batch.index.tolist()
    assert sorted(seen) == list(range(50)) and seen != sorted(seen)


def test_order_follows_from_seed_and_epoch() -> None:
    ds = _whole()

    def epochs(seed: int, **more: object) -> list[list[int]]:
        loader = gw.GraphLoader(ds, batch_size=8, shuffle=True, seed=seed, **more)
        return [[i for batch in loader for i in batch.index.tolist()] for _ in range(2)]

    first = epochs(0)
    assert epochs(0) == first and epochs(0, prefetch=2, workers=2) == first
    assert first[0] != first[1] and epochs(1) != first
    loader = gw.GraphLoader(ds, batch_size=8, drop_last=True)
    assert len(loader) == 6 and [b.num_graphs for b in loader] == [8] * 6


def test_it_goes_on_in_the_middle_of_an_epoch() -> None:
    ds = _whole()
    loader = gw.GraphLoader(ds, batch_size=8, shuffle=True, seed=5)
    whole = [b.index for b in loader] + [b.index for b in loader]
    loader = gw.GraphLoader(ds, batch_size=8, shuffle=True, seed=5)
    begun = iter(loader)
    for _ in range(3):
        next(begun)
    state = loader.state_dict()
    fresh = gw.GraphLoader(ds, batch_size=8, shuffle=True, seed=5)
    fresh.load_state_dict(state)
    rest = [b.index for b in fresh] + [b.index for b in fresh]
    assert all(torch.equal(a, b) for a, b in zip(whole[3:], rest, strict=True))
    with pytest.raises(gw.errors.CheckpointError, match="seed"):
        gw.GraphLoader(ds, batch_size=8, shuffle=True, seed=6).load_state_dict(state)


def test_some_graphs_and_other_devices() -> None:
    ds = learnable(20)
    loader = gw.GraphLoader(ds, batch_size=4, graphs=ds.val_idx)
    assert [i for b in loader for i in b.index.tolist()] == ds.val_idx.tolist()
    batch = next(iter(loader)).to("meta")
    assert batch.x.device.type == batch.batch.device.type == "meta" and batch.num_graphs == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "GraphLoader: expected batch_size as an integer >= 1, got 0"),
        ({"graphs": [99]}, "99"),
        ({"graphs": []}, "expected at least one graph"),
        ({"num_workers": 2}, "expected workers, threads in place of num_workers"),
    ],
)
def test_wrong_use_is_told_in_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(gw.errors.GraphWeftError, match=message):
        gw.GraphLoader(learnable(10), **arguments)


def test_another_dataset_is_refused() -> None:
    with pytest.raises(
        gw.errors.ConfigError, match=r"expected a gw\.GraphDataset, got Dataset; gw\.GraphDataset\.from_list"
    ):
        gw.GraphLoader(gw.synthetic("default", scale=0.01))


def test_a_loader_says_what_it_yields() -> None:
    made = repr(gw.GraphLoader(_whole(), batch_size=16, shuffle=True))
    assert made == "GraphLoader(50 items, batch_size=16, shuffle=True, 4 batches an epoch)"
