"""A stack of message-passing layers with what commonly stands between them.

Comes in: a class of layers. Goes out: the shared ``define`` of GCN, SAGE and GIN: dropout on the input of every
layer, then the layer, then, but for the last, residual, norm and activation.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweft._checks import as_plain, check_ids
from graphweft._draws import call_key
from graphweft._errors import ConfigError
from graphweft._keywords import refuse_renamed, unexpected
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.graph.shared import SharedGraph
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.nn.edges import Carried, EdgeInputs
from graphweft.nn.frame import ACTIVATIONS, SLOPES, Frame
from graphweft.nn.module import REDUCERS, CompiledModule, check_blocks, check_model, make_norm, reducer
from graphweft.nn.node_data import SizedByData
from graphweft.nn.settings import tensors_of
from graphweft.runtime.compile import Arguments, CompiledFunction
from graphweft.runtime.staged import StagedFunction, sampled_hops
from graphweft.runtime.tier import Tier
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.feature import Features, is_dense

_COMPILED_NORMS = (nn.BatchNorm1d, nn.LayerNorm)


def _is_plain_layer(layer: nn.Module) -> bool:
    """Whether a layer is one that is compiled with those around it."""
    return (
        isinstance(layer, CompiledModule)
        and type(layer).forward is CompiledModule.forward
        and "forward" not in layer.__dict__
        and not layer.runs_apart()
    )


def _is_plain_norm(norm: nn.Module) -> bool:
    """Whether a norm is one that is compiled with the layer before it."""
    return type(norm) in _COMPILED_NORMS and "forward" not in norm.__dict__


def activated(name: str, x: Tensor) -> Tensor:
    """``frame.activation`` in torch."""
    if name in SLOPES:
        return functional.elu(x, SLOPES[name]) if name == "elu" else functional.leaky_relu(x, SLOPES[name])
    if name in ("tanh", "sigmoid"):
        return getattr(torch, name)(x)  # type: ignore[no-any-return]
    if name in ("silu", "gelu"):
        return getattr(functional, name)(x)  # type: ignore[no-any-return]
    return functional.relu(x) if name == "relu" else x


# Names that PyTorch Geometric's models have for arguments of ours.
_THEIRS = {"jk": "jumping", "act": "activation"}


def check_known(kind: type[Stack], options: Mapping[str, Any]) -> None:
    """Options that the model's layers have. Raises: ConfigError with the name here; TypeError with the nearest one."""
    known = {*layer_options(kind)} if isinstance(kind.layer, type) else set(options)
    unknown = [name for name in options if name not in known]
    if unknown:
        refuse_renamed(kind.__name__, unknown, _THEIRS)
        raise unexpected(f"{kind.__name__}()", unknown[0], [*inspect.signature(kind.__init__).parameters, *known])


def layer_options(kind: type[Stack]) -> list[str]:
    """Names of all arguments that the constructors of a model's layers take, those of their bases among them."""
    found: list[str] = []
    for base in kind.layer.__mro__:  # type: ignore[attr-defined]
        if "__init__" in vars(base) and base is not object:
            found += inspect.signature(vars(base)["__init__"]).parameters
    return found


