"""Sums over edges whose rows are read in bfloat16: the product against SciPy over rounded rows; what a plan says."""

import numpy as np
import pytest
import torch
from adjacencies import Layout
from zoo import ZOO, power_law_edges

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.runtime import sparse
from graphweft.runtime.epilogue import Epilogue


@pytest.fixture
def always(monkeypatch):
    """Every product that may round rows does."""
    monkeypatch.setattr(sparse, "rounds_rows", lambda columns, edges, row_bytes: columns > 0 and row_bytes > 0)


def features(rows, width, seed=0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def expected(layout, x, *, reduce="sum", weight=None, src_scale=None, self_coef=0.0):
    """In float64, from rows that torch rounds."""
    scale = torch.ones(layout.num_cols) if src_scale is None else src_scale
    rows = (x * scale[:, None]).to(torch.bfloat16).double().numpy()
    y = layout.matrix(None if weight is None else weight.double().numpy()) @ rows
    if reduce == "mean":
        y = y / np.maximum(layout.degrees(), 1)[:, None]
    own = scale[:, None].double() * x.double()
    return y + self_coef * own.numpy() if self_coef else y


def close(actual, wanted):
    np.testing.assert_allclose(actual.double().numpy(), wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("name", ZOO)
def test_sums_of_rounded_rows_on_the_zoo(name, wide, always):
    layout = Layout.of(ZOO[name], wide=wide)
    weight, scale = features(layout.num_edges, 1)[:, 0].contiguous(), features(layout.num_cols, 1, 1)[:, 0].contiguous()
    x = features(layout.num_cols, 33, 2)
    for options in (
        {},
        {"reduce": "mean"},
        {"weight": weight},
        {"src_scale": scale, "reduce": "mean"},
        {"weight": weight, "src_scale": scale, "self_coef": 1.5},
    ):
        close(sparse.spmm(layout, x, rounds=True, **options), expected(layout, x, **options))


@pytest.mark.parametrize("width", [0, 1, 31, 32, 33, 64, 96, 97, 130, 602])
def test_every_width_with_an_epilogue_and_over_its_operand(width, always):
    layout = Layout.of(power_law_edges(300, 4000, seed=3), ids=False)
    x, scale, bias = features(300, width), features(300, 1, 1)[:, 0].contiguous(), features(1, width, 2)[0].contiguous()
    wanted = np.maximum(expected(layout, x, src_scale=scale, self_coef=0.5) + bias.double().numpy(), 0.0)
    epilogue = Epilogue(bias=bias, relu=True)
    close(sparse.spmm(layout, x, src_scale=scale, self_coef=0.5, epilogue=epilogue, rounds=True), wanted)
    given = {"src_scale": scale, "self_coef": 0.5, "epilogue": epilogue}
    close(sparse.spmm(layout, x, out=x, rounds=True, **given), wanted)


def test_the_same_bits_for_any_number_of_threads(always, threads_restored):
    layout, x = Layout.of(power_law_edges(3000, 90000, seed=5)), features(3000, 70)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(sparse.spmm(layout, x, self_coef=2.0, rounds=True))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_few_or_small_rows_and_other_dtypes_are_read_as_they_are():
    layout = Layout.of(power_law_edges(300, 4000, seed=3))
    for x in (features(300, 16), features(300, 16).double()):
        assert torch.equal(sparse.spmm(layout, x, rounds=True), sparse.spmm(layout, x))
    assert not sparse.rounds_rows(10**6, 3 * 10**6, 128) and sparse.rounds_rows(10**6, 4 * 10**6, 128)


def step(precision, graph, x, threads=2):
    """Loss and gradients of one step."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = gw.nn.GCN(x.shape[1], 32, 5, num_layers=3)
    with gw.config(precision=precision):
        loss = torch.nn.functional.cross_entropy(model(graph, x), torch.arange(len(x)) % 5)
        loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


def test_a_model_rounds_only_when_asked_and_stays_near(always, threads_restored):
    """Gradients by weights behind activations differ by how many of those flip: the median of seven graphs is near."""
    found = []
    for seed in range(7):
        src, dst, nodes = power_law_edges(500, 9000, seed=7 + seed)
        graph = gw.Graph(src, dst, num_nodes=nodes)
        x = features(nodes, 24, seed).bfloat16().float()  # kept so without a change
        exact, rounded, again = step("float32", graph, x), step("bf16", graph, x, 2), step("bf16", graph, x, 1)
        assert torch.equal(rounded[0], again[0])
        assert all(torch.equal(a, b) for a, b in zip(rounded[1], again[1], strict=True))
        assert rounded[0] != exact[0]
        torch.testing.assert_close(rounded[0], exact[0], rtol=5e-3, atol=5e-3)
        found.append([(a - b).norm() / b.norm() for a, b in zip(rounded[1], exact[1], strict=True)])
        assert torch.equal(step("float32", graph, x)[0], exact[0])
    assert torch.tensor(found).median(0).values.max() <= 0.02


def test_a_plan_says_which_rows_are_rounded():
    graph, x = gw.Graph(*power_law_edges(50, 400, seed=1)[:2], num_nodes=50), features(50, 8).requires_grad_()
    for precision, count in (("float32", 0), ("bf16", 4)):  # two layers, forward and backward
        model = gw.nn.GCN(8, 16, 3, num_layers=2)
        with gw.config(precision=precision):
            model(graph, x).sum().backward()
        (plan,) = model.function.plans()
        assert plan.text.count("rows='bf16'") == count


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match="precision: expected one of float32, bf16, int8, got 'fp8'"):
        gw.config(precision="fp8").__enter__()
