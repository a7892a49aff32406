"""The oracle: every operation in plain torch, one obvious line each.

Comes in: a program and its inputs by name (tensors, :class:`Graph`, :class:`SparseFeatures`, seeds). Goes out: the
outputs by name. Differentiable by torch's autograd, so it is also the oracle of the gradient rules; tests run it in
float64. It is the executor at ``opt_level=0`` and wherever nothing compiled exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweft._backward import gradients_from
from graphweft._errors import IRError
from graphweft._torch_private import transforms_are_on, without_transforms
from graphweft.graph.block import Block
from graphweft.graph.degrees import receivers
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.graph.placed import host_of, looped
from graphweft.ir.batch_norm import MEANING as _BATCH_NORM
from graphweft.ir.drawing import draw_block
from graphweft.ir.meaning import MEANING as _ROWS_AND_DIMS
from graphweft.ir.ops import Op
from graphweft.ir.program import Program, Value
from graphweft.ir.typed_meaning import MEANING as _TYPED
from graphweft.storage.feature import SparseFeatures, is_dense

Env = Mapping[str, Any]
_SMALL = 1 << 14  # edges of graphs whose row order is remembered
_MOST_GATHERED = 1 << 18  # elements of rows read for stored entries at once


def interpret(program: Program, inputs: Env) -> dict[str, Any]:
    """Runs ``program`` value by value.

    Raises: IRError when an input is missing.
    """
    results: dict[Value, Any] = {}
    for value in program.values:
        if value.op in (Op.INPUT, Op.GRAPH):
            name = value["name"]
            if name not in inputs:
                raise IRError(f"interpret: expected an input named {name!r}, got {sorted(inputs)}")
            results[value] = inputs[name]
        else:
            results[value] = evaluate(value, [results[operand] for operand in value.inputs])
    return {name: results[value] for name, value in program.outputs}


def evaluate(value: Value, operands: list[Any]) -> Any:
    """The meaning of one operation on concrete operands."""
    if any(isinstance(operand, Tensor | SparseFeatures) for operand in operands):
        return _MEANING[value.op](value, *operands)
    with without_transforms():  # structure is a constant to torch.func, and the graph keeps it
        return _MEANING[value.op](value, *operands)


def edges_in_row_order(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """Source, destination and edge id of every edge, destination by destination (int64)."""
    if graph.num_edges > _SMALL or transforms_are_on():  # those wrap what they make
        return _row_order(graph)
    return derived(graph, _row_order)


def _row_order(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    csc = graph.csc
    place = csc.indptr.device
    rows = torch.arange(csc.num_rows, device=place)
    dst = torch.repeat_interleave(rows, csc.indptr[1:] - csc.indptr[:-1], output_size=csc.num_edges)
    ids = torch.arange(csc.num_edges, device=place) if csc.edge_ids is None else csc.edge_ids.long()
    return csc.indices.long(), dst, ids


def _reduce(graph: Graph, rows: Tensor, kind: str) -> Tensor:
    """Edge rows (by edge id) to destination rows; 0 for a destination without in-edges."""
    _, dst, ids = edges_in_row_order(graph)
    rows = rows if graph.csc.edge_ids is None else rows[ids]
    shape = (graph.num_dst, *rows.shape[1:])
    if kind == "sum":
        return rows.new_zeros(shape).index_add_(0, dst, rows)
    if kind == "mean":
        total = rows.new_zeros(shape).index_add_(0, dst, rows)
        count = graph.in_degrees().clamp(min=1).to(rows.dtype)
        return total / count.view(-1, *([1] * (rows.dim() - 1)))
    arg = _arg(graph, rows[torch.argsort(ids)], kind)
    picked = rows.gather(0, arg.clamp(min=0)) if rows.shape[0] else rows.new_zeros(shape)
    return torch.where(arg >= 0, picked, picked.new_zeros(()))


def _beyond(dtype: torch.dtype, kind: str) -> float:
    """A number that every element beats or equals."""
    if dtype.is_floating_point:
        return -torch.inf if kind == "max" else torch.inf
    if dtype == torch.bool:
        return kind == "min"
    info = torch.iinfo(dtype)
    return info.min if kind == "max" else info.max


def _arg(graph: Graph, rows: Tensor, kind: str) -> Tensor:
    """Row-order position of the first edge that attains the extremum, per destination and column; -1 without edges."""
    _, dst, ids = edges_in_row_order(graph)
    rows = rows.detach()[ids]
    flat = rows.reshape(rows.shape[0], -1) if rows.shape[0] else rows.new_zeros((0, int(np.prod(rows.shape[1:]))))
    width = flat.shape[1]
    best = flat.new_full((graph.num_dst, width), _beyond(flat.dtype, kind))
    best = best.scatter_reduce(0, dst[:, None].expand(-1, width), flat, f"a{kind}", include_self=True)
    hit = (flat == best[dst]) | flat.isnan()
    position = torch.arange(flat.shape[0], device=flat.device)[:, None].expand_as(hit)
    none = flat.shape[0]
    first = dst.new_full((graph.num_dst, width), none)
    first = first.scatter_reduce(0, dst[:, None].expand(-1, width), torch.where(hit, position, none), "amin")
    return torch.where(first == none, -1, first).view(graph.num_dst, *rows.shape[1:])


def _edge_softmax(value: Value, graph: Graph, e: Tensor) -> Tensor:
    _, dst, ids = edges_in_row_order(graph)
    rows = e[ids]
    width = (graph.num_dst, *e.shape[1:])
    index = dst.view(-1, *([1] * (e.dim() - 1))).expand_as(rows)
    top = rows.new_full(width, -torch.inf).scatter_reduce(0, index, rows.detach(), "amax", include_self=True)
    shifted = rows - top[dst]
    total = rows.new_zeros(width).index_add(0, dst, shifted.exp())
    result = shifted - total[dst].log() if value.get("log") else shifted.exp() / total[dst]
    return torch.empty_like(result).index_copy(0, ids, result)


def _edge_margin(value: Value, graph: Graph, e: Tensor) -> Tensor:
    """Pair by pair; ``closed``: a clamp, whose gradient at 0 is 1, in place of a ReLU, whose gradient is 0."""
    _, dst, ids = edges_in_row_order(graph)
    counts = torch.bincount(dst, minlength=graph.num_dst).tolist()
    margins = []
    for rows in torch.split(e[ids], counts):
        pairs = rows[:, None] - rows[None]
        margins.append((pairs.clamp(min=0.0) if value.get("closed") else torch.relu(pairs)).sum(1))
    return _by_edge(graph, torch.cat([e[:0], *margins]))


def _edge_margin_grad(value: Value, graph: Graph, e: Tensor, dout: Tensor) -> Tensor:
    """By torch's autograd."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaf = _alias(e, again)
        margins = _edge_margin(value, graph, leaf)
    found = gradients_from([margins], [leaf], [dout], create_graph=again)[0]
    return torch.zeros_like(leaf) if found is None else found


