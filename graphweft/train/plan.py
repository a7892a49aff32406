"""Which way to train: a choice among ways that were priced, as a value that tells why.

Comes in: ways with their predicted seconds and memory, a budget, what is known of the graph. Goes out: a :class:`Plan`.
Pure: nothing is measured, compiled or read here. Called by the trainer for mode "auto" and by ``gw.plan``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from graphweft import _html
from graphweft.storage.memory_size import shown_bytes
from graphweft.train.durations import duration
from graphweft.train.needs import Needs, refusal

_HEADS = ("", "mode", "batches", "epoch", "memory", "disk", "why")  # of the ways
_LEVEL = 1.10  # ways whose seconds are closer than this are level, and the simpler one is taken


@dataclass(frozen=True)
class GraphStatistics:
    """What is known of a graph before it is trained on.

    Attributes:
        name: Of the dataset.
        num_nodes: Nodes.
        num_edges: Edges.
        in_degrees: Smallest, lower quartile, median, upper quartile, 99th percentile and largest in-degree; of a store
            on disk the mean alone.
        num_features: Columns of the features.
        density: Share of the features that is not zero.
        num_classes: Columns of the outputs.
        labelled: Nodes of the training, validation and test split.
    """

    name: str
    num_nodes: int
    num_edges: int
    in_degrees: tuple[int, ...]
    num_features: int
    density: float
    num_classes: int
    labelled: tuple[int, int, int]


@dataclass(frozen=True)
class Way:
    """A way to train, priced.

    Attributes:
        mode: "full", "mini" or "macro".
        batches: How an epoch is cut, in words.
        seconds: Of an epoch by what takes them; empty where nothing is known.
        needs: Memory by account; None where nothing is known.
        disk: Bytes read from disk in an epoch.
        ranks: Processes that train together.
        refused: Why it cannot be taken; empty where it can.
    """

    mode: str
    batches: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    needs: Needs | None = None
    disk: int = 0
    ranks: int = 1
    refused: str = ""

    @property
    def epoch_seconds(self) -> float | None:
        """Predicted seconds of an epoch, an evaluation not counted."""
        return sum(self.seconds.values()) if self.seconds else None

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak of the memory, above that of a bare import."""
        return None if self.needs is None else self.needs.total

    @property
    def slowest(self) -> str:
        """What takes the most seconds."""
        return max(self.seconds, key=self.seconds.__getitem__) if self.seconds else ""

    @property
    def largest(self) -> str:
        """The account that takes the most memory."""
        if self.needs is None:
            return ""
        accounts = {f.name: getattr(self.needs, f.name) for f in fields(self.needs) if f.name != "trims"}
        return max(accounts, key=accounts.__getitem__)


@dataclass(frozen=True)
class Considered:
    """A way that was not taken, and why not."""

    way: Way
    reason: str


