"""What a trainer is given, and what its model reads of the nodes.

Comes in: a model and a dataset, or what a user takes for them. Goes out: features in the layout that is trained on; one
line for what does not fit. Called by the trainer.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from graphweft import _config
from graphweft._errors import ConfigError, DataWarning
from graphweft.data.dataset import Dataset
from graphweft.data.flat_features import with_flat_features
from graphweft.data.part_dataset import PartDataset
from graphweft.data.stored import StoredDataset
from graphweft.data.stored_graph import StoredGraph
from graphweft.interop.pyg_model import PyGModel, adapted
from graphweft.nn.lazy import settled
from graphweft.nn.module import CompiledModule
from graphweft.nn.node2vec import Node2Vec
from graphweft.storage.feature import Features, SparseFeatures, is_dense
from graphweft.storage.int8_features import Int8Features
from graphweft.storage.store import Store
from graphweft.train.full_batch import features_of
from graphweft.train.int8_rules import check_int8_source
from graphweft.train.options import GROUPS, LABELS_OF
from graphweft.train.settle import settle_features


def opened(mode: str | None, ds: Any) -> tuple[str | None, Any]:
    """The mode, and what a trainer is given as data, with stores opened as datasets.

    Raises: ConfigError for a store in another mode.
    """
    if mode == "mapped":
        if not isinstance(ds, Store | StoredDataset):
            raise ConfigError("mode=mapped cannot be combined with data in memory; it is for a gw.macro.Store")
        return "mini", StoredGraph(ds if isinstance(ds, Store) else ds.store, mapped=True)
    if mode == "mini" and isinstance(ds, Store | StoredDataset):
        return mode, ds if isinstance(ds, StoredGraph) else StoredGraph(ds if isinstance(ds, Store) else ds.store)
    ds = StoredDataset(ds) if isinstance(ds, Store) else ds
    if not isinstance(ds, StoredDataset):
        return mode, ds
    if mode not in ("macro", "auto"):
        raise ConfigError(
            f"mode: expected macro or mini for a store, got {mode!r}; gw.load(path) reads a store into memory"
        )
    return "macro", ds


def groups_asked(task: Any, mode: Any, ds: Any, macro: Any) -> Any:
    """How macro-batches are made; of a store in mode "auto" by groups with neighbours as these are worth it."""
    is_open = macro is None and mode == "auto" and task == "nodes" and isinstance(ds, Store | StoredDataset)
    return GROUPS if is_open else macro


def check_parts(model: object, ds: Any, task: str) -> Any:
    """``ds``.

    Raises: ConfigError for what is no module, or no dataset; DataError for one that lacks what the task needs.
    """
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise ConfigError(f"Trainer: expected model as a torch.nn.Module, got {got}")
    if not hasattr(ds, "check_trainable"):
        foreign = "; gw.from_pyg(data).dataset() makes one" if hasattr(ds, "to_dict") else ""
        hint = "; its .dataset() is one" if hasattr(ds, "dataset") else foreign
        raise ConfigError(f"Trainer: expected ds as a gw.Dataset, got {type(ds).__name__}{hint}")
    settled("Trainer", model, getattr(ds, "x", None))
    of_nodes = LABELS_OF.get(task) == "nodes"
    ds.check_trainable() if of_nodes else ds.check_features()
    for name in ds.deaf_types() if of_nodes and isinstance(ds, Dataset) else ():
        text = f"{ds.name}: nodes of type {name!r} have the labels and receive no edge, so they learn from none"
        warnings.warn(f"{text}; use ds.with_inverse_relations() (graph.add_inverse_relations())", DataWarning, 3)
    return ds


def check_updated(model: nn.Module, optimizer: Optimizer, known: Sequence[nn.Parameter]) -> None:
    """``known`` are the parameters of a trainer when it was made; others that an optimiser has may come later.

    Raises: ConfigError for parameters that came later and that no update would change.
    """
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    held.update(map(id, known))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in held:
            raise ConfigError(
                f"fit: expected the parameters that the trainer was made with, got another object as {name}, which the "
                "optimizer does not have; a new Trainer trains it"
            )


def trains(model: nn.Module) -> tuple[bool, ...]:
    """Which parameters get a gradient."""
    return tuple(parameter.requires_grad for parameter in model.parameters())


def as_read(model: nn.Module, ds: Any, task: str, memory: Any = None, precision: str | None = None) -> Any:
    """``ds`` with the features that the model reads; another layout is let go where nobody else holds it.

    ``memory``: of a budget, within which nothing is measured. ``precision``: "int8" keeps dense features in 8 bits.

    Raises: as :func:`check_parts`.
    """
    ds = check_parts(model, ds, task)
    x = _features(model if isinstance(model, Node2Vec) else adapted(model), ds, memory is None)
    if (precision or _config.current().precision) == "int8":
        check_int8_source(ds)
        x = Int8Features.from_dense(x) if is_dense(x) else x
        if isinstance(x, SparseFeatures):
            warnings.warn(
                f"{ds.name}: precision int8 changes nothing, as sparse features stay as they are", DataWarning, 3
            )
    if isinstance(ds, PartDataset):
        return ds if x is ds.x else ds.with_x(x)
    return ds if x is ds.x else replace(ds, x=x)


def _features(model: nn.Module, ds: Dataset, may_measure: bool) -> Features:
    """What the model reads of the nodes: what it makes of the graph, or the features of ``ds``, flat where typed.

    Models of PyTorch Geometric read dense features, others the layout that is faster.
    """
    if isinstance(ds, StoredDataset):
        return features_of(ds)  # which has no rows
    made = model.features(ds.graph) if isinstance(model, CompiledModule) else None
    x = features_of(with_flat_features(ds)) if made is None else made
    if not isinstance(model, PyGModel):
        return settle_features(x, may_measure)
    if not isinstance(x, SparseFeatures):
        return x
    size = 4e-6 * x.num_rows * x.width
    warnings.warn(
        f"{ds.name}: sparse features become dense for {type(model.model).__name__}, {size:.0f} MB", stacklevel=3
    )
    return x.to_dense()


def costs_of(model: nn.Module) -> str:
    """What the orders of computation were decided by; empty for a model that is not compiled."""
    found = model.function.cost_model if isinstance(model, CompiledModule) else None
    return "" if found is None else found.to_json()
