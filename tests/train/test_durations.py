"""Times as people read them."""

from __future__ import annotations

from graphweft.train.durations import clock, duration


def test_times_read_well() -> None:
    assert [clock(s) for s in (0, 59.6, 3599, 7325)] == ["0:00", "1:00", "59:59", "2:02:05"]
    assert [duration(s) for s in (0.0001, 0.01, 0.999, 61.0)] == ["0.1 ms", "10 ms", "999 ms", "61.0 s"]
