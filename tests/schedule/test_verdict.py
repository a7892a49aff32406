"""The verdict on spans that are made up, and self times against sums written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft._trace import Span
from graphweft.schedule.verdict import self_times, verdict


def _run(*parts: tuple[str, float], kind: str = "gather near") -> list[Span]:
    """One epoch of consecutive spans of (stage, seconds)."""
    spans, at = [], 0.0
    for stage, seconds in parts:
        spans.append(Span(stage, stage, at, at + seconds, "main", {"kind": kind} if stage == "kernel" else {}))
        at += seconds
    return [*spans, Span("epoch 1", "epoch", 0.0, at, "main")]


@pytest.mark.parametrize(
    ("parts", "bound", "cause"),
    [
        ([("sample", 3), ("renumber", 3), ("forward", 5)], "preparing batches", "sampling"),
        ([("lookup", 6), ("sample", 3), ("forward", 5)], "preparing batches", "feature lookup"),
        ([("transfer", 6), ("forward", 5)], "preparing batches", "transfer between tiers"),
        ([("sample", 2), ("forward", 5), ("backward", 5)], "the model", "the model's other work"),
        ([("sample", 2), ("kernel", 9)], "the model", "aggregation"),
        ([("update", 9), ("forward", 5)], "the update", "the update"),
        ([("evaluate", 9), ("forward", 5)], "evaluation", "evaluation"),
    ],
)
def test_the_longest_stage_is_named(parts: list[tuple[str, float]], bound: str, cause: str) -> None:
    found = verdict(_run(*parts))
    assert found is not None
    assert (found.bound, found.cause) == (bound, cause)
    assert found.share == pytest.approx(
        sum(s for name, s in parts if name in _STAGES[bound]) / sum(s for _, s in parts)
    )
    assert found.text.startswith(f"bound by {bound}, ") and ": " in found.text and "\n" not in found.text


_STAGES = {
    "preparing batches": ("sample", "renumber", "lookup", "transfer"),
    "the model": ("forward", "backward", "kernel"),
    "the update": ("update",),
    "evaluation": ("evaluate",),
}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("gather memory", "aggregation"), ("product", "products"), ("contraction", "products"), ("rows", "element-wise")],
)
def test_kernels_tell_memory_from_arithmetic(kind: str, cause: str) -> None:
    found = verdict(_run(("kernel", 3), ("update", 1), kind=kind))
    assert found is not None and found.cause.startswith(cause)
    assert ("memory" in found.text) == (cause != "products")


def test_kernels_of_an_evaluation_are_evaluation() -> None:
    spans = [*_run(("forward", 1), ("evaluate", 3)), Span("spmm", "kernel", 1.5, 3.5, "main", {"kind": "gather far"})]
    found = verdict(spans)
    assert found is not None and found.bound == "evaluation" and found.share == pytest.approx(0.75)


@pytest.mark.parametrize(("stage", "cause"), [("sample", "sampling"), ("lookup", "feature lookup")])
def test_waiting_is_put_down_to_what_the_others_do(stage: str, cause: str) -> None:
    other = [Span("prepare", "prepare", 0.0, 8.0, "loader"), Span(stage, stage, 0.0, 7.0, "loader")]
    found = verdict([*_run(("wait", 6), ("forward", 4)), *other])
    assert found is not None
    assert (found.bound, found.cause, found.waiting) == ("preparing batches", cause, pytest.approx(0.6))
    assert "workers=" in found.text


def test_what_the_others_wait_for_is_no_cause() -> None:
    other = [Span("wait", "wait", 0.0, 8.0, "loader"), Span("draw", "sample", 8.0, 9.0, "loader")]
    found = verdict([*_run(("wait", 6), ("forward", 4)), *other])
    assert found is not None and found.cause == "sampling"


def test_a_short_wait_is_no_reason_for_more_workers() -> None:
    found = verdict(_run(("wait", 1), ("forward", 9)))
    assert found is not None and found.bound == "the model" and found.waiting == pytest.approx(0.1)


def test_workers_are_advised_where_waiting_is_most_of_preparing() -> None:
    mostly, hardly = (
        verdict(_run(("wait", 4), ("sample", 3), ("forward", 3))),
        verdict(_run(("wait", 3), ("sample", 4), ("forward", 3))),
    )
    assert mostly is not None and hardly is not None
    assert mostly.bound == hardly.bound == "preparing batches"
    assert "workers=" in mostly.text and "workers=" not in hardly.text


def test_what_lies_outside_of_epochs_does_not_count() -> None:
    inside = _run(("sample", 1), ("forward", 3))
    found = verdict([*inside, Span("first look", "sample", 100.0, 150.0, "main")])
    assert found == verdict(inside) and found is not None and found.bound == "the model"


def test_what_no_span_covers_is_overhead() -> None:
    found = verdict([Span("epoch 1", "epoch", 0.0, 10.0, "main"), Span("forward", "forward", 1.0, 4.0, "main")])
    assert found is not None and found.bound == "overhead" and found.share == pytest.approx(0.7)


def test_without_an_epoch_there_is_none() -> None:
    assert verdict([]) is None
    assert verdict([Span("draw", "sample", 0.0, 1.0, "main")]) is None


@st.composite
def _nested(draw: st.DrawFn, begin: float = 0.0, depth: int = 0) -> tuple[list[Span], float]:
    """Spans that nest, by construction, and the end of the outermost."""
    at, spans = begin + draw(st.integers(1, 5)), []
    for _ in range(draw(st.integers(0, 3)) if depth < 3 else 0):
        inner, at = draw(_nested(at, depth + 1))
        spans += inner
        at += draw(st.integers(0, 5))
    end = at + draw(st.integers(1, 5))
    return [*spans, Span(f"at {begin}", "sample", begin, end, "main")], end


@given(_nested())
def test_self_times_add_up_to_the_outermost_span(case: tuple[list[Span], float]) -> None:
    spans, end = case
    found = list(self_times(spans))
    assert sum(seconds for _, seconds, _ in found) == pytest.approx(end)
    assert all(seconds > 0 for _, seconds, _ in found) and len(found) == len(spans)
    for item, seconds, around in found:
        inside = [other for other in spans if other is not item and item.begin <= other.begin and other.end <= item.end]
        direct = [o for o in inside if not any(o is not p and p.begin <= o.begin and o.end <= p.end for p in inside)]
        assert seconds == pytest.approx(item.seconds - sum(o.seconds for o in direct))
        assert all(outer.begin <= item.begin and item.end <= outer.end for outer in around)
