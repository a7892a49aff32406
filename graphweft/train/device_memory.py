"""What surrounds the work of a run: its precision, its memory budget, and one line where a device's memory is out.

Comes in: the settings, the budget, the model and the mode of a run. Goes out: a context. Called by the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from graphweft import _config
from graphweft._errors import MemoryBudgetError
from graphweft.train.device import device_of
from graphweft.train.needs import RunBudget

_REMEDIES = {
    "full": "lower hidden or layers, take precision='bf16', or train batches with mode='mini'",
    "mini": "lower batch_size, fanouts or hidden",
}
_SIZE = r"([0-9.]+ [KMGT]iB)"


def run_within(settings: dict[str, Any], budget: RunBudget | None, model: Any, mode: str) -> ExitStack:
    """A context that keeps to the precision, and to the memory budget where there is one."""
    stack = ExitStack()
    stack.enter_context(told_of_memory(model, mode))
    stack.enter_context(_config.config(**settings))
    if budget is not None:
        stack.enter_context(budget.within())
    return stack


@contextmanager
def told_of_memory(model: Any, mode: str) -> Iterator[None]:
    """Raises: MemoryBudgetError, with what to lower, where the memory of the model's device is out in the block."""
    try:
        yield
    except RuntimeError as failure:
        if not is_out_of_memory(failure) or device_of(model).type == "cpu":
            raise
        text = str(failure)
        facts = [
            f"{found.group(1)} {what}"
            for what, pattern in (
                ("more asked for", rf"Tried to allocate {_SIZE}"),
                ("in all", rf"total capacity of {_SIZE}"),
                ("free", rf"of which {_SIZE} is free"),
            )
            if (found := re.search(pattern, text))
        ]
        said = f" ({', '.join(facts)})" if facts else ""
        what = "batches" if mode != "full" else "a step on all nodes"
        raise MemoryBudgetError(
            f"device: expected room for {what} in the memory of {device_of(model)}, got none{said}; "
            f"{_REMEDIES.get(mode, _REMEDIES['mini'])}"
        ) from None


def is_out_of_memory(failure: BaseException) -> bool:
    """Whether a device said that its memory is out: torch, a driver, or a library of products."""
    text = str(failure)
    return isinstance(failure, torch.OutOfMemoryError) or "out of memory" in text or "_ALLOC_FAILED" in text


__all__ = ["is_out_of_memory", "run_within", "told_of_memory"]
