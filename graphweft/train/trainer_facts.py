"""What a trainer tells of itself: how far it is, what was chosen and predicted, what was measured.

Comes in: the parts of a trainer. Goes out: facts by name. A base of :class:`graphweft.train.trainer.Trainer`.
"""

from __future__ import annotations

from typing import Any

from graphweft.dist.ranks import Ranks
from graphweft.schedule.verdict import Verdict
from graphweft.storage.feature import Features, is_dense
from graphweft.train.epoch_steps import Steps
from graphweft.train.history import History
from graphweft.train.needs import Needs
from graphweft.train.order_choice import OrderChoice
from graphweft.train.plan import Plan
from graphweft.train.promise import Promise
from graphweft.train.shown import ShownAsFacts
from graphweft.train.stored_mode import StoredMode
from graphweft.train.target import Target
from graphweft.train.tracing import Tracing


class TrainerFacts(ShownAsFacts):
    """The read-only properties of a trainer.

    ``lacks``: options of the run that only the program has which began it, so that nothing goes on without them.
    """

    lacks: tuple[str, ...] = ()
    history: History
    mode: str
    promise: Promise
    ranks: Ranks
    _batch: Steps
    _choice: StoredMode | None
    _order: OrderChoice
    _patience: int
    _tracing: Tracing

    @property
    def epoch(self) -> int:
        """Epochs done so far."""
        return len(self.history)

    @property
    def metric(self) -> str:
        """The score: "accuracy", "micro-F1" where nodes have several labels, "RMSE" of values, "ROC AUC" of links."""
        return self._batch.metric

    @property
    def _target(self) -> Target:
        return self._batch.target

    @property
    def formats(self) -> str:
        """The measured table from which formats and orders of a batch were chosen, under ``config(tune=True)``."""
        return "" if self._batch.formats is None else self._batch.formats.explain()

    @property
    def scheduled(self) -> str:
        """Where batches are prepared and trained, why, and how busy each place was; empty where it is all the CPU."""
        return self._batch.scheduled()

    @property
    def replays(self) -> dict[str, Any]:
        """Launches of a replayed step, and bounds of padded batches (``cuda_graphs``), or why none is replayed."""
        return self._batch.replay_report()

    @property
    def verdict(self) -> Verdict | None:
        """The bottleneck of the run, if it was trained with ``trace``."""
        return self._tracing.verdict

    @property
    def stopped_early(self) -> bool:
        """Whether validation has not become better for ``patience`` epochs."""
        return self._would_stop(self.epoch)

    @property
    def feature_path(self) -> str:
        """The layout in which the features are kept, "dense" or "sparse"; chosen once."""
        return "dense" if is_dense(self._batch.x) else "sparse"

    @property
    def x(self) -> Features:
        """The features in the layout that was chosen, in the order of the data."""
        return self._batch.features()

    @property
    def node_order(self) -> str:
        """Which order of the nodes full batches take, or from how many epochs on another pays; empty where none does.

        Ids, labels, predictions and checkpoints are in the order of the data in any case.
        """
        return str(self._order)

    def exchanged(self) -> dict[str, int]:
        """Of all ranks together: bytes sent while the last epoch trained, rows borrowed; all of them call it."""
        names = {"bytes_sent_per_epoch": "bytes_of_epoch", "ghosts": "ghosts"}
        return {n: self.ranks.total(getattr(self._batch, of)) for n, of in names.items() if hasattr(self._batch, of)}

    @property
    def needs(self) -> Needs | None:
        """The memory that was predicted for the run, by account; None where nobody asked."""
        return self.promise.needs

    @property
    def plan(self) -> Plan | None:
        """What mode "auto" chose, and why; None in other modes."""
        if self._choice is not None and self._choice.plan.mode == self.mode:
            return self._choice.plan
        return self.promise.plan

    def _would_stop(self, epoch: int) -> bool:
        """Whether ``epoch`` is the last unless it is better than all before."""
        history = self.history
        return bool(self._patience) and history.best is not None and epoch - history.improved >= self._patience
