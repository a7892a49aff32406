"""The child process of one system: obeys orders from the harness, one JSON line each on standard input and output.

``python worker.py SYSTEM FOLDER`` with SYSTEM a name in :data:`SYSTEMS` and FOLDER a saved case. Runs under the Python
of that system, so it imports nothing but the standard library before it knows which one.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from orders import epochs_of, serve

# System -> module that builds it and the variant it is asked for. ``build(case, variant)`` returns (epoch, note).
SYSTEMS = {
    "graphweft": ("own", ""),
    "pyg-default": ("peer_pyg", "edges"),
    "pyg-csr": ("peer_pyg", "csr"),
    "pyg-csr-sparse": ("peer_pyg", "csr-sparse"),
    "csr": ("peer_torch", "csr"),
    "csr-sparse": ("peer_torch", "csr-sparse"),
    "csr-tuned": ("peer_torch", "csr-tuned"),
    "by-hand": ("peer_by_hand", "dense"),
    "by-hand-sparse": ("peer_by_hand", "sparse"),
    "dgl": ("peer_dgl", "dense"),
    "dgl-sparse": ("peer_dgl", "sparse"),
    "dgl-tuned": ("peer_dgl", "tuned"),
    "gat-graphweft": ("own_gat", "8-elu"),
    "gat-pyg": ("peer_gat", "8-elu"),
    "gat-dgl": ("peer_gat_dgl", "8-elu"),
    "rgcn-graphweft": ("own_typed", "rgcn"),
    "rgcn-pyg": ("peer_typed", "rgcn"),
    "rgcn-dgl": ("peer_typed_dgl", "rgcn"),
    "hgt-graphweft": ("own_typed", "hgt"),
    "hgt-pyg": ("peer_typed", "hgt"),
    "hgt-dgl": ("peer_typed_dgl", "hgt"),
    "gat-module": ("own_user", "gat-module"),
    "update-all": ("own_call", ""),
    "update-all-grad": ("own_call", "grad"),
    "ngcf-graphweft": ("own_ngcf", ""),
    "ngcf-own-pull": ("own_ngcf", "pull"),
    "ngcf-own-apply": ("own_ngcf", "apply"),
    "ngcf-csr-pull": ("peer_ngcf", "pull"),
    "ngcf-csr-apply": ("peer_ngcf", "apply"),
}
SYSTEMS |= {f"{_kind}-model": ("own_model", _kind) for _kind in ("gcn", "sage", "gin", "gat", "gatv2", "cgat", "ngcf")}
for _kind in ("gcn", "gat", "cgat", "distance"):  # functions over edges and mailboxes, as users write them
    SYSTEMS |= {
        f"{_kind}-user": ("own_user", _kind),
        f"{_kind}-user-whole": ("own_user", f"{_kind}-whole"),
        f"{_kind}-user-layer": ("own_user", f"{_kind}-layer"),
        f"{_kind}-user-reference": ("own_user", f"{_kind}-reference"),
        f"{_kind}-user-dgl": ("peer_user_dgl", _kind),
    }


def load():
    """Imports the system and reads where the case lies."""
    module, variant = SYSTEMS[sys.argv[1]]
    builder = importlib.import_module(module)
    case = importlib.import_module("case").Case.load(sys.argv[2])

    def build():
        epoch, note = builder.build(case, variant)
        return epochs_of(epoch), note

    return build


if __name__ == "__main__":
    sys.exit(serve(load))
