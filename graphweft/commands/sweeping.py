"""Several runs as one: the same options with several seeds, and a grid of options.

Comes in: options as flags give them. Goes out: runs in folders of their own, and a table with means and deviations.
Called by ``graphweft train --seeds`` and ``graphweft sweep``. Runs that are done are not done again, so a sweep
that was stopped goes on with the run under way.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphweft._errors import CheckpointError, ConfigError
from graphweft.run import complete, run
from graphweft.train.atomic import write_atomic
from graphweft.train.run_folder import SUMMARY, check_folder, read_last
from graphweft.train.same_run import check_same_run
from graphweft.train.scores import ERRORS
from graphweft.train.spec import TrainSpec

TABLE = "table.csv"
_NO_RESULTS = ("seed", "threads", "resumed_after_epoch", "feature_sparsity")  # numbers that are no results


@dataclass
class Row:
    """The runs of one choice of options.

    Attributes:
        options: Of the grid, by name.
        folder: Where its runs lie.
        best: The metric that says which epoch is the best, where one was named.
        runs: Summaries, one a seed.
        failures: What stopped the other seeds, a line each.
    """

    options: dict[str, Any]
    folder: Path
    best: str | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def mean(self) -> dict[str, float]:
        """Means over the runs of every number that all of them have."""
        return {name: statistics.fmean(values) for name, values in _columns(self.runs).items()}

    def deviation(self) -> dict[str, float | None]:
        """Standard deviations of the same, as of a sample; None of a single run."""
        several = len(self.runs) > 1
        return {name: statistics.stdev(v) if several else None for name, v in _columns(self.runs).items()}


def with_seeds(given: dict[str, Any], seeds: int, say: Callable[[str], None]) -> Row:
    """Trains with ``seeds`` seeds from ``given["seed"]`` on, each into a folder ``seed-N`` of ``out``.

    Raises: ConfigError, DataError or CheckpointError for whatever the caller can set right; KeyboardInterrupt.
    """
    row = Row({}, complete({**given, "resume": False}).folder)
    specs = _specs(given, row, seeds)
    check_folder(row.folder)
    for place, spec in enumerate(specs):
        say(f"run {place + 1} of {seeds}: seed {spec.seed}")
        row.runs.append(_run(spec))
    result = {**told(row), "runs": row.runs, "out": str(row.folder)}
    _write(row.folder / SUMMARY, json.dumps(result, indent=2, allow_nan=False) + "\n")
    _write(row.folder / TABLE, table_of([row]))
    return row


def sweep(
    given: dict[str, Any], grid: Mapping[str, Sequence[Any]], seeds: int, say: Callable[[str], None]
) -> list[Row]:
    """Trains with every combination of the grid's values, the best by validation first in what is returned.

    A run whose training fails, as with a rate at which the loss is no longer finite, is noted and the others go on.

    Raises: ConfigError, DataError or CheckpointError for whatever the caller can set right, or where every run fails;
        KeyboardInterrupt.
    """
    out = Path(given["out"])
    check_folder(out)
    rows = [Row(dict(zip(grid, values, strict=True)), out) for values in itertools.product(*grid.values())]
    names: set[str] = set()
    for row in rows:
        row.folder = out / _unused(name_of(row.options), names)
    planned = [(row, _specs({**given, **row.options}, row, seeds)) for row in rows]  # all are checked before any runs
    total, failure = len(rows) * seeds, None
    for place, (row, spec) in enumerate((row, spec) for row, specs in planned for spec in specs):
        say(f"run {place + 1} of {total}: {said(row.options)} seed={spec.seed}")
        try:
            row.runs.append(_run(spec))
        except CheckpointError:
            raise
        except ConfigError as stopped:
            failure = stopped
            row.failures.append(f"seed {spec.seed}: {stopped}")
    if failure is not None and not any(row.runs for row in rows):
        raise failure
    rows = sorted(rows, key=rank)
    _write(out / SUMMARY, json.dumps({"rows": [told(row) for row in rows], "out": str(out)}, indent=2) + "\n")
    _write(out / TABLE, table_of(rows))
    return rows


def told(row: Row) -> dict[str, Any]:
    """A row, ready for JSON."""
    first: dict[str, Any] = row.runs[0] if row.runs else {}
    same: dict[str, Any] = {name: first[name] for name in ("dataset", "model", "mode", "metric") if name in first}
    seeds = [one["seed"] for one in row.runs]
    more = {"failures": row.failures} if row.failures else {}
    numbers = {"mean": row.mean(), "deviation": row.deviation()}
    return {**same, "options": row.options, "seeds": seeds, **numbers, **more, "folder": str(row.folder)}


def columns_of(row: Row) -> tuple[str, str, str]:
    """The validation score by which rows are ranked, the test score beside it, and what both are called.

    That is the metric that ``best`` names, else the score of the labels; of the last epoch without validation.
    """
    first = row.runs[0]
    if row.best is not None and first.get(f"best_val_{row.best}") is not None:
        title = row.best.upper() if row.best.upper() in ERRORS else row.best
        return f"best_val_{row.best}", f"test_{row.best}_at_best_val", title
    metric = str(first["metric"])
    score = "rmse" if metric in ERRORS else "acc"
    if first.get(f"best_val_{score}") is None:
        return f"train_{score}", f"test_{score}", metric
    return f"best_val_{score}", f"test_{score}_at_best_val", metric


def rank(row: Row) -> tuple[bool, float]:
    """Sorts rows, the best first; those without a run last."""
    if not row.runs:
        return True, 0.0
    column, _, metric = columns_of(row)
    value = row.mean().get(column, 0.0)
    return False, value if metric in ERRORS else -value


def table_of(rows: Sequence[Row]) -> str:
    """Every run as a line of CSV: its options, seed, folder and results."""
    file = io.StringIO()
    results = list(dict.fromkeys(name for row in rows for one in row.runs for name in _columns([one])))
    options = list(rows[0].options)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*options, "seed", "folder", *results])
    for row in rows:
        for one in row.runs:
            values = [one.get(name) for name in results]
            writer.writerow([*row.options.values(), one["seed"], one["out"], *values])
    return file.getvalue()


def said(options: Mapping[str, Any]) -> str:
    """Options as a line shows them.

    Example:
        >>> said({"lr": 0.01, "model": "gcn"})
        'lr=0.01 model=gcn'
    """
    return " ".join(f"{name}={value}" for name, value in options.items())


def name_of(options: Mapping[str, Any]) -> str:
    """What the folder of a row is called.

    Example:
        >>> name_of({"lr": 0.01, "fanouts": "10,5", "data": "a/b"})
        'lr=0.01,fanouts=10,5,data=a-b'
    """
    return re.sub(r"[^\w.,=+-]+", "-", said(options).replace(" ", ",")) or "run"


def _unused(name: str, taken: set[str]) -> str:
    """``name``, with a number where another row has it."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found


