"""Symbolic sizes of a recording: user code must not branch on them, unless all mailboxes go the same way.

Apart from ``trace.py`` because torch's symbolic sizes and sympy take half a second to import: ``trace.py`` imports this
module when the first function is recorded.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from graphweft._torch_recording import ShapeEnv, sympy
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.message_counts import decided
from graphweft.frontend.source import is_user_file

_CONTEXT = ("torch/fx/experimental/", "torch/__init__.py", "torch/utils/_sympy", "torch/_logging", "functools.py")


class Place(Protocol):
    """What knows the function and the line that are being recorded."""

    line: str
    inside: str | None


class Sizes(ShapeEnv):
    """Symbolic sizes on which user code must not branch, unless all mailboxes go the same way."""

    messages: Any = None  # the symbol of a mailbox's size
    recorder: Place | None = None
    culprit: tuple[str | None, str] | None = None  # the first function that a condition on sizes came from, its line

    def evaluate_expr(self, *args: Any, **kwargs: Any) -> Any:
        """As in torch, unless the line that asks is the user's own."""
        frame = sys._getframe(1)
        while frame is not None and any(part in frame.f_code.co_filename for part in _CONTEXT):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is not None and is_user_file(frame.f_code.co_filename):
            known = decided(args[0], self.messages)
            if known is not None:
                return sympy.true if known else sympy.false
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            raise UnraisableError("Python code that depends on the number of nodes, edges or messages", line)
        guards = len(self.guards)
        result = super().evaluate_expr(*args, **kwargs)
        new = len(self.guards) > guards and not str(self.guards[-1].expr).startswith("Ne(")
        if new and self.culprit is None and self.recorder is not None:
            self.culprit = self.recorder.inside, self.recorder.line
        return result

    def _get_stack_summary(self, is_debug: bool = False, framework_loc: str | None = None) -> Any:
        """As in torch, which imports its exporter to find a line for its log; errors here have the user's anyway."""
        return super()._get_stack_summary(is_debug, framework_loc or "a user function")


class Counts(ShapeEnv):
    """Symbolic sizes on which any code may branch: each condition is kept, and asked again of other sizes."""

    def _get_stack_summary(self, is_debug: bool = False, framework_loc: str | None = None) -> Any:
        """As of :class:`Sizes`."""
        return super()._get_stack_summary(is_debug, framework_loc or "a module")
