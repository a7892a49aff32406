"""The split that an archive of arrays has: masks, lists of ids under the names that people give them, or folds.

Comes in: an open archive and its labels. Goes out: row ids of the three parts. Called by the readers of archives.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.readers.archive import NpzArchive
from graphweft.data.readers.assemble import (
    Array,
    Labels,
    ReadOptions,
    Split,
    listed_rows,
    mask_idx,
    random_split,
    split_number,
)

_PARTS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
_LISTS = ("{}_idx", "{}_index", "{}_indices", "{}_ids", "idx_{}")


def read_split(archive: NpzArchive, found: Labels, options: ReadOptions) -> Split:
    """The split of the masks, of lists of ids, or of ``fold``; at random by seed where the file has none.

    Raises: DataError naming the member at fault.
    """
    rows, number = found.y.shape[0], split_number(options.split)
    given = given_split(archive, rows, number)
    if given is not None:
        return given
    if "fold" in archive:
        return fold_split(archive.array("fold", (rows,), "iu"), number)
    return random_split(found, options.seed)


def given_split(archive: NpzArchive, rows: int, number: int = 0) -> Split | None:
    """The split of masks or lists of ids of ``rows`` rows; None where the file has neither.

    Masks are called ``train_mask``, ``val_mask`` or ``valid_mask`` and so on, lists ``train_idx``, ``train_index``,
    ``idx_train`` and so on, or ``train``, ``valid`` and ``test`` as in a saved ``split_idx`` of OGB. ``number``: which
    one, of masks of several splits.

    Raises: DataError naming the member at fault.
    """
    members = {part: _members(archive, names) for part, names in _PARTS.items()}
    if not any(members.values()):
        return None
    if not members["train"]:
        part, beside = next((part, names[0]) for part, names in members.items() if names)
        word = next(word for word in _PARTS[part] if word in beside.split("_"))
        raise DataError(f"{beside.replace(word, 'train')}: expected it beside {beside}, got none")
    return Split(**{part: _rows(archive, names, rows, number) for part, names in members.items()})


def _members(archive: NpzArchive, words: tuple[str, ...]) -> list[str]:
    """The members of one part: a list of ids, a mask, or both, the list first. Raises: DataError for two of a kind."""
    lists = [form.format(word) for word in words for form in _LISTS if form.format(word) in archive]
    masks = [f"{word}_mask" for word in words if f"{word}_mask" in archive]
    if not lists and not masks and _is_saved_split(archive):
        lists = [word for word in words if word in archive]
    for several in (lists, masks):
        if len(several) > 1:
            raise DataError(f"{several[0]}: expected one list of this part, got {several[1]} as well")
    return [*lists, *masks]


def _is_saved_split(archive: NpzArchive) -> bool:
    """Whether members called as parts are lists of ids: one to train on and one more, vectors of whole numbers."""
    named = [word for words in _PARTS.values() for word in words if word in archive]
    headers = [archive.header(word) for word in named]
    return "train" in named and len(named) > 1 and all(h.dtype.kind in "biu" and len(h.shape) == 1 for h in headers)


def _rows(archive: NpzArchive, members: list[str], rows: int, number: int) -> Tensor:
    """Ids of one part, none where it has no member; a list has the order that a mask beside it has lost."""
    if not members:
        return torch.empty(0, dtype=torch.int64)
    first, *others = members
    if first.endswith("_mask"):
        return mask_idx(first, archive.array(first), rows, number)
    for other in others:
        archive.leave_out(other)
    header = archive.header(first)
    if header.dtype.kind == "b":
        return mask_idx(first, archive.array(first), rows, number)
    kinds = "iuf" if header.shape == (0,) else "iu"  # NumPy's empty list is one of floats
    array = archive.array(first, (None,), kinds)
    if rows > 2 and len(array) == rows and int(array.max()) <= 1:
        raise DataError(f"{first}: expected ids of rows, got 0 or 1 for every row; a mask is called {_as_mask(first)}")
    return listed_rows(first, array.astype(np.int64) if not array.size else array, rows)


def _as_mask(member: str) -> str:
    """What a mask of the part is called that ``member`` lists."""
    part = next(part for part, words in _PARTS.items() if any(word in member.split("_") for word in words))
    return f"{part}_mask"


def fold_split(fold: Array, number: int) -> Split:
    """Cross-validation: fold ``number`` is tested, the next one validates, the rest (and rows of no fold) trains."""
    folds = [int(value) for value in np.unique(fold) if value >= 0]
    if not 0 <= number < len(folds):
        raise DataError(f"split: expected a number in [0, {len(folds)}), got {number}")
    test = fold == folds[number]
    val = (fold == folds[(number + 1) % len(folds)]) & ~test
    return Split(*(torch.from_numpy(np.flatnonzero(part)) for part in (~test & ~val, val, test)))
