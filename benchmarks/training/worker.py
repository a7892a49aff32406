"""The child process of one system: obeys orders from the harness, one JSON line each on standard input and output.

``python worker.py SYSTEM FOLDER`` with SYSTEM a name in :data:`SYSTEMS` and FOLDER a saved case. Runs under the Python
of that system, so it imports nothing but the standard library before it knows which one.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# System -> module that builds it and the variant it is asked for. ``build(case, variant)`` returns (epoch, note).
SYSTEMS = {
    "graphweft": ("own", ""),
    "pyg-default": ("peer_pyg", "edges"),
    "pyg-csr": ("peer_pyg", "csr"),
    "pyg-csr-sparse": ("peer_pyg", "csr-sparse"),
    "csr": ("peer_torch", "csr"),
    "csr-sparse": ("peer_torch", "csr-sparse"),
    "csr-tuned": ("peer_torch", "csr-tuned"),
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
}
for _kind in ("gcn", "gat", "cgat", "distance"):  # functions over edges and mailboxes, as users write them
    SYSTEMS |= {
        f"{_kind}-user": ("own_user", _kind),
        f"{_kind}-user-whole": ("own_user", f"{_kind}-whole"),
        f"{_kind}-user-reference": ("own_user", f"{_kind}-reference"),
        f"{_kind}-user-dgl": ("peer_user_dgl", _kind),
    }


def _status(key: str) -> int:
    """Bytes of one entry of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> int:
    """Serves until standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print goes to standard error
    module, variant = SYSTEMS[sys.argv[1]]
    epoch, note = None, ""
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {}
            if order["order"] == "prepare":
                builder = importlib.import_module(module)
                case = importlib.import_module("case").Case.load(sys.argv[2])
                gc.collect()
                Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts here
                start, began = _status("VmRSS"), time.perf_counter()
                epoch, note = builder.build(case, variant)
                answer = {
                    "seconds": time.perf_counter() - began,
                    "start_bytes": start,
                    "input_bytes": _status("VmRSS") - start,
                }
            elif order["order"] == "run":
                losses, seconds = [], []
                gc.disable()
                for _ in range(order["epochs"]):
                    began = time.perf_counter()
                    losses.append(epoch())
                    seconds.append(time.perf_counter() - began)
                gc.enable()
                answer = {"losses": losses, "seconds": seconds}
            elif order["order"] == "finish":
                answer = {"peak_bytes": _status("VmHWM"), "note": note() if callable(note) else note}
        except Exception:
            traceback.print_exc()
            answer = {"error": traceback.format_exc().splitlines()[-1]}
        out.write(json.dumps(answer) + "\n")
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