def _alias(x: Tensor, again: bool) -> Tensor:
    """``x`` to differentiate by; ``again``: in the graph of ``x``, so that the gradient can be differentiated."""
    return x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_()


def _edge_softmax_grad(value: Value, graph: Graph, s: Tensor, g: Tensor) -> Tensor:
    _, dst = graph.edges()
    return s * (g - s.new_zeros((graph.num_dst, *s.shape[1:])).index_add(0, dst, s * g)[dst])


def _scores(value: Value, graph: Graph, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Of every edge and head, in row order."""
    src, dst, _ = edges_in_row_order(graph)
    leaky = torch.nn.functional.leaky_relu
    if value["score"] == "add":
        return leaky(a[src] + b[dst], value["alpha"])
    if value["score"] == "add2":
        return (leaky(x[src] + a[dst], value["alpha"]) * b).sum(-1)
    scores: Tensor = value["scale"] * (a[src] * b[dst]).sum(-1)
    return scores


def _attention(value: Value, graph: Graph, x: Tensor, a: Tensor, b: Tensor, seed: int = 0) -> Tensor:
    src, dst, ids = edges_in_row_order(graph)
    weights = _edge_softmax(value, graph, _by_edge(graph, _scores(value, graph, x, a, b)))
    if value.get("p"):
        weights = (
            weights
            * keep_mask(tuple(weights.shape), value["p"], int(seed), value["stream"], x.device)
            / (1.0 - value["p"])
        )
    return x.new_zeros((graph.num_dst, weights.shape[1], x.shape[2])).index_add(
        0, dst, weights[ids][:, :, None] * x[src]
    )


def _attention_stats(value: Value, graph: Graph, x: Tensor, a: Tensor, b: Tensor, seed: int = 0) -> Tensor:
    """Maximum and inverse sum of each row, 0 without edges; for ``add`` also share and result of the positive edges.

    Positive are those with a positive sum of scores.
    """
    src, dst, ids = edges_in_row_order(graph)
    scores = _scores(value, graph, x, a, b)
    weights = _edge_softmax(value, graph, _by_edge(graph, scores))
    own = weights.new_zeros((graph.num_dst, weights.shape[1]))
    index = dst[:, None].expand_as(scores)
    top = own.scatter_reduce(0, index, scores, "amax", include_self=False)
    total = own.index_add(0, dst, (scores - top[dst]).exp())
    kept = torch.cat([top, torch.where(total > 0, 1.0 / total, own)], 1)
    if value["score"] != "add":
        return kept
    positive = (a[src] + b[dst] > 0) * weights[ids]
    share = own.index_add(0, dst, positive)
    if value.get("p"):
        mask = keep_mask(tuple(weights.shape), value["p"], int(seed), value["stream"], x.device)
        positive = positive * mask[ids] / (1.0 - value["p"])
    plus = x.new_zeros((graph.num_dst, own.shape[1], x.shape[2])).index_add(0, dst, positive[:, :, None] * x[src])
    return torch.cat([kept, share, plus.reshape(plus.shape[0], plus.shape[1] * plus.shape[2])], 1)


def _attention_grad(value: Value, graph: Graph, _: Graph, *operands: Any) -> Tensor:
    """By torch's autograd."""
    *given, _out, _stats, dout = operands
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves: list[Any] = [_alias(t, again) if is_dense(t) else t for t in given]
        out = _attention(value, graph, *leaves)
    wanted: Tensor = leaves[value["wrt"]]
    found = gradients_from([out], [wanted], [dout], create_graph=again)[0]
    return torch.zeros_like(wanted) if found is None else found


def _reduce_mask(value: Value, graph: Graph, e: Tensor) -> Tensor:
    """1 for the first edge that attains the extremum; with ties split, 1/k for each of the k that do."""
    _, dst, ids = edges_in_row_order(graph)
    arg = _arg(graph, e, value["kind"])
    mask = torch.zeros_like(e)
    if not e.numel():
        return mask
    if value["ties"] == "first":
        return _by_edge(graph, mask.scatter_add(0, arg.clamp(min=0), (arg >= 0).to(e.dtype)))
    rows = e[ids]
    hit = (rows == rows.gather(0, arg.clamp(min=0))[dst]).to(e.dtype)
    count = e.new_zeros((graph.num_dst, *e.shape[1:])).index_add(0, dst, hit)
    return _by_edge(graph, hit / count[dst])


def _spmm(value: Value, graph: Graph, x: Tensor, weight: Tensor | None = None) -> Tensor:
    src, _, ids = edges_in_row_order(graph)
    messages = torch.empty_like(x[src]).index_copy(0, ids, x[src]) if graph.csc.edge_ids is not None else x[src]
    if weight is not None:
        messages = messages * weight[:, None]
    out = _reduce(graph, messages, "sum")
    coefficient = float(value.get("self_coef", 0.0))
    if not coefficient:
        return out
    if out.shape == x.shape:
        return out + coefficient * x
    both = min(out.shape[0], x.shape[0])  # on a block, and on its reverse
    return out.index_add(0, torch.arange(both), coefficient * x[:both])


def _by_edge(graph: Graph, rows: Tensor) -> Tensor:
    """Rows in row order rearranged by edge id; themselves where that is the same order."""
    if graph.csc.edge_ids is None:
        return rows
    _, _, ids = edges_in_row_order(graph)
    return torch.empty_like(rows).index_copy_(0, ids, rows)


def _spmm_max(value: Value, graph: Graph, x: Tensor) -> Tensor:
    src, _, _ = edges_in_row_order(graph)
    return _reduce(graph, _by_edge(graph, x[src]), value["kind"])


def _spmm_arg(value: Value, graph: Graph, x: Tensor) -> Tensor:
    src, _, _ = edges_in_row_order(graph)
    position = _arg(graph, _by_edge(graph, x[src]), value["kind"])
    if not len(src):
        return position.to(torch.int32)
    return torch.where(position >= 0, src[position.clamp(min=0)], -1).to(torch.int32)


def _spmm_max_grad(value: Value, graph: Graph, arg: Tensor, dy: Tensor) -> Tensor:
    out = dy.new_zeros((graph.num_src, dy.shape[1]))
    kept = torch.where(arg >= 0, dy, dy.new_zeros(()))
    return out.scatter_add(0, arg.long().clamp(min=0), kept) if graph.num_src else out


def _sddmm(value: Value, graph: Graph, a: Tensor, b: Tensor) -> Tensor:
    src, dst, _ = edges_in_row_order(graph)
    return _by_edge(graph, (a[dst] * b[src]).sum(1))


def _broadcast(value: Value, graph: Graph, x: Tensor) -> Tensor:
    src, dst, _ = edges_in_row_order(graph)
    return _by_edge(graph, x[src if value.op is Op.BROADCAST_SRC else dst])


def _matmul(value: Value, a: Any, b: Tensor) -> Tensor:
    if isinstance(a, SparseFeatures):
        return _sparse_matmul(value, a, b)
    if value.get("ta"):
        a = a.transpose(0, 1)
    product: Tensor = a @ (b.transpose(0, 1) if value.get("tb") else b)
    return product


def _sparse_matmul(value: Value, a: SparseFeatures, b: Tensor) -> Tensor:
    """Stored entry by stored entry: a column per node makes a dense form as large as nodes x nodes."""
    rows = torch.repeat_interleave(torch.arange(a.num_rows), a.indptr[1:] - a.indptr[:-1]).to(b.device)
    columns, values = a.indices.long().to(b.device), a.values.to(b)[:, None]
    right = b.transpose(0, 1) if value.get("tb") else b
    read, written, count = (rows, columns, a.width) if value.get("ta") else (columns, rows, a.num_rows)
    made = b.new_zeros((count, right.shape[1]))
    step = max(1, _MOST_GATHERED // max(right.shape[1], 1))
    for at in range(0, rows.numel(), step):  # a row of `b` for every entry at once may be more than all else
        part = slice(at, at + step)
        made = made.index_add(0, written[part], values[part] * right[read[part]])
    return made


def _pow(value: Value, x: Tensor) -> Tensor:
    shifted, exponent = x + value.get("eps", 0.0), value["exponent"]
    if exponent >= 0:
        grown: Tensor = shifted**exponent
        return grown
    zero = shifted == 0
    return torch.where(zero, shifted.new_zeros(()), torch.where(zero, shifted.new_ones(()), shifted) ** exponent)


def keep_mask(shape: tuple[int, ...], p: float, seed: int, stream: int, place: torch.device | None = None) -> Tensor:
    """Which elements dropout keeps, from NumPy's own generator: the same law as the kernels', other draws."""
    generator = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), stream]))
    return torch.from_numpy(generator.random(shape) >= p).to(place)


