"""Reductions of many kinds, several at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
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


@case
def mean_by_the_mailbox_size(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        return {"a": m.sum(1) / m.shape[1], "b": (m / m.size(1)).sum(1), "c": m.sum(-2).div(m.size(-2) + 1)}

    return copy, reduce


@case
def scalers_by_logarithms_of_the_mailbox_size(w: World) -> Functions:
    w.node("h", 3)
    delta = 1.7

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        size = m.shape[1]
        parts = [m.mean(1), m.amax(1) * (math.log(size + 1) / delta), m.mean(1) * (delta / np.log(size + 1))]
        parts += [
            m.sum(1) / math.sqrt(size),
            m.sum(1) * size**-0.5,
            m.sum(1) * np.log1p(size),
            m.mean(1) * math.log2(size),
        ]
        return {"h": torch.cat(parts, dim=-1)}

    return copy, reduce


@case
def mailbox_size_as_a_tensor(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        degree = torch.full((m.shape[0], 1), m.shape[1], dtype=m.dtype)
        scale = torch.tensor(m.shape[1], dtype=m.dtype).log1p()
        count = (m > 0).sum(1) * m.shape[1]
        return {"h": m.sum(1) * degree.rsqrt() + nodes.data["h"] * scale, "n": count, "d": degree.squeeze(1)}

    return copy, reduce


@case
def branches_that_every_mailbox_takes_alike(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        assert m.shape[1] > 0
        if m.shape[1] == 0:
            return {"h": nodes.data["h"]}
        return {"h": m.sum(1) / max(m.shape[1], 1)}

    return copy, reduce


@case
def temperature_by_the_mailbox_size(w: World) -> Functions:
    w.node("h", 3)
    scale = w.param("scale", 1)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        weights = torch.softmax(m * (scale / m.shape[1] ** 0.5), dim=1)
        return {"h": (weights * m).sum(dim=1) - m.shape[1] * nodes.data["h"]}

    return copy, reduce
