"""Blocks of a part that are read together: few large requests in place of some for each block.

Comes in: the blocks of a part in the order of its file, and names of those that are wanted. Goes out: runs of blocks,
each to be read as one span of the file. A pure function, called by :class:`graphweft.storage.store.Store`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graphweft.storage.store_format import Block, aligned

_VAIN = 25  # one in so many wanted bytes is read in vain, at most: blocks that lie between
_COPIED = 4 << 20  # bytes of a run that begins with features, which are copied to their group


def runs(blocks: Sequence[Block], names: Collection[str]) -> list[tuple[Block, ...]]:
    """The wanted blocks in runs; one that is read as well alone is a run of its own.

    Args:
        blocks: In the order of the file.
        names: Of the wanted ones.

    Example:
        >>> from graphweft.storage.store_format import Shape, layout
        >>> blocks = layout(Shape(32, "float32", "int32", "int64", 0), 2000, 10_000)
        >>> [[block.name for block in run] for run in runs(blocks, ("x", "y", "indptr", "indices"))]
        [['x', 'y'], ['indptr', 'indices']]
        >>> blocks = layout(Shape(128, "float32", "int32", "int64", 0), 2000, 10_000)
        >>> [[block.name for block in run] for run in runs(blocks, ("x", "y", "indptr", "indices"))]
        [['x', 'y', 'indptr', 'indices']]
    """
    wanted = [block for block in blocks if block.name in names and block.nbytes]
    spare = sum(block.nbytes for block in wanted) // _VAIN
    found: list[list[Block]] = []
    for block in wanted:
        if found:
            run = found[-1]
            gap = block.offset - aligned(_end(run[-1]))
            is_copied = run[0].name == "x"
            if gap <= spare and not (is_copied and _end(block) - run[0].offset > _COPIED):
                spare -= gap
                run.append(block)
                continue
        found.append([block])
    return [tuple(run) for run in found]


def _end(block: Block) -> int:
    return block.offset + block.nbytes


__all__ = ["runs"]
