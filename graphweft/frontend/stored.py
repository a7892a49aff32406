"""Raised calls in the cache folder: what recording the functions came to, for the next process.

Comes in: a :class:`RaisedCall` and the text of its key, or the text alone. Goes out: :class:`StoredCall`, which writes
the same program without recording anything. A file that is missing, torn or of another installation counts as nothing.
Called by ``nn/user_call.py``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweft._decisions import keep, known
from graphweft._errors import IRError
from graphweft.frontend.call import Call
from graphweft.frontend.captured import Captured
from graphweft.frontend.udf import Given, RaisedCall, name_tensors, symbolic_inputs
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Builder, Value, topological
from graphweft.ir.residency import Residency

_MOST_CONSTANTS = 4096  # elements of one constant tensor
_PLAIN = (str, bool, int, float, type(None))


class _Unstored(Exception):
    """Something that has no form in a file."""


@dataclass(frozen=True)
class StoredCall:
    """A raised call read from the cache; see :class:`RaisedCall`.

    Attributes:
        forms: The program for graphs without and with nodes that receive nothing.
    """

    forms: Mapping[bool, Any]
    returned: list[str]
    constants: list[Tensor]
    risky: bool
    draws: bool
    writes: bool

    def given(self, call: Call, captured: Captured) -> Given:
        """Every tensor the program may read, by name, with what its rows are."""
        return name_tensors(call, captured, lambda at: Residency.SHARED, self.constants, self._read)

    @property
    def written(self) -> list[int]:
        """Positions of the buffers that get new contents."""
        return [int(name.removeprefix("buffer:")) for name in self.forms[False]["outputs"] if name[:7] == "buffer:"]

    @functools.cached_property
    def _read(self) -> frozenset[str]:
        """Names that the program reads."""
        values = [operand for form in self.forms.values() for _, operands, _ in form["values"] for operand in operands]
        outputs = [at for form in self.forms.values() for at in form["outputs"].values()]
        return frozenset(at for at in (*values, *outputs) if isinstance(at, str))

    def write(self, builder: Builder, inputs: Mapping[str, Value], isolated: bool, square: bool) -> dict[str, Value]:
        """The program's outputs."""
        form = self.forms[isolated]
        values: list[Value] = []
        for op, operands, attrs in form["values"]:
            given = [inputs[at] if isinstance(at, str) else values[at] for at in operands]
            values.append(builder.add(Op[op], *given, **{name: _decoded(item) for name, item in attrs.items()}))
        return {name: inputs[at] if isinstance(at, str) else values[at] for name, at in form["outputs"].items()}


def load(text: str) -> StoredCall | None:
    """The call whose key has this text, if the cache has it whole."""
    try:
        found = json.loads(known(_name(text)) or "")
        body = found["call"]
        if found["digest"] != _digest(json.dumps(body)):
            return None
        constants = [_tensor(item) for item in body["constants"]]
        forms = {False: body["plain"], True: body["isolated"]}
        return StoredCall(forms, body["returned"], constants, body["risky"], body["draws"], body["writes"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def store(text: str, raised: RaisedCall, call: Call, captured: Captured) -> None:
    """Keeps ``raised`` for other processes, where its program has a form in a file and the folder can be written."""
    if any(raised.rowed.values()):  # whether a captured tensor has rows depends on the graph, which the key leaves out
        return
    with contextlib.suppress(_Unstored, IRError):
        body = {
            "plain": _form(raised, call, captured, False),
            "isolated": _form(raised, call, captured, True),
            "returned": raised.returned,
            "constants": [_encoded_tensor(tensor) for tensor in raised.constants],
            "risky": raised.risky,
            "draws": raised.draws,
            "writes": raised.writes,
        }
        keep(_name(text), json.dumps({"digest": _digest(json.dumps(body)), "call": body}))


def _name(text: str) -> str:
    return f"functions/{_digest(text)[:32]}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _form(raised: RaisedCall, call: Call, captured: Captured, isolated: bool) -> dict[str, Any]:
    """The program as operations over names and positions."""
    builder = Builder()
    inputs = symbolic_inputs(builder, raised.given(call, captured), call.graph.is_square)
    outputs = raised.write(builder, inputs, isolated, call.graph.is_square)
    at: dict[Value, str | int] = {value: name for name, value in inputs.items()}
    values: list[list[Any]] = []
    for value in topological(outputs.values()):
        if value.op in LEAVES:
            continue
        at[value] = len(values)
        operands = [at[operand] for operand in value.inputs]
        values.append([value.op.name, operands, {name: _encoded(item) for name, item in value.attrs}])
    return {"values": values, "outputs": {name: at[value] for name, value in outputs.items()}}


def _encoded(item: Any) -> Any:
    if isinstance(item, torch.dtype):
        return {"dtype": str(item).removeprefix("torch.")}
    if isinstance(item, tuple):
        return {"tuple": [_encoded(part) for part in item]}
    if type(item) in _PLAIN:
        return item
    raise _Unstored


def _decoded(item: Any) -> Any:
    if isinstance(item, dict):
        if "dtype" in item:
            return getattr(torch, item["dtype"])
        return tuple(_decoded(part) for part in item["tuple"])
    return item


def _encoded_tensor(tensor: Tensor) -> dict[str, Any]:
    if tensor.numel() > _MOST_CONSTANTS or tensor.is_complex():
        raise _Unstored
    return {"shape": list(tensor.shape), "of": _encoded(tensor.dtype), "values": tensor.detach().flatten().tolist()}


def _tensor(item: dict[str, Any]) -> Tensor:
    return torch.tensor(item["values"], dtype=_decoded(item["of"])).reshape(item["shape"])


__all__ = ["StoredCall", "load", "store"]
