"""A spec in the verbs of Morphling's Listing 1: load, initializeLayers, forwardPass, backPropagation, optimizer.

Comes in: the calls of a training loop, recorded. Goes out: the :class:`ProgramSpec` that they describe. The listing as
printed takes ``neuronsPerLayer - 1`` for the number of layers and nests the backward loop in the forward one; here
layers are counted by the list of widths, and the two loops follow each other. Called by
users. Source: Morphling, Listing 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphweft._errors import ConfigError
from graphweft.synth.spec import ProgramSpec

_BETAS = (0.9, 0.999)


class Verbs:
    """Records a training loop; :meth:`spec` returns its specification.

    Every epoch is as many calls of :meth:`forwardPass` as there are layers, from the first to the last, as many of
    :meth:`backPropagation` from the last to the first, and one of :meth:`optimizer`.

    Args:
        options: Options of :class:`ProgramSpec` without a verb, such as ``dropout=0.5``.

    Example:
        >>> gnn = Verbs(seed=1)
        >>> gnn.load("default")
        >>> gnn.initializeLayers([32, 8], "xaviers")
        >>> for epoch in range(5):
        ...     for layer in range(2):
        ...         gnn.forwardPass(layer, "SAGE", "mean")
        ...     for layer in reversed(range(2)):
        ...         gnn.backPropagation(layer)
        ...     gnn.optimizer("adam", 0.01, 0.9, 0.999)
        >>> gnn.spec()
        ProgramSpec(model='sage', reduce='mean', epochs=5, seed=1)
    """

    def __init__(self, **options: Any) -> None:
        self._options = dict(options)
        self._sizes: tuple[int, ...] = ()
        self._kind: tuple[str, str] | None = None
        self._update: tuple[str, float] | None = None
        self._forward = self._backward = self._epochs = 0

    def load(self, dataset: str, **options: Any) -> None:
        """Names the data. ``options`` are further options of the data, such as ``root`` or ``scale``."""
        self._options |= {"data": dataset, **options}

    def initializeLayers(self, sizes: Sequence[int], initializer: str = "xaviers") -> None:
        """Sets the output width of every layer: hidden layers of equal width, then the number of classes.

        Raises: ConfigError.
        """
        widths = tuple(sizes)
        if initializer != "xaviers":
            raise ConfigError(f"initializeLayers: expected xaviers, got {initializer!r}")
        if not widths or any(not isinstance(w, int) or w < 1 for w in widths) or len(set(widths[:-1])) > 1:
            raise ConfigError(f"initializeLayers: expected hidden widths, all alike, then classes, got {list(widths)}")
        self._sizes = widths

    def forwardPass(self, layer: int, model: str, aggregation: str = "auto") -> None:
        """One layer forward. Raises: ConfigError for a layer out of turn or of another kind."""
        self._in_turn("forwardPass", layer, self._forward, self._forward if self._backward == 0 else None)
        kind = (model.lower(), aggregation.lower())
        if self._kind not in (None, kind):
            raise ConfigError(f"forwardPass: expected layers of one kind, {self._kind}, got {kind}")
        self._kind, self._forward = kind, self._forward + 1

    def backPropagation(self, layer: int) -> None:
        """One layer backward. Raises: ConfigError for a layer out of turn."""
        wanted = len(self._sizes) - 1 - self._backward
        self._in_turn("backPropagation", layer, wanted, wanted if self._forward == len(self._sizes) else None)
        self._backward += 1

    def optimizer(self, name: str, lr: float, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """The update that ends an epoch. Raises: ConfigError before all layers went forward and backward."""
        if (beta1, beta2) != _BETAS:
            raise ConfigError(f"optimizer: expected betas 0.9 and 0.999, got {beta1} and {beta2}")
        if not self._sizes or (self._forward, self._backward) != (len(self._sizes),) * 2:
            done = f"{self._forward} forward and {self._backward} backward of {len(self._sizes)} layers"
            raise ConfigError(f"optimizer: expected it after all layers, got it after {done}")
        if self._update not in (None, (name.lower(), float(lr))):
            raise ConfigError(f"optimizer: expected the same update in every epoch, got {name} {lr}")
        self._update = (name.lower(), float(lr))
        self._forward = self._backward = 0
        self._epochs += 1

    def spec(self) -> ProgramSpec:
        """The specification of the recorded loop. Raises: ConfigError for an incomplete loop."""
        if self._kind is None or self._update is None or self._forward:
            raise ConfigError("Verbs: expected whole epochs, each ended by optimizer, got an unfinished one")
        hidden = {"hidden": self._sizes[0]} if len(self._sizes) > 1 else {}
        (model, reduce), (name, rate) = self._kind, self._update
        made = {"model": model, "layers": len(self._sizes), "reduce": reduce, "optimizer": name, "lr": rate}
        return ProgramSpec(**{**made, **hidden, "epochs": self._epochs, **self._options})

    @property
    def classes(self) -> int:
        """The width of the last layer."""
        return self._sizes[-1] if self._sizes else 0

    def _in_turn(self, verb: str, layer: int, wanted: int, allowed: int | None) -> None:
        if not self._sizes:
            raise ConfigError(f"{verb}: expected initializeLayers before it, got none")
        if allowed is None or layer != wanted or not 0 <= layer < len(self._sizes):
            order = "all layers forward, then all backward, then optimizer: loops in sequence, not nested"
            raise ConfigError(f"{verb}: expected {order}, got layer {layer} out of turn")


__all__ = ["Verbs"]
