"""Which models of PyTorch Geometric ``gw.compile`` compiles whole, in parts, or leaves as they stand.

Comes in: nothing. Goes out: a table in Markdown on standard output, that of ``docs/compile.md``; with ``--write`` it
is written there. The cases are those of ``tests/interop/test_compile_models.py``, which compares numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import models
from torch_geometric.nn.models import graph_mixer

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pyg_convs import METADATA, OUT, TYPES, WIDTH, Case, Inputs, main, mlp, random_degrees

HIDDEN = 8
# models that need a further package even to be made or called
LEFT_OUT = {
    "DimeNet": "needs torch-cluster, torch-sparse and sympy",
    "DimeNetPlusPlus": "needs torch-cluster, torch-sparse and sympy",
    "GNNFF": "needs torch-cluster and torch-sparse",
    "Node2Vec": "needs pyg-lib or torch-cluster",
    "ViSNet": "needs torch-cluster",
    "LPFormer": "needs numba",
    "RENet": "needs a data set of events",
    "MLP, MaskLabel, MetaPath2Vec, GPSENodeEncoder": "no edges",
}


def _x(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.edge_index


def _batch(i: Inputs) -> Tensor:
    return torch.arange(len(i.x)) * 3 // len(i.x)


def _gcn(out: int = OUT) -> nn.Module:
    return models.GCN(WIDTH, HIDDEN, 2, out)


def _summary(z: Tensor, *_: Any, **__: Any) -> Tensor:
    return z.mean(dim=0).sigmoid()


def _reversed(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    return x.flip(0), edge_index


class Means(nn.Module):
    """An encoder of a variational model: means and logarithms of deviations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mean, self.deviation = _gcn(), pyg.GCNConv(OUT, OUT), pyg.GCNConv(OUT, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        h = self.first(x, edge_index).relu()
        return self.mean(h, edge_index), self.deviation(h, edge_index)


class Deep(nn.Module):
    """Two blocks of DeeperGCN."""

    def __init__(self, block: str) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.layers = nn.ModuleList(
            models.DeepGCNLayer(pyg.GENConv(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN), nn.ReLU(), block=block)
            for _ in range(2)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Blocks one after the other."""
        h = self.first(x)
        for layer in self.layers:
            h = layer(h, edge_index)
        return h


class EdgeUpdate(nn.Module):
    """The edge model of a MetaLayer."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = mlp(2 * WIDTH + 4, 4)

    def forward(self, src: Tensor, dst: Tensor, attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        """New edge features."""
        return self.mlp(torch.cat([src, dst, attr + u[batch]], 1))


class NodeUpdate(nn.Module):
    """The node model of a MetaLayer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(WIDTH + 4, HIDDEN), mlp(WIDTH + HIDDEN + 4, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        """New node features."""
        row, col = edge_index
        sent = self.first(torch.cat([x[row], attr], 1))
        h = torch.zeros(len(x), HIDDEN, dtype=x.dtype).index_add(0, col, sent)
        return self.second(torch.cat([x, h, u[batch]], 1))


class GraphUpdate(nn.Module):
    """The global model of a MetaLayer."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = mlp(WIDTH + 4, 4)

    def forward(self, x: Tensor, edge_index: Tensor, attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        """New features of graphs."""
        return self.mlp(torch.cat([u, pyg.global_mean_pool(x, batch, len(u))], 1))


class Distances(nn.Module):
    """The graph of interactions of a SchNet: given edges with their lengths."""

    def __init__(self, edge_index: Tensor) -> None:
        super().__init__()
        self.register_buffer("edge_index", edge_index, persistent=False)

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Edges and lengths."""
        row, col = self.edge_index
        return self.edge_index, (pos[row] - pos[col]).norm(dim=-1)


class GPS(nn.Module):
    """Two layers of GPS and a mean over each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.layers = nn.ModuleList(
            pyg.GPSConv(HIDDEN, pyg.GINEConv(mlp(HIDDEN, HIDDEN), edge_dim=4), heads=2) for _ in range(2)
        )

    def forward(self, x: Tensor, edge_index: Tensor, attr: Tensor, batch: Tensor) -> Tensor:
        """One row for every graph."""
        h = self.first(x)
        for layer in self.layers:
            h = layer(h, edge_index, batch, edge_attr=attr)
        return pyg.global_mean_pool(h, batch)


class Relations(nn.Module):
    """Two layers of R-GCN."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.FastRGCNConv(WIDTH, HIDDEN, TYPES)
        self.second = pyg.FastRGCNConv(HIDDEN, OUT, TYPES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """Scores."""
        return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)


class Pooled(nn.Module):
    """Graph classification that takes a ``Data``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = pyg.GraphConv(WIDTH, HIDDEN), nn.Linear(2 * HIDDEN, OUT)

    def forward(self, data: Data) -> Tensor:
        """Scores of every graph."""
        h = self.conv(data.x, data.edge_index).relu()
        both = pyg.global_mean_pool(h, data.batch), pyg.global_max_pool(h, data.batch)
        return self.last(torch.cat(both, 1)).log_softmax(-1)


class Hops(nn.Module):
    """SIGN with its powers of the adjacency matrix taken in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.step = pyg.SGConv(WIDTH, WIDTH, K=1)
        self.step.lin = nn.Identity()
        self.lins = nn.ModuleList(nn.Linear(WIDTH, HIDDEN) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Features after 0, 1 and 2 steps, side by side."""
        out = [self.lins[0](x)]
        for lin in self.lins[1:]:
            x = self.step(x, edge_index)
            out.append(lin(x))
        return torch.cat(out, 1)


class Jumps(nn.Module):
    """Two convolutions, and all layers jumped to the last by a mode."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv(WIDTH, HIDDEN), pyg.SAGEConv(HIDDEN, HIDDEN)
        self.jump = models.JumpingKnowledge(mode, HIDDEN, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """All layers."""
        h = self.first(x, edge_index).relu()
        return self.jump([h, self.second(h, edge_index)])


def _typed(i: Inputs) -> tuple[Any, ...]:
    half = i.x.shape[0] // 2
    first = torch.stack([i.edge_index[0] % half, i.edge_index[1] % (i.x.shape[0] - half)])
    return {"a": i.x[:half], "b": i.x[half:]}, {METADATA[1][0]: first, METADATA[1][1]: first.flip(0)}


def _to_hetero() -> nn.Module:
    return pyg.to_hetero(models.GraphSAGE((WIDTH, WIDTH), HIDDEN, 2, OUT), METADATA)


class TypedJumps(nn.Module):
    """A layer over types, jumped over."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.HeteroConv({edge: pyg.SAGEConv((WIDTH, WIDTH), WIDTH) for edge in METADATA[1]})
        self.jump = models.HeteroJumpingKnowledge(METADATA[0], "cat")

    def forward(self, xs: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> dict[str, Tensor]:
        """Both, by type."""
        made = self.conv(xs, edges)
        return self.jump({kind: [xs[kind], made[kind]] for kind in xs})


def _schnet(edge_index: Tensor) -> nn.Module:
    graph = Distances(edge_index)
    return models.SchNet(HIDDEN, HIDDEN, num_interactions=2, num_gaussians=5, cutoff=6.0, interaction_graph=graph)


def _soft(i: Inputs) -> Tensor:
    return i.x[:, :TYPES].softmax(-1)


def _known(i: Inputs) -> Tensor:
    return torch.arange(len(i.x)) % 3 == 0


def _corrected() -> nn.Module:
    return models.CorrectAndSmooth(2, 0.5, 2, 0.5, autoscale=False)


def _times(i: Inputs) -> tuple[Tensor, Tensor]:
    return torch.arange(len(i.edge_type)) % 7, torch.full((len(i.x),), 5)


def _deg() -> Tensor:
    return random_degrees()


def _named(make: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    return lambda: make(WIDTH, HIDDEN, 2, OUT, **options)


CASES = [
    Case("GCN", _named(models.GCN, jk="lstm"), _x),
    Case("GraphSAGE", _named(models.GraphSAGE, norm="batch_norm"), _x),
    Case("GIN", _named(models.GIN, norm="graph_norm"), _x),
    Case("GAT", _named(models.GAT, heads=2, jk="cat"), _x),
    Case("GAT second version", _named(models.GAT, heads=2, v2=True, edge_dim=4), lambda i: (*_x(i), None, i.edge_attr)),
    Case(
        "PNA",
        lambda: models.PNA(WIDTH, HIDDEN, 2, OUT, aggregators=["mean", "max"], scalers=["linear"], deg=_deg()),
        _x,
    ),
    Case("EdgeCNN", _named(models.EdgeCNN, norm="layer_norm"), _x),
    Case("JumpingKnowledge max", lambda: Jumps("max"), _x),
    Case("JumpingKnowledge lstm", lambda: Jumps("lstm"), _x),
    Case("HeteroJumpingKnowledge", TypedJumps, _typed),
    Case(
        "MetaLayer",
        lambda: models.MetaLayer(EdgeUpdate(), NodeUpdate(), GraphUpdate()),
        lambda i: (i.x, i.edge_index, i.edge_attr, i.pos[:3, :1] * torch.ones(4), _batch(i)),
    ),
    Case("DeepGraphInfomax", lambda: models.DeepGraphInfomax(OUT, _gcn(), _summary, _reversed), _x),
    Case("InnerProductDecoder", models.InnerProductDecoder, _x),
    Case("GAE", lambda: models.GAE(_gcn()), _x),
    Case("GAE encode", lambda: models.GAE(_gcn()), _x, method="encode"),
    Case("VGAE", lambda: models.VGAE(Means()), _x, method="encode"),
    Case("ARGA", lambda: models.ARGA(_gcn(), mlp(OUT, 1)), _x, method="encode"),
    Case("ARGVA", lambda: models.ARGVA(Means(), mlp(OUT, 1)), _x, method="encode"),
    Case("SignedGCN", lambda: models.SignedGCN(WIDTH, HIDDEN, 2), lambda i: (*_x(i), i.other_index)),
    Case("GraphUNet", lambda: models.GraphUNet(WIDTH, HIDDEN, OUT, depth=2), _x),
    Case(
        "SchNet",
        lambda: _schnet(torch.stack([torch.arange(60) % 31, torch.arange(60) * 7 % 31])),
        lambda i: (i.edge_type[: len(i.x)] + 1, i.pos, _batch(i)),
    ),
    Case("DeepGCNLayer res+", lambda: Deep("res+"), _x),
    Case(
        "DeepGCNLayer dense",
        lambda: models.DeepGCNLayer(pyg.GENConv(WIDTH, OUT), nn.LayerNorm(OUT), nn.ReLU(), "dense"),
        _x,
    ),
    Case("LabelPropagation", lambda: models.LabelPropagation(2, 0.5), lambda i: (i.node_type, i.edge_index, _known(i))),
    Case(
        "CorrectAndSmooth correct",
        _corrected,
        lambda i: (_soft(i), i.node_type[_known(i)], _known(i), i.edge_index),
        method="correct",
    ),
    Case(
        "CorrectAndSmooth smooth",
        _corrected,
        lambda i: (_soft(i), i.node_type[_known(i)], _known(i), i.edge_index),
        method="smooth",
    ),
    Case(
        "AttentiveFP",
        lambda: models.AttentiveFP(WIDTH, HIDDEN, OUT, edge_dim=4, num_layers=2, num_timesteps=2),
        lambda i: (*_x(i), i.edge_attr, _batch(i)),
    ),
    Case("RECT_L", lambda: models.RECT_L(WIDTH, HIDDEN), lambda i: (*_x(i), i.edge_weight)),
    Case("RECT_L embed", lambda: models.RECT_L(WIDTH, HIDDEN), _x, method="embed"),
    Case("LINKX", lambda: models.LINKX(40, WIDTH, HIDDEN, OUT, 2, num_edge_layers=2), lambda i: (*_all_nodes(i),)),
    Case("LightGCN", lambda: models.LightGCN(40, HIDDEN, 2), lambda i: (i.edge_index, i.other_index, i.edge_weight)),
    Case(
        "GroupAddRev",
        lambda: models.GroupAddRev(pyg.SAGEConv(HIDDEN, HIDDEN), num_groups=2),
        lambda i: (i.x * 1, i.edge_index),
    ),
    Case("PMLP", lambda: models.PMLP(WIDTH, HIDDEN, OUT, 3, dropout=0.0).eval(), _x),
    Case("NeuralFingerprint", lambda: models.NeuralFingerprint(WIDTH, HIDDEN, OUT, 2), lambda i: (*_x(i), _batch(i))),
    Case(
        "SGFormer",
        lambda: models.SGFormer(WIDTH, HIDDEN, OUT, trans_dropout=0.0, gnn_dropout=0.0),
        lambda i: (*_x(i), _batch(i)),
        torch.float32,
    ),
    Case(
        "Polynormer",
        lambda: models.Polynormer(WIDTH, HIDDEN, OUT, in_dropout=0.0, dropout=0.0, global_dropout=0.0),
        lambda i: (*_x(i), _batch(i)),
    ),
    Case("ARLinkPredictor", lambda: models.ARLinkPredictor(WIDTH, HIDDEN), _x),
    Case("GraphMixer nodes", lambda: graph_mixer.NodeEncoder(3), lambda i: (*_x(i), *_times(i))),
    Case(
        "GraphMixer links",
        lambda: graph_mixer.LinkEncoder(3, 4, HIDDEN, OUT, 6),
        lambda i: (i.edge_index, i.edge_attr, *(time.to(i.x.dtype) for time in _times(i))),
    ),
    Case("GPS", GPS, lambda i: (*_x(i), i.edge_attr, _batch(i))),
    Case("RGCN", Relations, lambda i: (*_x(i), i.edge_type)),
    Case("SIGN", Hops, _x),
    Case("to_hetero GraphSAGE", _to_hetero, _typed),
    Case("taking Data", Pooled, lambda i: (Data(x=i.x, edge_index=i.edge_index, batch=_batch(i)),)),
]


def _all_nodes(i: Inputs) -> tuple[Tensor, Tensor]:
    """Features of 40 nodes whatever the graph: LINKX has a weight for each."""
    return torch.cat([i.x, i.x[:9]])[:40], i.edge_index


if __name__ == "__main__":
    main("models", "model", CASES, LEFT_OUT)
