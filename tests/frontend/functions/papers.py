"""Layers of papers in the way their repositories write them: geometry, filters, gates, kernels of attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from frontend.functions.world import Functions, World, case, copy, total
from torch import Tensor, nn


@case
def continuous_filters(w: World) -> Functions:
    """SchNet: radial bases of the distance, a smooth cut-off, shifted softplus."""
    w.node("h", 4), w.node("pos", 3)
    inner, outer = w.module(nn.Linear(4, 5, bias=False)), w.param("out", 5, 4)
    net = w.module(nn.Sequential(nn.Linear(6, 5), nn.Softplus(), nn.Linear(5, 5)))
    centres = torch.linspace(0, 4, 6).to(w.dtype)

    def message(edges: Any) -> dict[str, Tensor]:
        d = (edges.src["pos"] - edges.dst["pos"]).pow(2).sum(-1).add(1e-3).sqrt()
        basis = torch.exp(-0.8 * (d.view(-1, 1) - centres.view(1, -1)).pow(2))
        cut = 0.5 * (torch.cos(d * math.pi / 4.0) + 1.0) * (d < 4.0).to(d.dtype)
        return {"m": inner(edges.src["h"]) * (net(basis) * cut.view(-1, 1))}

    return message, lambda nodes: {"h": F.softplus(nodes.mailbox["m"].sum(dim=1) @ outer) - math.log(2.0)}


@case
def scalars_and_vectors(w: World) -> Functions:
    """PaiNN: scalar and vector features, split filters, directions between the ends."""
    w.node("s", 4), w.node("v", 4, 3), w.node("pos", 3)
    phi, filters = w.module(nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 12))), w.param("F", 5, 12)
    frequency = torch.arange(1, 6).to(w.dtype)

    def message(edges: Any) -> dict[str, Tensor]:
        r = edges.dst["pos"] - edges.src["pos"]
        d = torch.sqrt((r * r).sum(-1, keepdim=True) + 1e-2)
        x = phi(edges.src["s"]) * ((torch.sin(frequency * math.pi * d / 5) / d) @ filters)
        s, gate, along = torch.split(x, [4, 4, 4], dim=-1)
        return {"s": s, "v": edges.src["v"] * gate.unsqueeze(-1) + along.unsqueeze(-1) * (r / d).unsqueeze(1)}

    def update(nodes: Any) -> dict[str, Tensor]:
        return {"s": nodes.data["s"] + nodes.data["ds"], "v": nodes.data["v"] + nodes.data["dv"]}

    return message, lambda n: {"ds": n.mailbox["s"].sum(1), "dv": n.mailbox["v"].sum(1)}, update


@case
def recurrent_edges_and_nodes(w: World) -> Functions:
    """Gates of torch's own cells over edges, then over nodes."""
    w.node("h", 4), w.edge("e", 4)
    gru, lstm = w.module(nn.GRUCell(8, 4)), w.module(nn.LSTMCell(4, 4))

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": gru(torch.cat((edges.src["h"], edges.dst["h"]), 1), edges.data["e"])}

    def update(nodes: Any) -> dict[str, Tensor]:
        h, c = lstm(nodes.data["a"], (nodes.data["h"], torch.zeros_like(nodes.data["h"])))
        return {"h": h, "c": c}

    return message, lambda nodes: {"a": nodes.mailbox["m"].mean(1)}, update


@case
def scores_of_triples(w: World) -> Functions:
    """TransE, DistMult and RotatE, joined by a log-sum-exp over the neighbours."""
    w.node("h", 4), w.kinds("r", 3)
    relation, phase = w.module(nn.Embedding(3, 4)), w.param("phase", 3, 2)

    def message(edges: Any) -> dict[str, Tensor]:
        head, tail, r = edges.src["h"], edges.dst["h"], relation(edges.data["r"])
        (re_h, im_h), (re_t, im_t) = torch.chunk(head, 2, dim=-1), torch.chunk(tail, 2, dim=-1)
        angle = phase[edges.data["r"]] / (2.0 / math.pi)
        re = re_h * angle.cos() - im_h * angle.sin() - re_t
        im = re_h * angle.sin() + im_h * angle.cos() - im_t
        rotate = 6.0 - torch.stack([re, im], dim=0).norm(dim=0).sum(dim=-1)
        translate, product = -torch.norm(head + r - tail, p=1, dim=-1), (head * r * tail).sum(-1)
        return {"s": torch.stack([translate, product, rotate], dim=-1)}

    return message, lambda nodes: {"s": nodes.mailbox["s"].logsumexp(1)}


@case
def padded_embeddings(w: World) -> Functions:
    """The row of the padding receives no gradient."""
    w.node("h", 3), w.kinds("word", 5)
    first, last = w.module(nn.Embedding(5, 3, padding_idx=0)), w.module(nn.Embedding(5, 3, padding_idx=-1))

    def message(edges: Any) -> dict[str, Tensor]:
        words = torch.stack([edges.data["word"], edges.data["word"] * 0], 1)
        return {"m": first(words).mean(1) * edges.src["h"] + last(edges.data["word"])}

    return message, total


