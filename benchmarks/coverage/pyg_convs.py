"""Which convolutions of PyTorch Geometric ``gw.compile`` compiles whole, in parts, or leaves as they stand.

Comes in: nothing. Goes out: a table in Markdown on standard output, that of ``docs/compile.md``; with ``--write`` it
is written there. The cases are those of ``tests/interop/test_compile.py``, which compares numbers.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import conv

import graphweft as gw
from graphweft.nn.compiled import calls_of
from graphweft.nn.compiled_call import CompiledCalls

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compile.md"
WIDTH, OUT, EDGE_DIM, TYPES, NODE_TYPES = 16, 8, 4, 3, 2
METADATA = (["a", "b"], [("a", "to", "b"), ("b", "back", "a")])
# need a further package, or are no convolutions by themselves
LEFT_OUT = {
    "MessagePassing": "the base class",
    "PANConv": "needs torch-sparse",
    "GravNetConv": "needs torch-cluster",
    "DynamicEdgeConv": "needs torch-cluster",
    "XConv": "needs torch-cluster",
    "SplineConv": "needs pyg-lib or torch-spline-conv",
    "FusedGATConv": "needs dgNN",
    "CuGraphSAGEConv": "needs cugraph",
    "CuGraphGATConv": "needs cugraph",
    "CuGraphRGCNConv": "needs cugraph",
}


@dataclass(frozen=True)
class Inputs:
    """A random graph and all that a convolution may take."""

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor
    edge_attr: Tensor
    edge_type: Tensor
    node_type: Tensor
    pos: Tensor
    normal: Tensor
    other_index: Tensor

    def without_gradients(self) -> Inputs:
        """The same without gradients."""
        made = {name: getattr(self, name).detach() for name in self.__dataclass_fields__}
        return replace(self, **made)


def random_inputs(seed: int, nodes: int = 40, edges: int = 230, dtype: torch.dtype = torch.float64) -> Inputs:
    """Edges with self-loops, parallel edges and, at the end, isolated nodes."""
    made = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes - 4, (2, edges - 12), generator=made)
    edge_index = torch.cat([ends, ends[:, :8], torch.tensor([[1, 2, 3, 3], [1, 2, 3, 3]])], 1)
    edge_index = edge_index[:, torch.randperm(edges, generator=made)]

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=dtype).requires_grad_()

    return Inputs(
        x=draw(nodes, WIDTH),
        edge_index=edge_index,
        edge_weight=(torch.rand(edges, generator=made, dtype=dtype) + 0.1).requires_grad_(),
        edge_attr=draw(edges, EDGE_DIM),
        edge_type=torch.randint(0, TYPES, (edges,), generator=made),
        node_type=torch.randint(0, NODE_TYPES, (nodes,), generator=made),
        pos=draw(nodes, 3),
        normal=draw(nodes, 3),
        other_index=torch.randint(0, nodes, (2, edges // 2), generator=made),
    )


def mlp(inner: int, out: int = OUT) -> nn.Sequential:
    """Two dense layers."""
    return nn.Sequential(nn.Linear(inner, 12), nn.ReLU(), nn.Linear(12, out))


def random_degrees() -> Tensor:
    """A histogram of degrees, as PNA takes it."""
    return torch.tensor([1, 4, 6, 8, 7, 5, 3, 2, 1, 1, 1, 1, 1])


def _x(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.edge_index


def _weight(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.edge_index, i.edge_weight


def _attr(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.edge_index, i.edge_attr


def _type(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.edge_index, i.edge_type


def _two_types(i: Inputs) -> tuple[Any, ...]:
    half = i.x.shape[0] // 2
    first = torch.stack([i.edge_index[0] % half, i.edge_index[1] % (i.x.shape[0] - half)])
    return (
        {"a": i.x[:half], "b": i.x[half:]},
        {METADATA[1][0]: first, METADATA[1][1]: first.flip(0)},
    )


@dataclass(frozen=True)
class Case:
    """One way to call one module; by another method than forward where ``method`` names one."""

    name: str
    make: Callable[[], nn.Module]
    args: Callable[[Inputs], tuple[Any, ...]]
    dtype: torch.dtype = torch.float64
    method: str = "forward"

    @property
    def kind(self) -> str:
        """The class."""
        return self.name.partition(" ")[0]


def _sage(aggr: str) -> Case:
    return Case(f"SAGEConv {aggr}", lambda: conv.SAGEConv(WIDTH, OUT, aggr=aggr), _x)


def _hetero() -> nn.Module:
    convs = {edge: conv.SAGEConv((WIDTH, WIDTH), OUT) for edge in METADATA[1]}
    return conv.HeteroConv(convs)


CASES = [
    Case("SimpleConv", lambda: conv.SimpleConv(aggr="mean", combine_root="self_loop"), _x),
    Case("GCNConv", lambda: conv.GCNConv(WIDTH, OUT), _x),
    Case("GCNConv weighted", lambda: conv.GCNConv(WIDTH, OUT), _weight),
    Case("GCNConv plain", lambda: conv.GCNConv(WIDTH, OUT, normalize=False), _x),
    Case("ChebConv", lambda: conv.ChebConv(WIDTH, OUT, K=3), _x),
    Case("ChebConv weighted", lambda: conv.ChebConv(WIDTH, OUT, K=3), _weight),
    _sage("mean"),
    _sage("sum"),
    _sage("max"),
    _sage("min"),
    Case("SAGEConv normalize", lambda: conv.SAGEConv(WIDTH, OUT, normalize=True, project=True), _x),
    Case("GraphConv", lambda: conv.GraphConv(WIDTH, OUT), _x),
    Case("GraphConv weighted", lambda: conv.GraphConv(WIDTH, OUT), _weight),
    Case("GatedGraphConv", lambda: conv.GatedGraphConv(WIDTH, 2), _x),
    Case("ResGatedGraphConv", lambda: conv.ResGatedGraphConv(WIDTH, OUT), _x),
    Case("ResGatedGraphConv edges", lambda: conv.ResGatedGraphConv(WIDTH, OUT, edge_dim=EDGE_DIM), _attr),
    Case("GATConv", lambda: conv.GATConv(WIDTH, OUT, heads=2), _x),
    Case("GATConv edges", lambda: conv.GATConv(WIDTH, OUT, heads=2, edge_dim=EDGE_DIM, concat=False), _attr),
    Case("GATv2Conv", lambda: conv.GATv2Conv(WIDTH, OUT, heads=2), _x),
    Case("GATv2Conv edges", lambda: conv.GATv2Conv(WIDTH, OUT, heads=2, edge_dim=EDGE_DIM), _attr),
    Case("TransformerConv", lambda: conv.TransformerConv(WIDTH, OUT, heads=2), _x),
    Case("TransformerConv edges", lambda: conv.TransformerConv(WIDTH, OUT, edge_dim=EDGE_DIM, beta=True), _attr),
    Case("AGNNConv", lambda: conv.AGNNConv(), _x),
    Case("TAGConv", lambda: conv.TAGConv(WIDTH, OUT), _x),
    Case("TAGConv weighted", lambda: conv.TAGConv(WIDTH, OUT), _weight),
    Case("GINConv", lambda: conv.GINConv(mlp(WIDTH), train_eps=True), _x),
    Case("GINConv norm", lambda: conv.GINConv(nn.Sequential(nn.Linear(WIDTH, OUT), nn.BatchNorm1d(OUT))), _x),
    Case("GINEConv", lambda: conv.GINEConv(mlp(WIDTH), edge_dim=EDGE_DIM), _attr),
    Case("ARMAConv", lambda: conv.ARMAConv(WIDTH, OUT, num_stacks=2, num_layers=2), _x),
    Case("SGConv", lambda: conv.SGConv(WIDTH, OUT, K=2), _x),
    Case("SSGConv", lambda: conv.SSGConv(WIDTH, OUT, alpha=0.1, K=2), _x),
    Case("APPNP", lambda: conv.APPNP(K=3, alpha=0.1), _x),
    Case("MFConv", lambda: conv.MFConv(WIDTH, OUT), _x),
    Case("RGCNConv", lambda: conv.RGCNConv(WIDTH, OUT, TYPES), _type),
    Case("RGCNConv bases", lambda: conv.RGCNConv(WIDTH, OUT, TYPES, num_bases=2), _type),
    Case("FastRGCNConv", lambda: conv.FastRGCNConv(WIDTH, OUT, TYPES), _type),
    Case("RGATConv", lambda: conv.RGATConv(WIDTH, OUT, TYPES), _type),
    Case("SignedConv", lambda: conv.SignedConv(WIDTH, OUT, first_aggr=True), lambda i: (*_x(i), i.other_index)),
    Case("DNAConv", lambda: conv.DNAConv(WIDTH, heads=2), lambda i: (i.x[:, None] * torch.ones(3, 1), i.edge_index)),
    Case("PointNetConv", lambda: conv.PointNetConv(mlp(WIDTH + 3), mlp(OUT)), lambda i: (i.x, i.pos, i.edge_index)),
    Case(
        "GMMConv",
        lambda: conv.GMMConv(WIDTH, OUT, dim=2, kernel_size=3),
        lambda i: (i.x, i.edge_index, i.edge_attr[:, :2]),
    ),
    Case("NNConv", lambda: conv.NNConv(WIDTH, OUT, mlp(EDGE_DIM, WIDTH * OUT)), _attr),
    Case("CGConv", lambda: conv.CGConv(WIDTH, dim=EDGE_DIM), _attr),
    Case("CGConv norm", lambda: conv.CGConv(WIDTH, dim=EDGE_DIM, batch_norm=True), _attr),
    Case("EdgeConv", lambda: conv.EdgeConv(mlp(2 * WIDTH)), _x),
    Case(
        "PPFConv",
        lambda: conv.PPFConv(mlp(WIDTH + 4), mlp(OUT)),
        lambda i: (i.x, i.pos, i.normal, i.edge_index),
    ),
    Case("FeaStConv", lambda: conv.FeaStConv(WIDTH, OUT, heads=2), _x),
    Case("PointTransformerConv", lambda: conv.PointTransformerConv(WIDTH, OUT), lambda i: (i.x, i.pos, i.edge_index)),
    Case("HypergraphConv", lambda: conv.HypergraphConv(WIDTH, OUT), _x),
    Case("LEConv", lambda: conv.LEConv(WIDTH, OUT), _weight),
    Case(
        "PNAConv",
        lambda: conv.PNAConv(
            WIDTH,
            OUT,
            ["mean", "max", "min", "std", "sum"],
            ["identity", "amplification", "attenuation"],
            random_degrees(),
            edge_dim=EDGE_DIM,
            towers=2,
        ),
        _attr,
    ),
    Case("ClusterGCNConv", lambda: conv.ClusterGCNConv(WIDTH, OUT, diag_lambda=0.5), _x),
    Case("GENConv", lambda: conv.GENConv(WIDTH, OUT, edge_dim=EDGE_DIM), _attr),
    Case("GENConv learned", lambda: conv.GENConv(WIDTH, OUT, learn_t=True, msg_norm=True), _x),
    Case("GENConv power", lambda: conv.GENConv(WIDTH, OUT, aggr="powermean", learn_p=True), _x),
    Case("GCN2Conv", lambda: conv.GCN2Conv(WIDTH, 0.1, 0.5, layer=1), lambda i: (i.x, i.x * 2, i.edge_index)),
    Case("WLConv", lambda: conv.WLConv(), lambda i: (i.node_type, i.edge_index)),
    Case("WLConvContinuous", lambda: conv.WLConvContinuous(), _weight),
    Case("FiLMConv", lambda: conv.FiLMConv(WIDTH, OUT), _x),
    Case("FiLMConv types", lambda: conv.FiLMConv(WIDTH, OUT, num_relations=TYPES), _type),
    Case("SuperGATConv", lambda: conv.SuperGATConv(WIDTH, OUT, heads=2), _x),
    Case("FAConv", lambda: conv.FAConv(WIDTH), lambda i: (i.x, i.x * 2, i.edge_index)),
    Case("EGConv", lambda: conv.EGConv(WIDTH, OUT, aggregators=["sum", "mean", "symnorm"], num_heads=2), _x),
    Case("PDNConv", lambda: conv.PDNConv(WIDTH, OUT, EDGE_DIM, 8), _attr),
    Case("GeneralConv", lambda: conv.GeneralConv(WIDTH, OUT, in_edge_channels=EDGE_DIM), _attr),
    Case("GeneralConv attention", lambda: conv.GeneralConv(WIDTH, OUT, attention=True, heads=2), _x),
    Case("HGTConv", lambda: conv.HGTConv(WIDTH, OUT, METADATA, heads=2), _two_types),
    Case(
        "HEATConv",
        lambda: conv.HEATConv(WIDTH, OUT, NODE_TYPES, TYPES, 5, EDGE_DIM, 6, heads=2),
        lambda i: (i.x, i.edge_index, i.node_type, i.edge_type, i.edge_attr),
    ),
    Case("HeteroConv", _hetero, _two_types),
    Case("HANConv", lambda: conv.HANConv(WIDTH, OUT, METADATA, heads=2), _two_types),
    Case("LGConv", lambda: conv.LGConv(), _x),
    Case(
        "PointGNNConv",
        lambda: conv.PointGNNConv(mlp(WIDTH, 3), mlp(WIDTH + 3), mlp(OUT, WIDTH)),
        lambda i: (i.x, i.pos, i.edge_index),
    ),
    Case("GPSConv", lambda: conv.GPSConv(WIDTH, conv.GCNConv(WIDTH, WIDTH), heads=2), _x),
    Case("AntiSymmetricConv", lambda: conv.AntiSymmetricConv(WIDTH, num_iters=2), _x),
    Case("DirGNNConv", lambda: conv.DirGNNConv(conv.SAGEConv(WIDTH, OUT)), _x),
    Case("MixHopConv", lambda: conv.MixHopConv(WIDTH, OUT), _x),
    Case(
        "MeshCNNConv",
        lambda: conv.MeshCNNConv(WIDTH, OUT),
        lambda i: (i.x[:30], torch.stack([torch.arange(120) // 4, i.edge_index[0][:120] % 30])),
    ),
]


def verdict(case: Case) -> tuple[str, str]:
    """How a case runs: "whole", "in parts" or "as it stands"; and what keeps it from more."""
    torch.manual_seed(0)
    compiled = gw.compile(case.make().to(case.dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gw.FallbackWarning)
        call = compiled if case.method == "forward" else getattr(compiled, case.method)
        call(*case.args(random_inputs(0, dtype=case.dtype)))
    calls = calls_of(compiled)
    if case.method != "forward":
        calls = calls.of_method(getattr(type(case.make()), case.method))
    if calls.last is not None:
        apart = calls.last.planned.apart
        if len(calls.last.regions) == 1 and not apart:
            return "whole", ""
        what = [f"`{step.name}`" for step, _ in apart]
        return "in parts", ", ".join(dict.fromkeys(what)) or f"{len(calls.last.regions)} programs"
    return ("in parts" if _runs_inside(calls) else "as it stands"), calls.reason or ""


def _runs_inside(calls: CompiledCalls) -> bool:
    """Whether modules inside run compiled."""
    return any(one.last is not None or _runs_inside(one) for one in calls.inside())


def table(head: str, cases: Sequence[Case], left_out: Mapping[str, str]) -> str:
    """The table, in Markdown."""
    lines = [f"| {head} | compiled | beside |", "|---|---|---|"]
    for case in cases:
        how, what = verdict(case)
        lines.append(f"| {case.name} | {how} | {what} |")
    for name, why in sorted(left_out.items()):
        lines.append(f"| {name} | not tried | {why} |")
    return "\n".join(lines)


def main(name: str, head: str, cases: Sequence[Case], left_out: Mapping[str, str]) -> None:
    """Prints the table or writes it to the place of that name."""
    made = table(head, cases, left_out)
    if "--write" not in sys.argv:
        print(made)
        return
    text = PAGE.read_text(encoding="utf-8")
    start, end = f"<!-- table of {name} -->\n", f"<!-- end of {name} -->"
    PAGE.write_text(re.sub(f"{start}.*?{end}", lambda _: f"{start}{made}\n{end}", text, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main("convolutions", "convolution", CASES, LEFT_OUT)
