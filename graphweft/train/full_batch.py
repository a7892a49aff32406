"""One epoch over the whole graph: forward, loss, backward, update; and one evaluation.

Comes in: a model called ``model(graph, x)``, an optimiser and the data. Goes out: the loss, or scores by split. Called
by the trainer, which times exactly :meth:`FullBatch.step` as the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor, nn

from graphweft import _config
from graphweft._backward import backward_from
from graphweft._errors import ConfigError, DataError, GraphWeftError, MemoryBudgetError
from graphweft._memory import POOL
from graphweft._trace import active, span
from graphweft.cost import Works, call_work, moved_nearer
from graphweft.data.dataset import Dataset, Part
from graphweft.graph.stretches import reading_often
from graphweft.nn.module import CompiledModule
from graphweft.nn.settings import has_hooks, is_parametrized, settings_of
from graphweft.passes.work import Sizes
from graphweft.runtime.constants import Reference, Watch, owning, sent
from graphweft.runtime.footprint import footprint, ordered_entries
from graphweft.runtime.plan import Plan
from graphweft.runtime.prediction import computed
from graphweft.runtime.sizes import measure_sizes
from graphweft.runtime.tape import WRITTEN, Tape
from graphweft.runtime.targets import target_of as plan_target
from graphweft.storage.feature import Features, SparseFeatures, alone, is_dense
from graphweft.train.device import device_of, stays_sparse
from graphweft.train.edge_data import EdgeData
from graphweft.train.epoch_steps import Steps
from graphweft.train.half_features import HalfFeatures, stores_half
from graphweft.train.metrics import Evaluation
from graphweft.train.named_metrics import Metric, measured
from graphweft.train.needs import (
    UNLIMITED,
    Needs,
    RunBudget,
    base_needs,
    full_needs,
    handed_bytes,
    loss_bytes,
)
from graphweft.train.needs_by_running import kept_buffers, run_bytes
from graphweft.train.node_order import NodeOrder
from graphweft.train.own_loss import OwnLoss
from graphweft.train.settle import is_measured_first, settle_model
from graphweft.train.target import Cells, OwnCells, Target, check_logits, target_of
from graphweft.train.update import Update

SPLITS: tuple[Part, ...] = ("train", "val", "test")


class FullBatch(Steps):
    """Trains a model on all nodes at once; only nodes with a known label count.

    The loss is that of the labels' :class:`Target`. A compiled model is asked for the rows of training nodes only, so
    that its last layer computes no others. Without ``keep_features`` the memory of dense features is given up once
    every step reads only what was aggregated from them; ``ds.x`` is empty of numbers then. With ``every_row`` the last
    layer computes the rows of all nodes.
    """

    takes_order = True

    def __init__(
        self,
        model: nn.Module,
        ds: Dataset,
        x: Features,
        optimizer: torch.optim.Optimizer | Update,
        keep_features: bool = True,
        edge_data: EdgeData | None = None,
        target: Target | None = None,
        metrics: Sequence[Metric] = (),
        every_row: bool = False,
    ) -> None:
        self._every_row = every_row
        self.model, self.ds, self.optimizer = model, ds, optimizer
        self.device, self._given = device_of(model), x
        self.x = self._there(x)
        self.half: HalfFeatures | None = None  # of features that steps read themselves

        self.edge_data = edge_data or EdgeData()
        self._keep_features, self._released = keep_features, False
        self.keeps_given = keep_features or not is_dense(x)
        self._run_graph, self.order, self._has_given = ds.graph, None, True
        self._settles = plan_target(self.device).blocking
        self._orders_entries = plan_target(self.device).blocking  # what adjacencies gain for kernels of the CPU
        self._watch = Watch(x)
        self._tape: Tape | None = None
        self._recorded: tuple[object, ...] = ()
        self._settings: Hashable = ()
        self._engine = x.requires_grad  # whose gradient is then wanted, too
        self.target, self.metrics = target or target_of(ds), metrics
        self._take(labelled(ds))

    def _there(self, item: Features) -> Features:
        """Numbers of the dataset on the device of the model, sent once; sparse ones by the kernels that read them."""
        if item.device == self.device or (isinstance(item, SparseFeatures) and stays_sparse(self.model, item)):
            return item
        with owning(item):
            return sent(item, self.device)

    def renumber(self, order: NodeOrder | None) -> None:
        """Steps see the nodes in ``order`` from now on, None: as given; what was prepared is prepared again.

        Raises: GraphWeftError where features are gone that are wanted in the given order.
        """
        if order is None and self.order is not None and not self._has_given:
            if self._released:
                raise GraphWeftError("keep_features=False cannot be combined with a model that is watched later")
            self._given, self._has_given = self.order.as_given(self.x), True
        self.order, self._tape, self.half = order, None, None
        self._run_graph = self.ds.graph if order is None else order.graph
        self.x = self._there(self._given) if order is None else order.first(self._given, self.x)
        self._take(labelled(self.ds))
        if order is not None and not self.keeps_given:
            self._given.data = self._given.new_zeros(()).expand(self._given.shape)
            self._has_given = False

    def features(self) -> Features:
        """Of nodes in the order of the data."""
        if self.order is None or self._released:
            return self.x
        return self._given if self._has_given else self.order.as_given(self.x)

    def _take(self, rows: dict[Part, Tensor]) -> None:
        """As every kind of steps, in the order of the nodes; which rows a step computes."""
        super()._take(rows)
        y, here = self.ds.y, rows
        if self.order is not None:
            y, here = self.order.rows(y), {name: self.order.places(ids) for name, ids in rows.items()}
        self._scored = y, here  # whose terms are in the order of the data
        train = here["train"]
        if self.order is not None and not isinstance(self.target, OwnLoss):  # which may know its rows by their places
            train = train.sort().values
        few = 0 < train.numel() < y.shape[0] and torch.bincount(train).max() == 1
        is_whole = self._every_row or not isinstance(self.model, CompiledModule)
        self._wanted = self._there(train) if few and not is_whole else None
        y, listed = (y, train) if self._wanted is None else (y[train], None)
        self._used = self._there(y), None if listed is None else self._there(listed)

    def _unless_watched(self) -> None:
        """Whoever watches the model sees nodes in the order of the data."""
        if self.order is not None and not is_plain(self.model):
            self.renumber(None)

    def refresh(self) -> bool:
        """Takes up features, labels, splits and the model's settings as they are now; whether labels or splits changed.

        Features and edge weights are compared by their bytes: they may have been written to behind torch's back.
        """
        self._unless_watched()
        if not self._released and self._has_given:
            self._watch.look()
            if self.order is not None:
                self.x = self.order.again(self._given, self.x if self.half is None else self.half.given)
            elif self.half is None:
                self.x = self._there(self._given)
            if self.half is not None:
                self.half.refresh()
                self.x = self.half.rows
        if self.edge_data.inputs is not None:
            self.edge_data.inputs.look()
        rows = labelled(self.ds)
        changed = is_other(self.ds, self.rows, self.labels, rows)
        if changed:
            self.ds.check_trainable()
            self.target.check(self.ds.name, self.ds.y)
            self._take(rows)
        if self._tape is not None and (changed or not self._is_as_recorded()):
            assert isinstance(self.model, CompiledModule)  # others have no tape
            self._tape = None  # gives its memory back before there is another
            with kept_buffers(self.model), owning(self.x, self._wanted):
                self._compile(self.model)
        return changed

    def prepare(self) -> None:
        """Settles what is decided by measuring, then compiles, computes what stays the same, and records the step."""
        if not isinstance(self.model, CompiledModule) or self.model.runs_apart():
            return
        with kept_buffers(self.model), owning(self.x, self._wanted), reading_often(self._orders_entries):
            if self._settles:
                self._settle(self.model)
            self._compile(self.model)
            if self._tape is None:
                self._first_step()

    def _settle(self, model: CompiledModule) -> None:
        """Decides by measured costs, or by those that are remembered."""
        try:
            with reading_often(self._orders_entries):
                settle_model(model, self._run_graph, self.x, self._wanted, self._first_step, self.edge_data.inputs)
        except MemoryBudgetError:  # a step with other orders takes more than there is: the usual ones stay
            model.function.settle(None)
            self._settles = False
        POOL.trim()  # what deciding took is not needed again

    def fit_into(self, budget: RunBudget) -> None:
        """Chooses how much is computed once, so that training keeps to ``budget``.

        Torch's own models and their tensors are counted as they come. Raises: MemoryBudgetError.
        """
        needs = self.needs_within(budget)
        budget.settle(needs)
        if not is_plain(self.model) or _config.current().opt_level == 0:  # nothing to choose
            return
        with budget.bounded():
            settled = self.needs(budget, measures=True)
            if budget.fits(settled):
                with torch.random.fork_rng(devices=[]), kept_buffers(self.model), owning(self.x, self._wanted):
                    self._settle(self.model)
                settled = self.needs(budget)  # measured costs may ask for another order
        if budget.fits(settled):
            budget.settle(settled)
        else:
            self.model.function.settle(None)
            self._settles = False

    def needs_within(self, budget: RunBudget) -> Needs:
        """The memory that training takes where it keeps as much as ``budget`` leaves room for; it may not fit."""
        if not is_plain(self.model) or _config.current().opt_level == 0:
            room = budget.limit - base_needs(self.ds, self.model, budget).total
            taken = run_bytes(self.model, self.ds, self.x, self.edge_data, room)
            return replace(base_needs(self.ds, self.model, budget), step=taken.total, measured=True)
        usual = self.needs(budget)
        if not budget.fits(usual) and self._orders_entries:  # which saves time alone
            self._orders_entries = False
            usual = self.needs(budget)
        if budget.fits(usual):
            return usual
        budget.keep_at_most(0)
        with budget.bounded():
            least = self.needs(budget)
        budget.keep_at_most(budget.room_for(least) - least.total)
        with budget.bounded():
            needs = self.needs(budget)
        if budget.fits(needs):
            return needs
        recomputes = least.running <= usual.running  # what is not kept may take more than it would
        budget.keep_at_most(0 if recomputes else None)
        return least if recomputes else usual

    def needs(self, budget: RunBudget, measures: bool = False) -> Needs:
        """The memory that training takes, by account; ``measures``: where costs may be measured before.

        Raises: ConfigError as :meth:`plans`.
        """
        step, evaluation, wanted, sizes = self.plans()
        rows = self.ds.num_nodes if wanted is None else wanted.numel()
        loss = loss_bytes(rows, self.ds.num_classes)
        base = base_needs(self.ds, self.model, budget)
        assert isinstance(self.model, CompiledModule)  # as its plans are at hand
        base = replace(base, program=base.program - self.model.function.kept_by_torch)  # which is counted as kept
        measures = (measures or budget.limit >= UNLIMITED) and self._measures_first()
        facts = not self._keep_features, is_recorded(step), measures, self.order is not None
        found = full_needs(base, self.ds, (step, evaluation), sizes, loss, *facts)
        if not self._orders_entries:
            return found
        entries = ordered_entries((step, evaluation), sizes, self.ds.graph.is_symmetric)
        return replace(found, structure=found.structure + entries)

    def _measures_first(self) -> bool:
        """Whether a step is measured before the one that is recorded."""
        assert isinstance(self.model, CompiledModule)  # as its plans are at hand
        data = self._run_graph, self.x, self._wanted, self.edge_data.inputs
        return self._settles and is_measured_first(self.model, *data)

    def works(self) -> tuple[Works, float]:
        """What an epoch does, and the seconds on one thread of what walks compute for every edge."""
        step, _, wanted, sizes = self.plans()
        calls = [*step.forward, *step.backward]
        rows = self.ds.num_nodes if wanted is None else wanted.numel()
        made = 0 if is_recorded(step) else len(calls)
        works = [*((work, 1.0) for call in calls for work in call.works), (call_work(), made), *self._around(rows)]
        if self.order is not None:
            works = moved_nearer(works, self.order.gained)
        return works, sum(computed(call, sizes) for call in calls)

    def _compile(self, model: CompiledModule) -> None:
        """Compiles the passes of an evaluation and of a step, hoists, and records the step where that can be done."""
        graph, function = self._run_graph, model.function
        model.eval()
        with torch.no_grad():
            evaluation = model.arguments(graph, self.x, None, self.edge_data.inputs)
            plans = [function.ready(evaluation)]
        model.train()
        arguments = model.arguments(graph, self.x, self._wanted, self.edge_data.inputs)
        plans.append(function.ready(arguments))
        if self.half is None and self._stores([plan for plan in plans if plan is not None]):
            with owning(self.x):
                return self._compile(model)
        if not self._keep_features:
            self._released = function.release(arguments) or self._released
        with torch.no_grad():
            function.hoist(evaluation)
        POOL.trim()
        self._tape = self._record()

    def _stores(self, plans: list[Plan]) -> bool:
        """Whether features are in bfloat16 from now on, since ``plans`` read them themselves."""
        if not any("x" in plan.tensors for plan in plans) or not stores_half(self.x, plans):
            return False
        assert isinstance(self.x, Tensor)  # dense
        given, self.half = self.x, HalfFeatures(self.x)
        self.x = self.half.rows
        if not self._keep_features:
            assert isinstance(self.model, CompiledModule)  # as its plans are at hand
            self.model.function.give_up(given)
            self._released = True
        return True

    def plans(self) -> tuple[Plan, Plan, Tensor | None, Sizes]:
        """The plans of a step and of an evaluation, the rows that a step computes (None: all), and the sizes of both.

        Raises: ConfigError for a model that is not compiled as a whole.
        """
        if not is_plain(self.model):
            raise ConfigError(f"model: expected one that is compiled as a whole, got {type(self.model).__name__}")
        graph, function, edges = self._run_graph, self.model.function, self.edge_data.inputs
        found: list[Plan] = []
        rows: dict[str, int] = {}
        nonzeros: dict[str, int] = {}
        x = alone(self.x)  # what is made dense for a plan alone goes with it
        with owning(x, self._wanted):
            for wanted, training in ((self._wanted, True), (None, False)):
                with torch.set_grad_enabled(training):
                    arguments = self.model.train(training).arguments(graph, x, wanted, edges)
                    plan = function.ready(arguments)
                if plan is None:
                    raise ConfigError("model: expected one that kernels run, got one for the interpreter")
                found.append(plan)
                sizes = measure_sizes(plan.compiled.program, arguments.named(), 0)
                rows, nonzeros = rows | dict(sizes.rows), nonzeros | dict(sizes.nonzeros)
        return found[0], found[1], self._wanted, Sizes(rows, nonzeros)

    @contextmanager
    def rehearsal(self) -> Iterator[Callable[[], object]]:
        """As for all steps: call by call, also where steps are replayed."""
        with self._undone(), owning(self.x, self._wanted):
            yield self._backward

    def made_of(self) -> str:
        """All nodes, or those with labels to train on."""
        rows = self.ds.num_nodes if self._wanted is None else self._wanted.numel()
        return f"a step computes the outputs of {rows:,} nodes"

    def _first_step(self) -> None:
        """A step without an update."""
        self._backward()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> Tensor:
        """One update of the parameters; the training loss before it, shape ()."""
        self.optimizer.zero_grad(set_to_none=True)
        with owning(self.x, self._wanted):
            loss = self._gradients()
        with span("update", "update"):
            self.optimizer.step()
        return loss

    def _gradients(self) -> Tensor:
        """By the tape, or call by call; the loss, shape ()."""
        self._unless_watched()
        return self._backward() if self._tape is None or not self._replays() else self._replay(self._tape)

    def logits(self) -> Tensor:
        """Logits of all nodes in evaluation mode, shape (N, C)."""
        self._unless_watched()
        arena = None if self._tape is None else self._tape.arena
        if arena is not None:  # outputs lie beside it, and this pass needs less of it than a step
            arena.give_pages(handed_bytes(self.ds))
        if arena is None or self.order is not None:
            with POOL.within(arena, spills=True):
                made = self._logits()
            return made if self.order is None else self.order.as_given(made)
        shape = self.ds.num_nodes, self.ds.num_classes  # what lies in the arena is the next step's
        out = POOL.empty(shape) if handed_bytes(self.ds) >= POOL.page else torch.empty(shape)
        with POOL.within(arena, spills=True), POOL.handing(out):
            made = self._logits()
        if made.data_ptr() == out.data_ptr():
            return made
        # a value before it may have been handed there, if it was as large
        return out.copy_(made) if (out.shape, out.dtype) == (made.shape, made.dtype) else made.clone()

    def _logits(self) -> Tensor:
        self.model.eval()
        with torch.no_grad(), owning(self.x, self._wanted):
            logits = self.model(self._run_graph, self.x, **self.edge_data.keywords())
        return check_logits(logits, (self.ds.y.shape[0], self.ds.num_classes))

    def evaluate(self) -> Evaluation:
        """Score of every split and the validation loss after one forward pass."""
        self._unless_watched()
        y, rows = self._scored
        with POOL.within(None if self._tape is None else self._tape.arena, spills=True):
            return evaluation(self.target, self._logits(), y, rows, self.metrics)

    def _record(self) -> Tape | None:
        """The step up to the gradients as a tape, where the kernels do it all."""
        if self._engine or not is_plain(self.model):
            return None
        if not plan_target(self.device).blocking:
            return None
        arguments = self.model.arguments(self._run_graph, self.x, self._wanted, self.edge_data.inputs)
        function = self.model.function
        loss, read = self.target.recorded(*self._labels())
        plan = function.ready(arguments)
        if plan is None or [name for name, _ in plan.outputs] != ["out"] or plan.dtype_of("out") != torch.float32:
            return None
        if "seed" in plan.fixed:  # it is another number in every step
            return None

        hoisted = function.hoist(arguments)
        if isinstance(self.x, SparseFeatures):
            hoisted.append(self.x.transposed)  # made now, outside the arena
        POOL.trim()

        def gradients() -> tuple[Cells, dict[str, Tensor | None]]:
            outputs, pullback = function.linearize(arguments)
            self._check(outputs["out"])
            cells, gradient = loss(outputs["out"], plan.forgets("out"))
            return cells, pullback(gradient)

        self._recorded, self._settings = self._state(), settings_of(self.model.train())
        return Tape.record(gradients, [arguments, read, hoisted], footprint(*function.sized_plan(arguments)).peak)

    def _replays(self) -> bool:
        """Whether everything is where it was when the tape was recorded, and nobody wants to see the calls."""
        tape = self._tape
        if active() is not None:
            return False
        return tape is not None and tape.is_ready() and not is_hooked(self.model) and self._recorded == self._state()

    def _is_as_recorded(self) -> bool:
        """Whether a step would be recorded alike: looked at once a fit, as nobody changes a model within one."""
        return (
            is_plain(self.model)
            and self._recorded == self._state()
            and self._settings == settings_of(self.model.train())
        )

    def _state(self) -> tuple[object, ...]:
        """What a recorded step depends on beside the numbers in its inputs."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        kinds = ((t.data_ptr(), t.dtype, t.requires_grad) for t in tensors)
        edges = self.edge_data.inputs
        versions = () if edges is None else edges.versions()
        return (_config.current(), Reference(self.x), versions, *kinds)

    def _replay(self, tape: Tape) -> Tensor:
        """Gradients by the tape; the loss, shape ()."""
        if not self.model.training:
            self.model.train()
        cells, gradients = tape.replay()
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients.get(name)
        return cells.loss if isinstance(cells, OwnCells) else torch.tensor(cells.mean, dtype=torch.float32)

    def _backward(self) -> Tensor:
        """Gradients of the training loss; the loss, shape ()."""
        self.model.train()
        graph, x, wanted = self._run_graph, self.x, self._wanted
        if not self._engine and is_plain(self.model) and not _config.current().tune:
            with torch.enable_grad(), span("forward", "forward"):
                logits, pullback = self.model.linearize(graph, x, wanted, self.edge_data.inputs)
            with span("loss", "loss"):
                loss, gradient = self._loss(logits)
            parameters = dict(self.model.named_parameters())
            with span("backward", "backward"):
                for name, found in pullback(gradient).items():
                    if found is not None:
                        parameters[name].grad = found
            return loss
        with span("forward", "forward"):
            rows = {} if wanted is None else {"rows": wanted}
            logits = self.model(graph, x, **rows, **self.edge_data.keywords())
        with span("loss", "loss"):
            loss, gradient = self._loss(check_logits(logits).detach())
        with span("backward", "backward"):
            backward_from(logits, gradient)
        return loss

    def _loss(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The training loss, shape (), and its gradient by the logits."""
        self._check(logits)
        return self.target.loss(logits, *self._labels())

    def _labels(self) -> tuple[Tensor, Tensor | None]:
        """The training labels with the rows that have them, or None where only those rows are computed."""
        return self._used

    def _check(self, logits: Tensor) -> None:
        """One row per node that was asked for, one column per class or value."""
        rows = self.ds.y.shape[0] if self._wanted is None else self._wanted.numel()
        check_logits(logits, (rows, self.ds.num_classes))


def labelled(ds: Dataset) -> dict[Part, Tensor]:
    """The rows of each split that have a label."""
    return {name: ds.labelled(name) for name in SPLITS}


def is_other(ds: Dataset, rows: dict[Part, Tensor], labels: dict[Part, Tensor], now: dict[Part, Tensor]) -> bool:
    """Whether ``ds`` no longer has the rows and labels that were taken from it; ``now`` are its rows."""
    return any(not torch.equal(rows[name], now[name]) or not _same(labels[name], ds.y[now[name]]) for name in SPLITS)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both hold the same numbers, NaN being equal to NaN."""
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def evaluation(
    target: Target, logits: Tensor, y: Tensor, rows: dict[Part, Tensor], metrics: Sequence[Metric] = ()
) -> Evaluation:
    """Scores of every split, further metrics, and the loss on validation nodes; on a device where they can be."""
    if logits.device != y.device:
        if metrics or not target.scores_there:
            logits = logits.to(y.device)
        else:
            with owning(y, *rows.values()):
                y, rows = sent(y, logits.device), {name: sent(ids, logits.device) for name, ids in rows.items()}
    found = {name: target.score(logits, y, ids) for name, ids in rows.items()}
    details = {f"{part}_{name}": value for part, one in found.items() for name, value in one.details.items()}
    more: dict[str, float | None] = {}
    for part, ids in rows.items() if metrics else ():
        more |= measured(metrics, part, target.aligned(logits[ids]), y[ids])
    return Evaluation({name: one.score for name, one in found.items()}, found["val"].loss, details, more)


def is_plain(model: nn.Module) -> TypeGuard[CompiledModule]:
    """Whether nobody watches or changes the forward or backward pass, so that torch's engine is not needed."""
    return (
        isinstance(model, CompiledModule)
        and type(model).forward is CompiledModule.forward
        and not is_hooked(model)
        and not model.runs_apart()
        and not is_parametrized(model)
    )


def is_recorded(step: Plan) -> bool:
    """Whether the calls of a step are recorded once and replayed."""
    by_torch = filter(step.interprets, (*step.forward, *step.backward))
    return "seed" not in step.fixed and all(value.op in WRITTEN for call in by_torch for value in call.body)


def is_hooked(model: nn.Module) -> bool:
    """Whether somebody wants to be told of the model's calls or gradients."""
    return has_hooks(model) or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters())


def features_of(ds: Dataset) -> Features:
    """The features of ``ds``. Raises: DataError when it has none."""
    if ds.x is None:
        raise DataError(f"{ds.name}: expected node features x, got none")
    return ds.x
