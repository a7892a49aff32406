"""Private parts of torch that the package stands on, under names of our own.

Comes in: torch. Goes out: functions and classes. ``_torch_recording.py`` has those that recording needs, which take
longer to import; no other module uses private parts of torch. ``tests/test_torch_private.py`` tests what is relied on,
so a version of torch that changes one of them fails there, by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import get_gradient_edge
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes

__all__ = [
    "NATIVE_FUNCTIONS",
    "Multiplied",
    "TorchDispatchMode",
    "default_device_is_elsewhere",
    "eval_frame_callback",
    "foreach_add",
    "foreach_lerp",
    "foreach_mul",
    "forward_ad_is_on",
    "free_product_buffers",
    "hosted",
    "is_followed_everywhere",
    "is_watched_tensor",
    "is_wrapped",
    "mark_stepped",
    "multiplied",
    "on_host",
    "parse_to",
    "plainly",
    "pytree",
    "saved_tensor_hooks_are_on",
    "step_is_watched",
    "stored_entries",
    "trace_state",
    "transforms_are_on",
    "without_functions",
    "without_modes",
    "without_subclasses",
    "without_transforms",
    "wrapper_subclass",
]

P = ParamSpec("P")
R = TypeVar("R")

# bool: inside torch.func.grad, vmap and the like, which wrap the tensors that they give on
transforms_are_on = torch._C._are_functorch_transforms_active
# context: tensors that are made inside are plain ones, also within a transform
without_transforms = torch._C._DisableFuncTorch
# None but inside torch.jit.trace
trace_state = torch._C._get_tracing_state
# None where torch.compile watches nothing; asking does not load its compiler, which takes seconds
eval_frame_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
# contexts: functions of torch ignore __torch_function__ of tensors, or of tensors and modes
without_subclasses = torch._C.DisableTorchFunctionSubclass
without_functions = torch._C.DisableTorchFunction
# (class, shape, dtype=) -> a tensor of that class that has no memory
wrapper_subclass = torch.Tensor._make_wrapper_subclass
# (tensors, others, share): moves each tensor towards its other by that share, all in one call
foreach_lerp = torch._foreach_lerp_
# (tensors, number): adds a number to each; and each times a number, as new tensors
foreach_add, foreach_mul = torch._foreach_add_, torch._foreach_mul
# of a sparse matrix, how many entries it stores
stored_entries = torch.Tensor._nnz
# of one in coordinates, coalesced or not, where its entries are and their values
stored_places, stored_values = torch.Tensor._indices, torch.Tensor._values
# the module in which torch.nn.functional's native functions live, as their __module__ says
NATIVE_FUNCTIONS = torch._C._nn


def plainly(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, in which torch makes plain tensors in host memory, whatever transform or default device is on."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with without_transforms(), without_functions():
            return function(*args, **kwargs)

    return call


def default_device_is_elsewhere() -> bool:
    """Whether tensors are made in another memory than the host's where nobody says which."""
    return bool(torch._C._len_torch_function_stack()) and torch.get_default_device().type != "cpu"


