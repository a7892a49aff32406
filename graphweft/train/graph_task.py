"""Tasks whose samples are graphs: epochs over batches of whole graphs, and their evaluation.

Comes in: a model of graphs, an optimiser, a set of graphs. Goes out: the mean loss of an epoch over training graphs, or
scores by split. Called by the trainer in the place of :class:`MiniBatch`, whose steps, states and resumes it has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from graphweft import _config
from graphweft._backward import backward_from
from graphweft._draws import call_key
from graphweft._errors import ConfigError, DataError, ShapeError
from graphweft._trace import span
from graphweft.data.dataset import Dataset
from graphweft.data.graph_dataset import GraphDataset
from graphweft.graph.graph import Graph
from graphweft.graph.side_by_side import SideBySide, members
from graphweft.interop.pyg_model import PyGModel
from graphweft.loader.graphs import GraphBatch, GraphLoader, Graphs, graph_batch
from graphweft.nn.graph_model import GraphModel
from graphweft.nn.module import CompiledModule
from graphweft.nn.settings import has_hooks, is_watched, tensors_of
from graphweft.nn.standing import Standing
from graphweft.runtime.cpu.target import CPU
from graphweft.runtime.norms import Tracked
from graphweft.runtime.repeated import Repeated
from graphweft.storage.feature import SparseFeatures
from graphweft.train.batch_gradients import add_gradients
from graphweft.train.edge_data import EdgeData
from graphweft.train.edge_task import for_edges
from graphweft.train.full_batch import is_plain
from graphweft.train.graph_reading import Reader
from graphweft.train.graph_step import Found, GraphStep, has_linear_head
from graphweft.train.macro import MacroRun
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.options import EDGE_TASKS, GRAPH_TASKS, USUAL_BATCH, USUAL_GRAPHS
from graphweft.train.samplers import AnySampler
from graphweft.train.target import Recorded

_Call = Callable[[GraphBatch, dict[str, Any]], Any]
_CALLED_AS = "model(graph, x, ptr), model(batch), or model(x, edge_index, batch) as in PyTorch Geometric"


def for_rows(task: Any, mode: Any, ds: Any, batch_size: Any) -> tuple[Any, Any, Any, Any]:
    """Task, mode, dataset and size of a batch, those of graphs, or of pairs, where these are the rows of ``ds``.

    The mode None is "full", and "mini" for pairs and graphs; "full" is one batch of all training graphs.

    Raises: ConfigError, DataError where the task and the data do not fit each other.
    """
    asked, mode = mode, "full" if mode is None else mode
    if getattr(ds, "graph_ptr", None) is None:
        if task == "graphs" or task in GRAPH_TASKS:
            name = getattr(ds, "name", type(ds).__name__)
            raise DataError(
                f"{name}: expected a set of graphs for the task {task}, got one graph; gw.GraphDataset is one"
            )
        return for_edges(task, asked, ds, USUAL_BATCH if batch_size is None else batch_size)
    if task == "edge" or task in EDGE_TASKS:
        raise DataError(f"{ds.name}: expected labels of edges for the task {task}, got labels of graphs")
    if task not in ("nodes", "graphs", *GRAPH_TASKS):  # links between nodes; an unknown one is told of where all are
        return task, mode, ds, USUAL_BATCH if batch_size is None else batch_size
    ds = GraphDataset.of(ds) if isinstance(ds, Dataset) else ds
    ds.check_trainable()
    found = GRAPH_TASKS[ds.task == "regression"]
    if task in GRAPH_TASKS and task != found:
        raise ConfigError(f"task: expected {found} for {ds.name}, whose labels are for {ds.task}, got {task!r}")
    if asked == "full":
        if batch_size not in (None, USUAL_BATCH):  # the command gives the usual one
            raise ConfigError(f"batch_size: expected mode mini as well, got mode {mode!r}")
        batch_size = max(int(ds.train_idx.unique().numel()), 1)
    return found, "mini" if mode in ("full", "auto") else mode, ds, USUAL_GRAPHS if batch_size is None else batch_size


class _Batch(GraphBatch):
    """A batch under the names that a step of training reads."""

    node_norm = None

    @property
    def batch_size(self) -> int:
        """Graphs that are trained on."""
        return self.num_graphs

    @property
    def n_id(self) -> Tensor:
        """Rows of their labels."""
        return self.index

    @cached_property
    def of_graphs(self) -> Graph:
        """From every node to its graph."""
        return members(self.ptr, self.batch)


class _Loader(GraphLoader):
    """Batches of training graphs."""

    def make(self, places: Tensor, epoch: int) -> GraphBatch:
        """As asked for by a step."""
        made = super().make(places, epoch)
        return _Batch(**vars(made))


class _Sources:
    """What batches are made from: the features as the trainer keeps them, of the edges what the model reads."""

    def __init__(self, task: GraphTask) -> None:
        self._task = task

    @property
    def side_by_side(self) -> SideBySide:
        """The structure."""
        return self._task.graphs.side_by_side

    @property
    def x(self) -> Tensor | SparseFeatures:
        """Rows of all nodes."""
        return self._task.x

    @property
    def y(self) -> Tensor:
        """Labels of the graphs."""
        return self._task.ds.y

    @property
    def edge_weight(self) -> Tensor | None:
        """Weights, where the model reads them."""
        return self._task.edge_data.weight

    @property
    def edge_features(self) -> Tensor | None:
        """Features of the edges, where the model reads them."""
        return self._task.edge_data.attr


class GraphTask(MiniBatch):
    """Trains on ``batch_size`` graphs at a time; see :class:`MiniBatch`, whose samplers do not apply.

    The model is called as ``model(graph, x, ptr)``, with the graphs of a batch side by side, or as ``model(batch)`` or
    ``model(x, edge_index, batch)`` where its arguments are called so. Evaluation goes over all graphs in batches of
    the same size.
    """

    seeds_are = "graphs"
    _repeated: Repeated | None = None
    _standing: Standing | None = None  # the model as it was when that was made
    _reader: Reader | None = None
    _step: GraphStep | None = None
    _tracked: WeakKeyDictionary[Found, Tracked]
    _written: Callable[[Tensor], Recorded] | None = None  # makes the loss of labels, where native calls compute it

    def _sampler_of(self, sampler: str | AnySampler, fanouts: Sequence[int] | None) -> None:
        """Raises: ConfigError for a sampler or fan-outs: whole graphs are not sampled."""
        for name, given, usual in (("sampler", sampler, "neighbor"), ("fanouts", fanouts, None)):
            if given != usual:
                raise ConfigError(f"{name}={given!r} cannot be combined with a set of graphs, which are taken whole")

    @property
    def graphs(self) -> GraphDataset:
        """The set."""
        assert isinstance(self.ds, GraphDataset)  # as for_rows made it
        return self.ds

    def _load(self) -> tuple[GraphLoader, MacroRun | None]:  # type: ignore[override]
        """A loader over the training graphs."""
        batch_size, seed, prepare = self.drawn.batch_size, self.seed, self.drawn.prepare
        if prepare != "whole":
            raise ConfigError(f"prepare={prepare!r} cannot be combined with a set of graphs, which are taken whole")
        if isinstance(self.x, SparseFeatures):  # batches have few columns and many rows
            self.x = self.x.to_dense()
        self._call, self._tracked = caller_of(self.model), WeakKeyDictionary()
        check_width(self.model, self.x)
        rows = torch.unique(self.rows["train"], sorted=True)
        return _Loader(_Sources(self), batch_size, shuffle=True, seed=seed, graphs=rows), None

    def use(self, edge_data: EdgeData) -> None:
        """Gives the model weights and features of edges; before :meth:`prepare`."""
        self.edge_data = edge_data

    def prepare(self) -> None:
        """Looks up what steps read of the model; what is compiled for a class of sizes is when the first such comes."""
        before = self._repeated
        if self._standing is None or not self._standing.holds():
            self.model.train()
            self._repeated = repeated(self.model, before)
            self._standing = None if self._repeated is None else Standing.of(self.model)
        self._written = self.target.written_down(self.ds.y, CPU)  # labels may be others than an epoch before
        if self._repeated is not before or self._written is None:
            self._step = None

    def logits(self) -> Tensor:
        """Outputs for all graphs in evaluation mode, shape (graphs, C)."""
        return _outputs(self.model, self._call, _Sources(self), self.loader.batch_size, self.ds.num_classes)

    def _gradients(self, batch: Any, weight: int = 1) -> Tensor:
        calls, model = self._repeated, self.model
        if calls is None or not serves(batch):
            return super()._gradients(batch, weight)
        assert isinstance(model, GraphModel) and isinstance(model.encoder, CompiledModule)  # what repeated() takes
        seed = call_key() if model.encoder.draws() else 0
        if self._reader is None or not self._reader.serves(model):
            self._reader, self._step = Reader.of(model), None
        if self._accumulate == 1 and (step := self._whole(calls, self._reader)) is not None and step.serves(batch):
            return self._by_step(step, calls, batch, seed)
        with span("forward", "forward"):
            outputs, pullback = calls.linearize(batch.graph, batch.x, seed)
            self._store(outputs, batch)
            read, back = self._reader.linearize(model, batch, outputs["out"])
            logits = model.head(model.drop(read.requires_grad_()))
        with span("loss", "loss"):
            loss, gradient = self._loss(logits.detach(), batch.index)
        with span("backward", "backward"):
            backward_from(logits, gradient if weight == 1 else gradient * weight)
            found = None if read.grad is None else back(read.grad)
            if found is not None:
                add_gradients(calls.parameters, pullback(found))
        return loss

    def _whole(self, calls: Repeated, reader: Reader) -> GraphStep | None:
        """Steps that leave torch's engine out altogether; None where loss or head do not allow it."""
        model = self.model
        assert isinstance(model, GraphModel)  # what repeated() takes
        fits = self._written is not None and has_linear_head(model) and model.head.out_features == self.ds.num_classes
        if self._step is None and self._written is not None and fits:
            self._step = GraphStep(model, calls, reader, self._written)
        return self._step if fits else None

    def _by_step(self, step: GraphStep, calls: Repeated, batch: Any, seed: int) -> Tensor:
        """Gradients into parameters that have none."""
        model = self.model
        assert isinstance(model, GraphModel)  # what repeated() takes
        found = step(batch, self.ds.y[batch.index], seed)
        self._track(found, batch)
        add_gradients(calls.parameters, found.gradients)
        add_gradients({"weight": model.head.weight, "bias": model.head.bias}, found.head)
        return torch.tensor(found.cells.mean, dtype=torch.float32)

    def _track(self, found: Found, batch: Any) -> None:
        """Statistics of batch norms of a step, which come again in the same memory where the step is replayed."""
        assert isinstance(self.model.encoder, CompiledModule)  # what repeated() takes
        known = self._tracked.get(found)
        if known is None or not known.serves():
            known = self.model.encoder.tracked(found.stored)
            if known is None:
                self._store(found.stored, batch)
                return
            self._tracked[found] = known
        known.move(batch.num_nodes)

    def _store(self, outputs: Mapping[str, Tensor], batch: Any) -> None:
        """Statistics of batch norms."""
        assert isinstance(self.model.encoder, CompiledModule)  # what repeated() takes
        stored = {name: tensor for name, tensor in outputs.items() if name != "out"}
        self.model.encoder.store(stored, lambda _: batch.num_nodes)

    def _forward(self, batch: Any) -> Tensor:
        return _on_graphs(self._call, batch, self.ds.num_classes)

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        return {**super().identity(), "drawn": "graphs"}


