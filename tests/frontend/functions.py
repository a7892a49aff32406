"""User functions of the kind people post in forums, each on fields, parameters and types that it asks for.

``CASES`` maps a name to a function of a :class:`World`; it returns (message, reduce) or (message, reduce, update).
``FALLS_BACK`` names those that are no segment operation, with the operation that says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweft as gw

F64 = torch.float64
Functions = tuple[Any, ...]
CASES: dict[str, Callable[[World], Functions]] = {}
FALLS_BACK: dict[str, str] = {}
TYPED: set[str] = set()


class World:
    """Fields and parameters of one case on one graph; all floating ones are leaves."""

    def __init__(self, graph: gw.Graph, seed: int = 0) -> None:
        self.graph, self._generator = graph, torch.Generator().manual_seed(seed)
        self.fields: dict[str, dict[str, Tensor]] = {"ndata": {}, "edata": {}, "ntype_data": {}, "etype_data": {}}
        self.leaves: dict[str, Tensor] = {}
        self.params: tuple[Any, ...] = ()

    def _leaf(self, name: str, *shape: int) -> Tensor:
        self.leaves[name] = torch.randn(shape, generator=self._generator, dtype=F64).requires_grad_()
        return self.leaves[name]

    def node(self, name: str, *dims: int) -> None:
        self.fields["ndata"][name] = self._leaf(f"node {name}", self.graph.num_nodes, *dims)

    def edge(self, name: str, *dims: int) -> None:
        self.fields["edata"][name] = self._leaf(f"edge {name}", self.graph.num_edges, *dims)

    def kinds(self, name: str, count: int) -> None:
        """An integer below ``count`` per edge."""
        drawn = torch.randint(0, count, (self.graph.num_edges,), generator=self._generator)
        self.fields["edata"][name] = drawn

    def degrees(self, name: str = "deg") -> None:
        self.fields["ndata"][name] = self.graph.in_degrees()

    def ntable(self, name: str, *dims: int) -> None:
        self.fields["ntype_data"][name] = self._leaf(f"ntype {name}", len(self.graph.node_types), *dims)

    def etable(self, name: str, *dims: int) -> None:
        self.fields["etype_data"][name] = self._leaf(f"etype {name}", len(self.graph.relations), *dims)

    def param(self, name: str, *shape: int) -> Tensor:
        return self._leaf(name, *shape)

    def module(self, module: nn.Module) -> nn.Module:
        """A module whose parameters are leaves."""
        module = module.to(F64)
        for name, parameter in module.named_parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=self._generator, dtype=F64) * 0.5)
            self.leaves[f"{type(module).__name__}.{name}"] = parameter
        return module


def case(function: Callable[[World], Functions]) -> Callable[[World], Functions]:
    CASES[function.__name__] = function
    return function


def typed(function: Callable[[World], Functions]) -> Callable[[World], Functions]:
    TYPED.add(function.__name__)
    return case(function)


def falls_back(operation: str) -> Callable[[Any], Any]:
    def keep(function: Callable[[World], Functions]) -> Callable[[World], Functions]:
        FALLS_BACK[function.__name__] = operation
        return case(function)

    return keep


def copy(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["h"]}


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1)}


# convolutions


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


# attention


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


# messages from networks


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


# several reducers


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


# shapes and styles


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
        return {"m": m.flip(0) if False else m.flatten(1)[:, ::2].unsqueeze(-1).expand(-1, -1, 2)}

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


# relations


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


# what is no segment operation


@falls_back("sort")
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
