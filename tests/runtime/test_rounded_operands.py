"""Products whose operands are read in bfloat16: against float64 over operands that torch rounds; what a plan says."""

import ctypes

import pytest
import torch
from adjacencies import Layout
from zoo import power_law_edges

import graphweft as gw
from graphweft import _native
from graphweft.runtime import dense
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.terms import Left, Term, contract_terms, matmul_terms

_half_unit = _native.declare("gw_half_unit")


@pytest.fixture(params=["vectors", "pairs", "tiles"])
def unit(request, monkeypatch):
    """Every product that may round its operands does, by one kind of instruction."""
    used, wanted = ctypes.c_int32(), ["vectors", "pairs", "tiles"].index(request.param)
    _half_unit(wanted, ctypes.byref(used))
    monkeypatch.setattr(dense, "rounds_operands", lambda k, m: True)
    if used.value != wanted:
        _half_unit(2, ctypes.byref(used))
        pytest.skip(f"this processor, or this level, has no {request.param} of bfloat16 numbers")
    yield request.param
    _half_unit(2, ctypes.byref(used))


def rows(count, width, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def rounded(x):
    return x.to(torch.bfloat16).double()


def close(actual, wanted):
    torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("n", "k", "m"), [(1, 1, 1), (33, 17, 40), (700, 130, 65), (500, 64, 7)])
def test_products_and_both_gradients(n, k, m, transposed, unit):
    x, w, g, ids = rows(n, k), rows(k, m, 1), rows(n, m, 2), torch.randint(n, (2 * n,))
    given = w.t().contiguous() if transposed else w
    close(dense.matmul(x, given, transposed=transposed, rounds=True), rounded(x) @ rounded(w))
    close(dense.matmul(x, given, transposed=transposed, rows=ids, rounds=True), (rounded(x) @ rounded(w))[ids])
    close(dense.matmul(g, given, transposed=not transposed, rounds=True), rounded(g) @ rounded(w).t())
    scale, sums = rows(n, 1, 3)[:, 0].contiguous(), torch.empty(m)
    found = dense.matmul_tn(x, g, row_scale=scale, col_sum=sums, rounds=True)
    close(found, rounded(x).t() @ rounded(g * scale[:, None]))
    close(sums, g.double().sum(0))
    wide = rows(2 * n, m, 4)
    close(dense.matmul_tn(x, wide, rows=ids, rounds=True), rounded(x)[ids].t() @ rounded(wide))


def test_terms_and_contractions_over_edges(unit):
    layout, k, m = Layout.of(power_law_edges(300, 4000, seed=3), ids=False), 33, 48
    matrix = torch.from_numpy(layout.matrix().todense())
    x, own, near, g, bias = rows(300, k), rows(k, m, 1), rows(k, m, 2), rows(300, m, 3), rows(1, m, 4)[0].contiguous()
    eighths = (8 * x).round() / 8  # sums of these are exact, so that both sides round the same numbers
    kept = torch.empty(300, k)
    terms = [Term(x, own), Term(eighths, near, edges=layout, kept=kept)]
    sums = matrix @ eighths.double()
    wanted = rounded(x) @ rounded(own) + rounded(sums.float()) @ rounded(near) + bias.double()
    close(matmul_terms(terms, epilogue=Epilogue(bias=bias, relu=True), rounds=True), wanted.relu())
    assert torch.equal(kept.double(), sums)
    g = (8 * g).round() / 8
    one, two = contract_terms([Left(x), Left(x, torch.arange(299, -1, -1))], layout, g, rounds=True)
    made = rounded((matrix @ g.double()).float())
    close(one, rounded(x).t() @ made)
    close(two, rounded(x).flip(0).t() @ made)


def step(graph, x, threads=2, **config):
    """Loss and gradients of one step."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = gw.nn.SAGE(x.shape[1], 48, 20, num_layers=3)
    with gw.config(**config):
        loss = torch.nn.functional.cross_entropy(model(graph, x), torch.arange(len(x)) % 20)
        loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


def distance(one, other):
    """The largest relative difference of gradients, by their norms."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(one[1], other[1], strict=True))


def test_a_step_is_that_of_torch_over_rounded_operands(unit, threads_restored):
    src, dst, nodes = power_law_edges(500, 9000, seed=7)
    # features that bfloat16 holds exactly: sums over edges read them as bfloat16, those of the reference as they are
    graph, x = gw.Graph(src, dst, num_nodes=nodes), rows(nodes, 40).bfloat16().float()
    found = [step(graph, x, threads, precision="bf16") for threads in (1, 2, 3)]
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0])
        assert all(torch.equal(a, b) for a, b in zip(found[0][1], other[1], strict=True))
    exact, torchs = step(graph, x), step(graph, x, precision="bf16", target="reference")
    assert 1e-3 < distance(found[0], exact) < 0.1
    assert distance(found[0], torchs) < distance(found[0], exact) / 4  # a number near a tie may round otherwise
    torch.testing.assert_close(found[0][0], torchs[0], rtol=1e-4, atol=1e-4)


def test_other_dtypes_and_narrow_products_are_as_they_were(monkeypatch):
    x, w = rows(50, 40), rows(40, 30, 1)
    assert torch.equal(dense.matmul(x.double(), w.double(), rounds=True), x.double() @ w.double())
    monkeypatch.setattr(dense, "half_unit", lambda: 2)
    assert dense.rounds_operands(256, 256)
    assert not dense.rounds_operands(256, 4) and not dense.rounds_operands(3, 256)
    monkeypatch.setattr(dense, "half_unit", lambda: 1)
    assert not dense.rounds_operands(256, 256)


def test_plans_say_which_operands_are_rounded():
    graph, x = gw.Graph(*power_law_edges(50, 400, seed=1)[:2], num_nodes=50), rows(50, 8).requires_grad_()
    for target in ("cpu", "reference", "null"):
        for precision in ("float32", "bf16"):
            model = gw.nn.SAGE(8, 16, 3, num_layers=2)
            with gw.config(precision=precision, target=target):
                model(graph, x).sum().backward()
            (plan,) = model.function.plans()
            products = sum(call.kernel in ("matmul", "contract", "matmul_terms", "contract_terms")
                           for call in (*plan.forward, *plan.backward))  # fmt: skip
            assert products >= 4
            assert plan.text.count("operands='bf16'") == (products if precision == "bf16" else 0)


def test_plans_of_batches_round_operands_and_read_rows_as_they_are():
    ds = gw.synthetic("default", scale=0.05, seed=0)
    for precision, count in (("float32", 0), ("bf16", 1)):
        trainer = gw.Trainer(gw.nn.SAGE.for_data(ds, hidden=16), ds, mode="mini", precision=precision, fanouts=[3, 3])
        trainer.fit(1)
        text = trainer.staged_plan()[0].plan.text
        assert ("operands='bf16'" in text) == bool(count)
        assert "rows='bf16'" not in text
