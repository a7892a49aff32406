"""Stand-ins in the place of a module's parameters and buffers while it is recorded, and buffers that forward replaces.

Comes in: a module, where its tensors are held, and stand-ins by source. Goes out: a context, and the names of buffers
that forward put other tensors of their kind in the place of, as ``self.average = 0.9 * self.average + ...`` does.
Called by ``compiled_call.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from graphweft.frontend.layout import UnraisableError

Slots = dict[str, Any]


class StandIns:
    """Those of one recording.

    Args:
        module: The module.
        place: Finds what holds a parameter or buffer, and its name there.

    Attributes:
        replaced: Buffers that were replaced, as (module, name), known once :meth:`values` was asked.
    """

    def __init__(self, module: nn.Module, place: Callable[[str, str], tuple[Slots, str]]) -> None:
        self._module, self._place = module, place
        self._inside: list[tuple[str, Slots, Slots]] = []
        self.replaced: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def held(self, stand_ins: Mapping[tuple[str, Any], Tensor]) -> Iterator[None]:
        """Inside, stand-ins are where parameters and buffers are.

        Raises: UnraisableError where others were put in their place, but for buffers that were asked for.
        """
        inner = list(self._module.named_modules())
        owners: list[tuple[str, Any]] = [
            (path, part) for path, one in inner for part in (one._parameters, one._buffers)
        ]
        before = [(slots, dict(slots)) for _, slots in owners]
        try:
            for source, tensor in stand_ins.items():
                holder, last = self._place(*source)
                holder[last] = tensor
            self._inside = [(path, slots, dict(slots)) for path, slots in owners]
            yield
            if not all(self._stands(*part) for part in self._inside):
                name = type(self._module).__name__
                raise UnraisableError(f"forward of {name}, which replaces buffers or parameters")
        finally:
            for slots, kept in before:
                slots.clear()
                slots.update(kept)

    def _stands(self, path: str, slots: Slots, items: Slots) -> bool:
        """Whether what was put there is there, but for buffers that were asked for."""
        same = (slots.get(name) is item or (path, name) in self.replaced for name, item in items.items())
        return slots.keys() == items.keys() and all(same)

    def values(self, moving: Callable[[Tensor], bool]) -> list[Tensor]:
        """What stands in the place of replaced buffers; ``moving``: whether a tensor differs from call to call."""
        self.replaced, found = [], []
        of_buffers = {id(one._buffers) for one in self._module.modules()}
        for path, slots, items in self._inside:
            for name, old in items.items():
                new: Any = slots.get(name)
                if new is old or id(slots) not in of_buffers or not _alike(new, old) or not moving(new):
                    continue
                self.replaced.append((path, name))
                found.append(new)
        return found


def _alike(new: Any, old: Any) -> bool:
    """Whether a tensor is of another's kind."""
    both = isinstance(new, Tensor) and isinstance(old, Tensor)
    return both and new.shape == old.shape and new.dtype == old.dtype


__all__ = ["StandIns"]
