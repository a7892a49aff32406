"""A GCN written by hand on torch.sparse: the normalised adjacency as a CSR tensor, its transpose made once.

Sparse features go through ``torch.sparse.mm``, whose backward pass transposes them in every epoch; the variant
``csr-tuned`` makes that transpose beforehand too, which no layer of torch, PyTorch Geometric or DGL does by itself.
"""

from __future__ import annotations

import torch
from peer_model import (
    SparseProduct,
    dense_features,
    first_product,
    initial_weights,
    make_epoch,
    sparse_features,
    transposed,
)


def normalized_adjacency(case):
    """D^-1/2 (A + I) D^-1/2 as a CSR tensor, rows = destinations; one loop at every node, degrees count in-edges."""
    n = case.meta.num_nodes
    source, destination = torch.from_numpy(case.array("edge_index"))
    loops = source == destination
    if bool(loops.any()):
        source, destination = source[~loops], destination[~loops]
    nodes = torch.arange(n)
    index = torch.stack([torch.cat([destination, nodes]), torch.cat([source, nodes])])
    degree = torch.bincount(index[0], minlength=n).to(torch.float32)
    scale = degree.rsqrt()
    values = scale[index[0]] * scale[index[1]]
    return torch.sparse_coo_tensor(index, values, (n, n)).coalesce().to_sparse_csr()


def build(case, variant):
    """``csr``: dense input features; ``csr-sparse``, ``csr-tuned``: sparse ones."""
    adjacency = normalized_adjacency(case)
    adjacency_t = transposed(adjacency)
    sparse = variant != "csr"
    x = sparse_features(case) if sparse else dense_features(case)
    x_t = transposed(x) if variant == "csr-tuned" else None
    layers = initial_weights(case)

    def forward():
        h = x
        for place, (weight, bias) in enumerate(layers):
            h = first_product(x, x_t, weight) if sparse and place == 0 else h @ weight
            h = SparseProduct.apply(adjacency, adjacency_t, h) + bias
            if place + 1 < len(layers):
                h = h.relu()
        return h

    return make_epoch(case, [p for layer in layers for p in layer], forward), f"torch {torch.__version__}"
