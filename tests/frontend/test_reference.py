"""The reference executor against dense torch written by hand, and the rules of a call."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import SQUARE, Case

import graphweft as gw
from graphweft.frontend.call import make_call
from graphweft.frontend.reference import run_message, run_reference

F64 = torch.float64


def plain(graph: gw.Graph, *functions: Any, **fields: Any) -> dict[str, Tensor]:
    return run_reference(make_call(graph, *functions, **fields))


def rows(count: int, *dims: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, *dims), dtype=F64, generator=generator)


def copy(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["h"]}


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1)}


def here(offset: int) -> str:
    """``file:line`` of the caller, ``offset`` lines away."""
    frame = sys._getframe(1)
    return f"{__file__}:{frame.f_lineno + offset}"


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_sum_is_a_matrix_product(case: Case) -> None:
    h = rows(case.num_src, 3)
    out = plain(case.graph(), copy, total, ndata={"h": h})["h"]
    torch.testing.assert_close(out, torch.from_numpy(case.scipy() @ h.numpy()))


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_attention_and_gradients_agree_with_a_loop_over_nodes(case: Case) -> None:
    h, w = rows(case.num_src, 3).requires_grad_(), rows(case.num_edges, 1, seed=1).requires_grad_()
    weight = rows(3, 2, seed=2).requires_grad_()

    def message(edges: Any) -> dict[str, Tensor]:
        z = edges.src["h"] @ weight
        return {"m": z, "e": torch.tanh(z.sum(1, keepdim=True) * edges.data["w"]) + edges.dst["h"][:, :1]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], 1) * nodes.mailbox["m"]).sum(1)}

    out = plain(case.graph(), message, reduce, ndata={"h": h}, edata={"w": w})["h"]
    parts = []
    for node in range(case.num_dst):
        into = (case.dst == node).nonzero().flatten()
        z = h[case.src[into]] @ weight
        logits = torch.tanh(z.sum(1, keepdim=True) * w[into]) + h[node, :1]
        parts.append((torch.softmax(logits, 0) * z).sum(0))
    expected = torch.stack(parts) if parts else h.new_zeros((0, 2))
    torch.testing.assert_close(out, expected)
    seed = rows(case.num_dst, 2, seed=3)
    got = torch.autograd.grad((out * seed).sum(), [h, w, weight], materialize_grads=True)
    want = torch.autograd.grad(((expected + 0.0 * weight.sum()) * seed).sum(), [h, w, weight], materialize_grads=True)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_mailboxes_list_messages_by_ascending_edge_id() -> None:
    graph = gw.Graph([3, 1, 2, 0], [0, 0, 0, 0], num_nodes=4)
    seen = []

    def reduce(nodes: Any) -> dict[str, Tensor]:
        seen.append(nodes.mailbox["m"].clone())
        return {"h": nodes.mailbox["m"].sum(1)}

    plain(graph, lambda edges: {"m": edges.data["id"]}, reduce, edata={"id": torch.arange(4)})
    assert seen[0].tolist() == [[0, 1, 2, 3]]


def test_nodes_without_in_edges_get_zeros_and_update_still_runs() -> None:
    graph = gw.Graph([], [], num_nodes=3)
    fields = {"h": rows(3, 2), "count": torch.arange(3)}

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] * edges.src["h"].max(), "k": edges.src["count"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        wide = nodes.mailbox["m"].std(1).repeat(1, 2)
        return {"h": wide, "n": nodes.mailbox["k"].sum(1), "any": nodes.mailbox["k"].bool().any(1)}

    out = plain(graph, message, reduce, ndata=fields)
    assert out["h"].shape == (3, 4) and out["h"].dtype == F64 and not out["h"].any()
    assert out["n"].dtype == torch.int64 and out["any"].dtype == torch.bool
    updated = plain(graph, message, reduce, lambda nodes: {"out": nodes.data["h"] + 1.0}, ndata=fields)
    assert updated["out"].tolist() == [[1.0] * 4] * 3
    assert set(updated) == {"out"}


def test_update_sees_reduced_fields_over_node_fields() -> None:
    graph = gw.Graph([0, 1], [1, 2], num_nodes=3)
    h = rows(3, 2)
    out = plain(graph, copy, total, lambda n: {"a": n.data["h"], "b": n.data["x"]}, ndata={"h": h, "x": 2 * h})
    torch.testing.assert_close(out["a"], torch.stack([torch.zeros(2, dtype=F64), h[0], h[1]]))
    torch.testing.assert_close(out["b"], 2 * h)


def test_in_place_operations_never_reach_the_callers_tensors() -> None:
    graph = gw.Graph([0, 1, 2, 0], [1, 2, 0, 2], num_nodes=3)
    h, e, captured = rows(3, 2), rows(4, 2, seed=1), rows(2, seed=2)
    layer = nn.Linear(2, 2, dtype=F64)
    before = [t.clone() for t in (h, e, captured, layer.weight)]

    def message(edges: Any) -> dict[str, Tensor]:
        captured.mul_(3.0)
        captured[0] = 7.0
        layer.weight.data.zero_()
        m = edges.src["h"].add_(1.0)
        edges.data["e"] *= 2.0
        return {"m": m * captured + edges.data["e"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].mul_(2.0).sum(1)}

    def update(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.data["h"].add_(1.0), "x": nodes.data["x"].zero_()}

    out = plain(graph, message, reduce, update, ndata={"h": h, "x": h}, edata={"e": e})
    for now, then in zip((h, e, captured, layer.weight), before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)
    changed = before[2] * 3.0
    changed[0] = 7.0
    sent = (before[0][[0, 1, 2, 0]] + 1.0) * changed + 2.0 * before[1]
    expected = torch.zeros(3, 2, dtype=F64).index_add(0, torch.tensor([1, 2, 0, 2]), 2.0 * sent) + 1.0
    torch.testing.assert_close(out["h"], expected)
    assert not out["x"].any()


def test_a_captured_tensor_receives_gradients_through_an_in_place_operation() -> None:
    w = rows(2).requires_grad_()
    graph = gw.Graph([0, 1], [1, 0])

    def message(edges: Any) -> dict[str, Tensor]:
        scale = w * 1.0
        scale.mul_(w)
        return {"m": edges.src["h"] * scale}

    plain(graph, message, total, ndata={"h": torch.ones(2, 2, dtype=F64)})["h"].sum().backward()
    torch.testing.assert_close(w.grad, 4.0 * w.detach())


def test_batch_norm_keeps_its_statistics_and_mode() -> None:
    graph, norm = gw.Graph([0, 1, 2], [1, 2, 0]), nn.BatchNorm1d(2, dtype=F64)
    twin = nn.BatchNorm1d(2, dtype=F64)
    h = rows(3, 2)
    out = plain(graph, lambda edges: {"m": norm(edges.src["h"])}, total, ndata={"h": h})["h"]
    expected = twin(h[[0, 1, 2]])
    torch.testing.assert_close(out[[1, 2, 0]], expected)
    torch.testing.assert_close(norm.running_mean, twin.running_mean)
    assert int(norm.num_batches_tracked) == 1
    norm.eval(), twin.eval()
    out = plain(graph, lambda edges: {"m": norm(edges.src["h"])}, total, ndata={"h": h})["h"]
    torch.testing.assert_close(out[[1, 2, 0]], twin(h[[0, 1, 2]]))


@pytest.mark.parametrize("edges", [([0], [0], 1), ([0], [1], 2), ([0, 1], [1, 0], 2), ([0, 0, 1], [1, 1, 0], 2)])
def test_a_bare_squeeze_keeps_nodes_edges_and_messages(edges: tuple[list[int], list[int], int]) -> None:
    src, dst, count = edges
    graph = gw.Graph(src, dst, num_nodes=count)

    def message(edges: Any) -> dict[str, Tensor]:
        assert (edges.src["h"].unsqueeze(1) * 1.0).squeeze().shape == (len(src),)
        return {"m": edges.src["h"].unsqueeze(2).squeeze()}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        inside = nodes.mailbox["m"].unsqueeze(-1).squeeze()
        assert inside.dim() == 2
        received = inside.sum(1, keepdim=True)
        assert received.squeeze().shape == (nodes.batch_size(),)
        return {"h": received.squeeze().clone()}

    def update(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.data["h"].unsqueeze(0).unsqueeze(-1)[0].squeeze()}

    out = plain(graph, message, reduce, update, ndata={"h": torch.ones(count, 1, dtype=F64)})["h"]
    assert out.tolist() == [float(dst.count(node)) for node in range(count)]


def test_typed_fields_flat_or_by_type() -> None:
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    graph = gw.Graph.hetero({writes: ([0, 1, 1], [0, 0, 2]), cites: ([0, 2], [1, 1])}, {"author": 2, "paper": 3})
    h, w = rows(5, 2), rows(2, 2, 2, seed=1)
    bias, scale = rows(2, 2, seed=2), rows(5, 1, seed=3)

    def message(edges: Any) -> dict[str, Tensor]:
        m = torch.bmm(edges.src["h"].unsqueeze(1), edges.type["W"]).squeeze(1)
        return {"m": (m + edges.srctype["b"] - 2.0 * edges.dsttype["b"]) * edges.data["w"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1) + nodes.type["b"]}

    flat = plain(
        graph, message, reduce, ndata={"h": h}, edata={"w": scale}, ntype_data={"b": bias}, etype_data={"W": w}
    )
    by_type = plain(
        graph,
        message,
        reduce,
        ndata={"h": {"author": h[:2], "paper": h[2:]}},
        edata={"w": {writes: scale[:3], "cites": scale[3:]}},
        ntype_data={"b": {"paper": bias[1], "author": bias[0]}},
        etype_data={"W": {"cites": w[1], writes: w[0]}},
    )
    torch.testing.assert_close(by_type["h"], flat["h"], rtol=0, atol=0)
    expected = torch.zeros(5, 2, dtype=F64)
    for edge, (src, dst, relation) in enumerate([(0, 2, 0), (1, 2, 0), (1, 4, 0), (2, 3, 1), (4, 3, 1)]):
        source = 0 if src < 2 else 1
        expected[dst] += (h[src] @ w[relation] + bias[source] - 2.0 * bias[1]) * scale[edge]
    for node in (2, 3, 4):
        expected[node] += bias[1]
    torch.testing.assert_close(flat["h"], expected)


def test_fields_of_any_name_and_dtype_are_kept() -> None:
    graph = gw.Graph([0, 1, 2], [2, 2, 0])
    fields = {"a field/π": torch.tensor([1, 2, 3]), "self": torch.tensor([True, False, True])}

    def message(edges: Any) -> dict[str, Tensor]:
        return {"": edges.src["a field/π"], "in": edges.src["self"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"max": nodes.mailbox[""].max(1).values, "all": nodes.mailbox["in"].all(1)}

    out = plain(graph, message, reduce, ndata=fields)
    assert out["max"].tolist() == [3, 0, 2] and out["max"].dtype == torch.int64
    assert out["all"].tolist() == [True, False, False]


def test_ties_of_max_and_amax_as_in_torch() -> None:
    graph = gw.Graph([0, 1], [2, 2])
    h = torch.ones(3, 1, dtype=F64, requires_grad=True)
    plain(graph, copy, lambda n: {"h": n.mailbox["m"].max(1).values}, ndata={"h": h})["h"].sum().backward()
    assert sorted(h.grad.flatten().tolist()) == [0.0, 0.0, 1.0]
    h.grad = None
    plain(graph, copy, lambda n: {"h": n.mailbox["m"].amax(1)}, ndata={"h": h})["h"].sum().backward()
    assert h.grad.flatten().tolist() == [0.5, 0.5, 0.0]


def test_a_branch_on_values_runs_in_message_and_is_refused_in_reduce() -> None:
    graph, h = gw.Graph([0, 1], [1, 2], num_nodes=3), rows(3, 2)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] if edges.src["h"].sum() > 0 else -edges.src["h"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        if nodes.mailbox["m"].sum() > 0:
            return {"h": nodes.mailbox["m"].sum(1)}
        return {"h": nodes.mailbox["m"].mean(1)}

    line = here(-4)
    plain(graph, message, total, ndata={"h": h})
    with pytest.raises(gw.errors.UserCodeError, match=r"Python branch on values of nodes.mailbox\['m'\]") as caught:
        plain(graph, message, reduce, ndata={"h": h})
    assert line in str(caught.value)


def test_wrong_user_code_is_named_with_field_sizes_and_line() -> None:
    graph, h = gw.Graph([0, 1, 1], [1, 2, 0], num_nodes=3), rows(3, 2)
    narrow = rows(3, 5, seed=1)

    def few(edges: Any) -> dict[str, Tensor]:
        return {"ok": edges.src["h"], "m": edges.src["h"][:2]}

    few_line = here(-2)

    def absent(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["missing"]}

    def mixed(edges: Any) -> dict[str, Tensor]:
        both = edges.src["h"] + edges.dst["narrow"]
        return {"m": both}

    mixed_line = here(-3)

    def never_sent(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["z"].sum(1)}

    def no_dict(nodes: Any) -> Tensor:
        return nodes.mailbox["m"].sum(1)

    fields = {"h": h, "narrow": narrow}
    cases = [
        (few, total, gw.errors.ShapeError, ["'m'", "expected field 'm' with 3 rows", "got 2 rows", few_line]),
        (absent, total, gw.errors.FieldError, ["edges.src['missing']", "'h', 'narrow'", __file__]),
        (
            mixed,
            total,
            gw.errors.ShapeError,
            ["edges.src['h'] of shape (3, 2)", "edges.dst['narrow'] of shape (3, 5)", mixed_line],
        ),
        (copy, never_sent, gw.errors.FieldError, ["nodes.mailbox['z']", "('m')", __file__]),
        (copy, no_dict, gw.errors.UserCodeError, ["expected a dict", "got Tensor", __file__]),
    ]
    for message, reduce, error, parts in cases:
        with pytest.raises(error) as caught:
            plain(graph, message, reduce, ndata=fields)
        text = str(caught.value)
        assert "\n" not in text
        for part in parts:
            assert part in text, (part, text)


def test_wrong_fields_are_named_before_anything_runs() -> None:
    graph, h = gw.Graph([0, 1, 1], [1, 2, 0], num_nodes=4), rows(3, 2)
    with pytest.raises(
        gw.errors.ShapeError, match=r"ndata\['h'\]: expected 4 rows, one per node, got 3 rows .*test_reference"
    ):
        plain(graph, copy, total, ndata={"h": h})
    with pytest.raises(gw.errors.ShapeError, match=r"edata\['w'\]: expected 3 rows, one per edge, got a scalar"):
        plain(graph, copy, total, edata={"w": 1.0})
    with pytest.raises(
        gw.errors.ShapeError, match=r"etype_data\['W'\]: expected 1 rows, one per edge type, got 2 rows"
    ):
        plain(graph, copy, total, etype_data={"W": torch.ones(2, 3)})
    with pytest.raises(gw.errors.FieldError, match=r"ndata: expected a dict"):
        plain(graph, copy, total, ndata=h)
    with pytest.raises(gw.errors.UserCodeError, match="expected reduce to be a function"):
        plain(graph, copy, "sum")
    with pytest.raises(gw.errors.GraphError, match="expected a graphweft Graph first"):
        plain(h, copy, total)


def test_bipartite_graphs_take_pairs() -> None:
    graph = gw.Graph([0, 2, 1], [1, 1, 0], num_nodes=(3, 2))
    left, right = rows(3, 2), rows(2, 2, seed=1)
    out = plain(graph, lambda e: {"m": e.src["h"] * e.dst["h"]}, total, ndata={"h": (left, right)})["h"]
    torch.testing.assert_close(out, torch.stack([left[1] * right[0], (left[0] + left[2]) * right[1]]))
    with pytest.raises(gw.errors.FieldError, match="expected a pair"):
        plain(graph, copy, total, ndata={"h": left})


def test_scalars_and_replaced_functions_are_read_at_every_call() -> None:
    class Layer(gw.MessagePassing):
        factor = 2.0

        def message(self, edges: Any) -> dict[str, Tensor]:
            return {"m": edges.src["h"] * self.factor}

        def reduce(self, nodes: Any) -> dict[str, Tensor]:
            return {"h": nodes.mailbox["m"].sum(1)}

        def forward(self, graph: gw.Graph, h: Tensor) -> Tensor:
            return self.propagate(graph, ndata={"h": h})["h"]

    graph, h, layer = gw.Graph([0], [1]), torch.ones(2, 1, dtype=F64), Layer()
    assert layer(graph, h)[1].item() == 2.0
    layer.factor = 5.0
    assert layer(graph, h)[1].item() == 5.0
    layer.reduce = lambda nodes: {"h": nodes.mailbox["m"].sum(1) + 1.0}
    assert layer(graph, h)[1].item() == 6.0
    layer.update = lambda nodes: {"h": -nodes.data["h"]}
    assert layer(graph, h).flatten().tolist() == [0.0, -6.0]
    with pytest.raises(gw.errors.UserCodeError, match="writes message"):
        gw.MessagePassing().propagate(graph, ndata={"h": h})


def test_params_reach_message_and_receive_gradients() -> None:
    w, b = rows(2, 3).requires_grad_(), rows(3, seed=1).requires_grad_()
    graph, h = gw.Graph([0, 1, 1], [1, 2, 0]), rows(3, 2, seed=2)

    def message(edges: Any, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
        return {"m": edges.src["h"] @ weight + bias}

    out = plain(graph, message, total, ndata={"h": h}, params=(w, b))["h"]
    torch.testing.assert_close(out, h[[1, 0, 1]] @ w + b)
    out.sum().backward()
    torch.testing.assert_close(b.grad, torch.full((3,), 3.0, dtype=F64))
    assert w.grad is not None


def test_message_alone() -> None:
    graph, h = gw.Graph([2, 0], [0, 1], num_nodes=3), rows(3, 2)
    sent = run_message(make_call(graph, lambda e: {"d": (e.src["h"] * e.dst["h"]).sum(1)}, total, ndata={"h": h}))
    torch.testing.assert_close(sent["d"], (h[[2, 0]] * h[[0, 1]]).sum(1))
