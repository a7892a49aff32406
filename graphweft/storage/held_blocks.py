"""Blocks of a store's parts that stay in memory until they are read again.

Comes in: which parts are to stay. Goes out: their blocks, once they were read. Called by
:class:`graphweft.storage.store.Store`; which parts stay follows from the order of an epoch
(:mod:`graphweft.loader.part_order`).
"""

from __future__ import annotations

from collections.abc import Set

from torch import Tensor


class HeldBlocks:
    """Blocks by part and name.

    Example:
        >>> import torch
        >>> held = HeldBlocks()
        >>> held.hold({3}, ())
        >>> held.put(3, "y", torch.arange(2), shared=False), held.put(4, "y", torch.arange(2), shared=False)
        (None, None)
        >>> held.get(3, "y"), held.get(4, "y"), held.nbytes
        (tensor([0, 1]), None, 16)
    """

    def __init__(self) -> None:
        self._keep: Set[int] = frozenset()
        self._blocks: dict[tuple[int, str], Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in list(self._blocks.values()))

    def hold(self, keep: Set[int], reading: tuple[int, ...]) -> None:
        """Parts of ``keep`` stay once they are read; of the others only those of ``reading``, for one more read."""
        self._keep = keep
        for key in [key for key in self._blocks if key[0] not in keep and key[0] not in reading]:
            del self._blocks[key]

    def get(self, number: int, name: str) -> Tensor | None:
        """A block, which leaves with this where its part is not to stay."""
        if number in self._keep:
            return self._blocks.get((number, name))
        return self._blocks.pop((number, name), None)

    def has(self, number: int, name: str) -> bool:
        """Whether a block is there."""
        return (number, name) in self._blocks

    def once(self, number: int, name: str, block: Tensor) -> None:
        """A block that was read before it is asked for: it stays until then, and longer where its part is to stay."""
        self._blocks[number, name] = block

    def put(self, number: int, name: str, block: Tensor, *, shared: bool) -> None:
        """A block that was read; it is copied where others write to its memory."""
        if number in self._keep:
            self._blocks[number, name] = block.clone() if shared else block


__all__ = ["HeldBlocks"]
