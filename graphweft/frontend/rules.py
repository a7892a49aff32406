"""The table of rules from ATen operations to the algebra of raised tensors, and how a custom operator gets into it.

Comes in: rules. Goes out: the table. Filled by ``elementwise_rules.py``, ``shape_rules.py`` and ``sum_rules.py``, read
by ``trace.py`` (what has no rule is decomposed by torch's own tables) and ``raising.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from graphweft.frontend.layout import Size


@dataclass(frozen=True)
class Out:
    """What a traced operation gives: its shape and dtype."""

    shape: tuple[Size, ...]
    dtype: torch.dtype


AtenRule = Callable[..., Any]
F = TypeVar("F", bound=AtenRule)
RULES: dict[Any, AtenRule] = {}
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}


def register_rule(operator: Any, code: Callable[..., Any]) -> None:
    """Lets user functions that call the custom operator ``operator`` be compiled. ``code`` computes the same in tensor
    code.

    Example:
        >>> import torch
        >>> @torch.library.custom_op("graphweft_docs::twice", mutates_args=())
        ... def twice(x: torch.Tensor) -> torch.Tensor:
        ...     return x * 2
        >>> _ = twice.register_fake(lambda x: torch.empty_like(x))
        >>> register_rule(torch.ops.graphweft_docs.twice.default, lambda x: x * 2)
    """
    DECOMPOSITIONS[operator] = code


def entering(table: dict[Any, AtenRule]) -> Callable[..., Callable[[F], F]]:
    """What enters a function into ``table`` for several operators."""

    def rule(*operators: Any) -> Callable[[F], F]:
        def keep(function: F) -> F:
            table.update(dict.fromkeys(operators, function))
            return function

        return keep

    return rule


rule = entering(RULES)  # functions: (algebra, what the operation gives, operands) -> raised tensor or tuple