def repeated(model: nn.Module, before: Repeated | None = None) -> Repeated | None:
    """Calls of the node model without torch's engine, as ``model`` stands; None where something watches it.

    ``before``: calls as it stood, which are taken up again where nothing has changed.
    """
    if type(model) is not GraphModel or has_hooks(model) or is_watched(model) or not is_plain(model.encoder):
        return None
    encoder = model.encoder
    active = _config.current()
    fits = active.opt_level >= 1 and not active.tune and not torch.is_autocast_enabled("cpu") and not encoder.tables
    inside = (module for module in encoder.modules() if isinstance(module, CompiledModule))
    if not fits or any(module.tables for module in inside) or any(not p.is_cpu for p in model.parameters()):
        return None
    dtype = next(iter(encoder.parameters())).dtype
    if before is not None and before.still(tensors_of(encoder), encoder.settings()):
        return before
    with torch.random.fork_rng(devices=[]):  # the seed of this call's draws is none of the run's
        arguments = encoder.arguments(Graph([0], [0]), torch.zeros(1, encoder.in_features, dtype=dtype))
    return Repeated(encoder.function, arguments)


def _without_engine(model: nn.Module, calls: Repeated, usual: _Call) -> _Call:
    """As ``usual``, for outputs that nobody differentiates."""
    assert isinstance(model, GraphModel)  # what repeated() takes

    def call(batch: GraphBatch, more: dict[str, Any]) -> Any:
        x = batch.x
        if not serves(batch) or not isinstance(x, Tensor):
            return usual(batch, more)
        made = calls.forward(batch.graph, x)["out"]
        return model.head(model.drop(model.read_out(x, made, batch.ptr)))

    return call


