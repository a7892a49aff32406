"""Layers of the kind that people ask about in forums, as they would write them for message passing."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from frontend.functions.world import Functions, World, case, copy, total
from torch import Tensor, nn


@case
def gated_gcn_with_edge_update(w: World) -> Functions:
    """Gates from both ends and the edge; the new edge state is summed beside the message."""
    w.node("h", 3), w.edge("e", 3)
    src, dst, own, value = (w.param(name, 3, 3) for name in ("S", "D", "E", "V"))

    def message(edges: Any) -> dict[str, Tensor]:
        e = edges.src["h"] @ src + edges.dst["h"] @ dst + edges.data["e"] @ own
        sigma = torch.sigmoid(e)
        return {"num": sigma * (edges.src["h"] @ value), "den": sigma, "e": edges.data["e"] + F.relu(e)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        box = nodes.mailbox
        return {"agg": box["num"].sum(1) / (box["den"].sum(1) + 1e-6), "e": box["e"].mean(1)}

    return message, reduce, lambda nodes: {"h": nodes.data["h"] + F.elu(nodes.data["agg"]), "e": nodes.data["e"]}


@case
def pna_with_scalers(w: World) -> Functions:
    w.node("h", 2), w.degrees()
    mix = w.module(nn.Linear(24, 3))

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        std = torch.sqrt(F.relu((m * m).mean(1) - m.mean(1) ** 2) + 1e-5)
        joined = torch.cat([m.mean(1), m.amax(1), m.amin(1), std], -1)
        log_degree = torch.log(nodes.data["deg"].to(m.dtype) + 1).view(-1, 1)
        return {"h": mix(torch.cat([joined, joined * log_degree / 1.5, joined * 1.5 / log_degree], -1))}

    return copy, reduce


@case
def dgcnn_max_of_mlp(w: World) -> Functions:
    w.node("x", 3)
    mlp = w.module(nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(0.2), nn.Linear(5, 4)))

    def message(edges: Any) -> dict[str, Tensor]:
        centre = edges.dst["x"]
        return {"e": mlp(torch.cat((centre, edges.src["x"] - centre), dim=-1))}

    return message, lambda nodes: {"x": nodes.mailbox["e"].max(dim=1)[0]}


@case
def gine(w: World) -> Functions:
    w.node("h", 3), w.edge("a", 2)
    eps, lift = w.param("eps", 1), w.module(nn.Linear(2, 3))
    mlp = w.module(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)))
    return (
        lambda edges: {"m": (edges.src["h"] + lift(edges.data["a"])).relu()},
        lambda nodes: {"n": nodes.mailbox["m"].sum(1)},
        lambda nodes: {"h": mlp((1 + eps) * nodes.data["h"] + nodes.data["n"])},
    )


@case
def spline_kernel(w: World) -> Functions:
    """Linear B-splines over two pseudo-coordinates weigh nine kernels."""
    w.node("h", 3), w.edge("u", 2)
    kernels = w.param("W", 3, 3, 3, 2)

    def message(edges: Any) -> dict[str, Tensor]:
        at = torch.sigmoid(edges.data["u"]) * 2
        knots = torch.arange(3, dtype=at.dtype)
        basis = F.relu(1 - (at.unsqueeze(-1) - knots).abs())
        return {"m": torch.einsum("ei,ep,eq,pqio->eo", edges.src["h"], basis[:, 0], basis[:, 1], kernels)}

    return message, lambda nodes: {"h": nodes.mailbox["m"].mean(1)}


@case
def transformer_conv(w: World) -> Functions:
    w.node("h", 4), w.edge("a", 2)
    query, key, value = (w.module(nn.Linear(4, 6)) for _ in range(3))
    edge, skip, gate = w.module(nn.Linear(2, 6, bias=False)), w.module(nn.Linear(4, 6)), w.module(nn.Linear(18, 1))

    def message(edges: Any) -> dict[str, Tensor]:
        q = query(edges.dst["h"]).view(-1, 2, 3)
        a = edge(edges.data["a"]).view(-1, 2, 3)
        k, v = key(edges.src["h"]).view(-1, 2, 3) + a, value(edges.src["h"]).view(-1, 2, 3) + a
        return {"logit": (q * k).sum(-1) / math.sqrt(3), "v": v}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        alpha = F.softmax(nodes.mailbox["logit"], dim=1).unsqueeze(-1)
        return {"o": (alpha * nodes.mailbox["v"]).sum(1).flatten(1)}

    def update(nodes: Any) -> dict[str, Tensor]:
        own, got = skip(nodes.data["h"]), nodes.data["o"]
        beta = torch.sigmoid(gate(torch.cat([own, got, own - got], -1)))
        return {"h": beta * own + (1 - beta) * got}

    return message, reduce, update


@case
def agnn(w: World) -> Functions:
    w.node("h", 4)
    beta = w.param("beta", 1)

    def message(edges: Any) -> dict[str, Tensor]:
        cosine = F.cosine_similarity(edges.src["h"], edges.dst["h"], dim=-1)
        return {"e": beta * cosine, "m": edges.src["h"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (F.softmax(nodes.mailbox["e"], 1)[..., None] * nodes.mailbox["m"]).sum(dim=1)}

    return message, reduce


@case
def fagcn(w: World) -> Functions:
    """Signed gates, and a share of the raw features."""
    w.node("h", 4), w.node("raw", 4), w.degrees()
    gate = w.module(nn.Linear(8, 1))

    def message(edges: Any) -> dict[str, Tensor]:
        g = torch.tanh(gate(torch.cat([edges.dst["h"], edges.src["h"]], dim=1))).squeeze(-1)
        d = (edges.dst["deg"] * (edges.src["deg"] + 1)).to(g.dtype) ** -0.5
        return {"m": edges.src["h"] * (g * d).unsqueeze(-1)}

    return message, lambda nodes: {"z": nodes.mailbox["m"].sum(1)}, lambda n: {"h": 0.3 * n.data["raw"] + n.data["z"]}


@case
def arma_stacks(w: World) -> Functions:
    w.node("h", 3), w.node("x", 4), w.edge("norm", 1)
    inner, outer = w.param("W", 2, 3, 5), w.param("V", 2, 4, 5)

    def message(edges: Any) -> dict[str, Tensor]:
        stacked = torch.matmul(edges.src["h"].unsqueeze(1).unsqueeze(1), inner).squeeze(2)
        return {"m": stacked * edges.data["norm"].unsqueeze(-1)}

    def update(nodes: Any) -> dict[str, Tensor]:
        skip = torch.einsum("ni,kio->nko", nodes.data["x"], outer)
        return {"h": F.relu(nodes.data["agg"] + skip).mean(dim=1)}

    return message, lambda nodes: {"agg": nodes.mailbox["m"].sum(1)}, update


@case
def label_propagation(w: World) -> Functions:
    """Labels spread; known ones are put back and the rest clamped."""
    w.node("y", 3), w.node("first", 3), w.node("known", 1)

    def update(nodes: Any) -> dict[str, Tensor]:
        mixed = 0.9 * nodes.data["y"] + 0.1 * nodes.data["first"]
        return {"y": torch.where(nodes.data["known"] > 0, nodes.data["first"], mixed.clamp(0.0, 1.0))}

    return lambda edges: {"m": edges.src["y"]}, lambda nodes: {"y": nodes.mailbox["m"].mean(1)}, update


@case
def personalised_pagerank_with_dropout_off(w: World) -> Functions:
    w.node("h", 4), w.node("h0", 4), w.edge("w", 1)
    drop, training, alpha = nn.Dropout(0.5).eval(), False, 0.1

    def message(edges: Any) -> dict[str, Tensor]:
        weight = F.dropout(edges.data["w"], p=0.4, training=training)
        return {"m": weight * drop(edges.src["h"])}

    return message, total, lambda n: {"h": n.data["h"] * (1 - alpha) + alpha * n.data["h0"]}


@case
def gaussian_mixture(w: World) -> Functions:
    """MoNet: Gaussian kernels over pseudo-coordinates."""
    w.node("h", 6), w.edge("u", 2)
    mu, sigma = w.param("mu", 3, 2), w.param("sigma", 3, 2)

    def message(edges: Any) -> dict[str, Tensor]:
        u = edges.data["u"].unsqueeze(1)
        kernel = torch.exp((-0.5 * (u - mu) ** 2 / (1e-3 + sigma**2)).sum(-1))
        return {"m": edges.src["h"].view(-1, 3, 2) * kernel[:, :, None]}

    return message, lambda nodes: {"h": nodes.mailbox["m"].sum(1).sum(1)}


@case
def crystal_graph(w: World) -> Functions:
    w.node("h", 3), w.edge("a", 2)
    full = w.module(nn.Linear(8, 6))

    def message(edges: Any) -> dict[str, Tensor]:
        gate, core = full(torch.cat([edges.dst["h"], edges.src["h"], edges.data["a"]], 1)).chunk(2, dim=1)
        return {"m": gate.sigmoid() * F.softplus(core)}

    return message, total, lambda nodes: {"h": F.softplus(nodes.data["h"] * 0.5 + 1.0)}


@case
def film(w: World) -> Functions:
    """The destination scales and shifts what comes in."""
    w.node("h", 3)
    value, modulation = w.module(nn.Linear(3, 4, bias=False)), w.module(nn.Linear(3, 8))

    def message(edges: Any) -> dict[str, Tensor]:
        beta, gamma = modulation(edges.dst["h"]).split(4, dim=-1)
        return {"m": F.relu(gamma * value(edges.src["h"]) + beta)}

    return message, lambda nodes: {"h": nodes.mailbox["m"].mean(dim=1)}


@case
def gcn2_initial_residual(w: World) -> Functions:
    w.node("h", 4), w.node("h0", 4), w.edge("norm", 1)
    weight = w.param("W", 4, 4)
    alpha, beta = 0.1, math.log(0.5 / 3 + 1)

    def update(nodes: Any) -> dict[str, Tensor]:
        mixed = (1 - alpha) * nodes.data["agg"] + alpha * nodes.data["h0"]
        return {"h": F.relu(torch.addmm(mixed, mixed, weight, beta=1.0 - beta, alpha=beta))}

    return (
        lambda edges: {"m": edges.src["h"] * edges.data["norm"]},
        lambda nodes: {"agg": nodes.mailbox["m"].sum(1)},
        update,
    )


@case
def mixed_attention(w: World) -> Functions:
    """SuperGAT: additive score times the sigmoid of a dot product."""
    w.node("z", 2, 3)
    left, right = w.param("l", 2, 3), w.param("r", 2, 3)

    def message(edges: Any) -> dict[str, Tensor]:
        zs, zd = edges.src["z"], edges.dst["z"]
        additive = (zs * left).sum(-1) + (zd * right).sum(-1)
        return {"e": F.leaky_relu(additive * torch.sigmoid((zs * zd).sum(-1)), 0.2), "z": zs}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"z": torch.einsum("ndh,ndhc->nhc", nodes.mailbox["e"].softmax(dim=1), nodes.mailbox["z"])}

    return message, reduce


@case
def point_transformer(w: World) -> Functions:
    """Attention per channel, with positions in score and value."""
    w.node("h", 3), w.node("pos", 2)
    place, score = w.module(nn.Linear(2, 4)), w.module(nn.Linear(4, 4))
    src, dst, value = (w.module(nn.Linear(3, 4, bias=False)) for _ in range(3))

    def message(edges: Any) -> dict[str, Tensor]:
        delta = F.relu(place(edges.dst["pos"] - edges.src["pos"]))
        e = score(dst(edges.dst["h"]) - src(edges.src["h"]) + delta)
        return {"e": e, "v": value(edges.src["h"]) + delta}

    return message, lambda n: {"h": (torch.softmax(n.mailbox["e"], dim=1) * n.mailbox["v"]).sum(1)}


@case
def local_extremum(w: World) -> Functions:
    """LEConv: weighted differences of two transforms."""
    w.node("h", 3), w.edge("w", 1)
    one, two, three = w.module(nn.Linear(3, 2)), w.module(nn.Linear(3, 2, bias=False)), w.module(nn.Linear(3, 2))

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.data["w"] * (one(edges.dst["h"]) - two(edges.src["h"]))}

    return message, lambda n: {"a": n.mailbox["m"].sum(1)}, lambda n: {"h": three(n.data["h"]) + n.data["a"]}


@case
def feature_steered(w: World) -> Functions:
    """FeaSt: soft assignment of every edge to weight matrices."""
    w.node("h", 3)
    weights, u, c = w.param("W", 3, 2, 4), w.param("u", 3, 2), w.param("c", 2)

    def message(edges: Any) -> dict[str, Tensor]:
        q = F.softmax((edges.src["h"] - edges.dst["h"]) @ u + c, dim=-1)
        values = (edges.src["h"] @ weights.reshape(3, 8)).view(-1, 2, 4)
        return {"m": (q.unsqueeze(-1) * values).sum(dim=1)}

    return message, lambda nodes: {"h": nodes.mailbox["m"].mean(1)}


@case
def generalised_softmax_mean(w: World) -> Functions:
    """GENConv: softmax of messages by a learnt temperature, then a message norm."""
    w.node("h", 4), w.edge("a", 4)
    t, scale = w.param("t", 1), w.param("s", 1)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": F.relu(edges.src["h"] + edges.data["a"]) + 1e-3}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        return {"agg": (m * torch.softmax(m * t, dim=1)).sum(dim=1)}

    def update(nodes: Any) -> dict[str, Tensor]:
        h, agg = nodes.data["h"], nodes.data["agg"]
        return {"h": h + F.normalize(agg, p=2.0, dim=-1) * h.norm(p=2, dim=-1, keepdim=True) * scale}

    return message, reduce, update


@case
def efficient_bases(w: World) -> Functions:
    """EGC: aggregated bases mixed by coefficients of the node, sum and maximum."""
    w.node("h", 4)
    bases, coefficients = w.module(nn.Linear(4, 6, bias=False)), w.module(nn.Linear(4, 8))

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": bases(edges.src["h"]).view(-1, 2, 3)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        both = torch.cat([nodes.mailbox["m"].sum(1), nodes.mailbox["m"].amax(1)], dim=1)
        return {"b": both}

    def update(nodes: Any) -> dict[str, Tensor]:
        mix = coefficients(nodes.data["h"]).view(-1, 2, 4)
        return {"h": torch.bmm(mix, nodes.data["b"]).reshape(-1, 6)}

    return message, reduce, update
