"""Diffusion before training: features of several hops, and graphs of who reaches whom.

Comes in: a graph, for features of hops a matrix too. Goes out: matrices, or a weighted graph. Called by users. Sources:
SIGN (Frasca et al., 2020), GDC (Klicpera et al., NeurIPS 2019).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from graphweft._checks import as_integer
from graphweft._errors import ConfigError, GraphError
from graphweft.graph.graph import Graph
from graphweft.sample.weights import as_weights

_ENTRIES = 1 << 22  # of the dense block that columns of the diffusion are computed in
_LEAST = 1e-8  # what a term of the series must weigh to be added
_MOST_TERMS = 10_000


def sign_features(graph: Graph, x: Float[Tensor, "nodes f"], hops: int) -> list[Float[Tensor, "nodes f"]]:
    """SIGN features: ``[x, S x, S S x, ...]`` for ``hops`` multiplications by ``S = D^-1/2 A D^-1/2``.

    D are the in-degrees, and no self-loops are added. The joined matrices are features for a plain perceptron.

    Shape: (N, F) -> hops + 1 matrices (N, F).

    Raises: ConfigError, GraphError.

    Example:
        >>> [rows.tolist() for rows in sign_features(Graph([0, 1], [1, 0]), torch.tensor([[1.0], [3.0]]), 1)]
        [[[1.0], [3.0]], [[3.0], [1.0]]]
    """
    number = as_integer(hops)
    if number is None or number < 0:
        raise ConfigError(f"sign_features: expected hops as an integer >= 0, got {hops!r}")
    _check("sign_features", graph)
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[0] != graph.num_nodes or x.layout != torch.strided:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ConfigError(f"sign_features: expected dense features of {graph.num_nodes} nodes, got {got}")
    src, dst = (ends.numpy() for ends in graph.edges())
    root = _inverse(np.sqrt(graph.in_degrees().numpy().astype(np.float64)))
    sparse: Any = scipy.sparse.csr_array((root[src] * root[dst], (dst, src)), shape=(graph.num_nodes,) * 2)
    rows = [x.detach().double().numpy()]
    for _ in range(number):
        rows.append(sparse @ rows[-1])
    return [x, *(torch.from_numpy(made).to(x.dtype) for made in rows[1:])]


def gdc(
    graph: Graph,
    *,
    kind: str = "ppr",
    alpha: float = 0.15,
    time: float = 5.0,
    top_k: int | None = None,
    eps: float | None = None,
    self_loop: float = 1.0,
    normalize_in: str = "sym",
    normalize_out: str = "col",
    weight: Any = None,
) -> Graph:
    """GDC: the graph of a diffusion, with an edge i -> j, and its weight, if much of the diffusion from j reaches i.

    The series ``sum_t theta_t T^t`` is summed column by column until its terms are below 1e-8, so it takes little
    memory. Its time is proportional to columns x edges x terms.

    Args:
        graph: A square graph.
        kind: "ppr": theta_t = alpha (1 - alpha)^t; "heat": exp(-time) time^t / t!.
        alpha: For "ppr", probability of returning to the start in each step.
        time: For "heat", the diffusion time.
        top_k: Number of the largest entries to keep for every destination. Pass either ``top_k`` or ``eps``.
        eps: Smallest entry to keep.
        self_loop: Weight of a self-loop that is added to every node first; 0: none.
        normalize_in: Normalisation of T: "sym", "col" (columns sum to 1) or "row".
        normalize_out: Normalisation of the result: the same values, or "none".
        weight: (E,) weights >= 0 of the edges; None: 1.

    Returns: A graph with ``edata["weight"]``, float32.

    Raises: ConfigError, GraphError, ShapeError.

    Example:
        >>> near = gdc(Graph([0, 1, 1, 2], [1, 0, 2, 1]), top_k=2)
        >>> near.num_edges, near.edata["weight"].sum().item()
        (6, 3.0)
    """
    _check("gdc", graph)
    _check_choices(kind, normalize_in, normalize_out)
    keep = _keep(top_k, eps, graph.num_nodes)
    step = _transition(graph, weight, float(self_loop), normalize_in)
    nodes = graph.num_nodes
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
    width = max(_ENTRIES // max(nodes, 1), 1)
    for first in range(0, nodes, width):
        columns = np.arange(first, min(first + width, nodes))
        start = np.zeros((nodes, len(columns)))
        start[columns, columns - first] = 1.0
        dense = _series(step, start, kind, alpha, time)
        row, column = keep(dense)
        found.append((row, column + first, dense[row, column]))
    row, column, value = (np.concatenate(part) for part in zip(*found, strict=True))
    made = Graph(row, column, num_nodes=nodes)
    made.edata["weight"] = torch.from_numpy(_normalized(row, column, value, nodes, normalize_out).astype(np.float32))
    return made


def _check_choices(kind: str, normalize_in: str, normalize_out: str) -> None:
    """Raises: ConfigError."""
    if kind not in ("ppr", "heat"):
        raise ConfigError(f"gdc: expected kind as one of ppr, heat, got {kind!r}")
    ways = {"normalize_in": ("sym", "col", "row"), "normalize_out": ("sym", "col", "row", "none")}
    for name, value in (("normalize_in", normalize_in), ("normalize_out", normalize_out)):
        if value not in ways[name]:
            raise ConfigError(f"gdc: expected {name} as one of {', '.join(ways[name])}, got {value!r}")


def _keep(top_k: Any, eps: Any, nodes: int) -> Any:
    """A function from a dense block to the places of the entries to keep. Raises: ConfigError."""
    if (top_k is None) == (eps is None):
        raise ConfigError(f"gdc: expected one of top_k and eps, got top_k={top_k!r} and eps={eps!r}")
    if eps is not None:
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not eps > 0:
            raise ConfigError(f"gdc: expected eps > 0, got {eps!r}")
        return lambda dense: np.nonzero(dense >= eps)
    number = as_integer(top_k)
    if number is None or number < 1:
        raise ConfigError(f"gdc: expected top_k as an integer >= 1, got {top_k!r}")
    most = min(number, nodes)

    def largest(dense: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        row = np.argsort(-dense, axis=0, kind="stable")[:most]
        column = np.broadcast_to(np.arange(dense.shape[1]), row.shape)
        full = dense[row, column] > 0
        return row[full], column[full]

    return largest


def _transition(graph: Graph, weight: Any, loop: float, way: str) -> Any:
    """T, sources as rows."""
    if loop < 0:
        raise ConfigError(f"gdc: expected self_loop >= 0, got {loop}")
    src, dst = (ends.numpy() for ends in graph.edges())
    values = np.ones(len(src)) if weight is None else as_weights("gdc", weight, len(src), "edge").double().numpy()
    if loop:
        own = np.arange(graph.num_nodes)
        src, dst = np.concatenate([src, own]), np.concatenate([dst, own])
        values = np.concatenate([values, np.full(len(own), loop)])
    values = _normalized(src, dst, values, graph.num_nodes, way)
    return scipy.sparse.csr_array((values, (src, dst)), shape=(graph.num_nodes,) * 2)


def _series(step: Any, rows: NDArray[np.float64], kind: str, alpha: float, time: float) -> NDArray[np.float64]:
    """``sum_t theta_t T^t rows``."""
    if kind == "ppr" and not 0 < alpha < 1:
        raise ConfigError(f"gdc: expected alpha between 0 and 1, got {alpha!r}")
    if kind == "heat" and not 0 < time < 100:
        raise ConfigError(f"gdc: expected time between 0 and 100, got {time!r}")
    share = alpha if kind == "ppr" else math.exp(-time)
    total = share * rows
    for number in range(1, _MOST_TERMS):
        share *= (1 - alpha) if kind == "ppr" else time / number
        rows = step @ rows
        total += share * rows
        if share < _LEAST and (kind == "ppr" or number > time):
            break
    return total


def _normalized(
    src: NDArray[np.int64], dst: NDArray[np.int64], values: NDArray[np.float64], nodes: int, way: str
) -> NDArray[np.float64]:
    """Weights of edges, normalised; by columns those into a node sum to 1."""
    if way == "none":
        return values
    into, out = (np.bincount(ends, values, nodes).astype(np.float64) for ends in (dst, src))
    if way == "sym":
        root = _inverse(np.sqrt(into))
        both: NDArray[np.float64] = values * root[src] * root[dst]
        return both
    one: NDArray[np.float64] = values * (_inverse(into)[dst] if way == "col" else _inverse(out)[src])
    return one


def _inverse(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / v, and 0 for 0."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


def _check(who: str, graph: Graph) -> None:
    if not isinstance(graph, Graph) or not graph.is_square or graph.is_typed:
        raise GraphError(f"{who}: expected an untyped graph over one set of nodes, got {graph!r}")
