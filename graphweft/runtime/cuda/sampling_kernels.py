"""Kernels of neighbour sampling: draws of in-edges, numbers for what they reach, and rows of features.

Comes in: in-edges of a graph, nodes of a hop, the key of a batch. Goes out: places in rows, ids, numbers. The draws are
those of ``csrc/include/graphweft/pick.h``, number for number: Philox by node and hop, 32 bits a draw where a row has at
most 64 draws and 65,536 edges, else 64. Nothing is stored by two programs, and there are no atomics: what is new is
found among sorted ids. Called by ``sampling.py``. Sources: Floyd's algorithms F and P, and the first steps of a
Fisher-Yates shuffle (Bentley and Floyd, CACM 1987).
"""
# Triton has types of its own, and Python's are not checked here.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

from graphweft.runtime.cuda.jit import device, kernel
from graphweft.runtime.cuda.kernels import drawn_words

tl: Any = None  # triton.language, once a kernel is asked for


@kernel
def seat(message, nodes, ends, numbers, room, BLOCK: tl.constexpr):
    """Puts the seeds of a message (key, count, ids) in front of the nodes, and numbers them."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(message + 1)
    here = at < count
    own = tl.load(message + 2 + at, mask=here, other=0)
    tl.store(nodes + at, own, mask=here)
    tl.store(numbers + own, at.to(tl.int32), mask=here)
    if tl.program_id(0) == 0:
        tl.store(ends + 1, count)


@kernel
def count_draws(
    offsets, first, nodes, ends, begins, degrees, counts, hop, room, width, HAS_HOT: tl.constexpr,
    REPLACE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Where the in-edges of each node of a hop begin, how many they are, and how many are drawn: none beyond them.

    With ``HAS_HOT`` the lists begin where ``first`` says, seen from the first column: some in another memory.
    """
    local = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ends + hop) + local
    here = row < tl.load(ends + hop + 1)
    node = tl.load(nodes + row, mask=here, other=0)
    begin = tl.load(offsets + node, mask=here, other=0)
    degree = tl.load(offsets + node + 1, mask=here, other=0) - begin
    if HAS_HOT:
        begin = tl.load(first + node, mask=here, other=0)
    count = tl.where(degree > 0, width, 0) if REPLACE else tl.minimum(degree, width)
    tl.store(begins + local, begin, mask=here)
    tl.store(degrees + local, degree, mask=here)
    tl.store(counts + local, count, mask=local < room)


