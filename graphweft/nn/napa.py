"""Destination-centric primitives: weights of edges, weighted aggregation, dense layers; modes by name.

Comes in: a graph and dense tensors. Goes out: edge or node tensors. Each is one compiled program; a new model is a new
choice of modes. Rows that ``neighbor_apply`` gives to edges wait for their reader; ``pull`` makes one program of both
steps, in which no row of an edge is stored. Source: GraphTensor (IPDPS 2023), section IV: NeighborApply, Pull, Apply.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphweft._checks import check_rows
from graphweft._errors import ConfigError, DtypeError, GraphError, ShapeError
from graphweft._torch_private import transforms_are_on
from graphweft.frontend.edge_values import EdgeValues, Recipe, edge_values
from graphweft.frontend.napa import ACTIVATIONS, MODES, REDUCERS, WEIGHTS, write_apply, write_neighbor_apply, write_pull
from graphweft.graph.graph import Graph
from graphweft.ir.program import Builder, Value
from graphweft.ir.residency import Residency
from graphweft.nn.opaque import left_out, opaque, traced, untraced
from graphweft.runtime.compile import Arguments, CompiledFunction
from graphweft.storage.dense_rows import dense_rows
from graphweft.storage.feature import SparseFeatures


@left_out
def neighbor_apply(
    graph: Graph,
    h: Float[Tensor, "nodes f"] | tuple[Float[Tensor, "sources f"], Float[Tensor, "destinations f"]],
    mode: str = "mul",
    weight: Float[Tensor, "both out"] | None = None,
) -> Float[Tensor, "edges *columns"]:
    """One value per edge from the rows of its two ends.

    Args:
        graph: The graph.
        h: Node rows; a pair (source rows, destination rows) on a bipartite graph.
        mode: ``"dot"``, ``"mul"``, ``"add"``, ``"sub"`` (source minus destination), ``"copy"`` (source), or
            ``"concat"`` (the joined rows times ``weight``).
        weight: (2 f, out) for ``"concat"``, else None.

    Shape: h (nodes, f) -> (edges,) for dot, (edges, out) for concat, else (edges, f); row i is edge i. Rows are
        computed when they are read, and not at all where :func:`pull` reads them.

    Raises: ConfigError for an unknown mode; ShapeError for rows that do not fit; GraphWeftError, when the result is
        read, if ``h`` or ``weight`` was changed in place meanwhile.

    Example:
        >>> import torch
        >>> neighbor_apply(Graph([0, 1], [1, 2]), torch.tensor([[1.0], [2.0], [3.0]]), "mul").flatten().tolist()
        [2.0, 6.0]
    """
    _known("neighbor_apply", "mode", mode, MODES)
    if (weight is None) == (mode == "concat"):
        raise ConfigError(f"neighbor_apply: expected a weight for mode 'concat' and for no other, got mode {mode!r}")
    fields = _ends("neighbor_apply", graph, h)
    _check_difference("neighbor_apply", "mode", next(iter(fields.values()))[0].dtype, mode)
    if weight is not None:
        fields["weight"] = (weight, Residency.SHARED)
    recipe = Recipe(graph, mode, fields, functools.partial(_run, _neighbor_apply(mode, graph.is_square), graph))
    return _values(recipe, wait=False) if traced() else _values(recipe)


@opaque
def pull(
    graph: Graph,
    h: Float[Tensor, "sources f"] | tuple[Float[Tensor, "sources f"], Float[Tensor, "destinations _"]],
    edge: Float[Tensor, "edges *columns"] | None = None,
    weight: str = "mul",
    reduce: str = "sum",
) -> Float[Tensor, "destinations f"]:
    """Source rows, weighted by edge values, reduced over the in-edges of every destination.

    Args:
        graph: The graph.
        h: Source rows (a pair on a bipartite graph is accepted; its first part is used).
        edge: Edge values: one number or a row per edge, by edge id; None for mode ``"copy"``.
        weight: ``"mul"``, ``"add"``, ``"sub"`` (row minus value), ``"softmax"`` (times the softmax of the values over
            the in-edges), or ``"copy"``.
        reduce: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``; 0 for a destination without in-edges.

    Shape: h (sources, f), edge (edges,) or (edges, f) -> (destinations, f).

    Raises: ConfigError for an unknown mode; ShapeError for rows that do not fit; DtypeError for numbers that the
        reduction is not defined for.

    Example:
        >>> import torch
        >>> g, h = Graph([0, 1], [2, 2]), torch.tensor([[1.0], [2.0], [3.0]])
        >>> pull(g, h, torch.tensor([3.0, 4.0])).flatten().tolist()
        [0.0, 0.0, 11.0]
    """
    _known("pull", "weight", weight, WEIGHTS)
    _known("pull", "reduce", reduce, REDUCERS)
    fields = _ends("pull", graph, h, sources_only=True)
    if (edge is None) != (weight == "copy"):
        got = "none" if edge is None else "some"
        raise ConfigError(f"pull: expected edge values unless weight is 'copy', got {got} with weight {weight!r}")
    if edge is not None:
        check_rows("pull edge", edge, graph.num_edges, "edge")
        _one_dtype("pull", {"h": next(iter(fields.values()))[0], "edge values": edge})
    _check_numbers(next(iter(fields.values()))[0].dtype, weight, reduce)
    if edge is not None:
        if isinstance(edge, EdgeValues) and edge.waits_for(graph):
            return _pull_joined(graph, fields, edge, weight, reduce)
        fields["edge"] = (edge, Residency.EDGE)
    return _run(_pull(weight, reduce, graph.is_square), graph, fields)


def _check_numbers(dtype: torch.dtype, weight: str, reduce: str) -> None:
    """Rows and edge values are numbers that weight and reduction are defined for. Raises: DtypeError."""
    if weight == "softmax" and not dtype.is_floating_point:
        raise DtypeError(f"pull: expected floating numbers with weight 'softmax', got {dtype}")
    _check_difference("pull", "weight", dtype, weight)
    if dtype.is_complex and reduce in ("max", "min"):
        raise DtypeError(f"pull: expected real numbers with reduce {reduce!r}, got {dtype}; complex ones have no order")


def _check_difference(who: str, what: str, dtype: torch.dtype, name: str) -> None:
    """Raises: DtypeError for a difference of truth values, which torch has none of."""
    if name == "sub" and dtype == torch.bool:
        raise DtypeError(f"{who}: expected numbers with {what} 'sub', got {dtype}; .to(torch.int64) makes some")


def _values(recipe: Recipe, wait: bool = True) -> Tensor:
    """Edge values: numbers and what ``torch.compile`` or a transform reads at once, rows later."""
    call = untraced(recipe.compute) if not wait else recipe.compute
    weight = recipe.fields.get("weight")
    first, _ = next(iter(recipe.fields.values()))
    width = first.shape[1] if weight is None else weight[0].shape[-1]
    fits = weight is None or weight[0].shape[:-1] == (2 * first.shape[1],)
    unseen = any(tensor.is_inference() for tensor, _ in recipe.fields.values())  # torch counts no changes of those
    if not wait or not fits or unseen or recipe.mode == "dot" or width == 1:
        return call(recipe.fields)
    if transforms_are_on():
        return call(recipe.fields)
    return edge_values(recipe, width)


def _pull_joined(graph: Graph, fields: dict[str, Any], edge: EdgeValues, weight: str, reduce: str) -> Tensor:
    """NeighborApply and Pull in one program; rows that both read are one input of it."""
    edge.check()
    names = {
        name: name if name in fields and fields[name][0] is tensor else f"near:{name}"
        for name, (tensor, _) in edge.recipe.fields.items()
    }
    fields |= {names[name]: field for name, field in edge.recipe.fields.items()}
    function = _joined(edge.recipe.mode, weight, reduce, graph.is_square, tuple(names.items()))
    return _run(function, graph, fields)


def push(
    graph: Graph,
    h: Float[Tensor, "sources f"] | tuple[Float[Tensor, "sources f"], Float[Tensor, "destinations _"]],
    edge: Float[Tensor, "edges *columns"] | None = None,
    weight: str = "mul",
    reduce: str = "sum",
) -> Float[Tensor, "destinations f"]:
    """:func:`pull` along reversed edges: destination rows, weighted, reduced over the out-edges of every source.

    Example:
        >>> import torch
        >>> push(Graph([0, 0], [1, 2]), torch.tensor([[1.0], [2.0], [3.0]]), weight="copy").flatten().tolist()
        [5.0, 0.0, 0.0]
    """
    _graph("push", graph)
    return pull(graph.reverse(), h[::-1] if isinstance(h, tuple) else h, edge, weight, reduce)


@opaque
def apply(
    x: Float[Tensor, "rows in"],
    weight: Float[Tensor, "in out"],
    bias: Float[Tensor, "out"] | None = None,
    act: str | None = None,
) -> Float[Tensor, "rows out"]:
    """A dense layer: ``act(x @ weight + bias)``.

    Args:
        x: Rows (n, f), dense or :class:`SparseFeatures`, which stay sparse.
        weight: (f, out).
        bias: (out,) or None.
        act: ``"relu"``, ``"leaky_relu"`` (slope 0.01), ``"elu"``, ``"sigmoid"``, ``"tanh"`` or None.

    Raises: ConfigError for an unknown activation; ShapeError, DtypeError for arguments that do not fit.

    Example:
        >>> import torch
        >>> apply(torch.tensor([[1.0, -2.0]]), torch.eye(2), act="relu").tolist()
        [[1.0, 0.0]]
    """
    if act is not None:
        _known("apply", "act", act, ACTIVATIONS)
    sparse = isinstance(x, SparseFeatures)
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[0]:
        raise ShapeError(
            f"apply: expected x (n, f) and weight (f, out), got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    _one_dtype("apply", {"x": x, "a weight": weight, "a bias": bias})
    fields: dict[str, Any] = {} if sparse else {"node:x": (x, Residency.DST)}
    fields["weight"] = (weight, Residency.SHARED)
    if bias is not None:
        if bias.shape != weight.shape[1:]:
            raise ShapeError(f"apply: expected a bias of {tuple(weight.shape[1:])}, got {tuple(bias.shape)}")
        fields["bias"] = (bias, Residency.SHARED)
    function, graph = _apply(act, bias is not None, sparse), _rows_graph(x.shape[0])
    return function(Arguments(graph, x if sparse else None, {}, None, 0, False, fields))["out"]


def _one_dtype(who: str, tensors: dict[str, Tensor | None]) -> None:
    """All tensors of floats have the dtype of the first. Raises: DtypeError that names the one that has not."""
    (first, start), *others = ((name, tensor) for name, tensor in tensors.items() if tensor is not None)
    for name, tensor in others:
        if tensor.dtype != start.dtype and tensor.is_floating_point():
            kind = f"{start.dtype}, as {first}"
            raise DtypeError(f"{who}: expected {name} of {kind}, got {tensor.dtype}; .to({first}.dtype) casts")


@functools.lru_cache(maxsize=64)
def _rows_graph(rows: int) -> Graph:
    """A graph without edges: just rows."""
    return Graph([], [], num_nodes=rows)


@functools.cache
def _neighbor_apply(mode: str, square: bool) -> CompiledFunction:
    return CompiledFunction(lambda b, inputs, training: {"out": write_neighbor_apply(b, inputs, mode, square)})


@functools.cache
def _pull(weight: str, reduce: str, square: bool) -> CompiledFunction:
    return CompiledFunction(lambda b, inputs, training: {"out": write_pull(b, inputs, weight, reduce, square)})


@functools.cache
def _joined(mode: str, weight: str, reduce: str, square: bool, names: tuple[tuple[str, str], ...]) -> CompiledFunction:
    def describe(b: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
        near = {"graph": inputs["graph"], **{name: inputs[given] for name, given in names}}
        edge = write_neighbor_apply(b, near, mode, square)
        return {"out": write_pull(b, {**inputs, "edge": edge}, weight, reduce, square)}

    return CompiledFunction(describe)


@functools.cache
def _apply(act: str | None, bias: bool, sparse: bool) -> CompiledFunction:
    def describe(b: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
        given = {**inputs, "node:x": inputs["x"]} if sparse else inputs
        return {"out": write_apply(b, given, act, bias)}

    return CompiledFunction(describe)


def _graph(who: str, graph: Any) -> None:
    if not isinstance(graph, Graph):
        raise GraphError(f"{who}: expected a graphweft Graph first, got {type(graph).__name__}")


def _known(who: str, what: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise ConfigError(f"{who}: expected {what} among {', '.join(names)}, got {name!r}")


def _ends(who: str, graph: Graph, h: Any, sources_only: bool = False) -> dict[str, Any]:
    """Node rows as program inputs."""
    _graph(who, graph)
    if graph.is_square:
        if not isinstance(h, Tensor):
            raise ShapeError(f"{who}: expected one tensor of node rows, got {type(h).__name__}")
        check_rows(f"{who} h", h, graph.num_src, "node")
        return {"node:h": (_matrix(who, _with_memory(who, h)), Residency.SRC)}
    src, dst = h if isinstance(h, tuple) else (h, None)
    check_rows(f"{who} h", src, graph.num_src, "source node")
    fields = {"src:h": (_matrix(who, _with_memory(who, src)), Residency.SRC)}
    if not sources_only:
        if dst is None:
            raise ShapeError(
                f"{who}: expected a pair (source rows, destination rows) on a bipartite graph, got one tensor"
            )
        check_rows(f"{who} h", dst, graph.num_dst, "destination node")
        fields["dst:h"] = (_matrix(who, _with_memory(who, dst)), Residency.DST)
    return fields


def _with_memory(who: str, h: Tensor) -> Tensor:
    """``h``, dense where it is sparse features, the same tensor at every call."""
    return dense_rows(who, h, kept=True)[0] if isinstance(h, SparseFeatures) else h


def _matrix(who: str, h: Tensor) -> Tensor:
    if h.dim() != 2:
        raise ShapeError(f"{who}: expected rows (nodes, f), got shape {tuple(h.shape)}")
    return h


def _run(function: CompiledFunction, graph: Graph, fields: dict[str, Any]) -> Tensor:
    return function(Arguments(graph, None, {}, None, 0, False, fields))["out"]
