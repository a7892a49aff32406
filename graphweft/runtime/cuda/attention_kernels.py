"""Attention in Triton: scores, softmax over in-edges and the weighted sum in one pass, and two passes for gradients.

Comes in: arrays of a graph's edges, rows of both ends, constants. Goes out: rows, and the largest score and inverse sum
of each softmax: two numbers, since a logarithm of the sum beside a large score has few digits. One program has a row
and a head; weights are rescaled as larger scores come, and made again from the two numbers for the gradients, so
nothing of edge size is stored. Scores are those of ``ir/attention.py``: 0 ``add``, 1 ``add2``, 2 ``dot``. Called by
``attention.py``. Source: FlashAttention (Dao et al., NeurIPS 2022), over edges.
"""
# Triton has types of its own, and Python's are not checked here.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

from graphweft.runtime.cuda.jit import device, kernel
from graphweft.runtime.cuda.kernels import drawn_words, edge_numbers, joined, rescaled, span

tl: Any = None  # triton.language, once a kernel is asked for


@device
def accumulated(t):
    """As sums are taken: in float32, of 16 bits too, or in float64."""
    return t if t.dtype == tl.float64 else t.to(tl.float32)


@device
def leaky(z, SLOPE: tl.constexpr):
    """The leaky unit."""
    return tl.where(z > 0, z, z * SLOPE)


@device
def scored(a, b, vector, SCORE: tl.constexpr, SLOPE: tl.constexpr, SCALE: tl.constexpr):
    """The scores of a block of edges, from what is read of their two ends."""
    if SCORE == 0:
        s = leaky(a + b, SLOPE)
    elif SCORE == 1:
        s = tl.sum(leaky(a + b, SLOPE) * vector, axis=1)
    else:
        s = tl.sum(a * b, axis=1) * SCALE
    return s


@device
def end_of(rows, at, c, some, inside, C: tl.constexpr, SCORE: tl.constexpr):
    """What a score reads of ends ``at``, a place for node and head: a number, or a row of channels."""
    if SCORE == 0:
        made = tl.load(rows + at, mask=some, other=0.0)
    else:
        made = tl.load(rows + at[:, None] * C + c, mask=some[:, None] & inside, other=0.0)
    return accumulated(made)


