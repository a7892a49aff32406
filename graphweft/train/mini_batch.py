"""One epoch over mini-batches: sample, forward, loss, backward, update; and one evaluation.

Comes in: a model, an optimiser, the data, fan-outs and a batch size. Goes out: the mean loss, or scores by split.
Called by the trainer. All random draws of a step follow from (seed, epoch, place in the epoch), and
:meth:`MiniBatch.state_dict` is what an interrupted epoch needs to go on with the same bits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphweft import _machine
from graphweft._backward import backward_from
from graphweft._draws import call_key, keyed
from graphweft._errors import ConfigError
from graphweft._trace import span
from graphweft.data.graph_samples import GRAPH_ID
from graphweft.interop.pyg_model import PyGModel
from graphweft.loader.batch import Batch
from graphweft.loader.multistage import MultistageLoader, NestedBatch
from graphweft.nn.module import CompiledModule
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.runtime.constants import Watch, owning
from graphweft.runtime.staged import PreparedBatch
from graphweft.runtime.targets import target_of as target_at
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.shadow import ShadowSampler
from graphweft.sample.whole_graphs import GraphSampler
from graphweft.schedule.subtasks import Subtasks
from graphweft.storage.gather import gather_rows
from graphweft.storage.int8_features import Int8Features
from graphweft.train.batch_gradients import add_gradients, weight_of
from graphweft.train.batch_steps import AnyLoader, BatchSteps
from graphweft.train.edge_data import EdgeData
from graphweft.train.full_batch import evaluation, is_other, is_plain, labelled
from graphweft.train.inference import USUAL_TILE, by_subgraphs, infer
from graphweft.train.macro import MacroRun
from graphweft.train.metrics import Evaluation
from graphweft.train.mini_needs import needs_within
from graphweft.train.needs import RunBudget, trimmed
from graphweft.train.node_batches import NodeBatches, Tables
from graphweft.train.options import PREPARE, check_choice
from graphweft.train.record import GUARDED
from graphweft.train.replayed import StepParts
from graphweft.train.samplers import AnySampler, sampler_of
from graphweft.train.setup import Setup
from graphweft.train.target import check_logits, target_of
from graphweft.train.update import Update

_EVALUATED = 1  # the stage of draws that evaluation makes

_WHOLE_SHARE = 0.25  # of the machine's memory: above that, evaluation goes tile by tile


class MiniBatch(BatchSteps):
    """Trains a model on sampled neighbourhoods of ``batch_size`` training nodes at a time.

    A stack of layers over neighbour samples is compiled together with its sampler; another compiled model runs on the
    batch's blocks, where it has some. Else the model is called as ``model(graph, x)`` with the batch as a graph of its
    own, and the seeds' rows of what it returns count. Losses are weighted by the batch's ``node_norm``. Evaluation uses
    the whole graph, but for ShaDow, whose models see nothing but the subgraphs of nodes.

    Args:
        setup: Model, data and options; of the base class all but those of stores, ranks and other places.

    Raises: ConfigError for fan-outs that do not fit the model.
    """

    seeds_are = "nodes"
    _watch: Watch | None = None
    _sum, _count = 0.0, 0  # of losses of the epoch under way
    _unread: tuple[Callable[[], float], int] | None = None  # a loss that is not among them yet, and its share
    _pending = _seeds_pending = 0  # batches, and their seeds, whose gradients wait for an update

    def __init__(self, setup: Setup) -> None:
        self.model, self.ds, self.optimizer, self.metrics = setup.model, setup.ds, setup.optimizer, setup.metrics
        self.drawn, self.seed, self._key = setup.drawn, setup.seed, setup.key
        self._accumulate = setup.drawn.accumulate
        self._set_up(setup)

    def _set_up(self, setup: Setup) -> None:
        """Takes up the data, and makes the loader; tasks whose rows are no nodes with labels have their own way."""
        ds, macro, prepare = setup.ds, self.drawn.macro, self.drawn.prepare
        self._tables = Tables(ds.graph, setup.x, ds.y, ds.train_idx)
        self._take_labels(setup)
        self.sampler = self._sampler_of(self.drawn.sampler, self.drawn.fanouts)
        self.fanouts = self.sampler.fanouts if isinstance(self.sampler, NeighborSampler) else ()
        if not isinstance(prepare, Subtasks):
            check_choice("prepare", prepare, PREPARE)
        if prepare != "whole" and macro is not None:
            raise ConfigError("prepare='subtasks' cannot be combined with macro")
        if macro is not None and not self.fanouts:
            what = "a set of graphs" if self.sampler is None else "a sampler other than neighbor"
            raise ConfigError(f"macro cannot be combined with {what}")
        self.loader, self.macro = self._load()

    def _take_labels(self, setup: Setup) -> None:
        """How labels are trained on, and which rows of them count."""
        self.target = setup.target or target_of(setup.ds)
        self._take(labelled(setup.ds))

    def _sampler_of(self, sampler: str | AnySampler, fanouts: Sequence[int] | None) -> AnySampler | None:
        """What draws the batches."""
        return sampler_of(self.model, self.ds.graph, sampler, fanouts, self.ds.arrays.get(GRAPH_ID))

    def guarded(self) -> dict[str, Any]:
        """What the quality guard measured in the epoch that is done, by column."""
        found = None if self.macro is None else self.macro.quality
        if found is None:
            return {}
        values = (found.error, found.sampling, found.staleness, found.neighbor_loss, found.age)
        return dict(zip(GUARDED, values, strict=True))

    def use(self, edge_data: EdgeData) -> None:
        """Gives the model weights and features of edges; before :meth:`prepare`."""
        self.edge_data = edge_data
        if self.macro is not None and self.macro.historical is not None:
            self.macro.historical.edges = edge_data.inputs

    def _load(self) -> tuple[AnyLoader, MacroRun | None]:
        """A loader over the training rows, and what surrounds macro-batches where there are some."""
        batch_size, seed, macro, prepare = self.drawn.batch_size, self.seed, self.drawn.macro, self.drawn.prepare
        seeds = torch.unique(self.rows["train"], sorted=True)
        if macro is not None:
            nested = MultistageLoader(
                self._tables, seeds, self.fanouts, batch_size, True, seed, macro=macro.made(self.ds), ahead=macro.ahead
            )
            return nested, MacroRun(macro, nested, self.model, self.ds, self._on_batch, self.target)
        if isinstance(self.sampler, GraphSampler):
            self.sampler = self.sampler.holding(seeds)
        subtasks = Subtasks(torch.get_num_threads()) if prepare == "subtasks" else None
        subtasks = prepare if isinstance(prepare, Subtasks) else subtasks
        loader = NodeBatches(self._tables, seeds, None, batch_size, True, seed, sampler=self.sampler, prepare=subtasks)
        if is_plain(self.model):  # its kernels give the same bits for any number of threads
            loader.split_cores()
        return loader, None

    def refresh(self) -> bool:
        """Takes up features, labels and splits as they are now; whether labels or splits changed.

        Other training rows begin an epoch anew. Features are compared by their bytes.
        """
        if self._watch is None or self._watch.item is not self.x:
            self._watch = Watch(self.x)
        self._watch.look()
        if self.half is not None:
            self.half.refresh()
        if self.edge_data.inputs is not None:
            self.edge_data.inputs.look()
        rows = labelled(self.ds)
        if not is_other(self.ds, self.rows, self.labels, rows):
            return False
        self.ds.check_trainable()
        self.target.check(self.ds.name, self.ds.y)
        former, self._sum, self._count = self.rows["train"], 0.0, 0
        self._take(rows)
        if not torch.equal(former, rows["train"]):
            done = self.loader.state_dict()
            epoch = done["epoch"] + (done["position"] == len(self.loader))
            self.loader, self.macro = self._load()
            self.use(self.edge_data)
            self.loader.load_state_dict({**self.loader.state_dict(), "epoch": epoch, "position": 0})
            self._pending = self._seeds_pending = 0
        return True

    def prepare(self) -> None:
        """Compiles the stages of a batch, where they are compiled together, for what model and configuration are now.

        Orders follow from the sizes of a batch of the first seeds under a key of its own, which no run draws otherwise:
        the same wherever a run is taken up.
        """
        loader = self.loader
        if isinstance(loader, NodeBatches):
            self._compile(loader)
            if self.replays is not None and not self.replays.refuses(loader.plan):
                self.replays.prepare(loader.plan, self._given_step())

    @contextmanager
    def rehearsal(self) -> Iterator[Callable[[], object]]:
        """As for all steps, on the first batch of the epoch."""
        macro = self.macro
        with self._undone(), self.loader.first_batch() as batch:
            self.macro = None if macro is None else macro.apart(self.x)
            try:
                yield (lambda: None) if batch is None else partial(self.rehearse, batch)
            finally:
                self.macro = macro

    def rehearse(self, batch: Any) -> None:
        """The gradients of a batch, without an update."""
        self.gradients(batch)

    def made_of(self) -> str:
        """How many seeds, and where they are drawn."""
        nested = "" if self.macro is None else ", within macro-batches"
        count = min(self.loader.batch_size, self.loader.num_items)
        return f"batches of {count:,} {self.seeds_are}{nested}"

    def fit_into(self, budget: RunBudget) -> None:
        """Chooses how many batches are prepared ahead and how an evaluation is cut; neither changes a batch."""
        self.budget = budget
        needs, ways, _ = needs_within(self, budget)
        budget.settle(needs)
        self.keep_ways(ways)

    def _given_step(self) -> StepParts:
        """What a step is made of that is written down."""
        draws = isinstance(self.model, Stack) and self.model.draws()
        loss = self.target.written_down(self.ds.y, target_at(self.device))
        update = self.optimizer if isinstance(self.optimizer, Update) else None
        return StepParts(loss, draws, self.device, type(self.model).__name__, update)

    @property
    def batches_done(self) -> int:
        """Batches of the epoch under way that were trained on."""
        return int(self.loader.state_dict()["position"])

    def step(self) -> Tensor:
        """One epoch, or the rest of one; the mean of its losses before their updates, shape ()."""
        self.prepare()
        if self.macro is not None and self.batches_done == 0:
            self.macro.begin_epoch(self.x)
        if self.replays is not None and self.batches_done == 0:
            self.replays.begin_epoch()
        done = self.batches_done
        try:
            for batch in self.loader:
                loss, done = self._keyed_step(batch), self.batches_done
                self._count_in(loss, weight_of(batch), done)
                self.after_batch(done, len(self.loader), self._sum / max(self._count, 1))
                del batch  # before the next one is made
        except BaseException:  # the user's code, or an interrupt: a later step goes on where this one stood
            self.loader.leave(done)
            raise
        if self.macro is not None:
            self.macro.end_epoch(self._key(self.loader.epoch, 0))
        if self.replays is not None:
            self.replays.end_epoch()
        return self._mean()

    def _keyed_step(self, batch: Batch | PreparedBatch) -> Callable[[], float]:
        """An update by the batch that the loader gave last; what reads its loss."""
        later = target_at(self.device).later
        with keyed(self._key(self.loader.epoch, self.batches_done)):
            begun = time.perf_counter()
            trained = self._train_on(batch)
            loss = partial(float, float(trained)) if later is None else later(trained)
            self._measured(batch, time.perf_counter() - begun)
        return loss

    def _count_in(self, loss: Callable[[], float], weight: int, done: int) -> None:
        """Counts the loss of a batch, on a device once the next batch was launched."""
        if self.budget is not None:
            self.budget.check()
        self._read()  # of the batch before, while a device works on this one
        self._unread = loss, weight
        if target_at(self.device).later is None or done == len(self.loader) or self._count == 0:
            self._read()

    def _mean(self) -> Tensor:
        """The mean loss of the epoch that is done, shape (); the next one begins with none."""
        mean = self._sum / max(self._count, 1)
        self._sum, self._count = 0.0, 0
        return torch.tensor(mean, dtype=torch.float64)

    def _read(self) -> None:
        """Counts the loss that was not read yet, where there is one."""
        if self._unread is not None:
            (loss, share), self._unread = self._unread, None
            self._sum += loss() * share
            self._count += share

    def logits(self) -> Tensor:
        """Logits of all nodes from all of their neighbours, in evaluation mode, shape (N, C)."""
        self.let_gradients_go()
        with trimmed(self.budget if self.budget is not None and self.budget.trims else None):
            return self._of_all_nodes()

    def let_gradients_go(self) -> None:
        """Within a budget an evaluation has no gradients beside it: the next step makes its own."""
        if self.budget is not None and not self._pending:
            self.optimizer.zero_grad(set_to_none=True)

    def _of_all_nodes(self) -> Tensor:
        """As :meth:`logits`."""
        model = self.model
        if isinstance(self.sampler, ShadowSampler):
            size, seed = self.loader.batch_size, self.loader.seed
            return by_subgraphs(self.model, self.sampler, self.x, self.edge_data, size, (seed, _EVALUATED))
        tile = None if self.budget is None else self.budget.tile
        short, whole = isinstance(self.x, Int8Features), 4 * self.ds.num_nodes * 3 * widest(model)  # of three widths
        if isinstance(model, Stack) and (tile or short or whole > _WHOLE_SHARE * _machine.memory()):
            cut, edges = tile or USUAL_TILE, self.edge_data.inputs
            return infer(model, self.ds.graph, self.x, cut, edges=edges, trims=tile is not None)
        model.eval()
        x = self.x.to_dense() if isinstance(self.x, Int8Features) else self.x
        with torch.no_grad(), owning(x):
            logits: Tensor = model(self.ds.graph, x, **self.edge_data.keywords())
        return logits

    def evaluate(self) -> Evaluation:
        """Score of every split and the validation loss."""
        logits = check_logits(self.logits(), (self.ds.y.shape[0], self.ds.num_classes))
        return evaluation(self.target, logits, self.ds.y, self.rows, self.metrics)

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        accumulated = {"accumulate": self._accumulate} if self._accumulate > 1 else {}
        macro = {} if self.macro is None else self.macro.macro.identity()
        drawn: Any = list(self.fanouts)
        if not self.fanouts and self.sampler is not None:
            drawn = f"{type(self.sampler).__name__} {json.dumps(self.sampler.identity())}"
        return {"drawn": drawn, "batch_size": self.loader.batch_size, **accumulated, **macro}

    def within_epoch(self) -> dict[str, Any]:
        """Where the epoch under way stands, for checkpoints."""
        return {"batches": self.batches_done, "mini_batch": self.state_dict()}

    def continue_epoch(self, state: dict[str, Any]) -> None:
        """Goes on where a checkpoint stood. Raises: CheckpointError for that of another loader."""
        self.load_state_dict(state["mini_batch"])

    def measured(self) -> dict[str, float]:
        """Batches that were replayed, and those that were not."""
        return {} if self.replays is None else self.replays.measured()

    def replay_report(self) -> dict[str, Any]:
        """As :meth:`Replays.report`."""
        return {} if self.replays is None else self.replays.report()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader and what waits for an update stand."""
        self._read()
        state = {"loader": self.loader.state_dict(), "loss_sum": self._sum, "loss_count": self._count}
        if self.macro is not None:
            state["macro"] = self.macro.state_dict()
        if self.replays is not None and not self.replays.refused:
            state["replays"] = self.replays.state_dict()
        if self._pending:
            gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
            state["pending"] = {"batches": self._pending, "seeds": self._seeds_pending, "gradients": gradients}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`. Raises: CheckpointError for a state of another loader."""
        if self.macro is not None:
            self.macro.load_state_dict(state["macro"])
        if self.replays is not None and "replays" in state:
            self.replays.load_state_dict(state["replays"])
        self.loader.load_state_dict(state["loader"])
        pending = state.get("pending", {"batches": 0, "seeds": 0, "gradients": {}})
        self._pending, self._seeds_pending = int(pending["batches"]), int(pending["seeds"])
        for name, parameter in self.model.named_parameters():
            gradient = pending["gradients"].get(name)
            parameter.grad = None if gradient is None else gradient.clone()
        self._sum, self._count = float(state["loss_sum"]), int(state["loss_count"])

    def _train_on(self, batch: Batch | PreparedBatch) -> Tensor:
        """One step, with an update where one is due; the loss before it, shape (); 0 without training nodes."""
        if batch.batch_size == 0:
            if self._pending:
                self._update(0)
            return torch.zeros(())
        if not self.model.training:
            self.model.train()
        if not self._pending:
            self.optimizer.zero_grad(set_to_none=True)
        loss = self._gradients(batch, weight_of(batch) if self._accumulate > 1 else 1)
        with span("update", "update"):
            self._update(weight_of(batch))
        return loss

    def _gradients(self, batch: Batch | PreparedBatch, weight: int = 1) -> Tensor:
        """Adds ``weight`` times the gradients of a batch to those that are there; its mean loss, shape ()."""
        if isinstance(batch, PreparedBatch):
            return self._backward_staged(batch, weight)
        with span("forward", "forward"):
            logits = self._forward(batch)
        norm = None if batch.node_norm is None else batch.node_norm[: batch.batch_size]
        with span("loss", "loss"):
            loss, gradient = self._loss(check_logits(logits).detach(), self._label_rows(batch), norm)
        with span("backward", "backward"):
            backward_from(logits, gradient if weight == 1 else gradient * weight)
        return loss

    def gradients(self, batch: Batch | PreparedBatch) -> Tensor:
        """The gradients of a batch, without an update; its mean loss, shape ()."""
        self.model.train()
        return self._gradients(batch)

    def _label_rows(self, batch: Any) -> Tensor:
        """Which rows of the labels the outputs for a batch are for."""
        rows: Tensor = batch.n_id[: batch.batch_size]
        return rows

    def _backward_staged(self, batch: PreparedBatch, weight: int) -> Tensor:
        """As :meth:`_gradients`, of a batch whose first stage has run."""
        model, tensors = self.model, self._tensors()
        assert isinstance(model, Stack)  # what is staged
        seed = call_key() if model.draws() else 0
        if self.replays is not None and self.replays.counts:
            labels, eager = self.ds.y[batch.seeds], partial(self._eager_step, batch, tensors, seed)
            found = self.replays(batch, labels, seed, tensors, eager)
            if found is not None:
                add_gradients(tensors, found[1])
                return found[0]  # type: ignore[no-any-return]
        batch = self._arrived(batch)
        with span("forward", "forward"):
            outputs, pullback = batch.plan.linearize(batch, tensors, seed)
        model.store(
            {name: tensor for name, tensor in outputs.items() if name != "out"},
            lambda norm: batch.rows[-1 - int(norm.split(".")[1])],
        )
        with span("loss", "loss"):
            loss, gradient = self._loss(outputs["out"], batch.seeds)
        with span("backward", "backward"):
            gradients = pullback(gradient if weight == 1 else gradient * weight)
        add_gradients(tensors, gradients)
        return loss

    def _eager_step(
        self, batch: PreparedBatch, tensors: dict[str, Tensor], seed: int
    ) -> tuple[Tensor, dict[str, Tensor | None]]:
        """Loss and gradients of a batch as it comes, which has no statistics to keep."""
        batch = self._arrived(batch)
        outputs, pullback = batch.plan.linearize(batch, tensors, seed)
        loss, gradient = self._loss(outputs["out"], batch.seeds)
        return loss, pullback(gradient)

    def _arrived(self, batch: PreparedBatch) -> PreparedBatch:
        """The batch where the model is."""
        return batch

    def _loss(self, logits: Tensor, seeds: Tensor, norm: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean loss of the seeds, or their sum weighted by ``norm``, shape (), and its gradient by their logits."""
        check_logits(logits, (seeds.numel(), self.ds.num_classes))
        labels = torch.index_select(self.ds.y, 0, seeds)  # whole rows at a time, unlike y[seeds]
        if norm is None:
            return self.target.loss(logits, labels)
        leaf = logits.detach().requires_grad_()
        loss = norm @ self.target.row_losses(leaf, labels)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    def _update(self, seeds: int) -> None:
        """Steps the optimiser once enough batches have added their gradients, or the epoch has no more."""
        last = self.batches_done == len(self.loader)
        self._pending, self._seeds_pending = self._pending + 1, self._seeds_pending + seeds
        if self._pending < self._accumulate and not last:
            return
        if self._accumulate > 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self._seeds_pending
        self._pending = self._seeds_pending = 0
        if self.replays is None or not self.replays.takes_update():
            self.optimizer.step()
        if self.macro is not None:
            self.macro.end_step()

    def _forward(self, batch: Batch) -> Tensor:
        if self.macro is not None and isinstance(batch, NestedBatch):
            return self.macro.forward(batch)
        return self._on_batch(batch)

    def _on_batch(self, batch: Batch) -> Tensor:
        if batch.blocks and (isinstance(self.model, CompiledModule) or getattr(self.model, "takes_blocks", False)):
            logits: Tensor = self.model(batch.blocks, batch.x, **self.edge_data.keywords())
            return logits
        if isinstance(self.model, PyGModel) and self.edge_data.inputs is None and not self.ds.graph.is_typed:
            return self.model.of_seeds(batch.x, batch.edge_index, batch.num_seeds)
        given = {} if self.edge_data.inputs is None else self.edge_data.of_subgraph(batch.e_id)
        if isinstance(self.model, TypedStack):
            part = batch.typed
            x = None if batch.x is None else gather_rows(batch.x, part.order)
            rows: Tensor = self.model(part.graph, x, rows=part.place[: batch.num_seeds], **given)
        else:
            rows = self.model(batch.subgraph, batch.x, **given)[: batch.num_seeds]
        return rows


def widest(model: nn.Module) -> int:
    """Width of the widest rows between layers."""
    return max(parameter.shape[-1] for parameter in model.parameters() if parameter.dim() == 2)