def serves(batch: GraphBatch) -> bool:
    """Whether a batch is nothing but a graph and dense rows."""
    return isinstance(batch.x, Tensor) and batch.edge_weight is None and batch.edge_attr is None


def graph_outputs(model: nn.Module, ds: GraphDataset, batch_size: int, columns: int) -> Tensor:
    """What ``model`` returns for every graph of ``ds`` in evaluation mode, (graphs, columns)."""
    return _outputs(model, caller_of(model), ds, batch_size, columns)


def _outputs(model: nn.Module, call: _Call, ds: Graphs, batch_size: int, columns: int) -> Tensor:
    model.eval()
    calls = repeated(model)
    if calls is not None:
        call = _without_engine(model, calls, call)
    every = torch.arange(ds.side_by_side.ptr.numel() - 1)
    with torch.no_grad():
        return torch.cat([_on_graphs(call, graph_batch(ds, ids), columns) for ids in torch.split(every, batch_size)])


def _on_graphs(call: _Call, batch: GraphBatch, columns: int) -> Tensor:
    """What the model returns for a batch. Raises: ShapeError for other than a row for each graph."""
    given = {"edge_weight": batch.edge_weight, "edge_attr": batch.edge_attr}
    out = call(batch, {name: rows for name, rows in given.items() if rows is not None})
    expected = (batch.num_graphs, columns)
    if columns == 1 and isinstance(out, Tensor) and tuple(out.shape) == expected[:1]:
        return out[:, None]
    if not isinstance(out, Tensor) or tuple(out.shape) != expected:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        hint = "; gw.nn.GraphModel reads out one row a graph"
        raise ShapeError(f"model: expected a row for each graph, of shape {expected}, got {got}{hint}")
    return out


