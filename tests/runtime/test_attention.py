"""Attention kernels against softmax over in-edges in plain torch, float64, with its autograd."""

from __future__ import annotations

import pytest
import torch
from adjacencies import Layout
from zoo import ZOO, power_law_edges

from graphweft._errors import DtypeError, ShapeError
from graphweft._memory import POOL, SMALL
from graphweft.graph.adjacency import Adjacency
from graphweft.runtime.attention import Attention, Score, attend, attend_grad

# heads x channels: one tile, several, heads that share a tile with masked ends, one head wider than a tile
SHAPES = [(1, 1), (1, 7), (1, 40), (8, 8), (3, 5), (4, 16), (2, 33), (5, 24), (17, 3), (1, 300), (2, 130)]
KINDS = list(Score)


def operands(layout, kind, heads, channels, seed=0, shared=False):
    generator = torch.Generator().manual_seed(seed)

    def rows(*shape):
        return torch.randn(*shape, generator=generator)

    width = heads * channels
    value = rows(layout.num_cols, channels if shared else width)
    if kind is Score.ADD:
        return value, (rows(layout.num_cols, heads), rows(layout.num_rows, heads))
    if kind is Score.ADD2:
        return value, (rows(layout.num_rows, width), rows(width))
    return value, (rows(layout.num_cols, width), rows(layout.num_rows, width))


