"""Torch's functions on sparse features against the same functions on the dense matrix, forward and backward."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphweft._errors import DenseFeaturesWarning, DtypeError, GraphError, IndexRangeError, ShapeError
from graphweft.storage.feature import SparseFeatures, is_dense

F64 = torch.float64


def _drawn(rows: int, width: int, share: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator, dtype=F64)
    return torch.where(torch.rand(rows, width, generator=generator) < share, values, 0.0)


def _with_gaps() -> Tensor:
    x = _drawn(12, 7, 0.4, 1)
    x[3], x[11] = 0.0, 0.0
    x[:, 0], x[:, 5] = 0.0, 0.0
    return x


MATRICES = {
    "drawn": _drawn(15, 6, 0.3, 0),
    "gaps": _with_gaps(),
    "no_entries": torch.zeros(4, 5, dtype=F64),
    "one_row": _drawn(1, 9, 0.5, 2),
    "one_column": _drawn(8, 1, 0.5, 3),
    "full": _drawn(5, 4, 1.0, 4),
    "no_rows": torch.zeros(0, 3, dtype=F64),
}
ALL = pytest.mark.parametrize("name", MATRICES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


@pytest.fixture
def stays_sparse(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails where features are made dense."""

    def refuse(self: SparseFeatures) -> Tensor:
        raise AssertionError("made dense")

    monkeypatch.setattr(SparseFeatures, "to_dense", refuse)
    yield


def _pair(name: str, dtype: torch.dtype = F64) -> tuple[SparseFeatures, Tensor]:
    dense = MATRICES[name].to(dtype)
    return SparseFeatures.from_dense(dense), dense


def _dense(made: Any) -> Any:
    """The result as NumPy-like rows, without the method that a test may have taken away."""
    if not isinstance(made, SparseFeatures):
        return made
    return torch.from_numpy(made.to_scipy().toarray())


def _equal(made: Any, expected: Any, **how: Any) -> None:
    if isinstance(expected, tuple | list):
        assert len(made) == len(expected)
        for mine, theirs in zip(made, expected, strict=True):
            _equal(mine, theirs, **how)
        return
    torch.testing.assert_close(_dense(made), expected, **how)


PRODUCTS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w, b: F.linear(x, w, b),
    "linear without bias": lambda x, w, b: F.linear(x, w),
    "matmul": lambda x, w, b: torch.matmul(x, w.t()),
    "@": lambda x, w, b: x @ w.t(),
    "mm": lambda x, w, b: x.mm(w.t()),
    "sparse.mm": lambda x, w, b: torch.mm(x, w.t()) * 2,
    "mv": lambda x, w, b: torch.mv(x, w[0]),
    "@ vector": lambda x, w, b: x @ w[0],
    "left @": lambda x, w, b: w.new_ones(2, len(x)) @ x @ w.t(),
    "left vector @": lambda x, w, b: torch.matmul(w.new_ones(len(x)), x) * w,
    "addmm": lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5, alpha=2.0),
    "addmm method": lambda x, w, b: b.expand(len(x), -1).addmm(x, w.t()),
    "transposed": lambda x, w, b: x.t() @ (x @ w.t()),
    "T": lambda x, w, b: (x.T.mm(torch.relu(x @ w.t())) ** 2).sum(0),
}


@ALL
@DTYPES
@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.usefixtures("stays_sparse")
def test_products_and_their_gradients(function: str, name: str, dtype: torch.dtype) -> None:
    sparse, dense = _pair(name, dtype)
    how = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    results = []
    for x in (sparse, dense):
        generator = torch.Generator().manual_seed(5)
        w = torch.randn(3, dense.shape[1], generator=generator, dtype=dtype).requires_grad_()
        b = torch.randn(3, generator=generator, dtype=dtype).requires_grad_()
        made = PRODUCTS[function](x, w, b)
        (made * torch.arange(made.numel(), dtype=dtype).reshape(made.shape)).sum().backward()
        results.append((made.detach(), w.grad, torch.zeros(()) if b.grad is None else b.grad))
    _equal(results[0], results[1], **how)


