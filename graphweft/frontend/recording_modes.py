"""The two modes of torch under which a module's forward is recorded.

Comes in: functions of torch that code calls, and the ATen operations below them. Goes out: lines and names for the
recorder, functions taken as something else, and every operation handed to it. Entered by ``recorder.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphweft._torch_private import TorchDispatchMode, pytree, without_modes
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.operands import leaves
from graphweft.frontend.shield import READS_VALUES
from graphweft.frontend.source import UNKNOWN, current_line
from graphweft.frontend.trace import IN_PLACE_OF, REFUSED

_MAKERS = {torch.tensor, torch.as_tensor, torch.scalar_tensor}
# what depends on who wants gradients, and on earlier calls
_ASKS: Any = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_WANTS: set[Any] = {Tensor.requires_grad.__set__, Tensor.requires_grad_}  # type: ignore[attr-defined]
_HISTORY: set[Any] = {
    Tensor.grad.__get__,  # type: ignore[union-attr]
    Tensor.grad_fn.__get__,  # type: ignore[union-attr]
    Tensor.is_leaf.__get__,  # type: ignore[attr-defined]
    Tensor.retain_grad,
}


class GradientsAskedError(UnraisableError):
    """Code asks which tensors want gradients, which stand-ins tell where they are recorded with gradients."""


class Dispatching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands ATen operations to a recorder, of the class of `recorder.py`."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder, args = self._recorder, tuple(args)
        if recorder.saved.is_copy(func, args) and recorder.is_moving(args[0]):
            return recorder.kept_for_backward(args[0])
        if torch.is_autocast_enabled("cpu"):  # it had its part above; what an operation is made of is not cast again
            with torch.autocast("cpu", enabled=False):
                made = recorder.dispatch(func, args, dict(kwargs or {}))
        else:
            made = recorder.dispatch(func, args, dict(kwargs or {}))
        # a new tensor that somebody holds is copied by the function that makes it
        recorder.saved.ran([x for x in leaves(made) if isinstance(x, Tensor) and recorder.is_moving(x)])
        return made


class Calls(TorchFunctionMode):
    """Notes lines, and takes some functions of torch as something else."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder, kwargs = self._recorder, kwargs or {}
        recorder.saved.called()
        line = current_line()
        recorder.line = recorder.line if line == UNKNOWN else line
        recorder.call = getattr(func, "__name__", str(func))
        if func in REFUSED:
            raise UnraisableError(REFUSED[func], recorder.line)
        if func in READS_VALUES:
            self._check_read(func, args)
        made = recorder.matrices.call(func, args, kwargs)
        if made is not NotImplemented:
            return made
        if func in _HISTORY and recorder.is_moving(args[0]):
            raise UnraisableError("gradients of earlier calls, or how a tensor was made", recorder.line)
        if func == _ASKS and recorder.is_moving(args[0]):
            recorder.asked()
        if func in _WANTS and recorder.is_moving(args[0]):
            recorder.wanted(args[0], bool(args[1] if len(args) > 1 else kwargs.get("requires_grad", True)))
        if func in _MAKERS:
            return self._made(func, args, kwargs)
        moving = any(isinstance(x, Tensor) and recorder.is_moving(x) for x in leaves((args, kwargs)))
        if func in IN_PLACE_OF and (moving or recorder.call.startswith("dropout")):
            func = IN_PLACE_OF[func]
        return func(*args, **kwargs)

    def _check_read(self, func: Any, args: Any) -> None:
        """Python may read structure only."""
        for tensor in pytree.tree_leaves(args):
            if isinstance(tensor, Tensor):
                if self._recorder.is_moving(tensor):
                    what = "branch on" if func.__name__.startswith("__") else "use of"
                    raise UnraisableError(f"a Python {what} tensor values", self._recorder.line)
                self._recorder.check_known(tensor)

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A tensor made of Python numbers."""
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, np.ndarray) for leaf in leaves):
            raise UnraisableError("a tensor made of a NumPy array", self._recorder.line)
        if any(isinstance(leaf, Tensor) for leaf in leaves):
            return func(*args, **kwargs)
        with without_modes():
            made = func(*args, **kwargs)
        return self._recorder.know(made)


__all__ = ["Calls", "Dispatching", "GradientsAskedError"]
