"""Every sampler again, in plain Python over lists and dicts: what the native ones are compared with, bit for bit.

Shares with them the definition of a draw (``counter.py``) and nothing else. Graphs are lists of in-edges by node, each
a pair (source, edge id) in the order of edge ids.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from sample.counter import (
    ITEM,
    LAYER,
    MASK64,
    WALK,
    WIDE,
    below,
    bits,
    block,
    by_weight_again,
    exponential_keys,
    floyd,
    key_of,
    mix64,
    shuffle_start,
    unit,
)

from graphweft.graph.graph import Graph

InEdges = list[list[tuple[int, int]]]
Key = tuple[int, int, int]


def in_edges(graph: Graph) -> InEdges:
    lists: InEdges = [[] for _ in range(graph.num_dst)]
    src, dst = (ends.tolist() for ends in graph.edges())
    for edge, (s, d) in enumerate(zip(src, dst, strict=True)):
        lists[d].append((s, edge))
    return lists


def out_edges(graph: Graph) -> InEdges:
    """Rows of sources, in order of destination."""
    return [sorted(row, key=lambda entry: entry[0]) for row in in_edges(graph.reverse())]


class Layer(NamedTuple):
    """A block: numbers of the destinations' edges' sources and edge ids, row by row."""

    rows: list[list[tuple[int, int]]]
    num_src: int
    norms: list[list[float]] | None = None


Node = TypeVar("Node")


def _number(nodes: list[Node], known: dict[Node, int], node: Node) -> int:
    if node not in known:
        known[node] = len(nodes)
        nodes.append(node)
    return known[node]


def row_draws(
    degree: int, k: int, replace: bool, weights: Sequence[float] | None, seed: int, hop: int, node: int
) -> tuple[list[int], list[float]]:
    """Offsets that a row draws, ascending, and the factors of unbiased sums."""

    def draw(i: int) -> int:
        return bits(seed, WIDE | hop << 32 | i, node)

    able = degree if weights is None else sum(w > 0 for w in weights)
    count = able if k < 0 else (k if able else 0) if replace else min(able, k)
    if count == 0:
        return [], []
    if weights is None:
        if replace:
            out = [below(draw(i), degree) for i in range(count)]
        elif count == degree:
            out = list(range(degree))
        else:
            out = shuffle_start(degree, count, lambda i, n: below(draw(i), n))
        return sorted(out), [degree / count] * count
    if replace:
        out = sorted(by_weight_again(weights, count, draw))
        return out, [sum(weights) / (count * weights[i]) for i in out]
    keys = exponential_keys(weights, draw)
    limit = keys[count][0] if count < len(keys) else math.inf
    out = sorted(place for _, place in keys[:count])
    return out, [-1 / math.expm1(-weights[i] * limit) for i in out]


def node_draws(
    ids: Sequence[int], weights: Sequence[float] | None, k: int, replace: bool, key: Key, hop: int
) -> dict[int, float]:
    """Places that are drawn for a layer, with the factors of unbiased sums."""
    seed, given = key_of(*key), [1.0] * len(ids) if weights is None else list(weights)
    able = [i for i, w in enumerate(given) if w > 0]
    if not able or k == 0:
        return {}
    if replace:
        chosen = by_weight_again([given[i] for i in able], k, lambda i: bits(seed, LAYER | hop, i))
        total = sum(given[i] for i in able)
        return {able[c]: chosen.count(c) * total / (k * given[able[c]]) for c in sorted(set(chosen))}
    if k < 0 or k >= len(able):
        return {i: 1.0 for i in able}
    keys = sorted((-math.log(unit(bits(seed, LAYER | hop, ids[i])) + 2.0**-54) / given[i], i) for i in able)
    limit = keys[k][0]
    uniform = len(able) / k
    return {
        i: uniform if weights is None else -1 / math.expm1(-given[i] * limit)
        for i in sorted(place for _, place in keys[:k])
    }


def neighbor(
    graph: Graph,
    seeds: Sequence[int],
    fanouts: Sequence[int],
    replace: bool,
    weights: Sequence[float] | None,
    key: Key,
) -> tuple[list[int], list[Layer]]:
    """Node ids in batch numbering, and the blocks from the seeds outwards."""
    into, seed = in_edges(graph), key_of(*key)
    limits = [math.inf if k < 0 else k for k in fanouts]
    nodes, known = list(seeds), {node: i for i, node in enumerate(seeds)}
    drawn: list[list[int]] = []  # offsets by row
    layers = []
    for hop, limit in enumerate(limits):
        ends = len(nodes)
        first = len(drawn)
        width, least = max(limits[hop:]), min(limits[hop:])
        for row in range(first, ends):
            drawn.append(_neighbor_row(into, nodes[row], width, least, replace, weights, seed, hop))
        taken = [drawn[row][: int(min(limit, len(drawn[row])))] for row in range(ends)]
        entries = [[into[nodes[row]][offset] for offset in offsets] for row, offsets in enumerate(taken)]
        for source in sorted({source for row in entries for source, _ in row}):
            _number(nodes, known, source)
        layers.append(Layer([[(known[source], edge) for source, edge in row] for row in entries], len(nodes)))
    return nodes, layers


def _neighbor_row(
    into: InEdges,
    node: int,
    width: float,
    least: float,
    replace: bool,
    weights: Sequence[float] | None,
    seed: int,
    hop: int,
) -> list[int]:
    n = len(into[node])
    here = None if weights is None else [weights[edge] for _, edge in into[node]]
    able = n if here is None else sum(w > 0 for w in here)
    k = (int(width) if able else 0) if replace else int(min(width, able))

    def wide(i: int) -> int:
        return bits(seed, WIDE | hop << 32 | i, node)

    if k == 0:
        return []
    if here is not None:
        return by_weight_again(here, k, wide) if replace else [p for _, p in exponential_keys(here, wide)[:k]]
    return _uniform_places(n, k, least, replace, seed, hop, node)


def _uniform_places(n: int, k: int, least: float, replace: bool, seed: int, hop: int, name: int) -> list[int]:
    """The ``k`` of ``n`` entries that are drawn under a name, in random order where a hop keeps ``least`` of them."""

    def wide(i: int) -> int:
        return bits(seed, WIDE | hop << 32 | i, name)

    def narrow(i: int, bound: int) -> int:
        words = block(seed, hop << 32 | i // 4, name)
        return (words[i % 4] * bound) >> 32

    if not replace and k == n and least >= n:
        return list(range(n))
    if n > 2**16 or k > 64:
        if replace:
            return [below(wide(i), n) for i in range(k)]
        return shuffle_start(n, k, lambda i, bound: below(wide(i), bound))
    if replace:
        return [narrow(i, n) for i in range(k)]
    return floyd(n, k, narrow, ordered=least < k)


def layer_wise(
    graph: Graph, seeds: Sequence[int], sizes: Sequence[int], importance: str | Sequence[float], replace: bool, key: Key
) -> tuple[list[int], list[Layer]]:
    into = in_edges(graph)
    nodes, known = list(seeds), {node: i for i, node in enumerate(seeds)}
    layers = []
    for hop, size in enumerate(sizes):
        rows = list(range(graph.num_nodes)) if importance == "fastgcn" else list(nodes)
        sums: dict[int, float] = {}
        for row in rows:
            for source, _ in into[row]:
                sums[source] = sums.get(source, 0.0) + float(len(into[row])) ** -2
        ids = list(sums)
        weights: Sequence[float] | None = list(sums.values())
        if importance == "uniform":
            weights = None
        elif not isinstance(importance, str):
            weights = [importance[i] for i in ids]
        chosen = {ids[place]: norm for place, norm in node_draws(ids, weights, size, replace, key, hop).items()}
        targets = list(nodes)
        for node in chosen:
            _number(nodes, known, node)
        kept = [[(known[s], e) for s, e in into[row] if s in chosen] for row in targets]
        norms = [[chosen[s] for s, _ in into[row] if s in chosen] for row in targets]
        layers.append(Layer(kept, len(nodes), norms))
    return nodes, layers


def walk(
    onto: InEdges,
    start: int,
    item: int,
    length: int,
    p: float,
    q: float,
    restart: float,
    weights: Sequence[float] | None,
    key: Key,
) -> list[int]:
    """One walk over rows ``onto``; for a biased one rows are in order of their columns."""
    seed, out, before = key_of(*key), [start], -1
    biased = p != 1 or q != 1
    for step in range(length):

        def draw(number: int, step: int = step) -> int:
            return bits(seed, WALK | step << 16 | number, item)

        here = out[-1]
        row = onto[here] if here >= 0 else []
        if biased:
            row = sorted(row, key=lambda entry: entry[0])
        given = [1.0 if weights is None else weights[edge] for _, edge in row]
        stuck = not any(w > 0 for w in given)
        if restart > 0 and (stuck or unit(draw(0)) < restart):
            out.append(start)
            before = -1
            continue
        if stuck:
            out.append(-1)
            continue

        def propose(value: int, row: list[tuple[int, int]] = row, given: list[float] = given) -> int:
            if weights is None:
                return row[below(value, len(row))][0]
            return row[by_weight_again(given, 1, lambda _: value)[0]][0]

        out.append(
            propose(draw(1)) if not biased or before < 0 else _biased(onto, row, given, before, p, q, draw, propose)
        )
        before = here
    return out


def _biased(onto, row, given, before, p, q, draw, propose) -> int:  # type: ignore[no-untyped-def]
    def bias(to: int) -> float:
        return 1 / p if to == before else 1.0 if any(s == to for s, _ in onto[before]) else 1 / q

    most = max(1.0, 1 / p, 1 / q)
    for attempt in range(1, 33):
        to = propose(draw(2 * attempt))
        if unit(draw(2 * attempt + 1)) * most < bias(to):
            return int(to)
    exact = [w * bias(source) for w, (source, _) in zip(given, row, strict=True)]
    return int(row[by_weight_again(exact, 1, lambda _: draw(66))[0]][0])


class Tree(NamedTuple):
    """What a seed sees: of the edges by id those with times in [low, high], but for those that are left out."""

    key: int
    low: float = -math.inf
    high: float = math.inf
    left_out: frozenset[tuple[int, int, int]] = frozenset()  # relation, source, destination; where not before `high`


def segment(
    graph: Graph,
    seeds: Sequence[int],
    fanouts: Sequence[Sequence[int]],
    replace: bool,
    key: Key,
    trees: Sequence[Tree],
    times: Sequence[float] | None = None,
    *,
    apart: bool = False,
    recent: bool = False,
) -> tuple[list[int], list[int], list[Layer]]:
    """Node ids, the tree of each and the blocks; fan-outs by hop and relation. ``apart``: a tree for every seed."""
    into, seed = in_edges(graph), key_of(*key)
    relation = graph.edge_type().tolist() if graph.relations else [0] * graph.num_edges
    limits = [[math.inf if k < 0 else k for k in hop] for hop in fanouts]
    nodes = [(i if apart else 0, node) for i, node in enumerate(seeds)]
    known = {pair: number for number, pair in enumerate(nodes)}
    drawn: list[list[list[tuple[int, int]]]] = []  # by row and relation
    layers = []
    for hop, limit in enumerate(limits):
        for number in range(len(drawn), len(nodes)):
            tree, node = nodes[number]
            sees, row = trees[tree], []
            base = mix64(seed ^ mix64(sees.key)) if apart else seed
            for kind in range(len(limit)):
                stretch = _seen(into[node], node, kind, relation, times, sees)
                later = [of[kind] for of in limits[hop:]]
                name = mix64((mix64((base + kind) & MASK64) + node) & MASK64)
                n, width = len(stretch), max(later)
                k = (int(width) if n else 0) if replace else int(min(width, n))
                last = range(n - 1, n - 1 - k, -1)
                places = last if recent else _uniform_places(n, k, min(later), replace, seed, hop, name)
                row.append([stretch[place] for place in places])
            drawn.append(row)
        reached, rows = len(nodes), []
        for number in range(reached):
            taken = [e for kind, edges in enumerate(drawn[number]) for e in edges[: int(min(limit[kind], len(edges)))]]
            rows.append([((nodes[number][0], source), edge) for source, edge in taken])
        for pair in sorted({pair for row in rows for pair, _ in row}):
            _number(nodes, known, pair)
        rows = [[(known[pair], edge) for pair, edge in row] for row in rows]
        layers.append(Layer(rows, len(nodes)))
    return [node for _, node in nodes], [tree for tree, _ in nodes], layers


def _seen(
    row: list[tuple[int, int]],
    node: int,
    kind: int,
    relation: Sequence[int],
    times: Sequence[float] | None,
    sees: Tree,
) -> list[tuple[int, int]]:
    """The edges of one relation that a tree sees in a row, in order of time, then of id."""
    able = []
    for source, edge in row:
        time = math.inf if times is None else times[edge]
        hidden = (kind, source, node) in sees.left_out and time >= sees.high
        if relation[edge] == kind and not hidden and (times is None or sees.low <= time <= sees.high):
            able.append((time, edge, source))
    return [(source, edge) for _, edge, source in sorted(able)]


def induced(into: InEdges, nodes: Sequence[int]) -> list[list[tuple[int, int]]]:
    known = {node: i for i, node in enumerate(nodes)}
    return [[(known[s], e) for s, e in into[node] if s in known] for node in nodes]


def shadow(
    graph: Graph,
    roots: Sequence[int],
    fanouts: Sequence[int],
    replace: bool,
    weights: Sequence[float] | None,
    key: Key,
) -> tuple[list[int], list[int], list[list[tuple[int, int]]]]:
    """Node ids, owners and rows of the union."""
    into, egos = in_edges(graph), []
    for root in roots:
        seed = mix64(key_of(*key) ^ mix64(root))
        nodes, known, begin = [root], {root: 0}, 0
        for hop, fanout in enumerate(fanouts):
            end = len(nodes)
            for node in nodes[begin:end]:
                for offset in _shadow_row(into[node], fanout, replace, weights, seed, hop, node):
                    _number(nodes, known, into[node][offset][0])
            begin = end
        egos.append(nodes)
    ids = [(nodes[0], i) for i, nodes in enumerate(egos)]
    ids += [(node, i) for i, nodes in enumerate(egos) for node in nodes[1:]]
    place = {pair: number for number, pair in enumerate(ids)}
    rows = []
    for node, owner in ids:
        inside = set(egos[owner])
        rows.append([(place[s, owner], e) for s, e in into[node] if s in inside])
    return [node for node, _ in ids], [owner for _, owner in ids], rows


def _shadow_row(
    row: list[tuple[int, int]],
    fanout: int,
    replace: bool,
    weights: Sequence[float] | None,
    seed: int,
    hop: int,
    node: int,
) -> list[int]:
    n = len(row)
    here = None if weights is None else [weights[edge] for _, edge in row]
    able = n if here is None else sum(w > 0 for w in here)
    k = able if fanout < 0 else (fanout if able else 0) if replace else min(able, fanout)

    def draw(i: int) -> int:
        return bits(seed, WIDE | hop << 32 | i, node)

    if k == 0:
        return []
    if here is not None:
        return by_weight_again(here, k, draw) if replace else [p for _, p in exponential_keys(here, draw)[:k]]
    if replace:
        return [below(draw(i), n) for i in range(k)]
    return list(range(n)) if k == n else shuffle_start(n, k, lambda i, bound: below(draw(i), bound))


def items(numbers: Sequence[int], weights: Sequence[float] | None, count: int, key: Key) -> list[int]:
    """A place for every item."""
    seed, running = key_of(*key), list(itertools.accumulate(weights or []))
    out = []
    for item in numbers:
        value = bits(seed, ITEM, item)
        if weights is None:
            out.append(below(value, count))
        else:
            out.append(min(bisect.bisect_right(running, unit(value) * running[-1]), running.index(running[-1])))
    return out
