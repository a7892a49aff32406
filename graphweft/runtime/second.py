"""Gradients that can be differentiated: the backward pass of a program is a program.

Comes in: the gradients that a plan's backward calls gave under ``create_graph``, and all that they depend on. Goes out:
the same numbers, in torch's graph. When they are differentiated, the gradients' own program (``ir.grad.derivative``) is
derived, compiled and run. Under ``create_graph`` its gradients are tied in the same way, so every order works. Where an
operation has no rule, torch differentiates the interpreter's run of the forward program. Called by ``function.py``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphweft._backward import gradients_from
from graphweft._errors import FallbackWarning, GraphWeftError, IRError
from graphweft._torch_private import is_wrapped, transforms_are_on
from graphweft.ir.grad import Derivative, derivative
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Program, Value
from graphweft.ir.residency import Residency, TensorType
from graphweft.runtime import dense
from graphweft.runtime.features import SparseOperand
from graphweft.runtime.plan import Plan
from graphweft.storage.feature import SparseFeatures, is_dense

_MANY_EDGES = 1 << 13  # from which the interpreter is felt
_SEED = "d:"  # begins the name of what came in as the gradient of an output

Named = dict[str, Tensor]
Fields = dict[str, tuple[Tensor, Residency]]
# runs a program on the kernels, given graph, ids and seeds, and the tensors by name; None where only torch can
Run = Callable[[Mapping[str, Any], Fields], Named | None]


@dataclass
class Derived:
    """The derivative of a plan's gradients as a program, or why there is none.

    Attributes:
        first: The gradients.
        second: The gradients of their sum with given directions.
        run: Runs ``second``.
        reason: The operation without a rule.
    """

    first: Derivative | None = None
    second: Derivative | None = None
    run: Run | None = None
    reason: str = "its inputs are not for the kernels"
    warned: bool = False


@dataclass
class Origin:
    """The run of a plan that gradients came from.

    Attributes:
        plan: The plan.
        rest: The graph, and the other inputs that torch does not keep.
        compile: Makes what runs a derived program.
        released: Whether the memory of the features was given up.
    """

    plan: Plan
    rest: Mapping[str, Any]
    compile: Callable[[Program], Run]
    released: bool = False
    versions: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.versions = self._versions()

    def _versions(self) -> tuple[int, ...]:
        kept = (item for item in self.rest.values() if is_dense(item) and not item.is_inference())
        return tuple(int(item._version) for item in kept)

    def differentiated(self, operands: Named, directions: Named, wanted: tuple[str, ...]) -> Named:
        """The gradients by ``wanted`` of the sum of the gradients times ``directions``; those that are 0 are absent.

        ``operands``: the inputs of the forward program, and under ``d:<output>`` the gradients that came in.
        Raises: GraphWeftError where inputs have changed meanwhile.
        """
        if self.released:
            raise GraphWeftError("backward: the features were released, so there is no second derivative")
        if self.versions != self._versions():
            raise GraphWeftError("backward: an input was modified before its second derivative was computed")
        derived = self._derived(tuple(name for name in operands if name.startswith(_SEED)), tuple(directions), wanted)
        if derived.run is not None and not batched(directions.values()):
            found = self._on_kernels(derived, operands, directions, wanted)
            if found is not None:
                return found
        self._tell(derived)
        return self._by_torch(operands, directions, wanted)

    def _derived(self, seeds: tuple[str, ...], gradients: tuple[str, ...], wanted: tuple[str, ...]) -> Derived:
        key, known = (seeds, gradients, wanted), self.plan.derived
        if key not in known:
            known[key] = self._derive([name.removeprefix(_SEED) for name in seeds], gradients, wanted)
        found: Derived = known[key]
        return found

    def _derive(self, seeds: list[str], gradients: tuple[str, ...], wanted: tuple[str, ...]) -> Derived:
        source = self.plan.source
        assert source is not None  # plans that run in torch's graph have one
        try:
            first = derivative(source, gradients, seeds)
            read = {value["name"] for value in first.program.inputs}
            by = [name for name in (_renamed(first, name) for name in wanted) if name in read]
            second = derivative(first.program, by, tuple(first.gradients.values()))
        except IRError as failure:
            return Derived(reason=str(failure).removeprefix("differentiate: "))
        return Derived(first, second, self.compile(second.program))

    def _on_kernels(
        self, derived: Derived, operands: Named, directions: Named, wanted: tuple[str, ...]
    ) -> Named | None:
        first, second, run = derived.first, derived.second, derived.run
        assert first is not None and second is not None and run is not None  # they come together
        named: dict[str, Any] = {**self.rest, **{_renamed(first, name): x for name, x in operands.items()}}
        for name, direction in directions.items():
            if name in first.gradients:
                named[second.seeds[first.gradients[name]]] = direction
        fields = {
            value["name"]: (named[value["name"]], value.tensor.residency)
            for value in second.program.inputs
            if isinstance(value.type, TensorType) and not value.type.sparse
        }
        results = run(self.rest, fields) if second.program.outputs else {}
        if results is None:
            return None
        at = {name: second.gradients.get(_renamed(first, name)) for name in wanted}
        return {name: results[output] for name, output in at.items() if output is not None}

    def _tell(self, derived: Derived) -> None:
        """One warning where the slow way is slow."""
        if derived.warned or self.rest["graph"].num_edges < _MANY_EDGES:
            return
        derived.warned = True
        message = f"the second derivative of this program runs on the interpreter: {derived.reason}"
        warnings.warn(message, FallbackWarning, stacklevel=2)

    def gradients_by_torch(self, tensors: Named, seeds: Named) -> Named:
        """The gradients of the plan's inputs, where ``seeds`` are what only torch can compute with."""
        names = [name for name, slot in zip(self.plan.tensors, self.plan.gradients, strict=True) if slot is not None]
        again = torch.is_grad_enabled()
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            own = {name: _alias(x, name in names, again) for name, x in tensors.items()}
            outputs = self._outputs(own)
            return _pulled(outputs, {name: own[name] for name in names}, seeds, create_graph=again)

    def _by_torch(self, operands: Named, directions: Named, wanted: tuple[str, ...]) -> Named:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            own = {name: _alias(x, name in wanted or name in directions, again) for name, x in operands.items()}
            outputs = self._outputs(own)
            seeds = {name.removeprefix(_SEED): x for name, x in own.items() if name.startswith(_SEED)}
            first = _pulled(outputs, {name: own[name] for name in directions}, seeds, create_graph=True)
            return _pulled(first, {name: own[name] for name in wanted}, directions, create_graph=again)

    def _outputs(self, operands: Named) -> Named:
        """The forward program in plain torch, with the random numbers that the kernels draw."""
        source = self.plan.source
        assert source is not None  # plans that run in torch's graph have one
        given, results = {**self.rest, **operands}, dict[Value, Any]()
        for value in source.values:
            if value.op in LEAVES:
                results[value] = given[value["name"]]
            elif value.op is Op.DROPOUT:
                results[value] = _dropped(value, *(results[operand] for operand in value.inputs))
            else:
                results[value] = evaluate(value, [results[operand] for operand in value.inputs])
        return {name: results[value] for name, value in source.outputs}


