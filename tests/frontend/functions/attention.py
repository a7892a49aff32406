"""Attention: softmax over neighbours, written in many ways."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from frontend.functions.world import Functions, World, case, copy
from torch import Tensor, nn


@case
def gat_single_head(w: World) -> Functions:
    w.node("h", 4)
    weight, attention = w.param("W", 4, 3), w.param("a", 6, 1)

    def message(edges: Any) -> dict[str, Tensor]:
        z_src, z_dst = edges.src["h"] @ weight, edges.dst["h"] @ weight
        e = F.leaky_relu(torch.cat([z_src, z_dst], dim=1) @ attention)
        return {"m": z_src, "e": e}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        alpha = F.softmax(nodes.mailbox["e"], dim=1)
        return {"h": torch.sum(alpha * nodes.mailbox["m"], dim=1)}

    return message, reduce


@case
def gat_linear_modules(w: World) -> Functions:
    w.node("h", 4)
    fc, attention = w.module(nn.Linear(4, 3, bias=False)), w.module(nn.Linear(6, 1))

    def message(edges: Any) -> dict[str, Tensor]:
        z = fc(edges.src["h"])
        pair = torch.cat([z, fc(edges.dst["h"])], dim=-1)
        return {"z": z, "e": F.leaky_relu(attention(pair), negative_slope=0.1).squeeze()}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        alpha = torch.softmax(nodes.mailbox["e"], dim=1).unsqueeze(2)
        return {"h": (alpha * nodes.mailbox["z"]).sum(dim=1)}

    return message, reduce


@case
def gat_multi_head(w: World) -> Functions:
    w.node("h", 4)
    heads, width = 2, 3
    weight = w.param("W", 4, heads * width)
    left, right = w.param("al", 1, heads, width), w.param("ar", 1, heads, width)

    def message(edges: Any) -> dict[str, Tensor]:
        z_src = (edges.src["h"] @ weight).view(-1, heads, width)
        z_dst = (edges.dst["h"] @ weight).view(-1, heads, width)
        e = (z_src * left).sum(-1, keepdim=True) + (z_dst * right).sum(-1, keepdim=True)
        return {"m": z_src, "e": F.leaky_relu(e, 0.2)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        alpha = nodes.mailbox["e"].softmax(1)
        return {"h": (alpha * nodes.mailbox["m"]).sum(1).flatten(1)}

    return message, reduce


@case
def gat_mean_of_heads_and_elu(w: World) -> Functions:
    w.node("h", 2, 3)
    a = w.param("a", 2, 6)

    def message(edges: Any) -> dict[str, Tensor]:
        both = torch.cat((edges.src["h"], edges.dst["h"]), 2)
        return {"m": edges.src["h"], "e": F.elu(torch.einsum("ehf,hf->eh", both, a))}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        alpha = torch.softmax(nodes.mailbox["e"], dim=1)
        return {"h": torch.einsum("ndh,ndhf->nhf", alpha, nodes.mailbox["m"])}

    return message, reduce, lambda nodes: {"h": F.elu(nodes.data["h"].mean(1))}


@case
def gatv2(w: World) -> Functions:
    w.node("h", 4)
    left, right = w.module(nn.Linear(4, 6)), w.module(nn.Linear(4, 6))
    attention = w.param("a", 2, 3)

    def message(edges: Any) -> dict[str, Tensor]:
        s, d = left(edges.src["h"]).view(-1, 2, 3), right(edges.dst["h"]).view(-1, 2, 3)
        e = (F.leaky_relu(s + d, 0.2) * attention).sum(dim=-1)
        return {"m": s, "e": e}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], 1).unsqueeze(-1) * nodes.mailbox["m"]).sum(1).reshape(-1, 6)}

    return message, reduce


@case
def constrained_gat(w: World) -> Functions:
    """Attention by pair-wise norms of transformed ends."""
    w.node("h", 4)
    weight = w.param("W", 4, 3)

    def message(edges: Any) -> dict[str, Tensor]:
        z_src, z_dst = edges.src["h"] @ weight, edges.dst["h"] @ weight
        return {"m": z_src, "e": -torch.norm(z_src - z_dst, p=2, dim=1, keepdim=True)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], 1) * nodes.mailbox["m"]).sum(1)}

    return message, reduce


@case
def normalisation_written_out(w: World) -> Functions:
    w.node("h", 3), w.edge("w", 1)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"], "e": torch.sigmoid(edges.data["w"])}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        e = nodes.mailbox["e"]
        return {"h": (e / (e.sum(1, keepdim=True) + 1e-6) * nodes.mailbox["m"]).sum(1)}

    return message, reduce


@case
def softmax_by_hand(w: World) -> Functions:
    w.node("h", 3), w.edge("w", 1)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        e = nodes.mailbox["e"]
        e = torch.exp(e - e.max(dim=1, keepdim=True)[0])
        return {"h": (e / e.sum(dim=1, keepdim=True) * nodes.mailbox["m"]).sum(1)}

    return lambda edges: {"m": edges.src["h"], "e": edges.data["w"]}, reduce


@case
def dot_product_attention(w: World) -> Functions:
    w.node("h", 4)
    q, k, v = (w.module(nn.Linear(4, 6, bias=False)) for _ in range(3))

    def message(edges: Any) -> dict[str, Tensor]:
        key = k(edges.src["h"]).view(-1, 2, 3)
        query = q(edges.dst["h"]).view(-1, 2, 3)
        return {"score": (key * query).sum(-1) / math.sqrt(3), "v": v(edges.src["h"]).view(-1, 2, 3)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        weights = F.softmax(nodes.mailbox["score"], dim=1)
        return {"h": torch.einsum("ndh,ndhf->nhf", weights, nodes.mailbox["v"]).flatten(1)}

    return message, reduce


@case
def attention_with_query_in_reduce(w: World) -> Functions:
    w.node("h", 4), w.node("q", 4)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        k = nodes.mailbox["m"]
        scores = torch.bmm(k, nodes.data["q"].unsqueeze(2))
        alpha = torch.softmax(scores / 2.0, dim=1)
        return {"h": torch.bmm(alpha.transpose(1, 2), k).squeeze(1)}

    return copy, reduce


@case
def bilinear_attention(w: World) -> Functions:
    w.node("h", 4)
    matrix = w.param("M", 4, 4)

    def message(edges: Any) -> dict[str, Tensor]:
        e = torch.bmm((edges.src["h"] @ matrix).unsqueeze(1), edges.dst["h"].unsqueeze(2)).squeeze()
        return {"m": edges.src["h"], "e": torch.tanh(e)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (F.softmax(nodes.mailbox["e"], 1)[:, :, None] * nodes.mailbox["m"]).sum(1)}

    return message, reduce


@case
def additive_attention_with_edge_features(w: World) -> Functions:
    w.node("h", 3), w.edge("f", 2)
    fc, score = w.module(nn.Linear(8, 4)), w.param("v", 4)

    def message(edges: Any) -> dict[str, Tensor]:
        joined = torch.cat([edges.src["h"], edges.data["f"], edges.dst["h"]], -1)
        hidden = torch.tanh(fc(joined))
        return {"m": torch.cat([edges.src["h"], edges.data["f"]], -1), "e": hidden @ score}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        alpha = torch.softmax(nodes.mailbox["e"], -1)
        return {"h": (alpha.unsqueeze(-1) * nodes.mailbox["m"]).sum(-2)}

    return message, reduce


@case
def log_softmax_entropy(w: World) -> Functions:
    w.edge("w", 2)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        logits = F.log_softmax(nodes.mailbox["e"], dim=1)
        return {"entropy": -(logits.exp() * logits).sum(1)}

    return lambda edges: {"e": edges.data["w"]}, reduce


@case
def cosine_attention(w: World) -> Functions:
    w.node("h", 4)
    beta = w.param("beta", 1)

    def message(edges: Any) -> dict[str, Tensor]:
        cosine = F.cosine_similarity(edges.src["h"], edges.dst["h"] + 0.1, dim=1)
        return {"m": edges.src["h"], "e": beta * cosine}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (F.softmax(nodes.mailbox["e"], dim=1).unsqueeze(-1) * nodes.mailbox["m"]).sum(dim=1)}

    return message, reduce
