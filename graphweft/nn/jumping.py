"""Jumping knowledge (Xu et al., ICML 2018): the rows of all layers of a model made one.

Comes in: the rows that the layers of a model gave. Goes out: rows of nodes. Plain torch, for models that call their
layers one by one; the models of this room have ``jumping=`` for the first two modes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphweft._errors import ConfigError, ShapeError
from graphweft.nn.made_with import KeepsArguments

MODES = ("cat", "max", "lstm")


class JumpingKnowledge(KeepsArguments, nn.Module):
    """Combines the rows of several layers: joined, their maximum, or their mean weighted by an LSTM over the layers.

    Args:
        mode: ``"cat"``, ``"max"`` or ``"lstm"``.
        channels: Columns of a layer's rows; only for ``"lstm"``.
        num_layers: Number of layers; only for ``"lstm"``.

    Raises: ConfigError for another mode, or for sizes without ``"lstm"``.

    Example:
        >>> rows = [torch.ones(3, 4), 2 * torch.ones(3, 4)]
        >>> JumpingKnowledge("cat")(rows).shape, JumpingKnowledge("max")(rows).max().item()
        (torch.Size([3, 8]), 2.0)
    """

    def __init__(self, mode: str, channels: int | None = None, num_layers: int | None = None) -> None:
        super().__init__()
        if mode not in MODES:
            raise ConfigError(f"JumpingKnowledge: expected mode among {', '.join(MODES)}, got {mode!r}")
        for name, size in (("channels", channels), ("num_layers", num_layers)):
            if mode != "lstm" and size is not None:
                raise ConfigError(f"JumpingKnowledge: {name}={size} cannot be combined with mode={mode!r}")
            if mode == "lstm" and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise ConfigError(f"JumpingKnowledge: expected {name} >= 1 with mode='lstm', got {size!r}")
        self.mode, self.num_layers = mode, num_layers
        self.lstm: nn.LSTM | None = None
        self.att: nn.Linear | None = None
        if channels is not None and num_layers is not None:
            half = max(num_layers * channels // 2, 1)
            self.lstm = nn.LSTM(channels, half, bidirectional=True, batch_first=True)
            self.att = nn.Linear(2 * half, 1)

    def forward(self, rows: Sequence[Float[Tensor, "nodes channels"]]) -> Float[Tensor, "nodes joined"]:
        """Shape: ``num_layers`` tensors (nodes, channels) -> (nodes, num_layers * channels) for ``"cat"``, else (nodes,
        channels).

        Raises: ShapeError for no rows, or another number of layers than that of the constructor.
        """
        if not rows or self.num_layers not in (None, len(rows)):
            wanted = "the rows of at least one layer" if self.num_layers is None else f"{self.num_layers} layers' rows"
            raise ShapeError(f"JumpingKnowledge: expected {wanted}, got {len(rows)}")
        if self.mode == "cat":
            return torch.cat(list(rows), dim=-1)
        if self.lstm is None or self.att is None:
            return torch.stack(list(rows), dim=-1).max(dim=-1).values
        layers = torch.stack(list(rows), dim=1)
        weights = self.att(self.lstm(layers)[0]).softmax(dim=1)
        out: Tensor = (layers * weights).sum(dim=1)
        return out


__all__ = ["JumpingKnowledge"]