def expected(layout, kind, value, other, keep=None):
    """The definition, edge by edge, in the dtype of the operands."""
    src, dst = torch.from_numpy(layout.edge_cols), torch.from_numpy(layout.edge_rows)
    heads = kind.heads
    split = lambda x: x.reshape(x.shape[0], heads, x.shape[1] // heads)  # noqa: E731
    leaky = torch.nn.functional.leaky_relu
    if kind.score is Score.ADD:
        scores = leaky(other[0][src] + other[1][dst], kind.slope)
    elif kind.score is Score.ADD2:
        scores = (leaky(split(value)[src] + split(other[0])[dst], kind.slope) * other[1].view(heads, -1)).sum(-1)
    else:
        scores = kind.scale * (split(other[0])[src] * split(other[1])[dst]).sum(-1)
    index = dst[:, None].expand(-1, heads)
    top = torch.full((layout.num_rows, heads), -torch.inf, dtype=value.dtype)
    top = top.scatter_reduce(0, index, scores.detach(), "amax")
    shifted = (scores - top[dst]).exp()
    total = torch.zeros(layout.num_rows, heads, dtype=value.dtype).index_add(0, dst, shifted)
    weights = shifted / total[dst]
    if keep is not None:
        weights = weights * keep
    messages = weights[:, :, None] * (value[:, None] if kind.shared else split(value))[src]
    return torch.zeros(layout.num_rows, *messages.shape[1:], dtype=value.dtype).index_add(0, dst, messages).flatten(1)


def check(layout, kind, value, other, tolerance=2e-5, **options):
    given = [t.double().requires_grad_() for t in (value, *other)]
    dout = torch.randn(layout.num_rows, kind.width(value), generator=torch.Generator().manual_seed(9))
    wanted = expected(layout, kind, given[0], tuple(given[1:]), **options)
    gradients = torch.autograd.grad(wanted, given, dout.double(), allow_unused=True)
    out, stats = attend(layout, kind, value, other, seed=5, stats=True)
    torch.testing.assert_close(out.double(), wanted.detach(), rtol=tolerance, atol=tolerance)
    assert torch.equal(attend(layout, kind, value, other, seed=5)[0], out)
    found = attend_grad(layout, layout.transposed(), kind, value, other, (out, stats), dout, seed=5)
    for mine, theirs in zip(found, gradients, strict=True):
        theirs = torch.zeros_like(mine).double() if theirs is None else theirs
        torch.testing.assert_close(mine.double(), theirs, rtol=10 * tolerance, atol=20 * tolerance)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("score", KINDS, ids=lambda s: s.name)
@pytest.mark.parametrize("name", ZOO)
def test_on_the_zoo(name, score, wide):
    layout = Layout.of(ZOO[name], wide=wide)
    check(layout, Attention(score, 4, scale=0.4), *operands(layout, score, 4, 6))


@pytest.mark.parametrize("shape", [*SHAPES, (8, 100), (2, 8), (4, 4)], ids=str)
@pytest.mark.parametrize("name", ["power_law", "multi_edges", "no_edges", "isolated"])
def test_heads_may_share_their_values(name, shape):
    layout = Layout.of(ZOO[name])
    check(layout, Attention(Score.ADD, shape[0], shared=True), *operands(layout, Score.ADD, *shape, shared=True))


def test_shared_values_of_a_hub_are_cut_into_pieces():
    layout = Layout.of(power_law_edges(400, 60_000, seed=3))
    kind = Attention(Score.ADD, 3, shared=True)
    check(layout, kind, *operands(layout, Score.ADD, 3, 20, shared=True), tolerance=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("score", KINDS, ids=lambda s: s.name)
def test_at_every_shape_with_rows_that_pieces_share(score, shape):
    layout = Layout.of(power_law_edges(300, 6000, seed=3))
    heads, channels = shape
    scale = channels**-0.5
    value, other = operands(layout, score, heads, channels)
    if score is Score.ADD2:
        other = (other[0], other[1] * scale)
    check(layout, Attention(score, heads, slope=0.1, scale=scale), value, other)


@pytest.mark.parametrize("score", KINDS, ids=lambda s: s.name)
def test_scores_in_the_thousands_neither_overflow_nor_vanish(score):
    layout = Layout.of(ZOO["power_law"])
    value, other = operands(layout, score, 2, 4)
    if score is Score.ADD:
        other = tuple(1e3 * t for t in other)
    elif score is Score.ADD2:
        other = (other[0], 3e2 * other[1])
    kind = Attention(score, 2, scale=3e2)
    out, stats = attend(layout, kind, value, other, stats=True)
    assert out.isfinite().all() and stats.isfinite().all()
    wanted = expected(layout, kind, value.double(), tuple(t.double() for t in other))
    torch.testing.assert_close(out.double(), wanted, rtol=2e-3, atol=2e-3)


def large_scores(layout, score, heads, channels, apart, seed):
    """Operands whose scores reach 1e4: far apart, or, where digits count, all near 1e4; with the scale of a product."""
    value, (first, second) = operands(layout, score, heads, channels, seed)
    if score is Score.ADD:
        return value, (3e3 * first, 3e3 * second) if apart else (1e4 + first, second), 1.0
    if score is Score.ADD2:
        if apart:
            return value, (first, 2.5e3 * channels**-0.5 * second), 1.0
        return value, (1e3 + first, (10.0 + second) / channels), 1.0
    if apart:
        return value, (first, second), 2.5e3 * channels**-0.5
    queries = second.view(-1, heads, channels).clone()
    queries[..., 0] = 100.0
    keys = first.view(-1, heads, channels).clone()
    keys[..., 0] += 100.0
    return value, (keys.flatten(1), queries.flatten(1)), 1.0


def plain_gradients(layout, kind, given, dout, dtype, keep):
    leaves = [t.to(dtype).requires_grad_() for t in given]
    out = expected(layout, kind, leaves[0], tuple(leaves[1:]), keep=None if keep is None else keep.to(dtype))
    return [out.detach(), *torch.autograd.grad(out, leaves, dout.to(dtype))]


def draws(layout, heads, drop):
    """What dropout keeps, read off each edge alone in its row."""
    alone = Layout(range(layout.num_edges), range(layout.num_edges), layout.num_edges, layout.num_edges)
    return edge_weights(alone, Attention(Score.ADD, heads, drop=drop, stream=2), seed=5) if drop else None


@pytest.mark.parametrize("apart", [False, True], ids=["near", "apart"])
@pytest.mark.parametrize(("shape", "drop"), [((1, 1), 0.0), ((3, 5), 0.5), ((8, 8), 0.0), ((2, 33), 0.5)], ids=str)
@pytest.mark.parametrize("score", KINDS, ids=lambda s: s.name)
def test_large_scores_cost_no_more_digits_than_in_torch(score, shape, apart, drop):
    edges = power_law_edges(300, 6000, seed=3)  # a hub in several pieces
    layout = Layout(edges.dst, edges.src, 320, 320)  # and rows without edges
    keep = draws(layout, shape[0], drop)
    mine, plain, noise = torch.zeros(3, 4, dtype=torch.float64)  # of the result and of each gradient
    for seed in range(6):  # a few near ties make most of an error: one draw says little
        value, other, scale = large_scores(layout, score, *shape, apart, seed)
        kind = Attention(score, shape[0], scale=scale, drop=drop, stream=2)
        dout = torch.randn(320, shape[0] * shape[1], generator=torch.Generator().manual_seed(seed))
        wanted = plain_gradients(layout, kind, (value, *other), dout, torch.float64, keep)
        torchs = plain_gradients(layout, kind, (value, *other), dout, torch.float32, keep)
        out, stats = attend(layout, kind, value, other, seed=5, stats=True)
        found = [out, *attend_grad(layout, layout.transposed(), kind, value, other, (out, stats), dout, seed=5)]
        assert all(t.isfinite().all() for t in (*found, stats))
        assert not out[300:].any()
        mine += torch.stack([(f - w).abs().sum() for f, w in zip(found, wanted, strict=True)])
        plain += torch.stack([(t - w).abs().sum() for t, w in zip(torchs, wanted, strict=True)])
        noise += torch.stack([1e-7 * w.abs().sum() for w in wanted])
    assert (mine <= 2.0 * plain + noise).all(), mine / plain


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("score", KINDS, ids=lambda s: s.name)
def test_an_edge_alone_in_its_row_weighs_exactly_one(score, shape):
    """The backward pass finds the forward pass's scores to the bit."""
    layout = Layout(range(40), range(39, -1, -1), 40, 40)
    value, other, scale = large_scores(layout, score, *shape, True, 1)
    kind = Attention(score, shape[0], scale=scale)
    dout = torch.randn(40, shape[0] * shape[1])
    out, stats = attend(layout, kind, value, other, stats=True)
    dvalue, *others = attend_grad(layout, layout.transposed(), kind, value, other, (out, stats), dout)
    assert torch.equal(out, value.flip(0))
    assert torch.equal(dvalue, dout.flip(0))
    assert not any(t.any() for t in others)


@pytest.mark.parametrize("drop", [0.0, 0.4])
@pytest.mark.parametrize("score", [Score.ADD2, Score.DOT], ids=lambda s: s.name)
def test_slopes_that_a_walk_leaves_to_the_next_have_the_bits_of_those_made_again(score, drop, monkeypatch):
    """For few edges per row they are kept; ids beyond the edges, which have no place, are seen."""
    edges = power_law_edges(300, 2500, seed=4)
    layout = Layout(edges.dst, edges.src, 300, 300)
    value, other, scale = large_scores(layout, score, 4, 16, False, 0)
    kind, dout = Attention(score, 4, scale=scale, drop=drop, stream=1), torch.randn(300, 64)
    out, stats = attend(layout, kind, value, other, seed=5, stats=True)

    def gradients(layout):
        return attend_grad(layout, layout.transposed(), kind, value, other, (out, stats), dout, seed=5)

    assert kind.kept_slopes(2500, 300, 64) == 10_000 and not kind.kept_slopes(5000, 300, 64)
    kept = gradients(layout)
    moved = Adjacency(layout.indptr, layout.indices, layout.edge_ids + 2500, layout.num_cols)
    if not drop:  # draws go by ids
        turned = moved.transpose()
        found = attend_grad(moved, turned, kind, value, other, (out, stats), dout, seed=5)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, kept, strict=True))
    monkeypatch.setattr(Attention, "kept_slopes", lambda *_: 0)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(gradients(layout), kept, strict=True))


