"""The trainer: epochs, evaluation, the best model, early stopping, and going on where a run stopped.

Comes in: a model called ``model(graph, x)`` and a dataset. Goes out: a trained model, a history and, with ``out``, a
run folder. Called by users and by :mod:`graphweft.run`. Everything random in an epoch is keyed by (seed, epoch), so
that a run that was stopped and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from graphweft import _config
from graphweft._checks import as_plain, check_default_device
from graphweft._draws import in_turn, mixed
from graphweft._errors import CheckpointError, ConfigError, DataError
from graphweft._keywords import says_what_was_meant
from graphweft._torch_private import hosted, on_host, with_gradients
from graphweft._trace import span
from graphweft.cost import CostModel
from graphweft.data.part_dataset import PartDataset
from graphweft.dist.ranks import Ranks
from graphweft.nn.module import CompiledModule
from graphweft.passes.work import Sizes
from graphweft.runtime.staged import StagedPlan
from graphweft.train.batch_gradients import batch_key
from graphweft.train.best_weights import BestWeights
from graphweft.train.between_batches import between_batches, not_finite
from graphweft.train.checkpoint import plain_state
from graphweft.train.chosen import Loop
from graphweft.train.description import describe
from graphweft.train.device import device_of, on_device
from graphweft.train.device_memory import run_within
from graphweft.train.edge_data import edge_data_of
from graphweft.train.embedding_task import for_loss
from graphweft.train.full_batch import SPLITS, is_plain
from graphweft.train.graph_task import for_rows
from graphweft.train.history import History
from graphweft.train.interrupt import Interrupted, StopRequest
from graphweft.train.model_input import as_read, check_updated, costs_of, groups_asked, trains
from graphweft.train.needs import budget_of
from graphweft.train.optimizer import make_optimizer
from graphweft.train.option_table import check_given
from graphweft.train.options import EMBEDDING_TASKS, check_choice, check_integer, check_mode, check_task
from graphweft.train.order_choice import OrderChoice, obstacle_to
from graphweft.train.prediction import Predictions, predictions_of
from graphweft.train.progress import EpochProgress
from graphweft.train.ranked_run import check_shared, read_shared, shared_stop
from graphweft.train.record import COLUMNS, EpochRecord
from graphweft.train.run_folder import RunFolder
from graphweft.train.same_run import check_same_run, data_checksum, with_inputs
from graphweft.train.samplers import usual_graphs
from graphweft.train.settle import with_path
from graphweft.train.setup import Given
from graphweft.train.spec import TrainSpec
from graphweft.train.steps import drawn_of, make_steps
from graphweft.train.stored_mode import StoredMode, mode_of
from graphweft.train.target import warn_of_one_class
from graphweft.train.tracing import Tracing
from graphweft.train.trainer_facts import TrainerFacts
from graphweft.train.trainer_options import TrainerOptions, takes


def _opened(given: TrainerOptions, mode: Any) -> tuple[Any, ...]:
    """Task, mode, data, size of a batch and macro-batches as they are trained with. Raises: ConfigError, DataError."""
    size = usual_graphs(given.sampler, mode, given.batch_size)
    rows = for_rows(*for_loss(given.model, given.task, mode, given.ds), size)
    return *rows, groups_asked(given.task, mode, given.ds, given.macro)


class Trainer(TrainerFacts):
    """Trains, evaluates, checkpoints and resumes ``model`` on ``ds``.

    Args:
        model: Called as ``model(ds.graph, ds.x)``; returns logits or values (N, C). If its arguments are named
            ``x, edge_index``, as in PyTorch Geometric, it is called with those.
        ds: The dataset, or a :class:`gw.macro.Store`. The default loss is cross-entropy for class ids (N,), binary
            cross-entropy for several labels (N, C), and the mean squared error for values (N,) or (N, C). Labels and
            splits may be changed in place between two calls of ``fit``.
        lr: Learning rate.
        mode: "full": all nodes in every step. "mini": sampled neighbourhoods of some training nodes. "macro": as
            "mini", in groups of parts of a store. "mapped": as "mini", with the features of a store in a memory map.
            "auto": the fastest mode that fits, see :attr:`plan`. None: "full", for pairs "mini".
        weight_decay: Strength of the L2 penalty (decoupled for adamw).
        weight_decay_on: "all" decays every parameter; "first" only those of the first layer, as in the GCN paper.
        optimizer: "adam", "adamw", "sgd", or an object of ``torch.optim``, which has its own learning rate and decay.
        seed: Seed of dropout and of all other random draws of an epoch.
        patience: Number of epochs without a better validation score after which training stops; 0: no early stopping.
        stop_on: Rule for a better epoch: validation "accuracy" (the score; for values the RMSE), "loss", or "both".
            With "both", training continues while either improves, and the best epoch is the last one that is not worse
            in either (as for GAT).
        restore_best: Whether the model has the weights of the best validation epoch after ``fit``. The next ``fit``
            continues from the last weights. The model keeps the last weights if labels or splits were changed in place.
        eval_every: Number of epochs between evaluations. The last epoch is always evaluated.
        out: Folder for checkpoints, metrics and the plot; None: no files.
        progress: Whether to show notes of the dataset and progress on standard error.
        keep_features: Whether to keep dense features in memory. False frees them if no step reads them after the first
            aggregation.
        fanouts: For "mini", most in-edges that a node draws per hop, from the seeds outwards; -1: all. None: 15, 10, 5,
            then 5.
        batch_size: For "mini", number of training nodes (1024), graphs (128), draws or parts in a step; for the sampler
            "graphs", graphs (1).
        task: "nodes" predicts labels of nodes. "graph_classification" and "graph_regression" predict labels of graphs
            (:class:`gw.GraphDataset`). "edge_classification" and "edge_regression" predict labels of pairs
            (:meth:`Dataset.with_edge_labels`). These tasks follow from the data. "link", in mode "mini", holds out
            edges and learns embeddings whose dot products separate edges from other pairs; ``*_acc`` are areas under
            the ROC curve. "unsupervised" follows from a :class:`GAE`, :class:`VGAE`, :class:`DGI`, :class:`Node2Vec`,
            or a module with ``loss(graph, x)``.
        macro: For "mini", macro-batches such as "large:1/8" or "parts:16/128", or a :class:`Macro`; None: no
            macro-batches. For "macro", how groups are made, such as "parts:16/128"; None: as many parts of a store as
            fit into ``memory``. Mode "auto" makes groups as "neighbours:auto".
        memory: Memory budget of the run, in bytes or as a text such as "2GB". A run that does not fit raises an error
            that names the smallest sufficient budget. None: no budget; for groups of a store a quarter of the machine's
            memory.
        accumulate: For "mini", number of batches whose gradients are accumulated for one update.
        sampler: For "mini", one of "neighbor", "layer", "shadow", "saint-node", "saint-edge", "saint-walk" and "graphs"
            (whole graphs of :meth:`Dataset.from_graphs`), or a sampler of the dataset's graph. ``fanouts`` are nodes of
            a layer for "layer", and the scope of "shadow".
        edge_data: "use" passes the dataset's ``edge_weight`` (to GCN, SAGE, GIN, or a GAT with ``edge_dim``) and
            ``edge_features`` (to a GAT). Other models get them if their ``forward`` has the arguments ``edge_weight``
            or ``edge_attr``. "ignore" passes neither.
        prepare: For "mini", how a batch is prepared: "whole" by one thread, "subtasks" or a
            :class:`gw.schedule.Subtasks` by several.
        trace: File for a Chrome trace of all stages, for Perfetto. :attr:`verdict` then names the stage that bounds the
            run.
        loss: A function or module of torch that returns a scalar, called as ``loss(logits, labels)`` with the rows of a
            step; or "l1" or "huber" for values. None: the default loss of the labels.
        class_weight: Weights of the classes in the cross-entropy, or "balanced" for weights by their frequency in
            training.
        label_smoothing: Share of the target that is spread over all classes in the cross-entropy.
        scheduler: A callable from an optimiser to a scheduler of ``torch.optim.lr_scheduler``; or "cosine", "linear",
            "step", "exponential" or "plateau", with numbers as in "step:30:0.5". It steps once per epoch.
        warmup: Number of epochs in which the learning rate rises before the scheduler starts.
        clip: Largest norm of the gradients, after ``clip_value``.
        clip_value: Largest absolute value of an entry of a gradient.
        ema: Decay of averaged parameters. Evaluations and predictions use the averages; training continues with the
            parameters.
        metrics: Further metrics: "f1_macro", "f1_micro", "accuracy", "roc_auc", "average_precision", "mae", "rmse" or
            "r2", functions of (logits, labels), objects like those of ``torchmetrics``, or a dict of these. Columns of
            the history are ``train_<name>``, ``val_<name>`` and ``test_<name>``.
        best: Name of the metric that decides the best epoch and early stopping; or a value of ``stop_on``.
        callbacks: Objects with some of the methods ``on_fit_start(trainer)``, ``on_epoch_start(trainer, epoch)``,
            ``on_batch_end(trainer, batch, loss)``, ``on_epoch_end(trainer, record)`` and ``on_fit_end(trainer)``.
            Training ends after an ``on_epoch_end`` that returns False or sets ``trainer.should_stop = True``.
            Checkpoints contain the results of their ``state_dict``.
        loggers: "csv" and "tensorboard" write to ``out``. Objects are called as ``log_metrics(metrics, step)`` once per
            epoch.
        config: Further numbers and texts that identify the run. Checkpoints contain them, and a resume compares them.
        remember: Further numbers and texts for checkpoints, which are not compared.
        ranks: The processes that train together (:class:`gw.dist.Ranks`). Each makes a trainer, and rank 0 writes
            ``out``.
        device: Device to train on, such as "cuda"; None: the model's device. For "mini" also "emulated", a process that
            emulates one.
        schedule: With a device, where batches are prepared: "auto", "cpu", "device", or a
            :class:`gw.schedule.Schedule`.
        cuda_graphs: "auto" replays recorded steps on a device (docs/devices.md), "on" also those of batches on the CPU,
            "off" none.
        precision: "float32"; "bf16" for features, rows and operands in bfloat16; "int8" for features of batches in 8
            bits; None: as in :func:`gw.config`.
        order: For "full", the order in which nodes are computed. "neighbours" puts neighbours together, which saves
            time in a large graph with communities. "given" keeps the order. "auto" takes "neighbours" if it saves time
            over the epochs of the first ``fit`` (:attr:`node_order`). Inputs and outputs stay in the given order.
            Another order changes the last bits of sums, and the draws of dropout.

    Raises: ConfigError for an option out of range; DataError if no training node has a label.

    Example:
        >>> import torch
        >>> from graphweft.data.dataset import Dataset
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
    should_stop = False  # set by a callback, the epoch under way is the last of this fit
    _notes_shown = _was_noted = _prepared = _changed = _found_none = False

    @takes(TrainerOptions)
    def __init__(self, given: TrainerOptions) -> None:
        given.check_kinds()
        if given.device is not None or (device_of(given.model).type != "cpu" and not is_plain(given.model)):
            check_default_device("Trainer")  # code of the user's own, or another device, under one more
        with on_host():
            self._fits, self._choice = threading.Lock(), StoredMode.of(given)
            if self._choice is None:
                self._set_up(given, given.mode)
                return
            self._begin = partial(self._set_up, given)  # anew, where it goes on with a run of the other mode
            with self._choice.within():
                self._begin(self._choice.asked(self._choice.plan.mode))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses copies: memory that is recorded, threads and an open run folder are one trainer's alone."""
        raise TypeError(
            "Trainer: expected no copy or pickle of a trainer; a new one of copy.deepcopy(trainer.model) continues by "
            "load_state_dict(trainer.state_dict())"
        )

    def _set_up(self, given: TrainerOptions, mode: str | None) -> None:
        """Takes up what was given, in ``mode``."""
        task, mode, ds, batch_size, macro = _opened(given, mode)
        self.task, self.mode, self._asked, self.model = check_task(task, mode), check_mode(mode), mode, given.model
        self.ds = as_read(given.model, ds, self.task, given.memory, given.precision)
        config = plain_state("config: expected a dict", dict(given.config or {}), tensors=False)
        config = with_inputs(config, ds, given.out or given.ranks)
        self.ranks = check_shared(given.ranks or Ranks(), self.task, self.mode, given.loss, given.class_weight, ds)
        self._take_options(given)
        more = (given.accumulate, given.sampler, given.prepare)
        place = (mode, self._at, given.schedule, given.cuda_graphs)
        draw = drawn_of(*place, given.fanouts, batch_size, macro, *more)
        self._assemble(given, draw, config)

    def _take_options(self, given: TrainerOptions) -> None:
        """Keeps what was given; only the first rank shows progress and writes."""
        self._asked_order = given.order
        self._rules = {name: getattr(given, name) for name in ("weight_decay", "weight_decay_on", "stop_on")}
        checked = {name: getattr(given, name) for name in ("lr", "seed", "patience", "eval_every")}
        check_given(TrainSpec, {**checked, **self._rules})
        self._at = on_device(self.model, given.device, self.mode)
        precision = _config.current().precision if given.precision is None else given.precision
        self._settings = {"precision": precision}
        check_given(TrainSpec, {**self._settings, "order": given.order})
        self._edges = edge_data_of(self.model, self.ds, given.edge_data)
        first = self.ranks.is_first
        self.out, self._memory = Path(given.out) if given.out and first else None, given.memory
        self._lr, self._seed, self._progress = given.lr, given.seed, given.progress and first
        self._patience, self._eval_every = given.patience, given.eval_every
        self._remember = plain_state("remember: expected a dict", dict(given.remember or {}))
        self._tracing = Tracing(given.trace if first else None)

    def _assemble(self, given: TrainerOptions, drawn: Any, config: Any) -> None:
        """Makes the parts of the run, and what makes it itself."""
        more, optimizer = {**self._rules, **(config or {})}, given.optimizer
        self.optimizer = make_optimizer(self.model, optimizer, self._lr, more["weight_decay"], more["weight_decay_on"])
        self._budget = budget_of(self._memory, self.ds, self.mode, self.task, drawn[2], self.ranks)
        chosen = given.chosen() if self.ranks.is_first else replace(given.chosen(), loggers=())
        self._loop = loop = Loop(chosen, self.ds, self.task, more["stop_on"], self.out)
        rate = float(self.optimizer.param_groups[0]["lr"])
        self._update, self._rate = loop.update(self.model, self.optimizer), loop.learning_rate(self.optimizer)
        self.history = History(best_by=loop.rule, higher=loop.higher)
        asked = self.mode if self.ranks.is_shared else self._asked
        of_steps = Given(
            *(self.model, self.ds, self._update, loop, self._edges, self.task, asked, self.ranks, drawn),
            order=self._asked_order,
            keep_features=given.keep_features,
            seed=self._seed,
            key=partial(batch_key, self._seed),
            memory=self._memory,
            scratch=self.out,
        )
        with self._within():
            self.mode, self._batch, self.promise = make_steps(of_steps, self._budget)
        obstacle = obstacle_to(self._batch, self.ds, self.task, self.mode, self._memory, self.ranks)
        self._order = OrderChoice(self._asked_order, self._batch, obstacle)
        self._parameters = list(self.model.parameters())
        self._weights, self._trained = BestWeights(self.model, given.restore_best), trains(self.model)
        self._take_data()
        self.history.metric, self.history.name = self.metric, f"{self.ds.name}: {type(self.model).__name__}"
        named = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
        self._config: dict[str, Any] = {
            **{"dataset": self.ds.name, "data_checksum": data_checksum(self.ds), "mode": self.mode},
            **{"lr": rate, "optimizer": named, "seed": self._seed, "eval_every": self._eval_every},
            **{**self._edges.identity(), **self._batch.identity(), **self._order.identity()},
            **loop.identity(self._rate),
            **(self._settings if self._settings["precision"] != "float32" else {}),
            **more,
        }

    @hosted
    def staged_plan(self) -> tuple[StagedPlan, Sizes] | None:
        """The compiled batch of mode "mini" and its sizes; None if sampler and model are not one program."""
        self.prepare()
        return self._batch.staged_plan()

    @hosted
    def prepare(self, epochs: int | None = None) -> None:
        """Prepares training: chooses layouts, compiles, computes constant values. :meth:`fit` calls it if needed.

        ``epochs``: planned number of epochs, for the choice of an order of the nodes; None: the given order.
        """
        if not self._prepared:
            with in_turn(mixed(self._seed, 0)), with_gradients(), self._within():
                self._order.settle(epochs, self.promise)
                self._config |= self._order.identity()
                self._batch.prepare()
            self._prepared = True

    @hosted
    def fit(self, epochs: int) -> History:
        """Trains ``epochs`` further epochs, or fewer if it stops early, and returns the history of all epochs.

        Labels, splits and ``requires_grad`` are read at the call. Training continues from the last weights, even if the
        model holds the best ones. Weights that were loaded into the model since then are used as they are. Ctrl-C ends
        training after the current epoch, with everything saved; a second Ctrl-C ends at once.

        Raises: ConfigError if the loss is no longer finite or ``out`` cannot be written; KeyboardInterrupt.
        """
        check_integer("epochs", epochs := as_plain(epochs), 0)
        if self.lacks:
            raise ConfigError(
                f"fit: expected the {' and '.join(self.lacks)} that the run was trained with, which only its program "
                "has; gw.Trainer(..., out=folder).resume() goes on there"
            )
        target = self.epoch + epochs
        with ExitStack() as stack:
            stack.enter_context(self._alone())
            check_updated(self.model, self.optimizer, self._parameters)
            self._weights.put_last()
            self._refresh()
            self._begin_anew()
            stop = stack.enter_context(shared_stop(self.ranks))
            folder = None if self.out is None else stack.enter_context(RunFolder(self.out))
            if folder is not None:
                folder.start(self.history, begun=self._batch.batches_done > 0)
                self.moved_to = folder.moved_to
            self._loop.loggers.start(self.epoch)
            stack.callback(self._loop.loggers.stop)
            stack.callback(self.promise.correct_profile)
            with self._tracing.running(), self._within():
                self._train(target, folder, stop)
            if folder is not None and self.epoch:
                folder.save(self.state_dict())
                self._batch.pause()
                folder.plot(self.history, self.history.name, self.metric)
        self._weights.put_best(self._update.averages)
        if (signum := stop.asked()) is not None:
            raise Interrupted(self.epoch, signum)
        return self.history

    @hosted
    def evaluate(self, split: str) -> float:
        """The score (:attr:`metric`) on "train", "val" or "test", with the current weights of the model.

        Raises: ConfigError for another split; DataError for a split without labels.
        """
        return self.scores(split)[self.metric]

    @hosted
    def scores(self, split: str) -> dict[str, float]:
        """The scores of :meth:`evaluate` and all further metrics by name, such as ``mrr`` for links."""
        check_choice("split", split, SPLITS)
        self._refresh()
        with self._within():
            found = self._batch.evaluate()
        value = {str(name): score for name, score in found.scores.items()}[split]
        if value is None:
            rows = "edges that are held out" if self.task == "link" else "nodes with a label"
            raise DataError(f"{self.ds.name}: expected {rows} in the {split} split, got none")
        return {self.metric: value, **found.beside(split)}

    @says_what_was_meant(proba="probabilities", probs="probabilities", logits="predictions().outputs")
    def predict(self, probabilities: bool = False) -> Tensor:
        """Predicts the class of every node, (N,) int64; for several labels (N, C) bool; for regression values as
        ``ds.y``.

        For links, and for models that learn without labels, these are the embeddings. The current weights of the model
        are used. With ``probabilities``, returns those of the classes or labels, (N, C) float32.

        Raises: ConfigError for probabilities of values or links, or for other data (see
        :meth:`gw.loaded_run.Run.predict`).
        """
        return self.predictions().chosen(probabilities)

    @hosted
    def predictions(self) -> Predictions:
        """The result of :meth:`predict` with ids, probabilities and ``save("predictions.csv")``."""
        self._refresh()
        with self._within():
            return predictions_of(self.ds, self._batch.logits(), None if self.task in EMBEDDING_TASKS else self._target)

    @hosted
    def resume(self) -> bool:
        """Resumes the run in ``out``. Returns False, without a change, if there is no run yet.

        Raises: CheckpointError if its checkpoint is damaged or belongs to another configuration.
        """
        state = read_shared(self.ranks, self.out)
        self._found_none = state is None
        if state is None:
            return False
        saved = state.get("config", {})
        if self._choice is not None and mode_of(saved) != self.mode:
            with self._choice.within():
                self._begin(self._choice.asked(mode_of(saved)))
        self._config |= self._batch.go_on_as(saved) | self._order.go_on_as(saved)
        check_same_run(str(self.out), saved, {**dict.fromkeys(saved), **self._config})  # nor was anything left out
        self._take_up(state)
        return True

    @hosted
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue: configuration, model, optimiser, best model, history."""
        within, best, averages = self._batch.within_epoch(), self.history.best, self._update.averages
        return {
            **within,
            "config": self._config,
            "options": {
                **self._remember,
                "description": describe(self.model, self.ds, self.task, self.metric).to_json(),
            },
            "feature_path": self.feature_path,
            "cost_seconds": costs_of(self.model),
            "epoch": self.epoch,
            "model": self._weights.last(),
            "optimizer": self.optimizer.state_dict(),
            "best_epoch": self.epoch if best is None else best.epoch,
            "best_val_acc": None if best is None else best.val_acc,
            **({} if best is None or best.val_rmse is None else {"best_val_rmse": best.val_rmse}),
            "best_model": self._weights.best if best is not None else self._weights.with_averages(averages),
            "history": self.history.to_state(),
            **({"best_since": self.history.since} if self.history.since else {}),
            **({"averages": self._update.state_dict()} if averages else {}),
            **({"learning_rate": self._rate.state_dict()} if self._rate.is_set else {}),
            **({"callbacks": states} if (states := self._loop.callbacks.state_dict()) else {}),
        }

    @hosted
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a result of :meth:`state_dict`. The model then has the best weights, as after ``fit``.

        Raises: CheckpointError if the state does not fit the model or lacks a part.
        """
        if not isinstance(state, dict):
            raise CheckpointError(f"checkpoint: expected a state as a dict, got {type(state).__name__}")
        moments = copy.deepcopy(state.get("optimizer"))  # torch's optimisers go on in the tensors that they are given
        self._take_up({**state, "optimizer": moments} if moments is not None else state)

    def _take_up(self, state: dict[str, Any]) -> None:
        """As :meth:`load_state_dict`, of a state that nobody else has."""
        self._loop.callbacks.load_state_dict(state.get("callbacks", []))
        self._config |= self._order.go_on_as(state.get("config", {}))
        try:
            rule = (self.history.best_by, int(state.get("best_since", 0)), self.history.higher)
            history = History.from_state(state["history"], *rule)
            self._weights.load(state["model"], state["best_model"])
            self._update.load_state_dict(state.get("averages", {}))
            if self._rate.is_set:
                self._rate.load_state_dict(state["learning_rate"])
            self.optimizer.load_state_dict(state["optimizer"])
            self._batch.x = with_path(self._batch.x, state["feature_path"])
            self._batch.continue_epoch(state)
            if state["cost_seconds"] and isinstance(self.model, CompiledModule):
                self.model.function.settle(CostModel.from_json(state["cost_seconds"]))
        except (KeyError, AttributeError, TypeError, ValueError, RuntimeError) as failure:
            text = " ".join(str(failure).split())[:200]
            raise CheckpointError(f"checkpoint: expected a state of this model and optimiser, got {text}") from None
        history.constant_guess = self.history.constant_guess
        history.metric, history.name = self.history.metric, self.history.name
        self.history = history
        if history.best is None:
            self._weights.forget()
        self._weights.put_best(self._update.averages)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One ``fit`` at a time. Raises: ConfigError within another, of a callback or another thread."""
        if not self._fits.acquire(blocking=False):
            raise ConfigError("fit: expected one fit of a trainer at a time, got a second one")
        try:
            yield
        finally:
            self._fits.release()

    def _within(self) -> ExitStack:
        """Keeps to the precision, and to the memory budget where there is one, in the block."""
        return run_within(self._settings, self._budget, self.model, self.mode)

    def _refresh(self) -> None:
        """Takes up labels and splits that were changed in place."""
        with self._within():
            changed = self._batch.refresh()
        if changed:
            self._take_data()
            self._config["data_checksum"] = data_checksum(self.ds)
            self._changed, self._weights.restores = True, False

    def _begin_anew(self) -> None:
        """Looks for the best epoch anew where labels, splits or the parameters that train have changed."""
        trained = trains(self.model)
        if self._changed or trained != self._trained:
            self._changed, self._trained = False, trained
            if self.epoch:
                self.history.begin_anew()
                self._weights.forget()

    def _take_data(self) -> None:
        """What a constant guess scores with the labels as they are now. Raises: ConfigError for nothing to stop on."""
        if self.task in EMBEDDING_TASKS:
            return
        rows = self._batch.rows
        needs = self._loop.needs_validation(self._patience, self._rate.watches)
        if needs and self.ranks.total(rows["val"].numel()) == 0:
            raise ConfigError(f"{needs} cannot be combined with a split without validation labels")
        if isinstance(self.ds, PartDataset):  # whose labels are those of one rank
            return
        scored = next((rows[part] for part in ("test", "val", "train") if rows[part].numel()), rows["train"])
        warn_of_one_class(self.ds, rows["train"])
        self.history.constant_guess = self._target.constant_guess(self.ds.y, rows["train"], scored)

    def _train(self, target: int, folder: RunFolder | None, stop: StopRequest) -> None:
        """Epochs up to ``target``, or to the first reason to stop."""
        if self.epoch >= target or self.stopped_early:
            return
        self.prepare(target - self.epoch)
        self._rate.begin(target)
        self.should_stop, scored = False, self.history.last
        with ExitStack() as stack:
            show = stack.enter_context(EpochProgress(self.epoch + 1, target)) if self._progress else None
            if show is not None:
                self._show_notes(show)
            told = partial(self._loop.callbacks.batch_end, self)
            here = (lambda: self.epoch + 1, self.state_dict, self._lr)
            self._batch.after_batch = between_batches(told, *here, folder, show)
            self._loop.callbacks.fit_start(self)
            while self.epoch < target and not (self.stopped_early or self.should_stop) and stop.asked() is None:
                self._rate.check(self.epoch)
                if not self._batch.batches_done:
                    self._loop.callbacks.epoch_start(self, self.epoch + 1)
                with span(f"epoch {self.epoch + 1}", "epoch"):
                    record = self._one_epoch(last=self.epoch + 1 == target)
                self._end_epoch(record, show)
                if record.eval_seconds:
                    scored = record
                if folder is not None:
                    folder.log(record)
                    if folder.is_due():
                        folder.save(self.state_dict())
                if show is not None:
                    show.update(record, scored)
            self._loop.callbacks.fit_end(self)

    def _end_epoch(self, record: EpochRecord, show: EpochProgress | None) -> None:
        """What follows from an epoch: the best weights, the next learning rate, the user's code."""
        self.history.append(record)
        self.promise.end_epoch(record.epoch_seconds, self.history, None if show is None else show.say)
        if show is not None and not self._was_noted:
            for note in self._batch.notes():
                show.say(f"note: {note}")
            self._was_noted = True
        if self.history.best is record:
            self._weights.keep(self._update.averages)
        self._rate.end_epoch(record.epoch, record.val_loss, self.history.watched(record))
        if self._budget is not None:
            self._budget.check()
        ended = self._loop.callbacks.epoch_end(self, record) or self.should_stop
        self.should_stop = bool(self.ranks.agreed(int(ended)))
        self._loop.loggers.log(record.values(), record.epoch)

    def _show_notes(self, show: EpochProgress) -> None:
        """Notes of the dataset and of the folder, once."""
        if self.moved_to is not None:
            show.say(f"{self.out} held another run; its files are now in {self.moved_to}")
        if self._found_none and not self.epoch:
            show.say(f"{self.out} holds no run to resume; a new one begins")
        for note in () if self._notes_shown else self.ds.notes:
            show.say(f"note: {note}")
        self._notes_shown = True

    def _one_epoch(self, last: bool) -> EpochRecord:
        """One step, timed, and an evaluation where one is due, timed apart."""
        epoch = self.epoch + 1
        with in_turn(mixed(self._seed, epoch)), with_gradients():
            start = time.perf_counter()
            loss = float(self._batch.step())
            middle = time.perf_counter()
        if not math.isfinite(loss):
            raise not_finite(self._lr, epoch, loss, getattr(self.ds, "edge_weight", None))
        if self._batch.is_single:
            self._loop.callbacks.batch_end(self, 1, loss)
        more: dict[str, float | None] = {"lr": self._rate.now} if self._rate.is_set else {}
        more |= self._batch.measured()
        if epoch % self._eval_every and not last and not self._would_stop(epoch):
            return EpochRecord(epoch, loss, epoch_seconds=middle - start, **self._batch.guarded(), metrics=more)
        begun = time.perf_counter()
        with span("evaluate", "evaluate"), self._update.averaged():
            found = self._batch.evaluate()
        column = "acc" if self.task in EMBEDDING_TASKS else self._target.column
        values = {f"{name}_{column}": value for name, value in found.scores.items()} | {"val_loss": found.val_loss}
        values |= found.details | self._batch.guarded()
        more |= {name: value for name, value in found.metrics.items() if name not in COLUMNS}
        seconds = {"epoch_seconds": middle - start, "eval_seconds": time.perf_counter() - begun}
        return EpochRecord(epoch, loss, **{**values, **seconds}, metrics=more)  # type: ignore[arg-type]
