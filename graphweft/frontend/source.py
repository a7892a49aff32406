"""Where in the user's own files something happened.

Comes in: the running stack, a traceback, or a function. Goes out: ``file.py:12``. Called wherever an error or a warning
about user code is made. Frames of torch, of Python's own library and of this room are never the user's.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch

_NN = Path(__file__).parents[1] / "nn"
_CALLS = (
    *("message_passing.py", "apply_functions.py", "products.py", "user_call.py", "call_site.py", "opaque.py"),
    *("fn.py", "compiled.py", "compiled_call.py", "recorded.py", "left_attributes.py"),
)
_OURS = (str(Path(__file__).parent), *(str(_NN / name) for name in _CALLS), str(_NN.parent / "explanation.py"))
# files that PyTorch Geometric writes for a class of layers lie in the folder of temporary files
_WRITTEN_BY_PYG = re.compile(r"_(propagate|edge_updater)_[a-z0-9_]{8}\.py$")
UNKNOWN = "unknown line"  # of code that has no file
_TORCH = str(Path(torch.__file__).parent)
_PYTHON = sysconfig.get_paths()["stdlib"]


@functools.cache
def is_user_file(filename: str) -> bool:
    """Whether code of this file was written by a user of the front end."""
    library = (
        filename.startswith((*_OURS, _TORCH, "<frozen", "<eval_with_key"))
        or _WRITTEN_BY_PYG.search(filename) is not None
    )
    return not library and (not filename.startswith(_PYTHON) or "site-packages" in filename)


def _is_of_user(frame: FrameType) -> bool:
    """Whether a frame runs a user's code; torch makes functions of strings, too."""
    name, caller = frame.f_code.co_filename, frame.f_back
    of_torch = name == "<string>" and caller is not None and caller.f_code.co_filename.startswith(_TORCH)
    return not of_torch and is_user_file(name)


def current_line() -> str:
    """The innermost line of user code on the running stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_of_user(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return UNKNOWN


def user_depth() -> int:
    """How many frames above the caller the innermost user code is: a ``stacklevel`` for warnings."""
    frame: FrameType | None = sys._getframe(1)
    depth = 1
    while frame is not None and not _is_of_user(frame):
        frame, depth = frame.f_back, depth + 1
    return depth


def raising_line(traceback: TracebackType | None, function: Callable[..., Any]) -> str:
    """The innermost line of user code that an exception passed; that of :func:`line_of` without any."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_file(code.co_filename):
            found = f"{code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found or line_of(function)


def line_of(function: Callable[..., Any]) -> str:
    """The first line of a function of the user's; the user's line that calls one of a library."""
    code = code_of(function)
    return current_line() if code is None or not is_user_file(code.co_filename) else first_line(function)


def first_line(function: Callable[..., Any]) -> str:
    """Where ``function`` is defined."""
    code = code_of(function)
    return UNKNOWN if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def code_of(function: Any) -> CodeType | None:
    """The code that calling ``function`` runs first, None for a built-in."""
    plain = inspect.unwrap(getattr(function, "func", function))
    plain = getattr(plain, "__func__", plain)
    if not hasattr(plain, "__code__"):
        plain = getattr(type(plain), "forward", getattr(type(plain), "__call__", None))  # noqa: B004
    return getattr(plain, "__code__", None)


def return_line(function: Callable[..., Any], field: str | None = None) -> str:
    """The line that returns ``field``, as far as the text of the function tells; else its last return."""
    code = code_of(function)
    if code is None:
        return UNKNOWN
    try:
        lines, start = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, IndentationError):
        return first_line(function)
    found = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Return):
            found = max(found or 0, node.lineno)
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == field:
                    found = value.lineno
    return f"{code.co_filename}:{start + (found or 1) - 1}"