@pytest.mark.usefixtures("stays_sparse")
def test_a_linear_layer_trains_as_on_dense_rows() -> None:
    sparse, dense = _pair("gaps", torch.float32)
    models = [nn.Sequential(nn.Dropout(0.0), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, x in zip(models, (sparse, dense), strict=True):
        for _ in range(5):
            model.zero_grad()
            F.cross_entropy(model(x), torch.arange(12) % 2).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.1 * parameter.grad
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own forward mode
@pytest.mark.usefixtures("stays_sparse")
def test_products_are_differentiated_twice_forward_and_in_batches() -> None:
    sparse, dense = _pair("drawn")
    w, many = torch.randn(3, 6, dtype=F64), torch.randn(4, 3, 6, dtype=F64)

    def loss(x: Any) -> Callable[[Tensor], Tensor]:
        return lambda weight: (F.linear(x, weight) ** 3).sum()

    _equal(torch.func.hessian(loss(sparse))(w), torch.func.hessian(loss(dense))(w))
    _equal(torch.func.jvp(loss(sparse), (w,), (w,)), torch.func.jvp(loss(dense), (w,), (w,)))
    _equal(torch.func.vmap(lambda v: F.linear(sparse, v))(many), torch.func.vmap(lambda v: F.linear(dense, v))(many))
    weight = w.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(sparse)(weight), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight)
    (first,) = torch.autograd.grad(loss(dense)(weight), weight, create_graph=True)
    _equal(second, torch.autograd.grad(first.square().sum(), weight)[0])


def test_products_under_autocast_have_its_dtype() -> None:
    sparse, dense = _pair("drawn", torch.float32)
    layer = nn.Linear(6, 3)
    with torch.autocast("cpu"):
        made, expected = layer(sparse), layer(dense)
    assert made.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(made, expected, rtol=2e-2, atol=2e-2)


def test_two_sparse_operands() -> None:
    sparse, dense = _pair("gaps")
    other, theirs = SparseFeatures.from_dense(dense.flip(0)), dense.flip(0)
    for function in (torch.add, torch.sub, torch.mul):
        made = function(sparse, other)
        assert isinstance(made, SparseFeatures)
        _equal(made, function(dense, theirs))
    with pytest.warns(DenseFeaturesWarning, match="matmul: SparseFeatures 7 x 12"):
        _equal(sparse @ sparse.t(), dense @ dense.t())


# one argument, zero stays zero
ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "F.relu": F.relu,
    "x.relu": lambda x: x.relu(),
    "nn.ReLU": nn.ReLU(),
    "abs": abs,
    "sqrt of abs": lambda x: x.abs().sqrt(),
    "neg": lambda x: -x,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "log1p": lambda x: torch.log1p(x.abs()),
    "expm1": torch.expm1,
    "sign": torch.sign,
    "square": lambda x: x**2,
    "pow": lambda x: torch.pow(x, 3),
    "times two": lambda x: x * 2,
    "two times": lambda x: 2.0 * x,
    "times 0-dim": lambda x: x * torch.tensor(0.5, dtype=F64),
    "times zero": lambda x: x * 0,
    "by four": lambda x: x / 4,
    "clamp": lambda x: x.clamp(-0.5, 0.25),
    "clamp_min": lambda x: torch.clamp_min(x, 0.0),
    "elu": F.elu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "gelu": F.gelu,
    "softsign": F.softsign,
    "plus zero": lambda x: x + 0,
    "rows": lambda x: x * torch.arange(len(x), dtype=F64).reshape(-1, 1),
    "columns": lambda x: torch.arange(x.shape[1], dtype=F64) * x,
    "elements": lambda x: x * torch.linspace(-1, 1, x.numel(), dtype=F64).reshape(x.shape),
    "mask": lambda x: x * (torch.arange(x.shape[1]) % 2 == 0),
    "row sums": lambda x: x / x.abs().sum(1, keepdim=True).clamp(min=1.0),
    "column sums": lambda x: x / x.abs().sum(dim=0).clamp(min=1.0),
    "normalize": F.normalize,
    "normalize by one": lambda x: F.normalize(x, p=1, dim=-1),
    "normalize columns": lambda x: F.normalize(x, dim=0),
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, training=False),
}


@ALL
@pytest.mark.parametrize("function", ELEMENTWISE)
@pytest.mark.usefixtures("stays_sparse")
def test_functions_that_keep_zero(function: str, name: str) -> None:
    sparse, dense = _pair(name)
    made = ELEMENTWISE[function](sparse)
    assert isinstance(made, SparseFeatures)
    assert int((made.values == 0).sum()) == 0  # canonical: no zero is stored
    _equal(made, ELEMENTWISE[function](dense))


