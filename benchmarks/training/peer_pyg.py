"""PyTorch Geometric's GCNConv: on an edge list as its examples do, or on a CSR tensor that was normalised once."""

from __future__ import annotations

import torch
import torch_geometric
from peer_model import dense_features, initial_weights, make_epoch, sparse_features
from peer_torch import normalized_adjacency
from torch_geometric.nn import GCNConv


def build(case, variant):
    """``edges``: edge list, cached normalisation, dense features where they fit; ``csr``, ``csr-sparse``: CSR."""
    listed = variant == "edges"
    sparse = variant.endswith("sparse") or not case.meta.has_dense
    adjacency = torch.from_numpy(case.array("edge_index")) if listed else normalized_adjacency(case)
    x = sparse_features(case) if sparse else dense_features(case)
    convs = torch.nn.ModuleList()
    for weight, bias in initial_weights(case):
        conv = GCNConv(*weight.shape, cached=listed, normalize=listed)
        conv.lin.weight = torch.nn.Parameter(weight.detach().t().contiguous())
        conv.bias = bias
        convs.append(conv)

    def forward():
        h = x
        for place, conv in enumerate(convs):
            h = conv(h, adjacency)
            if place + 1 < len(convs):
                h = h.relu()
        return h

    note = f"torch_geometric {torch_geometric.__version__}, {'sparse' if sparse else 'dense'} features"
    return make_epoch(case, list(convs.parameters()), forward), note
