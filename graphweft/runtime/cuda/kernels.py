"""Kernels that are written once, in Triton: sums and extrema over edges, softmax over edges, stages of rows, dropout.

Comes in: arrays of a graph's in-edges, rows, and constants. Goes out: rows. One program computes a row, or a tile of
its columns; hubs are cut into pieces, which are joined in order (``hubs.py``); nothing is added up by atomics, so equal
calls give equal bits. Sums are taken in float32, of float16 and bfloat16 too, or, for float64, in float64. Widths are
constants: rows are read by vectors. Called by ``edges.py``. Source: Morphling, algorithm 2 with the tile outside.
"""
# Triton has types of its own, and Python's are not checked here.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

from graphweft.runtime.cuda.functions import gw_max, gw_min
from graphweft.runtime.cuda.jit import device, kernel

tl: Any = None  # triton.language, once a kernel is asked for


@device
def edge_numbers(ids, p, here, HAS_IDS: tl.constexpr):
    """The numbers of the edges at places ``p`` in row order."""
    return tl.load(ids + p, mask=here, other=0).to(tl.int64) if HAS_IDS else p.to(tl.int64)


@device
def span(offsets, pieces, owners, at, PART: tl.constexpr):
    """The row of program ``at``, where its edges begin and end, and from which piece to which the row is joined.

    PART is that of ``hubs.py``: with 1 and 3 a program has a piece of a row; with 2 hubs have no edges of their own.
    """
    STEP: tl.constexpr = 2 if PART % 2 == 1 else 1
    begin = tl.load(offsets + at * STEP)
    end = tl.load(offsets + at * STEP + 1)
    row = tl.load(owners + at).to(tl.int64) if PART % 2 == 1 else at
    piece = at * 0
    last = piece
    if PART > 0:
        piece = tl.load(pieces + row).to(tl.int64)
        last = tl.load(pieces + row + 1).to(tl.int64)
    if PART == 2:
        end = tl.where(last > piece, begin, end)
    return row, begin, end, piece, last


@device
def joined(block, parts, piece, last, place, here, WIDTH: tl.constexpr, BE: tl.constexpr):
    """A block of sums, and those of pieces added to it: numbers ``place`` of each, where ``here``."""
    for at in range(piece, last, BE):
        p = at + tl.arange(0, BE)
        block += tl.load(parts + p[:, None] * WIDTH + place, mask=(p < last)[:, None] & here, other=0.0)
    return block


@device
def first_row(rows: tl.constexpr, here):
    """Which elements of a block a program stores when all of its rows are the same: those of the first.

    A whole block is stored 16 bytes a thread, where a single row would be spread over all threads of a warp.
    """
    return (tl.arange(0, rows)[:, None] == 0) & here[None, :]


