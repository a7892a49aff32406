"""Calls whose node fields are products by weights, made by plain torch right before: the compiler gets the factors.

Comes in: a raised call and what it is called with. Goes out: what runs it from rows and weights in place of products,
or None where that gains nothing. ``z = x @ W``, then a sum over edges of ``z``, is what users write; where rows of
``x`` are narrower, ``(A x) W`` moves less (``passes/placement.py``, ``passes/late.py``), which the compiler chooses by
cost once it knows of ``x`` and ``W``. Torch's own graph tells: nothing is recorded, and what it does not tell of (no
gradients, hooks on the product, what was written in place, other operations) stays as it is. Called by
``user_call.py``.

Gradients go to ``x`` and ``W`` past the product. Where somebody can see the product's own gradient (a hook on it,
``torch.autograd.grad`` by it), the backward pass is that of the call as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from graphweft import _config
from graphweft._backward import gradients_from
from graphweft._torch_private import (
    Multiplied,
    forward_ad_is_on,
    is_followed_everywhere,
    is_watched_tensor,
    multiplied,
    saved_tensor_hooks_are_on,
    transforms_are_on,
)
from graphweft.frontend.stored import StoredCall
from graphweft.frontend.udf import RaisedCall
from graphweft.graph.degrees import receivers
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.ir.residency import Residency
from graphweft.nn.products import MANY, factors_of, is_plain
from graphweft.passes.placement import Order
from graphweft.runtime.compile import Arguments, CompiledFunction, Field
from graphweft.storage.feature import is_dense

_FIELD = "node:"
_ROWS, _WEIGHT, _BIAS = "rows:", "weight:", "bias:"  # begin the names of a field's factors
_EVERYWHERE = torch.zeros(0, requires_grad=True)  # a leaf that only backward passes to all leaves go to


class _Kind(NamedTuple):
    """A field that is given by its factors.

    Attributes:
        name: Its name in the program.
        dims: The sizes of its rows.
        has_bias: Whether a bias is added to the product.
    """

    name: str
    dims: tuple[int, ...]
    has_bias: bool


class FactoredCall(NamedTuple):
    """What runs a call from factors, what it is called with, and the factors by field."""

    function: CompiledFunction
    arguments: Arguments
    factors: Mapping[str, Multiplied]


class Factored:
    """The forms of one raised call with node fields given by their factors.

    Args:
        raised: The call; it draws nothing and writes no buffer.
    """

    def __init__(self, raised: RaisedCall | StoredCall) -> None:
        self._raised = raised
        self._forms: dict[tuple[Any, ...], CompiledFunction] = {}

    def choose(self, graph: Graph, given: Mapping[str, Field]) -> FactoredCall | None:
        """What runs the call on what is ``given``; None where no product goes behind a sum."""
        factors = _factors(graph, given)
        while factors:
            kinds = tuple(
                _Kind(name, tuple(given[name][0].shape[1:]), x.bias is not None) for name, x in factors.items()
            )
            function, arguments = self._form(graph, kinds), _arguments(graph, given, factors)
            plan = function.ready(arguments)
            if plan is None or plan.saved_outputs:  # which torch guards against writing; those of _Routed it does not
                return None
            orders = plan.compiled.orders
            late = {name: x for name, x in factors.items() if orders.get(_WEIGHT + name) is Order.AGGREGATE}
            if len(late) == len(factors):
                return FactoredCall(function, arguments, factors)
            factors = late
        return None

    def _form(self, graph: Graph, kinds: tuple[_Kind, ...]) -> CompiledFunction:
        """The compiled function for ``graph``."""
        isolated = receivers(graph) is not None
        if (isolated, kinds) not in self._forms:

            def describe(builder: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
                return self._raised.write(builder, _multiplied(builder, inputs, kinds), isolated, True)

            self._forms[isolated, kinds] = CompiledFunction(describe, leaves_out=isolated and self._raised.risky)
        return self._forms[isolated, kinds]


def _multiplied(builder: Builder, inputs: Mapping[str, Value], kinds: Sequence[_Kind]) -> dict[str, Value]:
    """The inputs of the call as it stands, products written out."""
    given = dict(inputs)
    for name, dims, has_bias in kinds:
        product = builder.add(Op.MATMUL, given.pop(_ROWS + name), given.pop(_WEIGHT + name))
        product = builder.add(Op.BIAS, product, given.pop(_BIAS + name)) if has_bias else product
        given[name] = product if dims == product.tensor.dims else builder.add(Op.RESHAPE, product, dims=dims)
    return given


def _arguments(graph: Graph, given: Mapping[str, Field], factors: Mapping[str, Multiplied]) -> Arguments:
    fields = {name: field for name, field in given.items() if name not in factors}
    for name, found in factors.items():
        fields[_ROWS + name] = found.rows, Residency.SRC
        fields[_WEIGHT + name] = found.weight, Residency.SHARED
        if found.bias is not None:
            fields[_BIAS + name] = found.bias, Residency.SHARED
    return Arguments(graph, None, {}, None, 0, False, fields)


def _factors(graph: Graph, given: Mapping[str, Field]) -> dict[str, Multiplied]:
    """Factors of node fields, where their rows are narrower than the products."""
    if not graph.is_square or graph.num_dst < MANY or not torch.is_grad_enabled():
        return {}
    if not _config.current().forward_products:
        return {}
    found = {
        name: factors
        for name, (tensor, _) in given.items()
        if name.startswith(_FIELD) and type(tensor) is Tensor and (factors := multiplied(tensor, factors_of))
    }
    some = {name: factors for name, factors in found.items() if _is_worth_it(factors, given[name][0])}
    if not some or transforms_are_on() or forward_ad_is_on() or saved_tensor_hooks_are_on():
        return {}
    return {} if torch.is_autocast_enabled("cpu") else some


def _is_worth_it(factors: Multiplied, field: Tensor) -> bool:
    """Whether sums over narrower rows are possible, of tensors that the kernels take and nobody watches."""
    parts = [part for part in (*factors, field) if part is not None]
    if not all(map(is_plain, parts)) or is_watched_tensor(field) or is_watched_tensor(factors.product):
        return False
    return factors.product.shape[0] == field.shape[0] and factors.rows.shape[1] < factors.product.shape[1]


def run_factored(choice: FactoredCall, given: Mapping[str, Field], plain: CompiledFunction) -> dict[str, Tensor]:
    """Outputs by name, in torch's graph; ``plain``: what runs the call as it stands."""
    results = choice.function(choice.arguments)
    outputs = _apart({name: tensor for name, tensor in results.items() if tensor.requires_grad}, choice)
    route = _Route(choice, given, tuple(outputs), plain)
    inputs = [given[name][0] for name in (*route.products, *route.others)]
    factors = [x for found in choice.factors.values() for x in found[:3] if x is not None]
    routed = _Routed.apply(route, factors, _EVERYWHERE, *outputs.values(), *inputs)  # type: ignore[no-untyped-call]
    return {**results, **dict(zip(outputs, routed, strict=True))}


