"""Features of a run in bfloat16, beside those of the dataset.

Comes in: dense float32 features on the CPU. Goes out: the same rounded, made once and kept up with. Called by the ways
to train an epoch with ``precision="bf16"``, where all that reads the features takes such rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from graphweft import _config
from graphweft.runtime.constants import Reference
from graphweft.runtime.feature_types import in_half
from graphweft.runtime.plan import Plan
from graphweft.storage.feature import Features, is_dense


class HalfFeatures:
    """The features of a run in bfloat16.

    Args:
        x: Dense float32 features on the CPU.
        on_lines: Whether rows are read one by one, and may take a third more memory for it.

    Attributes:
        given: Those features.
        rows: The same in bfloat16.
    """

    def __init__(self, x: Tensor, on_lines: bool = False) -> None:
        self.given, self._seen = x, Reference(x)
        self.rows = in_half(x, on_lines)

    @property
    def nbytes(self) -> int:
        """Memory that the rows take."""
        return self.rows.shape[0] * self.rows.stride(0) * self.rows.itemsize

    def refresh(self) -> None:
        """Rounds again what has changed."""
        if self._seen != (now := Reference(self.given)):
            self.rows.copy_(self.given)
            self._seen = now


def stores_half(x: Features, plans: Iterable[Plan]) -> bool:
    """Whether a run over ``x`` reads it in bfloat16: it was asked for, and every reader of all ``plans`` can."""
    if _config.current().precision != "bf16" or not is_dense(x) or x.dtype != torch.float32 or x.requires_grad:
        return False
    return x.is_cpu and all(plan.takes_half for plan in plans)


__all__ = ["HalfFeatures", "stores_half"]