def _dropout(value: Value, x: Any, seed: int) -> Any:
    p, stream = value["p"], value["stream"]
    if isinstance(x, SparseFeatures):
        keep = keep_mask((x.nnz,), p, int(seed), stream)
        return SparseFeatures(x.indptr, x.indices, x.values * keep / (1.0 - p), x.shape)
    return x * keep_mask(tuple(x.shape), p, int(seed), stream, x.device) / (1.0 - p)


def _receivers(graph: Graph) -> Tensor:
    ids = receivers(graph)
    return (torch.arange(graph.num_dst) if ids is None else ids).to(graph.device)


def _source_degrees(value: Value, graph: Graph) -> Tensor:
    """Of a block's sources in the whole graph."""
    host, loops = host_of(graph), bool(value.get("loops"))
    if isinstance(host, Block):
        return host.src_degrees(loops).to(graph.device)
    return (host if loops else host.loopless).in_degrees().to(graph.device)


def _take_dst(value: Value, graph: Graph, rows: Tensor) -> Graph:
    return graph.take_dst_with_loops(rows) if value.get("loops") else graph.edges_into(rows)


def _take_rows(value: Value, x: Any, rows: Tensor) -> Any:
    return x.take_rows(rows.cpu()) if isinstance(x, SparseFeatures) else x[rows]


