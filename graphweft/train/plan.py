"""How to train: a choice among strategies that were priced, as a value that tells why.

Comes in: strategies with their predicted seconds and memory, a budget, what is known of the graph. Goes out: a
:class:`Plan`. Pure: nothing is measured, compiled or read here. Called by the trainer for mode "auto" and by
``gw.plan``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from graphweft import _html
from graphweft.storage.memory_size import shown_bytes
from graphweft.train.durations import duration
from graphweft.train.needs import Needs, refusal

_HEADS = ("", "mode", "batches", "epoch", "memory", "disk", "why")  # of the strategies
_LEVEL = 1.10  # strategies whose seconds are closer than this are level, and the simpler one is taken


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
class Strategy:
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
        """Predicted peak memory in bytes, above that of a bare import."""
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
        accounts = self.needs.accounts
        return max(accounts, key=accounts.__getitem__)


@dataclass(frozen=True)
class Considered:
    """A strategy that was not taken, and why not."""

    strategy: Strategy
    reason: str


@dataclass(frozen=True)
class Plan:
    """The result of :func:`gw.plan`: the strategy of a run, its predicted time and memory, and the alternatives.

    Attributes:
        strategy: The chosen strategy.
        others: The alternatives, with reasons.
        statistics: Statistics of the graph.
        limit: Memory budget in bytes; None: no limit.
        machine: Description of the profile behind the predicted seconds.
        explain: The command that shows the kernels.
        schedule: For mode "mini", where batches are prepared and trained, and why.
        order: For mode "full", whether nodes are computed in another order, and from how many epochs on that saves
            time.
    """

    strategy: Strategy
    others: tuple[Considered, ...]
    statistics: GraphStatistics
    limit: int | None
    machine: str
    explain: str = "gw.explain(trainer)"
    schedule: str = ""
    order: str = ""

    @property
    def mode(self) -> str:
        """The mode of the chosen strategy."""
        return self.strategy.mode

    @property
    def epoch_seconds(self) -> float | None:
        """Predicted seconds of an epoch; None if the model is not compiled."""
        return self.strategy.epoch_seconds

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak memory in bytes, above that of a bare import."""
        return self.strategy.peak_bytes

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        others = [{**_strategy_facts(other.strategy), "reason": other.reason} for other in self.others]
        return {
            **_strategy_facts(self.strategy),
            "memory_limit_bytes": self.limit,
            "others": others,
            "statistics": asdict(self.statistics),
            "machine": self.machine,
            **({"schedule": self.schedule.splitlines()} if self.schedule else {}),
            **({"order": self.order} if self.order else {}),
        }

    def __repr__(self) -> str:
        cells = _cells("", self.strategy, "")
        told = zip(("batches", "epoch", "memory", "disk"), cells[2:6], strict=True)
        facts = ", ".join(f"{name} {cell}" for name, cell in told if cell != "-")
        return f"Plan({cells[1]} on {self.statistics.name}, {facts}; {len(self.others)} others; print() tells why)"

    def _repr_html_(self) -> str:
        """A row for every strategy, for notebooks."""
        rows = [_cells("taken", self.strategy, _dominating(self.strategy))]
        rows += [_cells("", other.strategy, other.reason) for other in self.others]
        return _html.columns(f"Plan for {self.statistics.name}", _HEADS, rows)

    def __str__(self) -> str:
        graph, strategy = self.statistics, self.strategy
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
        cells = [_HEADS, _cells("->", strategy, _dominating(strategy))]
        cells += [_cells("", other.strategy, other.reason) for other in self.others]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]) - 1)]
        for row in cells:
            told = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*told, row[-1]]).rstrip())
        chosen = [*self.schedule.splitlines(), *([self.order] if self.order else [])]
        lines += ["", *_accounts(strategy), *chosen, f"kernels and programs: {self.explain}"]
        return "\n".join(lines)


