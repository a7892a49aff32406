"""``gw.compile`` on code of one's own: operations of torch with their options, around sums over edges.

Every module gives many results at once. These and the gradients of all floating arguments and parameters are those of
the module as it stands, on graphs of several shapes in turn, again on the first, and after parameters changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compiled_check import A64, Module, check, check_module, graphs, total
from torch import Tensor, nn
from torch.nn import functional as F

import graphweft as gw
from graphweft.nn.compiled import calls_of

pytestmark = pytest.mark.filterwarnings("ignore")


def test_reductions_with_and_without_what_is_there() -> None:
    """``include_self`` is kept, whatever sums start from."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        ids, rows = edge_index[1][:, None].expand(-1, 6), x[edge_index[0]].sin()
        starts = x @ weight, torch.arange(6.0, dtype=A64).expand_as(x)
        kinds = [(kind, own) for kind in ("sum", "mean", "amax", "amin") for own in (True, False)]
        made = [start.scatter_reduce(0, ids, rows, kind, include_self=own) for start in starts for kind, own in kinds]
        by_slice = [(kind, own) for kind in ("mean", "amax", "amin") for own in (True, False)]
        made += [x.index_reduce(0, edge_index[1], rows, kind, include_self=own) for kind, own in by_slice]
        return [*made, total(x @ weight, edge_index), x.index_add(0, edge_index[0], rows, alpha=-0.5)]

    check(code, whole=True)


def test_complex_numbers() -> None:
    """Gradients pass through them."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        h = total(x @ weight, edge_index)
        turned = torch.fft.fft(h, dim=1)
        return torch.view_as_real(turned), torch.fft.irfft(turned * 2, n=6, dim=1), total(turned.abs(), edge_index)

    check(code, whole=True)


def test_positions_of_extrema() -> None:
    """Values and positions of one maximum, both read."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        h = total(x @ weight, edge_index)
        most, at = h.max(1, keepdim=True)
        hard = torch.zeros_like(h).scatter(1, at, 1.0)
        soft = h.softmax(1)
        return most, at, (hard - soft).detach() + soft, total(h * hard, edge_index), h.norm(p=0, dim=1)

    check(code, whole=True)


def test_elementwise_functions() -> None:
    """Functions that are written with others."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        h = total(x @ weight, edge_index).tanh() / 2
        made = torch.exp2(h), torch.log2(h + 2), torch.log10(h + 2), torch.tan(h), torch.cosh(h), F.glu(h, 1)
        return [*made, total(torch.cat(made, 1), edge_index)]

    check(code, whole=True)


def test_cosh_is_finite_as_far_as_torchs() -> None:
    """In float32, whose exponential is infinite above 88.7."""
    x = torch.tensor([[89.2], [-89.0], [0.0], [3.0]], requires_grad=True)
    loops = torch.arange(4).expand(2, 4)

    class Cosh(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return total(x, edge_index).cosh()

    compiled = gw.compile(Cosh())
    (slope,) = torch.autograd.grad(compiled(x, loops).sum(), x)
    torch.testing.assert_close(compiled(x, loops), x.cosh())
    torch.testing.assert_close(slope, x.sinh())
    assert calls_of(compiled).last is not None


def test_elements_that_structure_selects() -> None:
    """Masks and counts by structure."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        h = total(x @ weight, edge_index)
        even = torch.arange(len(x))[:, None] % 2 == 0
        counts = torch.bincount(edge_index[1], h.detach()[edge_index[0], 0].abs(), minlength=len(x))
        return h.masked_select(even), h[:, :1] * counts[:, None], h

    check(code, whole=True)


def test_bags_of_rows() -> None:
    """Sums, means and maxima of a table's rows, with and without weights and a row that does not count."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        h, ids = total(x, edge_index), edge_index[0] % 6
        starts = torch.arange(0, max(len(ids), 1), 3)
        made = [F.embedding_bag(ids, weight, starts, mode=mode) for mode in ("sum", "mean", "max")]
        made += [F.embedding_bag(ids, weight, starts, mode=mode, padding_idx=1) for mode in ("sum", "mean")]
        made += [F.embedding_bag(ids, weight, starts, mode="sum", per_sample_weights=h[edge_index[1], 0])]
        ends = torch.cat([starts, torch.tensor([len(ids)])])
        made += [F.embedding_bag(ids, weight, ends, mode="mean", include_last_offset=True)]
        pairs = torch.stack([torch.arange(len(x)) % 6, torch.arange(len(x)) % 5], 1)
        return [*made, total(F.embedding_bag(pairs, weight, mode="mean") * h, edge_index)]

    check(code, whole=True)


def test_recurrent_cells() -> None:
    """Torch writes into the parts of a cell's gates."""
    torch.manual_seed(0)

    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.lstm, self.rnn = nn.GRUCell(6, 6), nn.LSTMCell(6, 6), nn.RNNCell(6, 6)

        def forward(self, x: Tensor, edge_index: Tensor) -> Any:
            h = x
            for _ in range(2):
                h = self.gru(total(h, edge_index), h)
            return h, self.lstm(total(h, edge_index), (h, x)), self.rnn(h, total(x, edge_index))

    check_module(Cells(), whole=True)


