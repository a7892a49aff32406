"""``graphweft plan --ranks P --network RATE:LATENCY``: what full batches take on up to P ranks.

Comes in: a spec, a number of ranks, a network, and the plan for one process. Goes out: a row for every power of two up
to the ranks: seconds by the formula of :mod:`graphweft.partitioning.report` from real parts of the graph, with the
machine's rates scaled so that one rank takes what the plan says. Called by the command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphweft._errors import ConfigError
from graphweft.data.dataset import training_labels
from graphweft.model_of_spec import make_model
from graphweft.partitioning.partition import partition
from graphweft.partitioning.report import Rates, predict
from graphweft.run import load_dataset, run_settings
from graphweft.train.plan import Plan
from graphweft.train.ranked_full import exchange_of
from graphweft.train.spec import TrainSpec

_TEXT = re.compile(r"(\d+(?:\.\d+)?)(k|M|G|T)?(bit|B)/s:(\d+(?:\.\d+)?)(ns|us|ms|s)")
_LARGE = {None: 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SMALL = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # in a second
_METHOD = "multilevel"


@dataclass(frozen=True)
class Scaled:
    """An epoch of full batches on some ranks, as predicted.

    Attributes:
        ranks: How many.
        seconds: Of an epoch.
        compute, halo, gradients: Seconds of the rank with the most of each, and of the sums of gradients.
        bytes_sent: Of all ranks.
        ghosts: Of the rank with the most.
    """

    ranks: int
    seconds: float
    compute: float
    halo: float
    gradients: float
    bytes_sent: int
    ghosts: int

    @property
    def bound(self) -> str:
        """What takes the most seconds."""
        terms = {"computation": self.compute, "rows of ghosts": self.halo, "sums of gradients": self.gradients}
        return max(terms, key=terms.__getitem__)


def network_of(text: str) -> tuple[float, float]:
    """Bytes a second, each way, and seconds of a message. Raises: ConfigError.

    Example:
        >>> network_of("100Gbit/s:5us")
        (12500000000.0, 5e-06)
    """
    found = _TEXT.fullmatch(text.replace(" ", ""))
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"network: expected RATE:LATENCY such as 100Gbit/s:5us, got {text!r}")
    rate = float(found[1]) * _LARGE[found[2]] / (8 if found[3] == "bit" else 1)
    return rate, float(found[4]) / _SMALL[found[5]]


def scaling_run(spec: TrainSpec, ranks: int, network: str, plan: Plan) -> list[Scaled]:
    """What an epoch takes on 1, 2, 4 ... ``ranks`` ranks.

    Raises: ConfigError for a network that is none, and for a plan without full batches in memory.
    """
    rate, latency = network_of(network)
    strategies = [plan.strategy, *(other.strategy for other in plan.others)]
    whole = next((w.epoch_seconds for w in strategies if w.mode == "full" and w.ranks == 1 and not w.refused), None)
    if whole is None:
        raise ConfigError("network: expected a model and data that full batches are priced for")
    with run_settings(spec):
        ds = load_dataset(spec)
        epoch = exchange_of(make_model(spec, ds), ds.labelled("train"), spec.halo, ds.x)
        usual = Rates(latency, 1 / rate)
        rows: list[Scaled] = []
        for count in _counts(ranks):
            part = partition(ds.graph, count, _METHOD, training_labels(ds), seed=spec.seed).part
            if count == 1:
                alone = predict(ds.graph, part, 1, epoch, usual).seconds
                factor = whole / alone  # of this machine to the one that the usual rates are of
                names = ("entry", "table", "multiply", "fixed", "row")
                usual = replace(usual, **{name: getattr(usual, name) * factor for name in names})
            found = predict(ds.graph, part, count, epoch, usual)
            terms = (max(found.compute), max(found.halo), found.gradients)
            rows.append(Scaled(count, found.seconds, *terms, found.bytes_sent, max(found.ghosts)))
        return rows


def _counts(ranks: int) -> list[int]:
    """Powers of two below ``ranks``, and ``ranks``."""
    counts = [1]
    while counts[-1] * 2 < ranks:
        counts.append(counts[-1] * 2)
    return [*counts, ranks] if ranks > 1 else counts


def scaling_facts(rows: Sequence[Scaled]) -> list[dict[str, Any]]:
    """Plain numbers, ready for JSON."""
    return [
        {
            "ranks": row.ranks,
            "predicted_epoch_seconds": row.seconds,
            "speedup": rows[0].seconds / row.seconds,
            "compute_seconds_max": row.compute,
            "halo_seconds_max": row.halo,
            "gradient_seconds": row.gradients,
            "bytes_sent_per_epoch": row.bytes_sent,
            "ghosts_max": row.ghosts,
            "bound": row.bound,
        }
        for row in rows
    ]


def scaling_lines(rows: Sequence[Scaled], network: str) -> list[str]:
    """A table."""
    lines = [f"full batches over ranks, network {network}, predicted from parts by {_METHOD}", ""]
    lines.append(f"{'ranks':>6}  {'epoch':>10}  {'speedup':>7}  {'sent':>10}  {'ghosts':>9}  most of it")
    for row in rows:
        epoch, sent = f"{1e3 * row.seconds:.2f} ms", f"{row.bytes_sent / 1e6:.1f} MB"
        speedup = f"{rows[0].seconds / row.seconds:.2f} x"
        lines.append(f"{row.ranks:>6}  {epoch:>10}  {speedup:>7}  {sent:>10}  {row.ghosts:>9}  {row.bound}")
    return lines


__all__ = ["Scaled", "network_of", "scaling_facts", "scaling_lines", "scaling_run"]