SELECTIONS: dict[str, Callable[[Any], Any]] = {
    "ids": lambda x: x[torch.tensor([3, 0, 3])],
    "negative ids": lambda x: x[torch.tensor([-1, 0])],
    "list": lambda x: x[[1, 2]],
    "array": lambda x: x[np.array([1, 2])],
    "mask": lambda x: x[torch.arange(len(x)) % 2 == 0],
    "no ids": lambda x: x[torch.tensor([], dtype=torch.int64)],
    "slice": lambda x: x[1:4],
    "step": lambda x: x[::2],
    "negative slice": lambda x: x[-3:],
    "all": lambda x: x[:],
    "ellipsis": lambda x: x[..., 1:3],
    "columns": lambda x: x[:, [4, 0, 4]],
    "column mask": lambda x: x[:, torch.arange(x.shape[1]) > 1],
    "block": lambda x: x[2:5, 1:],
    "ids and slice": lambda x: x[torch.tensor([3, 1]), 2:],
    "index_select": lambda x: x.index_select(0, torch.tensor([2, 2])),
    "index_select -2": lambda x: torch.index_select(x, -2, torch.tensor([2, 0])),
    "index_select 1": lambda x: x.index_select(1, torch.tensor([5, 2])),
    "narrow": lambda x: x.narrow(0, 1, 3),
    "narrow 1": lambda x: torch.narrow(x, 1, 1, 3),
    "split": lambda x: x.split(5),
    "split sizes": lambda x: torch.split(x, [4, 3], dim=1) if x.shape[1] == 7 else x[:1],
    "chunk": lambda x: x.chunk(3),
    "cat": lambda x: torch.cat([x, x[:2], x]),
    "cat 1": lambda x: torch.cat((x, x[:, :2]), dim=-1),
    "t": lambda x: x.t(),
    "mT": lambda x: x.mT,
    "transpose": lambda x: x.transpose(0, 1),
    "view": lambda x: x.view(-1, x.shape[1]),
    "flatten": lambda x: x.flatten(1),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach().contiguous(),
    "cpu": lambda x: x.cpu().to("cpu"),
    "float": lambda x: x.float().double() if x.dtype == torch.float32 else x.double(),
}


@pytest.mark.parametrize("function", SELECTIONS)
@pytest.mark.parametrize("name", ["drawn", "gaps"])
@pytest.mark.usefixtures("stays_sparse")
def test_selections_stay_sparse(function: str, name: str) -> None:
    sparse, dense = _pair(name)
    made = SELECTIONS[function](sparse)
    assert all(isinstance(part, SparseFeatures) for part in (made if isinstance(made, tuple) else [made]))
    _equal(made, SELECTIONS[function](dense))


@pytest.mark.parametrize("name", ["drawn", "gaps"])
def test_single_rows_and_columns_are_dense_vectors(name: str) -> None:
    sparse, dense = _pair(name)
    for pick in (
        lambda x: x[2],
        lambda x: x[-1],
        lambda x: x[torch.tensor(1)],
        lambda x: x[:, 1],
        lambda x: x[1:3, -1],
        lambda x: x[2, 1:],
        lambda x: x[2, 3],
        lambda x: x.select(1, 2),
        lambda x: list(x),
    ):
        made = pick(sparse)
        assert all(is_dense(part) for part in (made if isinstance(made, list) else [made]))
        _equal(made, pick(dense))
    for wrong in (100, -100):
        with pytest.raises(IndexError):
            sparse[wrong]
    with pytest.raises(IndexRangeError, match="100 at position 1"):
        sparse[torch.tensor([0, 100])]


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(),
    "sum 0": lambda x: x.sum(0),
    "sum 1": lambda x: torch.sum(x, dim=1),
    "sum -1": lambda x: x.sum(dim=-1, keepdim=True),
    "sum 0 kept": lambda x: x.sum(0, keepdim=True),
    "sum of both": lambda x: x.sum((0, 1), keepdim=True),
    "mean": lambda x: x.mean(),
    "mean 0": lambda x: x.mean(0),
    "mean 1": lambda x: torch.mean(x, 1, keepdim=True),
    "norm": lambda x: x.norm(),
    "norm 1": lambda x: x.norm(p=2, dim=1),
    "norm p": lambda x: torch.norm(x, 3, dim=-1, keepdim=True),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, ord=2, dim=1),
    "nonzero": lambda x: x.nonzero(),
    "count_nonzero": torch.count_nonzero,
}


