"""Features of nodes from the graph alone, for graphs that come without any.

Comes in: a graph and a kind. Goes out: a float32 matrix, dense or sparse, with a row per node. Called by
``Dataset.with_features``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._checks import as_integer
from graphweft._errors import ConfigError
from graphweft.data.feature_kinds import FEATURE_KINDS, USUAL_WIDTH
from graphweft.graph.graph import Graph
from graphweft.partitioning.partition import undirected
from graphweft.storage.feature import Features, SparseFeatures

_DENSE_UP_TO = 200  # nodes; below that all eigenvectors are found at once
_TOLERANCE = 1e-6
_MOST_DEGREES = 256  # columns; the last one is for its degree and all above
_NEAR = 1e-4  # entries this close to the largest one count as equal to it


def structure_features(graph: Graph, kind: str, width: int | None = None, seed: int = 0) -> Features:
    """Features of the kind called ``kind``, see ``Dataset.with_features``.

    Shape: (nodes, columns), float32.

    Raises: ConfigError for an unknown kind, or a width that the kind does not take.

    Example:
        >>> structure_features(Graph([0, 1, 1], [1, 0, 2]), "degree").shape
        torch.Size([3, 3])
    """
    if kind not in FEATURE_KINDS:
        raise ConfigError(f"features: expected one of {', '.join(FEATURE_KINDS)}, got {kind!r}")
    columns = _width(graph, kind, width)
    if kind == "degree":
        return _degrees(graph)
    if kind == "degree_onehot":
        degrees = graph.in_degrees().clamp(max=_MOST_DEGREES - 1)
        return torch.nn.functional.one_hot(degrees).float()
    if kind == "random":
        return torch.randn(graph.num_nodes, columns, generator=torch.Generator().manual_seed(seed))
    if kind == "laplacian":
        return torch.from_numpy(_laplacian(graph, columns, seed).astype(np.float32))
    return _identity(graph.num_nodes)


def _width(graph: Graph, kind: str, width: int | None) -> int:
    """The number of columns. Raises: ConfigError."""
    if kind not in USUAL_WIDTH:
        if width is not None:
            raise ConfigError(
                f"width: expected none with features {kind}, whose columns follow from the graph, got {width}"
            )
        return 0
    most = graph.num_nodes - 1 if kind == "laplacian" else 10**6
    if width is None:
        return min(USUAL_WIDTH[kind], max(most, 1))
    number = as_integer(width)
    if number is None or not 1 <= number <= most:
        raise ConfigError(f"width: expected an integer from 1 to {most} with features {kind}, got {width!r}")
    return number


def _identity(nodes: int) -> SparseFeatures:
    """Row i has a one in column i."""
    return SparseFeatures(torch.arange(nodes + 1), torch.arange(nodes), torch.ones(nodes), (nodes, nodes))


def _degrees(graph: Graph) -> Tensor:
    """Logarithms of in- and out-degrees (once where they are the same), of mean 0 and deviation 1, and a one."""
    sides = [graph.in_degrees()] if graph.is_symmetric else [graph.in_degrees(), graph.out_degrees()]
    columns = [torch.log1p(degrees.double()) for degrees in sides]
    scaled = [(column - column.mean()) / (column.std(correction=0) or 1.0) for column in columns]
    return torch.stack([*scaled, torch.ones(graph.num_nodes, dtype=torch.float64)], dim=1).float()


def _laplacian(graph: Graph, count: int, seed: int) -> NDArray[np.float64]:
    """Eigenvectors 1 to ``count`` of I - D^-1/2 A D^-1/2 by ascending eigenvalue, of mean square 1.

    A has every edge in both directions, once, without self-loops. The sign of a vector is that of its first largest
    entry, which is positive. Eigenvector 0, which knows the degrees only, is left out.
    """
    csc = undirected(graph.without_self_loops()).to_simple().csc
    nodes = graph.num_nodes
    data = np.ones(csc.num_edges)
    adjacency: Any = scipy.sparse.csr_array((data, csc.indices.numpy(), csc.indptr.numpy()), shape=(nodes, nodes))
    degrees = np.diff(csc.indptr.numpy())
    scale = np.divide(1.0, np.sqrt(degrees), out=np.zeros(nodes), where=degrees > 0)
    scaled = scipy.sparse.diags_array(scale) @ adjacency @ scipy.sparse.diags_array(scale)
    if nodes <= _DENSE_UP_TO or count + 1 >= nodes // 2:
        values, vectors = scipy.linalg.eigh(scaled.toarray())
    else:
        start = np.random.Generator(np.random.PCG64(seed)).standard_normal(nodes)
        try:
            values, vectors = scipy.sparse.linalg.eigsh(scaled, count + 1, which="LA", v0=start, tol=_TOLERANCE)
        except scipy.sparse.linalg.ArpackError as failure:
            text = " ".join(str(failure).split())
            raise ConfigError(f"features: expected eigenvectors of the Laplacian, got: {text}; try degree") from None
    order = np.argsort(-values, kind="stable")[1 : count + 1]  # the largest of these are the Laplacian's smallest
    chosen = vectors[:, order]
    size = np.abs(chosen)
    first = np.argmax(size >= size.max(axis=0) * (1 - _NEAR), axis=0)
    chosen = chosen * np.where(chosen[first, np.arange(chosen.shape[1])] < 0, -1.0, 1.0)
    out: NDArray[np.float64] = chosen * np.sqrt(nodes)
    return out
