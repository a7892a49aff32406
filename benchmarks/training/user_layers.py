"""Layers written as functions over edges and mailboxes, the same text for every system that runs such functions.

Torch only: read by peers of other environments. Transforms stand outside the functions, as DGL's own tutorials have
them, or, ``whole``, within, as in Graphiler's figure 1.
"""

from __future__ import annotations

import gat_weights
import torch
from torch.nn import functional


class Layer(torch.nn.Module):
    """Parameters of one layer of a case.

    ``degree`` is the in-degree of every node. ``whole``: transform, bias and activation are part of the functions too.
    """

    def __init__(self, weight, src, dst, bias, heads, activated, degree, whole):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.from_numpy(array)) for array in (weight, bias))
        self.src, self.dst = (torch.nn.Parameter(torch.from_numpy(array)) for array in (src, dst))
        self.heads, self.norm = heads, degree.float().rsqrt()[:, None]
        self.activated, self.whole = activated, whole
        if not whole:
            self.update = None

    def transform(self, x):
        """Rows times the weight."""
        return x @ self.weight

    def rows(self, end):
        """The transformed rows of one end of all edges."""
        return self.transform(end["x"]) if self.whole else end["z"]

    def message(self, edges):
        """What an edge sends."""
        return {"z": self.rows(edges.src)}

    def reduce(self, nodes):
        """What a node makes of its mailbox."""
        return {"h": nodes.mailbox["z"].sum(1)}

    def update(self, nodes):
        """What it makes of that."""
        return {"h": self.finish(nodes.data["h"])}

    def finish(self, h):
        """Bias and activation."""
        h = h.flatten(1) + self.bias
        return functional.elu(h) if self.activated else h

    def forward(self, x, propagate):
        """``propagate(layer, fields)`` runs the functions and returns the field ``h``."""
        fields = {"x": x} if self.whole else {"z": self.transform(x)}
        h = propagate(self, {**fields, "norm": self.norm})
        return h if self.whole else self.finish(h)


class GCN(Layer):
    """Graph convolution: rows over the roots of both degrees, summed."""

    def message(self, edges):
        return {"z": self.rows(edges.src) * edges.src["norm"]}

    def reduce(self, nodes):
        return {"h": nodes.mailbox["z"].sum(1) * nodes.data["norm"]}


class GAT(Layer):
    """Graph attention."""

    def transform(self, x):
        return (x @ self.weight).view(x.shape[0], self.heads, -1)

    def message(self, edges):
        z, other = self.rows(edges.src), self.rows(edges.dst)
        score = (z * self.src).sum(-1) + (other * self.dst).sum(-1)
        return {"z": z, "e": functional.leaky_relu(score, 0.2)}

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
        z = self.rows(edges.src)
        return {"z": z, "e": -torch.norm(z - self.rows(edges.dst), p=2, dim=1, keepdim=True)}

    def reduce(self, nodes):
        share = torch.softmax(nodes.mailbox["e"], dim=1)
        return {"h": (share * nodes.mailbox["z"]).sum(1)}


KINDS = {"gcn": GCN, "gat": GAT, "cgat": CGAT, "distance": DistanceGAT}
HEADS = {"gat": 8, "cgat": 4}  # of hidden layers


def make(case, kind, degree, whole=False):
    """The layers of a model, with the parameters that every system starts from."""
    return torch.nn.ModuleList(
        KINDS[kind](*parts, degree=degree, whole=whole) for parts in gat_weights.layers(case, HEADS.get(kind, 1))
    )


def forward(layers, x, propagate):
    """Logits."""
    for layer in layers:
        x = layer(x, propagate)
    return x
