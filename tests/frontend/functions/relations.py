"""Relations: typed graphs and integers of edges."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from frontend.functions.world import Functions, World, case, total, typed
from torch import Tensor, nn


@case
def embedding_of_edge_kinds(w: World) -> Functions:
    w.node("h", 3), w.kinds("kind", 4)
    table = w.module(nn.Embedding(4, 3))
    return lambda edges: {"m": edges.src["h"] * table(edges.data["kind"])}, total


@case
def rgcn_by_index(w: World) -> Functions:
    """The tutorial's R-GCN: one matrix per relation picked by an integer of the edge."""
    w.node("h", 3), w.kinds("rel", 4), w.edge("norm", 1)
    weight = w.param("W", 4, 3, 2)

    def message(edges: Any) -> dict[str, Tensor]:
        matrix = weight[edges.data["rel"]]
        return {"m": torch.bmm(edges.src["h"].unsqueeze(1), matrix).squeeze() * edges.data["norm"]}

    return message, total


@typed
def rgcn_typed(w: World) -> Functions:
    w.node("h", 3), w.etable("W", 3, 2), w.ntable("b", 2)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": torch.bmm(edges.src["h"].unsqueeze(1), edges.type["W"]).squeeze(1)}

    return message, total, lambda nodes: {"h": F.relu(nodes.data["h"] + nodes.type["b"])}


@typed
def rgcn_basis(w: World) -> Functions:
    w.node("h", 3), w.etable("comp", 2)
    bases = w.param("bases", 2, 3, 4)

    def message(edges: Any) -> dict[str, Tensor]:
        weight = torch.matmul(edges.type["comp"], bases.view(2, -1)).view(-1, 3, 4)
        return {"m": torch.bmm(edges.src["h"].unsqueeze(1), weight).squeeze(1)}

    return message, lambda nodes: {"h": nodes.mailbox["m"].mean(1)}


@typed
def hgt(w: World) -> Functions:
    heads, width = 2, 2
    w.node("h", 4)
    for name in ("K", "Q", "V"):
        w.ntable(name, 4, heads * width)
    w.etable("att", heads, width, width), w.etable("msg", heads, width, width), w.etable("prior", heads)

    def message(edges: Any) -> dict[str, Tensor]:
        k = torch.bmm(edges.src["h"].unsqueeze(1), edges.srctype["K"]).view(-1, heads, width)
        v = torch.bmm(edges.src["h"].unsqueeze(1), edges.srctype["V"]).view(-1, heads, width)
        q = torch.bmm(edges.dst["h"].unsqueeze(1), edges.dsttype["Q"]).view(-1, heads, width)
        k = torch.einsum("ehi,ehij->ehj", k, edges.type["att"])
        v = torch.einsum("ehi,ehij->ehj", v, edges.type["msg"])
        return {"a": (q * k).sum(-1) * edges.type["prior"] / math.sqrt(width), "v": v}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        alpha = torch.softmax(nodes.mailbox["a"], dim=1).unsqueeze(-1)
        return {"h": (alpha * nodes.mailbox["v"]).sum(1).flatten(1)}

    return message, reduce, lambda nodes: {"h": F.gelu(nodes.data["h"])}


@typed
def simple_hgn(w: World) -> Functions:
    """Edge type embeddings inside attention."""
    w.node("h", 3), w.etable("r", 2)
    weight, relation, a = w.param("W", 3, 3), w.param("Wr", 2, 2), w.param("a", 8)

    def message(edges: Any) -> dict[str, Tensor]:
        s, d = edges.src["h"] @ weight, edges.dst["h"] @ weight
        return {"m": s, "e": F.leaky_relu(torch.cat([s, d, edges.type["r"] @ relation], 1) @ a, 0.05)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], 1).unsqueeze(2) * nodes.mailbox["m"]).sum(1)}

    return message, reduce


@typed
def typed_bias_in_reduce(w: World) -> Functions:
    w.node("h", 3), w.ntable("b", 3), w.ntable("s", 1)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].mean(1) * nodes.type["s"] + nodes.type["b"]}

    return lambda edges: {"m": edges.src["h"] * edges.dsttype["s"]}, reduce