def hosted(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, run as without a default device."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with on_host():
            return function(*args, **kwargs)

    return call


def on_host() -> contextlib.AbstractContextManager[Any]:
    """A context in which tensors are made in host memory where nobody says otherwise, as without a default device."""
    return torch.device("cpu") if default_device_is_elsewhere() else contextlib.nullcontext()


@contextlib.contextmanager
def with_gradients() -> Iterator[None]:
    """Records gradients, whatever the caller's mode is: training under ``torch.no_grad()`` would change nothing."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def saved_tensor_hooks_are_on() -> bool:
    """Whether the caller has hooks on what autograd saves, as activation checkpointing and offloading have."""
    return bool(torch._C._autograd._top_saved_tensors_default_hooks(True))


def forward_ad_is_on() -> bool:
    """Whether forward-mode differentiation is under way."""
    return forward_ad._current_level >= 0


def is_wrapped(x: Tensor) -> bool:
    """Whether ``x`` stands for many tensors at once, as ``is_grads_batched`` and ``vmap`` make them."""
    kinds = torch._C._functorch
    return bool(kinds.is_legacy_batchedtensor(x) or kinds.is_functorch_wrapped_tensor(x))


class Multiplied(NamedTuple):
    """Where a tensor came from, as torch's graph says: ``rows @ weight + bias``, perhaps seen in another shape.

    Attributes:
        rows, weight, bias: Shapes (n, k), (k, m) and (m,), in torch's graph.
        product: The product itself, (n, m).
    """

    rows: Tensor
    weight: Tensor
    bias: Tensor | None
    product: Tensor


_VIEWS = ("ViewBackward0", "ReshapeAliasBackward0")


def multiplied(z: Tensor, own: Callable[[Any], tuple[Any, ...] | None]) -> Multiplied | None:
    """The factors of ``z`` where it is a product as it was made, or one view of it; None for all else.

    ``own``: for a node of an autograd function what is known of it: rows and weight, each or None where the place has
    to tell, and the places of rows, weight and bias among its inputs; None for another function.
    """
    node: Any = z.grad_fn
    product = z
    if node is None or z._version:
        return None
    if node.name() in _VIEWS:
        base: Tensor | None = z._base
        if base is None or base.grad_fn is not node.next_functions[0][0]:
            return None
        node, product = base.grad_fn, base
    try:
        found = _operands(node, own) if product.dim() == 2 else None
    except RuntimeError:  # operands that were written over meanwhile
        return None
    if found is None:
        return None
    rows, weight, *places = found
    by_place = [None if place is None else _leaf(node.next_functions[place][0]) for place in places]
    rows, weight = (x if x is not None else leaf for x, leaf in zip((rows, weight), by_place, strict=False))
    if rows is None or weight is None or (places[2] is not None and (by_place[2] is None or by_place[2].dim() != 1)):
        return None
    return Multiplied(rows, weight, by_place[2], product)


def _operands(node: Any, own: Callable[[Any], tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
    """What a product's node saved for its gradients, and the places of its operands among its inputs."""
    if node.name() == "MmBackward0":
        return node._saved_self, node._saved_mat2, 0, 1, None
    if node.name() == "AddmmBackward0":
        plain = node._saved_alpha == 1 and node._saved_beta == 1
        return (node._saved_mat1, node._saved_mat2, 1, 2, 0) if plain else None
    return own(node)


def _leaf(node: Any) -> Tensor | None:
    """The leaf, perhaps transposed, that a node of torch's graph gives its gradient to."""
    if node is None:
        return None
    if node.name() == "TBackward0":
        leaf = _leaf(node.next_functions[0][0])
        return None if leaf is None else leaf.t()
    found: Tensor | None = node.variable if node.name().endswith("AccumulateGrad") else None
    return found


def is_watched_tensor(x: Tensor) -> bool:
    """Whether somebody wants to be told of the gradient by a tensor inside torch's graph."""
    return bool(x._backward_hooks) or x.retains_grad


def is_followed_everywhere(leaf: Tensor) -> bool:
    """Inside a backward pass that reaches ``leaf``: whether it goes to all leaves, not to tensors that were named."""
    return bool(torch._C._will_engine_execute_node(get_gradient_edge(leaf).node))


def mark_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Schedulers of the learning rate see that the optimiser has stepped, though a copy of it did."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def step_is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a profiler or a hook wants to be told of the optimiser's steps."""
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    everywhere = _global_optimizer_pre_hooks or _global_optimizer_post_hooks
    return bool(hooks or everywhere or torch._C._autograd._profiler_enabled())


def parse_to(*args: Any, **kwargs: Any) -> tuple[torch.device | None, torch.dtype | None]:
    """Device and dtype that arguments of ``Tensor.to`` ask for."""
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    return device, dtype


def free_product_buffers() -> None:
    """Gives back what torch's products keep for the next ones: MKL's of float64 some megabytes a thread."""
    free = _product_buffers()
    if free is not None:
        free()


@functools.cache
def _product_buffers() -> Callable[[], object] | None:
    """What frees them; None where torch has another library for products."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None
    free: Callable[[], object] | None = getattr(library, "mkl_serv_free_buffers", None)
    return free
