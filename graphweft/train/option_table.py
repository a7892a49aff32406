"""One line an option: its default, its flag and help, what is allowed, and whether a resumed run has to agree on it.

Comes in: fields of a frozen dataclass that :func:`option` declares. Goes out: checks and identities of its values; the
flags are made from the same fields by ``commands/flags.py``. Imports no torch, so that ``graphweft --help`` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from graphweft._errors import ConfigError
from graphweft.train.options import check_choice, check_integer, check_number


@dataclass(frozen=True)
class Option:
    """What is known of an option beside its name, type and default.

    Attributes:
        metavar: What the flag takes, or for a switch its two names; "" for an option without a flag.
        help: What the flag says.
        shown: The default in words; None: as it is.
        choices: All allowed values, besides a default of None.
        bounds: Keywords of ``check_number``; of an integer "least" and "most".
        check: Raises ConfigError for a value that is not allowed.
        resume: What a resumed run may do: "same", "given" if it is not the default, "free", or "kept", free and taken
            up where nothing else is given.
        drawn: It is for mini-batches, and counts for nothing in mode "full".
    """

    metavar: str
    help: str
    shown: str | None
    choices: tuple[str, ...]
    bounds: dict[str, Any]
    check: Callable[[Any], object] | None
    resume: str
    drawn: bool


def option(
    default: Any,
    metavar: str,
    help: str,
    shown: str | None = None,
    *,
    choices: tuple[str, ...] = (),
    check: Callable[[Any], object] | None = None,
    resume: str = "same",
    drawn: bool = False,
    **bounds: Any,
) -> Any:
    """A field that is an option; see :class:`Option`."""
    made = Option(metavar or "|".join(choices), help, shown, choices, bounds, check, resume, drawn)
    return field(default=default, metadata={"option": made})


def options_of(kind: Any) -> dict[str, tuple[Any, Option]]:
    """The options of a class or its value, by name, each with its field."""
    return {f.name: (f, f.metadata["option"]) for f in fields(kind) if "option" in f.metadata}


def check_options(given: Any) -> None:
    """All options of ``given`` are within what the table says.

    Raises: ConfigError naming the first that is not.
    """
    check_given(given, {name: getattr(given, name) for name in options_of(given)})


def check_given(kind: Any, given: Mapping[str, Any]) -> None:
    """Values by name are within what the table of ``kind`` says.

    Raises: ConfigError naming the first that is not.
    """
    table = options_of(kind)
    for name, value in given.items():
        declared, said = table[name]
        if value is None and declared.default is None:
            continue
        if said.check is not None:
            said.check(value)
        elif said.choices:
            check_choice(name, value, said.choices)
        elif declared.type.startswith("int"):
            check_integer(name, value, **said.bounds)
        elif declared.type.startswith("float"):
            check_number(name, value, **said.bounds)
        elif declared.type.startswith("str"):
            _check_text(name, value)


def check_drawn(kind: Any, mode: str, given: Mapping[str, Any]) -> None:
    """Options of mini-batches are as they are without the user's doing, where every step takes all nodes.

    Raises: ConfigError naming the first that is not.
    """
    for name, usual in usually_drawn(kind).items():
        if mode == "full" and name in given and not (given[name] is usual or given[name] == usual):
            raise ConfigError(f"{name}: expected mode mini as well, got mode {mode!r}")


def usually_drawn(kind: Any) -> dict[str, Any]:
    """The options of mini-batches as they are without the user's doing."""
    return {name: declared.default for name, (declared, said) in options_of(kind).items() if said.drawn}


def identity_of(given: Any, mode: str) -> dict[str, Any]:
    """The options that a resumed run has to agree on."""
    found = {}
    for name, (declared, said) in options_of(given).items():
        value = getattr(given, name)
        silent = said.resume == "given" and value == declared.default
        if said.resume in ("same", "given") and not silent and not (said.drawn and mode == "full"):
            found[name] = value
    return found


def kept_by_resume(given: Any) -> dict[str, Any]:
    """The options that a resumed run takes up where it is given no others."""
    return {name: getattr(given, name) for name, (_, said) in options_of(given).items() if said.resume == "kept"}


def split_names(text: str | None) -> tuple[str, ...]:
    """Names with commas between them.

    Example:
        >>> split_names("memo, zip"), split_names(None)
        (('memo', 'zip'), ())
    """
    return () if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _check_text(name: str, value: Any) -> None:
    """A string that can name a file.

    Raises: ConfigError.
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{name}: expected a text, not empty and without null bytes, got {value!r}")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: expected a text that can name a file, got {value!r}") from None
