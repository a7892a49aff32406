"""``gw.compile`` against the models of PyTorch Geometric themselves, and what makes them compile.

That is ``Data`` as an argument, methods beside forward, results of other classes, recurrent layers, TorchScript.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import graphweft as gw
from graphweft.nn.compiled import calls_of

torch_geometric = pytest.importorskip("torch_geometric")
from torch_geometric.data import Data  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "coverage" / "pyg_models.py"
_SPEC = importlib.util.spec_from_file_location("pyg_models", SCRIPT)
assert _SPEC is not None and _SPEC.loader is not None
coverage = importlib.util.module_from_spec(_SPEC)
sys.modules["pyg_models"] = coverage
_SPEC.loader.exec_module(coverage)
convs = sys.modules["pyg_convs"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::graphweft.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),
]
CLOSE = {torch.float64: {"rtol": 1e-8, "atol": 1e-9}, torch.float32: {"rtol": 2e-4, "atol": 2e-4}}


def call(module: nn.Module, case: Any, inputs: Any) -> tuple[list[Tensor], list[Tensor | None]]:
    """Floating results, and gradients of a random sum of them."""
    torch.manual_seed(5)
    function = module if case.method == "forward" else getattr(module, case.method)
    leaves = pytree.tree_leaves(function(*case.args(inputs)))
    results = [x.clone() for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    torch.manual_seed(6)
    total = sum(((x * torch.randn(x.shape, dtype=x.dtype)).sum() for x in results), torch.zeros(()))
    wanted = [inputs.x, inputs.edge_attr, inputs.edge_weight, inputs.pos, *module.parameters()]
    grads = torch.autograd.grad(total, wanted, allow_unused=True) if total.requires_grad else ()
    return results, list(grads)


@pytest.mark.parametrize("case", coverage.CASES, ids=lambda case: case.name)
def test_every_model(case: Any) -> None:
    """Outputs, all gradients and buffers, in training and in eval."""
    torch.manual_seed(0)
    plain = case.make().to(case.dtype)
    compiled = gw.compile(copy.deepcopy(plain))
    inputs = convs.random_inputs(0, dtype=case.dtype)
    for mode in (True, False):
        plain.train(mode), compiled.train(mode)
        (expected, wanted), (got, found) = call(plain, case, inputs), call(compiled, case, inputs)
        torch.testing.assert_close(got, expected, **CLOSE[case.dtype])
        assert len(found) == len(wanted)  # what needs no gradient has none
        for want, find in zip(wanted, found, strict=True):
            if want is None or find is None:
                assert (0 if want is None else want.abs().max()) == (0 if find is None else find.abs().max()) == 0
            else:
                torch.testing.assert_close(find, want, **CLOSE[case.dtype])
        for one, other in zip(plain.buffers(), compiled.buffers(), strict=True):
            torch.testing.assert_close(other, one, **CLOSE.get(one.dtype, {}))


def test_at_least_most_are_compiled() -> None:
    """The table of the page says what runs."""
    found = {case.name: convs.verdict(case)[0] for case in coverage.CASES}
    compiled = {name.partition(" ")[0] for name, how in found.items() if how != "as it stands"}
    assert len(compiled) >= 30
    assert {"GCN", "GraphSAGE", "GAT", "PNA", "EdgeCNN", "LINKX"} <= {n for n, how in found.items() if how == "whole"}


def test_data_as_an_argument() -> None:
    """A model that takes ``Data`` is recorded with its contents; one that changes it is not."""
    torch.manual_seed(0)
    inputs = convs.random_inputs(0)

    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch_geometric.nn.SAGEConv(16, 16)

        def forward(self, data: Data) -> Data:
            data.x = self.conv(data.x, data.edge_index)
            return data

    plain = coverage.Pooled().double()
    compiled = gw.compile(copy.deepcopy(plain))
    for seed in (0, 1, 0):
        inputs = convs.random_inputs(seed)
        data = Data(x=inputs.x, edge_index=inputs.edge_index, batch=torch.zeros(40, dtype=torch.long))
        torch.testing.assert_close(compiled(data), plain(data))
        assert calls_of(compiled).last is not None
    changes = Changes().double()
    compiled = gw.compile(copy.deepcopy(changes))
    for _ in range(2):
        one, other = Data(x=inputs.x, edge_index=inputs.edge_index), Data(x=inputs.x, edge_index=inputs.edge_index)
        result = compiled(other)
        assert result is other
        torch.testing.assert_close(result.x, changes(one).x)


def test_results_of_other_classes_are_no_stand_ins() -> None:
    """An object with tensors in it is made anew by the module itself."""

    class Result:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    class Wraps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch_geometric.nn.SAGEConv(16, 8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Result:
            return Result(self.conv(x, edge_index))

    inputs = convs.random_inputs(0)
    plain = Wraps().double()
    for _ in range(2):
        torch.testing.assert_close(
            gw.compile(copy.deepcopy(plain))(inputs.x, inputs.edge_index).x, plain(inputs.x, inputs.edge_index).x
        )


def test_recurrent_layers_follow_their_parameters() -> None:
    """A recurrent layer keeps a list of its parameters; the recording reads them anew, and stays."""
    torch.manual_seed(0)
    plain = coverage.Jumps("lstm").double()
    compiled = gw.compile(copy.deepcopy(plain))
    inputs = convs.random_inputs(0)
    for _ in range(3):
        torch.testing.assert_close(compiled(inputs.x, inputs.edge_index), plain(inputs.x, inputs.edge_index))
        with torch.no_grad():
            for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
                one.mul_(0.9), other.copy_(one)
    assert len(calls_of(compiled)._recorded) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_is_of_the_module_as_written() -> None:
    """``torch.jit.script`` and ``torch.jit.trace`` of a compiled module."""
    inputs = convs.random_inputs(0)
    compiled = gw.compile(torch_geometric.nn.GCNConv(16, 8).double())
    expected = compiled(inputs.x, inputs.edge_index)
    scripted = torch.jit.script(compiled)
    torch.testing.assert_close(scripted(inputs.x, inputs.edge_index), expected)
    other = convs.random_inputs(1, nodes=31, edges=150)
    traced = torch.jit.trace(compiled, (inputs.x, inputs.edge_index))
    torch.testing.assert_close(traced(other.x, other.edge_index), compiled(other.x, other.edge_index))


def test_features_that_a_layer_keeps() -> None:
    """A layer that keeps sums of features in an attribute gives the same in later calls."""
    inputs = convs.random_inputs(0)
    plain = torch_geometric.nn.SGConv(16, 8, K=2, cached=True).double()
    compiled = gw.compile(copy.deepcopy(plain))
    for _ in range(3):
        torch.testing.assert_close(compiled(inputs.x, inputs.edge_index), plain(inputs.x, inputs.edge_index))


def test_edges_with_sizes_of_their_own() -> None:
    """An ``EdgeIndex`` may say more than its tensor."""
    edges = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])
    edge_index = torch_geometric.EdgeIndex(edges, sort_order="col", sparse_size=(4, 2))
    plain = torch_geometric.nn.GraphConv((16, 16), 8)
    x = torch.randn(4, 16)
    torch.testing.assert_close(gw.compile(copy.deepcopy(plain))((x, None), edge_index), plain((x, None), edge_index))


def test_parametrized_layers() -> None:
    """A layer of which a parameter is computed from others."""
    inputs = convs.random_inputs(0)
    plain = torch_geometric.nn.GraphConv(16, 8).double()
    compiled = gw.compile(copy.deepcopy(plain))
    for one in (plain.lin_rel, compiled.lin_rel):
        nn.utils.parametrizations.weight_norm(one)
    torch.testing.assert_close(compiled(inputs.x, inputs.edge_index), plain(inputs.x, inputs.edge_index))


def test_sums_written_in_place_of_structure() -> None:
    """``out=`` and masks over several dimensions, where they follow from structure."""

    class Ragged(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            degree = torch.bincount(edge_index[1], minlength=len(x))
            start = torch.zeros(len(x) + 1, dtype=torch.long)
            torch.cumsum(degree, 0, out=start[1:])
            h = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]) + start[:-1, None]
            mask = (start[1:, None] - start[:-1, None]) > torch.arange(2)
            return h[:, :2][mask]

    inputs = convs.random_inputs(0)
    compiled = gw.compile(Ragged())
    torch.testing.assert_close(compiled(inputs.x, inputs.edge_index), Ragged()(inputs.x, inputs.edge_index))
    assert calls_of(compiled).last is not None


def test_errors_at_the_first_run_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module itself runs where its programs cannot, and the warning says why."""
    from graphweft.nn.recorded import RegionRun

    def fails(self: RegionRun, env: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(RegionRun, "__call__", fails)
    inputs = convs.random_inputs(0)
    plain = torch_geometric.nn.SAGEConv(16, 8).double()
    compiled = gw.compile(copy.deepcopy(plain))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(compiled(inputs.x, inputs.edge_index), plain(inputs.x, inputs.edge_index))
    assert [str(w.message) for w in seen if "no kernel" in str(w.message)]


def test_methods_beside_forward_are_compiled_too() -> None:
    """Each with recordings of its own, and changes of attributes between calls are seen."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.factor, self.calls = nn.Linear(4, 3), 2.0, []

        def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
            sent = self.lin(x)[edge_index[0]] * self.factor
            return torch.zeros(len(x), 3).index_add(0, edge_index[1], sent)

        def counted(self, x: Tensor, edge_index: Tensor) -> Tensor:
            self.calls.append(len(x))
            return self.encode(x, edge_index)

        def scale(self, by: float) -> float:
            self.factor *= by
            return self.factor

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.encode(x, edge_index).relu()

    torch.manual_seed(0)
    plain = Two()
    compiled = gw.compile(plain)
    x, edge_index = torch.randn(5, 4), torch.randint(0, 5, (2, 12))
    encode = calls_of(compiled).of_method(Two.encode)
    torch.testing.assert_close(compiled.encode(x, edge_index), plain.encode(x, edge_index))
    first = encode.last
    assert first is not None and len(first.regions) == 1 and not first.planned.apart
    torch.testing.assert_close(compiled(x, edge_index), plain(x, edge_index))
    compiled.encode(x, edge_index)
    assert encode.last is first and calls_of(compiled).last is not first
    assert compiled.scale(3.0) == plain.factor == 6.0  # neither is recorded: there are no edges
    torch.testing.assert_close(compiled.encode(x, edge_index), plain.encode(x, edge_index))
    assert encode.last is not first
    compiled.counted(x, edge_index), compiled.counted(x, edge_index)  # changes a list: runs as it stands
    assert plain.calls == [5, 5]


class Leaves(nn.Module):
    """Leaves a tensor that follows from features in an attribute; with ``reads``, a later call reads it."""

    def __init__(self, reads: str = "") -> None:
        super().__init__()
        self.conv, self.reads = torch_geometric.nn.SAGEConv(16, 8), reads

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.reads == "cached":
            if not hasattr(self, "mean"):
                self.mean = self.conv(x, edge_index)
            return self.mean * 2
        before = getattr(self, "mean", None)
        self.mean = self.conv(x, edge_index)
        if self.reads == "eval" and self.training:
            return self.mean.relu()
        if self.reads and before is not None:
            return self.mean.relu() + before.detach()
        return self.mean.relu()


@pytest.mark.parametrize("reads", ["", "always", "eval", "cached"])
def test_tensors_left_in_attributes(reads: str) -> None:
    """They are of the last call, with gradients; where forward reads them, it is the same as if not compiled."""
    torch.manual_seed(0)
    plain = Leaves(reads).double()
    compiled, kept = gw.compile(copy.deepcopy(plain)), []
    for step in range(6):
        inputs = convs.random_inputs(step % 2)
        plain.train(step < 3), compiled.train(step < 3)
        results = []
        for module in (plain, compiled):
            result = module(inputs.x, inputs.edge_index)
            (result.square().sum() + module.mean.sum()).backward()
            results.append([result, module.mean, *(p.grad for p in module.parameters())])
            torch.optim.SGD(module.parameters(), 0.001).step()
            if reads == "cached":  # its graph has been gone through
                module.mean = module.mean.detach().requires_grad_()
        torch.testing.assert_close(results[1], results[0], rtol=1e-8, atol=1e-9)
        last = calls_of(compiled).last
        if not reads:
            assert last is not None and not last.planned.apart
            kept.append(last)
    assert reads or kept[0] is kept[2]  # the guard does not see what was left