@device
def kept(edge, h, seed_low, seed_high, stream_low, stream_high, H: tl.constexpr, THRESHOLD: tl.constexpr):
    """Whether edges count for head h, by the CPU's draws: 16 bits each, eight heads a block of words."""
    block = edge * ((H + 7) // 8) + h // 8
    c0, c1, c2, c3 = drawn_words(block, seed_low, seed_high, stream_low, stream_high)
    pair = tl.where(h % 8 >= 4, tl.where(h % 4 >= 2, c3, c2), tl.where(h % 4 >= 2, c1, c0))
    draw = tl.where(h % 2 == 1, pair >> 16, pair & 0xFFFF)
    return draw.to(tl.int32) >= THRESHOLD


@device
def added(
    block, parts, piece, last, h, c, inside, H: tl.constexpr, C: tl.constexpr, NUMBERS: tl.constexpr, BE: tl.constexpr
):  # fmt: skip
    """A block of sums, and those of pieces for head h added to it: rows of channels, or numbers."""
    if NUMBERS:
        for at in range(piece, last, BE):
            p = at + tl.arange(0, BE)
            block += tl.load(parts + p * H + h, mask=p < last, other=0.0)
    else:
        block = joined(block, parts, piece, last, h * C + c, inside, H * C, BE)
    return block


@kernel
def attend(
    offsets, columns, ids, x, sources, targets, vector, out, tops, inverses, pieces, owners, parts, part_tops, totals,
    seed_low, seed_high, stream_low, stream_high, H: tl.constexpr, C: tl.constexpr, SHARED: tl.constexpr,
    SCORE: tl.constexpr, SLOPE: tl.constexpr, SCALE: tl.constexpr, THRESHOLD: tl.constexpr, FACTOR: tl.constexpr,
    HAS_IDS: tl.constexpr, PART: tl.constexpr, BE: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """``out[i] = sum over edges j -> i of softmax(score) * x[j]``, for every head; 0 without edges.

    Pieces give the sum of what is not divided yet, their largest score and what they divide by.
    """
    unit, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    c = tl.arange(0, BC)[None, :]
    inside = c < C
    one = tl.arange(0, 1)
    row, begin, end, piece, last = span(offsets, pieces, owners, unit, PART)
    mine = end_of(targets, row * H + h + one, c, one == 0, inside, C, SCORE)
    v = accumulated(tl.load(vector + h * C + c, mask=inside, other=0.0)) if SCORE == 1 else 0.0
    top = tl.full([1], float("-inf"), tops.dtype.element_ty)
    total = tl.zeros([1], tops.dtype.element_ty)
    block = tl.zeros([BE, BC], tops.dtype.element_ty)
    for at in range(begin, end, BE):
        p = at + tl.arange(0, BE)
        some = p < end
        col = tl.load(columns + p, mask=some, other=0).to(tl.int64)
        place = col if SHARED else col * H + h
        t = accumulated(tl.load(x + place[:, None] * C + c, mask=some[:, None] & inside, other=0.0))
        far = t if SCORE == 1 else end_of(sources, col * H + h, c, some, inside, C, SCORE)
        s = tl.where(some, scored(far, mine, v, SCORE, SLOPE, SCALE), float("-inf"))
        above, base, shrink = rescaled(top, tl.max(s, axis=0))
        w = tl.exp(s - base)
        total = total * shrink + tl.sum(w, axis=0)
        if THRESHOLD > 0:
            edge = edge_numbers(ids, p, some, HAS_IDS)
            keep = kept(edge, h, seed_low, seed_high, stream_low, stream_high, H, THRESHOLD)
            w = tl.where(keep, w * FACTOR, 0.0)
        block = block * shrink[:, None] + w[:, None] * t
        top = above
    if PART == 2:
        for at in range(piece, last, BE):
            p = at + tl.arange(0, BE)
            some = p < last
            t = tl.load(parts + (p * H + h)[:, None] * C + c, mask=some[:, None] & inside, other=0.0)
            s = tl.load(part_tops + p * H + h, mask=some, other=float("-inf"))
            above, base, shrink = rescaled(top, tl.max(s, axis=0))
            w = tl.exp(s - base)
            total = total * shrink + tl.sum(w * tl.load(totals + p * H + h, mask=some, other=0.0), axis=0)
            block = block * shrink[:, None] + w[:, None] * t
            top = above
    inverse = total if PART == 1 else 1.0 / tl.where(total == 0.0, 1.0, total)
    result = tl.sum(block, axis=0)[None, :] * (1.0 if PART == 1 else inverse[:, None])
    stored = (tl.arange(0, BE)[:, None] == 0) & inside
    tl.store(out + (unit * H + h) * C + c + stored * 0, tl.broadcast_to(result, [BE, BC]), mask=stored)
    tl.store(tops + unit * H + h + one, top)
    tl.store(inverses + unit * H + h + one, inverse)


@device
def weighed(
    columns, ids, x, sources, mine, v, g, top, inverse, at, end, h, c, inside,
    seed_low, seed_high, stream_low, stream_high, H: tl.constexpr, C: tl.constexpr, SHARED: tl.constexpr,
    SCORE: tl.constexpr, SLOPE: tl.constexpr, SCALE: tl.constexpr, THRESHOLD: tl.constexpr, FACTOR: tl.constexpr,
    HAS_IDS: tl.constexpr, BE: tl.constexpr
):  # fmt: skip
    """Of a block of in-edges from ``at`` on: what scores read of sources, weights, and <g, x> where edges are kept."""
    p = at + tl.arange(0, BE)
    some = p < end
    col = tl.load(columns + p, mask=some, other=0).to(tl.int64)
    place = col if SHARED else col * H + h
    t = accumulated(tl.load(x + place[:, None] * C + c, mask=some[:, None] & inside, other=0.0))
    far = t if SCORE == 1 else end_of(sources, col * H + h, c, some, inside, C, SCORE)
    w = tl.where(some, tl.exp(scored(far, mine, v, SCORE, SLOPE, SCALE) - top) * inverse, 0.0)
    dot = tl.sum(t * g, axis=1)
    if THRESHOLD > 0:
        edge = edge_numbers(ids, p, some, HAS_IDS)
        keep = kept(edge, h, seed_low, seed_high, stream_low, stream_high, H, THRESHOLD)
        dot = tl.where(keep, dot * FACTOR, 0.0)
    return far, w, dot


@device
def dots_of(
    columns, ids, x, sources, mine, v, g, top, inverse, begin, end, h, c, inside,
    seed_low, seed_high, stream_low, stream_high, H: tl.constexpr, C: tl.constexpr, SHARED: tl.constexpr,
    SCORE: tl.constexpr, SLOPE: tl.constexpr, SCALE: tl.constexpr, THRESHOLD: tl.constexpr, FACTOR: tl.constexpr,
    HAS_IDS: tl.constexpr, BE: tl.constexpr
):  # fmt: skip
    """Sums over edges from ``begin`` to ``end`` of weights times <g, x>."""
    sums = tl.zeros([BE], g.dtype)
    for at in range(begin, end, BE):
        _, w, dot = weighed(
            columns, ids, x, sources, mine, v, g, top, inverse, at, end, h, c, inside, seed_low, seed_high,
            stream_low, stream_high, H, C, SHARED, SCORE, SLOPE, SCALE, THRESHOLD, FACTOR, HAS_IDS, BE
        )  # fmt: skip
        sums += w * dot
    return sums


@device
def told_together(told, number, top, inverse, share, SCORE: tl.constexpr):
    """Four numbers of a row and head next to each other, since sources read them by edge; scores may read no number."""
    if SCORE == 0:
        tl.store(told, number)
    tl.store(told + 1, top)
    tl.store(told + 2, inverse)
    tl.store(told + 3, share)


@kernel
def attend_gradient_of_targets(
    offsets, columns, ids, x, sources, targets, vector, out, slope, tops, inverses, told, made, made_vector,
    pieces, owners, part_told, parts, part_vectors, seed_low, seed_high, stream_low, stream_high, H: tl.constexpr,
    C: tl.constexpr, SHARED: tl.constexpr, SCORE: tl.constexpr, SLOPE: tl.constexpr, SCALE: tl.constexpr,
    THRESHOLD: tl.constexpr, FACTOR: tl.constexpr, HAS_IDS: tl.constexpr, PART: tl.constexpr, BE: tl.constexpr,
    BC: tl.constexpr
):  # fmt: skip
    """Gradients by what is read of destinations; a row's share of that by the vector.

    ``told``: the number that scores read of a row, their largest, the inverse sum, and its share, <slope, out>.

    Of a rounded ``out`` pieces give their part of the share first.
    """
    unit, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    c = tl.arange(0, BC)[None, :]
    inside = c < C
    one = tl.arange(0, 1)
    row, begin, end, piece, last = span(offsets, pieces, owners, unit, PART)
    own = (row * H + h) * C + c
    mine = end_of(targets, row * H + h + one, c, one == 0, inside, C, SCORE)
    v = accumulated(tl.load(vector + h * C + c, mask=inside, other=0.0)) if SCORE == 1 else 0.0
    g = accumulated(tl.load(slope + own, mask=inside, other=0.0))
    top = tl.load(tops + row * H + h)
    inverse = tl.load(inverses + row * H + h)
    ACC: tl.constexpr = tops.dtype.element_ty
    if out.dtype.element_ty == ACC:
        share = tl.sum(g * tl.load(out + own, mask=inside, other=0.0), axis=1)
    else:  # the result is rounded, and all edges have its error
        sums = tl.zeros([BE], ACC)
        if PART != 3:
            sums += dots_of(
                columns, ids, x, sources, mine, v, g, top, inverse, begin, end, h, c, inside, seed_low, seed_high,
                stream_low, stream_high, H, C, SHARED, SCORE, SLOPE, SCALE, THRESHOLD, FACTOR, HAS_IDS, BE
            )  # fmt: skip
        if PART > 1:
            sums = added(sums, part_told, piece, last, h * 4 + 3, c, inside, H * 4, C, True, BE)
        share = tl.sum(sums, axis=0) + tl.zeros([1], ACC)
    if PART != 3:
        told_together(told + (unit * H + h) * 4 + one, mine, top + one, inverse + one, share, SCORE)
    if PART != 1:
        block = tl.zeros([BE], ACC) if SCORE == 0 else tl.zeros([BE, BC], ACC)
        of_vector = tl.zeros([BE, BC], ACC)
        for at in range(begin, end, BE):
            far, w, dot = weighed(
                columns, ids, x, sources, mine, v, g, top, inverse, at, end, h, c, inside, seed_low, seed_high,
                stream_low, stream_high, H, C, SHARED, SCORE, SLOPE, SCALE, THRESHOLD, FACTOR, HAS_IDS, BE
            )  # fmt: skip
            ds = w * (dot - share)
            if SCORE == 0:
                block += ds * tl.where(far + mine > 0, 1.0, SLOPE)
            elif SCORE == 1:
                block += ds[:, None] * tl.where(far + mine > 0, 1.0, SLOPE) * v
                of_vector += ds[:, None] * leaky(far + mine, SLOPE)
            else:
                block += (ds * SCALE)[:, None] * far
        to = (unit * H + h) * C + c
        if PART == 2:
            block = added(block, parts, piece, last, h, c, inside, H, C, SCORE == 0, BE)
            if SCORE == 1:
                of_vector = added(of_vector, part_vectors, piece, last, h, c, inside, H, C, False, BE)
        if SCORE == 0:
            tl.store(made + unit * H + h, tl.sum(block, axis=0))
        else:
            tl.store(made + to, tl.sum(block, axis=0)[None, :], mask=inside)
        if SCORE == 1:
            tl.store(made_vector + to, tl.sum(of_vector, axis=0)[None, :], mask=inside)


@kernel
def attend_gradient_of_sources(
    offsets, columns, ids, x, sources, targets, vector, slope, told, of_targets, by_source, by_target, made_x,
    made, pieces, owners, parts_x, parts, seed_low, seed_high, stream_low, stream_high, H: tl.constexpr,
    C: tl.constexpr, SHARED: tl.constexpr, SCORE: tl.constexpr, SLOPE: tl.constexpr, SCALE: tl.constexpr,
    THRESHOLD: tl.constexpr, FACTOR: tl.constexpr, HAS_IDS: tl.constexpr, PART: tl.constexpr, BE: tl.constexpr,
    BC: tl.constexpr, SCORED: tl.constexpr
):  # fmt: skip
    """Gradients by values and by what else is read of sources; rows are sources, columns destinations.

    SCORED: the gradients by scores of sources (1) and of destinations (2) times a vector of the head are added.
    """
    unit, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    c = tl.arange(0, BC)[None, :]
    inside = c < C
    one = tl.arange(0, 1)
    row, begin, end, piece, last = span(offsets, pieces, owners, unit, PART)
    t = accumulated(tl.load(x + (row if SHARED else row * H + h) * C + c, mask=inside, other=0.0))
    mine = t if SCORE == 1 else end_of(sources, row * H + h + one, c, one == 0, inside, C, SCORE)
    v = accumulated(tl.load(vector + h * C + c, mask=inside, other=0.0)) if SCORE == 1 else 0.0
    ACC: tl.constexpr = told.dtype.element_ty
    of_x = tl.zeros([BE, BC], ACC)
    block = tl.zeros([BE], ACC) if SCORE == 0 else tl.zeros([BE, BC], ACC)
    for at in range(begin, end, BE):
        p = at + tl.arange(0, BE)
        some = p < end
        place = tl.load(columns + p, mask=some, other=0).to(tl.int64) * H + h
        g = accumulated(tl.load(slope + place[:, None] * C + c, mask=some[:, None] & inside, other=0.0))
        four = tl.load(told + place[:, None] * 4 + tl.arange(0, 4)[None, :], mask=some[:, None], other=0.0)
        first, second = tl.split(tl.reshape(four, [BE, 2, 2]))
        number, inverse = tl.split(first)
        top, share = tl.split(second)
        far = number if SCORE == 0 else end_of(targets, place, c, some, inside, C, SCORE)
        w = tl.where(some, tl.exp(scored(mine, far, v, SCORE, SLOPE, SCALE) - top) * inverse, 0.0)
        dot = tl.sum(t * g, axis=1)
        part = w
        if THRESHOLD > 0:
            edge = edge_numbers(ids, p, some, HAS_IDS)
            keep = kept(edge, h, seed_low, seed_high, stream_low, stream_high, H, THRESHOLD)
            dot = tl.where(keep, dot * FACTOR, 0.0)
            part = tl.where(keep, w * FACTOR, 0.0)
        ds = w * (dot - share)
        of_x += part[:, None] * g
        if SCORE == 0:
            block += ds * tl.where(far + mine > 0, 1.0, SLOPE)
        elif SCORE == 1:
            of_x += ds[:, None] * tl.where(far + mine > 0, 1.0, SLOPE) * v
        else:
            block += (ds * SCALE)[:, None] * far
    if PART == 2:
        of_x = added(of_x, parts_x, piece, last, h, c, inside, H, C, False, BE)
        if SCORE != 1:
            block = added(block, parts, piece, last, h, c, inside, H, C, SCORE == 0, BE)
    stored = (tl.arange(0, BE)[:, None] == 0) & inside
    total = tl.broadcast_to(tl.sum(of_x, axis=0)[None, :], [BE, BC])
    if (SCORED & 1) and PART != 1:
        total += tl.sum(block, axis=0) * tl.load(by_source + h * C + c + stored * 0, mask=stored, other=0.0)
    if (SCORED & 2) and PART != 1:
        mine = tl.load(of_targets + row * H + h)
        total += mine * tl.load(by_target + h * C + c + stored * 0, mask=stored, other=0.0)
    tl.store(made_x + (unit * H + h) * C + c + stored * 0, total, mask=stored)
    if SCORE == 0:
        tl.store(made + unit * H + h, tl.sum(block, axis=0))
    elif SCORE == 2:
        tl.store(made + (unit * H + h) * C + c, tl.sum(block, axis=0)[None, :], mask=inside)


@kernel
def score_rows(
    x, first, second, out, out1, count, H: tl.constexpr, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """``<x[n, h], first[h]>`` and the same by ``second``, for ``count`` rows and heads."""
    r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    c = tl.arange(0, BC)[None, :]
    inside = (r < count)[:, None] & (c < C)
    t = accumulated(tl.load(x + r[:, None] * C + c, mask=inside, other=0.0))
    at = (r % H)[:, None] * C + c
    tl.store(out + r, tl.sum(t * tl.load(first + at, mask=inside, other=0.0), axis=1), mask=r < count)
    tl.store(out1 + r, tl.sum(t * tl.load(second + at, mask=inside, other=0.0), axis=1), mask=r < count)


@kernel
def sum_rows_by_head(
    x, first, second, plain, made, rows, share, H: tl.constexpr, C: tl.constexpr, PLAIN: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """``sum over n of first[n, h] x[n, h]``, the same by ``second``, and of ``plain[n, h]``: a share of rows each."""
    program, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    c = tl.arange(0, BC)[None, :]
    by_first = tl.zeros([BR, BC], made.dtype.element_ty)
    by_second = tl.zeros([BR, BC], made.dtype.element_ty)
    itself = tl.zeros([BR, BC], made.dtype.element_ty)
    end = tl.minimum((program + 1) * share, rows)
    for at in range(program * share, end, BR):
        r = at + tl.arange(0, BR)
        inside = (r < end)[:, None] & (c < C)
        place = r * H + h
        t = tl.load(x + place[:, None] * C + c, mask=inside, other=0.0)
        by_first += tl.load(first + place, mask=r < end, other=0.0)[:, None] * t
        by_second += tl.load(second + place, mask=r < end, other=0.0)[:, None] * t
        if PLAIN:
            itself += tl.load(plain + place[:, None] * C + c, mask=inside, other=0.0)
    stored = (tl.arange(0, BR)[:, None] == 0) & (c < C)
    to = made + ((program * (3 if PLAIN else 2)) * H + h) * C + c + stored * 0
    tl.store(to, tl.broadcast_to(tl.sum(by_first, axis=0)[None, :], [BR, BC]), mask=stored)
    tl.store(to + H * C, tl.broadcast_to(tl.sum(by_second, axis=0)[None, :], [BR, BC]), mask=stored)
    if PLAIN:
        tl.store(to + 2 * H * C, tl.broadcast_to(tl.sum(itself, axis=0)[None, :], [BR, BC]), mask=stored)
