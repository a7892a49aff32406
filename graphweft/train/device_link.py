"""Link prediction on the device of the model.

Comes in: what a :class:`LinkTask` takes, with a model on a device. Goes out: updates of that model. The CPU draws the
batches, whose rows are sent; embeddings are evaluated on the device, and scored in host memory. Made by ``steps.py``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphweft.data.dataset import Dataset
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.train.device_batches import DeviceMiniBatch
from graphweft.train.link_task import LinkTask
from graphweft.train.metrics import Evaluation


class DeviceLinkTask(DeviceMiniBatch, LinkTask):
    """As :class:`LinkTask`, with the same batches and negatives. Sparse features are dense there."""

    def _training(self, ds: Dataset, x: Features) -> tuple[Dataset, Any]:
        return super()._training(ds, x.to_dense() if isinstance(x, SparseFeatures) else x)

    def _gradients(self, batch: Any, weight: int = 1) -> Tensor:
        return super()._gradients(batch.to(self.device, non_blocking=True), weight)

    def evaluate(self) -> Evaluation:
        """Scores of held-out pairs, from embeddings in host memory."""
        return LinkTask.evaluate(self)


__all__ = ["DeviceLinkTask"]