@ALL
@pytest.mark.parametrize("function", REDUCTIONS)
@pytest.mark.usefixtures("stays_sparse")
def test_sums(function: str, name: str) -> None:
    sparse, dense = _pair(name)
    _equal(REDUCTIONS[function](sparse), REDUCTIONS[function](dense), equal_nan=True)


@ALL
@pytest.mark.usefixtures("stays_sparse")
def test_sums_with_dense_matrices(name: str) -> None:
    sparse, dense = _pair(name)
    target = torch.arange(len(dense)) // 2
    results = []
    for x in (sparse, dense):
        z = torch.linspace(-1, 1, dense.numel(), dtype=F64).reshape(dense.shape).requires_grad_()
        base = z.new_zeros(len(dense), dense.shape[1])
        spread = target.reshape(-1, 1).expand(dense.shape)
        made = [x + z, z - x, x - 2 * z, base.clone().scatter_add_(0, spread, x), z.index_add(0, target, x)]
        made.append(base.clone().index_add_(0, target, x))
        sum((part * part).sum() for part in made).backward()
        results.append((*[part.detach() for part in made], z.grad))
    _equal(results[0], results[1])


def test_dropout_keeps_each_entry_alike_and_draws_from_torch() -> None:
    x = SparseFeatures.from_dense(torch.eye(400) + torch.eye(400).roll(1, 1))
    torch.manual_seed(3)
    kept = [F.dropout(x, 0.3) for _ in range(50)]
    share = sum(part.nnz for part in kept) / (50 * x.nnz)
    assert abs(share - 0.7) < 0.01  # standard deviation 0.0023
    assert torch.unique(torch.cat([part.values for part in kept])).tolist() == pytest.approx([1 / 0.7])
    counts = sum(part.to_dense() for part in kept)[x.adjacency.to_coo()] * 0.7
    assert 30 < counts.mean() < 40 and counts.min() > 15 and counts.max() < 50  # every entry by itself
    torch.manual_seed(3)
    assert torch.equal(F.dropout(x, 0.3).to_dense(), kept[0].to_dense())
    assert not torch.equal(kept[0].to_dense(), kept[1].to_dense())
    assert F.dropout(x, 1.0).nnz == 0
    assert nn.Dropout(0.5).eval()(x) is x
    assert nn.Dropout(0.5)(x).nnz < x.nnz
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(x, 1.5)


NEED_ROWS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: F.softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[1],)),
    "plus one": lambda x: x + 1,
    "cos": torch.cos,
    "exp": lambda x: x.exp(),
    "clamp to one": lambda x: x.clamp(min=1),
    "by zero": lambda x: x / 0,
    "infinite": lambda x: x * float("inf"),
    "infinite column": lambda x: x * torch.full((x.shape[1],), float("inf"), dtype=F64),
    "by sums with zeros": lambda x: x / x.sum(1, keepdim=True),
    "zeroth power": lambda x: x**0,
    "one over": lambda x: 1 / x,
    "comparison": lambda x: x > 0,
    "max": lambda x: x.max(1).values,
    "stack": lambda x: torch.stack([x, x]),
    "cat with dense": lambda x: torch.cat([x, torch.ones(x.shape, dtype=F64)], 1),
    "reshape": lambda x: x.reshape(-1),
    "two ids": lambda x: x[[0, 1], [1, 2]],
    "matrix of ids": lambda x: x[torch.tensor([[0, 1], [1, 2]])],
    "einsum": lambda x: torch.einsum("nf,f->n", x, torch.ones(x.shape[1], dtype=F64)),
    "numpy": lambda x: torch.from_numpy(np.asarray(x).copy()),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "bias": lambda x: x + torch.ones(x.shape[1], dtype=F64),
    "where": lambda x: torch.where(torch.tensor(True), x, 2.0),
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(2, x.shape[1], x.shape[1], dtype=F64)),
}


@pytest.mark.parametrize("function", NEED_ROWS)
def test_what_needs_dense_rows_gets_them_with_a_warning(function: str) -> None:
    sparse, dense = _pair("gaps")
    with pytest.warns(DenseFeaturesWarning, match=r"SparseFeatures .*12 x 7.* MB\) were made dense"):
        made = NEED_ROWS[function](sparse)
    assert is_dense(made)
    _equal(made, NEED_ROWS[function](dense), equal_nan=True)


