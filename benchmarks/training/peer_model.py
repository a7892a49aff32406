"""What every peer shares: features as tensors, initial weights, one epoch of training. Runs on torch 2.2 and later."""

from __future__ import annotations

import torch
from torch.nn import functional


def dense_features(case):
    """The (N, F) float32 matrix."""
    return torch.from_numpy(case.array("x"))


def sparse_features(case):
    """The same as a torch.sparse CSR tensor."""
    shape = (case.meta.num_nodes, case.meta.num_features)
    parts = (torch.from_numpy(case.array(name)) for name in ("x_indptr", "x_indices", "x_values"))
    return torch.sparse_csr_tensor(*parts, size=shape)


def initial_weights(case):
    """(weight, bias) parameters of every layer, weights as (in, out)."""
    return [
        (torch.nn.Parameter(torch.from_numpy(weight)), torch.nn.Parameter(torch.from_numpy(bias)))
        for weight, bias in case.weights()
    ]


def transposed(matrix):
    """The transpose of a CSR tensor, as a CSR tensor."""
    return matrix.to_sparse_coo().t().coalesce().to_sparse_csr()


class SparseProduct(torch.autograd.Function):
    """A constant sparse matrix times a dense one; backward multiplies by the transpose made beforehand."""

    @staticmethod
    def forward(ctx, matrix, matrix_t, dense):
        """Matrix @ dense."""
        ctx.matrix_t = matrix_t
        return matrix @ dense

    @staticmethod
    def backward(ctx, grad):
        """matrix_t @ grad."""
        return None, None, ctx.matrix_t @ grad


def first_product(x, x_t, weight):
    """Sparse features times a weight: torch's own product, or with the transpose made beforehand where it is given."""
    return torch.sparse.mm(x, weight) if x_t is None else SparseProduct.apply(x, x_t, weight)


def make_epoch(case, parameters, forward):
    """A callable that runs forward, loss, backward and update once and returns the loss."""
    labels = torch.from_numpy(case.array("y"))
    rows = torch.from_numpy(case.array("train_idx"))
    targets = labels[rows]
    several = labels.dim() > 1
    loss_of = functional.binary_cross_entropy_with_logits if several else functional.cross_entropy
    fused = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)
    optimizer = torch.optim.Adam(parameters, lr=case.meta.lr, **({"fused": True} if fused else {}))

    def epoch():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(forward()[rows], targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return epoch
