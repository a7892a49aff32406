"""User functions run node by node in plain torch: nothing of the library but the graph's own edge list."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from frontend.functions.world import World
from torch import Tensor


def run_node_by_node(world: World, functions: tuple[Any, ...]) -> dict[str, Tensor]:
    """What the functions give on the world's graph, which has some edge; no bare squeeze, no types."""
    message, reduce, update = (*functions, None)[:3]
    nodes, fields = world.graph.num_nodes, world.fields
    src, dst = world.graph.edges()
    edges = SimpleNamespace(
        src={name: tensor[src] for name, tensor in fields["ndata"].items()},
        dst={name: tensor[dst] for name, tensor in fields["ndata"].items()},
        data={name: tensor.clone() for name, tensor in fields["edata"].items()},
    )
    sent = message(edges, *world.params)
    rows: dict[int, dict[str, Tensor]] = {}
    for node in range(nodes):
        received = (dst == node).nonzero().flatten()
        if received.numel():
            mailbox = {name: tensor[received].unsqueeze(0) for name, tensor in sent.items()}
            data = {name: tensor[node : node + 1].clone() for name, tensor in fields["ndata"].items()}
            rows[node] = reduce(SimpleNamespace(mailbox=mailbox, data=data))
    reduced = {}
    for name, like in next(iter(rows.values())).items():
        zeros = torch.zeros(like.shape[1:], dtype=like.dtype)
        reduced[name] = torch.stack([rows[node][name][0] if node in rows else zeros for node in range(nodes)])
    if update is None:
        return reduced
    data = {name: tensor.clone() for name, tensor in fields["ndata"].items()}
    result: dict[str, Tensor] = update(SimpleNamespace(data=data | reduced))
    return result