@case
def one_hot_kinds(w: World) -> Functions:
    w.node("h", 2), w.kinds("t", 3)
    tables = w.param("T", 3, 2, 2)

    def message(edges: Any) -> dict[str, Tensor]:
        kind = F.one_hot(edges.data["t"], 3).to(edges.src["h"].dtype)
        return {"m": torch.einsum("et,ei,tij->ej", kind, edges.src["h"], tables), "kind": kind}

    return message, lambda nodes: {"h": nodes.mailbox["m"].sum(1), "share": nodes.mailbox["kind"].mean(1)}


@case
def masked_attention(w: World) -> Functions:
    """Scores of dropped edges are minus infinity; a node whose edges are all dropped gets zeros."""
    w.node("h", 3), w.edge("s"), w.kinds("ok", 2)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        scores = nodes.mailbox["s"].masked_fill(nodes.mailbox["ok"] == 0, float("-inf"))
        alpha = torch.nan_to_num(torch.softmax(scores, dim=1), nan=0.0)
        return {"h": (alpha.unsqueeze(-1) * nodes.mailbox["m"]).sum(1)}

    return lambda e: {"m": e.src["h"], "s": e.data["s"], "ok": e.data["ok"]}, reduce


@case
def straight_through_choice(w: World) -> Functions:
    """Gumbel softmax with the noise given: hard forward, soft backward."""
    w.node("h", 3), w.edge("s", 1), w.edge("noise", 1)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        soft = F.softmax((nodes.mailbox["s"] + nodes.mailbox["noise"]) / 0.7, 1)
        hard = (soft == soft.max(1, keepdim=True)[0]).to(soft.dtype)
        return {"h": (((hard - soft).detach() + soft) * nodes.mailbox["m"]).sum(1)}

    return lambda e: {"m": e.src["h"], "s": e.data["s"], "noise": e.data["noise"]}, reduce


@case
def softmax_over_messages_and_heads(w: World) -> Functions:
    w.node("h", 2, 3), w.edge("s", 2)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        s = nodes.mailbox["s"]
        alpha = F.softmax(s.flatten(1), dim=1).view_as(s)
        return {"h": (alpha.unsqueeze(-1) * nodes.mailbox["m"]).sum((1, 2))}

    return lambda e: {"m": e.src["h"], "s": e.data["s"]}, reduce


@case
def linear_attention(w: World) -> Functions:
    """Kernel features of keys, their outer products with values, and the query in reduce."""
    w.node("h", 4)

    def features(x: Tensor) -> Tensor:
        return F.elu(x) + 1

    def message(edges: Any) -> dict[str, Tensor]:
        k = features(edges.src["h"])
        return {"kv": k.unsqueeze(-1) * edges.src["h"].unsqueeze(-2), "k": k}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        q = features(nodes.data["h"])
        z = 1 / (torch.einsum("ni,ni->n", q, nodes.mailbox["k"].sum(1)) + 1e-6)
        return {"h": torch.einsum("ni,nij,n->nj", q, nodes.mailbox["kv"].sum(1), z)}

    return message, reduce


@case
def heads_attend_to_each_other(w: World) -> Functions:
    """A softmax over features inside a message."""
    w.node("h", 3, 4)
    qkv = w.module(nn.Linear(4, 12))

    def message(edges: Any) -> dict[str, Tensor]:
        q, k, v = qkv(edges.src["h"]).chunk(3, dim=-1)
        return {"m": torch.softmax(q @ k.transpose(1, 2) / 2.0, dim=-1) @ v}

    return message, total


@case
def sheaf_diffusion(w: World) -> Functions:
    """Maps between stalks made of both ends, applied there and back."""
    w.node("x", 2, 3)
    maps = w.module(nn.Linear(12, 4))

    def message(edges: Any) -> dict[str, Tensor]:
        both = torch.cat([edges.src["x"].flatten(1), edges.dst["x"].flatten(1)], 1)
        f = torch.tanh(maps(both)).view(-1, 2, 2)
        return {"m": torch.bmm(f.transpose(1, 2), torch.bmm(f, edges.dst["x"] - edges.src["x"]))}

    return message, lambda nodes: {"x": nodes.data["x"] - nodes.mailbox["m"].sum(1)}


@case
def spline_recursion(w: World) -> Functions:
    """B-splines by de Boor's recursion over a captured grid."""
    w.node("h", 2)
    grid = torch.linspace(-2, 2, 8).to(w.dtype)

    def message(edges: Any) -> dict[str, Tensor]:
        x = edges.src["h"].unsqueeze(-1)
        b = ((x >= grid[:-1]) & (x < grid[1:])).to(x.dtype)
        for k in range(1, 3):
            rising = (x - grid[: -(k + 1)]) / (grid[k:-1] - grid[: -(k + 1)]) * b[..., :-1]
            b = rising + (grid[k + 1 :] - x) / (grid[k + 1 :] - grid[1:-k]) * b[..., 1:]
        return {"m": b.flatten(1)}

    return message, total