def test_a_piece_of_a_hub_may_have_no_weight():
    layout = Layout([0] * 20_000, range(20_000), 1, 20_000)
    value = torch.randn(20_000, 1)
    src = torch.full((20_000, 1), -torch.inf)
    src[15_000:] = torch.randn(5_000, 1) - 2e3
    check(layout, Attention(Score.ADD, 1), value, (src, torch.zeros(1, 1)), tolerance=1e-4)


def edge_weights(layout, kind, seed):
    """What each edge and head weighs in the sum: the edges of a star of ones show it."""
    value = torch.ones(layout.num_cols, kind.heads)
    zeros = (torch.zeros(layout.num_cols, kind.heads), torch.zeros(layout.num_rows, kind.heads))
    return attend(layout, kind, value, zeros, seed=seed)[0]


@pytest.mark.parametrize("heads", [1, 8, 11])
def test_dropout_keeps_with_its_probability_and_draws_by_edge_head_and_seed(heads):
    nodes = 20_000
    ring = Layout(range(nodes), [(i + 1) % nodes for i in range(nodes)], nodes, nodes)
    kind = Attention(Score.ADD, heads, drop=0.6, stream=3)
    weights = edge_weights(ring, kind, seed=7)
    assert ((weights == 0) | torch.isclose(weights, torch.tensor(2.5))).all()
    kept = (weights > 0).double()
    assert abs(kept.mean().item() - 0.4) < 5 * (0.24 / weights.numel()) ** 0.5
    if heads > 1:
        together = torch.corrcoef(kept.T)
        assert (together - torch.eye(heads)).abs().max() < 0.05
    assert torch.equal(edge_weights(ring, kind, seed=7), weights)
    for other in (edge_weights(ring, kind, seed=8), edge_weights(ring, Attention(Score.ADD, heads, drop=0.6), seed=7)):
        assert 0.4 < ((other > 0) == (weights > 0)).double().mean() < 0.65


