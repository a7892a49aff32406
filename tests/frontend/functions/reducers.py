"""Reductions of many kinds, several at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from frontend.functions.world import F64, Functions, World, case, copy
from torch import Tensor


@case
def pna_like(w: World) -> Functions:
    w.node("h", 3), w.degrees()

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        parts = [m.mean(1), m.max(1)[0], m.min(1)[0], m.std(1, unbiased=False)]
        scale = torch.log(nodes.data["deg"].to(F64) + 1).unsqueeze(-1)
        joined = torch.cat(parts, dim=1)
        return {"h": torch.cat([joined, joined * scale], dim=1)}

    return copy, reduce


@case
def moments(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        mean = m.mean(1, keepdim=True)
        variance = ((m - mean) ** 2).mean(1)
        return {"mean": mean.squeeze(1), "std": torch.sqrt(F.relu(variance) + 1e-5), "third": ((m - mean) ** 3).mean(1)}

    return copy, reduce


@case
def logsumexp_pool(w: World) -> Functions:
    w.node("h", 3)
    t = w.param("t", 1)
    return copy, lambda nodes: {"h": torch.logsumexp(nodes.mailbox["m"] * t, dim=1)}


@case
def power_mean(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        clamped = torch.clamp(nodes.mailbox["m"], 1e-2, 10.0)
        return {"h": torch.pow(torch.pow(clamped, 3.0).mean(1), 1 / 3.0)}

    return copy, reduce


@case
def softmax_aggregation(w: World) -> Functions:
    """GENConv: softmax over neighbours per channel with a learned temperature."""
    w.node("h", 3)
    beta = w.param("beta")

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = F.relu(nodes.mailbox["m"]) + 1e-7
        return {"h": (F.softmax(m * beta, dim=1) * m).sum(dim=1)}

    return copy, reduce


@case
def variance_and_norm(w: World) -> Functions:
    w.node("h", 4)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        return {"v": torch.var(m, dim=1, unbiased=False), "n": m.norm(dim=2).sum(1), "whole": m.norm(dim=(1, 2))}

    return copy, reduce


@case
def amax_and_sum_over_both(w: World) -> Functions:
    w.node("h", 2, 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        return {"a": m.amax(1), "b": m.sum((1, 2)), "c": m.flatten(2).mean((1, 2)), "d": m.amin(dim=(1, 3))}

    return copy, reduce


@case
def counts_and_flags(w: World) -> Functions:
    w.node("h", 3)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"], "positive": edges.src["h"][:, 0] > 0}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        flag = nodes.mailbox["positive"]
        return {
            "count": flag.sum(1),
            "any": flag.any(1),
            "all": flag.all(dim=1),
            "h": (nodes.mailbox["m"] * flag.unsqueeze(-1)).sum(1),
        }

    return message, reduce


@case
def masked_mean(w: World) -> Functions:
    w.node("h", 3), w.edge("w")

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"], "mask": (edges.data["w"] > 0).to(F64)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        mask = nodes.mailbox["mask"].unsqueeze(-1)
        return {"h": (nodes.mailbox["m"] * mask).sum(1) / mask.sum(1).clamp(min=1.0)}

    return message, reduce
