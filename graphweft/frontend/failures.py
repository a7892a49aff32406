"""What becomes of an exception that a user function raises: one line with the stage, what came, and the user's line.

Comes in: a function about to run. Goes out: the project's error, which is also of the class that plain Python or torch
raised. Called by the reference executor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from graphweft._errors import GraphWeftError, UserCodeError
from graphweft.frontend.shield import Shield
from graphweft.frontend.source import raising_line


class UserAttributeError(UserCodeError, AttributeError):
    """An object in user code lacks an attribute."""


class UserIndexError(UserCodeError, IndexError):
    """A sequence in user code is too short."""


class UserKeyError(UserCodeError, KeyError):
    """A dict in user code lacks a key."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UserNameError(UserCodeError, NameError):
    """A name in user code means nothing."""


class UserTypeError(UserCodeError, TypeError):
    """User code calls something with arguments that it does not take."""


class UserValueError(UserCodeError, ValueError):
    """User code calls something with a value that it does not take."""


class UserDivisionError(UserCodeError, ZeroDivisionError):
    """User code divides a Python number by zero."""


# of these classes exactly: what else user code raises is its own affair
_TOLD: dict[type[BaseException], type[UserCodeError]] = {
    AttributeError: UserAttributeError,
    IndexError: UserIndexError,
    KeyError: UserKeyError,
    ModuleNotFoundError: UserCodeError,
    NameError: UserNameError,
    NotImplementedError: UserCodeError,
    RuntimeError: UserCodeError,
    TypeError: UserTypeError,
    UnboundLocalError: UserNameError,
    ValueError: UserValueError,
    ZeroDivisionError: UserDivisionError,
}


@contextlib.contextmanager
def telling(stage: str, function: Callable[..., Any], shield: Shield) -> Iterator[None]:
    """Runs user code under ``shield``; what it raises is told with its stage and line.

    Raises: UserCodeError, also of the class of what was raised; other errors of the project as they are.
    """
    try:
        with shield:
            yield
    except GraphWeftError:
        raise
    except Exception as failure:
        line = raising_line(failure.__traceback__, function)
        told = shield.failure
        if type(failure) is TypeError and "unsupported operand" in str(failure) and str(told).endswith(f"({line})"):
            assert told is not None  # it ends in a line
            raise told from failure  # Python's operators take a TypeError for "not implemented"
        kind = _TOLD.get(type(failure))
        if kind is None:
            failure.add_note(f"in the {stage} function ({line})")
            raise
        reason = str(failure).splitlines()[0] if str(failure) else "no reason given"
        raise kind(f"{stage}: {type(failure).__name__}: {reason} ({line})") from failure


__all__ = ["UserTypeError", "telling"]
