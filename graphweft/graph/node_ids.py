"""Nodes whose ids are not 0, 1, 2, ...: large numbers, numbers with gaps, texts.

Comes in: ids of any kind. Goes out: node numbers, and :class:`NodeIds`, which leads back. Called by ``Graph.from_ids``
and the readers of text files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._errors import DtypeError, IndexRangeError, ShapeError
from graphweft.graph.ids import to_array

_WHO = "Graph.from_ids"


class NodeIds:
    """The ids of nodes: ``ids[v]`` is the id of node ``v``, and ``ids.nodes(id)`` is the node of an id.

    Attributes:
        values: (N,) integers or texts, one per node, each once.

    Raises: DtypeError for ids that are neither integers nor texts, ShapeError for an id that occurs twice.

    Example:
        >>> ids = NodeIds(["ann", "bob", "eve"])
        >>> ids[1], ids.nodes(["eve", "ann"]).tolist(), len(ids)
        ('bob', [2, 0], 3)
    """

    def __init__(self, values: Any) -> None:
        self.values = as_id_array(_WHO, "nodes", values)
        order: NDArray[np.int64] = np.argsort(self.values, kind="stable")
        self._sorted = self.values[order]
        self._order = order
        twice = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if twice.size:
            raise ShapeError(f"{_WHO}: expected every node once, got {self._sorted[twice[0]].item()!r} twice")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, nodes: Any) -> Any:
        """The id of a node, or of several nodes as an array."""
        found = self.values[nodes.cpu().numpy() if isinstance(nodes, torch.Tensor) else nodes]
        return found.item() if isinstance(found, np.generic) else found

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values.tolist())

    def nodes(self, ids: Any) -> torch.Tensor:
        """int64 numbers of the nodes with these ids: a vector, or a number for one id.

        Raises: IndexRangeError that names the first id that no node has.
        """
        wanted = as_id_array("NodeIds.nodes", "ids", [ids] if isinstance(ids, str | int) else ids)
        if (
            wanted.size
            and wanted.dtype.kind != self.values.dtype.kind
            and "U"
            in (
                wanted.dtype.kind,
                self.values.dtype.kind,
            )
        ):
            raise DtypeError(f"NodeIds.nodes: expected ids of {self.values.dtype}, got {wanted.dtype}")
        place = np.searchsorted(self._sorted, wanted)
        known = place < len(self)
        known[known] = self._sorted[place[known]] == wanted[known]
        if not known.all():
            at = int(np.flatnonzero(~known)[0])
            raise IndexRangeError(f"NodeIds.nodes: expected ids of nodes, got {wanted[at].item()!r} at position {at}")
        found = torch.from_numpy(self._order[place].astype(np.int64))
        return found[0] if isinstance(ids, str | int) else found

    def __repr__(self) -> str:
        few = ", ".join(repr(value) for value in self.values[:3].tolist())
        return f"NodeIds([{few}{', ...' if len(self) > 3 else ''}], {len(self)} nodes)"


def number_ids(src: Any, dst: Any, nodes: Any = None) -> tuple[torch.Tensor, torch.Tensor, NodeIds]:
    """Node numbers of both ends of every edge, and the ids of the nodes: ``nodes``, or all ids in ascending order.

    Raises: DtypeError, ShapeError; IndexRangeError for an id that is not among ``nodes``.

    Example:
        >>> src, dst, ids = number_ids(["b", "c"], ["c", "a"])
        >>> src.tolist(), dst.tolist(), ids.values.tolist()
        ([1, 2], [2, 0], ['a', 'b', 'c'])
    """
    first, second = as_id_array(_WHO, "src", src), as_id_array(_WHO, "dst", dst)
    if len(first) != len(second):
        raise ShapeError(f"{_WHO}: expected src and dst of one length, got {len(first)} and {len(second)}")
    if len(first) and ("U" in (first.dtype.kind, second.dtype.kind)) and first.dtype.kind != second.dtype.kind:
        raise DtypeError(f"{_WHO}: expected src and dst of one kind, got {first.dtype} and {second.dtype}")
    if nodes is not None:
        ids = NodeIds(nodes)
        return ids.nodes(first), ids.nodes(second), ids
    values, places = np.unique(np.concatenate([first, second]), return_inverse=True)
    numbers = torch.from_numpy(places.reshape(-1).astype(np.int64))
    return numbers[: len(first)], numbers[len(first) :], NodeIds(values)


def as_id_array(who: str, name: str, value: Any) -> NDArray[Any]:
    """``value`` as a vector of integers or texts.

    Raises: DtypeError for ids of another kind, ids of several kinds or missing ones; ShapeError for another shape.
    """
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else to_array(who, name, value)
    if array.ndim != 1:
        raise ShapeError(f"{who}: expected {name} with 1 dimension, got shape {array.shape}")
    if array.size == 0:
        return array.astype(np.int64) if array.dtype.kind not in "iuU" else array
    if isinstance(value, list | tuple) and array.dtype.kind == "U":
        array = np.array(value, dtype=object)  # NumPy makes texts of what is mixed with texts
    if array.dtype.kind == "O":
        array = _of_one_kind(who, name, array)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind not in "iuU":
        raise DtypeError(f"{who}: expected {name} of integers or texts, got {array.dtype}")
    return array


def _of_one_kind(who: str, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Python objects as one array of integers or of texts."""
    kinds = {str if isinstance(item, str) else type(item) for item in array.tolist()}
    if kinds == {str}:
        return array.astype(np.str_)
    if kinds and all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        try:
            return array.astype(np.int64)
        except OverflowError:
            raise DtypeError(f"{who}: expected {name} that fit 64 bits, got larger integers; str(id) fits") from None
    named = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DtypeError(f"{who}: expected {name} of integers or of texts alone, got {named}")
