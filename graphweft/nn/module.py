"""The base of layers and models: an ``nn.Module`` whose forward pass is one compiled program.

Comes in: a graph and node features. Goes out: node rows. A subclass writes ``define(frame, x) -> value``; everything
below it (passes, kernels, the backward pass) is the compiler's. A model's ``define`` calls those of its layers, so
the compiler sees the whole model at once.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from graphweft._checks import check_ids
from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import Residency
from graphweft.nn.frame import Frame
from graphweft.nn.opaque import left_out, traced, untraced
from graphweft.runtime.compile import Arguments, CompiledFunction, Features
from graphweft.runtime.function import Pullback
from graphweft.storage.dense_rows import dense_rows
from graphweft.storage.feature import SparseFeatures

REDUCERS = ("sum", "mean", "max")
NORMS = (None, "batch", "layer")
_HALVES = (torch.bfloat16, torch.float16)


class CompiledModule(nn.Module):
    """A module that is compiled as a whole.

    Attributes:
        in_features: Width of the features it takes.
        takes_sparse: Whether sparse features stay sparse; else they are made dense, once for as long as they live,
            with a warning.
        tables: Parameters of the class whose rows are node types or relations, with which of them.
    """

    takes_sparse = True
    tables: ClassVar[Mapping[str, Residency]] = {}

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self._function = CompiledFunction(self._describe)
        self._pieces: dict[int, CompiledFunction] = {}  # of models that run block by block

    def define(self, frame: Frame, x: Value) -> Value:
        """Writes this module's computation on ``x``."""
        raise TypeError(f"{type(self).__name__}: expected a class that writes define(frame, x)")

    @left_out
    def forward(self, graph: Graph | Sequence[Block], x: Features | None = None, rows: Tensor | None = None) -> Tensor:
        """Output rows of all nodes, or of ``rows`` only; on a batch's ``blocks``, one per layer, those of its seeds.

        Shape: x (nodes, in_features), None for a model without features; rows (n,) ids of distinct nodes; result (nodes
        or n, out). With blocks x has one row per source of the first, and the result one per destination of the last.

        Raises: ShapeError when x does not fit the graph or this module; IndexRangeError for a bad id in rows.
        """
        if traced():
            return untraced(CompiledModule.forward)(self, graph, x, rows)
        if not isinstance(graph, Graph):
            if x is None:
                raise ShapeError(f"{type(self).__name__}: expected features of the batch's nodes, got None")
            return self.over_blocks(graph, x)
        return self._settled(self._function(self.arguments(graph, x, rows)), graph, rows)

    def over_blocks(self, blocks: Sequence[Block], x: Features) -> Tensor:
        """A layer takes one block."""
        check_blocks(type(self).__name__, blocks, 1)
        result: Tensor = self(blocks[0], x)
        return result

    def block(self, block: Block) -> Graph:
        """The block as this layer wants it."""
        return block

    def sampled(self, frame: Frame, block: Value) -> Value:
        """As :meth:`block`, for a block that is drawn within the program."""
        return block

    def features(self, graph: Graph, x: Features | None = None) -> Features | None:
        """What the model reads: ``x``, or, for a model without features, rows that it makes of the graph."""
        return x

    def linearize(self, graph: Graph, x: Features | None, rows: Tensor | None = None) -> tuple[Tensor, Pullback]:
        """As ``forward``, outside torch's graph, with the function from the result's gradient to the parameters'.

        For training loops that need no more of torch's engine; the pullback works once.
        """
        result, pullback = self._function.linearize(self.arguments(graph, x, rows))
        return self._settled(result, graph, rows), pullback

    def _settled(self, result: dict[str, Tensor], graph: Graph, rows: Tensor | None) -> Tensor:
        """The output, after what else came out is stored in buffers."""
        extra = {name: tensor for name, tensor in result.items() if name != "out"}
        if extra:
            count = result["out"].shape[0] if rows is None else graph.num_dst
            self.store(extra, lambda _: count)
        return result["out"]

    def arguments(self, graph: Graph, x: Features | None, rows: Tensor | None = None) -> Arguments:
        """What the compiler is called with; checks what the user gave."""
        who = type(self).__name__
        if not isinstance(graph, Graph):
            raise ShapeError(f"{who}: expected a graphweft Graph first, got {type(graph).__name__}")
        if isinstance(graph, Block):
            graph = self.block(graph)
        elif not graph.is_square:
            raise ShapeError(f"{who}: expected a graph over one set of nodes or a sampled Block, got {graph!r}")
        x = self.features(graph, x)
        if not isinstance(x, Tensor | SparseFeatures):
            raise ShapeError(f"{who}: expected features as a tensor or SparseFeatures, got {type(x).__name__}")
        shape = tuple(x.shape)
        if len(shape) != 2 or shape[1] != self.in_features:
            raise ShapeError(f"{who}: expected features with {self.in_features} columns, got shape {shape}")
        if rows is not None:
            check_ids(f"{who} rows", rows, graph.num_dst)
        if isinstance(x, Tensor) and x.dtype in _HALVES and torch.is_autocast_enabled("cpu"):
            x = x.float()  # what ran before under autocast; parameters are not cast, and sums are taken in their dtype
        if isinstance(x, SparseFeatures) and not self.takes_sparse:
            (x,) = dense_rows(who, x, kept=True)
        tensors = {**dict(self.named_parameters()), **{n: b for n, b in self.named_buffers() if b.is_floating_point()}}
        seed = int(torch.randint(2**62, ())) if self.training and self.draws() else 0
        fields = {name: (tensors.pop(name), residency) for name, residency in self._tables() if name in tensors}
        return Arguments(graph, x, tensors, rows, seed, self.training, fields)

    def _tables(self) -> list[tuple[str, Residency]]:
        """Full names of the parameters of this module and those in it that have a row per type."""
        return [
            (f"{prefix}.{name}" if prefix else name, residency)
            for prefix, module in self.named_modules()
            if isinstance(module, CompiledModule)
            for name, residency in module.tables.items()
            if module.has_rows_per_type(name)
        ]

    def has_rows_per_type(self, name: str) -> bool:
        """Whether the parameter ``name`` of ``tables`` is such a table in this module."""
        return True

    def program(self, graph: Graph, x: Features | None, rows: Tensor | None = None) -> Program:
        """The forward program as written, before any pass."""
        return self._function.program(self.arguments(graph, x, rows))

    @property
    def function(self) -> CompiledFunction:
        """The compiled function: its plans tell what was done."""
        return self._function

    def draws(self) -> bool:
        """Whether a forward pass in training draws random numbers."""
        return any(getattr(m, "dropout", 0.0) or getattr(m, "value_dropout", 0.0) for m in self.modules())

    def _describe(self, builder: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
        frame = self._frame(builder, inputs, training)
        result = self.define(frame, frame.x)
        return {"out": result, **frame.outputs}

    def _frame(self, builder: Builder, inputs: dict[str, Value], training: bool) -> Frame:
        names = {id(t): n for n, t in (*self.named_parameters(), *self.named_buffers())}
        return Frame(builder, inputs, names, training)

    def store(self, extra: Mapping[str, Tensor], rows: Callable[[str], int]) -> None:
        """Moves running statistics of batch norms towards the batch's, taken over ``rows`` of the norm's name."""
        for name, module in self.named_modules():
            if not isinstance(module, nn.BatchNorm1d) or f"{name}.mean" not in extra:
                continue
            assert module.running_mean is not None and module.running_var is not None
            assert module.num_batches_tracked is not None
            momentum = 0.1 if module.momentum is None else module.momentum
            with torch.no_grad():
                count = rows(name)
                unbiased = extra[f"{name}.var"].detach() * (count / max(count - 1, 1))
                module.running_mean.lerp_(extra[f"{name}.mean"].detach(), momentum)
                module.running_var.lerp_(unbiased, momentum)
                module.num_batches_tracked += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._remade(copy.deepcopy(self.__getstate__(), memo), memo)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_function", "_pieces")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._function, self._pieces = CompiledFunction(self._describe), {}

    def _remade(self, state: dict[str, Any], memo: dict[int, Any]) -> Self:
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        made.__dict__.update(state)
        made._function, made._pieces = CompiledFunction(made._describe), {}
        return made


def check_blocks(who: str, blocks: Sequence[Block], layers: int) -> None:
    """One block per layer, each one's destinations the next one's sources. Raises: ShapeError."""
    if not isinstance(blocks, list | tuple) or not all(isinstance(block, Block) for block in blocks):
        got = type(blocks).__name__
        raise ShapeError(f"{who}: expected a graphweft Graph first, or the blocks of a batch, got {got}")
    if len(blocks) != layers:
        raise ShapeError(f"{who}: expected {layers} blocks, one per layer, got {len(blocks)}")
    for before, after in itertools.pairwise(blocks):
        if before.num_dst != after.num_src:
            raise ShapeError(f"{who}: expected blocks that follow each other, got {before!r} and {after!r}")


def glorot(rows: int, columns: int, fans: int | None = None) -> nn.Parameter:
    """A weight (rows, columns), uniform by Glorot and Bengio (AISTATS 2010).

    ``fans``: inputs and outputs of one of several maps that are stored side by side; rows + columns for one map.
    """
    bound = math.sqrt(6.0 / (rows + columns if fans is None else fans))
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound))


def make_norm(kind: str | None, width: int) -> nn.Module | None:
    """The norm called ``kind``. Raises: ConfigError for another name."""
    if kind not in NORMS:
        raise ConfigError(f"norm: expected 'batch', 'layer' or None, got {kind!r}")
    if kind is None:
        return None
    return nn.BatchNorm1d(width) if kind == "batch" else nn.LayerNorm(width)


def check_model(name: str, sizes: dict[str, int], dropout: float, reduce: str) -> None:
    """Sizes are positive, dropout is a probability below 1, the reducer is known. Raises: ConfigError."""
    for what, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"{name}: expected {what} >= 1, got {size!r}")
    if not 0.0 <= dropout < 1.0:
        raise ConfigError(f"{name}: expected dropout in [0, 1), got {dropout}")
    if reduce not in REDUCERS:
        raise ConfigError(f"{name}: expected reduce among {', '.join(REDUCERS)}, got {reduce!r}")
