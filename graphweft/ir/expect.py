"""Checks of operand types with one wording, for the type rules of operations.

Comes in: an operation's name and an operand's type. Goes out: the type, narrowed, or an IRError.
"""

from __future__ import annotations

from graphweft._errors import IRError
from graphweft.ir.residency import IndexType, StructType, TensorType, Type


def expect_tensor(op: str, type_: Type) -> TensorType:
    """A tensor."""
    if not isinstance(type_, TensorType):
        raise IRError(f"{op}: expected a tensor, got {type_}")
    if not type_.arrived:
        raise IRError(f"{op}: expected rows that have arrived, got {type_}")
    return type_


def expect_dense(op: str, type_: Type) -> TensorType:
    """A tensor that is not stored sparse."""
    tensor = expect_tensor(op, type_)
    if tensor.sparse:
        raise IRError(f"{op}: expected dense rows, got {tensor}")
    return tensor


def expect_graph(op: str, type_: Type) -> StructType:
    """A graph."""
    if not isinstance(type_, StructType):
        raise IRError(f"{op}: expected a graph, got {type_}")
    return type_


def expect_index(op: str, type_: Type) -> IndexType:
    """Ids, or a seed."""
    if not isinstance(type_, IndexType):
        raise IRError(f"{op}: expected a list of ids, got {type_}")
    return type_


def require(op: str, condition: bool, expected: str, *got: object) -> None:
    """``condition`` holds, or the error says what was expected and what came."""
    if not condition:
        raise IRError(f"{op}: expected {expected}, got {' and '.join(str(item) for item in got)}")
