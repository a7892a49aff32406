"""Graphs to and from other libraries."""

from graphweft.interop.dgl import from_dgl, to_dgl
from graphweft.interop.explainable import explainable
from graphweft.interop.networkx import from_networkx, to_networkx
from graphweft.interop.pyg import from_pyg
from graphweft.interop.scipy import from_scipy, to_scipy
from graphweft.interop.to_pyg import to_pyg

__all__ = [
    "explainable",
    "from_dgl",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "to_dgl",
    "to_networkx",
    "to_pyg",
    "to_scipy",
]
