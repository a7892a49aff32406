"""The plans that the library would train a model by, with the sizes that they were made for.

Comes in: a spec, a model and its dataset. Goes out: :class:`StepPlans`. Decides as the trainer does, by the same
functions, so that a program runs the calls that ``graphweft train`` would. Called by ``steps.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphweft import _config
from graphweft._errors import ConfigError
from graphweft.data.dataset import Dataset
from graphweft.nn.module import CompiledModule
from graphweft.passes.work import Sizes
from graphweft.runtime.plan import Plan
from graphweft.runtime.sizes import measure_sizes
from graphweft.storage.feature import SparseFeatures
from graphweft.synth.spec import ProgramSpec
from graphweft.train.edge_data import edge_data_of
from graphweft.train.full_batch import FullBatch, features_of
from graphweft.train.optimizer import make_optimizer
from graphweft.train.settle import settle_features

_NORMS = (nn.BatchNorm1d, nn.LayerNorm)


class StepPlans(NamedTuple):
    """What a program is written from.

    Attributes:
        step: Forward and backward calls of an epoch.
        evaluation: Forward calls of an evaluation, over all nodes.
        rows: Training nodes, where the step computes those rows only; None for all.
        sizes: Numbers behind the symbols of both plans.
        groups: The optimiser's groups: settings, with ``names`` of parameters.
        shapes: Shapes of parameters and buffers by name, in the order of the model.
        fans: Inputs and outputs of the map that each drawn weight is, by its name, in the order of the draws.
        train_rows: Number of training nodes with a label.
        is_sparse: Whether features are kept as compressed rows.
        is_normalized: Whether their rows are divided by their sums.
        file_edges: Edges of the file; the plans may be for its graph less the self-loops.
        is_weighted: Whether the model reads weights of edges.
        has_weights: Whether the file has some.
        task: What labels are: "classification", "multilabel" or "regression".
        known: Labels of training nodes that are known, where nodes have several.
        ones: Tensors that begin as ones.
        counters: Tensors of integers.
        momenta: How fast the running statistics of each batch norm move, by the name of the norm.
        train_nonzeros: Stored entries of sparse features in ``rows``.
    """

    step: Plan
    evaluation: Plan
    rows: Tensor | None
    sizes: Sizes
    groups: tuple[dict[str, Any], ...]
    shapes: Mapping[str, tuple[int, ...]]
    fans: Mapping[str, int]
    train_rows: int
    is_sparse: bool
    is_normalized: bool
    file_edges: int
    is_weighted: bool = False
    has_weights: bool = False
    task: str = "classification"
    known: int = 0
    ones: frozenset[str] = frozenset()
    counters: frozenset[str] = frozenset()
    momenta: Mapping[str, float] = {}
    train_nonzeros: int = 0


def plans_of(spec: ProgramSpec, model: CompiledModule, ds: Dataset, every_row: bool = False) -> StepPlans:
    """Settles, compiles and measures as the trainer does before its first epoch.

    With ``every_row`` a step computes the rows of all nodes, not those of the training nodes alone.

    Raises: ConfigError for data or a model that a program cannot hold.
    """
    _check_data(ds)
    x = settle_features(features_of(ds))
    if isinstance(x, SparseFeatures) and spec.reduce == "max" and spec.model != "gcn":
        x = x.to_dense()  # as the model does; largest values are of whole rows
    ds = ds if x is ds.x else replace(ds, x=x)
    if ds.edge_features is not None:
        raise ConfigError(f"data: expected no features of edges, got some in {ds.name}: programs have none yet")
    edges = edge_data_of(model, ds, "use")
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _NORMS)}
    ones = frozenset(f"{name}.{part}" for name in norms for part in ("weight", "running_var")) & tensors.keys()
    drawn = draws_of({name: tensor for name, tensor in tensors.items() if name not in ones}, spec.seed)
    optimizer = make_optimizer(model, spec.optimizer, spec.lr, spec.weight_decay, spec.weight_decay_on)
    batch = FullBatch(model, ds, x, optimizer, edge_data=edges, every_row=every_row)
    with torch.random.fork_rng(devices=[]):
        batch.prepare()
    step, evaluation, rows, sizes = batch.plans()
    named = {id(p): name for name, p in model.named_parameters()}
    groups = tuple({**group, "names": [named[id(p)] for p in group["params"]]} for group in optimizer.param_groups)
    return StepPlans(
        step,
        evaluation,
        rows,
        sizes,
        groups,
        {name: tuple(t.shape) for name, t in tensors.items()},
        drawn,
        int(ds.labelled("train").numel()),
        isinstance(x, SparseFeatures),
        spec.normalize == "row",
        ds.num_edges,
        edges.weight is not None,
        ds.edge_weight is not None,
        ds.task,
        int((~ds.y[ds.labelled("train")].isnan()).sum()) if ds.task != "classification" else 0,
        ones,
        _counters(tensors),
        {name: float(norm.momentum or 0.0) for name, norm in norms.items() if isinstance(norm, nn.BatchNorm1d)},
        x.take_rows(rows).nnz if isinstance(x, SparseFeatures) and rows is not None else 0,
    )


def _counters(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    return frozenset(name for name, tensor in tensors.items() if not tensor.is_floating_point())


def prediction_plans(model: CompiledModule, ds: Dataset) -> StepPlans:
    """The plan of ``model(graph, x)`` in evaluation mode, for features as rows; it stands for the step as well.

    Orders of products are those for a graph and features of the sizes of ``ds``.

    Raises: ConfigError for data or a model that a program cannot hold.
    """
    _check_data(ds)
    edges = edge_data_of(model, ds, "use")
    x = features_of(ds)
    x = torch.zeros(tuple(x.shape)) if isinstance(x, SparseFeatures) else x
    model.eval()
    with torch.no_grad():
        arguments = model.arguments(ds.graph, x, None, edges.inputs)
        plan = model.function.ready(arguments)
    if plan is None:
        raise ConfigError("model: expected one that kernels run, got one for the interpreter")
    sizes = measure_sizes(plan.compiled.program, arguments.named(), 0)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return StepPlans(
        plan,
        plan,
        None,
        sizes,
        (),
        shapes,
        {},
        0,
        False,
        False,
        ds.num_edges,
        edges.weight is not None,
        counters=_counters(tensors),
    )


def _check_data(ds: Dataset) -> None:
    """Raises: ConfigError for what an .npz of a program does not hold, and for another precision than float32."""
    if _config.current().precision != "float32":
        raise ConfigError(f"precision={_config.current().precision} cannot be combined with a float32 program")
    if ds.graph.is_typed:
        raise ConfigError(f"data: expected a graph without types, got {len(ds.graph.relations)} relations in {ds.name}")
    if max(ds.num_nodes, ds.num_edges) >= 2**31:
        raise ConfigError(f"data: expected fewer than 2**31 nodes and edges, got {ds.num_nodes} and {ds.num_edges}")


def draws_of(tensors: Mapping[str, Tensor], seed: int) -> dict[str, int]:
    """Inputs plus outputs of the map that each drawn weight is, by its name, in the order in which ``seed`` drew them.

    All tensors but those of zeros are draws of Glorot's from one generator, which tells their order and their bounds.

    Raises: ConfigError for one that a program cannot draw.
    """
    left = {name: t.detach() for name, t in tensors.items() if bool(t.count_nonzero())}
    found: dict[str, int] = {}
    source = torch.Generator().manual_seed(seed)
    while left:
        state = source.get_state()
        for name, tensor in left.items():
            found[name] = _fans(tensor, source.set_state(state))
            if found[name]:
                break
            del found[name]
        else:
            name, tensor = next(iter(left.items()))
            raise ConfigError(
                f"model: expected weights that a program draws, got {name} of shape {tuple(tensor.shape)}"
            )
        del left[name]
    return found


def _fans(tensor: Tensor, source: torch.Generator) -> int:
    """Inputs plus outputs where ``tensor`` is the next draw of Glorot's; else 0, and ``source`` is somewhere."""
    state = source.get_state()
    shares = torch.rand(tensor.shape, generator=source) * 2 - 1
    if tensor.dtype != torch.float32 or not bool(shares.count_nonzero()):
        return 0
    at = int(shares.abs().argmax())
    ratio = float(tensor.flatten()[at]) / float(shares.flatten()[at])
    fans = round(6.0 / ratio**2) if ratio > 1e-5 else 0
    if not fans:
        return 0
    source.set_state(state)
    bound = math.sqrt(6.0 / fans)
    drawn = torch.empty(tensor.shape).uniform_(-bound, bound, generator=source)
    return fans if torch.equal(drawn, tensor) else 0


__all__ = ["StepPlans", "draws_of", "plans_of", "prediction_plans"]
