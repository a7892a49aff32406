"""Layers written as functions over edges and mailboxes, the same text for every system that runs such functions.

Torch only: read by peers of other environments. A layer gives the node fields of its input rows (``fields``), the two
functions, and what it makes of the reduced rows (``finish``). Transforms stand outside the functions, as DGL's own
tutorials have them.
"""

from __future__ import annotations

import gat_weights
import torch
from torch.nn import functional


class Layer(torch.nn.Module):
    """Parameters of one layer of ``case``; ``degree`` is the in-degree of every node."""

    def __init__(self, weight, src, dst, bias, heads, degree):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.from_numpy(array)) for array in (weight, bias))
        self.src, self.dst = (torch.nn.Parameter(torch.from_numpy(array)) for array in (src, dst))
        self.heads, self.norm = heads, degree.float().rsqrt()[:, None]

    def fields(self, x):
        """Node fields: the transformed rows."""
        return {"z": x @ self.weight}

    def message(self, edges):
        """What an edge sends."""
        return {"z": edges.src["z"]}

    def reduce(self, nodes):
        """What a node makes of its mailbox."""
        return {"h": nodes.mailbox["z"].sum(1)}

    def finish(self, h):
        """Rows of the next layer, before its activation."""
        return h.flatten(1) + self.bias


class GCN(Layer):
    """Graph convolution: rows over the roots of both degrees, summed."""

    def fields(self, x):
        return {"z": x @ self.weight, "norm": self.norm}

    def message(self, edges):
        return {"z": edges.src["z"] * edges.src["norm"]}

    def reduce(self, nodes):
        return {"h": nodes.mailbox["z"].sum(1) * nodes.data["norm"]}


class GAT(Layer):
    """Graph attention."""

    def fields(self, x):
        return {"z": (x @ self.weight).view(x.shape[0], self.heads, -1)}

    def message(self, edges):
        score = (edges.src["z"] * self.src).sum(-1) + (edges.dst["z"] * self.dst).sum(-1)
        return {"z": edges.src["z"], "e": functional.leaky_relu(score, 0.2)}

    def reduce(self, nodes):
        share = torch.softmax(nodes.mailbox["e"], dim=1)
        return {"h": (share.unsqueeze(-1) * nodes.mailbox["z"]).sum(1)}


class CGAT(GAT):
    """Constrained attention: an edge weighs the mean margin by which its score exceeds those of the edges beside it."""

    def reduce(self, nodes):
        e = nodes.mailbox["e"]
        margin = torch.relu(e.unsqueeze(2) - e.unsqueeze(1)).mean(2)
        return {"h": (margin.unsqueeze(-1) * nodes.mailbox["z"]).mean(1)}


class DistanceGAT(Layer):
    """Attention by the distance of both ends."""

    def message(self, edges):
        z = edges.src["z"]
        return {"z": z, "e": -torch.norm(z - edges.dst["z"], p=2, dim=1, keepdim=True)}

    def reduce(self, nodes):
        share = torch.softmax(nodes.mailbox["e"], dim=1)
        return {"h": (share * nodes.mailbox["z"]).sum(1)}


KINDS = {"gcn": GCN, "gat": GAT, "cgat": CGAT, "distance": DistanceGAT}
HEADS = {"gat": 8}  # of hidden layers


def make(case, kind, degree):
    """The layers of a model, with the parameters that every system starts from."""
    return torch.nn.ModuleList(
        KINDS[kind](weight, src, dst, bias, heads, degree)
        for weight, src, dst, bias, heads, _ in gat_weights.layers(case, HEADS.get(kind, 1))
    )


def forward(layers, x, propagate):
    """Logits; ``propagate(layer, fields)`` runs the functions of a layer and returns its reduced rows."""
    for place, layer in enumerate(layers):
        x = layer.finish(propagate(layer, layer.fields(x)))
        if place + 1 < len(layers):
            x = functional.elu(x)
    return x
