"""What is no segment operation and runs as it stands."""

from __future__ import annotations

from typing import Any

import torch
from frontend.functions.world import Functions, World, copy, falls_back, total
from torch import Tensor, nn


@falls_back("number of nodes, edges or messages")
def median_by_sort(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        ordered = torch.sort(nodes.mailbox["m"], dim=1)[0]
        return {"h": ordered[:, ordered.shape[1] // 2]}

    return copy, reduce


@falls_back("sort")
def sort_and_weigh(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": torch.sort(nodes.mailbox["m"], dim=1).values.cumsum(1).sum(1)}

    return copy, reduce


@falls_back("")
def lstm_over_mailbox(w: World) -> Functions:
    w.node("h", 3)
    lstm = w.module(nn.LSTM(3, 2, batch_first=True))

    def reduce(nodes: Any) -> dict[str, Tensor]:
        _, (hidden, _) = lstm(nodes.mailbox["m"])
        return {"h": hidden.squeeze(0)}

    return copy, reduce


@falls_back("select")
def last_message(w: World) -> Functions:
    w.node("h", 3)
    return copy, lambda nodes: {"h": nodes.mailbox["m"][:, -1]}


@falls_back("cat")
def own_features_as_a_message(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        joined = torch.cat([nodes.data["h"].unsqueeze(1), nodes.mailbox["m"]], dim=1)
        return {"h": joined.max(1)[0]}

    return copy, reduce


@falls_back("Python branch on tensor values")
def branch_on_values(w: World) -> Functions:
    w.node("h", 3)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] if edges.src["h"].sum() > 0 else -edges.src["h"]}

    return message, total


@falls_back("number of nodes, edges or messages")
def branch_on_degree(w: World) -> Functions:
    w.node("h", 3)

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        return {"h": m.mean(1) if m.shape[1] > 2 else m.sum(1)}

    return copy, reduce


@falls_back("cumsum")
def discounted(w: World) -> Functions:
    w.node("h", 3)
    return copy, lambda nodes: {"h": nodes.mailbox["m"].cumsum(1).mean(1)}