@device
def finished(
    t, row, f, here, row_scale, bias, addend, mask, post_scale,
    short, F: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """The stages of an epilogue on a block (rows, columns); bits of STAGES say which."""
    if STAGES & 1:
        t = t * tl.load(row_scale + row)
    if STAGES & 2:
        t = t + tl.load(bias + f, mask=f < F, other=0.0)
    if STAGES & 4:
        t = t + tl.load(addend + row * F + f, mask=here & (row + f * 0 < short), other=0.0)
    if STAGES & 8:
        t = tl.where(t < 0, 0.0, t)
    if STAGES & 16:
        t = tl.where(tl.load(mask + row * F + f, mask=here, other=0.0) > 0, t, 0.0)
    if STAGES & 32:
        t = t * tl.load(post_scale + row)
    return t


@kernel
def sum_edges(
    offsets, columns, ids, x, own, weight, scale, row_scale, bias,
    addend, mask, post_scale, short, y, pieces, owners, parts, F: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_IDS: tl.constexpr, HAS_SCALE: tl.constexpr, OWN: tl.constexpr, STAGES: tl.constexpr, PART: tl.constexpr,
    BE: tl.constexpr, BS: tl.constexpr, BF: tl.constexpr
):  # fmt: skip
    """``y[i] = epilogue(sum over edges j -> i of weight * scale[j] * x[j] + OWN * scale[i] * own[i])``.

    Pieces of rows are sums alone, in ``parts``.
    """
    ACC: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    here = f < F
    _, begin, end, piece, last = span(offsets, pieces, owners, row, PART)
    block = tl.zeros([BE, BF], ACC)  # its edges are added up after the last one
    for at in range(begin, end, BE):
        p = at + tl.arange(0, BE)
        some = p < end
        col = tl.load(columns + p, mask=some, other=0).to(tl.int64)
        t = tl.load(x + col[:, None] * F + f[None, :], mask=some[:, None] & here[None, :], other=0.0).to(ACC)
        if HAS_WEIGHT:
            place = edge_numbers(ids, p, some, HAS_IDS)
            t = t * tl.load(weight + place, mask=some, other=0.0)[:, None]
        if HAS_SCALE:
            t = t * tl.load(scale + col, mask=some, other=0.0)[:, None]
        block += t
    if PART == 2:
        block = joined(block, parts, piece, last, f[None, :], here[None, :], F, BE)
    total = tl.broadcast_to(tl.sum(block, axis=0)[None, :], [BS, BF])
    here = first_row(BS, here)
    f = f[None, :]
    if OWN != 0.0 and PART != 1:
        mine = tl.load(own + row * F + f + here * 0, mask=here, other=0.0).to(ACC) * OWN
        if HAS_SCALE:
            mine = mine * tl.load(scale + row)
        total += mine
    if PART != 1:
        total = finished(total, row, f + here * 0, here, row_scale, bias, addend, mask, post_scale, short, F, STAGES)
    tl.store(y + row * F + f + here * 0, total, mask=here)


@kernel
def finish_rows(
    x, ids, row_scale, bias, addend, mask, post_scale, y, short, rows,
    F: tl.constexpr, HAS_IDS: tl.constexpr, STAGES: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr
):  # fmt: skip
    """``y[i] = epilogue(x[i])``, or of ``x[ids[i]]``."""
    row = (tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR))[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    here = (row < rows) & (f < F)
    row = tl.minimum(row, rows - 1)
    source = tl.load(ids + row).to(tl.int64) if HAS_IDS else row
    t = tl.load(x + source * F + f, mask=here, other=0.0)
    t = t if y.dtype.element_ty == tl.float64 else t.to(tl.float32)
    t = finished(t, row, f, here, row_scale, bias, addend, mask, post_scale, short, F, STAGES)
    tl.store(y + row * F + f, t, mask=here)


@device
def improved(best, first, t, number, MINIMUM: tl.constexpr):
    """The extrema so far and the numbers of the edges that they come from, with those of ``t``, which come later."""
    beats = ((t >= best if MINIMUM else t <= best) == 0) & (best == best)  # also where t is the first NaN
    return tl.where(beats, t, best), tl.where(beats, number, first)


@kernel
def extremum_of_edges(
    offsets, columns, x, y, arg, pieces, owners, parts, args, F: tl.constexpr, MINIMUM: tl.constexpr,
    WANT_ARG: tl.constexpr, PART: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr
):  # fmt: skip
    """The largest (smallest) ``x[j]`` over edges j -> i, 0 without edges, and the j of the first one, or -1.

    Of pieces: ``parts`` and ``args``.
    """
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    here = f < F
    _, begin, end, piece, last = span(offsets, pieces, owners, row, PART)
    # Every place of a block has an extremum of its own; they meet after the last edge.
    least: tl.constexpr = float("inf") if MINIMUM else float("-inf")
    ACC: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    best = tl.full([BE, BF], least, ACC)
    first = tl.zeros([BE, BF], tl.int32)  # where all are infinite, none beats the start, and the first edge counts
    k = tl.arange(0, BE)
    for at in range(begin, end, BE):
        some = at + k < end
        col = tl.load(columns + at + k, mask=some, other=0).to(tl.int64)
        t = tl.load(x + col[:, None] * F + f[None, :], mask=some[:, None] & here[None, :], other=least).to(ACC)
        best, first = improved(best, first, t, (at - begin).to(tl.int32) + k[:, None], MINIMUM)
    if PART == 2:
        for at in range(piece, last, BE):
            some = (at + k < last)[:, None] & here[None, :]
            t = tl.load(parts + (at + k)[:, None] * F + f[None, :], mask=some, other=least).to(ACC)
            best, first = improved(best, first, t, (at - piece).to(tl.int32) + k[:, None], MINIMUM)
    top = tl.reduce(best, 0, gw_min if MINIMUM else gw_max)
    has_edges = f * 0 + begin + piece < end + last if PART == 2 else f * 0 + begin < end
    stored = first_row(BE, here)
    place_of = row * F + f[None, :] + stored * 0
    tl.store(y + place_of, tl.where(has_edges, top, 0.0)[None, :] + tl.zeros([BE, BF], top.dtype), mask=stored)
    if WANT_ARG:
        is_top = (best == top[None, :]) | (best != best)
        number = tl.min(tl.where(is_top, first, 0x7FFFFFFF), axis=0)
        place = begin + number
        found = tl.load(columns + place, mask=here & (f * 0 + begin < end), other=-1)
        if PART == 2:
            has_pieces = f * 0 + piece < last
            place = piece + number
            far = tl.load(args + place * F + f, mask=here & has_pieces, other=-1)
            found = tl.where(has_pieces, far, found)
        tl.store(arg + place_of, tl.broadcast_to(found[None, :], [BE, BF]), mask=stored)


@kernel
def extremum_gradient(
    offsets, columns, arg, dy, dx, pieces, owners, parts, F: tl.constexpr, PART: tl.constexpr, BE: tl.constexpr,
    BF: tl.constexpr
):  # fmt: skip
    """``dx[j]`` = sum of ``dy[i]`` over destinations i whose ``arg`` is j.

    Rows are sources; of parallel edges there is one. What is hit lies scattered: as a line it is read one element a
    thread, so that a request touches a sector once.
    """
    unit = tl.program_id(0).to(tl.int64)
    row, begin, end, piece, last = span(offsets, pieces, owners, unit, PART)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    along = dy + (tl.program_id(1) * BF + tl.arange(0, BE * BF) % BF)
    own = row.to(arg.dtype.element_ty)
    here = f < F
    block = tl.zeros([BE * BF], tl.float64 if dx.dtype.element_ty == tl.float64 else tl.float32)
    for at in range(begin, end, BE):
        p = at + tl.arange(0, BE)
        some = p < end
        col = tl.load(columns + p, mask=some, other=0)
        some = some[:, None]
        some = some if F % BF == 0 else some & here[None, :]
        hit = tl.load(arg + col.to(tl.int64)[:, None] * F + f[None, :], mask=some, other=-1) == own
        source = tl.reshape(tl.where(hit, col[:, None], -1), [BE * BF])
        hit = tl.reshape(hit, [BE * BF])
        block += tl.load(along + source.to(tl.int64) * F, mask=hit, other=0.0)
    stored = first_row(BE, here)
    sums = tl.reshape(block, [BE, BF])
    if PART == 2:
        sums = joined(sums, parts, piece, last, f[None, :], here[None, :], F, BE)
    total = tl.broadcast_to(tl.sum(sums, axis=0)[None, :], [BE, BF])
    tl.store(dx + unit * F + f[None, :] + stored * 0, total, mask=stored)


@device
def rescaled(top, highest):
    """Of two largest scores the larger one, what exponents are taken beside, and the factor of sums so far."""
    above = gw_max(top, highest)
    base = tl.where(above == float("-inf"), 0.0, above)
    return above, base, tl.where(top == above, 1.0, tl.exp(top - base))


@kernel
def softmax_of_edges(
    offsets, ids, x, y, pieces, owners, tops, totals, H: tl.constexpr, HAS_IDS: tl.constexpr, LOG: tl.constexpr,
    PART: tl.constexpr, BE: tl.constexpr, BH: tl.constexpr
):  # fmt: skip
    """Softmax, or its logarithm, over the in-edges of a row, for every one of H numbers of an edge.

    Pieces give their largest number and their sum first, and their edges' results when all are known.
    """
    unit = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    _, begin, end, piece, last = span(offsets, pieces, owners, unit, PART)
    ACC: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    top = tl.full([BH], float("-inf"), ACC)
    total = tl.zeros([BH], ACC)
    if PART == 3:
        for at in range(piece, last, BE):
            p = (at + tl.arange(0, BE))[:, None]
            here = (p < last) & (h < H)[None, :]
            t = tl.load(tops + p * H + h[None, :], mask=here, other=float("-inf"))
            above, base, shrink = rescaled(top, tl.reduce(t, 0, gw_max))
            part = tl.load(totals + p * H + h[None, :], mask=here, other=0.0)
            total = total * shrink + tl.sum(part * tl.exp(t - base[None, :]), axis=0)
            top = above
    else:
        for at in range(begin, end, BE):
            p = at + tl.arange(0, BE)
            here = (p < end)[:, None] & (h < H)[None, :]
            place = edge_numbers(ids, p, p < end, HAS_IDS)
            t = tl.load(x + place[:, None] * H + h[None, :], mask=here, other=float("-inf")).to(ACC)
            above, base, shrink = rescaled(top, tl.reduce(t, 0, gw_max))
            total = total * shrink + tl.sum(tl.exp(t - base[None, :]), axis=0)
            top = above
    if PART == 1:
        tl.store(tops + unit * H + h, top, mask=h < H)
        tl.store(totals + unit * H + h, total, mask=h < H)
    else:
        for at in range(begin, end, BE):
            p = at + tl.arange(0, BE)
            here = (p < end)[:, None] & (h < H)[None, :]
            place = edge_numbers(ids, p, p < end, HAS_IDS)
            t = tl.load(x + place[:, None] * H + h[None, :], mask=here, other=0.0).to(ACC) - top[None, :]
            t = t - tl.log(total)[None, :] if LOG else tl.exp(t) / total[None, :]
            tl.store(y + place[:, None] * H + h[None, :], t, mask=here)


@kernel
def softmax_gradient(
    offsets, ids, s, g, y, pieces, owners, totals, H: tl.constexpr, HAS_IDS: tl.constexpr, PART: tl.constexpr,
    BE: tl.constexpr, BH: tl.constexpr
):  # fmt: skip
    """``s * (g - sum over the row of s * g)``; pieces give sums first."""
    unit = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    _, begin, end, piece, last = span(offsets, pieces, owners, unit, PART)
    ACC: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BH], ACC)
    if PART == 3:
        sums = joined(tl.zeros([BE, BH], ACC), totals, piece, last, h[None, :], (h < H)[None, :], H, BE)
        total += tl.sum(sums, axis=0)
    else:
        for at in range(begin, end, BE):
            p = at + tl.arange(0, BE)
            here = (p < end)[:, None] & (h < H)[None, :]
            place = edge_numbers(ids, p, p < end, HAS_IDS)
            there = place[:, None] * H + h[None, :]
            t = tl.load(s + there, mask=here, other=0.0).to(ACC) * tl.load(g + there, mask=here, other=0.0).to(ACC)
            total += tl.sum(t, axis=0)
    if PART == 1:
        tl.store(totals + unit * H + h, total, mask=h < H)
    else:
        for at in range(begin, end, BE):
            p = at + tl.arange(0, BE)
            here = (p < end)[:, None] & (h < H)[None, :]
            place = edge_numbers(ids, p, p < end, HAS_IDS)
            there = place[:, None] * H + h[None, :]
            t = tl.load(g + there, mask=here, other=0.0).to(ACC) - total[None, :]
            tl.store(y + there, tl.load(s + there, mask=here, other=0.0).to(ACC) * t, mask=here)


