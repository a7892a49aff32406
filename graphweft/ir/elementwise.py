"""The functions of EWISE: number of operands and meaning of each.

Comes in: torch tensors already broadcast against each other. Goes out: a tensor. Gradient rules are in
``elementwise_grad.py``; a test holds the two together. ``leaky_relu`` and ``elu`` take their slope as ``alpha``.
``sqrt0`` is the square root with gradient 0 at 0, as norms have it. Comparisons and logic give bool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphweft._pieces import in_pieces


@dataclass(frozen=True)
class Function:
    """One elementwise function.

    Attributes:
        arity: Number of operands.
        apply: Its meaning; attributes of the value come as keywords.
        to_bool: The result is bool.
    """

    arity: int
    apply: Callable[..., Tensor]
    to_bool: bool = False


def _unary(apply: Callable[..., Any]) -> Function:
    return Function(1, lambda x, **_: apply(x))


def _binary(apply: Callable[..., Any], to_bool: bool = False) -> Function:
    return Function(2, lambda x, y, **_: apply(x, y), to_bool)


def _divide(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _sqrt0(x: Tensor) -> Tensor:
    zero = x == 0
    return torch.where(zero, x, torch.where(zero, x.new_ones(()), x).sqrt())


_elu = in_pieces(functional.elu)
PIECED = frozenset({"elu", "sigmoid", "pow", "atan2"})  # whose pieces are there beside their result

FUNCTIONS: dict[str, Function] = {
    "neg": _unary(torch.neg),
    "exp": _unary(torch.exp),
    "expm1": _unary(torch.expm1),
    "log": _unary(torch.log),
    "log1p": _unary(torch.log1p),
    "sqrt": _unary(torch.sqrt),
    "sqrt0": _unary(_sqrt0),
    "rsqrt": _unary(torch.rsqrt),
    "reciprocal": _unary(torch.reciprocal),
    "square": _unary(torch.square),
    "abs": _unary(torch.abs),
    "sign": _unary(torch.sign),
    "floor": _unary(torch.floor),
    "ceil": _unary(torch.ceil),
    "round": _unary(torch.round),
    "sin": _unary(torch.sin),
    "cos": _unary(torch.cos),
    "erf": _unary(torch.erf),
    "relu": _unary(torch.relu),
    "sigmoid": _unary(in_pieces(torch.sigmoid)),
    "tanh": _unary(torch.tanh),
    "leaky_relu": Function(1, lambda x, alpha, **_: functional.leaky_relu(x, alpha)),
    "elu": Function(1, lambda x, alpha, **_: _elu(x, alpha=alpha)),
    "add": _binary(torch.add),
    "sub": _binary(torch.sub),
    "mul": _binary(torch.mul),
    "div": _binary(_divide),
    "pow": _binary(in_pieces(torch.pow)),
    "atan2": _binary(in_pieces(torch.atan2)),
    "maximum": _binary(torch.maximum),
    "minimum": _binary(torch.minimum),
    "eq": _binary(torch.eq, to_bool=True),
    "ne": _binary(torch.ne, to_bool=True),
    "lt": _binary(torch.lt, to_bool=True),
    "le": _binary(torch.le, to_bool=True),
    "gt": _binary(torch.gt, to_bool=True),
    "ge": _binary(torch.ge, to_bool=True),
    "logical_and": _binary(torch.logical_and, to_bool=True),
    "logical_or": _binary(torch.logical_or, to_bool=True),
    "logical_xor": _binary(torch.logical_xor, to_bool=True),
    "logical_not": Function(1, lambda x, **_: torch.logical_not(x), to_bool=True),
    "where": Function(3, lambda c, x, y, **_: torch.where(c, x, y)),
}