def batched(gradients: Iterable[Tensor | None]) -> bool:
    """Whether these are many gradients at once, as ``is_grads_batched`` makes them, for which only torch can run."""
    return transforms_are_on() or any(x is not None and is_wrapped(x) for x in gradients)


def distinct(outputs: Iterable[Tensor], inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Every output a tensor of its own, as torch's graph wants it: neither an input nor another output."""
    seen = {id(tensor) for tensor in inputs}
    made = []
    for tensor in outputs:
        made.append(tensor.clone() if id(tensor) in seen else tensor)
        seen.add(id(tensor))
    return tuple(made)


def tied(
    origin: Origin, found: tuple[Tensor | None, ...], tensors: tuple[Tensor, ...], seeds: dict[str, Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients ``found`` of a plan's ``tensors`` as functions of these and of ``seeds``, by output."""
    names = tuple(name for name, x in zip(origin.plan.tensors, found, strict=True) if x is not None)
    keys = (*origin.plan.tensors, *(_SEED + name for name in seeds))
    given = [x for x in found if x is not None]
    made = iter(_Gradients.apply(origin, names, keys, given, *tensors, *seeds.values()))  # type: ignore[no-untyped-call]
    return tuple(None if x is None else next(made) for x in found)


class _Gradients(torch.autograd.Function):
    """Gradients as results of all that they depend on."""

    @staticmethod
    def forward(
        ctx: Any, origin: Origin, names: tuple[str, ...], keys: tuple[str, ...], found: list[Tensor], *operands: Tensor
    ) -> tuple[Tensor, ...]:
        """``found``, every one a tensor of its own."""
        ctx.origin, ctx.names, ctx.keys = origin, names, keys
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands)
        return distinct(found, operands)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Any, ...]:
        """Gradients of the operands, in torch's graph where that is asked for."""
        given = {name: x for name, x in zip(ctx.names, directions, strict=True) if x is not None}
        operands = dict(zip(ctx.keys, ctx.saved_tensors, strict=True))
        wanted = tuple(name for name, needed in zip(ctx.keys, ctx.needs_input_grad[4:], strict=True) if needed)
        with torch.autocast("cpu", enabled=False):
            found = ctx.origin.differentiated(operands, given, wanted) if given else {}
        return (None, None, None, None, *(found.get(name) for name in ctx.keys))


def _renamed(first: Derivative, name: str) -> str:
    """An operand's name among the inputs of the gradients' program."""
    return first.seeds[name.removeprefix(_SEED)] if name.startswith(_SEED) else name


def _alias(x: Tensor, needed: bool, again: bool) -> Tensor:
    """``x`` to differentiate by where it is ``needed``; ``again``: in the graph of ``x``."""
    if again:
        return x.view_as(x) if x.requires_grad else x
    return x.detach().requires_grad_(needed)


def _pulled(outputs: Named, wanted: Named, seeds: Named, create_graph: bool) -> Named:
    """Gradients by ``wanted`` of the sum of ``outputs`` times ``seeds``, by torch."""
    named = [name for name in seeds if name in outputs and outputs[name].requires_grad]
    if not named or not wanted:
        return {}
    given = [outputs[name] for name in named], list(wanted.values()), [seeds[name] for name in named]
    found = gradients_from(*given, create_graph=create_graph)
    return {name: x for name, x in zip(wanted, found, strict=True) if x is not None}


def _dropped(value: Value, x: Any, seed: int) -> Any:
    """Dropout by the kernels' draws, in torch's graph."""
    p, stream = value["p"], value["stream"]
    if isinstance(x, SparseFeatures):
        _, values = SparseOperand.of(x).dropped(p, int(seed), stream).by_row()
        return SparseFeatures(x.indptr, x.indices, values, x.shape)
    rows = (x.shape[0], math.prod(x.shape[1:])) if x.dim() else (1, 1)
    kept = dense.dropout(torch.ones(rows, dtype=torch.float32), p, int(seed), stream)
    return x * kept.to(x.dtype).reshape(x.shape)
