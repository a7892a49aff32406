"""Products of sparse features on a device, by the kernel that sums rows over edges.

Comes in: :class:`SparseFeatures`, whose arrays are sent once and kept with them, and matrices on a device. Goes out:
rows there. Stored entries are edges from columns to rows with a weight, so that columns of many entries are summed by
pieces, too. Registered in ``target.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.graph.placed import on_device
from graphweft.ir.program import Value
from graphweft.runtime.cuda import edges, kernels, products
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch
from graphweft.storage.feature import SparseFeatures

_BLOCK = 1024


class Dropped:
    """Sparse features with dropout of their stored entries, which is drawn where they are read.

    Args:
        base: The features.
        p: Share that is dropped.
        seed: A number, or on the device.
        stream: As of dense rows: the elements that are kept are the same.
    """

    def __init__(self, base: SparseFeatures, p: float, seed: int | Tensor, stream: int) -> None:
        self.base, self.p, self.seed, self.stream = base, p, seed, stream

    def values(self, by_column: bool, place: torch.device) -> Tensor:
        """Those of the entries that are kept, and zeros."""
        given, columns = _values(self.base, by_column, place), _structure(self.base, by_column).csc.to(place).indices
        made, rows = torch.empty_like(given), _rows(self.base, by_column, place)
        kernels.drop_entries(
            (-(-given.numel() // _BLOCK),),
            given,
            rows,
            columns,
            made,
            given.numel(),
            *edges.draw_words(self.seed, self.stream),
            FACTOR=1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0,
            F=self.base.width,
            TURNED=by_column,
            THRESHOLD=int(self.p * 65536.0 + 0.5),
            BLOCK=_BLOCK,
            warps=4,
        )
        return made

    def take_rows(self, rows: Tensor, place: torch.device) -> SparseFeatures:
        """Rows ``rows[i]`` one after the other, with the dropout of the nodes that they are."""
        return self.base.with_values(self.values(False, place).cpu()).take_rows(rows.cpu())


def _structure(x: SparseFeatures, by_column: bool) -> Graph:
    """Stored entries as edges from columns to rows, or from rows to columns."""
    if by_column not in x.beside:
        x.beside[by_column] = Graph.from_adjacency(x.transposed[0] if by_column else x.adjacency, bipartite=True)
    found: Graph = x.beside[by_column]
    return found


def _values(x: SparseFeatures, by_column: bool, place: torch.device) -> Tensor:
    """Those of the entries, on the device; sent again where torch saw a change."""
    values, key = x.transposed[1] if by_column else x.values, ("values", by_column, place)
    version = 0 if values.is_inference() else values._version
    if key not in x.beside or x.beside[key][1] != version:
        x.beside[key] = values.to(place), version
    found: Tensor = x.beside[key][0]
    return found


def _rows(x: SparseFeatures, by_column: bool, place: torch.device) -> Tensor:
    """The row of every entry, on the device."""
    key = ("rows", by_column, place)
    if key not in x.beside:
        structure = _structure(x, by_column).csc
        numbers = torch.arange(structure.num_rows, dtype=structure.indices.dtype)
        x.beside[key] = numbers.repeat_interleave(structure.degrees()).to(place)
    found: Tensor = x.beside[key]
    return found


def sparse_matmul(call: KernelCall) -> Launch:
    """Sparse features, or their transpose, times a matrix."""
    a, b, out, epilogue = call.operand("x"), call.operand("weight"), call.writes[0].at, products.Epilogue(call)
    by_column, transposed = bool(call.get("by_column")), call.get("transposed")

    def run(slots: Slots) -> None:
        given, right = slots[a], slots[b].t() if transposed else slots[b]
        base = given.base if isinstance(given, Dropped) else given
        graph, place = on_device(_structure(base, by_column), right.device), right.device
        values = given.values(by_column, place) if isinstance(given, Dropped) else _values(base, by_column, place)
        slots[out] = epilogue.run(
            slots, lambda stages, relu: edges.sum_edges(graph, right, values, given=stages, relu=relu)
        )

    return run


def dropout(value: Value, x: Any, seed: int | Tensor) -> Any:
    """Dropout by place; of sparse features it is drawn where their entries are read."""
    p, stream = value["p"], value["stream"]
    return Dropped(x, p, seed, stream) if value.inputs[0].tensor.sparse else edges.dropout(x, p, seed, stream)


def sent_bytes(x: SparseFeatures, draws: bool) -> int:
    """Bytes that a device holds of features that train there: by rows and by columns; ``draws``: with dropout."""
    entries = x.values.element_size() + x.indices.element_size() * (2 if draws else 1)
    return 2 * x.nnz * entries + x.indptr.element_size() * (x.num_rows + x.width + 2)


def take_rows(value: Any, x: Any, rows: Tensor) -> Any:
    """Rows of dense or of sparse features."""
    if isinstance(x, Dropped):
        return x.take_rows(rows, rows.device)
    return x.take_rows(rows.cpu()) if isinstance(x, SparseFeatures) else x.index_select(0, rows)


__all__ = ["Dropped", "dropout", "sent_bytes", "sparse_matmul", "take_rows"]
