"""Runs user code so that it cannot harm the caller's tensors and its failures name fields and lines.

Comes in: every torch function that user code calls. Goes out: the same call on tensors that belong to this run: one
from outside (captured, a parameter of a module) is cloned, in torch's graph, when it is first touched, so in-place
operations stay inside. Buffers of captured modules are state (batch norm's statistics) and are written as usual. A bare
``squeeze()`` keeps the dimensions that count nodes, edges or messages. Called by the reference executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from graphweft._errors import DtypeError, ShapeError, UserCodeError
from graphweft._torch_private import pytree
from graphweft.frontend.source import current_line

_BARE_SQUEEZE = {torch.squeeze, Tensor.squeeze, Tensor.squeeze_}
READS_VALUES = {
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.item,
    Tensor.tolist,
    Tensor.numpy,
    torch.equal,
    torch.allclose,
    torch.is_nonzero,
}
_CASTS = {
    torch.float32: ".float()",
    torch.float64: ".double()",
    torch.float16: ".half()",
    torch.bfloat16: ".bfloat16()",
}
Dropped = tuple[int, ...]


class Shield(TorchFunctionMode):
    """The mode under which one user function runs.

    Args:
        stage: ``message``, ``reduce`` or ``update``.
        state: Ids of tensors that may be written: buffers of captured modules.
        guarded: Sizes that a bare squeeze must keep at the leading axes: (edges,), (nodes, messages) or (nodes,).
        squeezes: Which axes the k-th bare squeeze drops, asked for only where sizes of 1 make it ambiguous.
    """

    def __init__(
        self, stage: str, state: set[int], guarded: tuple[int, ...], squeezes: Callable[[], list[Dropped]]
    ) -> None:
        super().__init__()
        self._stage, self._state, self._guarded, self._squeezes = stage, state, guarded, squeezes
        self._fields: Any = WeakTensorKeyDictionary()  # tensor of this run -> names of the fields it depends on
        self._shadows: dict[int, tuple[Tensor, Tensor]] = {}
        self._grad = torch.is_grad_enabled()
        self.dropped: list[Dropped] = []
        self.failure: Exception | None = None  # the last one of a torch function

    def recording(self) -> torch.set_grad_enabled:
        """The gradient mode of the call, also where user code has switched gradients off."""
        return torch.set_grad_enabled(self._grad)

    def own(self, tensor: Tensor, field: str) -> Tensor:
        """Takes a fresh tensor that holds ``field`` into this run."""
        self._fields[tensor] = frozenset((field,))
        return tensor

    def resolve(self, item: Any) -> Any:
        """What a tensor from outside has become in this run."""
        if not isinstance(item, Tensor) or item in self._fields or id(item) in self._state:
            return item
        if id(item) not in self._shadows:
            with self.recording():
                shadow = torch.clone(item)
            self._fields[shadow] = frozenset()
            self._shadows[id(item)] = (item, shadow)
        return self._shadows[id(item)][1]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map(self.resolve, (args, kwargs or {}))
        operands = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
        fields = frozenset().union(*(self._fields.get(a, frozenset()) for a in operands))
        if func in READS_VALUES and fields and self._stage == "reduce":
            raise UserCodeError(
                f"reduce: expected tensor code, got a Python branch on values of {', '.join(sorted(fields))}: nodes "
                f"are reduced independently of each other ({current_line()})"
            )
        if func in _BARE_SQUEEZE and len(args) == 1 and not kwargs:
            dims = self._squeeze(args[0], fields)
            args, self.dropped = (*args, dims), [*self.dropped, dims]
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, IndexError, ValueError, TypeError) as failure:
            if type(failure) not in (RuntimeError, IndexError, ValueError, TypeError):
                raise
            self.failure = self._located(func, operands, failure)
            raise self.failure from failure
        for made in pytree.tree_leaves(result):
            if isinstance(made, Tensor) and id(made) not in self._state:
                self._fields[made] = fields | self._fields.get(made, frozenset())
        return result

    def _squeeze(self, tensor: Tensor, fields: frozenset[str]) -> Dropped:
        ones = tuple(axis for axis, size in enumerate(tensor.shape) if size == 1)
        axes = [axis for axis, size in enumerate(self._guarded) if size == 1 and axis in ones]
        if not axes or not fields:
            return ones
        planned = self._squeezes()
        if len(planned) > len(self.dropped):
            dims = planned[len(self.dropped)]
            return tuple(axis for axis in dims if axis in ones)
        return tuple(axis for axis in ones if axis not in axes)

    def _located(self, func: Callable[..., Any], operands: list[Tensor], failure: Exception) -> Exception:
        """The failure of one torch function with the fields and sizes it was called on and the user's line."""
        name = getattr(func, "__name__", str(func))
        shown = []
        for tensor in operands:
            fields = ", ".join(sorted(self._fields.get(tensor, ()))) or "a captured tensor"
            shown.append(f"{fields} of shape {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}")
        reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
        line = current_line()
        text = f"{self._stage}: {name} on {' and '.join(shown) or 'no tensor'}: {reason} ({line})"
        if "dtype" in reason or "Float" in reason or "Long" in reason:
            return DtypeError(text.replace(f" ({line})", f"{self._cast(operands)} ({line})"))
        return ShapeError(text) if operands else UserCodeError(text)

    def _cast(self, operands: list[Tensor]) -> str:
        """The field to cast, and how: to the dtype of a weight where one takes part, else to a floating dtype."""
        fields = [t for t in operands if self._fields.get(t)]
        weights = [t.dtype for t in operands if not self._fields.get(t) and t.is_floating_point()]
        wanted = weights[0] if weights else next((t.dtype for t in fields if t.is_floating_point()), torch.float32)
        wrong = next((t for t in fields if t.dtype != wanted), None)
        if wrong is None or wanted not in _CASTS:
            return ""
        return f"; cast {', '.join(sorted(self._fields[wrong]))} by {_CASTS[wanted]}"
