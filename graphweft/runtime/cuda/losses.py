"""Losses on a device: one launch for all rows, and one for their mean.

Comes in: outputs and labels there. Goes out: the loss and its gradient. Registered in ``target.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from graphweft.codegen.edge_triton import padded
from graphweft.runtime import losses
from graphweft.runtime.cuda import loss_kernels
from graphweft.runtime.cuda.jit import warps_for

_TILE, _MOST_CLASSES = 512, 4096  # elements of a block; beyond, a row does not fit into a program's registers


def class_loss(outputs: Tensor, labels: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As :func:`graphweft.runtime.losses.class_loss`; in float32 for outputs of 16 bits."""
    count, classes = outputs.shape
    if rows is not None or not 0 < classes <= _MOST_CLASSES:
        return losses.class_loss(outputs, labels, rows)
    outputs, columns = outputs.detach().contiguous(), padded(classes)
    at_once = max(1, _TILE // columns)
    kind = torch.float64 if outputs.dtype == torch.float64 else torch.float32
    single = torch.empty(count, dtype=kind, device=outputs.device)
    slopes = torch.empty_like(outputs)
    # Threads hold copies of sums over classes, so products are rounded by themselves.
    loss_kernels.class_losses(
        (-(-count // at_once),),
        outputs,
        labels.contiguous(),
        single,
        slopes,
        count,
        C=classes,
        BR=at_once,
        BC=columns,
        warps=warps_for(at_once * columns),
        fusion=False,
    )
    return single.mean(), slopes


LOSSES: Mapping[str, losses.Loss] = {**losses.LOSSES, "classes": class_loss}

__all__ = ["LOSSES", "class_loss"]
