"""The targets by name.

Comes in: ``gw.config(target=)``. Goes out: the :class:`Target`. Another one joins by :func:`register_target`. Called by
``plan.py``.
"""

from __future__ import annotations

from graphweft._errors import ConfigError
from graphweft.runtime.cpu.target import CPU
from graphweft.runtime.target import Target

REFERENCE = Target("reference")  # no launcher at all: everything by the interpreter
_TARGETS = {target.name: target for target in (CPU, REFERENCE)}


def register_target(target: Target) -> Target:
    """Makes ``target`` known by its name."""
    _TARGETS[target.name] = target
    return target


def target_named(name: str) -> Target:
    """The target called ``name``.

    Raises: ConfigError for an unknown one.
    """
    if name not in _TARGETS:
        raise ConfigError(f"target: expected one of {', '.join(sorted(_TARGETS))}, got {name!r}")
    return _TARGETS[name]
