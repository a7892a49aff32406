"""A recorded run second by second: bytes read, and what part of each second went to reading, training and waiting.

Comes in: spans. Goes out: a row a second, as text or as counters of a Chrome trace. Called where a trace is written. A
pure function of the spans: bytes of a read are spread evenly over its span, and the thread that trains is the one with
the epochs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from graphweft._trace import Span


@dataclass
class Second:
    """One second of a run.

    Attributes:
        second: Counts from 0, at the first span.
        bytes_read: Of a store.
        reading: Share of it in which something was read; above 1 where several threads read.
        training: Share in which the model trained, its batches included where no other thread makes them.
        waiting: Share in which the thread that trains waited for a batch, a group or rows.
        evaluating: Share that went to evaluation.
    """

    second: int
    bytes_read: float = 0.0
    reading: float = 0.0
    training: float = 0.0
    waiting: float = 0.0
    evaluating: float = 0.0


def by_second(spans: Iterable[Span]) -> list[Second]:
    """Rows from the first span to the last one.

    Example:
        >>> read = Span("read group", "read", 0.5, 2.5, "reader", {"bytes": 400})
        >>> epoch, wait = Span("epoch 1", "epoch", 0.0, 3.0, "main"), Span("wait", "wait", 0.0, 1.0, "main")
        >>> [(row.bytes_read, row.reading, row.training, row.waiting) for row in by_second([epoch, read, wait])]
        [(100.0, 0.5, 0.0, 1.0), (200.0, 1.0, 1.0, 0.0), (100.0, 0.5, 1.0, 0.0)]
    """
    known = list(spans)
    if not known:
        return []
    start, end = min(span.begin for span in known), max(span.end for span in known)
    rows = [Second(number) for number in range(max(math.ceil(end - start), 1))]
    trainers = {span.thread for span in known if span.stage == "epoch"}
    for span in known:
        for number, share in _shares(span, start):
            row = rows[min(number, len(rows) - 1)]
            if span.stage == "read":
                row.reading += share
                row.bytes_read += span.details.get("bytes", 0) * share / max(span.seconds, 1e-12)
            elif span.stage == "epoch":
                row.training += share
            elif span.thread in trainers and span.stage == "wait":
                row.waiting += share
            elif span.thread in trainers and span.stage == "evaluate":
                row.evaluating += share
    for row in rows:
        row.training = max(row.training - row.waiting - row.evaluating, 0.0)
    return rows


def seconds_table(rows: Iterable[Second]) -> str:
    """Rows as CSV.

    Example:
        >>> seconds_table([Second(0, 1e6, 0.25, 0.75)]).splitlines()
        ['second,bytes_read,reading,training,waiting,evaluating', '0,1000000,0.250,0.750,0.000,0.000']
    """
    lines = [",".join(field.name for field in fields(Second))]
    for row in rows:
        shares = (row.reading, row.training, row.waiting, row.evaluating)
        lines.append(f"{row.second},{row.bytes_read:.0f}," + ",".join(f"{share:.3f}" for share in shares))
    return "\n".join(lines) + "\n"


def counters(rows: Iterable[Second]) -> list[dict[str, Any]]:
    """Rows as events that Chrome shows as curves."""
    found: list[dict[str, Any]] = []
    for row in rows:
        at: dict[str, Any] = {"ph": "C", "pid": 1, "ts": 1e6 * row.second}
        shares = {"training": row.training, "waiting": row.waiting, "evaluating": row.evaluating}
        found.append({**at, "name": "disk, MB/s", "args": {"read": round(row.bytes_read / 1e6, 3)}})
        found.append({**at, "name": "utilisation", "args": {key: round(part, 4) for key, part in shares.items()}})
    return found


def _shares(span: Span, start: float) -> list[tuple[int, float]]:
    """The seconds that a span lies in, and how much of it each has."""
    first, last = span.begin - start, span.end - start
    found = []
    for number in range(int(first), int(last) + 1):
        inside = min(last, number + 1.0) - max(first, float(number))
        if inside > 0:
            found.append((number, inside))
    return found
