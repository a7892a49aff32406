"""The commands ``predict`` and ``evaluate``: what a trained run says, of its own data or of others.

Comes in: flags. Goes out: typer commands whose actions answer with lines. Added to the application by
:mod:`graphweft.cli`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft._errors import ConfigError
from graphweft.commands.flags import Action, flags_of, from_module, option, switch, takes
from graphweft.train.options import check_choice
from graphweft.train.scores import shown
from graphweft.train.table_options import TableOptions

_PARTS = ("train", "val", "test", "all")
Folder = Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run, as in --out of train.")]
OtherData = Annotated[
    str | None, option("data", "NAME", "Other data: a known name, a file or a folder.", "the data of the run")
]
Root = Annotated[str | None, option("root", "DIR", "Folder of named datasets.", "data")]
Json = Annotated[bool, switch("--json/--no-json", "Answer in JSON.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(predict)
    app.command()(evaluate)


@takes(flags_of(TableOptions, "nodes", "edges"))
def predict(
    run: Folder,
    out: Annotated[str, option("out", "FILE", "The table to write, .csv or .parquet.", "predictions.csv")] = (
        "predictions.csv"
    ),
    pairs: Annotated[
        str | None, option("pairs", "FILE", "link, gae: a table of pairs of nodes to score.", "embeddings of the nodes")
    ] = None,
    data: OtherData = None,
    root: Root = None,
    as_json: Json = False,
    **tables: Any,
) -> Action:
    """Write what a run predicts for every node: its id, the class and the probability of each class.

    The default data are those of the run, including unlabelled nodes. --nodes and --edges take tables with the same
    columns; the label may be missing. A run for links writes embeddings, or with --pairs the score and the
    probability of an edge for every pair of a table.
    """

    def write() -> list[str]:
        file = Path(out)
        from_module("graphweft.train.prediction", "check_output")(file)
        found = _loaded(run)
        other = _other(found, data, root, **tables)
        made = found.predictions(other)
        if pairs is None:
            columns = made.columns()
        else:
            columns = from_module("graphweft.train.pair_scores", "pair_scores")(made, pairs)
        from_module("graphweft.train.prediction", "write_columns")(file, columns)
        rows = len(next(iter(columns.values())))
        if as_json:
            return [json.dumps({"out": str(file), "rows": rows, "columns": list(columns)})]
        return [*_told(other), f"{file}: {rows:,} rows, columns {', '.join(columns)}"]

    return write


@takes(flags_of(TableOptions, "nodes", "edges"))
def evaluate(
    run: Folder,
    split: Annotated[
        str, typer.Option("--split", metavar="|".join(_PARTS), help="Labelled nodes to score. Default: test, else all.")
    ] = "",
    data: OtherData = None,
    root: Root = None,
    as_json: Json = False,
    **tables: Any,
) -> Action:
    """Show the scores of a run on one part of its data, or on other data."""
    if split:
        check_choice("split", split, _PARTS)

    def score() -> list[str]:
        found = _loaded(run)
        ds = _other(found, data, root, **tables)
        part = split or ("test" if ds is None or ds.encoding is None else "all")
        scores = found.scores(part, ds)
        if as_json:
            return [json.dumps({"run": run, "split": part, **scores})]
        told = "   ".join(f"{_TITLES.get(name, name)} {_shown(name, value)}" for name, value in scores.items())
        return [f"{found!r}", *_told(ds), f"{part}: {told}"]

    return score


def _told(other: Any) -> list[str]:
    """What other tables have that those of the run had not."""
    return [f"note: {note}" for note in getattr(other, "notes", ()) if "column '" in note]


_TITLES = {"auc": "ROC AUC", "mae": "MAE", "r2": "R2"}


def _shown(name: str, value: float) -> str:
    """Fractions as per cent, other numbers as they are."""
    return shown(value, "RMSE" if name in ("loss", "mae", "r2", "RMSE") else name)


def _loaded(folder: str) -> Any:
    return from_module("graphweft.loaded_run", "load_run")(folder)


def _other(run: Any, data: str | None, root: str | None, nodes: str | None, edges: str | None) -> Any:
    """The other data that the flags name; None for the run's own. Raises: ConfigError."""
    if nodes is None and edges is None:
        return None if data is None else run.load(data, root)
    if data is not None:
        raise ConfigError("nodes and edges cannot be combined with data")
    if edges is None:
        raise ConfigError("edges: expected the table of edges beside that of nodes, got none")
    return run.tables(nodes, edges)