@pytest.mark.parametrize("score", KINDS, ids=lambda s: s.name)
def test_gradients_under_dropout_use_the_same_draws(score):
    layout = Layout.of(power_law_edges(100, 900, seed=4))
    kind = Attention(score, 3, drop=0.5, stream=2, scale=0.5)
    keep = draws(layout, 3, 0.5).double()
    value, other = operands(layout, score, 3, 4)
    check(layout, kind, value, other, keep=keep)


@pytest.mark.parametrize("score", KINDS, ids=lambda s: s.name)
def test_the_same_bits_for_any_number_of_threads(score, threads_restored):
    layout = Layout.of(power_law_edges(2000, 60_000, seed=6))
    kind = Attention(score, 8, scale=0.3, drop=0.3)
    value, other = operands(layout, score, 8, 8)
    runs = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        out, stats = attend(layout, kind, value, other, seed=1, stats=True)
        runs.append((out, *attend_grad(layout, layout.transposed(), kind, value, other, (out, stats), out, seed=1)))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_wrong_operands_are_named():
    layout = Layout.of(ZOO["random"])
    kind = Attention(Score.ADD, 4)
    value, other = operands(layout, Score.ADD, 4, 2)
    with pytest.raises(ShapeError, match=r"expected contiguous rows of shape \(40, 4\), got \(39, 4\)"):
        attend(layout, kind, value, (other[0][:39], other[1]))
    with pytest.raises(DtypeError, match=r"torch\.float32, got torch\.float64"):
        attend(layout, kind, value.double(), other)
    with pytest.raises(ShapeError, match="width that 3 heads divide, got 8"):
        attend(layout, Attention(Score.ADD, 3), value, (other[0][:, :3].contiguous(), other[1][:, :3].contiguous()))


@pytest.mark.parametrize("score", KINDS)
def test_what_gradients_take_beside_their_results_is_told(score: Score) -> None:
    """As ``cpu/attention.py`` tells it, against what the pool lends."""
    layout = Layout.of(power_law_edges(20_000, 60_000, seed=1))
    heads, channels = 4, 16
    kind = Attention(score, heads)
    value, other = operands(layout, score, heads, channels)
    adj, turned = layout, layout.transposed()
    out, stats = attend(adj, kind, value, other, stats=True)
    before = POOL.begin_peak()
    made = attend_grad(adj, turned, kind, value, other, (out, stats), torch.ones_like(out))
    told = kind.kept_slopes(adj.num_edges, adj.num_rows, heads * channels) + adj.num_rows * kind.room_width
    results = sum(POOL.rounded(tensor.nbytes) for tensor in made if tensor.nbytes >= SMALL)
    assert POOL.stats().peak_lent - before - results == pytest.approx(4 * told, abs=2 * SMALL)
