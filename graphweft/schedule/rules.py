"""What must hold of every schedule of an epoch.

Comes in: spans, and the sizes of the buffers. Goes out: nothing, or the first rule that is broken. Source: MorphGL,
definition 1, with the signs of its equation 4 put right.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

from graphweft._errors import GraphWeftError
from graphweft.schedule.dual_buffer import PLACE_OF, Span, places_of
from graphweft.schedule.split import Plan

_ROUTES = {"cpu": ("cpu_batch", "send", "model"), "device": ("device_batch", "model")}
_EPSILON = 1e-9


def check_schedule(spans: Sequence[Span], plan: Plan, batches: int) -> None:
    """Every batch takes the route of the plan, whole and in order, and is trained by ascending number.

    Places do one thing at a time; buffers never overflow.

    Raises: GraphWeftError naming the rule.
    """
    _places(spans)
    _routes(spans, plan.routes(batches))
    _order(spans)
    _one_at_a_time(spans)
    _buffers(spans, plan)


def _places(spans: Sequence[Span]) -> None:
    for span in spans:
        if PLACE_OF.get(span.step) != span.place or not span.begin <= span.end:
            raise GraphWeftError(f"schedule: expected {span.step} on {PLACE_OF.get(span.step)}, got {span}")


def _routes(spans: Sequence[Span], wanted: Sequence[str]) -> None:
    """Each batch has the steps of its route once, one after the other."""
    batches = len(wanted)
    by_batch: dict[int, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        by_batch[span.batch].append(span)
    if sorted(by_batch) != list(range(batches)):
        raise GraphWeftError(f"schedule: expected batches 0 to {batches - 1}, got {sorted(by_batch)}")
    for batch, own in by_batch.items():
        if {span.route for span in own} != {wanted[batch]} or tuple(s.step for s in own) != _ROUTES[wanted[batch]]:
            found = f"got {[s.step for s in own]}"
            raise GraphWeftError(f"schedule: expected batch {batch} prepared by the {wanted[batch]}, {found}")
        for one, other in itertools.pairwise(own):
            if other.begin < one.end - _EPSILON:
                raise GraphWeftError(f"schedule: expected {other.step} of batch {batch} after {one.step}")


def _order(spans: Sequence[Span]) -> None:
    """Updates are made by ascending number."""
    trained = [span.batch for span in sorted(spans, key=lambda span: span.begin) if span.step == "model"]
    for one, other in itertools.pairwise(trained):
        if other < one:
            raise GraphWeftError(f"schedule: expected batch {other} trained before batch {one}")


def _one_at_a_time(spans: Sequence[Span]) -> None:
    by_place: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        for place in places_of(span):
            by_place[place].append(span)
    for place, own in by_place.items():
        own.sort(key=lambda span: (span.begin, span.end))
        for one, other in itertools.pairwise(own):
            if other.begin < one.end - _EPSILON:
                raise GraphWeftError(f"schedule: expected one step at a time on the {place}, got {one} and {other}")


def _buffers(spans: Sequence[Span], plan: Plan) -> None:
    """A batch takes a place of the CPU's buffer until it was sent, one of the device's until it is trained."""
    moments: list[tuple[float, int, str, int]] = []
    for span in spans:
        if span.step == "cpu_batch":
            moments.append((span.begin, 1, "cpu", 1))
        elif span.step == "send":
            moments += [(span.end, 0, "cpu", -1), (span.end, 1, "device", 1)]
        elif span.step == "device_batch":
            moments.append((span.end, 1, "device", 1))
        else:
            moments.append((span.begin, 0, "device", -1))
    room = {"cpu": plan.cpu, "device": max(plan.device, 1)}
    held: Counter[str] = Counter()
    for time, _, side, change in sorted(moments):
        held[side] += change
        if held[side] > room[side]:
            found = f"got {held[side]} at {time:.6g} s"
            raise GraphWeftError(f"schedule: expected at most {room[side]} batches in the {side} buffer, {found}")


__all__ = ["check_schedule"]
