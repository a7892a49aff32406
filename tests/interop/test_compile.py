"""``gw.compile`` against the module itself: every convolution of PyTorch Geometric, models, and code with gathers and
scatters."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import graphweft as gw
from graphweft.nn.compiled import calls_of

torch_geometric = pytest.importorskip("torch_geometric")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "coverage" / "pyg_convs.py"
_SPEC = importlib.util.spec_from_file_location("pyg_convs", SCRIPT)
assert _SPEC is not None and _SPEC.loader is not None
coverage = importlib.util.module_from_spec(_SPEC)
sys.modules["pyg_convs"] = coverage
_SPEC.loader.exec_module(coverage)

pytestmark = pytest.mark.filterwarnings("ignore::graphweft.FallbackWarning")
Args = tuple[Any, ...] | Callable[[], tuple[Any, ...]]
CLOSE = {torch.float64: {"rtol": 1e-8, "atol": 1e-9}, torch.float32: {"rtol": 2e-4, "atol": 2e-4}}


def floats(result: Any) -> list[Tensor]:
    """All floating tensors of a result."""
    return [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point()]


def run(module: nn.Module, args: Args, leaves: list[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs, and gradients of a random sum of them."""
    torch.manual_seed(5)
    outputs = [output.clone() for output in floats(module(*(args() if callable(args) else args)))]
    torch.manual_seed(6)
    total = sum((output * torch.randn(output.shape, dtype=output.dtype)).sum() for output in outputs)
    if not isinstance(total, Tensor) or not total.requires_grad:
        return outputs, []
    wanted = [*leaves, *(p for p in module.parameters() if p.requires_grad)]
    return outputs, list(torch.autograd.grad(total, wanted, allow_unused=True))


