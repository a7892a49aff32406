"""Convolutions: copies, normalised and weighted sums."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from frontend.functions.world import F64, Functions, World, case, copy, total
from torch import Tensor, nn


@case
def copy_sum(w: World) -> Functions:
    w.node("h", 4)
    return copy, total


@case
def copy_mean(w: World) -> Functions:
    w.node("h", 4)
    return copy, lambda nodes: {"h": nodes.mailbox["m"].mean(dim=1)}


@case
def copy_max(w: World) -> Functions:
    w.node("h", 4)
    return copy, lambda nodes: {"h": nodes.mailbox["m"].max(1)[0]}


@case
def copy_min_values(w: World) -> Functions:
    w.node("h", 4)
    return copy, lambda nodes: {"h": torch.min(nodes.mailbox["m"], dim=1).values}


@case
def gcn_norm_field(w: World) -> Functions:
    w.node("h", 4), w.degrees()
    weight = w.param("W", 4, 3)

    def message(edges: Any) -> dict[str, Tensor]:
        norm = (edges.src["deg"].clamp(min=1) * edges.dst["deg"].clamp(min=1)).to(F64).pow(-0.5)
        return {"m": edges.src["h"] * norm.unsqueeze(1)}

    def update(nodes: Any) -> dict[str, Tensor]:
        return {"h": torch.relu(nodes.data["h"] @ weight)}

    return message, total, update


@case
def gcn_norm_in_reduce(w: World) -> Functions:
    w.node("h", 4), w.node("norm", 1)
    linear = w.module(nn.Linear(4, 3))

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] * edges.src["norm"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": F.relu(linear(nodes.mailbox["m"].sum(1) * nodes.data["norm"]))}

    return message, reduce


@case
def edge_weighted(w: World) -> Functions:
    w.node("h", 4), w.edge("w")
    return lambda edges: {"m": edges.src["h"] * edges.data["w"].view(-1, 1)}, total


@case
def edge_weighted_mean_by_weight(w: World) -> Functions:
    w.node("h", 3), w.edge("w")

    def message(edges: Any) -> dict[str, Tensor]:
        weight = edges.data["w"].exp()
        return {"m": edges.src["h"] * weight[:, None], "w": weight}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1) / nodes.mailbox["w"].sum(1).unsqueeze(-1)}

    return message, reduce


@case
def sage_concat(w: World) -> Functions:
    w.node("h", 4)
    linear = w.module(nn.Linear(8, 3))

    def update(nodes: Any) -> dict[str, Tensor]:
        joined = torch.cat([nodes.data["h"], nodes.data["neighbours"]], dim=1)
        return {"h": F.normalize(F.relu(linear(joined)) + 0.1, p=2, dim=1)}

    return copy, lambda nodes: {"neighbours": nodes.mailbox["m"].mean(1)}, update


@case
def sage_pool(w: World) -> Functions:
    w.node("h", 4)
    pool, out = w.module(nn.Linear(4, 5)), w.param("out", 5, 2)
    return (
        lambda edges: {"m": F.relu(pool(edges.src["h"]))},
        lambda nodes: {"h": torch.max(nodes.mailbox["m"], 1)[0] @ out},
    )


@case
def gin(w: World) -> Functions:
    w.node("h", 4)
    eps = w.param("eps")
    mlp = w.module(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))

    def update(nodes: Any) -> dict[str, Tensor]:
        return {"h": mlp((1 + eps) * nodes.data["h"] + nodes.data["sum"])}

    return copy, lambda nodes: {"sum": nodes.mailbox["m"].sum(1)}, update


@case
def tag_two_fields(w: World) -> Functions:
    w.node("h", 4), w.node("z", 2)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"a": edges.src["h"], "b": edges.src["z"] - edges.dst["z"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["a"].sum(1), "z": nodes.mailbox["b"].mean(1), "both": nodes.mailbox["b"].sum(1) * 2}

    return message, reduce


@case
def ngcf(w: World) -> Functions:
    w.node("h", 4), w.node("norm", 1)
    one, two = w.param("W1", 4, 3), w.param("W2", 4, 3)

    def message(edges: Any) -> dict[str, Tensor]:
        affinity = edges.src["h"] * edges.dst["h"]
        m = torch.mm(edges.src["h"], one) + torch.mm(affinity, two)
        return {"m": m * (edges.src["norm"] * edges.dst["norm"])}

    return message, total, lambda nodes: {"h": F.leaky_relu(nodes.data["h"], 0.2)}