def test_a_factor_with_a_gradient_gets_it() -> None:
    sparse, dense = _pair("drawn")
    grads = []
    for x in (sparse, dense):
        gate = torch.ones(6, dtype=F64, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DenseFeaturesWarning)
            (x * gate).square().sum().backward()
        grads.append(gate.grad)
    _equal(grads[0], grads[1])


def test_sparse_features_cannot_be_changed() -> None:
    x, _ = _pair("drawn")
    for change in (
        lambda: x.mul_(2),
        lambda: x.zero_(),
        lambda: x.__setitem__(0, 1.0),
        lambda: x.__iadd__(1),
        lambda: F.relu(x, inplace=True),
        lambda: nn.ReLU(inplace=True)(x),
        lambda: F.dropout(x, 0.5, inplace=True),
        lambda: torch.abs(torch.ones(x.shape), out=x),
        lambda: x.requires_grad_(),
        lambda: x.data_ptr(),
    ):
        before = x.values.clone()
        with pytest.raises(GraphError, match="SparseFeatures"):
            change()
        assert torch.equal(x.values, before)
    assert x.requires_grad_(False) is x and not x.requires_grad


def test_operands_that_do_not_fit() -> None:
    x, _ = _pair("drawn", torch.float32)
    with pytest.raises(DtypeError, match=r"linear: expected torch.float32 as the SparseFeatures, got torch.float64; x"):
        F.linear(x, torch.ones(2, 6, dtype=F64))
    with pytest.raises(ShapeError, match="linear: expected a matrix of 6 rows"):
        F.linear(x, torch.ones(2, 5))
    with pytest.raises(DtypeError, match="on the CPU"):
        F.linear(x, torch.ones(2, 6, device="meta"))
    for convert in (lambda: x.half(), lambda: x.long(), lambda: x.to(torch.bfloat16)):
        with pytest.raises(DtypeError, match="float32 or float64"):
            convert()


def test_another_device_gets_dense_rows() -> None:
    x, dense = _pair("drawn")
    with pytest.warns(DenseFeaturesWarning, match=r"to\('meta'\)"):
        made = x.to("meta")
    assert made.device.type == "meta" and made.shape == dense.shape


def test_what_model_code_reads() -> None:
    x, dense = _pair("gaps", torch.float32)
    assert isinstance(x, Tensor) and torch.is_tensor(x) and not is_dense(x)
    assert (x.shape, x.size(), x.size(0), x.size(-1), x.ndim, x.dim()) == ((12, 7), (12, 7), 12, 7, 2, 2)
    assert (x.dtype, x.device, x.numel(), len(x), x.is_floating_point()) == (
        torch.float32, torch.device("cpu"), 84, 12, True,
    )  # fmt: skip
    assert (x.requires_grad, x.is_leaf, x.grad, x.grad_fn, x.is_cuda, x.is_sparse) == (
        False,
        True,
        None,
        None,
        False,
        False,
    )
    assert (x.layout, x.is_sparse_csr, x.type()) == (torch.sparse_csr, True, "torch.FloatTensor")
    assert x.new_zeros(2).tolist() == [0.0, 0.0] and torch.zeros_like(x).shape == x.shape
    assert dense[:, :1].expand_as(x).shape == x.shape
    assert "SparseFeatures(12 x 7" in repr(x) and f"{x}" == str(x) == repr(x) and "take_rows" in dir(x)
    assert hash(x) == hash(x) and x in {x: 1}


def test_copies() -> None:
    x, dense = _pair("gaps")
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    for made in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x), torch.load(buffer, weights_only=False)):
        assert type(made) is SparseFeatures
        _equal(made, dense)
        _equal(made @ torch.eye(7, dtype=F64), dense)
    assert copy.deepcopy(x).values.data_ptr() != x.values.data_ptr()
    twice = copy.deepcopy([x, x])
    assert twice[0] is twice[1]


@pytest.mark.usefixtures("stays_sparse")
def test_equality_of_two_sparse_matrices() -> None:
    x, _ = _pair("gaps")
    assert torch.equal(x, copy.deepcopy(x)) and x.equal(x)
    assert not torch.equal(x, x * 2) and not torch.equal(x, x[:3]) and not torch.equal(x, x[:, [1, 0, 2, 3, 4, 5, 6]])


def test_torch_compile_runs_layers_on_sparse_features() -> None:
    x, dense = _pair("drawn", torch.float32)
    layer = nn.Linear(6, 3)
    compiled = torch.compile(layer, backend="eager")
    _equal(compiled(x), layer(dense))
