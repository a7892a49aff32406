"""Layer-neighbour sampling: rows share the random numbers of their sources, so that a batch reaches fewer nodes.

Comes in: seeds. Goes out: a :class:`Sample` with one block per hop. Called by the loader. Source: LABOR (Balin and
Catalyurek, NeurIPS 2023).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._checks import as_integer
from graphweft._errors import ConfigError, GraphError
from graphweft.graph.block import Block, DrawnEdges
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.sample.in_edges import in_edges
from graphweft.sample.keyed import keyed_uniforms
from graphweft.sample.layer_wise import LayerSample
from graphweft.sample.pieces import Pieces
from graphweft.sample.sampler import Sample, ShownBySettings, as_seeds, check_fanouts

_LAYERS_ALIKE = 1 << 32  # what draws are keyed by in the place of the hop


class LaborSampler(ShownBySettings):
    """LABOR: every destination draws about ``fanouts[h]`` of its in-edges, by random numbers of the sources.

    Source t has one random number r(t) per hop. A destination of in-degree d takes the edge from t if r(t) <= k / d. It
    gets k edges on average in place of exactly k, with the variance of neighbour sampling. Destinations share their
    sources more often, so the batch has fewer nodes. ``block.edge_norm`` makes sums over in-edges unbiased. Layers that
    divide by the drawn in-degree need no factor.

    Draws are keyed by (seed, epoch, stage, source, hop) and do not depend on the number of threads.

    Args:
        graph: A square graph.
        fanouts: In-edges that a node of each hop draws on average, from the seeds outwards; -1: all.
        iterations: Number of steps that raise the chances of sources which several destinations share (LABOR-i); 0:
            equal chances.
        layer_dependent: Whether all hops use the same random numbers, so that they reach more of the same nodes.

    Raises: ConfigError, GraphError.

    Example:
        >>> sample = LaborSampler(Graph([1, 2, 3, 1, 2, 3], [0, 0, 0, 4, 4, 4]), [2]).sample([0, 4])
        >>> rows = [sample.blocks[0].csc.indices[i : j].tolist() for i, j in zip(*[iter([0, 2, 2, 4])] * 2)]
        >>> rows[0] == rows[1]
        True
    """

    def __init__(self, graph: Graph, fanouts: Any, *, iterations: int = 0, layer_dependent: bool = False) -> None:
        who = type(self).__name__
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        rounds = as_integer(iterations)
        if rounds is None or not 0 <= rounds <= 100:
            raise ConfigError(f"{who}: expected iterations as an integer from 0 to 100, got {iterations!r}")
        self.graph, self.fanouts = graph, check_fanouts(who, fanouts)
        self.iterations, self.layer_dependent = rounds, bool(layer_dependent)
        self._pieces = Pieces(graph)

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        return {
            "labor_fanouts": list(self.fanouts),
            "iterations": self.iterations,
            "layer_dependent": self.layer_dependent,
        }

    def sample(self, seeds: Ids, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Sample:
        """The batch of ``seeds``: distinct node ids, a mask or a slice.

        Raises: IndexRangeError for an id that is no node, ConfigError for one that comes twice.
        """
        n_id = as_seeds(self._pieces.distinct, seeds, self.graph.num_nodes)
        count, made = n_id.numel(), list[Block]()
        for hop, fanout in enumerate(self.fanouts):
            rows = n_id
            row, source, _, offset = in_edges(self.graph, rows.numpy())
            chance = self._chances(row, source, rows.numel(), fanout)
            keyed = (seed, epoch, stage, _LAYERS_ALIKE if self.layer_dependent else hop)
            kept = keyed_uniforms(keyed, source) < chance
            row, source, offset, chance = row[kept], source[kept], offset[kept], chance[kept]
            n_id, numbers = self._pieces.distinct(torch.cat([rows, torch.from_numpy(source)]))
            indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows.numel()))])
            arrays = (numbers[rows.numel() :].int(), torch.from_numpy(offset.astype(np.int32)))
            edges = DrawnEdges(self.graph, n_id, torch.from_numpy(indptr), *arrays)
            made.append(Block.of(edges, n_id.numel(), torch.from_numpy((1 / chance).astype(np.float32))))
        return LayerSample(n_id, count, tuple(reversed(made)))

    def _chances(
        self, row: NDArray[np.int64], source: NDArray[np.int64], rows: int, fanout: int
    ) -> NDArray[np.float64]:
        """The chance of every in-edge: their sum over a row is the smaller of fan-out and in-degree."""
        if fanout == -1 or not len(row):
            return np.ones(len(row))
        shared, of = np.unique(source, return_inverse=True)
        weight = np.ones(len(shared))
        scale = _scales(row, weight[of], rows, fanout)
        for _ in range(self.iterations):
            largest = np.zeros(len(shared))
            np.maximum.at(largest, of, np.minimum(scale[row], 1e300))
            weight = np.minimum(weight * largest, 1e300)
            scale = _scales(row, weight[of], rows, fanout)
        return np.minimum(1.0, scale[row] * weight[of])


def _scales(row: NDArray[np.int64], weight: NDArray[np.float64], rows: int, fanout: int) -> NDArray[np.float64]:
    """(rows,): c with sum of min(1, c w) over a row equal to ``fanout``; so large that all are 1 in shorter rows.

    Example:
        >>> _scales(np.array([0, 0, 0]), np.array([4.0, 1.0, 1.0]), 1, 2).tolist()
        [0.5]
    """
    degrees = np.bincount(row, minlength=rows)
    order = np.lexsort((-weight, row))
    ordered, start = weight[order], np.cumsum(degrees) - degrees
    place = np.arange(len(row)) - start[row]
    below = np.cumsum(ordered[::-1])[::-1]  # sums to the end of everything; those of later rows are taken off
    ends = np.append(below, 0.0)[start + degrees]
    rest = below - ends[row]
    scale = np.full(rows, np.inf)
    long = degrees > fanout
    candidate = (fanout - place) / rest
    fits = long[row] & (place < fanout) & (candidate * ordered <= 1 + 1e-12)
    first = np.flatnonzero(fits)[::-1]
    scale[row[first]] = candidate[first]
    return np.where(np.isfinite(scale), scale, 1 / np.maximum(_least(row, weight, rows), 1e-300))


def _least(row: NDArray[np.int64], weight: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """(rows,) the smallest weight of every row, infinity where there is none."""
    least = np.full(rows, np.inf)
    np.minimum.at(least, row, weight)
    return least