def check_width(model: nn.Module, x: Tensor) -> None:
    """Features have the columns that the node model reads. Raises: ShapeError."""
    encoder = getattr(model, "encoder", None)
    if isinstance(model, GraphModel) and isinstance(encoder, CompiledModule) and x.shape[1] != encoder.in_features:
        who, expected = type(model).__name__, encoder.in_features
        raise ShapeError(f"{who}: expected features with {expected} columns, got shape {tuple(x.shape)}")


def caller_of(model: nn.Module) -> _Call:
    """How ``model`` is called on a batch, with further keywords. Raises: ConfigError for another way."""
    if isinstance(model, CompiledModule):
        kind = type(model).__name__
        text = f"Trainer: expected a model of graphs, such as gw.nn.GraphModel, got {kind}, which returns rows of nodes"
        raise ConfigError(text)
    inner = model.model if isinstance(model, PyGModel) else model
    try:
        signature = inspect.signature(inner.forward)
    except (TypeError, ValueError):
        return lambda batch, more: inner(batch.graph, batch.x, batch.ptr, **more)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [one for one in signature.parameters.values() if one.kind in kinds]
    needed = [one.name for one in places if one.default is one.empty]
    if isinstance(model, PyGModel):
        return lambda batch, more: inner(batch.x, batch.edge_index, batch.batch, **more)
    if len(needed) == 1 and needed[0] in ("batch", "data"):
        return lambda batch, more: inner(batch, **more)
    if len(places) >= 3 and len(needed) <= 3:
        return lambda batch, more: inner(batch.graph, batch.x, batch.ptr, **more)
    raise ConfigError(f"Trainer: expected a model of graphs called as {_CALLED_AS}, got forward{signature}")


__all__ = ["GRAPH_TASKS", "GraphTask", "caller_of", "for_rows", "graph_outputs"]
