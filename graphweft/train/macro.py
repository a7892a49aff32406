"""Training through macro-batches: their settings, hidden rows of halos, and the quality guard, epoch by epoch.

Comes in: what the user asked for and a loader of nested stages. Goes out: rows of a batch's seeds, measurements, and
other settings for the next epoch. Called by the mini-batch trainer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import CheckpointError, ConfigError
from graphweft.data.dataset import Dataset, training_labels
from graphweft.loader.multistage import MultistageLoader, NestedBatch
from graphweft.partitioning.partition import check_filled, partition
from graphweft.sample.stages import LargeBatch, Parts, Stage, Whole
from graphweft.storage.feature import Features
from graphweft.storage.memory_size import memory_bytes
from graphweft.train.historical import Historical
from graphweft.train.options import (
    FIRST,
    MOST_REUSE,
    MacroText,
    check_integer,
    check_macro,
    check_neighbours,
    check_quality,
    check_whole_first,
    split_macro,
)
from graphweft.train.quality import Quality, Setting, adapt, assess, mean
from graphweft.train.target import Target

_PROBES, _PROBE_SEEDS = 2, 32


@dataclass(frozen=True)
class Macro:
    """Settings of macro-batches and of their error control.

    Attributes:
        stages: "large:SHARE" for large-batch sampling, such as "large:1/8"; "parts:B/P" for B of P parts, which GAP
            makes by the classes of the training nodes; or stage objects. Suffixes such as "+hubs:SIZE" set further
            options. None: for mode "macro", as many parts as fit.
        ahead: Whether to draw the batches of a macro-batch before its features are read, and to read only the rows they
            need.
        refresh: For parts, epochs after which all hidden rows are computed again; 0: only before the first epoch.
        quality: Bound of the relative error of sampled gradients. The error is measured on a few seeds per epoch, and
            settings are changed to keep it below. None: not measured. Infinite: measured only.
        hubs: For mode "macro", bytes or a text such as "64MB" for the most influential nodes, which are in every group
            with their structure and features.
        reuse: For mode "macro", number of passes over a group while it is in memory, 1 to 4, each in another order with
            other draws. An epoch then has that many times the batches for the same bytes read.
        keep: For mode "macro", number of parts, at most half of all, that stay in memory from one epoch to the next;
            other parts each time. They need memory in addition to the two groups.
        neighbours: For mode "macro", number of nodes of other parts that a part adds to its groups, as a multiple of
            its own nodes; 0: none. These are the nodes that its training nodes read most. Not supported with hubs.
            "auto", without ``stages``: the fewest that keep enough edges, with as many parts as then fit.
        first: For mode "macro", the in-edges of the first layer of GCN, SAGE or GIN. "whole": all in-edges of the
            graph, whose sums are computed once. "group": only the in-edges within the group, as for further layers.

    Raises: ConfigError.
    """

    stages: str | Stage | Sequence[Stage] | None
    ahead: bool = True
    refresh: int = 0
    quality: float | None = None
    hubs: int | str | None = None
    reuse: int = 1
    keep: int = 0
    neighbours: float | str = 0.0
    first: str = FIRST[0]

    def __post_init__(self) -> None:
        if isinstance(self.stages, str):
            told = split_macro(self.stages)
            object.__setattr__(self, "stages", told.stages)
            for name in told.given():
                object.__setattr__(self, name, getattr(told, name))
        check_integer("reuse", self.reuse, 1, MOST_REUSE)
        check_integer("keep", self.keep, 0)
        if self.hubs is not None:
            memory_bytes(self.hubs, "hubs")
        check_neighbours(self.neighbours, self.hubs, self.stages)
        check_whole_first(self.first, self.keep)
        if isinstance(self.stages, str):
            check_macro(self.stages)
        elif self.stages is not None or not self._of_groups():
            several = self.stages if isinstance(self.stages, Sequence) else [self.stages]
            wrong = [type(stage).__name__ for stage in several if not isinstance(stage, LargeBatch | Parts | Whole)]
            if wrong or not several:
                raise ConfigError(f"macro: expected a text or stages, got {wrong[0] if wrong else 'none'}")
        check_integer("refresh", self.refresh, 0)
        if self.quality is not None:
            check_quality(self.quality)

    def _of_groups(self) -> list[str]:
        """What was asked for of groups of mode "macro"."""
        hubs = None if self.hubs is None else ""
        return MacroText(None, hubs, self.reuse, self.keep, self.neighbours, self.first).given()

    def made(self, ds: Dataset) -> list[Stage]:
        """The stages for a dataset."""
        for name in self._of_groups():
            raise ConfigError(f"macro: {name} cannot be combined with mode=mini; it is for groups of mode macro")
        given: Any = self.stages
        if not isinstance(given, str):
            return list(given) if isinstance(given, Sequence) else [given]
        kind, one, of = check_macro(given)
        if kind == "large":
            return [LargeBatch(one / of)] if one < of else [Whole()]
        check_filled("macro: parts", of, ds.num_nodes)
        return [Parts(partition(ds.graph, of, labels=training_labels(ds)).part, one)]

    def identity(self) -> dict[str, Any]:
        """Settings that affect results, for checkpoints; the loader keeps the stages."""
        text = {"macro": self.stages} if isinstance(self.stages, str) else {}
        return {**text, "ahead": self.ahead, "refresh": self.refresh, "quality": self.quality}


def as_macro(value: Any) -> Macro | None:
    """What the user gave as settings. Raises: ConfigError."""
    return value if value is None or isinstance(value, Macro) else Macro(value)


class MacroRun:
    """Macro-batches of one training run.

    Args:
        macro: The settings.
        loader: Over the stages.
        model: The model.
        ds: The dataset.
        forward: Rows of a batch's seeds where there is no halo.
        target: How labels are trained on.
    """

    def __init__(
        self,
        macro: Macro,
        loader: MultistageLoader,
        model: nn.Module,
        ds: Dataset,
        forward: Callable[[NestedBatch], Tensor],
        target: Target,
    ) -> None:
        self.macro, self.loader, self._model, self._ds, self._forward = macro, loader, model, ds, forward
        self._target = target
        self.historical = Historical(model, ds.graph) if loader.has_halo else None
        parts = [stage for stage in loader.macro if isinstance(stage, Parts)]
        self._first = Setting(loader.fanouts, parts[0].count if parts else 0, parts[0].k if parts else 0, macro.refresh)
        self.setting = self._first
        self.quality: Quality | None = None

    def begin_epoch(self, x: Features) -> None:
        """Computes hidden rows where that is due."""
        if self.historical is None:
            return
        due = self.setting.refresh and self.loader.epoch % self.setting.refresh == 0
        if due or not self.historical.is_ready:
            self.historical.refresh(x)

    def forward(self, batch: NestedBatch) -> Tensor:
        """Rows of the batch's seeds."""
        return self._forward(batch) if self.historical is None else self.historical(batch)

    def apart(self, x: Features) -> MacroRun:
        """The same with hidden rows of its own, whose batches leave those of the run alone."""
        other = copy.copy(self)
        if self.historical is not None:
            other.historical = Historical(self._model, self._ds.graph)
            other.historical.edges = self.historical.edges
            other.historical.refresh(x)
        return other

    def end_step(self) -> None:
        """One update was made."""
        if self.historical is not None:
            self.historical.table.tick()

    def end_epoch(self, seed: int) -> None:
        """Measures the epoch that was done, and changes the settings of the next where that is asked for."""
        ages = [] if self.historical is None else self.historical.take_ages()
        if self.macro.quality is None:
            return
        age = sum(ages) / len(ages) if ages else 0.0
        epoch = self.loader.epoch - 1
        count = len(self.loader.plan(epoch).batches)
        places = sorted({(seed + i * (count // 2 + 1)) % count for i in range(_PROBES)}) if count else []
        training = self._model.training
        self._model.eval()
        try:
            probes = [self.loader.probe(epoch, place, _PROBE_SEEDS) for place in places]
            found = [assess(self._model, probe, self._loss, age) for probe in probes]
        finally:
            self._model.train(training)
        if self.historical is not None:
            self.historical.forget()
            self.historical.take_ages()
        if found:
            self.quality = mean(found)
            self._take(adapt(self.setting, self._first, self.quality, self.macro.quality))

    def state_dict(self) -> dict[str, Any]:
        """Hidden rows and settings."""
        setting = {"fanouts": list(self.setting.fanouts), "parts": self.setting.parts, "refresh": self.setting.refresh}
        ages = [] if self.historical is None else list(self.historical.ages)
        counted = None if self.historical is None else self.historical.counted
        return {
            "setting": setting,
            "ages": ages,
            "counted": None if counted is None else list(counted),
            "history": {} if self.historical is None else self.historical.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`; before the loader's own state. Raises: CheckpointError."""
        saved = state["setting"]
        setting = replace(
            self._first, fanouts=tuple(saved["fanouts"]), parts=int(saved["parts"]), refresh=int(saved["refresh"])
        )
        if bool(setting.parts) != bool(self._first.parts):
            raise CheckpointError(f"macro: expected the stages of this run, got {saved}")
        self._take(setting)
        if self.historical is not None:
            self.historical.load_state_dict(state["history"])
            self.historical.ages = list(state["ages"])
            counted = state.get("counted")
            self.historical.counted = None if counted is None else tuple(counted)

    def _take(self, setting: Setting) -> None:
        """Goes over to other settings."""
        if setting == self.setting:
            return
        self.setting = setting
        stages = [replace(s, count=setting.parts) if isinstance(s, Parts) else s for s in self.loader.macro]
        self.loader.retune(stages, setting.fanouts)

    def _loss(self, batch: NestedBatch) -> Tensor:
        """Mean loss of a probe's seeds; the table is only read."""
        rows = self._forward(batch) if self.historical is None else self.historical(batch, write=False)
        labels = torch.index_select(self._ds.y, 0, batch.n_id[: batch.batch_size])
        return self._target.mean_loss(rows, labels)
