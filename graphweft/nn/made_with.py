"""The arguments that a module was constructed with: to construct it again, and to show them.

Comes in: arguments of a constructor. Goes out: the same, where they are plain values, and a text of them. Called by
the modules and models of :mod:`graphweft.nn` and by :mod:`graphweft.train.description`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Self

from graphweft._checks import as_plain

Made = tuple[tuple[Any, ...], dict[str, Any]]

_PLAIN = (bool, int, float, str, type(None))
OTHER_NAMES = {
    **dict.fromkeys(("in_channels", "in_feats", "in_dim", "input_dim", "num_features"), "in_features"),
    **dict.fromkeys(("hidden_channels", "hidden_dim", "hidden_size", "hidden_features", "n_hidden"), "hidden"),
    **dict.fromkeys(("out_channels", "out_feats", "out_dim", "output_dim", "num_classes", "n_classes"), "out_features"),
    **dict.fromkeys(("layers", "n_layers", "num_convs"), "num_layers"),
    **dict.fromkeys(("act", "nonlinearity"), "activation"),
    **dict.fromkeys(("num_heads", "n_heads"), "heads"),
    **dict.fromkeys(("dropout_rate", "p_dropout"), "dropout"),
    **dict.fromkeys(("jk", "jumping_knowledge"), "jumping"),
}  # of arguments in other libraries
_SIZES = ("in_features", "hidden", "out_features")  # shown without their names


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made | None:
    """The arguments; None where some are no plain values, which a module is not to keep alive.

    Example:
        >>> arguments_of((4, 2), {"bias": False}), arguments_of(([1],), {})
        (((4, 2), {'bias': False}), None)
    """
    args, kwargs = tuple(map(as_plain, args)), {name: as_plain(value) for name, value in kwargs.items()}
    return (args, kwargs) if all(map(_is_plain, (*args, *kwargs.values()))) else None


def _is_plain(value: Any) -> bool:
    """A plain value, or a tuple of some."""
    return isinstance(value, _PLAIN) or (type(value) is tuple and all(isinstance(one, _PLAIN) for one in value))


class KeepsArguments:
    """A base of modules that keep the arguments of their constructor, so that a run's model can be made again."""

    _made_with: Made | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keeps the constructor's arguments."""
        made = super().__new__(cls)
        made.__dict__["_made_with"] = arguments_of(args, kwargs)
        return made

    @property
    def made_with(self) -> Made | None:
        """The constructor's arguments; None where some are no plain values."""
        return self._made_with


class ConstructorSignature:
    """``__signature__`` of a class: that of its ``__init__``, which ``help`` does not find where there is ``__new__``.

    Instances have none, as they are called differently.
    """

    def __get__(self, instance: object | None, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        own = inspect.signature(owner.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:], return_annotation=own.empty)


def described(module: object, made: Made) -> str:
    """Sizes, then what differs from the defaults; as set now where the module has an attribute of that name."""
    given = inspect.signature(type(module).__init__).bind(module, *made[0], **made[1])
    named = {name: value for name, value in list(given.arguments.items())[1:] if not isinstance(value, dict)}
    named |= given.kwargs
    defaults = _defaults(type(module))
    shown = []
    for name, value in sorted(named.items(), key=lambda item: item[0] not in _SIZES):
        now = getattr(module, name, value)
        value = now if isinstance(now, _PLAIN) and isinstance(value, _PLAIN) and None not in (now, value) else value
        if name in _SIZES:
            shown.append(str(value))
        elif name not in defaults or value != defaults[name]:
            shown.append(f"{name}={value!r}")
    return ", ".join(shown)


def _defaults(kind: type) -> dict[str, Any]:
    """Default values of the constructor and, where it hands further arguments on, of those behind it."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base) and base is not object:
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            found |= {p.name: p.default for p in parameters if p.default is not p.empty}
    return found
