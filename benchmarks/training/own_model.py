"""Any full-batch model of GraphWeft as the trainer runs it, from weights of its own: for memory, not for losses."""

from __future__ import annotations

from own import dataset

from graphweft.measure.bench import own_epoch
from graphweft.nn import CGAT, GAT, GCN, GIN, NGCF, SAGE

MODELS = {
    "gcn": (GCN, {}),
    "sage": (SAGE, {}),
    "gin": (GIN, {}),
    "gat": (GAT, {"heads": 8}),
    "gatv2": (GAT, {"heads": 8, "v2": True}),
    "cgat": (CGAT, {"heads": 4}),
    "ngcf": (NGCF, {}),
}


def build(case, variant):
    """``variant``: a name in :data:`MODELS`."""
    kind, options = MODELS[variant]
    sizes = (case.meta.num_features, case.meta.hidden, case.meta.num_classes, case.meta.layers)
    epoch, path = own_epoch(dataset(case), kind(*sizes, **options), case.meta.lr, keep_features=False)
    return epoch, f"{path} features"
