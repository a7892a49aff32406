"""Private parts of torch that the package stands on, under names of our own.

Comes in: torch. Goes out: functions and classes. ``_torch_recording.py`` has those that recording needs, which take
longer to import; no other module uses private parts of torch. ``tests/test_torch_private.py`` tests what is relied on,
so a version of torch that changes one of them fails there, by name.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes

__all__ = [
    "NATIVE_FUNCTIONS",
    "TorchDispatchMode",
    "eval_frame_callback",
    "foreach_add",
    "foreach_lerp",
    "foreach_mul",
    "forward_ad_is_on",
    "free_product_buffers",
    "is_wrapped",
    "mark_stepped",
    "parse_to",
    "pytree",
    "saved_tensor_hooks_are_on",
    "step_is_watched",
    "stored_entries",
    "trace_state",
    "transforms_are_on",
    "without_functions",
    "without_modes",
    "without_subclasses",
    "wrapper_subclass",
]

# bool: inside torch.func.grad, vmap and the like, which wrap the tensors that they give on
transforms_are_on = torch._C._are_functorch_transforms_active
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
