"""What ranks agree on around their epochs: where a run stands, and when to stop.

Comes in: the ranks. Goes out: the state in the run folder, on every rank; a request to stop that reaches all. Called by
the trainer.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from graphweft._errors import ConfigError
from graphweft.data.part_dataset import PartDataset
from graphweft.dist.ranks import Ranks
from graphweft.train.interrupt import StopRequest
from graphweft.train.rank_options import check_together
from graphweft.train.run_folder import read_last


def shared_stop(ranks: Ranks) -> StopRequest:
    """A request to stop that any rank may get; all stop after the same epoch."""
    return StopRequest(lambda signum: ranks.agreed(signum or 0) or None)


def read_shared(ranks: Ranks, folder: Path | None) -> dict[str, Any] | None:
    """The state in the run folder of rank 0; None when there is none yet.

    Raises: CheckpointError on every rank when the file is damaged.
    """
    if ranks.size == 1:
        return None if folder is None else read_last(folder)

    def read() -> bytes | None:
        state = None if folder is None else read_last(folder)
        if state is None:
            return None
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    data = ranks.from_first(read)
    if data is None:
        return None
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


def check_shared(ranks: Ranks, task: str, mode: str, loss: Any, class_weight: Any, ds: Any = None) -> Ranks:
    """``ranks``. Raises: ConfigError for what they cannot train together yet, and for other parts.

    A part of a graph is trained on in full batches, by as many ranks as there are parts.
    """
    if isinstance(ds, PartDataset):
        for name, given, wanted in (("mode", mode, "full"), ("task", task, "nodes")):
            if given != wanted:
                raise ConfigError(f"{name}={given} cannot be combined with parts; expected {wanted}")
        if (parts := len(ds.manifest.parts)) != ranks.size:
            raise ConfigError(f"ranks: expected as many as {ds.name} has parts, {parts}, got {ranks.size}")
    check_together(ranks.size, ranks.reduce, ranks.halo, task, mode, loss, class_weight)
    return ranks
