"""A warm ``gw.update_all`` on a small graph: what a call costs beside its kernels. An "epoch" is 200 calls."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import graphweft as gw

CALLS = 200


def _message(edges):
    return {"m": edges.src["h"] * 0.5}


def _reduce(nodes):
    return {"h": nodes.mailbox["m"].sum(1)}


def _frames(call):
    """The package's Python frames on the stack where a native function is called."""
    package, found = str(Path(gw.__file__).parent), [0]

    def watch(frame, event, argument):
        if event == "call" and frame.f_code.co_name == "call" and frame.f_code.co_filename.endswith("_native.py"):
            depth = 0
            while frame is not None:
                depth += frame.f_code.co_filename.startswith(package)
                frame = frame.f_back
            found.append(depth)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return max(found)


def build(case, variant):
    """Variants: "" features declared constant, where a head knows that; "grad" features that ask for gradients."""
    graph = gw.Graph.from_csc(torch.from_numpy(case.array("indptr")), torch.from_numpy(case.array("indices")))
    x = torch.from_numpy(case.array("x"))[:, :16].contiguous()
    x = x.requires_grad_() if variant == "grad" else getattr(gw, "constant", lambda item: item)(x)

    def call():
        return gw.update_all(graph, _message, _reduce, ndata={"h": x})["h"]

    def epoch():
        for _ in range(CALLS):
            h = call()
        return float(h.detach().abs().mean())

    for _ in range(3):
        call()
    return epoch, f"{graph.num_nodes} nodes, {CALLS} calls, {_frames(call)} frames"
