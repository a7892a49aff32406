"""Fingerprints of memory: one for equal bytes wherever they lie, another for any change."""

import numpy as np
import pytest
import torch

from graphweft.storage.fingerprint import fingerprint

SIZES = (1, 7, 63, 64, 65, 128, 1000, 4096, (1 << 18) + 77)


def _at(offset: int, content: np.ndarray) -> torch.Tensor:
    """``content`` in memory that lies ``offset`` bytes past a multiple of 64."""
    room = np.zeros(content.size + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    place = room[start : start + content.size]
    place[:] = content
    assert place.ctypes.data % 64 == offset
    return torch.from_numpy(place)


@pytest.mark.parametrize("size", SIZES)
def test_equal_bytes_at_any_address_have_one_fingerprint(size: int) -> None:
    content = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert len({fingerprint(_at(offset, content)) for offset in range(64)}) == 1


@pytest.mark.parametrize("size", SIZES)
def test_every_changed_byte_changes_it(size: int) -> None:
    rng = np.random.default_rng(size)
    content = rng.integers(0, 256, size, dtype=np.uint8)
    tensor = torch.from_numpy(content)
    found = {fingerprint(tensor)}
    places = range(size) if size <= 1000 else rng.choice(size, 300, replace=False)
    for place in places:
        content[place] ^= 1 << int(rng.integers(8))
        found.add(fingerprint(tensor))
    assert len(found) == 1 + len(places)


def test_swapped_stripes_change_it() -> None:
    content = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 1024, dtype=np.uint8))
    swapped = content.reshape(16, 64)[[1, 0, *range(2, 16)]].reshape(-1)
    assert fingerprint(content) != fingerprint(swapped)