@kernel
def draw_few(
    nodes, names, ends, begins, degrees, upto, columns, starts, places, ids, least, seed_low, seed_high, hop,
    KIND: tl.constexpr, HAS_NAMES: tl.constexpr, NARROW: tl.constexpr, FEW: tl.constexpr, K: tl.constexpr,
    BR: tl.constexpr
):  # fmt: skip
    """Rows with few draws, each a row of a block; KIND 0: with replacement, 1: a set, 2: in random order.

    ``upto``: draws up to and with each row of the hop. Offsets are stored for rows of many draws too.
    """
    local = (tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR))[:, None]
    i = tl.arange(0, K)[None, :]
    first = tl.load(ends + hop)
    row = first + local
    here = row < tl.load(ends + hop + 1)
    node = tl.load(nodes + row, mask=here, other=0)
    if HAS_NAMES:
        node = tl.load(names + node, mask=here, other=0)
    begin = tl.load(begins + local, mask=here, other=0)
    degree = tl.load(degrees + local, mask=here, other=0)
    base = tl.load(starts + first)
    start = base + tl.load(upto + local - 1, mask=here & (local > 0), other=0)
    end = base + tl.load(upto + local, mask=here, other=0)
    tl.store(starts + row + 1, end, mask=here)
    count = end - start
    mine = here & (degree <= NARROW) & (count <= FEW)
    n, k = tl.where(mine, degree, 0).to(tl.int32), tl.where(mine, count, 0).to(tl.int32)
    c0, c1, c2, c3 = drawn_words(node + i * 0, seed_low, seed_high, i // 4, hop)
    word = tl.where(i % 4 >= 2, tl.where(i % 2 == 1, c3, c2), tl.where(i % 2 == 1, c1, c0))
    last = n - k + i
    bound = n + i * 0 if KIND == 0 else last + 1
    drawn = ((word.to(tl.uint64) * bound.to(tl.uint64)) >> 32).to(tl.int32)
    value = drawn
    place = i + n * 0
    if KIND > 0:
        value = n * 0 + i * 0 - 1
        for t in range(0, K):
            now = tl.sum(tl.where(i == t, drawn, 0), axis=1)[:, None]
            # beyond a row's own draws nothing moves
            hit = (value == now) & (t < k)
            taken = tl.max(hit.to(tl.int32), axis=1)[:, None] > 0
            at = t
            if KIND == 2:  # `last` goes in front of what was drawn again, and all from there on move up
                at = tl.where(taken, tl.sum(tl.where(hit, place, 0), axis=1)[:, None], t)
                place = tl.where((place >= at) & (i < t), place + 1, place)
            value = tl.where(i == t, tl.where(taken, last, now), value)
            place = tl.where(i == t, at, place)
        whole = (k >= n) & (least >= n)
        value = tl.where(whole, i, value)
        place = tl.where(whole, i, place)
    kept = mine & (i < k)
    tl.store(places + start + place, value, mask=kept)
    tl.store(ids + start + place, tl.load(columns + begin + value, mask=kept, other=0).to(tl.int64), mask=kept)


@device
def wide_below(node, seed_low, seed_high, i, stream, n):
    """A draw of 64 bits, below ``n`` < 2^32, by the upper half of the product."""
    c0, c1, _, _ = drawn_words(node, seed_low, seed_high, i, stream)
    bound = n.to(tl.uint64)
    return ((c1.to(tl.uint64) * bound + ((c0.to(tl.uint64) * bound) >> 32)) >> 32).to(tl.int64)


@kernel
def draw_many(
    which, nodes, names, ends, begins, degrees, starts, rooms, columns, order, places, ids, least, seed_low,
    seed_high, hop, stream, REPLACE: tl.constexpr, HAS_NAMES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """A row of many draws, or of many edges, by one program: the steps of a shuffle follow each other.

    ``order`` has room for a row's edges from ``rooms`` on.
    """
    own = tl.program_id(0).to(tl.int64)
    local = tl.load(which + own)
    row = tl.load(ends + hop) + local
    node = tl.load(nodes + row)
    if HAS_NAMES:
        node = tl.load(names + node)
    begin = tl.load(begins + local)
    n = tl.load(degrees + local)
    start = tl.load(starts + row)
    k = tl.load(starts + row + 1) - start
    lane = tl.arange(0, BLOCK)
    if REPLACE:
        for at in range(0, k, BLOCK):
            i = at + lane
            value = wide_below(node + i * 0, seed_low, seed_high, i, stream, n)
            tl.store(places + start + i, value.to(tl.int32), mask=i < k)
            source = tl.load(columns + begin + value, mask=i < k, other=0).to(tl.int64)
            tl.store(ids + start + i, source, mask=i < k)
    else:
        if (k >= n) & (least >= n):
            for at in range(0, k, BLOCK):
                i = at + lane
                tl.store(places + start + i, i.to(tl.int32), mask=i < k)
                tl.store(ids + start + i, tl.load(columns + begin + i, mask=i < k, other=0).to(tl.int64), mask=i < k)
        else:
            room = order + tl.load(rooms + own)
            for at in range(0, n, BLOCK):
                tl.store(room + at + lane, (at + lane).to(tl.int32), mask=at + lane < n)
            tl.debug_barrier()
            for i in range(0, k):
                place = i + wide_below(node, seed_low, seed_high, i, stream, n - i)
                theirs = tl.load(room + place)
                mine = tl.load(room + i)
                tl.debug_barrier()  # all threads have read before one of them writes
                tl.store(room + place, mine)
                tl.store(places + start + i, theirs)
                tl.store(ids + start + i, tl.load(columns + begin + theirs.to(tl.int64)).to(tl.int64))
                tl.debug_barrier()


@kernel
def drawn_by(ids, starts, ends, keys, hop, room, none, BLOCK: tl.constexpr):
    """What the rows of a hop drew, and ``none`` beyond it."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.load(starts + tl.load(ends + hop))
    end = tl.load(starts + tl.load(ends + hop + 1))
    own = tl.load(ids + begin + at, mask=begin + at < end, other=none)
    tl.store(keys + at, own, mask=at < room)


@kernel
def first_new(keys, numbers, flags, count, nodes, BLOCK: tl.constexpr):
    """Whether an id, among ascending ones, is the first of its kind and without a number; none from ``nodes`` on."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    own = tl.load(keys + at, mask=here, other=0).to(tl.int64)
    before = tl.load(keys + at - 1, mask=here & (at > 0), other=-1).to(tl.int64)
    known = tl.load(numbers + own, mask=here & (own < nodes), other=0)
    tl.store(flags + at, ((own != before) & (known < 0)).to(tl.int32), mask=here)


@kernel
def number_new(keys, flags, upto, nodes, numbers, ends, hop, count, BLOCK: tl.constexpr):
    """Numbers what is flagged, after the nodes that are there; ``upto``: flags up to and with each."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(ends + hop + 1)
    new = at < count
    new = new & (tl.load(flags + at, mask=new, other=0) > 0)
    own = tl.load(keys + at, mask=new, other=0).to(tl.int64)
    number = first + tl.load(upto + at, mask=new, other=1) - 1
    tl.store(nodes + number, own, mask=new)
    tl.store(numbers + own, number.to(tl.int32), mask=new)
    if tl.program_id(0) == 0:
        tl.store(ends + hop + 2, first + tl.load(upto + count - 1))


@kernel
def look_up(ids, numbers, out, starts, ends, hops, BLOCK: tl.constexpr):
    """The numbers of the ids that all hops drew."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < tl.load(starts + tl.load(ends + hops))
    own = tl.load(ids + at, mask=here, other=0)
    tl.store(out + at, tl.load(numbers + own, mask=here, other=0), mask=here)


@kernel
def forget(nodes, ends, numbers, hops, BLOCK: tl.constexpr):
    """Takes the numbers from all nodes of a batch."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < tl.load(ends + hops + 1)
    own = tl.load(nodes + at, mask=here, other=0)
    tl.store(numbers + own, tl.full((BLOCK,), -1, tl.int32), mask=here)


@kernel
def count_kept(starts, ends, counts, hop, room, limit, BLOCK: tl.constexpr):
    """Edges of each row before the end of a hop, at most ``limit``; none beyond them."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = row < tl.load(ends + hop + 1)
    count = tl.load(starts + row + 1, mask=here, other=0) - tl.load(starts + row, mask=here, other=0)
    tl.store(counts + row, tl.minimum(count, limit), mask=row < room)


@kernel
def keep_first(starts, kept, ends, values, out, hop, limit, K: tl.constexpr, BR: tl.constexpr):
    """The first values of each row before the end of a hop, as many as ``kept`` has room for: at most ``limit``."""
    row = (tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR))[:, None]
    lane = tl.arange(0, K)[None, :]
    here = row < tl.load(ends + hop + 1)
    start = tl.load(starts + row, mask=here, other=0)
    begin = tl.load(kept + row, mask=here, other=0)
    count = tl.load(kept + row + 1, mask=here, other=0) - begin
    for at in range(0, limit, K):
        i = at + lane
        mine = here & (i < count)
        tl.store(out + begin + i, tl.load(values + start + i, mask=mine, other=0), mask=mine)


@kernel
def read_rows(
    ids, places, kept, table, out, hits, rows, W: tl.constexpr, BW: tl.constexpr, BR: tl.constexpr
):  # fmt: skip
    """Rows of ``W`` words: from ``kept`` those that have a place there, the others from ``table``, of host memory."""
    own = tl.program_id(0).to(tl.int64)
    row = own * BR + tl.arange(0, BR)
    here = row < rows
    node = tl.load(ids + row, mask=here, other=0)
    place = tl.load(places + node, mask=here, other=-1).to(tl.int64)
    near = here & (place >= 0)
    tl.store(hits + own, tl.sum(near.to(tl.int32), axis=0))
    near, far, mine = near[:, None], (here & (place < 0))[:, None], here[:, None]
    for at in range(0, W, BW):
        word = (at + tl.arange(0, BW))[None, :]
        inside = word < W
        words = tl.load(kept + place[:, None] * W + word, mask=near & inside, other=0)
        others = tl.load(table + node[:, None] * W + word, mask=far & inside, other=0)
        tl.store(out + row[:, None] * W + word, tl.where(near, words, others), mask=mine & inside)
