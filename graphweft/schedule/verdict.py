"""What bounds a run, from the spans that it left, in one line with what to change.

Comes in: spans, those of stage "epoch" around the others of the thread that trains. Goes out: a :class:`Verdict`. A
pure function, called by the trainer when it has recorded a trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from graphweft._trace import Span

_CAUSES = {
    "sample": "sampling",
    "renumber": "sampling",
    "lookup": "feature lookup",
    "transfer": "transfer between tiers",
    "structure": "the structure of batches",
    "prepare": "the structure of batches",
    "forward": "the model's other work",
    "backward": "the model's other work",
    "loss": "the loss",
    "update": "the update",
    "evaluate": "evaluation",
    "epoch": "overhead",
}
_KERNELS = {"gather": "aggregation", "sparse": "aggregation", "product": "products", "contraction": "products"}
_PASSES = "element-wise passes"
_MEMORY = ("aggregation", _PASSES)
_GROUPS = {
    "preparing batches": ("sampling", "feature lookup", "transfer between tiers", "the structure of batches"),
    "the model": (*_MEMORY, "products", "the model's other work", "the loss"),
    "the update": ("the update",),
    "evaluation": ("evaluation",),
    "overhead": ("overhead",),
}
_ADVICE = {
    "sampling": "smaller fan-outs, or macro-batches (macro='large:1/8'), draw less",
    "feature lookup": "macro-batches (macro='large:1/8') read each row once for many batches",
    "transfer between tiers": "larger macro-batches are moved less often",
    "the structure of batches": "larger batches need fewer of them",
    "aggregation": "it is bound by memory: a smaller hidden width or smaller fan-outs move fewer bytes",
    _PASSES: "they are bound by memory: a smaller hidden width moves fewer bytes",
    "products": "they are bound by arithmetic: a smaller hidden width, or more threads",
    "the model's other work": "larger batches make fewer, larger calls",
    "the loss": "larger batches make fewer, larger calls",
    "the update": "larger batches, or accumulate=4, update less often",
    "evaluation": "eval_every=10 evaluates less often",
    "overhead": "larger batches make fewer steps",
}
_WAITING = "more threads for preparation (workers=) where there are cores to spare; else "


@dataclass(frozen=True)
class Verdict:
    """What a run spent its time on.

    Attributes:
        bound: The group of stages that took most: "preparing batches", "the model", "the update", "evaluation" or
            "overhead".
        share: Its share of the time of all epochs, from 0 to 1.
        cause: What took most of that.
        waiting: Share of the time in which the model waited for batches that other threads prepared.
        shares: Of every cause; they and ``waiting`` add up to 1.
        text: One line for people.
    """

    bound: str
    share: float
    cause: str
    waiting: float
    shares: dict[str, float]
    text: str


def verdict(spans: Iterable[Span]) -> Verdict | None:
    """The verdict on all epochs; None without one.

    Example:
        >>> spans = [Span("draw", "sample", 0.0, 3.0, "main"), Span("epoch 1", "epoch", 0.0, 4.0, "main")]
        >>> print(verdict(spans).text)
        bound by preparing batches, 75 % of the time, most of it sampling: smaller fan-outs, or macro-batches ...
    """
    by_thread: dict[str, list[Span]] = defaultdict(list)
    for item in spans:
        by_thread[item.thread].append(item)
    trainers = [name for name, own in by_thread.items() if any(item.stage == "epoch" for item in own)]
    total, waited = 0.0, 0.0
    here: dict[str, float] = defaultdict(float)
    for name in trainers:
        for cause, seconds in _within_epochs(by_thread[name]):
            if cause == "waiting":
                waited += seconds
            else:
                here[cause] += seconds
            total += seconds
    if total <= 0:
        return None
    elsewhere: dict[str, float] = defaultdict(float)
    for name, own in by_thread.items():
        if name not in trainers:
            for item, seconds, around in self_times(own):
                elsewhere[_cause(item, around)] += seconds
    elsewhere.pop("waiting", None)
    shares = {cause: seconds / total for cause, seconds in here.items()}
    return _judged(shares, waited / total, max(elsewhere, key=lambda cause: elsewhere[cause], default="sampling"))


def _judged(shares: dict[str, float], waiting: float, awaited: str) -> Verdict:
    """The verdict on shares of causes; ``awaited`` is what other threads did most while the model waited."""
    groups = {name: sum(shares.get(cause, 0.0) for cause in causes) for name, causes in _GROUPS.items()}
    groups["preparing batches"] += waiting
    bound = max(groups, key=lambda name: groups[name])
    own = {cause: shares.get(cause, 0.0) for cause in _GROUPS[bound]}
    if bound == "preparing batches":
        own[awaited] = own.get(awaited, 0.0) + waiting
    cause = max(own, key=lambda name: own[name])
    text = f"bound by {bound}, {groups[bound]:.0%} of the time".replace("%", " %")
    if cause != bound:
        text += f", most of it {cause}"
    waits = bound == "preparing batches" and waiting > 0.5 * groups[bound]
    if waits:
        text += f" by other threads, for which the model waits {waiting:.0%}".replace("%", " %")
    advice = _WAITING + _ADVICE[cause] if waits else _ADVICE[cause]
    return Verdict(bound, groups[bound], cause, waiting, dict(shares), f"{text}: {advice}")


def self_times(spans: Iterable[Span]) -> Iterator[tuple[Span, float, tuple[Span, ...]]]:
    """Every span of one thread, its seconds less those of the spans inside it, and the spans around it, outer first."""
    ordered = sorted(spans, key=lambda item: (item.begin, -item.end))
    open_spans: list[tuple[Span, float, tuple[Span, ...]]] = []

    def close(before: float) -> Iterator[tuple[Span, float, tuple[Span, ...]]]:
        while open_spans and open_spans[-1][0].end <= before:
            yield open_spans.pop()

    for item in ordered:
        yield from close(item.begin)
        if open_spans:
            around, left, above = open_spans[-1]
            open_spans[-1] = (around, left - item.seconds, above)
            open_spans.append((item, item.seconds, (*above, around)))
        else:
            open_spans.append((item, item.seconds, ()))
    yield from reversed(open_spans)


def _within_epochs(spans: Iterable[Span]) -> Iterator[tuple[str, float]]:
    """Causes and seconds of what lies within epochs."""
    for item, seconds, around in self_times(spans):
        if item.stage == "epoch" or any(outer.stage == "epoch" for outer in around):
            yield _cause(item, around), seconds


def _cause(item: Span, around: tuple[Span, ...]) -> str:
    """What a span's own time was spent on."""
    if item.stage == "wait":
        return "waiting"
    if any(outer.stage == "evaluate" for outer in around):
        return "evaluation"
    if item.stage == "kernel":
        return _KERNELS.get(str(item.details.get("kind", "")).split(" ")[0], _PASSES)
    return _CAUSES.get(item.stage, "overhead")