@pytest.mark.parametrize("write", [lambda h: h.chunk(2, -1)[0].mul_(2), lambda h: h.unbind(1)[0].add_(1)])
def test_writes_that_torch_refuses(write: Callable[[Tensor], Tensor]) -> None:
    """Into one of several views of what wants a gradient; without gradients they are as good as any."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        h = total(x @ weight, edge_index)
        write(h)
        return h

    (_, edge_index), x = next(graphs()), torch.ones(13, 6, dtype=A64)
    plain, compiled = Module(code), gw.compile(Module(code))
    for module in (plain, compiled):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            module(x, edge_index)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, edge_index), plain(x, edge_index))
        assert calls_of(compiled).last is not None


def test_writes_into_views() -> None:
    """Whatever order views lie in, and with shapes that change in place."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        h = total(x @ weight, edge_index)
        turned = h.reshape(1, len(x), 2, 3).permute(0, 2, 1, 3)
        turned.masked_fill_((torch.arange(len(x)) % 2 == 0)[None, None, :, None], 0.25)
        first, rows = turned[:, 0], h[:, 1:3]
        first += 1
        rows.mul_(2)
        deg = torch.zeros(len(x), dtype=A64).index_add(0, edge_index[1], torch.ones(edge_index.shape[1], dtype=A64))
        score = (x[edge_index[0]] * x[edge_index[1]]).sum(-1, keepdim=True)
        score.squeeze_(-1)
        deg = deg + torch.zeros_like(deg).index_add(0, edge_index[1], score)
        deg.unsqueeze_(-1)
        kept = deg[:, 0]
        deg.mul_(2)
        h.t_().mul_(3)
        return h, turned, first, rows, deg, kept, h.t() * deg

    check(code, whole=True)


def test_sparse_matrices_of_scores() -> None:
    """Products, values, sums of parallel entries, other layouts, and the matrix as a result."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        size, h = (len(x), len(x)), x @ weight
        score = (h[edge_index[0]] * x[edge_index[1]]).sum(-1).tanh()
        matrix = torch.sparse_coo_tensor(edge_index, score, size, device=x.device)
        once = matrix.coalesce()
        made = [matrix @ x, matrix.t() @ h, once.values(), once.indices(), matrix.to_dense()]
        turned = once.t()
        made += [once @ x, turned @ h, once.to_dense(), (3 * once).values(), turned.coalesce().values(), turned]
        return [*made, (2 * matrix / 3) @ x, (2 * once / 3) @ x, matrix, once]

    check(code, whole=True)


def test_softmax_of_a_sparse_matrix() -> None:
    """Torch's own takes no gradient of its product; that of its values is the reference."""
    edge_index = torch.stack([torch.arange(40) % 13, torch.arange(40) * 5 % 12])
    x = torch.randn(13, 6, dtype=A64).requires_grad_()

    class Weighs(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            score = (x[edge_index[0]] * x[edge_index[1]]).sum(-1)
            return torch.sparse.softmax(torch.sparse_coo_tensor(edge_index, score, (13, 13)), 1) @ x

    compiled = gw.compile(Weighs())
    out = compiled(x, edge_index)
    dense = torch.zeros(13, 13, dtype=A64).index_put(tuple(edge_index), (x @ x.t())[tuple(edge_index)], accumulate=True)
    there = torch.zeros(13, 13, dtype=torch.bool).index_put(tuple(edge_index), torch.tensor(True))
    expected = dense.masked_fill(~there, -torch.inf).softmax(1).nan_to_num() @ x
    torch.testing.assert_close(out, expected)
    weight = torch.linspace(0, 1, out.numel(), dtype=A64).view(out.shape)
    one, other = (torch.autograd.grad((made * weight).sum(), x)[0] for made in (expected, out))
    torch.testing.assert_close(other, one)
    assert calls_of(compiled).last is not None


def test_compressed_matrices_of_scores() -> None:
    """Rows and columns compressed."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        size, h = (len(x), len(x)), x @ weight
        row, order = edge_index[1].sort(stable=True)
        column = edge_index[0][order]
        starts = torch.searchsorted(row, torch.arange(len(x) + 1))
        score = (h[row] * x[column]).sum(-1)
        matrix = torch.sparse_csr_tensor(starts, column, score, size)
        other = torch.sparse_csc_tensor(starts, column, score.exp(), size=size)
        return matrix @ x, matrix.t() @ h, matrix.values(), other @ x, total(h, edge_index), matrix

    def plain_graphs() -> Iterator[tuple[int, Tensor]]:
        for nodes, edges in graphs():
            yield nodes, torch.unique(edges, dim=1)

    check(code, plain_graphs, whole=True)


def test_an_index_that_is_written_into_later() -> None:
    """A recording does not follow the memory of the index that it was made with."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        h = total(x @ weight, edge_index).cumsum(0)
        matrix = torch.sparse_coo_tensor(edge_index, h[edge_index[0], edge_index[1] % 6], (len(x), len(x)))
        return h.index_select(0, edge_index[0]).sort(0)[0], F.embedding(edge_index[1], h), matrix, edge_index[0]

    def moving() -> Iterator[tuple[int, Tensor]]:
        nodes, edges = next(graphs())
        edges, before = edges.clone(), edges.clone()
        yield nodes, edges
        yield nodes, before.clone()
        edges.add_(1).remainder_(nodes)
        yield nodes, edges
        yield nodes, before.clone()
        yield nodes, edges.clone()

    check(code, moving, whole=True)


def test_matrices_with_rows_of_numbers() -> None:
    """A matrix in the place of an ``edge_index`` may hold attributes of edges."""
    interop = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    plain = interop.GENConv(6, 4, edge_dim=3).double()
    compiled = gw.compile(plain)
    edges = torch.unique(torch.stack([torch.arange(40) % 13, torch.arange(40) * 5 % 12]), dim=1)
    matrix = torch.sparse_coo_tensor(edges, torch.randn(edges.shape[1], 3, dtype=A64), (13, 13, 3)).coalesce()
    x = torch.randn(13, 6, dtype=A64)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, matrix), plain(x, matrix), rtol=1e-9, atol=1e-10)
        assert calls_of(compiled).last is not None
