"""The way of torch's functions that are called on sparse features.

Comes in: a function of torch, called with :class:`SparseFeatures` among its arguments. Goes out: its result, from the
handler that serves the function; else from dense rows, after a warning with their size. Handlers are in
``torch_functions.py`` and ``torch_rows.py``; one returns ``NotImplemented`` where it needs dense rows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from graphweft._errors import GraphError
from graphweft._torch_private import eval_frame_callback, without_subclasses
from graphweft.storage.dense_rows import dense_rows
from graphweft.storage.feature import SparseFeatures

HANDLERS: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {}

# what torch answers from sizes, dtype and device alone
_METADATA = frozenset({
    "size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_complex", "is_signed", "element_size",
    "stride", "storage_offset", "is_contiguous", "is_same_size", "get_device", "is_inference", "is_shared", "is_pinned",
    "is_neg", "is_conj", "_is_view", "__dir__", "result_type", "can_cast", "register_hook", "retain_grad", "dim_order",
    "is_coalesced", "has_names", "sym_size", "sym_numel", "_is_zerotensor", "is_set_to",
})  # fmt: skip
# what torch reads of an argument that only gives a shape, dtype or device
_SHAPED = frozenset({
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros",
    "new_ones", "new_empty", "new_full", "new_tensor", "expand_as", "view_as", "reshape_as", "type_as",
})  # fmt: skip


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func(*args, **kwargs)`` of torch, with sparse features somewhere among the arguments."""
    if torch.compiler.is_compiling() or eval_frame_callback() is not None:
        return torch.compiler.disable(_call)(func, args, kwargs)  # type: ignore[no-untyped-call]
    return _call(func, args, kwargs)


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As :func:`call`, where no tracer of torch's watches."""
    name = getattr(func, "__name__", str(func))
    # a package may wrap a function of torch in place, as PyTorch Geometric does index_select; func is the one below
    handler = HANDLERS.get(func) or HANDLERS.get(getattr(torch, name, None))
    if handler is not None:
        made = handler(func, args, kwargs)
        if made is not NotImplemented:
            return made
    if name == "__get__":
        return _attribute(func, args)
    if name in _METADATA:
        with without_subclasses():
            return func(*args, **kwargs)
    _refuse_change(name, args, kwargs)
    if name in _SHAPED:
        return func(*mapped(template, args), **mapped(template, kwargs))
    return _on_dense_rows(name, func, args, kwargs)


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation that torch's own code runs, below the functions of its interface."""
    name = func.overloadpacket.__name__
    if name in ("detach", "alias", "clone"):
        return args[0]
    return _on_dense_rows(name, func, args, kwargs)


# torch's tracer calls them and does not look into them, as with all code that ends in the native core
call._torchdynamo_disable = dispatch._torchdynamo_disable = True  # type: ignore[attr-defined]


def on_device(x: SparseFeatures, device: torch.device) -> Tensor:
    """Dense rows on ``device``: kernels for sparse features are the CPU's."""
    (rows,) = dense_rows(f"to({str(device)!r})", x)
    return rows.to(device)


def _on_dense_rows(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found: dict[int, SparseFeatures] = {}

    def note(x: SparseFeatures) -> SparseFeatures:
        found[id(x)] = x
        return x

    mapped(note, (args, kwargs))
    made = dict(zip(found, dense_rows(name, *found.values()), strict=True))
    return func(*mapped(lambda x: made[id(x)], args), **mapped(lambda x: made[id(x)], kwargs))


def mapped(change: Callable[[SparseFeatures], Any], item: Any) -> Any:
    """``item`` with its sparse features changed, in lists, tuples and dicts too."""
    if isinstance(item, SparseFeatures):
        return change(item)
    if type(item) in (list, tuple):
        return type(item)(mapped(change, part) for part in item)
    if type(item) is dict:
        return {key: mapped(change, part) for key, part in item.items()}
    return item


def template(x: SparseFeatures) -> Tensor:
    """A dense tensor of the same shape and dtype over one element."""
    return x.values.new_zeros(()).expand(x.shape)


def _attribute(func: Any, args: tuple[Any, ...]) -> Any:
    name = getattr(getattr(func, "__self__", None), "__name__", "")
    x = args[0]
    if name in ("T", "mT", "H", "mH"):
        return x.t()
    if name in ("data", "real"):
        return x
    with without_subclasses():
        return func(*args)


def _refuse_change(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises: GraphError where sparse features would be written to, or read past torch."""
    if name in _MEMORY and isinstance(args[0], SparseFeatures):
        raise GraphError(f"{name}: SparseFeatures have no dense memory; to_dense() makes some")
    special = name in ("__setitem__", "__set__", "__delete__") or name in _INPLACE_OPERATORS
    written = name.endswith("_") and not name.endswith("__")
    target = args[0] if args and (special or written) else kwargs.get("out")
    if isinstance(target, SparseFeatures):
        raise GraphError(
            f"{name}: SparseFeatures cannot be changed; use a function that returns a result or to_dense()"
        )


_MEMORY = frozenset({"data_ptr", "untyped_storage", "storage", "const_data_ptr", "mutable_data_ptr", "__dlpack__"})
_INPLACE_OPERATORS = frozenset({
    "__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "__iand__",
    "__ior__", "__ixor__", "__ilshift__", "__irshift__",
})  # fmt: skip


def functions(names: str, *owners: Any) -> list[Any]:
    """The functions of these names that torch has."""
    owners = owners or (torch, Tensor, F, torch.special, torch.linalg)
    return [getattr(owner, name) for name in names.split() for owner in owners if hasattr(owner, name)]


def serves(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a handler that takes the arguments of ``functions``; calls with others need dense rows."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(handler)

        @functools.wraps(handler)
        def bound(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            kwargs = {name: item for name, item in kwargs.items() if item is not None or name in signature.parameters}
            try:
                given = signature.bind(*args, **kwargs)
            except TypeError:
                return NotImplemented
            return handler(*given.args, **given.kwargs)

        HANDLERS.update(dict.fromkeys(functions, bound))
        return handler

    return register