_Meaning = Callable[..., Any]
_MEANING: dict[Op, _Meaning] = {
    Op.REVERSE: lambda v, g: g.reverse(),
    Op.WITHOUT_LOOPS: lambda v, g: g.loopless,
    Op.ONE_LOOP: lambda v, g: looped(g),
    Op.SAMPLE: draw_block,
    Op.SRC_IDS: lambda v, block, g: block.src_ids,
    Op.TAKE_DST: _take_dst,
    Op.SRC_DEGREE: lambda v, g: _source_degrees(v, g).to(v.tensor.dtype),
    Op.RECEIVERS: lambda v, g: _receivers(g),
    Op.IN_DEGREE: lambda v, g: g.in_degrees().to(v.tensor.dtype),
    Op.BROADCAST_SRC: _broadcast,
    Op.BROADCAST_DST: _broadcast,
    Op.REDUCE: lambda v, g, e: _reduce(g, e, v["kind"]),
    Op.SPMM: _spmm,
    Op.SPMM_MAX: _spmm_max,
    Op.SPMM_ARG: _spmm_arg,
    Op.SPMM_MAX_GRAD: _spmm_max_grad,
    Op.SDDMM: _sddmm,
    Op.TAKE_ROWS: _take_rows,
    Op.OWN_ROWS: lambda v, g, x: x[: g.num_dst],
    Op.PAD_ROWS: lambda v, g, x: torch.cat([x, x.new_zeros((g.num_src - g.num_dst, *x.shape[1:]))]),
    Op.SCATTER_ROWS: lambda v, x, rows, like: x.new_zeros((like.shape[0], *x.shape[1:])).index_copy(0, rows, x),
    Op.MATMUL: _matmul,
    Op.BIAS: lambda v, x, b: x + b,
    Op.COL_SCALE: lambda v, x, s: x * s,
    Op.ROW_SCALE: lambda v, x, s: x * s.view(-1, *([1] * (x.dim() - 1))),
    Op.ROW_ADD: lambda v, x, s: x + s.view(-1, *([1] * (x.dim() - 1))),
    Op.ADD: lambda v, x, y: x + y,
    Op.MUL: lambda v, x, y: x * y,
    Op.SCALE: lambda v, x: x * v["factor"],
    Op.MUL_SCALAR: lambda v, x, s: x * s,
    Op.ADD_CONST: lambda v, x: x + v["constant"],
    Op.POW: _pow,
    Op.RELU: lambda v, x: torch.relu(x),
    Op.RELU_MASK: lambda v, g, y: torch.where(y > 0, g, g.new_zeros(())),
    Op.DROPOUT: _dropout,
    Op.MOVE_START: lambda v, x, tier: x,
    Op.MOVE_WAIT: lambda v, x: x,
    Op.COL_SUM: lambda v, x: x.sum(0) / max(x.shape[0], 1) if v.get("mean") else x.sum(0),
    Op.ROW_SUM: lambda v, x: x.sum(1),
    Op.FILL_ROWS: lambda v, r, like: (r / max(like.shape[0], 1) if v.get("mean") else r).expand(like.shape),
    Op.FILL_COLS: lambda v, s: s[:, None].expand(-1, v["width"]),
    Op.DOT: lambda v, x, y: (x * y).sum(),
    Op.EDGE_SOFTMAX: _edge_softmax,
    Op.EDGE_MARGIN: _edge_margin,
    Op.EDGE_MARGIN_GRAD: _edge_margin_grad,
    Op.ATTENTION: _attention,
    Op.ATTENTION_STATS: _attention_stats,
    Op.ATTENTION_GRAD: _attention_grad,
    Op.EDGE_SOFTMAX_GRAD: _edge_softmax_grad,
    Op.REDUCE_MASK: _reduce_mask,
    **{Op[name]: meaning for name, meaning in _BATCH_NORM.items()},
    **_ROWS_AND_DIMS,
    **_TYPED,
}


def meanings() -> frozenset[Op]:
    """The operations the oracle knows; a test compares with the table of operations."""
    return frozenset(_MEANING)
