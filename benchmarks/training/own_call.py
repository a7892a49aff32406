"""A warm ``gw.update_all`` on a small graph: what a call costs beside its kernels. An "epoch" is 200 calls."""

from __future__ import annotations

import torch

import graphweft as gw

CALLS = 200


def _message(edges):
    return {"m": edges.src["h"] * 0.5}


def _reduce(nodes):
    return {"h": nodes.mailbox["m"].sum(1)}


def build(case, variant):
    """Variants: "" features declared constant, where a head knows that; "grad" features that ask for gradients."""
    graph = gw.Graph.from_csc(torch.from_numpy(case.array("indptr")), torch.from_numpy(case.array("indices")))
    x = torch.from_numpy(case.array("x"))[:, :16].contiguous()
    x = x.requires_grad_() if variant == "grad" else getattr(gw, "constant", lambda item: item)(x)

    def epoch():
        for _ in range(CALLS):
            h = gw.update_all(graph, _message, _reduce, ndata={"h": x})["h"]
        return float(h.detach().abs().mean())

    return epoch, f"{graph.num_nodes} nodes, {CALLS} calls"
