"""Tasks whose rows are pairs of nodes, such as edges: epochs over batches of labelled pairs, and their evaluation.

Comes in: a model of pairs, an optimiser, a dataset with labels of edges. Goes out: the mean loss of an epoch over
training pairs, or scores by split. Called by the trainer in the place of :class:`MiniBatch`, whose steps, states and
resumes it has. A batch has the sampled neighbourhoods of the ends of its pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError, DataError, ShapeError
from graphweft.data.dataset import Dataset
from graphweft.interop.pyg_model import PyGModel
from graphweft.loader.link import LinkLoader
from graphweft.loader.link_batch import LinkBatch
from graphweft.nn.edge_model import EdgeModel
from graphweft.nn.module import CompiledModule
from graphweft.runtime.constants import owning
from graphweft.sample.neighbor import NeighborSampler
from graphweft.train.batch_gradients import PlaceLoader
from graphweft.train.macro import MacroRun
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.options import EDGE_TASKS
from graphweft.train.samplers import AnySampler, fitting_fanouts

_Call = Callable[..., Any]
_CALLED_AS = "model(graph, x, edge_label_index), or model(x, edge_index, edge_label_index) as in PyTorch Geometric"


def for_edges(task: Any, mode: Any, ds: Any, batch_size: Any) -> tuple[Any, Any, Any, Any]:
    """Task, mode, dataset and size of a batch, those of pairs where the rows of ``ds`` are pairs of nodes.

    Raises: ConfigError, DataError where the task and the data do not fit each other.
    """
    asked = task == "edge" or task in EDGE_TASKS
    if getattr(ds, "edge_label_index", None) is None:
        if asked:
            name = getattr(ds, "name", type(ds).__name__)
            hint = "ds.with_edge_labels(y) has them"
            raise DataError(f"{name}: expected labels of edges for the task {task}, got labels of nodes; {hint}")
        return task, "full" if mode is None else mode, ds, batch_size
    if task != "nodes" and not asked:
        return task, "full" if mode is None else mode, ds, batch_size
    found = EDGE_TASKS[ds.task == "regression"]
    if task in EDGE_TASKS and task != found:
        raise ConfigError(f"task: expected {found} for {ds.name}, whose labels are for {ds.task}, got {task!r}")
    ds.check_trainable()
    return found, "mini" if mode in (None, "auto") else mode, ds, batch_size


class EdgeTask(MiniBatch):
    """Trains on ``batch_size`` labelled pairs at a time; see :class:`MiniBatch`.

    The model is called as ``model(graph, x, edge_label_index)``, or as ``model(x, edge_index, edge_label_index)``
    where its arguments are called so, on the neighbourhoods that ``fanouts`` draws around the ends of the pairs;
    :class:`EdgeModel` runs on their blocks. Evaluation uses the whole graph. All edges carry messages, those that are
    predicted too: their labels are no input.

    Raises: ConfigError for another sampler, or a model that takes no pairs.
    """

    seeds_are = "pairs"

    def _sampler_of(self, sampler: str | AnySampler, fanouts: Sequence[int] | None) -> AnySampler | None:
        if sampler != "neighbor":
            got = sampler if isinstance(sampler, str) else type(sampler).__name__
            raise ConfigError(
                f"sampler={got} cannot be combined with labels of edges; fanouts= draws around their ends"
            )
        inner = self.model.encoder if isinstance(self.model, EdgeModel) else self.model
        return NeighborSampler(self.ds.graph, fitting_fanouts(inner, fanouts))

    @property
    def pairs(self) -> Tensor:
        """The pairs that are the rows of the labels, (2, P)."""
        assert self.ds.edge_label_index is not None  # as for_edges saw
        return self.ds.edge_label_index

    def _load(self) -> tuple[Any, MacroRun | None]:
        """A loader over the training pairs."""
        batch_size, seed = self.drawn.batch_size, self.seed
        for name, usual in (("macro", None), ("prepare", "whole")):
            if (given := getattr(self.drawn, name)) != usual:
                raise ConfigError(f"{name}={given} cannot be combined with labels of edges; leave it out")
        self._call = _caller_of(self.model)
        check_pairs(self.model, self.ds)
        self._trained_on = torch.unique(self.rows["train"], sorted=True)
        ends = self.pairs[:, self._trained_on]
        drawn: dict[str, Any] = {"shuffle": True, "seed": seed, "negatives": "none", "exclude": "none"}
        return LinkLoader(self._tables, ends, None, self.fanouts, batch_size, **drawn), None

    def logits(self) -> Tensor:
        """Outputs for all pairs in evaluation mode, shape (P, C)."""
        return edge_outputs(self.model, self.ds, self.x, self.edge_data.keywords())

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        return {**super().identity(), "task": "edge"}

    def _label_rows(self, batch: Any) -> Tensor:
        rows: Tensor = self._trained_on[batch.input_id]
        return rows

    def _forward(self, batch: Any) -> Tensor:
        assert isinstance(batch, LinkBatch) and batch.edge_label_index is not None  # as the loader makes them
        if batch.blocks and getattr(self.model, "takes_blocks", False):
            own = pair_rows(self.model, self.ds, self._label_rows(batch))
            rows: Tensor = self.model(batch.blocks, batch.x, batch.edge_label_index, **self.edge_data.keywords(), **own)
            return rows
        given = {} if self.edge_data.inputs is None else self.edge_data.of_subgraph(batch.e_id)
        own = pair_rows(self.model, self.ds, self._label_rows(batch))
        return _as_rows(self._call(batch.subgraph, batch.x, batch.edge_label_index, **given, **own))


class WholeEdgeTask(EdgeTask):
    """Mode "full": every step takes all training pairs, on the whole graph; see :class:`EdgeTask`."""

    def made_of(self) -> str:
        """The whole graph."""
        return f"a step reads the whole graph for {self._trained_on.numel():,} pairs"

    def _sampler_of(self, sampler: str | AnySampler, fanouts: Sequence[int] | None) -> AnySampler | None:
        return None

    def _load(self) -> tuple[Any, MacroRun | None]:
        """A loader of one batch."""
        self._call = _caller_of(self.model)
        check_pairs(self.model, self.ds)
        self._trained_on = torch.unique(self.rows["train"], sorted=True)
        count = self._trained_on.numel()
        return PlaceLoader(count, count, False, self.seed), None

    def _forward(self, batch: Any) -> Tensor:
        rows = self._label_rows(batch)
        given = {**self.edge_data.keywords(), **pair_rows(self.model, self.ds, rows)}
        with owning(self.x):
            return _as_rows(self._call(self.ds.graph, self.x, self.pairs[:, rows], **given))


def check_pairs(model: nn.Module, ds: Dataset) -> None:
    """A model of what is known of the pairs finds it. Raises: DataError."""
    width = getattr(model, "pair_dim", 0)
    if width and pair_columns(ds) != width:
        held = f"features of {pair_columns(ds)} columns" if pair_columns(ds) else "none"
        raise DataError(f"{ds.name}: expected {width} features of the edges that have labels (pair_dim), got {held}")


def pair_columns(ds: Any) -> int:
    """Columns of features of the pairs: those of the edges, where the pairs are all edges in their order; else 0."""
    if ds.edge_features is None or ds.edge_label_index is None or ds.edge_label_index.shape[1] != ds.num_edges:
        return 0
    same = torch.equal(ds.edge_label_index, torch.stack(ds.graph.edges()))
    return int(ds.edge_features.shape[1]) if same else 0


def pair_rows(model: nn.Module, ds: Dataset, rows: Tensor | None) -> dict[str, Tensor]:
    """What a model is given of the pairs ``rows``, None: of all; empty for a model that reads nothing of them."""
    if not getattr(model, "pair_dim", 0):
        return {}
    assert ds.edge_features is not None  # as check_pairs saw
    return {"pair_attr": ds.edge_features if rows is None else ds.edge_features[rows]}


def edge_outputs(model: nn.Module, ds: Dataset, x: Any, given: dict[str, Any]) -> Tensor:
    """What ``model`` returns for every pair of ``ds`` in evaluation mode, (P, columns)."""
    check_pairs(model, ds)
    model.eval()
    with torch.no_grad():
        return _as_rows(_caller_of(model)(ds.graph, x, ds.edge_label_index, **given, **pair_rows(model, ds, None)))


def _as_rows(out: Any) -> Tensor:
    """Scores of pairs as rows. Raises: ShapeError."""
    if not isinstance(out, Tensor) or out.dim() not in (1, 2):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ShapeError(f"model: expected a row for each pair, got {got}; gw.nn.EdgeModel gives one")
    return out.unsqueeze(1) if out.dim() == 1 else out


def _caller_of(model: nn.Module) -> _Call:
    """How ``model`` is called on pairs. Raises: ConfigError for a model of nodes."""
    inner = model.model if isinstance(model, PyGModel) else model
    if isinstance(inner, CompiledModule):
        text = f"Trainer: expected a model of pairs, such as gw.nn.EdgeModel, got {type(inner).__name__}"
        raise ConfigError(f"{text}, which returns rows of nodes")
    signature = inspect.signature(inner.forward)
    try:
        signature.bind(None, None, None)
    except TypeError:
        got = f"forward{signature}"
        raise ConfigError(f"Trainer: expected a model of pairs called as {_CALLED_AS}, got {got}") from None
    if isinstance(model, PyGModel):
        return lambda graph, x, pairs, **more: inner(x, torch.stack(graph.edges()).long(), pairs, **more)
    return inner
