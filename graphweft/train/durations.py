"""Times as people read them.

Comes in: seconds. Goes out: a short text. Called by the progress display and the command line; imports nothing.
"""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A short time in the unit that fits.

    Example:
        >>> duration(0.00234), duration(0.0891), duration(12.345)
        ('2.3 ms', '89 ms', '12.3 s')
    """
    if seconds < 1.0:
        milliseconds = 1000 * seconds
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    return f"{seconds:.1f} s"


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any.

    Example:
        >>> clock(4.6), clock(75), clock(3700)
        ('0:05', '1:15', '1:01:40')
    """
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
