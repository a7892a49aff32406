"""A recorded run as a Chrome trace, the JSON that chrome://tracing and Perfetto show.

Comes in: a recorder. Goes out: text. Called by the trainer. One process; every thread that left spans is a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from graphweft._trace import Recorder


def chrome_trace(
    recorder: Recorder, about: dict[str, Any] | None = None, further: Iterable[dict[str, Any]] = ()
) -> str:
    """The trace as JSON: complete events in microseconds from the first span on; ``about`` is kept beside them.

    ``further``: events of other kinds, at times from the first span on.

    Example:
        >>> recorder = Recorder()
        >>> recorder.add("draw", "sample", 2.0, 2.5, {"hop": 1})
        >>> event = json.loads(chrome_trace(recorder))["traceEvents"][-1]
        >>> event["name"], event["ph"], event["ts"], event["dur"], event["args"]
        ('draw', 'X', 0.0, 500000.0, {'hop': 1})
    """
    spans = sorted(recorder.spans, key=lambda item: (item.begin, -item.end))
    start = spans[0].begin if spans else 0.0
    rows = {name: row for row, name in enumerate(dict.fromkeys(item.thread for item in spans), start=1)}
    named: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": {"name": name}} for name, row in rows.items()
    ]
    events = [
        {
            "name": item.name,
            "cat": item.stage,
            "ph": "X",
            "ts": round(1e6 * (item.begin - start), 3),
            "dur": round(1e6 * item.seconds, 3),
            "pid": 1,
            "tid": rows[item.thread],
            "args": item.details,
        }
        for item in spans
    ]
    document = {
        "traceEvents": [*named, *events, *further],
        "displayTimeUnit": "ms",
        "otherData": {**(about or {}), "dropped_spans": recorder.dropped},
    }
    return json.dumps(document, allow_nan=False)
