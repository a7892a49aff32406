"""NGCF written by hand on torch.sparse, its adjacency normalised and transposed once, one order in all layers."""

from __future__ import annotations

import ngcf_weights
import torch
from peer_model import SparseProduct, dense_features, make_epoch, transposed


def adjacency(case):
    """D^-1/2 A D^-1/2 without self-loops as a CSR tensor, rows = destinations; degrees count in-edges."""
    n = case.meta.num_nodes
    source, destination = torch.from_numpy(case.array("edge_index"))
    kept = source != destination
    source, destination = source[kept], destination[kept]
    degree = torch.bincount(destination, minlength=n).to(torch.float32)
    scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
    values = scale[destination] * scale[source]
    return torch.sparse_coo_tensor(torch.stack([destination, source]), values, (n, n)).coalesce().to_sparse_csr()


def build(case, variant):
    """``variant``: ``pull`` or ``apply`` first."""
    a = adjacency(case)
    a_t, x = transposed(a), dense_features(case)
    layers = [tuple(torch.nn.Parameter(torch.from_numpy(t)) for t in layer) for layer in ngcf_weights.layers(case)]

    def forward():
        h = x
        for place, (weight, affinity, bias) in enumerate(layers):
            near = SparseProduct.apply(a, a_t, h)
            if variant == "apply":
                sent = h @ weight
                plain = SparseProduct.apply(a, a_t, sent) + sent
            else:
                plain = (near + h) @ weight
            h = plain + (near * h) @ affinity + bias
            if place + 1 < len(layers):
                h = torch.nn.functional.leaky_relu(h, 0.2)
        return h

    return make_epoch(case, [p for layer in layers for p in layer], forward), f"torch {torch.__version__}"
