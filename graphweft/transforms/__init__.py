"""Transforms of graphs and data sets: splits, encodings of nodes, diffusion, graphs made of graphs and of points."""

from graphweft.data.link_split import LinkSplit, split_links
from graphweft.transforms.derived_graphs import drop_edges, largest_component, line_graph, metapath_graph
from graphweft.transforms.diffusion import gdc, sign_features
from graphweft.transforms.encodings import laplacian_encoding, local_degree_profile, random_walk_encoding
from graphweft.transforms.near_points import knn_graph, radius_graph
from graphweft.transforms.node_split import split_nodes
from graphweft.transforms.reorder import reorder
from graphweft.transforms.virtual import virtual_nodes

__all__ = [
    "LinkSplit",
    "drop_edges",
    "gdc",
    "knn_graph",
    "laplacian_encoding",
    "largest_component",
    "line_graph",
    "local_degree_profile",
    "metapath_graph",
    "radius_graph",
    "random_walk_encoding",
    "reorder",
    "sign_features",
    "split_links",
    "split_nodes",
    "virtual_nodes",
]
