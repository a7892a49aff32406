"""Labels trained on with a loss that the user chose: a callable, a torch module, a name, class weights, smoothing.

Comes in: the target of the labels and the user's choice. Goes out: a target that scores and predicts as before and
whose loss and gradient are torch's. The usual loss without further ado stays what it is, a native call. Called by
:mod:`graphweft.train.chosen`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweft._errors import ConfigError, UserCodeError
from graphweft._memory import empty
from graphweft._native import recorder
from graphweft._torch_private import without_functions
from graphweft.train.loop_options import LOSSES, check_class_weight
from graphweft.train.options import check_choice
from graphweft.train.target import Cells, Classes, OwnCells, Recorded, Scored, SeveralLabels, Target, Values

Loss = Callable[[Tensor, Tensor], Tensor]

_USUAL: dict[type[Target], tuple[str, type[nn.Module]]] = {
    Classes: ("cross_entropy", nn.CrossEntropyLoss),
    SeveralLabels: ("binary_cross_entropy", nn.BCEWithLogitsLoss),
    Values: ("mse", nn.MSELoss),
}
_OF_VALUES: dict[str, Loss] = {"l1": functional.l1_loss, "huber": functional.huber_loss}


class OwnLoss(Target):
    """The labels of ``base`` with the loss ``function(outputs, labels)`` of the rows that count, shape ().

    Outputs come in the form in which labels are written: (n, C), or (n,) where labels are values (n,).
    """

    def __init__(self, base: Target, function: Loss, name: str) -> None:
        self._base, self._function, self._name = base, function, name
        self.metric, self.column = base.metric, base.column  # type: ignore[misc]

    def check(self, who: str, y: Tensor) -> None:
        """As the labels' own."""
        self._base.check(who, y)

    def loss(self, outputs: Tensor, y: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """By torch's autograd."""
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            loss = self.mean_loss(leaf if rows is None else leaf[rows], y if rows is None else y[rows])
            if not loss.requires_grad:
                raise ConfigError(f"{self._name}: expected a loss that follows from the outputs, got a constant")
            gradient = torch.autograd.grad(loss, leaf)[0]
        return loss.detach(), gradient

    def recorded(self, y: Tensor, rows: Tensor | None, share: float = 1.0) -> tuple[Recorded, list[Any]]:
        """A call of Python among native ones, in which torch may compute."""

        def call(outputs: Tensor, over: bool) -> tuple[Cells, Tensor]:
            cells, gradient = OwnCells(), outputs if over else empty(tuple(outputs.shape), outputs.dtype)

            def compute() -> int:
                cells.loss, found = self.loss(outputs, y, rows)
                gradient.copy_(found if share == 1.0 else found * share)
                return 0

            if recorder.calls is not None:
                recorder.calls.append((compute, ()))
            with without_functions():
                compute()
            return cells, gradient

        return call, [y, rows]

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The user's loss."""
        loss = called(self._function, self._name, self.aligned(outputs), labels)
        if loss.is_cpu and math.isnan(loss.item()) and labels.is_floating_point() and not bool(outputs.isnan().any()):
            unknown = int(labels.isnan().sum())
            if unknown:
                raise ConfigError(
                    f"{self._name}: expected a loss that leaves unknown labels out (nan: {unknown} of "
                    f"{labels.numel()}), got nan; known = ~labels.isnan() picks the others"
                )
        return loss

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """There are none. Raises: ConfigError."""
        raise ConfigError(f"{self._name} cannot be combined with a sampler that weighs the losses of nodes (saint-*)")

    def aligned(self, outputs: Tensor) -> Tensor:
        """As of the labels' own."""
        return self._base.aligned(outputs)

    def score(self, outputs: Tensor, y: Tensor, rows: Tensor) -> Scored:
        """As the labels' own, with the user's loss."""
        found = self._base.score(outputs, y, rows)
        if found.loss is None:
            return found
        with torch.no_grad():
            return found._replace(loss=float(self.mean_loss(outputs[rows], y[rows])))

    def predict(self, outputs: Tensor) -> Tensor:
        """As the labels' own."""
        return self._base.predict(outputs)

    def constant_guess(self, y: Tensor, train: Tensor, scored: Tensor) -> float | None:
        """As the labels' own."""
        return self._base.constant_guess(y, train, scored)


class WeightedClasses(OwnLoss):
    """``torch.nn.CrossEntropyLoss(weight, label_smoothing=smoothing)``.

    Args:
        weight: A number per class, "balanced" (from the training labels, as in scikit-learn), or None.
        smoothing: Share of the target that is spread over all classes.
        classes: How many there are.
    """

    def __init__(self, weight: Tensor | str | None, smoothing: float, classes: int) -> None:
        super().__init__(Classes(), self._cross_entropy, "class_weight" if smoothing == 0 else "label_smoothing")
        self._balanced, self._smoothing, self._classes = isinstance(weight, str), smoothing, classes
        self.class_weight = None if isinstance(weight, str) else weight

    def take(self, y: Tensor, train: Tensor) -> None:
        """Balances the classes of the training labels ``y[train]``."""
        if self._balanced:
            self.class_weight = balanced(y[train], self._classes)
        elif self.class_weight is not None and train.numel() and not bool(self.class_weight[y[train]].any()):
            raise ConfigError("class_weight: expected a number above 0 for some class of the training labels, got 0")

    def _cross_entropy(self, outputs: Tensor, labels: Tensor) -> Tensor:
        weight = None if self.class_weight is None else self.class_weight.to(outputs.dtype)
        return functional.cross_entropy(outputs, labels, weight, label_smoothing=self._smoothing)


def with_loss(base: Target, loss: Any, class_weight: Any, smoothing: float, classes: int) -> Target:
    """``base`` with what the user chose; ``base`` itself where that is the usual loss.

    Raises: ConfigError for a choice that does not fit the labels, or choices that do not fit together.
    """
    usual, module = _USUAL[type(base)]
    is_usual = loss is None or (isinstance(loss, str) and loss == usual) or _is_plain(loss, module)
    for name, value in (("label_smoothing", smoothing or None), ("class_weight", class_weight)):
        if value is None:
            continue
        shown = value if isinstance(value, str | int | float) else "..."
        if not isinstance(base, Classes):
            weighs = name == "class_weight" and usual.startswith("binary")
            hint = "; loss=torch.nn.BCEWithLogitsLoss(pos_weight=...) weighs them" if weighs else ""
            raise ConfigError(f"{name}={shown} cannot be combined with labels that are no classes{hint}")
        if not is_usual:
            raise ConfigError(f"{name}={shown} cannot be combined with loss={named(loss)}, which has its own")
    if class_weight is not None or smoothing:
        return WeightedClasses(_weights(class_weight, classes), float(smoothing), classes)
    if is_usual:
        return base
    if isinstance(loss, str):
        check_choice("loss", loss, (usual, *(_OF_VALUES if isinstance(base, Values) else ())))
        return OwnLoss(base, _known_entries(_OF_VALUES[loss]), f"loss={loss}")
    return OwnLoss(base, check_loss(loss), f"loss={named(loss)}")


def check_loss(loss: Any) -> Loss:
    """Raises: ConfigError for what cannot be called."""
    if not callable(loss) or isinstance(loss, type):
        got = f"the class {loss.__name__}; write {loss.__name__}()" if isinstance(loss, type) else type(loss).__name__
        names = ", ".join(LOSSES)
        raise ConfigError(f"loss: expected a callable (outputs, labels) -> scalar, or one of {names}, got {got}")
    return loss  # type: ignore[no-any-return]


def called(function: Loss, name: str, outputs: Tensor, labels: Tensor) -> Tensor:
    """What the user's loss returns, shape (). Raises: ConfigError where that is no scalar; UserCodeError."""
    try:
        loss = function(outputs, labels)
    except Exception as failure:
        what = f"outputs {_form(outputs)} and labels {_form(labels)}"
        text = " ".join(str(failure).split())
        raise UserCodeError(f"{name}: {type(failure).__name__} for {what}: {text}") from failure
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(f"{name}: expected a tensor with one number (reduction='mean'), got {got}")
    return loss.reshape(())


def balanced(labels: Tensor, classes: int) -> Tensor:
    """Labels / (classes * those of the class), as scikit-learn's ``compute_class_weight("balanced")``; 1 without any.

    Example:
        >>> balanced(torch.tensor([0, 0, 0, 1]), 3).tolist()
        [0.4444444477558136, 1.3333333730697632, 1.0]
    """
    counts = torch.bincount(labels, minlength=classes).double()
    weights = labels.numel() / (classes * counts)
    return torch.where(counts > 0, weights, torch.ones_like(weights)).float()


def named(loss: Any) -> str:
    """A loss as a message names it."""
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "__name__", type(loss).__name__))