def choose(
    strategies: Sequence[Strategy],
    statistics: GraphStatistics,
    limit: int | None = None,
    machine: str = "",
    explain: str = Plan.explain,
) -> Plan:
    """The fastest strategy that keeps to ``limit``, or the first that is level with it: simpler ones come first.

    A strategy without predicted seconds is taken where no other is possible, or where it comes first and fits.

    Raises: MemoryBudgetError naming the least that would do; ValueError where none is possible.

    Example:
        >>> full = Strategy("full", "1", {"gather": 2.0}, Needs(step=100))
        >>> priced = [full, Strategy("mini", "9", {"draw": 1.0}, Needs(step=50))]
        >>> of = GraphStatistics("g", 9, 9, (1,) * 6, 2, 1.0, 2, (5, 2, 2))
        >>> choose(priced, of).mode, choose(priced[:1], of).mode
        ('mini', 'full')
    """
    possible = [strategy for strategy in strategies if not strategy.refused]
    if not possible:
        raise ValueError(
            f"plan: expected a strategy that is possible, got {', '.join(strategy.refused for strategy in strategies)}"
        )
    fitting = [strategy for strategy in possible if _fits(strategy, limit)]
    if not fitting:
        least = min(
            (strategy for strategy in possible if strategy.needs is not None),
            key=lambda strategy: strategy.needs.least if strategy.needs else 0,
        )
        assert least.needs is not None and limit is not None  # it does not fit
        raise refusal(least.needs, limit)
    taken = fitting[0]
    if taken.epoch_seconds is not None:
        fastest = min(strategy.epoch_seconds for strategy in fitting if strategy.epoch_seconds is not None)
        taken = next(w for w in fitting if w.epoch_seconds is not None and w.epoch_seconds <= _LEVEL * fastest)
    others = tuple(
        Considered(strategy, _reason(strategy, taken, limit)) for strategy in strategies if strategy is not taken
    )
    return Plan(taken, others, statistics, limit, machine, explain)


def _fits(strategy: Strategy, limit: int | None) -> bool:
    return limit is None or strategy.needs is None or strategy.needs.fits(limit)


def _reason(strategy: Strategy, taken: Strategy, limit: int | None) -> str:
    """Why ``strategy`` is not taken."""
    if strategy.refused:
        return strategy.refused
    if not _fits(strategy, limit):
        assert strategy.needs is not None and limit is not None  # it does not fit
        return f"needs {shown_bytes(strategy.needs.least)} of {shown_bytes(limit)}, most of it {strategy.largest}"
    if strategy.epoch_seconds is None or taken.epoch_seconds is None:
        return "its seconds are not known"
    ratio = strategy.epoch_seconds / taken.epoch_seconds
    if ratio < _LEVEL:
        return f"{ratio:.2f} x the seconds, no gain over the simpler strategy"
    return f"{ratio:.1f} x the seconds, most of them {strategy.slowest}"


def _dominating(strategy: Strategy) -> str:
    terms = (
        f"seconds: {strategy.slowest}" if strategy.seconds else "",
        f"memory: {strategy.largest}" if strategy.needs else "",
    )
    return "taken; most " + ", ".join(term for term in terms if term) if any(terms) else "taken"


def _cells(mark: str, strategy: Strategy, why: str) -> tuple[str, ...]:
    seconds, peak = strategy.epoch_seconds, strategy.peak_bytes
    return (
        mark,
        strategy.mode if strategy.ranks == 1 else f"{strategy.mode}, {strategy.ranks} ranks",
        strategy.batches or "-",
        "-" if seconds is None else duration(seconds),
        "-" if peak is None else shown_bytes(peak),
        shown_bytes(strategy.disk) if strategy.disk else "-",
        why,
    )


def _accounts(strategy: Strategy) -> list[str]:
    """Seconds and memory by account."""
    shares = sorted(strategy.seconds.items(), key=lambda item: -item[1])
    total = strategy.epoch_seconds or 1.0
    lines = [f"seconds: {', '.join(f'{name} {100 * s / total:.0f} %' for name, s in shares)}"] if shares else []
    return [*lines, *([f"memory: {strategy.needs.text()}"] if strategy.needs else [])]


def _strategy_facts(strategy: Strategy) -> dict[str, Any]:
    needs = {} if strategy.needs is None else {f.name: getattr(strategy.needs, f.name) for f in fields(strategy.needs)}
    return {
        "mode": strategy.mode,
        "batches": strategy.batches,
        "ranks": strategy.ranks,
        "predicted_epoch_seconds": strategy.epoch_seconds,
        "predicted_peak_bytes": {"memory": strategy.peak_bytes, "disk": strategy.disk},
        "dominating": {"seconds": strategy.slowest or None, "memory": strategy.largest or None},
        "seconds": dict(strategy.seconds),
        "memory": needs,
    }


__all__ = ["Considered", "GraphStatistics", "Plan", "Strategy", "choose"]
