"""NeighborApply, Pull and Apply against dense torch, and gradient checks of every triple of modes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import CASES, Case, random_edges

import graphweft as gw
from graphweft.frontend.edge_values import EdgeValues
from graphweft.frontend.napa import ACTIVATIONS, MODES, REDUCERS, WEIGHTS
from graphweft.ir.residency import TensorType
from graphweft.nn import napa
from graphweft.passes.edges import NARROW

F64 = torch.float64
SMALL = [
    case for case in CASES if case.name in ("no_edges", "isolated", "multi_edges", "random", "bipartite", "one_loop")
]


def rows(count: int, *dims: int, seed: int = 0) -> Tensor:
    return torch.randn((count, *dims), dtype=F64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def ends(case: Case) -> tuple[Tensor, Tensor]:
    src = rows(case.num_src, 3)
    return src, (rows(case.num_dst, 3, seed=1) if case.bipartite else src)


def given(case: Case, src: Tensor, dst: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    return (src, dst) if case.bipartite else src


def dense_pull(case: Case, h: Tensor, edge: Tensor | None, weight: str, reduce: str) -> Tensor:
    """A loop over destinations."""
    out = []
    for node in range(case.num_dst):
        into = (case.dst == node).nonzero().flatten()
        m = h[case.src[into]]
        if edge is not None:
            e = edge[into] if edge.dim() == 2 else edge[into, None]
            m = {
                "mul": lambda m, e: m * e,
                "add": lambda m, e: m + e,
                "sub": lambda m, e: m - e,
                "softmax": lambda m, e: m * torch.softmax(e, 0),
            }[weight](m, e)
        if not len(into):
            out.append(m.new_zeros(3))
        else:
            out.append({"sum": m.sum(0), "mean": m.mean(0), "max": m.max(0)[0], "min": m.min(0)[0]}[reduce])
    return torch.stack(out) if out else h.new_zeros((0, 3))


def dense_neighbor(case: Case, src: Tensor, dst: Tensor, mode: str, weight: Tensor | None) -> Tensor:
    s, d = src[case.src], dst[case.dst]
    if mode == "concat":
        assert weight is not None
        return torch.cat([s, d], 1) @ weight
    return {"dot": (s * d).sum(1), "mul": s * d, "add": s + d, "sub": s - d, "copy": s}[mode]


def assert_same(got: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(got, expected)
    seed = torch.randn(expected.shape, dtype=F64, generator=torch.Generator().manual_seed(5))
    if expected.requires_grad:
        pairs = [torch.autograd.grad((y * seed).sum(), leaves, materialize_grads=True) for y in (got, expected)]
        for mine, theirs in zip(*pairs, strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("case", SMALL, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_neighbor_apply(mode: str, case: Case) -> None:
    src, dst = ends(case)
    weight = rows(6, 2, seed=2) if mode == "concat" else None
    got = gw.neighbor_apply(case.graph(), given(case, src, dst), mode=mode, weight=weight)
    leaves = [src, *([dst] if case.bipartite else []), *([weight] if weight is not None else [])]
    assert_same(got, dense_neighbor(case, src, dst, mode, weight), leaves)


@pytest.mark.parametrize("case", SMALL, ids=str)
@pytest.mark.parametrize("reduce", REDUCERS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_pull_and_push(weight: str, reduce: str, case: Case) -> None:
    src, dst = ends(case)
    for width in ((), (3,)):
        edge = None if weight == "copy" else rows(case.num_edges, *width, seed=3)
        column = edge if edge is None or width else edge.unsqueeze(1)
        got = gw.pull(case.graph(), given(case, src, dst), column, weight=weight, reduce=reduce)
        leaves = [src, *([] if edge is None else [edge])]
        assert_same(got, dense_pull(case, src, edge, weight, reduce), leaves)
        turned = Case(case.name, case.dst, case.src, case.num_dst, case.num_src, case.bipartite)
        got = gw.push(case.graph(), given(case, src, dst), column, weight=weight, reduce=reduce)
        assert_same(got, dense_pull(turned, dst, edge, weight, reduce), [dst, *([] if edge is None else [edge])])


@pytest.mark.parametrize("act", [None, *ACTIVATIONS])
@pytest.mark.parametrize("bias", [False, True])
def test_apply(act: str | None, bias: bool) -> None:
    x, weight = rows(7, 3), rows(3, 4, seed=1)
    b = rows(4, seed=2) if bias else None
    z = x @ weight + (0.0 if b is None else b)
    expected = z if act is None else getattr(torch.nn.functional, act)(z)
    assert_same(gw.apply(x, weight, b, act=act), expected, [x, weight, *([b] if b is not None else [])])


@pytest.mark.parametrize(("mode", "weight", "reduce"), list(product(MODES, WEIGHTS, REDUCERS)))
def test_every_triple_of_modes_is_gradient_checked(mode: str, weight: str, reduce: str) -> None:
    """SPEC N04: edge values by g, weighting by h, reduction by f; a model for every triple."""
    graph = gw.Graph([0, 1, 2, 0, 3, 3], [1, 2, 0, 2, 2, 1], num_nodes=5)
    h = rows(5, 2)
    w = rows(4, 2, seed=1) if mode == "concat" else None

    def model(*leaves: Tensor) -> Tensor:
        edge = None
        if weight != "copy":
            edge = gw.neighbor_apply(graph, leaves[0], mode=mode, weight=leaves[1] if mode == "concat" else None)
            edge = edge.unsqueeze(1) if mode == "dot" else edge
        return gw.pull(graph, leaves[0], edge, weight=weight, reduce=reduce)

    assert torch.autograd.gradcheck(model, (h, w) if w is not None else (h,))


@pytest.mark.parametrize("mode", [m for m in MODES if m != "dot"])
@pytest.mark.parametrize("weight", [w for w in WEIGHTS if w != "copy"])
def test_both_steps_are_one_program_that_stores_no_row_of_an_edge(mode: str, weight: str) -> None:
    """SPEC N06: numbers per edge at most, forward and backward."""
    edges = random_edges(2000, 40_000, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=2000)
    h = torch.randn(2000, 32, requires_grad=True)
    w = torch.randn(64, 32, requires_grad=True) if mode == "concat" else None
    edge = gw.neighbor_apply(graph, h, mode=mode, weight=w)
    out = gw.pull(graph, h, edge, weight=weight)
    assert isinstance(edge, EdgeValues) and edge.waits_for(graph)  # nobody has computed its rows
    names = (("node:h", "node:h"), *((("weight", "near:weight"),) if w is not None else ()))
    plan = napa._joined(mode, weight, "sum", True, names).plans()[-1]
    made = [v for group in plan.compiled.groups for v in (group.result, *group.taps)]
    stored = [v for v in made if isinstance(v.type, TensorType) and v.tensor.rows == "E"]
    assert max((prod(v.tensor.dims) for v in stored), default=0) <= NARROW
    leaves = [h, *([] if w is None else [w])]
    plain = gw.pull(graph, h, edge.clone(), weight=weight)
    torch.testing.assert_close(out, plain, rtol=1e-4, atol=1e-3)
    seed = torch.randn(out.shape)
    for mine, theirs in zip(*(torch.autograd.grad(y, leaves, seed) for y in (out, plain)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


def test_edge_values_are_tensors_for_every_other_reader() -> None:
    graph, h = gw.Graph([0, 1, 2, 0], [1, 2, 0, 2]), rows(3, 2)
    edge, plain = gw.neighbor_apply(graph, h, mode="add"), (h[[0, 1, 2, 0]] + h[[1, 2, 0, 2]])
    assert edge.shape == (4, 2) and edge.dtype == F64 and edge.requires_grad
    assert_same(torch.relu(edge) * 2 + edge[:, :1], torch.relu(plain) * 2 + plain[:, :1], [h])
    edge, plain = gw.neighbor_apply(graph, h, mode="add"), (h[[0, 1, 2, 0]] + h[[1, 2, 0, 2]])
    assert_same(gw.apply(edge, rows(2, 3, seed=1)), plain @ rows(2, 3, seed=1), [h])
    edge, plain = gw.neighbor_apply(graph, h, mode="add"), (h[[0, 1, 2, 0]] + h[[1, 2, 0, 2]])
    turned = gw.push(graph, h, edge)  # on another graph: the reversed one
    dense = torch.zeros(3, 2, dtype=F64).index_add(0, torch.tensor([0, 1, 2, 0]), h[[1, 2, 0, 2]] * plain)
    assert_same(turned, dense, [h])
    edge, plain = gw.neighbor_apply(graph, h, mode="add"), (h[[0, 1, 2, 0]] + h[[1, 2, 0, 2]])
    sent = gw.update_all(
        graph,
        lambda edges: {"m": edges.data["w"]},
        lambda nodes: {"h": nodes.mailbox["m"].sum(1)},
        edata={"w": edge},
    )["h"]
    assert_same(sent, torch.zeros(3, 2, dtype=F64).index_add(0, torch.tensor([1, 2, 0, 2]), plain), [h])
    assert (edge.detach() + 0).numpy().shape == (4, 2)


def _in_place(h: Tensor) -> None:
    h.mul_(2.0)


def _through_numpy(h: Tensor) -> None:
    h.numpy()[:] *= 2.0


def _past_the_version(h: Tensor) -> None:
    h.data.mul_(2.0)


@pytest.mark.parametrize("change", [_in_place, _through_numpy, _past_the_version], ids=lambda f: f.__name__)
def test_rows_changed_before_they_are_read_are_refused(change: Callable[[Tensor], None]) -> None:
    graph, h = gw.Graph([0, 1], [1, 2]), torch.ones(3, 2)
    edge = gw.neighbor_apply(graph, h, mode="mul")
    change(h)
    with pytest.raises(gw.errors.GraphWeftError, match="an input was modified before its edge values"):
        gw.pull(graph, h, edge)
    with pytest.raises(gw.errors.GraphWeftError, match="an input was modified before its edge values"):
        edge.sum()
    again = gw.neighbor_apply(graph, h, mode="mul")
    again += 1.0  # a change of the values themselves is seen
    torch.testing.assert_close(gw.pull(graph, h, again)[1], torch.full((2,), 10.0))


def test_models_from_modes_alone() -> None:
    """GCN, GraphSAGE, GIN, NGCF and GAT in three lines each, against what they are."""
    graph = gw.Graph([0, 1, 2, 0, 3], [1, 2, 0, 2, 2], num_nodes=4)
    src, dst = graph.edges()
    h, w, v = rows(4, 3), rows(3, 2, seed=1), rows(3, 2, seed=2)
    dense = torch.zeros(4, 4, dtype=F64).index_put((dst, src), torch.ones(5, dtype=F64), accumulate=True)
    torch.testing.assert_close(gw.apply(gw.pull(graph, h, weight="copy"), w, act="relu"), torch.relu(dense @ h @ w))
    mean = gw.pull(graph, h, weight="copy", reduce="mean")
    torch.testing.assert_close(mean, dense @ h / dense.sum(1, keepdim=True).clamp(min=1))
    torch.testing.assert_close(gw.apply(1.5 * h + gw.pull(graph, h, weight="copy"), w), (1.5 * h + dense @ h) @ w)
    affinity = gw.apply(gw.pull(graph, h, gw.neighbor_apply(graph, h, mode="mul"), weight="mul"), v)
    torch.testing.assert_close(affinity, torch.zeros(4, 3, dtype=F64).index_add(0, dst, h[src] * (h[src] * h[dst])) @ v)
    scores = gw.neighbor_apply(graph, h, mode="dot").unsqueeze(1)
    torch.testing.assert_close(
        gw.pull(graph, h, scores, weight="softmax")[2],
        torch.softmax((h[[1, 0, 3]] * h[2]).sum(1), 0) @ h[[1, 0, 3]],
    )


def test_refusals_name_what_was_expected() -> None:
    graph, h = gw.Graph([0], [1]), rows(2, 3)
    with pytest.raises(gw.errors.ConfigError, match="expected mode among dot, mul"):
        gw.neighbor_apply(graph, h, mode="xor")
    with pytest.raises(gw.errors.ConfigError, match="expected reduce among sum"):
        gw.pull(graph, h, rows(1), reduce="median")
    with pytest.raises(gw.errors.ConfigError, match="expected edge values unless"):
        gw.pull(graph, h)
    with pytest.raises(gw.errors.ShapeError, match="expected 1 rows, one per edge, got 2 rows"):
        gw.pull(graph, h, rows(2))
    with pytest.raises(gw.errors.ShapeError, match="expected 2 rows, one per node, got 3 rows"):
        gw.neighbor_apply(graph, rows(3, 3))
    with pytest.raises(gw.errors.ShapeError, match="expected x"):
        gw.apply(h, rows(4, 2))
    with pytest.raises(gw.errors.ConfigError, match="expected a weight for mode 'concat'"):
        gw.neighbor_apply(graph, h, mode="concat")


def test_operands_of_two_dtypes_are_refused_with_the_remedy() -> None:
    graph, h = gw.Graph([0, 1], [1, 2]), torch.ones(3, 4)
    words = r"apply: expected a weight of torch.float32, as x, got torch.float64; .to\(x.dtype\) casts"
    with pytest.raises(gw.errors.DtypeError, match=words):
        gw.apply(h, torch.ones(4, 2, dtype=torch.float64))
    with pytest.raises(gw.errors.DtypeError, match=r"apply: expected a bias of torch.float64, as x, got torch.float32"):
        gw.apply(h.double(), torch.ones(4, 2, dtype=torch.float64), torch.ones(2))
    with pytest.raises(
        gw.errors.DtypeError, match=r"pull: expected edge values of torch.float32, as h, got torch.float64"
    ):
        gw.pull(graph, h, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("call", [gw.pull, gw.push])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extrema_of_complex_numbers_are_refused(call: Any, reduce: str) -> None:
    graph, h = gw.Graph([0, 1, 2], [1, 2, 0]), torch.ones(3, 4, dtype=torch.complex64)
    for weight, edge in (("copy", None), ("mul", torch.ones(3, dtype=torch.complex64))):
        with pytest.raises(
            gw.errors.DtypeError, match=f"expected real numbers with reduce '{reduce}', got torch.compl"
        ):
            call(graph, h, edge, weight=weight, reduce=reduce)
    assert torch.equal(call(graph, h, weight="copy", reduce="sum"), h)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.complex64])
def test_weights_that_kinds_of_numbers_do_not_have_are_refused(dtype: torch.dtype) -> None:
    graph, h = gw.Graph([0, 1, 2], [1, 2, 0]), torch.ones(3, 4, dtype=dtype)
    with pytest.raises(gw.errors.DtypeError, match="expected floating numbers with weight 'softmax'"):
        gw.pull(graph, h, torch.ones(3, dtype=dtype), weight="softmax")
    if dtype == torch.bool:
        with pytest.raises(gw.errors.DtypeError, match="expected numbers with weight"):
            gw.pull(graph, h, torch.ones(3, dtype=dtype), weight="sub")
        with pytest.raises(gw.errors.DtypeError, match="expected numbers with mode"):
            gw.neighbor_apply(graph, h, mode="sub")


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extrema_of_truth_values(reduce: str) -> None:
    graph = gw.Graph([0, 1, 2, 0], [1, 2, 0, 2], num_nodes=4)
    h = torch.tensor([[True, False], [False, False], [True, True], [False, True]])
    every = {0: [2], 1: [0], 2: [0, 1], 3: []}
    joined = torch.any if reduce == "max" else torch.all
    wanted = torch.stack([joined(h[ids], 0) if ids else torch.zeros(2, dtype=torch.bool) for ids in every.values()])
    assert torch.equal(gw.pull(graph, h, weight="copy", reduce=reduce), wanted)
    function = torch.amax if reduce == "max" else torch.amin
    out = gw.update_all(
        graph, lambda e: {"m": e.src["h"]}, lambda n: {"h": function(n.mailbox["m"], 1)}, ndata={"h": h}
    )
    assert torch.equal(out["h"], wanted)