def _specs(given: dict[str, Any], row: Row, seeds: int) -> list[TrainSpec]:
    """A spec per seed. Raises: ConfigError."""
    first = int(given.get("seed", 0))
    named = (first + i for i in range(seeds))
    found = [complete({**given, "seed": seed, "out": str(row.folder / f"seed-{seed}")}) for seed in named]
    row.best = found[0].best
    return found


def _run(spec: TrainSpec) -> dict[str, Any]:
    """The summary of a run, which is done unless it was."""
    found = _done(spec) if spec.resume else None
    return run(spec) if found is None else found


def _done(spec: TrainSpec) -> dict[str, Any] | None:
    """The summary of the finished run in the spec's folder; None where it has to run.

    Raises: CheckpointError where it is another run.
    """
    state = read_last(spec.folder)
    if state is None:
        return None
    check_same_run(str(spec.folder), state.get("config", {}), spec.identity())
    try:
        summary: dict[str, Any] = json.loads((spec.folder / SUMMARY).read_text())
        stopped = summary["stopped_early"] and state["options"].get("patience") == spec.patience
        whole = summary["epochs"] == state["epoch"] and (summary["epochs"] >= spec.epochs or stopped)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return summary if whole else None


def _columns(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Results that every run has, as columns."""
    names = [name for name, value in (runs[0] if runs else {}).items() if _is_result(name, value)]
    there = (name for name in names if all(_is_result(name, one.get(name)) for one in runs))
    return {name: [float(one[name]) for one in runs] for name in there}


def _is_result(name: str, value: Any) -> bool:
    """Whether it is a number that differs from run to run."""
    number = isinstance(value, float | int) and not isinstance(value, bool)
    return number and name not in _NO_RESULTS and (isinstance(value, float) or name in ("epochs", "best_epoch"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda file: file.write(text.encode()))
