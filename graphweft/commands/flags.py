"""Flags of commands: how they are declared, and what their texts stand for.

Comes in: names of options, texts from the command line. Goes out: typer's declarations, values. Called by
:mod:`graphweft.cli` and the modules beside this one; imports no torch, so that ``--help`` is quick.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar

import typer

from graphweft._errors import ConfigError
from graphweft.train.loop_options import LoopOptions
from graphweft.train.spec import TrainSpec
from graphweft.train.table_options import UNKNOWN_IDS

Action = Callable[[], Sequence[str]]  # what a command does once its arguments are read; the lines it answers with
Command = TypeVar("Command", bound=Callable[..., Action])

_DEFAULTS = TrainSpec()
KINDS = {
    "rounds": "int",
    "parts": "int",
    "passes": "int",
    "num_nodes": "int",
    "seeds": "int",
    "machine": "str",
    "what": "str",
    **{field.name: str(field.type).removesuffix(" | None") for field in fields(TrainSpec)},
}


def option(name: str, metavar: str, help_text: str, default: str | None = None) -> Any:
    """A flag that takes a value; values are read by :func:`value`, so that all failures have one wording."""
    shown = str(getattr(_DEFAULTS, name) if default is None else default)
    note = f"{help_text} Default: {shown}." if shown else help_text
    return typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=note, show_default=False)


def switch(flags: str, help_text: str) -> Any:
    """A flag that is there or not."""
    return typer.Option(flags, help=help_text, show_default=False)


def one_of(choices: Sequence[str]) -> str:
    """Choices as a flag shows them."""
    return "|".join(choices)


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The options among ``flags`` that were given, as values. Raises: ConfigError."""
    return {name: value(name, text) for name, text in flags.items() if name in KINDS and text is not None}


def value(name: str, text: Any) -> Any:
    """What a flag's text stands for.

    Raises: ConfigError.

    Example:
        >>> value("layers", "3"), value("lr", "0.1"), value("data", "cora")
        (3, 0.1, 'cora')
    """
    kind = KINDS[name]
    if kind not in ("int", "float") or not isinstance(text, str):
        return text
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        what = "an integer" if kind == "int" else "a number"
        raise ConfigError(f"{name}: expected {what}, got {text!r}") from None


def from_module(module: str, name: str) -> Any:
    """A command's function; importing it may take seconds, which only this command pays."""
    return getattr(importlib.import_module(module), name)


def takes(flags: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Adds flags to a command, which gets their texts as further keywords."""

    def add(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        more = [inspect.Parameter(name, kind, default=None, annotation=made) for name, made in flags.items()]
        command.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        return command

    return add


_Text = str | None
TABLE_FILES = {
    "nodes": Annotated[_Text, option("nodes", "FILE", "Table of nodes, .csv or .parquet, instead of --data.", "")],
    "edges": Annotated[_Text, option("edges", "FILE", "Table of edges.", "")],
}
TABLES = {
    **TABLE_FILES,
    "id": Annotated[_Text, option("id", "COLUMN", "nodes: ids of the nodes.", "id")],
    "source": Annotated[_Text, option("source", "COLUMN", "edges: ids of the sources.", "source")],
    "target": Annotated[_Text, option("target", "COLUMN", "edges: ids of the targets.", "target")],
    "label": Annotated[_Text, option("label", "COLUMN,...", "nodes: columns to predict.", "")],
    "edge_label": Annotated[
        _Text, option("edge_label", "COLUMN,...", "edges: columns to predict, with --task edge.", "")
    ],
    "weight": Annotated[_Text, option("weight", "COLUMN", "edges: weights.", "")],
    "time": Annotated[_Text, option("time", "COLUMN", "edges: times.", "")],
    "split": Annotated[
        _Text,
        option("split", "COLUMN", "Beside the labels: train, val, test or nothing.", "60/20/20 at random"),
    ],
    "drop": Annotated[_Text, option("drop", "COLUMN,...", "Columns to ignore.", "")],
    "categories": Annotated[
        _Text, option("categories", "COLUMN,...", "Columns of numbers to treat as categories.", "")
    ],
    "max_categories": Annotated[_Text, option("max_categories", "N", "Largest number of categories of a text column.")],
    "bidirected": Annotated[bool | None, switch("--bidirected/--directed", "Add the reverse of every edge.")],
    "unknown_ids": Annotated[
        _Text, option("unknown_ids", one_of(UNKNOWN_IDS), "Edges whose ends are not in the table of nodes.")
    ],
}

LOOP = {
    field.name: Annotated[
        _Text, option(field.name, field.metadata["metavar"], field.metadata["help"], field.metadata["shown"])
    ]
    for field in fields(LoopOptions)
}
