"""Rules of a compiled call: what is read anew, what is compiled once, what never reaches the caller."""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

import graphweft as gw
from graphweft.frontend import udf
from graphweft.frontend.views import FieldView, Nodes
from graphweft.ir.ops import Op
from graphweft.nn import user_call

F64 = torch.float64


def graph(name: str = "random") -> gw.Graph:
    edges = ZOO[name]
    return gw.Graph(edges.src, edges.dst, num_nodes=edges.num_nodes)


def copy(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["h"]}


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1)}


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every recording of a call from here on."""
    made: list[str] = []
    record = udf.raise_call

    def counted(call: Any, captured: Any) -> Any:
        made.append("recorded")
        return record(call, captured)

    monkeypatch.setattr(user_call, "raise_call", counted)
    monkeypatch.setattr(user_call, "stable_text", lambda key: None)  # nothing comes from the cache folder
    monkeypatch.setattr(user_call, "_CALLS", OrderedDict())
    return made


class Layer(gw.MessagePassing):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=F64)
        self.scale, self.dropout, self.flag = 2.0, 0.5, True

    def message(self, edges: Any) -> dict[str, Tensor]:
        h = edges.src["h"] * self.scale
        return {"m": nn.functional.dropout(h, self.dropout, self.training) if self.flag else -h}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": self.linear(nodes.mailbox["m"].sum(1))}

    def forward(self, g: gw.Graph, h: Tensor) -> Tensor:
        return self.propagate(g, ndata={"h": h})["h"]


def test_a_new_graph_costs_no_recording(recordings: list[str]) -> None:
    """SPEC P18."""
    layer = Layer().eval()
    for name in ("random", "power_law", "star", "random"):
        layer(graph(name), torch.ones(ZOO[name].num_nodes, 3, dtype=F64))
    assert len(recordings) == 1


def test_another_layer_of_the_same_class_costs_no_recording(recordings: list[str]) -> None:
    g, h = graph(), torch.randn(40, 3, dtype=F64)
    one, two = Layer().eval(), Layer().eval()
    first, second = one(g, h), two(g, h)
    assert len(recordings) == 1
    dense = torch.zeros(40, 3, dtype=F64).index_add(0, g.edges()[1], 2.0 * h[g.edges()[0]])
    some = g.in_degrees() > 0
    for layer, out in ((one, first), (two, second)):
        torch.testing.assert_close(out[some], layer.linear(dense)[some])
        assert not out[~some].any()


def test_scalars_flags_modes_and_tensors_are_read_at_every_call() -> None:
    g, h, layer = graph(), torch.randn(40, 3, dtype=F64), Layer().eval()
    before = layer(g, h)
    layer.scale = 4.0
    doubled = layer(g, h)
    bias = layer.linear.bias * (g.in_degrees() > 0)[:, None]
    torch.testing.assert_close(doubled - bias, 2 * (before - bias))
    layer.flag = False
    torch.testing.assert_close(layer(g, h) - bias, bias - doubled)
    layer.flag = True
    with torch.no_grad():
        layer.linear.weight.mul_(3.0)
    torch.testing.assert_close(layer(g, h) - bias, 3 * (doubled - bias))
    layer.linear.weight = nn.Parameter(torch.zeros(2, 3, dtype=F64))
    torch.testing.assert_close(layer(g, h), bias)
    layer.train()
    assert (layer(g, h) == layer(g, h)).all()


def test_dropout_draws_anew_and_keeps_the_mean() -> None:
    g, h = graph("star"), torch.ones(70, 3, dtype=F64)
    layer = Layer().train()
    torch.manual_seed(1)
    one, two = layer(g, h), layer(g, h)
    assert not torch.equal(one, two)
    torch.manual_seed(1)
    torch.testing.assert_close(layer(g, h), one, rtol=0, atol=0)
    layer.eval()
    with torch.no_grad():
        wide = torch.stack([layer.train()(g, h)[0] for _ in range(200)]).mean(0)
    torch.testing.assert_close(wide, layer.eval()(g, h)[0], rtol=0.15, atol=0.5)


def test_closures_globals_and_defaults_are_read_at_every_call() -> None:
    g, h, state = graph(), torch.randn(40, 3, dtype=F64), {"factor": 1.0}

    def run(power: int) -> Tensor:
        def message(edges: Any, *, offset: float = float(power)) -> dict[str, Tensor]:
            return {"m": edges.src["h"] * state["factor"] + offset}

        return gw.update_all(g, message, total, ndata={"h": h})["h"]

    base = run(0)
    state["factor"] = -1.0
    torch.testing.assert_close(run(0), -base)
    torch.testing.assert_close(run(2), -base + 2.0 * g.in_degrees()[:, None])


def test_in_place_code_never_reaches_the_callers_tensors() -> None:
    g = graph()
    h, w, scale = (torch.randn(*s, dtype=F64) for s in ((40, 3), (200, 3), (3,)))
    kept = [t.clone() for t in (h, w, scale)]

    def message(edges: Any) -> dict[str, Tensor]:
        scale.mul_(2.0)
        edges.data["w"].add_(1.0)
        return {"m": edges.src["h"].mul_(scale) + edges.data["w"]}

    def update(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.data["h"].add_(1.0), "x": nodes.data["x"].mul_(0.0), "same": nodes.data["h"]}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = gw.update_all(g, message, total, update, ndata={"h": h, "x": h}, edata={"w": w})
        with gw.config(opt_level=0):
            expected = gw.update_all(g, message, total, update, ndata={"h": h, "x": h}, edata={"w": w})
    for now, then in zip((h, w, scale), kept, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)
    for name in expected:
        torch.testing.assert_close(out[name], expected[name])
    out["same"].zero_()
    assert out["h"].any()


def test_fields_returned_as_they_came() -> None:
    g = graph()
    h = torch.randn(40, 3, dtype=F64, requires_grad=True)
    out = gw.update_all(g, copy, total, lambda n: {"x": n.data["x"], "y": n.data["x"]}, ndata={"h": h, "x": h})
    torch.testing.assert_close(out["x"], h)
    (out["x"].sum() + 2 * out["y"].sum()).backward()
    torch.testing.assert_close(h.grad, torch.full_like(h, 3.0))


def test_integers_and_bools_are_kept_and_frozen_inputs_get_no_gradient() -> None:
    g = graph()
    count, h = torch.arange(40, dtype=torch.int32), torch.randn(40, 2, dtype=F64)
    w = torch.randn(2, dtype=F64, requires_grad=True)
    out = gw.update_all(
        g,
        lambda e: {"c": e.src["c"], "m": e.src["h"] * w, "b": e.src["c"] > 3},
        lambda n: {"c": n.mailbox["c"].amax(1), "h": n.mailbox["m"].sum(1), "b": n.mailbox["b"].any(1)},
        ndata={"c": count, "h": h},
    )
    assert out["c"].dtype == torch.int32 and out["b"].dtype == torch.bool
    assert not out["c"].requires_grad and out["h"].requires_grad
    out["h"].sum().backward()
    assert w.grad is not None and h.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_precisions(dtype: torch.dtype) -> None:
    g = graph()
    h, w = torch.randn(40, 3).to(dtype).requires_grad_(), torch.randn(3, 2).to(dtype).requires_grad_()

    def message(edges: Any) -> dict[str, Tensor]:
        z = edges.src["h"] @ w
        return {"m": z, "e": torch.tanh(z.sum(1, keepdim=True))}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], 1) * nodes.mailbox["m"]).sum(1)}

    got = gw.update_all(g, message, reduce, ndata={"h": h})["h"]
    with gw.config(opt_level=0):
        expected = gw.update_all(g, message, reduce, ndata={"h": h})["h"]
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    got.sum().backward()
    assert w.grad is not None and w.grad.dtype == dtype


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("disabled", ["", "split,reorder", "messages", "canonical,placement", "hoist,fuse"])
def test_every_level_and_pass_subset_gives_the_same(level: int, disabled: str) -> None:
    g, h = graph("power_law"), torch.randn(200, 4, dtype=F64)
    layer = nn.Linear(8, 1, dtype=F64)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"], "e": layer(torch.cat([edges.src["h"], edges.dst["h"]], 1)).relu()}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (nodes.mailbox["e"].softmax(1) * nodes.mailbox["m"]).sum(1)}

    dense = gw.update_all(g, message, reduce, ndata={"h": h})["h"]
    with gw.config(opt_level=level, disabled_passes=disabled):
        torch.testing.assert_close(gw.update_all(g, message, reduce, ndata={"h": h})["h"], dense)


def test_wrong_code_is_reported_without_a_warning() -> None:
    g, h = graph(), torch.randn(40, 3, dtype=F64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(gw.errors.FieldError, match=r"edges.src\['missing'\].*test_calls.py"):
            gw.update_all(g, lambda edges: {"m": edges.src["missing"]}, total, ndata={"h": h})
        with pytest.raises(gw.errors.ShapeError, match=r"expected field 'm' with 200 rows, one per edge, got 3 rows"):
            gw.update_all(g, lambda edges: {"m": edges.src["h"][:3]}, total, ndata={"h": h})
        with pytest.raises(gw.errors.FieldError, match=r"nodes.mailbox\['z'\].*test_calls.py"):
            gw.update_all(g, copy, lambda nodes: {"h": nodes.mailbox["z"].sum(1)}, ndata={"h": h})
        with pytest.raises(gw.errors.UserCodeError, match="Python branch on values"):
            gw.update_all(g, copy, lambda n: total(n) if n.mailbox["m"].sum() > 0 else {}, ndata={"h": h})


def test_infinities_at_nodes_without_in_edges_reach_no_gradient() -> None:
    """A norm of in-degree 0 is infinite, and an empty sum divides by zero: neither counts."""
    g = graph("isolated")
    h, w = (torch.randn(*s, dtype=F64, requires_grad=True) for s in ((6, 3), (3, 3)))
    norm = g.in_degrees().to(F64).pow(-0.5).unsqueeze(1)

    def scaled(nodes: Any) -> dict[str, Tensor]:
        return {"h": (nodes.mailbox["m"].sum(1) * nodes.data["norm"]) @ w + nodes.data["h"] * nodes.data["norm"]}

    def divided(nodes: Any) -> dict[str, Tensor]:
        s = nodes.mailbox["m"].square().sum(1)
        return {"h": (nodes.data["h"] / s + s.log()) @ w, "r": (s.sqrt() * w[0]).sum(1)}

    for reduce in (scaled, divided):
        results = []
        for level in (0, 3):
            with gw.config(opt_level=level):
                out = gw.update_all(g, copy, reduce, ndata={"h": h, "norm": norm})
            total_ = sum(value.sum() for value in out.values())
            results.append([*out.values(), *torch.autograd.grad(total_, [h, w])])
        for expected, got in zip(*results, strict=True):
            assert torch.isfinite(got).all()
            torch.testing.assert_close(got, expected)


def test_verify_compares_with_plain_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC P17: it passes on right code and finds a wrong rewrite, forward and backward."""
    monkeypatch.setattr(user_call, "stable_text", lambda key: None)
    monkeypatch.setattr(user_call, "_CALLS", OrderedDict())
    g, h = graph(), torch.randn(40, 3, dtype=F64, requires_grad=True)
    w = torch.randn(3, dtype=F64, requires_grad=True)
    functions = (lambda e: {"m": e.src["h"] * w}, total)
    with gw.config(verify=True):
        right = gw.update_all(g, *functions, ndata={"h": h})["h"]
        right.sum().backward()
        write = udf.RaisedCall.write

        def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = write(self, *args, **kwargs)
            return {name: args[0].add(Op.SCALE, value, factor=1.01) for name, value in made.items()}

        monkeypatch.setattr(user_call, "_CALLS", OrderedDict())
        monkeypatch.setattr(udf.RaisedCall, "write", wrong)
        with pytest.raises(gw.errors.GraphWeftError, match="verify: expected field 'h' as the functions give it"):
            gw.update_all(g, *functions, ndata={"h": h})

        def stopped(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = write(self, *args, **kwargs)
            return {name: args[0].add(Op.DETACH, value) for name, value in made.items()}

        monkeypatch.setattr(user_call, "_CALLS", OrderedDict())
        monkeypatch.setattr(udf.RaisedCall, "write", stopped)
        with pytest.raises(gw.errors.GraphWeftError, match="verify: expected the gradient of field 'h'"):
            gw.update_all(g, *functions, ndata={"h": h})


def test_random_modules_are_not_baked_in() -> None:
    g, h = graph(), torch.ones(40, 1, dtype=F64)
    with pytest.warns(gw.FallbackWarning, match="it reads the module random"):
        one = gw.update_all(g, lambda e: {"m": e.src["h"] * random.random()}, total, ndata={"h": h})["h"]
    assert one.shape == (40, 1)


def test_bipartite_graphs() -> None:
    g = gw.Graph([0, 2, 1, 2], [1, 1, 0, 1], num_nodes=(3, 4))
    left, right = (torch.randn(n, 2, dtype=F64, requires_grad=True) for n in (3, 4))

    def run() -> Tensor:
        return gw.update_all(
            g,
            lambda e: {"m": e.src["h"] * e.dst["h"]},
            lambda n: {"h": n.mailbox["m"].mean(1) + n.data["h"]},
            ndata={"h": (left, right)},
        )["h"]

    got = run()
    with gw.config(opt_level=0):
        expected = run()
    torch.testing.assert_close(got, expected)
    one, two = (torch.autograd.grad(y.square().sum(), [left, right]) for y in (got, expected))
    for mine, theirs in zip(one, two, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("message", "reduce", "says"),
    [
        (lambda e: {"m": e.source["h"]}, None, "edges: expected one of src, dst, data, srctype, dsttype, type"),
        (None, lambda n: {"h": n.inbox["m"].sum(1)}, "nodes: expected one of data, mailbox, type, got 'inbox'"),
        (lambda e: {0: e.src["h"]}, None, "message: expected field names as strings, got 0 of type int"),
    ],
)
def test_names_that_do_not_exist_are_told_with_the_line(message: Any, reduce: Any, says: str) -> None:
    ring, h = gw.Graph([0, 1, 2], [1, 2, 0]), torch.ones(3, 2)
    message = message or (lambda e: {"m": e.src["h"]})
    reduce = reduce or (lambda n: {"h": n.mailbox["m"].sum(1)})
    with pytest.raises(gw.errors.UserCodeError, match=rf"{says}.*\(.*test_calls.py:\d+\)"):
        gw.update_all(ring, message, reduce, ndata={"h": h})
    nothing = FieldView("reduce", "nodes.data", {}, "node fields")
    assert not hasattr(Nodes(nothing, nothing, nothing, 3), "inbox")
