"""What a sampled batch must satisfy, checked edge by edge in plain NumPy, without anything of the sampler's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from graphweft.graph.graph import Graph
from graphweft.sample.sampler import Sample


def in_edges(graph: Graph) -> dict[int, list[int]]:
    """Edge ids by destination, from the graph's edge list."""
    lists: dict[int, list[int]] = {}
    for edge, dst in enumerate(graph.edges()[1].tolist()):
        lists.setdefault(dst, []).append(edge)
    return lists


def check_sample(
    graph: Graph,
    seeds: Sequence[int],
    fanouts: Sequence[int],
    sample: Sample,
    replace: bool = False,
    weight: np.ndarray | None = None,
) -> None:
    src, dst = (ends.numpy() for ends in graph.edges())
    into = in_edges(graph)
    n_id = sample.n_id.numpy()
    assert sample.batch_size == len(seeds)
    assert n_id[: len(seeds)].tolist() == list(seeds)
    assert len(set(n_id.tolist())) == n_id.size
    assert len(sample.blocks) == len(fanouts)

    # block by block, from the seeds outwards: who draws, how many, from where
    reached = len(seeds)
    union: dict[int, int] = {}
    for block, fanout in zip(reversed(sample.blocks), fanouts, strict=True):
        assert block.num_dst == reached
        ids, (s, d) = block.e_id.numpy(), (ends.numpy() for ends in block.edges())
        assert (n_id[s] == src[ids]).all() and (n_id[d] == dst[ids]).all()
        assert block.src_ids.tolist() == n_id[: block.num_src].tolist()
        counts = np.bincount(d, minlength=reached)
        for row in range(reached):
            able = [e for e in into.get(int(n_id[row]), []) if weight is None or weight[e] > 0]
            drawn = ids[d == row]
            assert set(drawn.tolist()) <= set(able)
            again = fanout if able else 0
            expected = again if replace else min(len(able), len(able) if fanout == -1 else fanout)
            assert counts[row] == expected
            if not replace:
                assert len(set(drawn.tolist())) == drawn.size
        new = [v for v in dict.fromkeys(s.tolist()) if v >= reached]
        assert sorted(new) == list(range(reached, block.num_src))
        assert (np.diff(n_id[reached : block.num_src]) > 0).all()
        reached = block.num_src
        for edge in ids.tolist():
            union[edge] = max(union.get(edge, 0), int((ids == edge).sum()))
    assert reached == n_id.size == sample.num_nodes

    # the batch as one graph: every drawn edge once
    ids, (s, d) = sample.e_id.numpy(), sample.edge_index.numpy()
    assert ids.size == sample.num_edges
    assert (n_id[s] == src[ids]).all() and (n_id[d] == dst[ids]).all()
    assert (np.diff(d) >= 0).all()
    values, counts = np.unique(ids, return_counts=True)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == union


def same(a: Sample, b: Sample) -> bool:
    """Whether two samples are the same bits."""
    pairs = [(a.n_id, b.n_id), (a.edge_index, b.edge_index), (a.e_id, b.e_id)]
    for x, y in zip(a.blocks, b.blocks, strict=True):
        pairs += [(x.csc.indptr, y.csc.indptr), (x.csc.indices, y.csc.indices), (x.e_id, y.e_id)]
    return all(torch.equal(x, y) for x, y in pairs)
