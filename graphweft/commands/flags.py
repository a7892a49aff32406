"""Flags of commands: how they are declared, and what their texts stand for.

Comes in: names of options, texts from the command line. Goes out: typer's declarations, values. Called by
:mod:`graphweft.cli` and the modules beside this one; imports no torch, so that ``--help`` is quick.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
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


_NAME, _TOGETHER, _IN_A_FILE = r"[a-z][a-z_]*", " cannot be combined with ", re.compile(r"\S+:\d+:\d+: ")
_SET = re.compile(rf"(?<!\S)(?<!\bas )({_NAME})=('[^']*'|\([\d, ]*\)|[^\s;()]*[^\s;(),.]|)(?=[\s;),.]|$)")
_NAMES = re.compile(rf"{_NAME}(?:(?:, | and | or ){_NAME})*(?=;|, which|$)")


def as_typed(text: str, flags: Mapping[str, str]) -> str:
    """An error's line with its options as a command line has them; ``flags`` are those of the command, by option.

    Example:
        >>> as_typed("mode='mini' cannot be combined with batch_size", {"mode": "--mode", "batch_size": "--batch-size"})
        '--mode mini cannot be combined with --batch-size'
        >>> as_typed("mode: expected full or mini, got 'x'", {"mode": "--mode"})
        "--mode: expected full or mini, got 'x'"
    """
    if _IN_A_FILE.match(text):  # of a file of options, which has no flags
        return text

    def alone(side: str) -> str:
        """``nodes and edges`` where all are options; more may follow."""
        found = _NAMES.match(side)
        if found is None or not set(re.findall(_NAME, found[0])) - {"and", "or"} <= flags.keys():
            return side
        return re.sub(_NAME, lambda word: flags.get(word[0], word[0]), found[0]) + side[found.end() :]

    def assigned(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip("'()").replace(", ", ",")
        called = text.rfind("(", 0, found.start()) > text.rfind(")", 0, found.start())  # a keyword of Python
        if name not in flags or value in ("None", "False") or called:
            return found[0]
        return flags[name] if value in ("", "True") else f"{flags[name]} {shlex.quote(value)}"

    name, colon, rest = text.partition(":")
    if name in flags:
        text = f"{flags[name]}{colon}{rest}"
    text = _TOGETHER.join(alone(side) for side in text.split(_TOGETHER))
    return _SET.sub(assigned, text)


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