def _apart(outputs: dict[str, Tensor], choice: FactoredCall) -> dict[str, Tensor]:
    """The outputs; copies of those whose memory is read later or twice, as whoever gets them may write into it."""
    kept = [x for tensor in outputs.values() if tensor.grad_fn is not None for x in tensor.grad_fn.kept]  # type: ignore[attr-defined]
    read = {_memory(x) for x in (*kept, *choice.arguments.others()) if is_dense(x)}
    found = {}
    for name, tensor in outputs.items():
        found[name] = tensor.clone() if _memory(tensor) in read else tensor
        read.add(_memory(tensor))
    return found


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class _Route:
    """What a backward pass chooses its way by. Tensors with gradients are torch's to keep, and products nobody's.

    Attributes:
        outputs: Names of the outputs that have gradients.
        products: Names of the fields that are products.
        others: Names of the other inputs of the call as it stands that have gradients.
    """

    def __init__(
        self, choice: FactoredCall, given: Mapping[str, Field], outputs: tuple[str, ...], plain: CompiledFunction
    ) -> None:
        self.outputs, self.products = outputs, tuple(choice.factors)
        self.others = tuple(name for name, (x, _) in given.items() if x.requires_grad and name not in choice.factors)
        self._graph, self._plain = choice.arguments.graph, plain
        self._rows = {name: given[name][1] for name in (*self.products, *self.others)}
        self._rest = {name: field for name, field in given.items() if name not in self._rows}
        self._shapes = [given[name][0].shape for name in self.products]
        self._has_bias = [x.bias is not None for x in choice.factors.values()]
        self._held = [(TensorWeakRef(given[name][0]), TensorWeakRef(x.product)) for name, x in choice.factors.items()]

    def goes_past_products(self) -> bool:
        """Whether nobody can see the gradients by products."""
        seen = [x for refs in self._held for ref in refs if (x := _as_made(ref)) is not None]
        return not seen or (is_followed_everywhere(_EVERYWHERE) and not any(map(is_watched_tensor, seen)))

    def gradients(self, saved: Sequence[Tensor], by: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Those of the call as it stands, of products and others; ``by``: gradients of the outputs."""
        again = torch.is_grad_enabled()  # somebody may want to differentiate the gradients
        others, factors = saved[: len(self.others)], iter(saved[len(self.others) :])
        inputs = [*(self._field(at, factors) for at in range(len(self.products))), *others]
        inputs = [x.view_as(x) if again else x.detach().requires_grad_() for x in inputs]
        fields = {name: (x, self._rows[name]) for name, x in zip(self._rows, inputs, strict=True)}
        with torch.enable_grad():
            results = self._plain(Arguments(self._graph, None, {}, None, 0, False, {**self._rest, **fields}))
        given = {name: x for name, x in zip(self.outputs, by, strict=True) if x is not None}
        return gradients_from([results[name] for name in given], inputs, [*given.values()], create_graph=again)

    def _field(self, at: int, factors: Iterator[Tensor]) -> Tensor:
        """A field that is a product: as somebody holds it, or made again."""
        made = next(factors) @ next(factors)
        made = made + next(factors) if self._has_bias[at] else made
        field, product = map(_as_made, self._held[at])
        if field is not None:
            return field
        return (made if product is None else product).view(self._shapes[at])


def _as_made(ref: TensorWeakRef) -> Tensor | None:
    """The tensor, where somebody holds it and nobody wrote over it."""
    found: Tensor | None = ref()
    return None if found is None or found._version else found


class _Routed(torch.autograd.Function):
    """``_Routed.apply(route, factors, everywhere, *outputs, *products, *others)``: the outputs as they are.

    Their gradients go on to what computed them from factors, or, where products have to have theirs, to the inputs of
    the call as it stands.
    """

    @staticmethod
    def forward(ctx: Any, route: _Route, factors: list[Tensor], everywhere: Tensor, *tensors: Tensor) -> Any:
        """The outputs."""
        ctx.route = route
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[len(tensors) - len(route.others) :], *factors)
        return tuple(x.data for x in tensors[: len(route.outputs)])  # no views, which may not be written into

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        """Gradients of outputs, or of products and others."""
        route: _Route = ctx.route
        if route.goes_past_products():
            return None, None, None, *gradients, *[None] * (len(route.products) + len(route.others))
        return None, None, None, *[None] * len(gradients), *route.gradients(ctx.saved_tensors, gradients)


__all__ = ["Factored", "FactoredCall", "run_factored"]
