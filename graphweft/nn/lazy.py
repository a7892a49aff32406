"""Modules whose width of features is left open: ``gw.nn.GCN(-1, 64, 8)``.

Comes in: arguments of a constructor with -1 for ``in_features``, or for one of a pair. Goes out: a module without
parameters that becomes what was asked for at its first call, by the features that come. Called by ``module.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from graphweft._errors import ConfigError, ShapeError
from graphweft.storage.feature import SparseFeatures

OPEN = -1


def waits_for_features(kind: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the constructor of ``kind`` is given -1 as ``in_features``, its first argument, or as one of a pair."""
    given = args[0] if args else kwargs.get("in_features")
    parts = given if isinstance(given, tuple | list) else (given,)
    if not any(type(part) is int and part == OPEN for part in parts):
        return False
    return list(inspect.signature(kind.__init__).parameters)[1:2] == ["in_features"]  # type: ignore[misc]


class Lazy(nn.Module):
    """A module that waits for its first call; of every class there is a subclass with this one in front."""

    kinds: ClassVar[dict[type, type]] = {}
    kind: ClassVar[type[nn.Module]]

    @classmethod
    def of(cls, kind: type) -> type:
        """The class of modules that become one of ``kind``."""
        if kind not in cls.kinds:
            cls.kinds[kind] = type(f"Lazy{kind.__name__}", (cls, kind), {"kind": kind})
        return cls.kinds[kind]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        nn.Module.__init__(self)
        self._given = args, kwargs
        self._applied: list[Callable[[Tensor], Tensor]] = []  # moves and casts, done again on what is made

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._applied.append(fn)
        return self

    def __getattr__(self, name: str) -> Any:
        """Says why what the module will have is not there yet."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            text = f"{self.kind.__name__} has no {name!r} before its first call, as in_features is -1"
            raise AttributeError(text) from None

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: there is nothing to load into. Raises: ConfigError."""
        raise ConfigError(f"{self.kind.__name__}.load_state_dict: expected parameters; call the module once first")

    def extra_repr(self) -> str:
        """That it waits."""
        return "in_features=-1: made at the first call"

    def forward(self, graph: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Becomes the module, then calls it."""
        self.settle(x)
        return self.forward(graph, x, *args, **kwargs)  # of the class that it is now; hooks run around this call

    def with_features(self, in_features: Any) -> nn.Module:
        """What this module becomes for features of such a width, or pair of widths."""
        args, kwargs = self._given
        rest = {name: value for name, value in kwargs.items() if name != "in_features"}
        return self.kind(in_features, *args[1:], **rest)

    def settle(self, x: Any) -> None:
        """Becomes the module for features as wide as ``x``, one set or a pair. Raises: ShapeError without features."""
        parts = list(x) if isinstance(x, tuple | list) else [x]
        who = self.kind.__name__
        if not all(isinstance(part, Tensor | SparseFeatures) and len(part.shape) >= 2 for part in parts):
            raise ShapeError(
                f"{who}: expected features at the first call, as in_features is -1, got {type(x).__name__}"
            )
        found = [int(part.shape[-1]) for part in parts]
        args, kwargs = self._given
        asked = args[0] if args else kwargs["in_features"]
        wanted = list(asked) if isinstance(asked, tuple | list) else [asked]
        if len(wanted) > len(found):
            raise ShapeError(f"{who}: expected features as (x_src, x_dst), as in_features is a pair, got one set")
        widths = [width if want == OPEN else want for want, width in zip(wanted, found, strict=False)]
        in_features = tuple(widths) if len(wanted) == 2 else widths[0]
        if len(wanted) == 1 and len(found) == 2:
            in_features = tuple(found)
        made = self.with_features(in_features)
        for fn in self._applied:
            made._apply(fn)  # type: ignore[no-untyped-call]
        made.train(self.training)
        kept = {name: value for name, value in self.__dict__.items() if name.endswith("_hooks") and value}
        state = {**made.__getstate__(), **kept}  # type: ignore[no-untyped-call]
        object.__setattr__(self, "__class__", self.kind)
        self.__dict__.clear()
        self.__setstate__(state)  # type: ignore[no-untyped-call]


def settled(who: str, model: nn.Module, x: Any) -> None:
    """A model that waits for its features gets them. Raises: ConfigError for one with parts that wait."""
    if isinstance(model, Lazy):
        model.settle(x)
    waiting = [name for name, module in model.named_modules() if isinstance(module, Lazy)]
    if waiting:
        text = f"expected a model with all its parameters, got {waiting[0]} that waits for features"
        raise ConfigError(f"{who}: {text}; call the model once")


__all__ = ["OPEN", "Lazy", "settled", "waits_for_features"]