def _weights(given: Any, classes: int) -> Tensor | str | None:
    """Class weights as numbers, or "balanced". Raises: ConfigError."""
    if given is None:
        return None
    if isinstance(given, str):
        given = check_class_weight(given)
        if isinstance(given, str):
            return given
    try:
        weights = torch.as_tensor(given, dtype=torch.float32).detach().reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"class_weight: expected 'balanced' or a number per class, got {type(given).__name__}"
        ) from None
    if weights.numel() != classes or not bool((weights.isfinite() & (weights >= 0)).all()):
        kept = ", ".join(f"{float(one):g}" for one in weights[:8])
        raise ConfigError(f"class_weight: expected {classes} numbers >= 0, one per class, got {kept}")
    return weights


def _is_plain(loss: Any, kind: type[nn.Module]) -> bool:
    """Whether ``loss`` is torch's module of the usual loss as it is without arguments."""
    if type(loss) is not kind:
        return False
    usual = kind()
    return {**vars(loss), "training": None} == {**vars(usual), "training": None}


def _known_entries(loss: Loss) -> Loss:
    """``loss`` over the entries whose label is known."""

    def call(outputs: Tensor, labels: Tensor) -> Tensor:
        known = ~labels.isnan()
        return loss(outputs[known], labels[known])

    return call


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
