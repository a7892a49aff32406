"""Shapes and styles: views, in-place code, constants, helpers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from frontend.functions.world import F64, Functions, World, case, copy, total
from torch import Tensor, nn


@case
def in_place_everywhere(w: World) -> Functions:
    w.node("h", 4), w.edge("w", 4)
    scale = w.param("s", 4)

    def message(edges: Any) -> dict[str, Tensor]:
        m = edges.src["h"] * scale
        m += edges.data["w"]
        m.mul_(0.5).sub_(1.0)
        m[:, 0] = edges.dst["h"][:, 1]
        m[:, 2:] *= 3.0
        return {"m": m}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        out = nodes.mailbox["m"].sum(1)
        out /= 2
        return {"h": out.relu_()}

    return message, reduce


@case
def in_place_mask(w: World) -> Functions:
    w.node("h", 4)

    def message(edges: Any) -> dict[str, Tensor]:
        m = edges.src["h"].clone()
        m[m < 0] = 0.1
        return {"m": m.masked_fill(m > 1.5, 1.5)}

    return message, total


@case
def squeeze_without_a_dimension(w: World) -> Functions:
    w.node("h", 4, 1), w.edge("w", 1)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"].squeeze() * edges.data["w"], "e": edges.data["w"].squeeze()}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1).squeeze(), "e": nodes.mailbox["e"].squeeze().sum(1)}

    return message, reduce


@case
def views_of_all_kinds(w: World) -> Functions:
    w.node("h", 12)

    def message(edges: Any) -> dict[str, Tensor]:
        m = edges.src["h"].view(-1, 3, 4).transpose(1, 2).contiguous()
        m = m.reshape(edges.src["h"].shape[0], 2, 6).permute(0, 2, 1)
        return {"m": m.flatten(1)[:, ::2].unsqueeze(-1).expand(-1, -1, 2)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        return {"h": m.reshape(m.shape[0], m.shape[1], -1).sum(1)[:, 3:9]}

    return message, reduce


@case
def stack_split_unbind_repeat(w: World) -> Functions:
    w.node("h", 6)

    def message(edges: Any) -> dict[str, Tensor]:
        a, b = torch.split(edges.src["h"], 3, dim=1)
        both = torch.stack([a, b, a * b], dim=1)
        one, two, three = both.unbind(1)
        return {"m": torch.cat([one, two, three], -1).repeat(1, 2)}

    return message, total


@case
def einsum_of_three(w: World) -> Functions:
    w.node("h", 2, 3)
    t = w.param("T", 2, 3, 4)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": torch.einsum("eha,hab,ehb->eh", edges.src["h"], t @ t.transpose(1, 2), edges.dst["h"])}

    return message, lambda nodes: {"h": nodes.mailbox["m"].tanh().sum(1)}


@case
def addmm_baddbmm_linear(w: World) -> Functions:
    w.node("h", 4)
    weight, bias = w.param("W", 3, 4), w.param("b", 3)
    blocks = w.param("B", 3, 1, 2)

    def message(edges: Any) -> dict[str, Tensor]:
        z = torch.addmm(bias, edges.src["h"], weight.t(), beta=0.5, alpha=2.0)
        out = torch.bmm(z.t().unsqueeze(-1), blocks).permute(1, 0, 2)
        return {"m": F.linear(out.flatten(1), torch.ones(2, 6, dtype=F64))}

    return message, total


@case
def outer_product_mailbox(w: World) -> Functions:
    w.node("h", 3), w.edge("f", 2)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"].unsqueeze(2) * edges.data["f"].unsqueeze(1)}

    return message, lambda nodes: {"h": nodes.mailbox["m"].sum(1).flatten(1).tanh()}


@case
def second_order_pooling(w: World) -> Functions:
    """Covariance of messages: a product over the mailbox."""
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        return {"h": torch.bmm(m.transpose(1, 2), m).flatten(1)}

    return copy, reduce


@case
def scalars_per_node(w: World) -> Functions:
    w.node("rank"), w.degrees()

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["rank"] / edges.src["deg"].clamp(min=1)}

    return message, lambda nodes: {"rank": 0.15 + 0.85 * nodes.mailbox["m"].sum(1)}


@case
def where_and_comparisons(w: World) -> Functions:
    w.node("h", 3)

    def message(edges: Any) -> dict[str, Tensor]:
        s, d = edges.src["h"], edges.dst["h"]
        return {"m": torch.where(s > d, s, d * 0.5) + torch.maximum(s, d) - torch.minimum(s, -d)}

    return message, total


@case
def activations(w: World) -> Functions:
    w.node("h", 3)

    def message(edges: Any) -> dict[str, Tensor]:
        h = edges.src["h"]
        parts = [F.elu(h), F.selu(h), F.gelu(h), F.silu(h), F.softplus(h), F.hardtanh(h), F.mish(h), F.leaky_relu(h)]
        parts += [
            F.relu6(h),
            F.celu(h),
            F.logsigmoid(h),
            F.tanhshrink(h),
            F.softsign(h),
            F.hardswish(h),
            F.glu(h.repeat(1, 2)),
        ]
        return {"m": torch.cat(parts, 1)}

    return message, total


@case
def whole_graph_maximum(w: World) -> Functions:
    """A stable exponential by the maximum over all edges; a mean over all nodes in update."""
    w.node("h", 3), w.edge("w", 1)

    def message(edges: Any) -> dict[str, Tensor]:
        e = torch.exp(edges.data["w"] - edges.data["w"].max())
        return {"m": e * edges.src["h"], "e": e}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1), "z": nodes.mailbox["e"].sum(1)}

    def update(nodes: Any) -> dict[str, Tensor]:
        h = nodes.data["h"] / (nodes.data["z"] + 1e-9)
        return {"h": h - h.mean(0), "mean": nodes.data["z"].sum().expand(nodes.data["z"].shape[0])}

    return message, reduce, update


@case
def batch_norm_evaluation(w: World) -> Functions:
    w.node("h", 3)
    norm = w.module(nn.BatchNorm1d(3)).eval()
    return lambda edges: {"m": norm(edges.src["h"])}, total, lambda nodes: {"h": norm(nodes.data["h"])}


@case
def gradient_stopped(w: World) -> Functions:
    w.node("h", 3)
    weight = w.param("W", 3, 3)

    def message(edges: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            gate = torch.sigmoid(edges.dst["h"] @ weight)
        return {"m": edges.src["h"] @ weight * gate + edges.src["h"].detach()}

    return message, total


@case
def extra_arguments(w: World) -> Functions:
    w.node("h", 3)
    w.params = (w.param("W", 3, 2), 0.5, "relu")

    def message(edges: Any, weight: Tensor, scale: float, name: str) -> dict[str, Tensor]:
        return {"m": getattr(torch, name)(edges.src["h"] @ weight) * scale}

    return message, total


@case
def captured_edge_tensor(w: World) -> Functions:
    w.node("h", 3)
    norm = w.param("norm", w.graph.num_edges, 1)
    return lambda edges: {"m": edges.src["h"] * norm}, total


@case
def constants_and_ranges(w: World) -> Functions:
    w.node("h", 4)

    def message(edges: Any) -> dict[str, Tensor]:
        frequency = torch.arange(4, dtype=F64) + torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=F64)
        padded = torch.cat([edges.src["h"] * frequency, torch.ones(edges.src["h"].shape[0], 1, dtype=F64)], 1)
        return {"m": padded + torch.zeros_like(padded)}

    return message, total


@case
def mlp_on_pairs_in_reduce(w: World) -> Functions:
    """Every message next to its receiver, through a network, inside reduce."""
    w.node("h", 3)
    mlp = w.module(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)))

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        own = nodes.data["h"].unsqueeze(1).expand(-1, m.shape[1], -1)
        return {"h": mlp(torch.cat([m, own], dim=-1)).sum(1)}

    return copy, reduce


@case
def repeat_own_features(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        own = nodes.data["h"].unsqueeze(1).repeat(1, m.size(1), 1)
        return {"h": ((own - m) ** 2).sum(1)}

    return copy, reduce


@case
def helpers_and_methods(w: World) -> Functions:
    w.node("h", 3)

    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(3, 3))

        def score(self, a: Tensor, b: Tensor) -> Tensor:
            return ((a @ self.weight) * b).sum(-1, keepdim=True)

        def message(self, edges: Any) -> dict[str, Tensor]:
            return {"m": edges.src["h"], "e": self.score(edges.src["h"], edges.dst["h"])}

        def reduce(self, nodes: Any) -> dict[str, Tensor]:
            return {"h": _weighted(nodes.mailbox["e"], nodes.mailbox["m"])}

    scorer = w.module(Scorer())
    return scorer.message, scorer.reduce


def _weighted(e: Tensor, m: Tensor) -> Tensor:
    return (torch.softmax(e, 1) * m).sum(1)
