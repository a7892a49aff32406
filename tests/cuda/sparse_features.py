"""Trials of sparse features on a device, against dense ones in float64. Run by ``trials.py``."""

from __future__ import annotations

import torch
from cuda.halves import drawn
from torch import Tensor
from zoo import random_edges

import graphweft as gw
from graphweft.data import SparseFeatures
from graphweft.graph.placed import on_device
from graphweft.runtime import dense
from graphweft.runtime.cuda import edges, sparse_features
from graphweft.runtime.features import SparseOperand

HOST = torch.device("cpu")


def matrix(rows: int, width: int, dtype: torch.dtype = torch.float32) -> SparseFeatures:
    """One entry in six; an empty row, and a column that every other row has."""
    x = drawn(rows, width, dtype=dtype) * (torch.arange(rows * width).reshape(rows, width) * 7 % 6 == 0)
    x[:, 0], x[0] = drawn(rows, dtype=dtype, seed=3), 0
    return SparseFeatures.from_dense(x)


def products_of_sparse_features() -> None:
    """A layer's product and its gradient by the weight, with a bias and an activation; a column of 600 entries."""
    for rows, width, out, dtype in ((7, 5, 3, torch.float64), (600, 9, 16, torch.float32)):
        x, w = matrix(rows, width, dtype), drawn(width, out, dtype=dtype, seed=1)
        wanted, close = x.to_dense().double(), {"rtol": 1e-5, "atol": 1e-5}
        place = on_device(sparse_features._structure(x, False), HOST)
        got = edges.sum_edges(place, w, sparse_features._values(x, False, HOST), given={"bias": w[0]}, relu=True)
        torch.testing.assert_close(got.double(), torch.relu(wanted @ w.double() + w[0].double()), **close)
        slopes = drawn(rows, out, dtype=dtype, seed=2)
        turned = on_device(sparse_features._structure(x, True), HOST)
        got = edges.sum_edges(turned, slopes, sparse_features._values(x, True, HOST))
        torch.testing.assert_close(got.double(), wanted.t() @ slopes.double(), **close)


def sparse_features_are_dropped_as_on_the_cpu() -> None:
    """The elements that dense dropout keeps, in both orders of the entries, and in rows that are taken."""
    x = matrix(40, 9)
    for p in (0.0, 0.4, 1.0):
        wanted = dense.dropout(x.to_dense(), p, 11, 5)
        there, here = sparse_features.Dropped(x, p, 11, 5), SparseOperand.of(x).dropped(p, 11, 5)
        for by_column, other in ((False, here.by_row()), (True, here.by_column())):
            assert torch.equal(there.values(by_column, HOST), other[1])
        assert torch.equal(there.take_rows(torch.tensor([3, 1, 3]), HOST).to_dense(), wanted[[3, 1, 3]])


def losses_of(x: Tensor | SparseFeatures, net: gw.nn.GCN, target: str) -> tuple[list[float], gw.Trainer]:
    """Of three steps of a full batch."""
    ends = random_edges(30, 90, 5)
    graph, every = gw.Graph(ends.src, ends.dst, num_nodes=30), torch.arange(30)
    ds = gw.Dataset("small", graph, x, every % 3, every[:12], every[12:20], every[20:], 3)
    torch.manual_seed(0)
    with gw.config(target=target, certify=False):
        trainer = gw.Trainer(net, ds, optimizer="sgd", lr=0.1, seed=4, progress=False)
        trainer.fit(3)
        assert trainer.feature_path == "sparse"
    return [record.loss for record in trainer.history], trainer


def a_model_trains_on_sparse_features() -> None:
    """The CPU's losses and weights, with dropout, whose draws are the same; one sparse product a pass."""
    x, found = matrix(30, 9), []
    for target in ("cpu", "cuda"):
        torch.manual_seed(2)
        net = gw.nn.GCN(9, 4, 3, dropout=0.3)
        losses, trainer = losses_of(x, net, target)
        found.append((losses, [p.detach() for p in net.parameters()]))
        if target == "cuda":
            with gw.config(target="cuda", certify=False):
                told = gw.explain(trainer)
            assert "sparse matmul" in told and "features stay sparse on cpu, " in told, told
    torch.testing.assert_close(torch.tensor(found[0][0]), torch.tensor(found[1][0]), rtol=1e-5, atol=1e-6)
    for mine, other in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


TRIALS = (
    a_model_trains_on_sparse_features,
    products_of_sparse_features,
    sparse_features_are_dropped_as_on_the_cpu,
)
