"""Dense products in the forward code of message-passing modules run on the kernels that compiled programs use.

Comes in: torch functions, while a module's ``forward`` runs on large inputs. Goes out: for a product of many float32
rows by a weight the native kernels' result, in torch's graph; everything else as it was. User functions are compiled,
the code around them is plain torch; most of its time is in these products, where the kernels take half as long and
their memory is the pool's. ``gw.explain`` counts them, ``config(forward_products=False)`` leaves them to torch. Called
by ``message_passing.py``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graphweft import _config
from graphweft._torch_private import forward_ad_is_on, transforms_are_on
from graphweft.runtime import dense
from graphweft.runtime.epilogue import Epilogue

MANY = 1 << 13  # rows from which a product is worth it, and one before a sum is worth a look
_WIDEST = 1 << 9  # columns of the operands: the kernels are for tall matrices


class _Product(torch.autograd.Function):
    """``x @ w + bias``, ``w`` perhaps transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
        """Shape: x (n, k), w (k, m) or transposed (m, k), bias (m,) -> (n, m)."""
        ctx.save_for_backward(x, w)
        ctx.set_materialize_grads(False)
        ctx.transposed, ctx.has_bias = transposed, bias is not None
        return dense.matmul(x, w, transposed=transposed, epilogue=None if bias is None else Epilogue(bias=bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of x, w and bias; by torch where they are to be differentiated again."""
        (g,), (x, w), (of_x, of_w, of_bias, _) = gradients, ctx.saved_tensors, ctx.needs_input_grad
        if g is None:  # its gradient went another way (factored.py)
            return None, None, None, None
        again = torch.is_grad_enabled()
        dx = dw = None
        if of_x:
            dx = g @ (w if ctx.transposed else w.t()) if again else dense.matmul(g, w, transposed=not ctx.transposed)
        if of_w:
            left, right = (g, x) if ctx.transposed else (x, g)
            dw = left.t() @ right if again else dense.matmul_tn(left, right)
        return dx, dw, (g.sum(0) if again else dense.col_sum(g)) if of_bias else None, None


def factors_of(node: Any) -> tuple[Any, ...] | None:
    """Rows and weight of a product on the kernels by its node in torch's graph, as ``multiplied`` asks for them."""
    if getattr(node, "_forward_cls", None) is not _Product:
        return None
    x, w = node.saved_tensors
    return x, w.t() if node.transposed else w, 0, 1, 2 if node.has_bias else None


def product(x: Tensor, w: Tensor) -> Tensor:
    """``x @ w`` on the kernels, in torch's graph: value and gradients have the same bits for any number of threads.

    By torch, whose products of many rows by a vector have not, where it transforms the call or for other dtypes.

    Shape: x (n, k), w (k, m) -> (n, m).

    Example:
        >>> product(torch.ones(2, 3), torch.ones(3, 1)).tolist()
        [[3.0], [3.0]]
    """
    if not (is_plain(x) and is_plain(w)) or transforms_are_on() or forward_ad_is_on():
        return x @ w
    out: Tensor = _Product.apply(x, w, None, False)  # type: ignore[no-untyped-call]
    return out


def _is_product(x: Any, w: Any) -> bool:
    return _fits(x, w) and x.shape[1] == w.shape[0]


def _is_linear(x: Any, w: Any, bias: Any = None) -> bool:
    has_bias = bias is not None
    return _fits(x, w) and x.shape[1] == w.shape[1] and (not has_bias or (is_plain(bias) and bias.shape == w.shape[:1]))


# which calls are taken, and whether the weight is transposed
_PRODUCTS: dict[Any, tuple[Callable[..., bool], bool]] = {
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__), (_is_product, False)),
    nn.functional.linear: (_is_linear, True),
}


def is_plain(item: Any) -> bool:
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
    if not is_plain(x) or not is_plain(w) or x.dim() != 2 or w.dim() != 2:
        return False
    return bool(x.shape[0] >= MANY and w.numel() and max(w.shape) <= _WIDEST)


class _Products(TorchFunctionMode):
    """Runs products on the kernels."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        takes, transposed = _PRODUCTS.get(func, (None, False))
        if takes is None or kwargs or _STATE.paused or torch.is_autocast_enabled("cpu") or not takes(*args):
            return func(*args, **(kwargs or {}))
        if _STATE.counted is not None:
            _STATE.counted.append(func)
            return func(*args)
        x, w, bias = (*args, None)[:3]
        return _Product.apply(x, w, bias, transposed)  # type: ignore[no-untyped-call]


class _State(threading.local):
    """What is done with products on this thread.

    Attributes:
        paused: Nothing: user functions are being recorded or run, which are none of this module's business.
        counted: They are torch's, and these are those that would not be; None: they run on the kernels.
    """

    paused = False
    counted: list[Any] | None = None


_STATE = _State()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Leaves products as they are."""
    before, _STATE.paused = _STATE.paused, True
    try:
        yield
    finally:
        _STATE.paused = before


@contextlib.contextmanager
def counted() -> Iterator[list[Any]]:
    """Leaves products as they are, and lists those that would run on the kernels."""
    before, _STATE.counted = _STATE.counted, []
    try:
        yield _STATE.counted
    finally:
        _STATE.counted = before


def on_kernels(inputs: tuple[Any, ...]) -> contextlib.AbstractContextManager[Any]:
    """The mode for a forward pass on ``inputs``; nothing where they are small or torch transforms what runs.

    Nor is there one under ``config(forward_products=False)``.
    """
    large = any(isinstance(x, Tensor) and x.dim() >= 1 and x.shape[0] >= MANY for x in inputs)
    if not large or not _config.current().forward_products or transforms_are_on() or forward_ad_is_on():
        return contextlib.nullcontext()
    return _Products()


__all__ = ["MANY", "counted", "factors_of", "is_plain", "on_kernels", "paused", "product"]