class Stack(SizedByData, CompiledModule):
    """Base class of models: ``num_layers`` layers of the class ``layer``.

    Args:
        in_features: Width of the node features.
        hidden: Width between layers.
        out_features: Width of the result, the number of classes for a classifier.
        num_layers: Number of layers.
        dropout: Probability to drop an element of a layer's input in training.
        bias: Whether layers add a learned vector.
        norm: ``"batch"``, ``"layer"`` or None; after every layer except the last.
        residual: Adds a layer's input to its output if the widths are equal.
        reduce: How neighbours are combined: ``"sum"``, ``"mean"`` or ``"max"``; None for the default of the model.
        activation: Activation after every layer except the last: ``"relu"``, ``"elu"``, ``"leaky_relu"`` (slope 0.2),
            ``"gelu"``, ``"silu"``, ``"tanh"``, ``"sigmoid"`` or ``"none"``; None for the default of the model.
        jumping: Jumping knowledge (Xu et al., ICML 2018). ``"cat"`` joins the results of all layers, in (``num_layers``
            - 1) times ``hidden`` plus ``out_features`` columns. ``"last"`` returns the last layer. With both, norm and
            activation follow the last layer too, and sampled blocks are not supported. None returns the last layer as
            it is.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.
        options: Further arguments of every layer.

    Raises: ConfigError for a value out of range.
    """

    layer: ClassVar[Callable[..., CompiledModule]]
    usual_reduce: ClassVar[str] = "sum"
    usual_activation: ClassVar[str] = "relu"
    reducers: ClassVar[tuple[str, ...]] = REDUCERS

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        bias: bool = True,
        norm: str | None = None,
        residual: bool = False,
        reduce: str | None = None,
        activation: str | None = None,
        jumping: str | None = None,
        aggr: str | None = None,
        **options: Any,
    ) -> None:
        in_features, hidden, out_features, num_layers = map(as_plain, (in_features, hidden, out_features, num_layers))
        reduce = reducer(type(self).__name__, reduce, aggr, self.usual_reduce)
        activation = self.usual_activation if activation is None else activation
        if activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ConfigError(f"{type(self).__name__}: expected activation among {known}, got {activation!r}")
        if jumping not in (None, "cat", "last"):
            raise ConfigError(f"{type(self).__name__}: expected jumping 'cat', 'last' or None, got {jumping!r}")
        check_known(type(self), options)
        sizes = {"in_features": in_features, "hidden": hidden, "out_features": out_features, "num_layers": num_layers}
        check_model(type(self).__name__, sizes, dropout, reduce, self.reducers)
        super().__init__(in_features)
        self.dropout, self.residual, self.out_features = dropout, residual, out_features
        self.activation, self.jumping = activation, jumping
        widths = [in_features, *[hidden] * (num_layers - 1), out_features]
        pairs = list(itertools.pairwise(widths))
        options |= {"bias": bias, "reduce": reduce}
        self.layers = nn.ModuleList(
            self.make_layer(a, b, last=index == num_layers - 1, **options) for index, (a, b) in enumerate(pairs)
        )
        self.takes_sparse = getattr(self.layers[0], "takes_sparse", True)
        normed = widths[1:] if jumping else widths[1:-1]
        self.norms = nn.ModuleList(n for n in (make_norm(norm, width) for width in normed) if n is not None)

    def make_layer(self, in_features: int, out_features: int, last: bool, **options: Any) -> CompiledModule:
        """One layer of the stack."""
        return type(self).layer(in_features, out_features, **options)

    def define(self, frame: Frame, x: Value) -> Value:
        """Layer after layer."""
        made = []
        for index in range(len(self.layers)):
            x = self._define_piece(frame, index, x)
            made.append(x)
        return frame.add(Op.CAT, *made, axis=0) if self.jumping == "cat" else x

    def _is_bare(self, index: int) -> bool:
        """Whether nothing follows a layer: it is the last, and its result alone is asked for."""
        return index == len(self.layers) - 1 and self.jumping is None

    @property
    def takes_edge_weight(self) -> bool:  # type: ignore[override]
        """Whether the layers do."""
        return all(layer.takes_edge_weight for layer in self._compiled())

    def adds_loops(self) -> bool:
        """Whether some layer does."""
        return any(layer.adds_loops() for layer in self._compiled())

    def edge_columns(self) -> int:
        """As the layers, which are alike."""
        return min((layer.edge_columns() for layer in self._compiled()), default=0)

    def carried(self, graph: Graph, edges: EdgeInputs) -> Carried:
        """As the layers. Raises: ConfigError for layers that are not alike."""
        kinds = {layer.edge_form() for layer in self._compiled()}
        if len(kinds) > 1:
            who = type(self).__name__
            raise ConfigError(f"{who}: edge_weight and edge_attr are not supported with layers of several kinds")
        return self._compiled()[0].carried(graph, edges)

    def _compiled(self) -> list[CompiledModule]:
        return [layer for layer in self.layers if isinstance(layer, CompiledModule)]

    def runs_apart(self) -> bool:
        """Also where something stands in a layer's or a norm's place that cannot be compiled with the rest."""
        layers = all(_is_plain_layer(layer) for layer in self.layers)
        return not layers or not all(map(_is_plain_norm, self.norms)) or super().runs_apart()

    def apart(self, graph: Graph, x: Features | None, rows: Tensor | None, edges: EdgeInputs) -> Tensor:
        """Layer by layer, each compiled by itself, with plain torch between them."""
        return self.layer_by_layer(graph, x, rows, functools.partial(self._layer_apart, edges=edges))

    def layer_by_layer(
        self,
        graph: Graph | Sequence[Block],
        x: Features | None,
        rows: Tensor | None,
        call: Callable[[nn.Module, Graph, Any], Any],
    ) -> Tensor:
        """As ``forward``, where ``call(layer, graph, x)`` runs each layer, on its own block where there are blocks."""
        whole = graph if isinstance(graph, Graph) else None
        made: Any = x if whole is None else self.features(whole, x)
        kept = []
        for index in range(len(self.layers)):
            made = self._apart(index, graph[index] if whole is None else whole, made, call)  # type: ignore[index]
            kept.append(made)
        made = torch.cat(kept, dim=1) if self.jumping == "cat" else made
        if rows is not None:
            check_ids(f"{type(self).__name__} rows", rows, made.shape[0])
            made = made[rows]
        assert isinstance(made, Tensor)
        return made

    def _apart(self, index: int, graph: Graph, x: Any, call: Callable[[nn.Module, Graph, Any], Any]) -> Any:
        """Layer ``index`` with what stands around it; on a block the rows of its destinations."""
        given = self.embedded(index, x)
        out = call(self.layers[index], graph, functional.dropout(given, self.dropout, self.training))
        if not self._is_bare(index):
            own = given[: out.shape[0]] if isinstance(graph, Block) else given
            if self.residual and is_dense(own) and own.shape == out.shape:
                out = out + own
            if len(self.norms):
                out = self.norms[index](out)
            out = activated(self.activation, out)
        return self.finished(index, out)

    def _layer_apart(self, layer: nn.Module, graph: Graph, x: Any, edges: EdgeInputs | None) -> Any:
        """The layer alone, as a module that is called."""
        if edges is None or (edges.weight is None and edges.attr is None):
            return layer(graph, x)
        if not isinstance(layer, CompiledModule):
            who, kind = type(self).__name__, type(layer).__name__
            raise ConfigError(f"{who}: edge_weight and edge_attr are not supported with a layer of class {kind}")
        return layer(graph, x, edge_weight=edges)

    def embedded(self, index: int, x: Any) -> Any:
        """What the layer takes in the place of ``x``, in torch; as ``define`` has it."""
        return x

    def finished(self, index: int, x: Any) -> Any:
        """What follows a layer's activation, in torch; as ``define`` has it."""
        return x

    def over_blocks(self, blocks: Sequence[Block], x: Features, edges: EdgeInputs | None = None) -> Tensor:
        """Each layer, with what follows it, on its own block; compiled once a layer and reused over batches."""
        self.check_blocks(blocks)
        for index, block in enumerate(blocks):
            x = self.run_layer(index, block, x, edges)
        assert isinstance(x, Tensor)
        return x

    def over_shared(self, graph: SharedGraph, x: Features | None, edges: EdgeInputs | None = None) -> Tensor:
        """Each layer, with what follows it, over all processes."""
        kept: list[Tensor] = []
        for index in range(len(self.layers)):
            run = functools.partial(self.run_layer, index, edges=edges)
            kept.append(torch.cat(graph.over(kept[-1] if kept else x, run)))
        return torch.cat(kept, 1) if self.jumping == "cat" else kept[-1]

    def check_blocks(self, blocks: Sequence[Block]) -> None:
        """One block a layer, which read no rows but the last layer's. Raises: ShapeError, ConfigError."""
        check_blocks(type(self).__name__, blocks, len(self.layers))
        if self.jumping is not None:
            text = "cannot be combined with sampled blocks, whose layers have rows of fewer and fewer nodes"
            raise ConfigError(f"{type(self).__name__}: jumping={self.jumping!r} {text}")

    def embed(
        self,
        graph: Graph | Sequence[Block],
        x: Features | None = None,
        layer: int | None = None,
        *,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Rows of the nodes after one of the layers, with the norm and activation that follow it.

        Shape: x (nodes, in_features) -> (nodes, width of the layer); with blocks, the destinations of that layer's.

        Args:
            graph: As for a call of the model.
            x: As for a call.
            layer: Index among ``layers``, -1 for the last, whose rows are the result of a call; None: the last but
                one, whose rows the last layer reads.
            edge_weight: As for a call.
            edge_attr: As for a call.

        Raises: ConfigError for a layer that is not there; ShapeError, DtypeError as a call.

        Example:
            >>> from graphweft.nn.sage import SAGE
            >>> model = SAGE(4, 16, 3)
            >>> model.embed(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
            torch.Size([3, 16])
        """
        count = len(self.layers)
        wanted = max(count - 2, 0) if layer is None else layer
        if isinstance(wanted, bool) or not isinstance(wanted, int) or not -count <= wanted < count:
            raise ConfigError(f"{type(self).__name__}.embed: expected layer in [{-count}, {count}), got {layer!r}")
        wanted %= count
        edges = EdgeInputs(edge_weight, edge_attr)
        if not isinstance(graph, Graph):
            self.check_blocks(graph)
            made: Any = x
            for index in range(wanted + 1):
                made = self.run_layer(index, graph[index], made, edges)
            rows: Tensor = made
            return rows
        if self.runs_apart():
            made = self.features(graph, x)
            for index in range(wanted + 1):
                made = self._apart(index, graph, made, functools.partial(self._layer_apart, edges=edges))
            rows = made
            return rows
        function = self._pieces.get(("embed", wanted))
        if function is None:
            function = CompiledFunction(functools.partial(self._describe_first, wanted + 1))
            self._pieces["embed", wanted] = function
        return self._settled(function(self.arguments(graph, x, None, edges)), graph, None)

    def function_by_layer(self) -> CompiledFunction:
        """As :attr:`function`, with the rows of each layer as an output: "layer0" and so on, of the last one "out"."""
        function = self._pieces.get("layers")
        if function is None:
            function = self._pieces["layers"] = CompiledFunction(self._describe_layers)
        return function

    def _describe_layers(self, builder: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
        frame = self._frame(builder, inputs, training)
        x, made = frame.x, {}
        for index in range(len(self.layers)):
            x = made[f"layer{index}"] = self._define_piece(frame, index, x)
        del made[f"layer{len(self.layers) - 1}"]
        return {"out": x, **made, **frame.outputs}

    def _describe_first(
        self, count: int, builder: Builder, inputs: dict[str, Value], training: bool
    ) -> dict[str, Value]:
        """The first ``count`` layers."""
        frame = self._frame(builder, inputs, training)
        x = frame.x
        for index in range(count):
            x = self._define_piece(frame, index, x)
        return {"out": x, **frame.outputs}

    def staged(
        self, sampler: NeighborSampler, x: Features, tier: Tier | None = None, device: torch.device | None = None
    ) -> StagedFunction:
        """Sampling and all layers as one program; one fan-out a layer. ``tier`` or ``device``: where the layers run."""
        return StagedFunction(functools.partial(self._describe_batch, sampler.fanouts), sampler, x, tier, device)

    def is_staged(self) -> bool:
        """Whether :meth:`staged` computes what a call on blocks does, whatever a subclass has overridden."""
        mine = type(self)
        layers = [type(layer) for layer in self.layers if isinstance(layer, CompiledModule)]
        return (
            self.jumping is None
            and mine.over_blocks is Stack.over_blocks
            and mine.run_layer is Stack.run_layer
            and mine.layer_arguments is Stack.layer_arguments
            and mine.define is Stack.define
            and not self.runs_apart()
            and not any(layer.tables for layer in layers)
            and all(k.block is CompiledModule.block or k.sampled is not CompiledModule.sampled for k in layers)
        )

    def _describe_batch(
        self, fanouts: tuple[int, ...], builder: Builder, inputs: dict[str, Value], training: bool
    ) -> dict[str, Value]:
        """Hops, the rows of what the last one reached, then layer after layer towards the seeds."""
        frame, hops = self._frame(builder, inputs, training), sampled_hops(builder, inputs, fanouts)
        ids = builder.add(Op.SRC_IDS, hops[-1], inputs["graph"])
        x = builder.add(Op.TAKE_ROWS, inputs["x"], ids, to="src")
        for index, (layer, block) in enumerate(zip(self.layers, reversed(hops), strict=True)):
            assert isinstance(layer, CompiledModule)
            frame.graph = layer.sampled(frame, block)
            x = self._define_piece(frame, index, x)
        return {"out": x, **frame.outputs}

    def _define_piece(self, frame: Frame, index: int, given: Value) -> Value:
        """One layer and what stands between it and the next."""
        layer = self.layers[index]
        assert isinstance(layer, CompiledModule)
        x = layer.define(frame, frame.dropout(given, self.dropout))
        if self._is_bare(index):
            return x
        if self.residual and given.tensor.dims == x.tensor.dims and not given.tensor.sparse:
            x = frame.add(Op.ADD, x, frame.own(given))
        if len(self.norms):
            x = frame.norm(x, self.norms[index])
        return frame.activation(self.activation, x)

    def run_layer(
        self,
        index: int,
        block: Block,
        x: Features,
        edges: EdgeInputs | None = None,
        replaced: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Layer ``index`` with what follows it: rows of the block's destinations from those of its sources.

        ``replaced``: parameters of the layer by name, of a compiled one, that others stand in the place of.
        """
        if self.runs_apart():
            made: Tensor = self._apart(index, block, x, functools.partial(self._layer_apart, edges=edges))
            return made
        given = self.layer_arguments(index, block, x, edges)
        if replaced is not None:
            names = {f"layers.{index}.{name}": tensor for name, tensor in replaced.items()}
            given = replace(given, parameters={**given.parameters, **names})
        seed = call_key() if self.training and self.draws() else 0
        result = self.layer_function(index)(replace(given, seed=seed, training=self.training))
        return self._settled(result, given.graph, given.rows)

    def layer_function(self, index: int) -> CompiledFunction:
        """Layer ``index`` with what follows it, compiled once; parameters are named as in the model."""
        function = self._pieces.get(index)
        if function is None:
            function = self._pieces[index] = CompiledFunction(functools.partial(self._describe_piece, index))
        return function

    def layer_arguments(self, index: int, block: Block, x: Features, edges: EdgeInputs | None = None) -> Arguments:
        """What :meth:`layer_function` is called with on a block."""
        layer = self.layers[index]
        assert isinstance(layer, CompiledModule)
        given = layer.arguments(block, x, None, edges)
        names = {f"layers.{index}.{name}": tensor for name, tensor in given.parameters.items()}
        if index < len(self.norms):
            names |= {f"norms.{index}.{name}": tensor for name, tensor in tensors_of(self.norms[index]).items()}
        return replace(given, parameters=names, settings=self.settings())

    def _describe_piece(
        self, index: int, builder: Builder, inputs: dict[str, Value], training: bool
    ) -> dict[str, Value]:
        frame = self._frame(builder, inputs, training)
        result = self._define_piece(frame, index, frame.x)
        return {"out": result, **frame.outputs}
