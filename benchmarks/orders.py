"""The worker's side of the harness: obeys orders on standard input, one JSON line each, and answers likewise.

Called by the workers of ``benchmarks/*/``. Needs nothing but the standard library: workers run in the environments of
peers.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[[int], tuple[list[float], list[float]]]  # epochs -> losses and seconds of each
Note = str | Callable[[], str]


def epochs_of(epoch: Callable[[], float]) -> Run:
    """Single epochs, timed one by one without the cycle collector."""

    def run(count: int) -> tuple[list[float], list[float]]:
        losses, seconds = [], []
        gc.disable()
        for _ in range(count):
            began = time.perf_counter()
            losses.append(epoch())
            seconds.append(time.perf_counter() - began)
        gc.enable()
        return losses, seconds

    return run


def serve(load: Callable[[], Callable[[], tuple[Run, Note]]]) -> int:
    """Serves until standard input ends.

    ``load`` imports what is needed and returns what reads the input and builds; memory is counted from between the two.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print goes to standard error
    run: Run | None = None
    note: Note = ""
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer: dict[str, Any] = {}
            if order["order"] == "prepare":
                build = load()
                gc.collect()
                Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts here
                start, began = _status("VmRSS"), time.perf_counter()
                run, note = build()
                seconds, held = time.perf_counter() - began, _status("VmRSS") - start
                answer = {"seconds": seconds, "start_bytes": start, "input_bytes": held}
            elif order["order"] == "run":
                if run is None:
                    raise RuntimeError("expected prepare before run")
                losses, taken = run(order["epochs"])
                answer = {"losses": losses, "seconds": taken}
            elif order["order"] == "finish":
                answer = {"peak_bytes": _status("VmHWM"), "note": note() if callable(note) else note}
        except (Exception, SystemExit) as failure:
            traceback.print_exc()
            answer = {"error": f"{type(failure).__name__}: {failure}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()
    return 0


def _status(key: str) -> int:
    """Bytes that /proc/self/status tells under ``key``."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0