def compare(plain: nn.Module, compiled: nn.Module, args: Args, leaves: list[Tensor]) -> None:
    """Outputs, gradients and buffers of both agree."""
    expected, wanted = run(plain, args, leaves)
    got, found = run(compiled, args, leaves)
    assert len(expected) == len(got)
    close = CLOSE[expected[0].dtype] if expected else {}
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(other, one, **close)
    for want, find in zip(wanted, found, strict=True):
        if want is None or find is None:
            assert (0 if want is None else want.abs().max()) == (0 if find is None else find.abs().max()) == 0
        else:
            torch.testing.assert_close(find, want, **close)
    for one, other in zip(plain.buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(other, one, **({} if one.dtype == torch.int64 else CLOSE[one.dtype]))


def leaves_of(inputs: Any) -> list[Tensor]:
    """Inputs that want gradients."""
    tensors = [getattr(inputs, name) for name in inputs.__dataclass_fields__]
    return [tensor for tensor in tensors if tensor.requires_grad]


@pytest.mark.parametrize("case", coverage.CASES, ids=lambda case: case.name)
def test_every_convolution(case: Any) -> None:
    """Outputs and all gradients, in training, after parameters change, on a second graph, and in eval."""
    torch.manual_seed(0)
    plain = case.make().double()
    compiled = gw.compile(copy.deepcopy(plain))
    first, second = coverage.random_inputs(0), coverage.random_inputs(1, nodes=31, edges=150)
    compare(plain, compiled, lambda: case.args(first), leaves_of(first))
    with torch.no_grad():
        for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
            one.mul_(0.9).add_(0.01)
            other.copy_(one)
    compare(plain, compiled, lambda: case.args(first), leaves_of(first))
    compare(plain, compiled, lambda: case.args(second), leaves_of(second))
    plain.eval()
    compiled.eval()
    compare(plain, compiled, lambda: case.args(first), leaves_of(first))


@pytest.mark.parametrize("case", [c for c in coverage.CASES if c.name in ("GCNConv", "GATConv", "PNAConv", "GENConv")])
def test_single_precision(case: Any) -> None:
    """In float32 the kernels that a model trains with run."""
    torch.manual_seed(0)
    plain = case.make()
    inputs = coverage.random_inputs(2, nodes=60, edges=500, dtype=torch.float32)
    compare(plain, gw.compile(copy.deepcopy(plain)), lambda: case.args(inputs), leaves_of(inputs))


def test_at_least_most_are_whole() -> None:
    """The table of the page says what runs."""
    whole = {case.kind for case in coverage.CASES if coverage.verdict(case)[0] == "whole"}
    assert len(whole) >= 48
    assert {"GCNConv", "SAGEConv", "GINConv", "GATConv", "GATv2Conv", "TransformerConv", "PNAConv"} <= whole


class Plain(nn.Module):
    """Message passing written with torch alone, as people do."""

    def __init__(self, width: int = 16, out: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 8), nn.Linear(8, out)
        self.norm = nn.BatchNorm1d(8)
        self.scale, self.p = 0.5, 0.0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Two rounds: a mean, and a sum weighted by a softmax of products."""
        row, col = edge_index
        h = self.first(x)
        total = torch.zeros_like(h).index_add_(0, col, h[row])
        count = torch.bincount(col, minlength=x.shape[0]).clamp(min=1).unsqueeze(-1)
        h = functional.relu(self.norm(total / count)) * self.scale
        h = functional.dropout(h, self.p, self.training)
        score = (h[row] * h[col]).sum(-1, keepdim=True)
        weight = score.exp()
        below = torch.zeros_like(h[:, :1]).scatter_add(0, col[:, None], weight)
        h = torch.zeros_like(h).scatter_add(0, col[:, None].expand(-1, 8), weight * h[row]) / (below + 1e-9)
        return functional.log_softmax(self.second(h), dim=-1)


class Chooses(Plain):
    """Python that reads values."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Turns around where the sum is negative."""
        h = super().forward(x, edge_index)
        return -h if h.sum() < -1e3 else h * 2


def plain_inputs(seed: int = 0) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    """Arguments of such modules, and those with gradients."""
    inputs = coverage.random_inputs(seed)
    return (inputs.x, inputs.edge_index), [inputs.x]


def pair(make: Callable[[], nn.Module] = Plain) -> tuple[nn.Module, nn.Module]:
    """A module, and a copy of it that is compiled."""
    torch.manual_seed(0)
    plain = make().double()
    return plain, gw.compile(copy.deepcopy(plain))


def test_plain_code_is_one_program() -> None:
    """Gathers, index_add, scatter_add, batch norm and what is between them."""
    plain, compiled = pair()
    for seed in (0, 1, 0):
        args, leaves = plain_inputs(seed)
        compare(plain, compiled, args, leaves)
    last = calls_of(compiled).last
    assert last is not None and len(last.regions) == 1 and not last.planned.apart


def test_attributes_are_read_in_every_call() -> None:
    """A number, a mode, a module that is replaced."""
    plain, compiled = pair()
    args, leaves = plain_inputs()
    compare(plain, compiled, args, leaves)
    for module in (plain, compiled):
        module.scale = 2.0
    compare(plain, compiled, args, leaves)
    replaced = nn.Linear(8, 4).double()
    plain.second, compiled.second = replaced, replaced
    compare(plain, compiled, args, leaves)


SLOPE = [0.3]


class ReadsGlobal(nn.Module):
    """A list of the module's file."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """A sum, scaled."""
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]) * SLOPE[0]


def test_globals_are_read_in_every_call() -> None:
    """A change within a captured list counts."""
    plain, compiled = pair(ReadsGlobal)
    args, leaves = plain_inputs()
    compare(plain, compiled, args, leaves)
    SLOPE[0] = -1.5
    compare(plain, compiled, args, leaves)
    SLOPE[0] = 0.3


def test_edges_changed_in_place_are_noticed() -> None:
    """Also where torch's version counter does not see it."""
    plain, compiled = pair()
    (x, edge_index), leaves = plain_inputs()
    edge_index = edge_index.clone()
    compare(plain, compiled, (x, edge_index), leaves)
    edge_index.numpy()[0, :50] = 7
    compare(plain, compiled, (x, edge_index), leaves)


def test_values_that_python_reads() -> None:
    """The module runs as it stands, with one warning that names the line."""
    plain, compiled = pair(Chooses)
    args, leaves = plain_inputs()
    with pytest.warns(gw.FallbackWarning, match=r"branch on tensor values.*test_compile\.py:\d+"):
        compiled(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(*args)
    plain, compiled = pair(Chooses)
    compare(plain, compiled, args, leaves)


def test_models_in_parts() -> None:
    """Layers inside a model that reads values are compiled one by one."""
    conv = torch_geometric.nn.GCNConv

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([conv(16, 8), conv(8, 4)])

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.layers[0](x, edge_index).relu()
            return self.layers[1](h / float(h.detach().norm()), edge_index)

    plain, compiled = pair(Model)
    args, leaves = plain_inputs()
    compare(plain, compiled, args, leaves)
    assert [one.last is not None for one in calls_of(compiled).inside()] == [True, True]
    assert not any("forward" in vars(inner) for inner in compiled.modules())


def test_hooks_inside_run() -> None:
    """A module that somebody listens to runs as it stands."""
    plain, compiled = pair()
    args, leaves = plain_inputs()
    seen: list[int] = []
    compiled.first.register_forward_hook(lambda *_: seen.append(1))
    compare(plain, compiled, args, leaves)
    assert seen


def test_dropout_draws_anew_and_from_the_seed() -> None:
    """Two calls differ, equal seeds agree, and the expectation is that of torch."""
    _, compiled = pair()
    compiled.p = 0.5
    (x, edge_index), _ = plain_inputs()
    torch.manual_seed(1)
    one, two = compiled(x, edge_index), compiled(x, edge_index)
    torch.manual_seed(1)
    again = compiled(x, edge_index)
    assert not torch.equal(one, two)
    assert torch.equal(one, again)


def test_one_module_in_two_forms() -> None:
    """Parameters, modes, names and copies are those of the module."""
    torch.manual_seed(0)
    model = torch_geometric.nn.GCN(16, 8, 2, 4).double()
    compiled = gw.compile(model)
    assert isinstance(compiled, torch_geometric.nn.GCN)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert all(one is other for one, other in zip(compiled.parameters(), model.parameters(), strict=True))
    compiled.eval()
    assert not model.training
    (x, edge_index), _ = plain_inputs()
    expected = model(x, edge_index)
    for made in (compiled, copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        torch.testing.assert_close(made(x, edge_index), expected)
        assert calls_of(made).last is not None
    copied = copy.deepcopy(compiled)
    with torch.no_grad():
        next(iter(copied.parameters())).add_(1.0)
    torch.testing.assert_close(compiled(x, edge_index), expected)
    compiled.float()
    assert next(iter(model.parameters())).dtype == torch.float32
    torch.testing.assert_close(compiled(x.float(), edge_index), expected.float(), rtol=1e-4, atol=1e-4)


def test_functional_call_and_half_precision() -> None:
    """Other parameters for one call; autocast and bfloat16 run as they stand."""
    plain, compiled = pair()
    args, _ = plain_inputs()
    plain.eval(), compiled.eval()
    other = {name: p.detach() * 2 for name, p in plain.named_parameters()}
    expected = torch.func.functional_call(plain, other, args)
    torch.testing.assert_close(torch.func.functional_call(compiled, other, args), expected)
    x, edge_index = args[0].float(), args[1]
    plain.float(), compiled.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x, edge_index), plain(x, edge_index))
    plain.bfloat16(), compiled.bfloat16()
    torch.testing.assert_close(compiled(x.bfloat16(), edge_index), plain(x.bfloat16(), edge_index))


MODELS = {
    "GCN": lambda: torch_geometric.nn.GCN(16, 8, 2, 4, dropout=0.0),
    "GraphSAGE": lambda: torch_geometric.nn.GraphSAGE(16, 8, 2, 4, norm="batch_norm"),
    "GIN": lambda: torch_geometric.nn.GIN(16, 8, 2, 4),
    "GAT": lambda: torch_geometric.nn.GAT(16, 8, 2, 4, heads=2, jk="cat"),
    "PNA": lambda: torch_geometric.nn.PNA(
        16, 8, 2, 4, aggregators=["mean", "max"], scalers=["identity"], deg=coverage.random_degrees()
    ),
    "EdgeCNN": lambda: torch_geometric.nn.EdgeCNN(16, 8, 2, 4, norm="layer_norm"),
    "DeepGCN": lambda: torch_geometric.nn.DeepGCNLayer(
        torch_geometric.nn.GENConv(16, 16), nn.LayerNorm(16), nn.ReLU(), block="res+"
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Models of several layers, as one program."""
    plain, compiled = pair(MODELS[name])
    args, leaves = plain_inputs()
    compare(plain, compiled, args, leaves)
    plain.eval(), compiled.eval()
    compare(plain, compiled, args, leaves)


def test_bipartite_and_static_graphs() -> None:
    """Other destinations than sources; several sets of features over the same edges."""
    conv = torch_geometric.nn.SAGEConv
    plain, compiled = pair(lambda: conv((16, 16), 4))
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.stack([torch.randint(0, n, (90,), generator=generator) for n in (20, 12)])
    left, right = (torch.randn(n, 16, dtype=torch.float64, generator=generator, requires_grad=True) for n in (20, 12))
    compare(plain, compiled, ((left, right), edge_index), [left, right])
    plain, compiled = pair(lambda: torch_geometric.nn.GCNConv(16, 4))
    x = torch.randn(3, 20, 16, dtype=torch.float64, generator=generator, requires_grad=True)
    compare(plain, compiled, (x, edge_index), [x])


def test_other_forms_of_edges() -> None:
    """An EdgeIndex, a graph of this package and a sparse matrix are compiled; one with a gradient says it is not."""
    inputs = coverage.random_inputs(3, dtype=torch.float64)
    plain = torch_geometric.nn.SAGEConv(16, 8).double()
    compiled = gw.compile(copy.deepcopy(plain))
    x, edge_index, size = inputs.x, inputs.edge_index, (40, 40)
    expected = plain(x, edge_index)
    forms = [torch_geometric.EdgeIndex(edge_index, sparse_size=size), gw.Graph(*edge_index, num_nodes=40)]
    for edges in forms:
        torch.testing.assert_close(compiled(x, edges), expected)
        assert calls_of(compiled).last is not None
    values = torch.ones(edge_index.shape[1], dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        matrix = torch.sparse_coo_tensor(edge_index.flip(0), values, size).to_sparse_csr()
        wanted = plain(x, matrix)
    torch.testing.assert_close(compiled(x, matrix), wanted)
    assert calls_of(compiled).last is not None
    torch.testing.assert_close(compiled(x, matrix * 2.0), plain(x, matrix * 2.0))
    with pytest.warns(gw.FallbackWarning, match="a sparse matrix with a gradient"):
        torch.testing.assert_close(compiled(x, matrix.requires_grad_()), wanted)


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_edges(count: int) -> None:
    """No edge, one edge; graphs after them are compiled."""
    plain, compiled = pair(lambda: torch_geometric.nn.SAGEConv(16, 4))
    (x, edge_index), leaves = plain_inputs()
    compare(plain, compiled, (x, edge_index[:, :count]), leaves)
    compare(plain, compiled, (x, edge_index), leaves)
    assert calls_of(compiled).last is not None


def test_parameters_of_another_kind_and_tied_ones() -> None:
    """Recordings count on shapes of parameters, and on which of them are one."""
    plain, compiled = pair(lambda: torch_geometric.nn.GraphConv(16, 4))
    args, leaves = plain_inputs()
    for module in (plain, compiled):
        module.lin_root.weight = module.lin_rel.weight
    compare(plain, compiled, args, leaves)
    for module in (plain, compiled):
        module.lin_root.weight = nn.Parameter(module.lin_rel.weight.detach() * 3)
    compare(plain, compiled, args, leaves)
    for module in (plain, compiled):
        for layer in (module.lin_root, module.lin_rel):
            layer.weight = nn.Parameter(torch.ones(6, 16, dtype=torch.float64))
        module.lin_rel.bias = nn.Parameter(torch.ones(6, dtype=torch.float64))
    compare(plain, compiled, args, leaves)


def test_as_many_edges_as_nodes() -> None:
    """Sizes that do not tell nodes from edges."""
    inputs = coverage.random_inputs(0, nodes=40, edges=40)
    conv = torch_geometric.nn
    for make, args in (
        (lambda: conv.GINEConv(nn.Linear(16, 4), edge_dim=4), (inputs.x, inputs.edge_index, inputs.edge_attr)),
        (lambda: conv.GATv2Conv(16, 4, add_self_loops=False), (inputs.x, inputs.edge_index)),
        (lambda: conv.GraphConv(16, 4), (inputs.x, inputs.edge_index, inputs.edge_weight)),
        (lambda: conv.GCNConv(16, 40), (inputs.x, inputs.edge_index)),
    ):
        plain, compiled = pair(make)
        compare(plain, compiled, args, [inputs.x])


def test_wrong_arguments_fail_as_before() -> None:
    """Errors are those of the module itself."""
    plain, compiled = pair(lambda: torch_geometric.nn.SAGEConv(16, 4))
    (x, edge_index), _ = plain_inputs()
    for bad in ((x[:, :3], edge_index), (x, edge_index + 1000), (x, edge_index.float())):
        with pytest.raises(Exception) as expected:
            plain(*bad)
        with pytest.raises(type(expected.value)):
            compiled(*bad)


def test_explain_and_errors() -> None:
    """The story of a compiled module; anything but a module is refused."""
    _, compiled = pair()
    (x, edge_index), _ = plain_inputs()
    told = gw.explain(compiled.float(), x.float(), edge_index)
    assert "1 program" in told and "forward calls" in told
    with pytest.raises(gw.errors.ConfigError, match=r"expected an nn\.Module, got int"):
        gw.compile(3)


def test_explain_of_a_module_that_keeps_results() -> None:
    """A tensor with a history in an attribute, which torch does not copy; it stays where it is."""

    class Keeping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(6, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            self.kept = self.lin(x)
            return torch.zeros_like(self.kept).index_add(0, edge_index[1], self.kept[edge_index[0]])

    x, edge_index = torch.randn(30, 6), torch.randint(0, 30, (2, 90))
    compiled = gw.compile(Keeping())
    compiled(x, edge_index)
    kept = compiled.kept
    assert not kept.is_leaf
    assert "1 program" in gw.explain(compiled, x, edge_index)
    assert compiled.kept is kept
