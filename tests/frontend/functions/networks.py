"""Messages from networks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from frontend.functions.world import F64, Functions, World, case, copy, total
from torch import Tensor, nn


@case
def edge_conditioned(w: World) -> Functions:
    w.node("h", 3), w.edge("f", 2)
    network = w.module(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 6)))

    def message(edges: Any) -> dict[str, Tensor]:
        matrix = network(edges.data["f"]).view(-1, 3, 2)
        return {"m": torch.matmul(edges.src["h"].unsqueeze(1), matrix).squeeze(1)}

    return message, total


@case
def mpnn(w: World) -> Functions:
    w.node("h", 3), w.edge("f", 2)
    first, second = w.module(nn.Linear(8, 5)), w.module(nn.Linear(8, 3))

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": F.silu(first(torch.cat([edges.src["h"], edges.dst["h"], edges.data["f"]], 1)))}

    def update(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.data["h"] + second(torch.cat([nodes.data["h"], nodes.data["agg"]], 1))}

    return message, lambda nodes: {"agg": nodes.mailbox["m"].sum(1)}, update


@case
def gated_gcn(w: World) -> Functions:
    w.node("h", 3), w.edge("e", 3)
    a, b, c = (w.param(name, 3, 3) for name in "ABC")

    def message(edges: Any) -> dict[str, Tensor]:
        gate = torch.sigmoid(edges.data["e"] @ c + edges.src["h"] @ a + edges.dst["h"] @ b)
        return {"m": gate * edges.src["h"], "gate": gate}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1) / (nodes.mailbox["gate"].sum(1) + 1e-6)}

    return message, reduce, lambda nodes: {"h": F.relu(nodes.data["h"])}


@case
def layer_norm_in_message(w: World) -> Functions:
    w.node("h", 4)
    norm, linear = w.module(nn.LayerNorm(4)), w.module(nn.Linear(4, 4))
    return lambda edges: {"m": F.gelu(norm(linear(edges.src["h"]) + edges.dst["h"]))}, total


@case
def group_norm_free_standardisation(w: World) -> Functions:
    w.node("h", 2, 4)

    def message(edges: Any) -> dict[str, Tensor]:
        h = edges.src["h"]
        return {"m": (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()}

    return message, total


@case
def highway(w: World) -> Functions:
    w.node("h", 3)
    gate = w.module(nn.Linear(6, 3))

    def update(nodes: Any) -> dict[str, Tensor]:
        z = torch.sigmoid(gate(torch.cat([nodes.data["x"], nodes.data["h"]], 1)))
        return {"h": z * nodes.data["h"] + (1 - z) * nodes.data["x"]}

    w.node("x", 3)
    return copy, total, update


@case
def gru_cell_by_hand(w: World) -> Functions:
    w.node("h", 3)
    cell = w.module(nn.GRUCell(3, 3))

    def update(nodes: Any) -> dict[str, Tensor]:
        return {"h": cell(nodes.data["m"], nodes.data["h"])}

    return copy, lambda nodes: {"m": nodes.mailbox["m"].mean(1)}, update


@case
def distance_kernel(w: World) -> Functions:
    """SchNet: radial basis of distances filters the messages."""
    w.node("h", 3), w.node("pos", 3)
    centres, fc = torch.linspace(0, 2, 4, dtype=F64), w.module(nn.Linear(4, 3))

    def message(edges: Any) -> dict[str, Tensor]:
        d = (edges.src["pos"] - edges.dst["pos"]).norm(dim=-1, keepdim=True)
        rbf = torch.exp(-10.0 * (d - centres) ** 2)
        return {"m": edges.src["h"] * F.softplus(fc(rbf))}

    return message, total


@case
def equivariant(w: World) -> Functions:
    """EGNN: invariant messages move positions."""
    w.node("h", 2), w.node("x", 3)
    phi, psi = w.module(nn.Linear(5, 4)), w.module(nn.Linear(4, 1))

    def message(edges: Any) -> dict[str, Tensor]:
        difference = edges.src["x"] - edges.dst["x"]
        radial = difference.square().sum(dim=1, keepdim=True)
        m = F.silu(phi(torch.cat([edges.src["h"], edges.dst["h"], radial], dim=1)))
        return {"m": m, "move": difference * psi(m) / (radial.sqrt() + 1)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"m": nodes.mailbox["m"].sum(1), "move": nodes.mailbox["move"].mean(1)}

    def update(nodes: Any) -> dict[str, Tensor]:
        return {"x": nodes.data["x"] + nodes.data["move"], "h": torch.cat([nodes.data["h"], nodes.data["m"]], 1)}

    return message, reduce, update


@case
def complex_rotation(w: World) -> Functions:
    """RotatE-like: halves of a vector rotated by an angle of the edge."""
    w.node("h", 6), w.edge("phase", 3)

    def message(edges: Any) -> dict[str, Tensor]:
        re, im = edges.src["h"].chunk(2, dim=1)
        c, s = torch.cos(edges.data["phase"]), torch.sin(edges.data["phase"])
        return {"m": torch.cat([re * c - im * s, re * s + im * c], dim=1)}

    return message, total


@case
def diffusion_difference(w: World) -> Functions:
    w.node("h", 3)
    return lambda edges: {"m": (edges.src["h"] - edges.dst["h"]).abs()}, lambda nodes: {"h": nodes.mailbox["m"].mean(1)}


@case
def edge_conv(w: World) -> Functions:
    w.node("h", 3)
    theta, phi = w.module(nn.Linear(3, 4)), w.module(nn.Linear(3, 4))
    return (
        lambda edges: {"e": theta(edges.src["h"] - edges.dst["h"]) + phi(edges.dst["h"])},
        lambda nodes: {"h": nodes.mailbox["e"].max(dim=1).values},
    )
