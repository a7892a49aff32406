"""The base of layers and models: an ``nn.Module`` whose forward pass is one compiled program.

Comes in: a graph and node features. Goes out: node rows. A subclass writes ``define(frame, x) -> value``; everything
below it (passes, kernels, the backward pass) is the compiler's. A model's ``define`` calls those of its layers, so
the compiler sees the whole model at once.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.utils import parametrize

from graphweft import _config
from graphweft._checks import as_integer, as_plain
from graphweft._draws import call_key
from graphweft._errors import ConfigError, DtypeError, ShapeError
from graphweft._keywords import refuse_renamed
from graphweft._torch_private import foreach_add, foreach_lerp, foreach_mul
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.graph.shared import SharedGraph
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import Residency
from graphweft.nn.edges import Carried, EdgeInputs
from graphweft.nn.frame import DST, Frame
from graphweft.nn.lazy import Lazy, waits_for_features
from graphweft.nn.made_with import OTHER_NAMES, ConstructorSignature, KeepsArguments, described
from graphweft.nn.opaque import left_out, traced, untraced
from graphweft.nn.settings import is_parametrized, is_watched, settings_of, tensors_of
from graphweft.runtime import norms as norms_on_cpu
from graphweft.runtime.compile import Arguments, CompiledFunction, Field
from graphweft.runtime.constants import check_ids_once, constant, is_declared
from graphweft.runtime.feature_types import is_half
from graphweft.runtime.function import Pullback
from graphweft.storage.dense_rows import dense_rows
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.int8_features import Int8Features

REDUCERS = ("sum", "mean", "max")
NORMS = (None, "batch", "layer")
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
_HALVES = (torch.bfloat16, torch.float16)


class CompiledModule(KeepsArguments, nn.Module):
    """Base class of modules that are compiled as a whole. A subclass writes its computation in :meth:`define`.

    Attributes:
        in_features: Width of the input features; for a layer between two sets of nodes, of the sources.
        dst_features: Width of the features of the destinations if a call has to pass a pair, else None.
        takes_pairs: Whether a call may pass features of sources and destinations as a pair.
        takes_sparse: Whether sparse features stay sparse. Else they are made dense once, with a warning.
        takes_edge_weight: Whether the sums over in-edges are weighted by ``edge_weight``.
        tables: Names of parameters whose rows are node types or relations, and which of the two.
    """

    takes_sparse = True
    takes_edge_weight = False
    takes_pairs = False
    tables: ClassVar[Mapping[str, Residency]] = {}

    __signature__ = ConstructorSignature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuses two names for one argument, and the names that other libraries have for one."""
        if not OTHER_NAMES.keys().isdisjoint(kwargs):
            own = inspect.signature(cls.__init__).parameters
            refuse_renamed(cls.__name__, (name for name in kwargs if name not in own), OTHER_NAMES)
        reduce, aggr = kwargs.get("reduce"), kwargs.get("aggr")
        if reduce is not None and aggr is not None:
            reducer(cls.__name__, reduce, aggr, usual="")
        if waits_for_features(cls, args, kwargs) and not issubclass(cls, Lazy):
            cls = Lazy.of(cls)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, in_features: int | tuple[int, int]) -> None:
        super().__init__()
        self.in_features, own = as_widths(in_features)
        self.dst_features = None if isinstance(in_features, int) else own
        self._function = CompiledFunction(self._describe)
        self._pieces: dict[Hashable, CompiledFunction] = {}  # layers on blocks by number, and other results by name

    def define(self, frame: Frame, x: Value) -> Value:
        """Writes this module's computation on ``x``."""
        raise TypeError(f"{type(self).__name__}: expected a class that writes define(frame, x)")

    def reset_parameters(self) -> None:
        """Initialises all parameters again, as the constructor does, and resets buffers such as running statistics.

        Raises: ConfigError if a layer was replaced by one with other parameters.

        Example:
            >>> from graphweft.nn.gcn import GCN
            >>> model, _ = GCN(4, 8, 2), torch.manual_seed(0)
            >>> model.reset_parameters()
            >>> _ = torch.manual_seed(0)
            >>> bool((GCN(4, 8, 2).layers[1].weight == model.layers[1].weight).all())
            True
        """
        if self.made_with is None:
            raise ConfigError(f"{type(self).__name__}: expected a class that writes reset_parameters()")
        fresh = type(self)(*self.made_with[0], **self.made_with[1])
        mine, drawn = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (self, fresh))
        changed = [name for name in {**mine, **drawn} if name not in mine or name not in drawn]
        changed += [name for name in mine if name in drawn and mine[name].shape != drawn[name].shape]
        if changed:
            who = f"{type(self).__name__}.reset_parameters"
            raise ConfigError(f"{who}: expected the parameters of the constructor, got a change of {min(changed)}")
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(drawn[name])

    def extra_repr(self) -> str:
        """The constructor's arguments: sizes, and options that differ from the defaults."""
        return "" if self.made_with is None else described(self, self.made_with)

    @left_out
    def forward(
        self,
        graph: Graph | Sequence[Block],
        x: Float[Tensor, "*batch nodes in"]
        | SparseFeatures
        | tuple[Float[Tensor, "sources in"] | SparseFeatures, Float[Tensor, "destinations *columns"]]
        | None = None,
        rows: Int64[Tensor, "rows"] | None = None,
        *,
        edge_weight: Float[Tensor, "edges"] | EdgeInputs | None = None,
        edge_attr: Float[Tensor, "edges *edge_dim"] | None = None,
        return_attention_weights: bool = False,
    ) -> Any:
        """Output rows of all nodes, or only of ``rows``. With the blocks of a batch, one per layer, output rows of its
        seeds.

        On a graph between two sets of nodes, x is a pair (x_src, x_dst), for layers that take one. A layer with
        ``in_features=(a, b)`` has separate weights for both. For several sets of features on one graph, x is (batch,
        nodes, in_features), and the result is (batch, nodes, out).

        Weights and features of edges are always those of the whole graph, also with blocks. With
        ``return_attention_weights``, a layer with attention returns ``(out, (edge_index, alpha))``, as in PyTorch
        Geometric. A model returns ``(out, [(edge_index, alpha), ...])``, with a pair for every layer.

        Shape: x (nodes, in_features), None for a model without features; rows (n,) ids of distinct nodes; result (nodes
        or n, out). With blocks, x has one row per source of the first block, and the result one row per destination of
        the last. edge_weight is (E,) and edge_attr (E, columns), where row i belongs to edge i as given to the graph's
        constructor. edge_index is (2, edges); self-loops that the layer adds come after the other edges. alpha is
        (edges, heads).

        Raises: ShapeError or DtypeError if x or the values of edges do not fit the graph or this module. ConfigError
        for values of edges that this module does not use. IndexRangeError for an id in rows that is out of range.
        """
        if traced():
            options: dict[str, Any] = {"edge_weight": edge_weight, "edge_attr": edge_attr}
            options["return_attention_weights"] = return_attention_weights
            return untraced(CompiledModule.forward)(self, graph, x, rows, **options)
        edges = edge_weight if isinstance(edge_weight, EdgeInputs) else EdgeInputs(edge_weight, edge_attr)
        if is_parametrized(self) and not parametrize._cache_enabled:
            with parametrize.cached():  # every reading of a parametrized weight is the same tensor in here
                kept = return_attention_weights
                return CompiledModule.forward(self, graph, x, rows, edge_weight=edges, return_attention_weights=kept)
        given: Any = x
        if isinstance(x, Tensor) and x.layout in _SPARSE and not isinstance(x, SparseFeatures):
            given = SparseFeatures.from_torch(x)
        if isinstance(x, Tensor) and x.dim() == 3 and not return_attention_weights:
            return torch.stack([CompiledModule.forward(self, graph, one, rows, edge_weight=edges) for one in x])
        if return_attention_weights:
            return self.with_attention(graph, given, rows, edges)
        if not isinstance(graph, Graph):
            if given is None and isinstance(graph, list | tuple):
                raise ShapeError(f"{type(self).__name__}: expected features of the batch's nodes, got None")
            return self.over_blocks(graph, given, edges)
        if isinstance(graph, SharedGraph):
            made = self.over_shared(graph, given, edges)
            return made if rows is None else made[rows]
        if self.runs_apart():
            return self.apart(graph, given, rows, edges)
        return self._settled(self._function(self.arguments(graph, given, rows, edges)), graph, rows)

    def runs_apart(self) -> bool:
        """Whether the modules inside have to be called one by one: somebody hooked one of them."""
        return is_watched(self)

    def apart(self, graph: Graph, x: Features | None, rows: Tensor | None, edges: EdgeInputs) -> Tensor:
        """As ``forward``, module by module, so that their hooks run. Raises: ConfigError where there is no such way."""
        raise ConfigError(
            f"{type(self).__name__}: hooks on the modules inside are not supported, since it is compiled as a whole; "
            "put the hook on it or on its parameters"
        )

    def with_attention(
        self, graph: Graph | Sequence[Block], x: Features | None, rows: Tensor | None, edges: EdgeInputs
    ) -> tuple[Tensor, Any]:
        """As ``forward``, with the weights of attention. Raises: ConfigError for a module without attention."""
        who = type(self).__name__
        raise ConfigError(
            f"{who}: return_attention_weights is not supported, it has none; GAT, CGAT, Transformer and their layers do"
        )

    def over_blocks(self, blocks: Sequence[Block], x: Features, edges: EdgeInputs | None = None) -> Tensor:
        """A layer takes one block."""
        check_blocks(type(self).__name__, blocks, 1)
        result: Tensor = self(blocks[0], x, edge_weight=edges)
        return result

    def over_shared(self, graph: SharedGraph, x: Features | None, edges: EdgeInputs | None = None) -> Tensor:
        """A layer on a graph that is shared out over processes: rows of own nodes.

        Raises: ConfigError for a layer that needs the whole graph.
        """
        if self.needs_whole_graph():
            raise ConfigError(f"{type(self).__name__}: not supported over several ranks, it reads the whole graph")
        return torch.cat(graph.over(x, lambda block, given: self(block, given, edge_weight=edges)))

    def needs_whole_graph(self) -> bool:
        """Whether one hop's block, even with all of its edges, is not enough."""
        return False

    def adds_loops(self) -> bool:
        """Whether self-loops are added to the graph."""
        return False

    def edge_columns(self) -> int:
        """Columns of edge features that this module reads; 0 for none."""
        return 0

    def carried(self, graph: Graph, edges: EdgeInputs) -> Carried:
        """The graph with the self-loops that this module wants, and its edges' rows."""
        return edges.as_given(graph)

    def block(self, block: Block) -> Graph:
        """The block as this layer wants it."""
        return block

    def sampled(self, frame: Frame, block: Value) -> Value:
        """As :meth:`block`, for a block that is drawn within the program."""
        return block

    def features(self, graph: Graph, x: Features | None = None) -> Features | None:
        """What the model reads: ``x``, or, for a model without features, rows that it makes of the graph."""
        return x

    def linearize(
        self, graph: Graph, x: Features | None, rows: Tensor | None = None, edges: EdgeInputs | None = None
    ) -> tuple[Tensor, Pullback]:
        """As ``forward``, outside torch's graph, with the function from the result's gradient to the parameters'.

        For training loops that need no more of torch's engine; the pullback works once.
        """
        return self.linearized(self.arguments(graph, x, rows, edges))

    def linearized(self, arguments: Arguments) -> tuple[Tensor, Pullback]:
        """As :meth:`linearize`, of arguments that were made before."""
        result, pullback = self._function.linearize(arguments)
        return self._settled(result, arguments.graph, arguments.rows), pullback

    def _settled(self, result: dict[str, Tensor], graph: Graph, rows: Tensor | None) -> Tensor:
        """The output, after what else came out is stored in buffers."""
        extra = {name: tensor for name, tensor in result.items() if name != "out"}
        if extra:
            count = result["out"].shape[0] if rows is None else graph.num_dst
            self.store(extra, lambda _: count)
        return result["out"]

    def arguments(
        self, graph: Graph, x: Features | None, rows: Tensor | None = None, edges: EdgeInputs | None = None
    ) -> Arguments:
        """What the compiler is called with; checks what the user gave."""
        who = type(self).__name__
        if not isinstance(graph, Graph):
            raise ShapeError(f"{who}: expected a graphweft Graph first, got {type(graph).__name__}")
        is_pair = isinstance(x, tuple)
        if not isinstance(graph, Block) and not graph.is_square and not is_pair:
            remedy = "; give features as (x_src, x_dst)" if self.takes_pairs else ""
            raise ShapeError(f"{who}: expected a graph over one set of nodes or a sampled Block, got {graph!r}{remedy}")
        if graph.is_typed and self.adds_loops():
            count = len(graph.relations)
            raise ShapeError(
                f"{who}: expected an untyped graph, got {count} relations; gw.nn.RGCN and gw.nn.HGT take them"
            )
        of_edges: dict[str, Field] = {}
        if edges is not None and (edges.weight is not None or edges.attr is not None):
            self._check_edges(graph, edges)
            graph, of_edges = self.carried(graph, edges)
            if edges.fixed:
                for tensor, _ in of_edges.values():
                    constant(tensor)
        elif isinstance(graph, Block):
            graph = self.block(graph)
        if is_pair:
            x, of_edges[DST] = self._split(graph, x)
        elif self.dst_features not in (None, self.in_features):
            raise ShapeError(f"{who}: expected features as (x_src, x_dst), as in_features is a pair, got one set")
        x = self.features(graph, x)
        if not isinstance(x, Tensor | SparseFeatures):
            remedy = "; torch.from_numpy(x) makes a tensor" if type(x).__name__ == "ndarray" else ""
            raise ShapeError(f"{who}: expected features as a tensor or SparseFeatures, got {type(x).__name__}{remedy}")
        shape = tuple(x.shape)
        if len(shape) != 2 or shape[1] != self.in_features:
            raise ShapeError(f"{who}: expected features with {self.in_features} columns, got shape {shape}")
        if rows is not None:
            check_ids_once(f"{who} rows", rows, graph.num_dst)
        if isinstance(x, Tensor) and x.dtype in _HALVES and torch.is_autocast_enabled("cpu"):
            x = x.float()  # what ran before under autocast; parameters are not cast, and sums are taken in their dtype
        self._check_dtype(x)
        if isinstance(x, Int8Features) or (isinstance(x, SparseFeatures) and not self.takes_sparse):
            x = _dense(who, x)
        tensors = tensors_of(self)
        seed = call_key() if self.draws() else 0
        fields = {name: (tensors.pop(name), residency) for name, residency in self._tables() if name in tensors}
        fields |= of_edges
        return Arguments(graph, x, tensors, rows, seed, self.training, fields, settings=self.settings())

    def _split(self, graph: Graph, x: Any) -> tuple[Features, Field]:
        """The features of the sources, and those of the destinations as a field. Raises: ConfigError, ShapeError."""
        who = type(self).__name__
        if not self.takes_pairs:
            raise ConfigError(
                f"{who}: features as (x_src, x_dst) are not supported; SAGE, GIN and GAT layers take them"
            )
        if len(x) != 2 or not all(isinstance(one, Tensor | SparseFeatures) for one in x):
            got = ", ".join(type(one).__name__ for one in x)
            raise ShapeError(f"{who}: expected features as (x_src, x_dst), got ({got})")
        width = self.in_features if self.dst_features is None else self.dst_features
        wanted, found = (graph.num_dst, width), tuple(x[1].shape)
        if found != wanted:
            raise ShapeError(f"{who}: expected x_dst of shape {wanted}, got {found}")
        self._check_dtype(x[1])
        return x[0], (_dense(who, x[1]) if isinstance(x[1], SparseFeatures) else x[1], Residency.DST)

    def settings(self) -> Hashable:
        """All that ``define`` may read beside tensors; what is compiled for other settings does not serve."""
        return settings_of(self)

    def _dtype(self) -> torch.dtype | None:
        """That of the parameters; None without any."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), None)

    def _check_dtype(self, x: Features) -> None:
        """Features have the dtype of the parameters, or are stored in bfloat16. Raises: DtypeError."""
        wanted, found = self._dtype(), x.dtype
        if wanted is not None and found != wanted and not (wanted == torch.float32 and self._may_be_stored(x)):
            who = type(self).__name__
            other = f" or model.to({found})" if found.is_floating_point else ""  # a trainer's features are float32
            raise DtypeError(f"{who}: expected x of {wanted} as the parameters, got {found}; use x.to({wanted}){other}")

    @staticmethod
    def _may_be_stored(x: Features) -> bool:
        """Whether features may be in bfloat16 beside float32 parameters."""
        return is_half(x) and not x.requires_grad and _config.current().precision == "bf16"

    def _check_edges(self, graph: Graph, edges: EdgeInputs) -> None:
        """This module reads what is given of the edges. Raises: ConfigError, ShapeError, DtypeError."""
        who, columns = type(self).__name__, self.edge_columns()
        if edges.weight is not None and not self.takes_edge_weight and not columns:
            raise ConfigError(f"{who}: edge_weight is not supported{self.edge_remedy}")
        if edges.attr is not None and not columns:
            raise ConfigError(f"{who}: edge_attr is not supported{self.edge_remedy}")
        edges.check(who, graph, self._dtype() or torch.float32)
        got = (edges.weight is not None) + (0 if edges.attr is None else edges.attr.shape[1])
        if columns and got != columns:
            raise ShapeError(f"{who}: expected edge_dim={columns} columns of edge_attr and edge_weight, got {got}")

    def edge_form(self) -> tuple[object, ...]:
        """What :meth:`carried` depends on."""
        return (type(self),)

    edge_remedy: ClassVar[str] = "; GCN, SAGE and GIN take edge_weight, GAT(edge_dim=) takes both"

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

    def program(
        self, graph: Graph, x: Features | None, rows: Tensor | None = None, edges: EdgeInputs | None = None
    ) -> Program:
        """The forward program as written, before any pass."""
        return self._function.program(self.arguments(graph, x, rows, edges))

    @property
    def function(self) -> CompiledFunction:
        """The compiled function: its plans tell what was done."""
        return self._function

    def draws(self) -> bool:
        """Whether a forward pass, as the modules stand, draws random numbers."""
        return any(m.training and (_held(m, "dropout") or _held(m, "value_dropout")) for m in self.modules())

    def _describe(self, builder: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
        frame = self._frame(builder, inputs, training)
        result = self.define(frame, frame.x)
        return {"out": result, **frame.outputs}

    def _frame(self, builder: Builder, inputs: dict[str, Value], training: bool) -> Frame:
        named = (*self.named_modules(), *self.named_buffers(), *tensors_of(self).items())
        names = {id(item): name for name, item in named}
        return Frame(builder, inputs, names, training)

    def store(self, extra: Mapping[str, Tensor], rows: Callable[[str], int]) -> None:
        """Moves running statistics of batch norms towards the batch's, taken over ``rows`` of the norm's name."""
        # by momentum and share of the variance: running numbers and the batch's
        moves: dict[tuple[float, float], tuple[list[Tensor], ...]] = {}
        norms = [key.removesuffix(".stats") for key in extra if key.endswith(".stats")]
        if not norms:
            return
        with torch.no_grad():
            for name in norms:
                module = self.get_submodule(name)
                if not isinstance(module, nn.BatchNorm1d):
                    continue
                if module.running_mean is None or module.running_var is None:
                    continue
                assert module.num_batches_tracked is not None  # torch counts where it keeps statistics
                momentum, count = module.momentum, rows(name)
                if momentum is None:  # the mean over all batches so far
                    momentum = 1.0 / (float(module.num_batches_tracked) + 1)
                stats = extra[f"{name}.stats"].detach()
                if norms_on_cpu.track(stats, count, momentum, module.running_mean, module.running_var):
                    module.num_batches_tracked += 1
                    continue
                mean, variance = stats.unbind()
                key = momentum, count / max(count - 1, 1)
                parts = (module.num_batches_tracked, module.running_mean, mean, module.running_var, variance)
                for part, every in zip(parts, moves.setdefault(key, ([], [], [], [], [])), strict=True):
                    every.append(part)
            for (momentum, share), (counts, means, found, variances, spread) in moves.items():
                foreach_add(counts, 1)
                foreach_lerp([*means, *variances], [*found, *foreach_mul(spread, share)], momentum)

    def tracked(self, extra: Mapping[str, Tensor]) -> norms_on_cpu.Tracked | None:
        """What :meth:`store` does for outputs that stay where they are; None where it has more to look at."""
        norms = {key.removesuffix(".stats"): x for key, x in extra.items() if key.endswith(".stats")}
        found = [(self.get_submodule(name), x) for name, x in norms.items()]
        if any(not isinstance(module, nn.BatchNorm1d) for module, _ in found):
            return None
        return norms_on_cpu.Tracked.of(found)  # type: ignore[arg-type]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._remade(copy.deepcopy(self._state(), memo), memo)  # torch has parametrized modules copied, too

    def __getstate__(self) -> dict[str, Any]:
        return self._state()

    def _state(self) -> dict[str, Any]:
        """All attributes but those that are compiled."""
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


def _held(module: nn.Module, name: str) -> Any:
    """An attribute, 0 for none; torch takes long to say that a module has none."""
    if name in module.__dict__:
        return module.__dict__[name]
    return getattr(module, name, 0.0) if name in module._modules or hasattr(type(module), name) else 0.0


def _dense(who: str, x: SparseFeatures | Int8Features) -> Tensor:
    """Dense rows, declared constant where the sparse ones are."""
    (made,) = dense_rows(who, x, kept=True)
    return constant(made) if is_declared(x) else made


def check_blocks(who: str, blocks: Sequence[Block], layers: int) -> None:
    """One block per layer, each one's destinations the next one's sources. Raises: ShapeError."""
    if not isinstance(blocks, list | tuple) or not all(isinstance(block, Block) for block in blocks):
        got = type(blocks).__name__
        remedy = "; call model(graph, x), and gw.Graph(edge_index) makes a graph" if isinstance(blocks, Tensor) else ""
        raise ShapeError(f"{who}: expected a graphweft Graph first, or the blocks of a batch, got {got}{remedy}")
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


def as_widths(in_features: int | Sequence[int]) -> tuple[int, int]:
    """(width of the sources' features, width of the destinations'). Raises: ConfigError for more or fewer than two."""
    if isinstance(in_features, int):
        return in_features, in_features
    if not isinstance(in_features, tuple | list) or len(in_features) != 2:
        raise ConfigError(
            f"in_features: expected an integer, or a pair of them for (x_src, x_dst), got {in_features!r}"
        )
    return in_features[0], in_features[1]


def reducer(who: str, reduce: str | None, aggr: str | None, usual: str) -> str:
    """The reducer that a constructor was given under either name, ``usual`` where it was given none.

    Raises: ConfigError for both names. ``CompiledModule`` refuses them where both are keywords.
    """
    if aggr is None:
        return usual if reduce is None else reduce
    if reduce not in (None, usual):
        raise ConfigError(f"{who}: reduce={reduce!r} cannot be combined with aggr={aggr!r}, which means the same")
    return "sum" if aggr == "add" else aggr


def check_model(
    name: str, sizes: Mapping[str, Any], dropout: float, reduce: str, reducers: Sequence[str] = REDUCERS
) -> None:
    """Sizes are positive, dropout is a probability below 1, the reducer is known. Raises: ConfigError."""
    parts = sizes.items()
    if isinstance(given := sizes.get("in_features"), tuple | list):
        source, own = as_widths(given)
        parts = {**sizes, "in_features": source, "in_features[1]": own}.items()
    for what, size in parts:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            remedy = f"; int({what}) is one" if (as_integer(size) or 0) > 0 else ""
            raise ConfigError(f"{name}: expected {what} >= 1, got {size!r}{remedy}")
    share: Any = as_plain(dropout)
    if not isinstance(share, int | float) or not 0.0 <= share < 1.0:
        raise ConfigError(f"{name}: expected dropout in [0, 1), got {dropout!r}")
    if reduce not in reducers:
        raise ConfigError(f"{name}: expected reduce among {', '.join(reducers)}, got {reduce!r}")