@dataclass(frozen=True)
class Plan:
    """How a run trains, what an epoch takes, and which other ways there were.

    Attributes:
        way: The way that is taken.
        others: The ways that are not.
        statistics: What is known of the graph.
        limit: Bytes that the run may take; None: any number.
        machine: The profile that seconds come from, in words.
        explain: The command that tells which kernels run.
        schedule: Where batches of mode "mini" are prepared and trained, and why.
        order: Whether all nodes at once are taken in another order, and from how many epochs on that pays.
    """

    way: Way
    others: tuple[Considered, ...]
    statistics: GraphStatistics
    limit: int | None
    machine: str
    explain: str = "gw.explain(trainer)"
    schedule: str = ""
    order: str = ""

    @property
    def mode(self) -> str:
        """The mode of the way that is taken."""
        return self.way.mode

    @property
    def epoch_seconds(self) -> float | None:
        """Predicted seconds of an epoch; None where the model is not compiled."""
        return self.way.epoch_seconds

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak of the memory, above that of a bare import."""
        return self.way.peak_bytes

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        others = [{**_way_facts(other.way), "reason": other.reason} for other in self.others]
        return {
            **_way_facts(self.way),
            "memory_limit_bytes": self.limit,
            "others": others,
            "statistics": asdict(self.statistics),
            "machine": self.machine,
            **({"schedule": self.schedule.splitlines()} if self.schedule else {}),
            **({"order": self.order} if self.order else {}),
        }

    def __repr__(self) -> str:
        cells = _cells("", self.way, "")
        told = zip(("batches", "epoch", "memory", "disk"), cells[2:6], strict=True)
        facts = ", ".join(f"{name} {cell}" for name, cell in told if cell != "-")
        return f"Plan({cells[1]} on {self.statistics.name}, {facts}; {len(self.others)} other ways; print() tells why)"

    def _repr_html_(self) -> str:
        """A row for every way, for notebooks."""
        rows = [_cells("taken", self.way, _dominating(self.way))]
        rows += [_cells("", other.way, other.reason) for other in self.others]
        return _html.columns(f"Plan for {self.statistics.name}", _HEADS, rows)

    def __str__(self) -> str:
        graph, way = self.statistics, self.way
        degrees = "/".join(f"{count:,}" for count in graph.in_degrees)
        train, val, test = graph.labelled
        shares = "mean" if len(graph.in_degrees) == 1 else "0, 25, 50, 75, 99, 100 %"
        lines = [
            f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_features:,} features "
            f"({graph.density:.0%} stored), {graph.num_classes} classes",
            f"in-degrees ({shares}): {degrees}; labels: {train:,} train, {val:,} val, {test:,} test",
            f"machine: {self.machine}" + ("" if self.limit is None else f"; memory: {shown_bytes(self.limit)}"),
            "",
        ]
        cells = [_HEADS, _cells("->", way, _dominating(way))]
        cells += [_cells("", other.way, other.reason) for other in self.others]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]) - 1)]
        for row in cells:
            told = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*told, row[-1]]).rstrip())
        chosen = [*self.schedule.splitlines(), *([self.order] if self.order else [])]
        lines += ["", *_accounts(way), *chosen, f"kernels and programs: {self.explain}"]
        return "\n".join(lines)


def choose(
    ways: Sequence[Way],
    statistics: GraphStatistics,
    limit: int | None = None,
    machine: str = "",
    explain: str = Plan.explain,
) -> Plan:
    """The fastest way that keeps to ``limit``, or the first that is level with it: simpler ways come first.

    A way without predicted seconds is taken where no other is possible, or where it comes first and fits.

    Raises: MemoryBudgetError naming the least that would do; ValueError where no way is possible.

    Example:
        >>> ways = [Way("full", "1", {"gather": 2.0}, Needs(step=100)), Way("mini", "9", {"draw": 1.0}, Needs(step=50))]
        >>> of = GraphStatistics("g", 9, 9, (1,) * 6, 2, 1.0, 2, (5, 2, 2))
        >>> choose(ways, of).mode, choose(ways[:1], of).mode
        ('mini', 'full')
    """
    possible = [way for way in ways if not way.refused]
    if not possible:
        raise ValueError(f"plan: expected a way that is possible, got {', '.join(way.refused for way in ways)}")
    fitting = [way for way in possible if _fits(way, limit)]
    if not fitting:
        least = min((way for way in possible if way.needs is not None), key=lambda way: way.peak_bytes or 0)
        assert least.needs is not None and limit is not None  # it does not fit
        raise refusal(least.needs, limit)
    taken = fitting[0]
    if taken.epoch_seconds is not None:
        fastest = min(way.epoch_seconds for way in fitting if way.epoch_seconds is not None)
        taken = next(w for w in fitting if w.epoch_seconds is not None and w.epoch_seconds <= _LEVEL * fastest)
    others = tuple(Considered(way, _reason(way, taken, limit)) for way in ways if way is not taken)
    return Plan(taken, others, statistics, limit, machine, explain)


def _fits(way: Way, limit: int | None) -> bool:
    return limit is None or way.needs is None or way.needs.fits(limit)


def _reason(way: Way, taken: Way, limit: int | None) -> str:
    """Why ``way`` is not taken."""
    if way.refused:
        return way.refused
    if not _fits(way, limit):
        assert way.needs is not None and limit is not None  # it does not fit
        return f"needs {shown_bytes(way.needs.least)} of {shown_bytes(limit)}, most of it {way.largest}"
    if way.epoch_seconds is None or taken.epoch_seconds is None:
        return "its seconds are not known"
    ratio = way.epoch_seconds / taken.epoch_seconds
    if ratio < _LEVEL:
        return f"{ratio:.2f} x the seconds, no gain over the simpler way"
    return f"{ratio:.1f} x the seconds, most of them {way.slowest}"


def _dominating(way: Way) -> str:
    terms = (f"seconds: {way.slowest}" if way.seconds else "", f"memory: {way.largest}" if way.needs else "")
    return "taken; most " + ", ".join(term for term in terms if term) if any(terms) else "taken"


def _cells(mark: str, way: Way, why: str) -> tuple[str, ...]:
    seconds, peak = way.epoch_seconds, way.peak_bytes
    return (
        mark,
        way.mode if way.ranks == 1 else f"{way.mode}, {way.ranks} ranks",
        way.batches or "-",
        "-" if seconds is None else duration(seconds),
        "-" if peak is None else shown_bytes(peak),
        shown_bytes(way.disk) if way.disk else "-",
        why,
    )


def _accounts(way: Way) -> list[str]:
    """Seconds and memory by account."""
    shares = sorted(way.seconds.items(), key=lambda item: -item[1])
    total = way.epoch_seconds or 1.0
    lines = [f"seconds: {', '.join(f'{name} {100 * s / total:.0f} %' for name, s in shares)}"] if shares else []
    return [*lines, *([f"memory: {way.needs.text()}"] if way.needs else [])]


def _way_facts(way: Way) -> dict[str, Any]:
    needs = {} if way.needs is None else {f.name: getattr(way.needs, f.name) for f in fields(way.needs)}
    return {
        "mode": way.mode,
        "batches": way.batches,
        "ranks": way.ranks,
        "predicted_epoch_seconds": way.epoch_seconds,
        "predicted_peak_bytes": {"memory": way.peak_bytes, "disk": way.disk},
        "dominating": {"seconds": way.slowest or None, "memory": way.largest or None},
        "seconds": dict(way.seconds),
        "memory": needs,
    }


__all__ = ["Considered", "GraphStatistics", "Plan", "Way", "choose"]