@case
def rotary_time(w: World) -> Functions:
    w.node("h", 4), w.edge("t")
    inverse = (1.0 / (10.0 ** (torch.arange(0, 4, 2).double() / 4))).to(w.dtype)

    def message(edges: Any) -> dict[str, Tensor]:
        angle = edges.data["t"][:, None] * inverse
        c, s = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        one, two = edges.src["h"][..., :2], edges.src["h"][..., 2:]
        return {"m": edges.src["h"] * c + torch.cat((-two, one), dim=-1) * s}

    return message, total


@case
def directional_derivative(w: World) -> Functions:
    """DGN: messages weighted by the change of an eigenvector."""
    w.node("h", 3), w.node("eig", 2)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"], "d": edges.src["eig"][:, 1] - edges.dst["eig"][:, 1]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m, d = nodes.mailbox["m"], nodes.mailbox["d"]
        along = d / (d.abs().sum(dim=1, keepdim=True) + 1e-8)
        change = torch.abs((m * along.unsqueeze(-1)).sum(1) - along.sum(1, keepdim=True) * nodes.data["h"])
        return {"h": torch.cat([(m * along.abs().unsqueeze(-1)).sum(1), change, m.mean(1)], 1)}

    return message, reduce


@case
def third_and_fourth_moments(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        d = nodes.mailbox["m"] - nodes.mailbox["m"].mean(1, keepdim=True)
        var = d.pow(2).mean(1)
        return {"h": torch.cat([var, d.pow(3).mean(1) / (var + 0.1) ** 1.5, (d**4).mean(1) / (var + 0.1) ** 2], -1)}

    return copy, reduce


@case
def weight_norm(w: World) -> Functions:
    """A parametrised weight: hooks that only loading and saving run are no obstacle."""
    w.node("h", 4)
    linear = w.module(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    return lambda edges: {"m": linear(edges.src["h"])}, total


@case
def hyperbolic_addition(w: World) -> Functions:
    """Differences of points in a ball, by Moebius addition and the logarithm at the origin."""
    w.node("h", 3)

    def message(edges: Any) -> dict[str, Tensor]:
        x, y = torch.tanh(edges.src["h"]) * 0.3, torch.tanh(edges.dst["h"]) * 0.3
        xx, yy, xy = ((a * b).sum(-1, keepdim=True) for a, b in ((x, x), (y, y), (x, y)))
        m = ((1 + 2 * xy + yy) * x + (1 - xx) * y) / (1 + 2 * xy + xx * yy).clamp_min(1e-6)
        norm = m.norm(dim=-1, keepdim=True).clamp_min(1e-9)
        return {"m": torch.atanh(norm.clamp(max=1 - 1e-5)) * m / norm}

    return message, lambda nodes: {"h": nodes.mailbox["m"].mean(1)}


@case
def loss_on_edges(w: World) -> Functions:
    w.node("h", 3), w.kinds("y", 2)

    def message(edges: Any) -> dict[str, Tensor]:
        score, label = (edges.src["h"] * edges.dst["h"]).sum(-1), edges.data["y"].to(edges.src["h"].dtype)
        weighted = F.binary_cross_entropy_with_logits(
            score * 20, label, reduction="none", pos_weight=torch.tensor(3.0, dtype=label.dtype)
        )
        return {"l": F.binary_cross_entropy_with_logits(score, label, reduction="none") + weighted}

    return message, lambda nodes: {"l": nodes.mailbox["l"].mean(1)}


@case
def interleaved_rotation(w: World) -> Functions:
    """Pairs of neighbouring features, written with steps into an empty tensor."""
    w.node("h", 4), w.edge("t", 1)

    def message(edges: Any) -> dict[str, Tensor]:
        h, out = edges.src["h"], torch.empty_like(edges.src["h"])
        c, s = edges.data["t"].cos(), edges.data["t"].sin()
        out[:, 0::2] = h[:, 0::2] * c - h[:, 1::2] * s
        out[:, 1::2] = h[:, 0::2] * s + h[:, 1::2] * c
        return {"m": out}

    return message, total


@case
def padded_and_picked_features(w: World) -> Functions:
    """Constant positions, rolls, and borders of a constant."""
    w.node("h", 2, 4)

    def message(edges: Any) -> dict[str, Tensor]:
        h = edges.src["h"]
        picked = h[:, [1, 0, -1]] * torch.index_select(h, 2, torch.tensor([3, 0, 0, 1]))[:, :1]
        padded = F.pad(h, (1, 2, 0, 1), value=0.5) + F.pad(edges.dst["h"], (-1, 4, 1, 0))
        return {"picked": picked, "padded": padded, "rolled": torch.roll(h, 1, dims=-1) * edges.dst["h"]}

    return message, lambda nodes: {name: nodes.mailbox[name].sum(1) for name in ("picked", "padded", "rolled")}
