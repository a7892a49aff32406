"""Claims about every model: gradients by differences on every graph, bits over threads, memory as edges grow."""

from __future__ import annotations

import copy
from math import prod
from typing import Any

import pytest
import torch
from nn.models import BUILT_IN, MODELS, features, make, random_graph
from zoo import SQUARE, Case, random_edges

import graphweft as gw
from graphweft._memory import POOL
from graphweft.nn import APPNP, CGAT, GAT, GCN, GIN, NGCF, SAGE, Transformer

F64 = torch.float64


@pytest.mark.parametrize("case", [c for c in SQUARE if 0 < c.num_src <= 40], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_differences(name: str, case: Case) -> None:
    """SPEC P19. At random directions, which is what a full Jacobian would say at a fraction of its price."""
    model, graph = make(name).to(F64), case.graph()
    x = torch.randn(case.num_src, 6, dtype=F64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    leaves = [x, *model.parameters()]
    assert torch.autograd.gradcheck(
        lambda x, *_: model(graph, x), tuple(leaves), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True
    )


@pytest.mark.parametrize("nodes", [600, 9001])  # from 32,768 elements on torch shares its functions out to threads
@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_threads_gives_the_same_bits(name: str, nodes: int) -> None:
    edges = random_edges(nodes, 30_000, seed=4)
    graph, x = gw.Graph(edges.src, edges.dst, num_nodes=nodes), features(0, nodes)
    model = make(name)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            twin = copy.deepcopy(model)
            out = twin(graph, x)
            out.square().mean().backward()
            results.append([out.detach(), *(p.grad for p in twin.parameters())])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def _step(make_model: Any, degree: int, nodes: int = 2000, width: int = 64) -> tuple[int, int]:
    """Bytes that the pool came to map in a training step, and the widest row per edge that a call of it writes."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(0, nodes, (nodes * degree,), generator=generator)
    graph = gw.Graph(src, torch.arange(nodes).repeat_interleave(degree), num_nodes=nodes)
    model, x = make_model(), torch.randn(nodes, width, generator=generator, requires_grad=True)
    for _ in range(2):  # compiles, and makes the forms of the graph
        model(graph, x).square().mean().backward()
    POOL.trim()
    before = POOL.stats().mapped
    model(graph, x).square().mean().backward()
    written = [v.tensor for g in model.function.plans()[-1].compiled.groups for v in (g.result, *g.taps) if g.anchor]
    widest = max((prod(t.dims) for t in written if str(t.rows).startswith("E")), default=0)
    return POOL.stats().mapped - before, widest


WIDE: dict[str, tuple[Any, int]] = {
    "gcn": (lambda: GCN(64, 64, 16), 0),
    "sage": (lambda: SAGE(64, 64, 16), 0),
    "gin": (lambda: GIN(64, 64, 16), 0),
    "gat": (lambda: GAT(64, 64, 16, heads=8), 0),
    "gatv2": (lambda: GAT(64, 64, 16, heads=8, v2=True), 0),
    "ngcf": (lambda: NGCF(64, 64, 16), 0),
    "cgat": (lambda: CGAT(64, 64, 16, heads=1), 1),
    "appnp": (lambda: APPNP(64, 64, 16), 0),
    "transformer": (lambda: Transformer(64, 64, 16, heads=8), 0),
}


@pytest.mark.parametrize("name", WIDE)
def test_memory_is_flat_in_edges_per_node_but_for_numbers_per_edge(name: str) -> None:
    """SPEC M13: from 10 to 200 in-edges a node no call of a step writes features per edge.

    The second entry: numbers per edge that a call may write, one a head.
    """
    make_model, scalars = WIDE[name]
    (few, narrow), (many, wide) = _step(make_model, 10), _step(make_model, 200)
    assert max(narrow, wide) <= scalars
    slack = 4 << 20 if scalars == 0 else 16 * 4 * 2000 * 190  # some scalars of forward and backward pass live together
    assert many - few <= slack < 4 * 64 * 2000 * 190, (few, many)


def test_the_list_of_models_is_complete() -> None:
    without_layers = {"gae", "vgae", "dgi"}  # around an encoder
    public = {name.lower() for name in gw.nn.__all__ if name.isupper()} - without_layers
    assert public <= {name.removesuffix("_max") for name in BUILT_IN} | {"gat"} | {"rgcn", "hgt"}
    assert isinstance(random_graph(), gw.Graph)
