"""Items by weight, shares of ranks, rows from a store of one's own, exclusion by function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import many
from scipy import stats

import graphweft as gw


def _rare() -> gw.Dataset:
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 600, (2, 3000), generator=draw)
    y = (torch.arange(600) % 10 == 0).long()
    return gw.Dataset("rare", gw.Graph(src, dst, num_nodes=600), torch.randn(600, 4, generator=draw), y)


def test_balanced_batches_have_both_classes_alike_and_no_seed_twice() -> None:
    ds = _rare()
    loader = gw.Loader(ds, torch.arange(600), fanouts=[2], batch_size=20, item_weight="balanced", seed=1)
    assert len(loader) == 30
    rare = []
    for _ in range(5):
        for batch in loader:
            seeds = batch.n_id[: batch.batch_size]
            assert seeds.unique().numel() == 20
            rare.append(int(ds.y[seeds].sum()))
    # successive draws: the mean number of a class of 60 among 20 draws, all weights 1/60 and 1/540
    left, expected = np.array([1.0, 1.0]), 0.0
    for _ in range(20):
        share = left / left.sum()
        expected += share[1]
        left = left - share * np.array([1 / 540, 1 / 60])
    assert abs(np.mean(rare) - expected) < 5 * np.std(rare) / len(rare) ** 0.5


def test_weighted_batches_have_the_chances_of_successive_draws() -> None:
    weight = np.array([1.0, 2.0, 3.0, 0.0])
    graph = gw.Graph([0, 1, 2, 3], [1, 2, 3, 0])
    loader = gw.Loader(graph, [0, 1, 2, 3], [1], batch_size=2, item_weight=weight)
    seen = np.zeros((4, 4))
    for _ in range(1500):
        for places in loader.order(loader.epoch).split(2):
            a, b = sorted(places.tolist())
            seen[a, b] += 1
        loader._epoch += 1
    chances = [
        weight[a] * weight[b] / 6 * (1 / (6 - weight[a]) + 1 / (6 - weight[b])) for a, b in [(0, 1), (0, 2), (1, 2)]
    ]
    counts = [seen[0, 1], seen[0, 2], seen[1, 2]]
    assert sum(counts) == 3000 and stats.chisquare(counts, np.array(chances) * 3000).pvalue > 1e-3
    skewed = gw.Loader(graph, [0, 1, 2, 3], [1], batch_size=3, item_weight=[1e-30, 1.0, 1e-30, 1.0])
    assert sorted(skewed.order(0)[:3].tolist())[-2:] in (
        [1, 3],
        [2, 3],
    )  # what is hardly ever drawn still fills a batch
    assert {1, 3} <= set(skewed.order(0)[:3].tolist())


def test_the_ranks_together_take_every_seed() -> None:
    ds = _rare()
    whole = gw.Loader(ds, torch.arange(599), [2], batch_size=50, shuffle=True, seed=3)
    parts = [gw.Loader(ds, torch.arange(599), [2], batch_size=25, shuffle=True, seed=3, share=(r, 3)) for r in range(3)]
    assert [len(part) for part in parts] == [8, 8, 8]
    taken = torch.cat([part.order(1) for part in parts])
    assert taken.numel() == 600 and taken.unique().numel() == 599
    assert torch.equal(torch.stack([part.order(1) for part in parts], 1).reshape(-1)[:599], whole.order(1))
    state = parts[0].state_dict()
    with pytest.raises(gw.errors.CheckpointError, match="share"):
        parts[1].load_state_dict(state)
    drawn = [gw.Loader(ds, torch.arange(600), [2], batch_size=20, item_weight="balanced", share=(r, 2)) for r in (0, 1)]
    assert len(drawn[0]) == 15 and not torch.equal(drawn[0].order(0), drawn[1].order(0))
    assert gw.Loader(ds, torch.arange(600), [2], share=gw.dist.Ranks(0, 2)).order(0).tolist() == list(range(0, 600, 2))


def test_graphs_and_links_take_the_same_options() -> None:
    graphs, _, _, _ = many(50, "directed", seed=7)
    ds = gw.GraphDataset.from_list(
        graphs, x=[torch.ones(g.num_nodes, 1) for g in graphs], y=[int(i < 5) for i in range(50)]
    )
    counts = [
        int(batch.y.sum()) for _ in range(40) for batch in gw.GraphLoader(ds, batch_size=4, item_weight="balanced")
    ]
    assert 1.2 < np.mean(counts) < 2.0
    assert sum(batch.num_graphs for batch in gw.GraphLoader(ds, share=(1, 2))) == 25
    graph = _rare().graph
    labels = (torch.arange(3000) % 50 == 0).long()
    options: dict[str, Any] = {"fanouts": [2], "batch_size": 30, "negatives": "none", "edge_label": labels}
    links = gw.LinkLoader(graph, item_weight="balanced", share=(0, 4), **options)
    assert len(links) == 25 and np.mean([float(batch.edge_label.float().mean()) for batch in links]) > 0.3


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_come_from_a_store_of_ones_own(workers: int) -> None:
    ds = _rare()
    table = np.asarray(ds.x)
    for batch in gw.Loader(ds.graph, [5, 3, 9], [2, 2], fetch=lambda ids: table[ids.numpy()], workers=workers):
        assert torch.equal(batch.x, ds.x[batch.n_id])
    for links in gw.LinkLoader(ds.graph, fanouts=[2], batch_size=1500, fetch=lambda ids: table[ids.numpy()]):
        assert torch.equal(links.x, ds.x[links.n_id])
    of = ("a", "of", "b")
    typed = gw.Graph.hetero({of: ([0, 1, 1], [0, 1, 2])}, {"a": 2, "b": 3})
    rows = {"a": torch.randn(2, 4), "b": torch.randn(3, 6)}
    stores = {name: rows[name].__getitem__ for name in rows}
    (batch,) = gw.Loader(typed, ("b", [2, 0]), [2], fetch=stores)
    assert {name: torch.equal(batch.x_dict[name], rows[name][batch[name].n_id]) for name in rows} == {
        "a": True,
        "b": True,
    }
    with pytest.raises(gw.errors.ShapeError, match="expected 3 rows, one per id"):
        next(iter(gw.Loader(gw.Graph([0, 1], [1, 2]), [0, 1, 2], [1], fetch=lambda ids: torch.ones(2, 2))))


def test_exclusion_by_function() -> None:
    graph = _rare().graph
    degrees = graph.in_degrees()
    options: dict[str, Any] = {"fanouts": [-1], "batch_size": 100, "negatives": "none"}
    src, dst = graph.edges()

    def rare_targets(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (degrees[u] < 5) | (degrees[v] < 5)

    some = gw.LinkLoader(graph, exclude=rare_targets, **options)
    none, every = (gw.LinkLoader(graph, exclude=name, **options) for name in ("none", "target"))
    both = gw.LinkLoader(graph, exclude=lambda u, v: (torch.cat([u, v]), torch.cat([v, u])), **options)
    named = gw.LinkLoader(graph, exclude="both", **options)
    for mine, all_, few, one, other in zip(some, none, every, both, named, strict=True):
        gone = set(all_.e_id.tolist()) - set(mine.e_id.tolist())
        targets = mine.input_id[rare_targets(src[mine.input_id], dst[mine.input_id])]
        pairs = set(zip(src[targets].tolist(), dst[targets].tolist(), strict=True))
        expected = {e for e in all_.e_id.tolist() if (int(src[e]), int(dst[e])) in pairs}
        assert gone == expected and len(few.e_id) <= len(mine.e_id)
        assert torch.equal(one.e_id, other.e_id)
    for answer in (torch.ones(3), None, ([0], [599, 3]), lambda: 0):
        with pytest.raises(gw.errors.ConfigError, match="expected exclude to return a mask of 100 edges"):
            next(iter(gw.LinkLoader(graph, exclude=lambda u, v, answer=answer: answer, **options)))


def test_a_share_of_negatives_and_weighted_ones() -> None:
    graph = _rare().graph
    (batch,) = gw.LinkLoader(graph, fanouts=[1], batch_size=3000, amount=0.25)
    assert batch.edge_label.tolist() == [1.0] * 3000 + [0.0] * 750
    weight = (torch.arange(600) < 30).float()
    tails = gw.LinkLoader(graph, fanouts=[1], negatives="tail", amount=20, negative_weight=weight, distinct=True)
    for batch in tails:
        ends = batch.n_id[batch.edge_label_index[1][batch.edge_label == 0]].reshape(-1, 20)
        assert int(ends.max()) < 30 and all(row.unique().numel() == 20 for row in ends)


def test_mistakes_are_one_line() -> None:
    ds = _rare()
    for options, text in [
        ({"item_weight": "even"}, "expected item_weight as 'balanced' or one number per item, got 'even'"),
        ({"item_weight": [1.0]}, "item"),
        ({"item_weight": [1.0] + [0.0] * 359, "batch_size": 2}, "expected 2 items of weight above 0, a batch, got 1"),
        ({"share": (2, 2)}, "(rank, number of ranks) with 0 <= rank, or gw.dist.Ranks, got (2, 2)"),
        ({"share": 1}, "got 1"),
        ({"fetch": 3}, "expected fetch as a function from node ids to rows, got int"),
        ({"use_ddp": True}, "share=(rank, number of ranks)"),
    ]:
        with pytest.raises(gw.errors.GraphWeftError) as failure:
            gw.Loader(ds, fanouts=[2], **options)  # type: ignore[arg-type]
        assert text in str(failure.value)
    with pytest.raises(gw.errors.ConfigError, match="one class per item for item_weight='balanced', got none"):
        gw.Loader(ds.graph, [0, 1], [2], item_weight="balanced")
    with pytest.raises(gw.errors.ConfigError, match=r"amount=0.5 cannot be combined with negatives 'tail'; use binary"):
        gw.LinkLoader(ds.graph, negatives="tail", amount=0.5)
    weighted = torch.utils.data.WeightedRandomSampler([1.0], 1)
    with pytest.raises(gw.errors.ConfigError, match="got WeightedRandomSampler; item_weight= draws seeds by weight"):
        gw.Loader(ds, sampler=weighted)  # type: ignore[arg-type]
    with pytest.raises(gw.errors.ConfigError, match="distinct cannot be combined with negatives 'none'"):
        gw.LinkLoader(ds.graph, negatives="none", distinct=True)