@device
def drawn_words(block, seed_low, seed_high, stream_low, stream_high):
    """Four words of Philox 4x32-10 by seed, stream and number."""
    low = (block & 0xFFFFFFFF).to(tl.uint32)
    high = (block >> 32).to(tl.uint32)
    none = low * 0
    # A step that is recorded once reads its seed from memory, where every step has another.
    first = tl.load(seed_low) if seed_low.dtype.is_ptr() else seed_low
    second = tl.load(seed_low + 1) if seed_low.dtype.is_ptr() else seed_high
    return tl.philox_impl(
        low, high, (none + stream_low).to(tl.uint32), (none + stream_high).to(tl.uint32),
        (none + first).to(tl.uint32), (none + second).to(tl.uint32)
    )  # fmt: skip


@device
def drawn_sixteen(at, seed_low, seed_high, stream_low, stream_high):
    """16 bits for each element by its place, as the CPU draws them."""
    block = (at // 64) * 8 + (at % 32) // 4
    c0, c1, c2, c3 = drawn_words(block, seed_low, seed_high, stream_low, stream_high)
    first = tl.where((at & 32) != 0, c2, c0)
    second = tl.where((at & 32) != 0, c3, c1)
    word = tl.where((at & 2) != 0, second, first)
    return tl.where((at & 1) != 0, word >> 16, word & 0xFFFF).to(tl.int32)


@kernel
def drop_elements(
    x, ids, y, count, seed_low, seed_high, stream_low, stream_high, FACTOR: tl.constexpr, F: tl.constexpr,
    HAS_IDS: tl.constexpr, THRESHOLD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Dropout with the CPU's draws: 16 bits an element."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    draw = drawn_sixteen(at, seed_low, seed_high, stream_low, stream_high)
    source = tl.load(ids + at // F, mask=here, other=0).to(tl.int64) * F + at % F if HAS_IDS else at
    t = tl.load(x + source, mask=here, other=0.0)
    t = (t if y.dtype.element_ty == tl.float64 else t.to(tl.float32)) * FACTOR
    tl.store(y + at, tl.where(draw >= THRESHOLD, t, 0.0), mask=here)


@kernel
def drop_entries(
    x, rows, columns, y, count, seed_low, seed_high, stream_low, stream_high, FACTOR: tl.constexpr, F: tl.constexpr,
    TURNED: tl.constexpr, THRESHOLD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The same of the stored entries of a matrix of F columns, or of its transpose."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = p < count
    row = tl.load(rows + p, mask=here, other=0).to(tl.int64)
    column = tl.load(columns + p, mask=here, other=0).to(tl.int64)
    at = column * F + row if TURNED else row * F + column
    draw = drawn_sixteen(at, seed_low, seed_high, stream_low, stream_high)
    t = tl.load(x + p, mask=here, other=0.0) * FACTOR
    tl.store(y + p, tl.where(draw >= THRESHOLD, t, 0.0), mask=here)
