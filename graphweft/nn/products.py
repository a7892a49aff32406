"""Dense products in the forward code of message-passing modules run on the kernels that compiled programs use.

Comes in: torch functions, while a module's ``forward`` runs on large inputs. Goes out: for a product of many float32
rows by a weight the native kernels' result, in torch's graph; everything else as it was. User functions are compiled,
the code around them is plain torch; most of its time is in these products, where the kernels take half as long and
their memory is the pool's. Called by ``message_passing.py``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graphweft._torch_private import forward_ad_is_on, transforms_are_on
from graphweft.runtime import dense
from graphweft.runtime.epilogue import Epilogue

_MANY = 1 << 13  # rows from which a product is worth it
_WIDEST = 1 << 9  # columns of the operands: the kernels are for tall matrices


class _Product(torch.autograd.Function):
    """``x @ w + bias``, ``w`` perhaps transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
        """Shape: x (n, k), w (k, m) or transposed (m, k), bias (m,) -> (n, m)."""
        ctx.save_for_backward(x, w)
        ctx.transposed = transposed
        return dense.matmul(x, w, transposed=transposed, epilogue=None if bias is None else Epilogue(bias=bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, w and bias; by torch where they are to be differentiated again."""
        (g,), (x, w), (of_x, of_w, of_bias, _) = gradients, ctx.saved_tensors, ctx.needs_input_grad
        again = torch.is_grad_enabled()
        dx = dw = None
        if of_x:
            dx = g @ (w if ctx.transposed else w.t()) if again else dense.matmul(g, w, transposed=not ctx.transposed)
        if of_w:
            left, right = (g, x) if ctx.transposed else (x, g)
            dw = left.t() @ right if again else dense.matmul_tn(left, right)
        return dx, dw, (g.sum(0) if again else dense.col_sum(g)) if of_bias else None, None


def _matmul(x: Any, w: Any) -> Tensor | None:
    if not _fits(x, w) or x.shape[1] != w.shape[0]:
        return None
    made: Tensor = _Product.apply(x, w, None, False)  # type: ignore[no-untyped-call]
    return made


def _linear(x: Any, w: Any, bias: Any = None) -> Tensor | None:
    if not _fits(x, w) or x.shape[1] != w.shape[1]:
        return None
    if bias is not None and not (_is_plain(bias) and bias.shape == (w.shape[0],)):
        return None
    made: Tensor = _Product.apply(x, w, bias, True)  # type: ignore[no-untyped-call]
    return made


_PRODUCTS: dict[Any, Callable[..., Tensor | None]] = {
    torch.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.matmul: _matmul,
    Tensor.mm: _matmul,
    Tensor.__matmul__: _matmul,
    nn.functional.linear: _linear,
}


def _is_plain(item: Any) -> bool:
    """Whether ``item`` is float32 numbers in this machine's memory, and no tracer's stand-in."""
    return (
        type(item) in (Tensor, nn.Parameter)
        and item.dtype is torch.float32
        and item.is_cpu
        and item.layout is torch.strided
        and not item.is_inference()
    )


def _fits(x: Any, w: Any) -> bool:
    """Whether the product of many rows by a weight is one for the kernels."""
    if not _is_plain(x) or not _is_plain(w) or x.dim() != 2 or w.dim() != 2:
        return False
    return bool(x.shape[0] >= _MANY and w.numel() and max(w.shape) <= _WIDEST)


class _Products(TorchFunctionMode):
    """Runs products on the kernels."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        product = _PRODUCTS.get(func)
        if product is not None and not kwargs and not _STATE.paused and not torch.is_autocast_enabled("cpu"):
            made = product(*args)
            if made is not None:
                return made
        return func(*args, **(kwargs or {}))


class _State(threading.local):
    """Whether user functions are being recorded or run, which are none of this module's business."""

    paused = False


_STATE = _State()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Leaves products as they are."""
    before, _STATE.paused = _STATE.paused, True
    try:
        yield
    finally:
        _STATE.paused = before


def on_kernels(inputs: tuple[Any, ...]) -> contextlib.AbstractContextManager[Any]:
    """The mode for a forward pass on ``inputs``; nothing where they are small or torch transforms what runs."""
    large = any(isinstance(x, Tensor) and x.dim() >= 1 and x.shape[0] >= _MANY for x in inputs)
    if not large or transforms_are_on() or forward_ad_is_on():
        return contextlib.nullcontext()
    return _Products()


__all__ = ["on_kernels", "paused"]
