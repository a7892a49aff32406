"""The trainer: epochs, evaluation, the best model, early stopping, and going on where a run stopped.

Comes in: a model called ``model(graph, x)`` and a dataset. Goes out: a trained model, a history and, with ``out``, a
run folder. Called by users and by :mod:`graphweft.run`. Everything random in an epoch is keyed by (seed, epoch), so
that a run that was stopped and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import inspect
import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from graphweft._errors import CheckpointError, ConfigError, DataError
from graphweft._trace import span
from graphweft.cost import CostModel
from graphweft.data.dataset import Dataset
from graphweft.interop.pyg_model import adapted
from graphweft.nn.module import CompiledModule
from graphweft.passes.work import Sizes
from graphweft.runtime.staged import StagedPlan
from graphweft.schedule.verdict import Verdict
from graphweft.storage.feature import is_dense
from graphweft.train.best_weights import BestWeights
from graphweft.train.description import describe
from graphweft.train.edge_data import edge_data_of
from graphweft.train.full_batch import SPLITS, FullBatch, features_of
from graphweft.train.grouped import Grouped, check_macro_run
from graphweft.train.history import GUARDED, EpochRecord, History
from graphweft.train.inputs import check_parts, input_of, opened
from graphweft.train.interrupt import Interrupted, StopRequest
from graphweft.train.link_task import LinkTask
from graphweft.train.macro import Macro, as_macro
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.optimizer import make_optimizer
from graphweft.train.options import (
    MINI_USUAL,
    USUAL_RATE,
    check_choice,
    check_counts,
    check_fanouts,
    check_integer,
    check_mini_only,
    check_mode,
    check_task,
    check_training,
)
from graphweft.train.other_keywords import refuse
from graphweft.train.prediction import Predictions, predictions_of
from graphweft.train.progress import EpochProgress
from graphweft.train.run_folder import RunFolder, read_last
from graphweft.train.samplers import AnySampler
from graphweft.train.settle import Features, with_path
from graphweft.train.target import Target
from graphweft.train.tracing import Tracing


class Trainer:
    """Trains ``model`` on the nodes of ``ds``.

    Args:
        model: Called as ``model(ds.graph, ds.x)``, or as ``model(x, edge_index)`` where its arguments are called so, as
            models of PyTorch Geometric; returns logits or values (N, C).
        ds: The dataset, or a :class:`gw.Store`. Class ids (N,) train with cross-entropy, several labels (N, C) with
            binary cross-entropy, and with ``task="regression"`` values (N,) or (N, C) with the mean squared error.
            Labels and splits may be changed in place between two calls of ``fit``.
        lr: Learning rate.
        mode: "full" (all nodes in every step), "mini" (sampled neighbourhoods of some training nodes in every step),
            "macro" (as "mini", inside groups of parts that are read from a store) or "auto".
        weight_decay: Strength of the L2 penalty (decoupled for adamw).
        weight_decay_on: "all" decays every parameter; "first" the first layer only, as in the GCN paper.
        optimizer: "adam", "adamw" or "sgd", or an object of ``torch.optim`` over ``model.parameters()``, which has its
            own learning rate and weight decay.
        seed: Keys dropout and everything else that is random in an epoch.
        patience: Stop when validation has not become better for so many epochs; 0 never does.
        stop_on: What becoming better means, and which epoch is the best: validation "accuracy" (the score; for values
            the RMSE, where lower is better), its "loss", or "both":
            go on while either does, the best is the last that was not worse in either (the rule of the GAT paper).
        restore_best: After ``fit`` with validation nodes the model has the weights of the best epoch, which
            ``evaluate`` and ``predict`` use; the next ``fit`` continues from the last ones. False: it keeps the last;
            so it does once labels or splits were changed in place, since scores before and after do not compare.
        eval_every: Evaluate after every so many epochs, and after the last.
        out: Folder for checkpoints, metrics and the plot; None writes nothing.
        progress: Show the notes of the dataset and progress on standard error.
        keep_features: False gives up the memory of dense features when, after the first aggregation has been computed
            once and for all, nothing reads them any more. For callers that own the dataset and need ``ds.x`` no more.
        fanouts: For "mini": in-edges that a node draws, from the seeds outwards, one number a layer, -1 for all; None:
            15, 10, 5, and 5 for further layers.
        batch_size: For "mini": training nodes of a step; draws or parts for a sampler that goes over those.
        task: "nodes" predicts the labels of ``ds``. "link", in mode "mini", holds some edges out and learns embeddings,
            the rows that the model returns, whose dot products tell edges from pairs without one; ``*_acc`` are then
            areas under the ROC curve.
        macro: For "mini": macro-batches that batches are made of, such as "large:1/8" or "parts:16/128"; a
            :class:`Macro` says more. None: batches are drawn from the whole graph. For "macro": "parts:16/128", the
            parts of a group; None: as many parts of a store as fit into ``memory``.
        memory: For "macro": bytes, or a text such as "2GB", for the groups in memory; None: a quarter of the machine's.
        accumulate: For "mini": batches whose gradients make one update.
        sampler: For "mini": "neighbor", "layer", "shadow", "saint-node", "saint-edge", "saint-walk", or a sampler over
            the dataset's graph. ``fanouts`` are nodes of a layer for "layer", and the scope of "shadow".
        edge_data: "use" gives the model the dataset's ``edge_weight`` (GCN, SAGE, GIN, or a GAT with ``edge_dim``) and
            ``edge_features`` (a GAT), and a model of your own those that its ``forward`` has arguments ``edge_weight``
            and ``edge_attr`` for; what the model cannot use is said in one warning. "ignore" gives it neither.
        prepare: For "mini": "whole", a batch is one thread's work, or "subtasks", the work of several
            (:class:`gw.Subtasks`); the batches are the same.
        trace: File for a Chrome trace of all stages (Perfetto, chrome://tracing); full-batch steps are then made call
            by call, with the same bits. :attr:`verdict` says what bounds the run.
        config: More of what makes this run itself, numbers and texts; kept in checkpoints and compared on a resume.
        remember: What is kept in checkpoints and not compared.

    Raises: ConfigError for an option out of range, DataError when no training node has a label.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.nn.gcn import GCN
        >>> graph, every = Graph([0, 1, 2, 3], [1, 0, 3, 2]), torch.arange(4)
        >>> ds = Dataset("pairs", graph, torch.eye(4), torch.tensor([0, 0, 1, 1]), every[::2], every[1:2], every[3:], 2)
        >>> trainer = Trainer(GCN(4, 8, 2), ds, lr=0.1)
        >>> history = trainer.fit(epochs=20)
        >>> len(history), trainer.evaluate("test"), trainer.predict().tolist()
        (20, 1.0, [0, 0, 1, 1])
    """

    moved_to: Path | None = None  # where another run that was in ``out`` is now
    _notes_shown = False

    def __init__(
        self,
        model: nn.Module,
        ds: Dataset,
        lr: float = USUAL_RATE,
        mode: str = "full",
        weight_decay: float = 0.0,
        weight_decay_on: str = "all",
        optimizer: str | torch.optim.Optimizer = "adam",
        seed: int = 0,
        *,
        patience: int = 0,
        stop_on: str = "accuracy",
        restore_best: bool = True,
        eval_every: int = 1,
        out: str | Path | None = None,
        progress: bool = False,
        keep_features: bool = True,
        fanouts: Sequence[int] | None = None,
        batch_size: int = 1024,
        task: str = "nodes",
        macro: Any = None,
        memory: int | str | None = None,
        accumulate: int = 1,
        sampler: str | AnySampler = "neighbor",
        prepare: str = "whole",
        edge_data: str = "use",
        trace: str | Path | None = None,
        config: dict[str, Any] | None = None,
        remember: dict[str, Any] | None = None,
        **others: NoReturn,
    ) -> None:
        refuse(others, _OPTIONS)
        check_training(lr, weight_decay, weight_decay_on, stop_on)
        check_counts(seed=seed, patience=patience, batch_size=batch_size, eval_every=eval_every, accumulate=accumulate)
        self.task, self._tracing = check_task(task, mode), Tracing(trace)
        ds, mode = opened(ds, mode)
        check_parts(model, ds, self.task)
        self._called, self._memory = adapted(model), memory
        x = input_of(self._called, ds)
        self.ds = ds if x is ds.x else replace(ds, x=x)  # the other layout is let go where nobody else holds it
        self.model, self.mode, self._edges = model, check_mode(mode), edge_data_of(model, self.ds, edge_data)
        self.optimizer = make_optimizer(model, optimizer, lr, weight_decay, weight_decay_on)
        self.history, self.out = History(best_by=stop_on), None if out is None else Path(out)
        self._lr, self._seed, self._progress, self._prepared = lr, seed, progress, False
        self._patience, self._eval_every, self._remember = patience, eval_every, dict(remember or {})
        drawn = (check_fanouts(fanouts), batch_size, as_macro(macro), accumulate, sampler, prepare)
        check_mini_only(mode, dict(zip(MINI_USUAL, drawn, strict=True)))
        self._batch = self._full(keep_features) if self.mode == "full" else self._sampled(*drawn)
        self._weights, self._trained, self._changed = BestWeights(model, restore_best), _trained(model), False
        self._take_data()
        named = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
        rate = float(self.optimizer.param_groups[0]["lr"])
        self._config = {
            **{"dataset": ds.name, "data_checksum": data_checksum(self.ds), "mode": self.mode},
            **{"lr": rate, "weight_decay": float(weight_decay), "weight_decay_on": weight_decay_on},
            **{"optimizer": named, "seed": seed, "stop_on": stop_on, "eval_every": eval_every},
            **self._edges.identity(),
            **(self._batch.identity() if isinstance(self._batch, MiniBatch) else {}),
            **(config or {}),
        }

    @property
    def epoch(self) -> int:
        """Epochs done so far."""
        return len(self.history)

    @property
    def metric(self) -> str:
        """The score: "accuracy", "micro-F1" where nodes have several labels, "RMSE" of values, "ROC AUC" of links."""
        return "ROC AUC" if self.task == "link" else self._target.metric

    @property
    def _target(self) -> Target:
        return self._batch.target

    @property
    def formats(self) -> str:
        """The measured table from which formats and orders of a batch were chosen, under ``config(tune=True)``."""
        trial = self._batch.formats if isinstance(self._batch, MiniBatch) else None
        return "" if trial is None else trial.explain()

    @property
    def verdict(self) -> Verdict | None:
        """What bounds the run, once it was trained with ``trace``."""
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
        """The features in the layout that was chosen."""
        return self._batch.x

    def staged_plan(self) -> tuple[StagedPlan, Sizes] | None:
        """The compiled batch of mode "mini" and its sizes; None where sampler and model are not one program."""
        self.prepare()
        return self._batch.staged_plan() if isinstance(self._batch, MiniBatch) else None

    def prepare(self) -> None:
        """Does what is done once: decides, compiles, computes what stays the same. :meth:`fit` does it when needed."""
        if not self._prepared:
            with _randomness(epoch_key(self._seed, 0)):
                self._batch.prepare()
            self._prepared = True

    def fit(self, epochs: int) -> History:
        """Trains ``epochs`` more epochs, or fewer when it stops early; returns the history of all of them.

        Labels, splits and ``requires_grad`` count as they are when it is called. Training continues from the last
        weights, also where the model held the best ones meanwhile, unless others were put into the model since. Ctrl-C
        ends after the epoch under way, with everything saved; a second one ends at once.

        Raises: ConfigError when the loss is no longer finite or ``out`` cannot be written; KeyboardInterrupt.
        """
        check_integer("epochs", epochs, 0)
        target = self.epoch + epochs
        self._weights.put_last()
        self._refresh()
        self._begin_anew()
        with ExitStack() as stack:
            stop = stack.enter_context(StopRequest())
            folder = None if self.out is None else stack.enter_context(RunFolder(self.out))
            if folder is not None:
                folder.start(self.history, begun=self._batches_done > 0)
                self.moved_to = folder.moved_to
            with self._tracing.running():
                self._train(target, folder, stop)
            if folder is not None and self.epoch:
                folder.save(self.state_dict())
                folder.plot(self.history, f"{self.ds.name}: {type(self.model).__name__}", self.metric)
        self._weights.put_best()
        if stop.signum is not None:
            raise Interrupted(self.epoch, stop.signum)
        return self.history

    def evaluate(self, split: str) -> float:
        """The score (:attr:`metric`) on "train", "val" or "test", with the weights that the model has now.

        Raises: ConfigError for another split, DataError for a split without labels.
        """
        check_choice("split", split, SPLITS)
        self._refresh()
        value = {str(name): score for name, score in self._batch.evaluate().scores.items()}[split]
        if value is None:
            raise DataError(f"{self.ds.name}: expected nodes with a label in the {split} split, got none")
        return value

    def predict(self, probabilities: bool = False) -> Tensor:
        """Class of every node, (N,) int64; (N, C) bool for several labels a node; values in the shape of ``ds.y``.

        For links the embeddings. The weights are those that the model has now.

        Args:
            probabilities: Give those of the classes or labels instead, (N, C) float32.

        Raises: ConfigError for probabilities of values or links.
        """
        return self.predictions().probabilities if probabilities else self.predictions().labels

    def predictions(self) -> Predictions:
        """What :meth:`predict` gives, with ids, probabilities and ``save("predictions.csv")``."""
        self._refresh()
        return predictions_of(self.ds, self._batch.logits(), None if self.task == "link" else self._target)

    def resume(self) -> bool:
        """Takes up the run in ``out``; False, and nothing changed, when there is none yet.

        Raises: CheckpointError when its checkpoint is damaged or belongs to another configuration.
        """
        state = None if self.out is None else read_last(self.out)
        if state is None:
            return False
        saved = state.get("config", {})
        check_same_run(str(self.out), saved, {**dict.fromkeys(saved), **self._config})  # nor was anything left out
        self.load_state_dict(state)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: configuration, model, optimiser, best model, history."""
        best = self.history.best
        within = {}
        if isinstance(self._batch, MiniBatch):
            within = {"batches": self._batches_done, "mini_batch": self._batch.state_dict()}
        return {
            **within,
            "config": self._config,
            "options": {
                **self._remember,
                "description": describe(self.model, self.ds, self.task, self.metric).to_json(),
            },
            "feature_path": self.feature_path,
            "cost_seconds": self._cost_model(),
            "epoch": self.epoch,
            "model": self._weights.last(),
            "optimizer": self.optimizer.state_dict(),
            "best_epoch": self.epoch if best is None else best.epoch,
            "best_val_acc": None if best is None else best.val_acc,
            **({} if best is None or best.val_rmse is None else {"best_val_rmse": best.val_rmse}),
            "best_model": self._weights.best if best is not None else self._weights.last(),
            "history": self.history.to_state(),
            **({"best_since": self.history.since} if self.history.since else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`; as after ``fit`` the model holds the best weights, unless told otherwise.

        Raises: CheckpointError when the state does not fit the model or lacks a part.
        """
        try:
            history = History.from_state(state["history"], self.history.best_by, int(state.get("best_since", 0)))
            self._weights.load(state["model"], state["best_model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self._batch.x = with_path(self._batch.x, state["feature_path"])
            if isinstance(self._batch, MiniBatch):
                self._batch.load_state_dict(state["mini_batch"])
            if state["cost_seconds"] and isinstance(self.model, CompiledModule):
                self.model.function.settle(CostModel.from_json(state["cost_seconds"]))
        except (KeyError, AttributeError, TypeError, ValueError, RuntimeError) as failure:
            text = " ".join(str(failure).split())[:200]
            raise CheckpointError(f"checkpoint: expected a state of this model and optimiser, got {text}") from None
        history.constant_guess = self.history.constant_guess
        self.history = history
        if history.best is not None:
            self._weights.put_best()

    def _refresh(self) -> None:
        """Takes up labels and splits that were changed in place."""
        if self._batch.refresh():
            self._take_data()
            self._config["data_checksum"] = data_checksum(self.ds)
            self._changed, self._weights.restores = True, False

    def _begin_anew(self) -> None:
        """Looks for the best epoch anew where labels, splits or the parameters that train have changed."""
        trained = _trained(self.model)
        if self._changed or trained != self._trained:
            self._changed, self._trained = False, trained
            if self.epoch:
                self.history.begin_anew()
                self._weights.forget()

    def _take_data(self) -> None:
        """What a constant guess scores with the labels as they are now. Raises: ConfigError for nothing to stop on."""
        if self.task == "link":
            return
        rows = self._batch.rows
        if self._patience and rows["val"].numel() == 0:
            raise ConfigError(f"patience={self._patience} cannot be combined with a split without validation labels")
        scored = next((rows[part] for part in ("test", "val", "train") if rows[part].numel()), rows["train"])
        self.history.constant_guess = self._target.constant_guess(self.ds.y, rows["train"], scored)

    def _cost_model(self) -> str:
        """What the orders of computation were decided by; empty for a model that is not compiled."""
        model = self.model.function.cost_model if isinstance(self.model, CompiledModule) else None
        return "" if model is None else model.to_json()

    def _train(self, target: int, folder: RunFolder | None, stop: StopRequest) -> None:
        """Epochs up to ``target``, or to the first reason to stop."""
        if self.epoch >= target or self.stopped_early:
            return
        self.prepare()
        scored = self.history.last
        with ExitStack() as stack:
            show = stack.enter_context(EpochProgress(self.epoch + 1, target)) if self._progress else None
            if show is not None and self.moved_to is not None:
                show.say(f"{self.out} held another run; its files are now in {self.moved_to}")
            if show is not None and not self._notes_shown:
                self._notes_shown = True
                for note in self.ds.notes:
                    show.say(f"note: {note}")
            if isinstance(self._batch, MiniBatch):
                self._batch.after_batch = self._between_batches(folder, show)
            while self.epoch < target and not self.stopped_early and stop.signum is None:
                with span(f"epoch {self.epoch + 1}", "epoch"):
                    record = self._one_epoch(last=self.epoch + 1 == target)
                self.history.append(record)
                if self.history.best is record:
                    self._weights.keep()
                if record.eval_seconds:
                    scored = record
                if folder is not None:
                    folder.log(record)
                    if folder.is_due():
                        folder.save(self.state_dict())
                if show is not None:
                    show.update(record, scored)

    @property
    def _batches_done(self) -> int:
        """Batches of the epoch under way; 0 where an epoch is one step."""
        return self._batch.batches_done if isinstance(self._batch, MiniBatch) else 0

    def _full(self, keep_features: bool) -> FullBatch | MiniBatch:
        return FullBatch(self._called, self.ds, features_of(self.ds), self.optimizer, keep_features, self._edges)

    def _sampled(
        self,
        fanouts: tuple[int, ...] | None,
        batch_size: int,
        macro: Macro | None,
        accumulate: int,
        sampler: str | AnySampler,
        prepare: str,
    ) -> MiniBatch:
        data = (self.ds, features_of(self.ds), self.optimizer)
        if self.task == "link":
            if macro is not None or accumulate > 1 or sampler != "neighbor" or prepare != "whole":
                raise ConfigError("task: expected nodes with macro, accumulate, sampler or prepare, got 'link'")
            batch: MiniBatch = LinkTask(self._called, *data, fanouts, batch_size, self._seed, self._batch_key)
        elif self.mode == "macro":
            check_macro_run(self.ds, self.task, sampler, prepare)
            keys = (self._seed, self._batch_key)
            return Grouped(self._called, *data, fanouts, batch_size, *keys, macro, accumulate, self._memory, self.out)
        else:
            keys = (self._seed, self._batch_key)
            batch = MiniBatch(self._called, *data, fanouts, batch_size, *keys, macro, accumulate, sampler, prepare)
        batch.use(self._edges)
        return batch

    def _quality(self) -> dict[str, Any]:
        """What the quality guard measured in the epoch that is done."""
        found = self._batch.macro.quality if isinstance(self._batch, MiniBatch) and self._batch.macro else None
        if found is None:
            return {}
        values = (found.error, found.sampling, found.staleness, found.neighbor_loss, found.age)
        return dict(zip(GUARDED, values, strict=True))

    def _batch_key(self, epoch: int, batch: int) -> int:
        """Keys the draws of one step."""
        return epoch_key(epoch_key(self._seed, epoch), batch)

    def _between_batches(
        self, folder: RunFolder | None, show: EpochProgress | None
    ) -> Callable[[int, int, float], None]:
        """What is done after a batch: a checkpoint where one is due, and progress."""

        def after(done: int, total: int, loss: float) -> None:
            if done == total:
                return  # the epoch's own checkpoint follows
            if not math.isfinite(loss):
                raise self._not_finite(self.epoch + 1, loss)
            if folder is not None and folder.is_due():
                folder.save(self.state_dict())
            if show is not None:
                show.within(self.epoch + 1, done, total, loss)

        return after

    def _not_finite(self, epoch: int, loss: float) -> ConfigError:
        return ConfigError(
            f"lr: expected a rate at which the loss stays finite, got {self._lr} (epoch {epoch}: {loss})"
        )

    def _one_epoch(self, last: bool) -> EpochRecord:
        """One step, timed, and an evaluation where one is due, timed apart."""
        epoch = self.epoch + 1
        with _randomness(epoch_key(self._seed, epoch)):
            start = time.perf_counter()
            loss = float(self._batch.step())
            middle = time.perf_counter()
        if not math.isfinite(loss):
            raise self._not_finite(epoch, loss)
        if epoch % self._eval_every and not last and not self._would_stop(epoch):
            return EpochRecord(epoch, loss, epoch_seconds=middle - start, **self._quality())
        with span("evaluate", "evaluate"):
            found = self._batch.evaluate()
        column = "acc" if self.task == "link" else self._target.column
        values = {f"{name}_{column}": value for name, value in found.scores.items()} | {"val_loss": found.val_loss}
        values |= found.details | self._quality()
        return EpochRecord(
            epoch, loss, **values, epoch_seconds=middle - start, eval_seconds=time.perf_counter() - middle
        )

    def _would_stop(self, epoch: int) -> bool:
        """Whether ``epoch`` is the last unless it is better than all before."""
        history = self.history
        return bool(self._patience) and history.best is not None and epoch - history.improved >= self._patience


def _trained(model: nn.Module) -> tuple[bool, ...]:
    """Which parameters get a gradient."""
    return tuple(parameter.requires_grad for parameter in model.parameters())


@contextmanager
def _randomness(key: int) -> Iterator[None]:
    """Random draws in the block follow from ``key``; the caller's generator does not notice."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        yield


def epoch_key(seed: int, epoch: int) -> int:
    """A 63-bit seed for one epoch (SplitMix64 over both).

    Example:
        >>> epoch_key(0, 1) == epoch_key(0, 1), epoch_key(0, 1) == epoch_key(1, 0)
        (True, False)
    """
    mask = 2**64 - 1
    key = 0
    for word in (seed, epoch):
        key = (key + word + 0x9E3779B97F4A7C15) & mask
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & mask
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & mask
        key ^= key >> 31
    return key >> 1


def check_same_run(folder: str, saved: dict[str, Any], config: dict[str, Any]) -> None:
    """Every option of ``config`` is as in the checkpoint.

    Raises: CheckpointError naming the first that is not.
    """
    for name, value in config.items():
        if name not in saved or saved[name] != value:
            raise CheckpointError(
                f"resume: expected {name} {saved.get(name)!r} as in the run that {folder} holds, got {value!r}; "
                "use another --out, or leave --resume out to start over"
            )


def data_checksum(ds: Dataset) -> int:
    """CRC-32 of labels, splits and sizes: notices that the data changed under a run."""
    crc = zlib.crc32(f"{ds.num_features} {ds.num_classes} {ds.num_edges}".encode())
    for tensor in (ds.y, ds.train_idx, ds.val_idx, ds.test_idx):
        crc = zlib.crc32(tensor.numpy().tobytes(), crc)
    return crc


_OPTIONS = tuple(inspect.signature(Trainer.__init__).parameters)
