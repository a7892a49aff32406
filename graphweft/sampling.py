"""Samplers, walks and blocks, under their public names: ``gw.sampling``.

A sampler is given to :class:`graphweft.Loader` (``sampler=``), or called by itself.
"""

from graphweft.graph.block import Block
from graphweft.sample.cluster import ClusterSampler
from graphweft.sample.hgt import HGTSampler
from graphweft.sample.induced import InducedSampler
from graphweft.sample.labor import LaborSampler
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.metapath import metapath_walk, visited_neighbors
from graphweft.sample.negative import NegativeSampler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.primitives import collective_sample, compact, individual_sample
from graphweft.sample.saint import SaintEdgeSampler, SaintNodeSampler, SaintWalkSampler
from graphweft.sample.segment import SegmentSampler
from graphweft.sample.shadow import ShadowSampler
from graphweft.sample.walk import WalkSampler, random_walk
from graphweft.sample.whole_graphs import GraphSampler

__all__ = [
    "Block",
    "ClusterSampler",
    "GraphSampler",
    "HGTSampler",
    "InducedSampler",
    "LaborSampler",
    "LayerSampler",
    "NegativeSampler",
    "NeighborSampler",
    "SaintEdgeSampler",
    "SaintNodeSampler",
    "SaintWalkSampler",
    "SegmentSampler",
    "ShadowSampler",
    "WalkSampler",
    "collective_sample",
    "compact",
    "individual_sample",
    "metapath_walk",
    "random_walk",
    "visited_neighbors",
]
