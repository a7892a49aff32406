"""The commands ``plot`` and ``sweep``, and the answer of ``train --seeds``: runs beside each other.

Comes in: flags. Goes out: typer commands whose actions answer with lines. Added to the application by
:mod:`graphweft.cli`.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft import _config
from graphweft._errors import ConfigError
from graphweft.commands.flags import KINDS, Action, flags_of, from_module, given, option, switch, takes, value
from graphweft.commands.help import SWEEP_EXAMPLES, GroupedCommand
from graphweft.synth.spec import options_of_file
from graphweft.train.options import check_integer
from graphweft.train.scores import shown
from graphweft.train.spec import TrainSpec

Json = Annotated[bool, switch("--json/--no-json", "Answer in JSON.")]
Seeds = Annotated[
    str | None, option("seeds", "N", "Train N times, from --seed on; show mean and deviation.", "one run of --seed")
]
_HOLD_COMMAS = ("fanouts", "class_weight", "label", "edge_label", "drop", "categories", "metrics", "logger")
_NOT_SWEPT = {
    "seed": "--seeds N",
    "out": "--out",
    "resume": "--resume",
    "progress": "--quiet",
    **dict.fromkeys(("root", "threads", "trace", "ranks", "logger"), "one value for all runs"),
}


def add_to(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(plot)
    app.command(cls=GroupedCommand, epilog=SWEEP_EXAMPLES)(
        takes(flags_of(TrainSpec, without=("out", "resume", "trace", "ranks")))(sweep)
    )


def plot(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders of runs, or folders of such folders.", show_default=False),
    ],
    out: Annotated[str, option("out", "FILE", "The picture to write: .png, .svg or .pdf.", "plot.png")] = "plot.png",
    as_json: Json = False,
) -> Action:
    """Plot one run with all splits, or compare several runs, with the test score of the best epoch of each."""
    from_plot = "graphweft.train.plot"

    def draw() -> list[str]:
        file = Path(out)
        from_module(from_plot, "check_picture")("out", file)
        found = from_module("graphweft.train.finished", "finished_runs")(runs)
        names = from_module("graphweft.train.finished", "names_of")(found)
        first = found[0].history
        if len(found) == 1:
            first.plot(file)
        else:
            named = [from_module(from_plot, "NamedRun")(n, run.history) for n, run in zip(names, found, strict=True)]
            titles = {run.history.name for run in found}
            title = titles.pop() if len(titles) == 1 else f"{len(found)} runs"
            picture = from_module(from_plot, "picture_of_several")(named, title, first.metric)
            from_module(from_plot, "write_picture")(file, picture)
        rows = [_best_of(run.history) for run in found]
        if as_json:
            told = [{"run": str(run.folder), **row} for run, row in zip(found, rows, strict=True)]
            return [json.dumps({"out": str(file), "metric": first.metric, "runs": told}, allow_nan=False)]
        cells: list[tuple[str, ...]] = [("run", "epochs", "best epoch", f"val {first.metric}", f"test {first.metric}")]
        for name, row in zip(names, rows, strict=True):
            scores = (_cell(row[part], first.metric) for part in ("val", "test"))
            cells.append((name, str(row["epochs"]), str(row["best_epoch"] or "-"), *scores))
        return [*_aligned(cells), f"drawn in {file}"]

    return draw


def _best_of(history: Any) -> dict[str, Any]:
    """Epochs of a run and the scores of its best one, of its last without validation."""
    best = history.best
    shown_of = history.last if best is None else best
    scores = {part: None if shown_of is None else shown_of.score(part) for part in ("val", "test")}
    return {"epochs": len(history), "best_epoch": None if best is None else best.epoch, **scores}


def sweep(
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="NAME=V,V,...",
            help="Values of an option of train, such as lr=0.01,0.005; values with commas are separated by semicolons. "
            "May be repeated: every combination is trained.",
            show_default=False,
        ),
    ] = None,
    spec: Annotated[str | None, option("spec", "FILE", "Options as TOML; flags override them.", "")] = None,
    seeds: Annotated[str, option("seeds", "N", "Runs of every combination, from --seed on.", "1")] = "1",
    out: Annotated[str, option("out", "DIR", "Folder of the runs and of table.csv.", "runs/sweep")] = "runs/sweep",
    resume: Annotated[
        bool, switch("--resume/--no-resume", "Skip finished runs and continue interrupted ones. Default: --resume.")
    ] = True,
    as_json: Json = False,
    quiet: Annotated[bool, switch("--quiet/--no-quiet", "Show no progress.")] = False,
    **more: Any,
) -> Action:
    """Train with every combination of some options, and show a table with the best by validation first.

    Takes the options of train and --grid. Each run has its own folder, as for train. The same command again
    skips the runs that are finished.
    """
    values, count = given(more), _count(seeds)
    if spec is not None:
        values = {**options_of_file(spec, TrainSpec), **values}
    wanted = read_grid(grid or ())
    for name in wanted:
        if name in values:
            raise ConfigError(f"grid: expected {name} once, got it in --grid and as --{name.replace('_', '-')}")
    values |= {"out": out, "resume": resume, "progress": not quiet}

    def search() -> list[str]:
        with _config.defaults(keep_heap=True):  # the process is the command's own
            rows = from_module("graphweft.commands.sweeping", "sweep")(values, wanted, count, _say(quiet))
        if as_json:
            told = [from_module("graphweft.commands.sweeping", "told")(row) for row in rows]
            return [json.dumps({"rows": told, "out": out}, allow_nan=False)]
        return _table(rows, out)

    return search


def repeat(values: dict[str, Any], seeds: int, as_json: bool) -> Sequence[str]:
    """What ``train --seeds`` does and answers. Raises: ConfigError for options of a single run."""
    check_integer("seeds", seeds, 1, 10**6)
    for name in ("trace", "ranks"):
        if values.get(name):
            raise ConfigError(f"seeds={seeds} cannot be combined with {name}={values[name]}; leave one out")
    with _config.defaults(keep_heap=True):
        row = from_module("graphweft.commands.sweeping", "with_seeds")(values, seeds, _say(not values["progress"]))
    if as_json:
        told = {**from_module("graphweft.commands.sweeping", "told")(row), "runs": row.runs, "out": str(row.folder)}
        return (json.dumps(told, allow_nan=False),)
    val, test, metric = from_module("graphweft.commands.sweeping", "columns_of")(row)
    cells: list[tuple[str, ...]] = [("seed", *_titles(val, test, metric), "best epoch", "epochs")]
    for one in row.runs:
        scores = (_cell(one.get(name), metric) for name in (val, test))
        cells.append((str(one["seed"]), *scores, str(one["best_epoch"] or "-"), str(one["epochs"])))
    cells.append(("mean", *(_spread(row, name, metric) for name in (val, test)), "", ""))
    first = row.runs[0]
    return [f"{first['dataset']}, {first['model']}: {seeds} seeds", *_aligned(cells), f"in {row.folder}: table.csv"]


def read_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Values by option.

    Raises: ConfigError.

    Example:
        >>> read_grid(["lr=0.1,0.01", "fanouts=10,5;5,5", "residual=true,false"])
        {'lr': [0.1, 0.01], 'fanouts': ['10,5', '5,5'], 'residual': [True, False]}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals or not rest.strip():
            raise ConfigError(f"grid: expected NAME=VALUE,VALUE,..., as lr=0.01,0.005, got {text!r}")
        if name not in KINDS or name in ("rounds", "parts", "passes", "num_nodes", "seeds"):
            near = difflib.get_close_matches(name, KINDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"grid: expected an option of train, as lr, hidden or model, got {name!r}{hint}")
        if name in _NOT_SWEPT:
            raise ConfigError(f"grid: expected an option of a run, got {name}; {_NOT_SWEPT[name]} is for it")
        if name in found:
            raise ConfigError(f"grid: expected {name} once, got it twice")
        split = ";" if ";" in rest or name in _HOLD_COMMAS else ","
        found[name] = [_value(name, part.strip()) for part in rest.split(split)]
        if len(set(found[name])) < len(found[name]):
            raise ConfigError(f"grid: expected different values of {name}, got {rest}")
    if not found:
        raise ConfigError("grid: expected at least one option with its values, as --grid lr=0.01,0.005, got none")
    return found


def _value(name: str, text: str) -> Any:
    """A value of the grid. Raises: ConfigError."""
    if KINDS[name] == "bool":
        words = {"true": True, "false": False, "yes": True, "no": False}
        if text.lower() not in words:
            raise ConfigError(f"{name}: expected true or false, got {text!r}")
        return words[text.lower()]
    return value(name, text)


def _count(seeds: str) -> int:
    """The number of seeds. Raises: ConfigError."""
    count = value("seeds", seeds)
    check_integer("seeds", count, 1, 10**6)
    return int(count)


def _table(rows: Sequence[Any], out: str) -> list[str]:
    """A line for each combination, the best first."""
    first = next(row for row in rows if row.runs)
    val, test, metric = from_module("graphweft.commands.sweeping", "columns_of")(first)
    cells = [(*first.options, *_titles(val, test, metric), "runs")]
    for row in rows:
        scores = (_spread(row, name, metric) for name in (val, test))
        cells.append((*(str(v) for v in row.options.values()), *scores, str(len(row.runs))))
    failed = [f"{' '.join(f'{n}={v}' for n, v in row.options.items())} {line}" for row in rows for line in row.failures]
    return [*_aligned(cells), *(f"failed: {line}" for line in failed), f"in {out}: table.csv summary.json"]


def _titles(val: str, test: str, metric: str) -> tuple[str, str]:
    """Heads of the two columns of scores."""
    return (f"{'train' if val.startswith('train') else 'val'} {metric}", f"test {metric}")


def _spread(row: Any, name: str, metric: str) -> str:
    """Mean and deviation."""
    mean, deviation = row.mean().get(name), row.deviation().get(name)
    if mean is None:
        return "-"
    if deviation is None:
        return _cell(mean, metric)
    return f"{shown(mean, metric).removesuffix(' %')} ± {shown(deviation, metric)}"


def _cell(number: float | None, metric: str) -> str:
    return "-" if number is None else shown(number, metric)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table with columns of one width."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _say(quiet: bool) -> Callable[[str], None]:
    """Tells on standard error which run it is."""

    def say(text: str) -> None:
        if not quiet and sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    return say
