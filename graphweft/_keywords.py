"""Keywords that a function does not have, answered with the one that was probably meant.

Comes in: a function, names of other libraries or slips for its keywords. Goes out: the function, which says so. Used by
constructors and methods that people call first.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

from graphweft._errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


def unexpected(who: str, name: str, known: Iterable[str]) -> TypeError:
    """Python's error for a keyword that ``who`` does not have, with the nearest one.

    Example:
        >>> unexpected("fit()", "epoch", ["epochs"])
        TypeError("fit() got an unexpected keyword argument 'epoch'; did you mean 'epochs'?")
    """
    close = difflib.get_close_matches(name, [word for word in known if word != "self"], 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return TypeError(f"{who} got an unexpected keyword argument {name!r}{hint}")


def refuse_renamed(who: str, given: Iterable[str], other_names: Mapping[str, str]) -> None:
    """Nothing where no keyword has another name here.

    Raises: ConfigError.

    Example:
        >>> refuse_renamed("GCN", ["hidden_channels"], {"hidden_channels": "hidden"})
        Traceback (most recent call last):
        graphweft._errors.ConfigError: GCN: expected hidden in place of hidden_channels
    """
    for name in given:
        if name in other_names:
            raise ConfigError(f"{who}: expected {other_names[name]} in place of {name}")


def says_what_was_meant(**other_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Lets a function answer unknown keywords with ``other_names``, or with the nearest of its own."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        known = inspect.signature(function).parameters
        who = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs.keys() <= known.keys():
                unknown = [name for name in kwargs if name not in known]
                refuse_renamed(who, unknown, other_names)
                raise unexpected(f"{who}()", unknown[0], known)
            return function(*args, **kwargs)

        return checked

    return wrap


__all__ = ["refuse_renamed", "says_what_was_meant", "unexpected"]
