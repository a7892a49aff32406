"""Flags of commands: how they are declared, and what their texts stand for.

Comes in: names of options, texts from the command line. Goes out: typer's declarations, values. Called by
:mod:`graphweft.cli` and the modules beside this one; imports no torch, so that ``--help`` is quick.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer

from graphweft._errors import ConfigError
from graphweft.train.option_table import options_of
from graphweft.train.spec import TrainSpec
from graphweft.train.table_options import TableOptions

Action = Callable[[], Sequence[str]]  # what a command does once its arguments are read; the lines it answers with
Command = TypeVar("Command", bound=Callable[..., Action])

_DEFAULTS = TrainSpec()
OF_DATA = ("data", "root", "scale", "seed", "threads")
EXPLAINED = (  # what decides the programs of a step, and the data that they run on
    *OF_DATA,
    *options_of(TableOptions),
    *("features", "task", "model", "heads", "out_heads", "attention_dropout", "value_dropout", "activation", "bases"),
    *(
        "hops",
        "alpha",
        "train_eps",
        "layers",
        "hidden",
        "dropout",
        "normalize",
        "norm",
        "reduce",
        "residual",
        "readout",
    ),
    *("mode", "fanouts", "batch_size", "sampler", "macro", "memory", "precision", "edge_data", "order"),
    *("device", "schedule"),
)
KINDS = {
    "rounds": "int",
    "parts": "int",
    "passes": "int",
    "num_nodes": "int",
    "seeds": "int",
    "machine": "str",
    "network": "str",
    "what": "str",
    **{name: str(declared.type).removesuffix(" | None") for name, (declared, _) in options_of(TrainSpec).items()},
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


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Options as a command line has them.

    Example:
        >>> words_of({"batch_size": 64, "residual": True})
        ['--batch-size', '64', '--residual']
    """
    words: list[str] = []
    for name, given_value in values.items():
        flag = name.replace("_", "-")
        if isinstance(given_value, bool):
            words.append(f"--{flag}" if given_value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(given_value)]
    return words


def from_module(module: str, name: str) -> Any:
    """A command's function; importing it may take seconds, which only this command pays."""
    return getattr(importlib.import_module(module), name)


def takes(flags: Mapping[str, Any], first: bool = False) -> Callable[[Command], Command]:
    """Adds flags to a command, which gets their texts as further keywords; ``first``: shown before its own."""

    def add(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        more = [inspect.Parameter(name, kind, default=None, annotation=made) for name, made in flags.items()]
        bound = [p for p in kept if p.default is p.empty]
        rest = [p for p in kept if p.default is not p.empty]
        every = [*bound, *more, *rest] if first else [*kept, *more]
        command.__signature__ = own.replace(parameters=every)  # type: ignore[attr-defined]
        return command

    return add


def flags_of(kind: Any, *names: str, without: Sequence[str] = ()) -> dict[str, Any]:
    """Flags of the options of ``kind`` that have one, own before inherited: those named, or all; ``without``."""
    own = vars(kind)["__annotations__"]
    return {
        name: Annotated[bool | None, switch(said.metavar, said.help)]
        if str(declared.type) == "bool"
        else Annotated[
            str | None,
            option(name, said.metavar, said.help, str(declared.default) if said.shown is None else said.shown),
        ]
        for name, (declared, said) in sorted(options_of(kind).items(), key=lambda item: item[0] not in own)
        if said.metavar and name not in without and (not names or name in names)
    }
