"""Parts whose nodes have their neighbours' features put together beside their own, over the whole graph.

Comes in: a :class:`PartSource`, rows that were put together. Goes out: the same parts with rows of twice the columns,
and a loader of batches whose first layer reads such a row in the place of drawn in-edges. Called by mode "macro".
Groups leave edges out; the first layer has no parameter before its sum over them, so that can be taken once, over all
in-edges.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block, with_degrees
from graphweft.graph.graph import Graph
from graphweft.loader.batch import Batch, make_batch
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import Group
from graphweft.loader.parts import PartSource
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample
from graphweft.storage.block_io import ReadCounts, aligned_empty
from graphweft.storage.store_types import Types

_REAL = 4


class JointRows(Protocol):
    """The neighbours' features of each node put together as a layer does, over all in-edges."""

    @property
    def has_any(self) -> NDArray[np.bool_]:
        """(N,) which nodes have in-edges."""

    def into(self, first: int, end: int, out: Tensor, counts: ReadCounts | None) -> None:
        """Rows of the nodes ``first`` to ``end``, (n, F), into ``out``; ``counts``: adds what was read."""


class WithJoint:
    """The parts of a source with the joint rows of its nodes behind their own, float32. Attributes as of a source.

    Args:
        plain: A source without types.
        joint: The joint rows.
        degrees: float32 (N,) edges into each node, self-loops left out.
    """

    def __init__(self, plain: PartSource, joint: JointRows, degrees: Tensor) -> None:
        self.plain, self.joint, self.degrees = plain, joint, degrees
        self.has_any = torch.from_numpy(joint.has_any)
        self.bounds, self.edge_counts, self.regions = plain.bounds, plain.edge_counts, plain.regions
        self.types: Types | None = None
        self.has_weights, self.feature_dtype = plain.has_weights, torch.float32
        self.num_features = 2 * plain.num_features
        self.feature_bytes: NDArray[np.int64] = np.diff(plain.bounds) * _REAL * self.num_features
        self.counts: ReadCounts | None = getattr(plain, "counts", None)
        self.structure, self.edge_columns, self.labels = plain.structure, plain.edge_columns, plain.labels
        self.read_ahead = plain.read_ahead

    @property
    def joint_bytes(self) -> NDArray[np.int64]:
        """(parts,) bytes of the joint rows of each part."""
        return self.feature_bytes // 2

    def features_into(self, number: int, out: Tensor) -> None:
        """The rows of a part, (n, 2 F), into ``out``."""
        first, end = self.bounds[number : number + 2].tolist()
        width = self.plain.num_features
        own = aligned_empty((end - first, width), self.plain.feature_dtype)
        self.plain.features_into(number, own)
        out[:, :width] = own
        del own
        self.joint.into(first, end, out[:, width:], self.counts)

    def feature_rows(self, ids: NDArray[np.int64]) -> Tensor:
        """(n, 2 F) rows of nodes with ascending ids; joint ones between the first and the last are read as well."""
        width, out = self.plain.num_features, torch.empty(len(ids), self.num_features)
        out[:, :width] = self.plain.feature_rows(ids)
        if len(ids):
            first, end = int(ids[0]), int(ids[-1]) + 1
            held = aligned_empty((end - first, width), torch.float32)
            self.joint.into(first, end, held, self.counts)
            out[:, width:] = held[torch.from_numpy(ids - first)]
        return out

    def feature_rows_into(self, ids: NDArray[np.int64], out: Tensor, at: Tensor) -> None:
        """As :meth:`feature_rows`, as rows ``at`` of ``out``."""
        out.index_copy_(0, at, self.feature_rows(ids).to(out.dtype))


class WholeFirstLoader(GroupLoader):
    """Batches of groups whose first layer reads joint rows. Args: as for :class:`GroupLoader`, on a ``WithJoint``."""

    source: WithJoint

    @property
    def _hops(self) -> tuple[int, ...]:
        """No hop is drawn for the first layer."""
        return self.fanouts[:-1]

    def _made(self, sample: Sample, group: Group, places: Tensor) -> Batch:
        rows, ids = group.rows(sample.n_id), group.n_id[sample.n_id]
        width, has_any = self.source.plain.num_features, self.source.has_any[ids]
        x = torch.cat([rows[:, :width], rows[has_any, width:]])
        sample.blocks = (joined_block(has_any, self.source.degrees[ids]), *sample.blocks)
        return make_batch(sample, group, places, x)


def joined_block(has_any: Tensor, degrees: Tensor) -> Block:
    """A block of some nodes, each with one neighbour in the place of all, where it has any.

    Sources are the nodes, then the neighbours, in order.

    Args:
        has_any: bool (n,).
        degrees: float32 (n,) edges into each node, self-loops left out.
    """
    own, others = len(has_any), int(has_any.sum())
    offsets = torch.zeros(own + others + 1, dtype=torch.int64)
    torch.cumsum(has_any, 0, out=offsets[1 : own + 1])
    offsets[own + 1 :] = others
    columns = torch.arange(own, own + others, dtype=torch.int32)
    graph = Graph.from_adjacency(Adjacency(offsets, columns, None, own + others))
    with_degrees(graph, torch.cat([degrees, degrees.new_zeros(others)]))
    return NeighborSampler(graph, [-1]).sample(torch.arange(own)).blocks[0]


__all__ = ["JointRows", "WholeFirstLoader", "WithJoint", "joined_block"]
