"""From rows of nodes to rows of graphs: sums, means, maxima, attention and Set2Set over the nodes of each graph.

Comes in: rows of the nodes of many graphs side by side, and the offsets of the graphs. Goes out: one row a graph. The
sums run on the kernels of message passing, over the bipartite graph whose destinations are graphs and whose sources
are their nodes; it lies there sorted, as nodes come graph after graph.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graphweft._errors import ConfigError, DtypeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.graph.side_by_side import members, owners
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.nn.module import REDUCERS
from graphweft.runtime.compile import Arguments, CompiledFunction
from graphweft.runtime.repeated import Repeated

_WHO = "readout"


def readout(
    x: Float[Tensor, "nodes *columns"], ptr: Int64[Tensor, "offsets"], kind: str = "sum"
) -> Float[Tensor, "graphs *columns"]:
    """Sum, mean or max over the rows of each graph; zeros for a graph without nodes.

    Shape: x (N, ...) float32 or float64, ptr (graphs + 1,) int64 rising from 0 to N -> (graphs, ...).

    Args:
        x: Rows of the nodes, graph after graph.
        ptr: Graph i has rows ``ptr[i]`` to ``ptr[i + 1]``; ``batch.ptr`` of a :class:`gw.GraphLoader`.
        kind: "sum", "mean" or "max".

    Raises: ConfigError for another kind; ShapeError, DtypeError for rows or offsets that do not fit.

    Example:
        >>> readout(torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([0, 2, 3]), "mean").tolist()
        [[1.5], [5.0]]
    """
    if kind not in REDUCERS:
        raise ConfigError(f"{_WHO}: expected kind among {', '.join(REDUCERS)}, got {kind!r}")
    check_ptr(_WHO, x, ptr)
    flat = x.reshape(x.shape[0], -1) if x.dim() != 2 else x
    return _over(flat, members(ptr), kind).reshape(ptr.numel() - 1, *x.shape[1:])


def _over(x: Tensor, of_graphs: Graph, kind: str) -> Tensor:
    """The same of rows (N, C), by the graph that leads from nodes to their graphs."""
    return _FUNCTIONS[kind](Arguments(of_graphs, x, {}, None, 0, False))["out"]


def graph_softmax(x: Float[Tensor, "nodes c"], ptr: Int64[Tensor, "offsets"]) -> Float[Tensor, "nodes c"]:
    """Softmax over the rows of each graph, column by column.

    Shape: x (N, C), ptr (graphs + 1,) -> (N, C).

    Example:
        >>> graph_softmax(torch.zeros(3, 1), torch.tensor([0, 2, 3])).tolist()
        [[0.5], [0.5], [1.0]]
    """
    whose = owners(ptr)
    shifted = (x - readout(x.detach(), ptr, "max")[whose]).exp()
    return shifted / readout(shifted, ptr, "sum")[whose]


class Readout(nn.Module):
    """:func:`readout` as a module, or several of them side by side.

    Args:
        kinds: "sum", "mean" or "max", or some of them joined by "+", such as "mean+max".

    Raises: ConfigError for another kind.

    Example:
        >>> Readout("sum+max")(torch.ones(3, 2), torch.tensor([0, 2, 3])).tolist()
        [[2.0, 2.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    """

    def __init__(self, kinds: str = "sum") -> None:
        super().__init__()
        self.kinds = tuple(kinds.split("+")) if isinstance(kinds, str) else ()
        if not self.kinds or any(kind not in REDUCERS for kind in self.kinds):
            raise ConfigError(f"Readout: expected kinds among {', '.join(REDUCERS)}, joined by +, got {kinds!r}")

    def forward(self, x: Float[Tensor, "nodes c"], ptr: Int64[Tensor, "offsets"]) -> Float[Tensor, "graphs columns"]:
        """Shape: x (N, C), ptr (graphs + 1,) -> (graphs, C * kinds)."""
        check_ptr(_WHO, x, ptr)
        if x.dim() != 2:
            return torch.cat([readout(x, ptr, kind) for kind in self.kinds], dim=1)
        return self.over(x, members(ptr))

    def over(self, x: Float[Tensor, "nodes c"], of_graphs: Graph) -> Float[Tensor, "graphs columns"]:
        """As :meth:`forward`, where the graph that leads from nodes to their graphs is at hand."""
        made = [_over(x, of_graphs, kind) for kind in self.kinds]
        return made[0] if len(made) == 1 else torch.cat(made, dim=1)

    def repeated(self, wants_gradient: bool) -> list[Repeated]:
        """The calls over batches of rows, kind by kind; ``wants_gradient``: by the rows."""
        x = torch.zeros(1, 1).requires_grad_(wants_gradient)
        arguments = Arguments(members(torch.tensor([0, 1])), x, {}, None, 0, False)
        return [Repeated(_FUNCTIONS[kind], arguments) for kind in self.kinds]

    def width(self, columns: int) -> int:
        """Columns of the result for rows of ``columns`` columns."""
        return columns * len(self.kinds)

    def extra_repr(self) -> str:
        """The kinds."""
        return "+".join(self.kinds)


class AttentionPool(nn.Module):
    """Weighted sums over the nodes of each graph, weighted by a softmax of learned scores (Li et al., ICLR 2016).

    ``sum_v softmax(gate(x_v)) * transform(x_v)``.

    Args:
        gate: A module from rows (N, C) to scores (N, 1), or to one score per column.
        transform: A module applied to the rows; None: the rows as they are.

    Example:
        >>> AttentionPool(nn.Linear(4, 1))(torch.ones(3, 4), torch.tensor([0, 2, 3])).shape
        torch.Size([2, 4])
    """

    def __init__(self, gate: nn.Module, transform: nn.Module | None = None) -> None:
        super().__init__()
        self.gate, self.transform = gate, transform

    def forward(self, x: Float[Tensor, "nodes c"], ptr: Int64[Tensor, "offsets"]) -> Float[Tensor, "graphs columns"]:
        """Shape: x (N, C), ptr (graphs + 1,) -> (graphs, columns of the transform).

        Raises: ShapeError for scores of another shape.
        """
        scores = self.gate(x)
        rows = x if self.transform is None else self.transform(x)
        if scores.shape[0] != x.shape[0] or scores.dim() != 2 or scores.shape[1] not in (1, rows.shape[1]):
            expected = f"({x.shape[0]}, 1) or {tuple(rows.shape)}"
            raise ShapeError(f"AttentionPool: expected scores of shape {expected}, got {tuple(scores.shape)}")
        return readout(graph_softmax(scores, ptr) * rows, ptr, "sum")


class Set2Set(nn.Module):
    """An LSTM that reads the nodes of each graph by attention in several steps (Vinyals, Bengio, Kudlur, ICLR 2016).

    Args:
        width: Columns of the rows.
        steps: Number of reading steps.
        num_layers: Layers of the LSTM.

    Example:
        >>> Set2Set(4, steps=2)(torch.ones(3, 4), torch.tensor([0, 2, 3])).shape
        torch.Size([2, 8])
    """

    def __init__(self, width: int, steps: int = 3, num_layers: int = 1) -> None:
        super().__init__()
        for name, size in (("width", width), ("steps", steps), ("num_layers", num_layers)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ConfigError(f"Set2Set: expected {name} >= 1, got {size!r}")
        self._width, self.steps = width, steps
        self.lstm = nn.LSTM(2 * width, width, num_layers)

    def forward(self, x: Float[Tensor, "nodes c"], ptr: Int64[Tensor, "offsets"]) -> Float[Tensor, "graphs columns"]:
        """Shape: x (N, width), ptr (graphs + 1,) -> (graphs, 2 * width)."""
        check_ptr("Set2Set", x, ptr)
        if x.dim() != 2 or x.shape[1] != self._width:
            raise ShapeError(f"Set2Set: expected rows of {self._width} columns, got shape {tuple(x.shape)}")
        graphs, whose = ptr.numel() - 1, owners(ptr)
        state = tuple(x.new_zeros(self.lstm.num_layers, graphs, self._width) for _ in range(2))
        read = x.new_zeros(graphs, 2 * self._width)
        for _ in range(self.steps):
            query, state = self.lstm(read[None], state)
            weights = graph_softmax((x * query[0][whose]).sum(1, keepdim=True), ptr)
            read = torch.cat([query[0], readout(weights * x, ptr, "sum")], dim=1)
        return read

    def width(self, columns: int) -> int:
        """Columns of the result."""
        return 2 * columns


def check_ptr(who: str, x: Tensor, ptr: Tensor) -> None:
    """``ptr`` are offsets over the rows of ``x``. Raises: ShapeError, DtypeError."""
    if not isinstance(ptr, Tensor) or ptr.dtype != torch.int64 or ptr.dim() != 1 or ptr.numel() < 1:
        got = f"{ptr.dtype} {tuple(ptr.shape)}" if isinstance(ptr, Tensor) else type(ptr).__name__
        raise ShapeError(f"{who}: expected ptr as int64 offsets of graphs, batch.ptr, got {got}")
    if x.dtype not in (torch.float32, torch.float64):
        raise DtypeError(f"{who}: expected float32 or float64 rows, got {x.dtype}")
    rows = x.shape[0] if x.dim() else 0
    if int(ptr[0]) != 0 or int(ptr[-1]) != rows or bool((ptr[1:] < ptr[:-1]).any()):
        raise ShapeError(f"{who}: expected offsets that rise from 0 to {rows}, got {int(ptr[0])} to {int(ptr[-1])}")


def _describe(kind: str, builder: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
    rows = builder.add(Op.BROADCAST_SRC, inputs["graph"], inputs["x"])
    return {"out": builder.add(Op.REDUCE, inputs["graph"], rows, kind=kind)}


_FUNCTIONS = {kind: CompiledFunction(functools.partial(_describe, kind)) for kind in REDUCERS}

__all__ = ["AttentionPool", "Readout", "Set2Set", "check_ptr", "graph_softmax", "readout"]
