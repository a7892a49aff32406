"""Rows of edges that are computed when something reads them: what ``neighbor_apply`` returns and ``pull`` joins with.

Comes in: what the rows are made of, and how. Goes out: a tensor without memory of its own. ``pull`` takes its parts and
computes both steps in one program, so that no row of an edge is stored; any other reader gets the rows. Called by
``nn.napa``; ``runtime/compile.py`` reads the rows before a program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweft._backward import gradients_from
from graphweft._errors import GraphWeftError
from graphweft._torch_private import pytree, wrapper_subclass
from graphweft.graph.graph import Graph
from graphweft.ir.residency import Residency
from graphweft.storage.fingerprint import fingerprint

Fields = Mapping[str, tuple[Tensor, Residency]]


@dataclass(frozen=True)
class Recipe:
    """How rows of edges follow from tensors.

    Attributes:
        graph: The graph.
        mode: What is computed, by name.
        fields: The tensors, in torch's graph.
        compute: Gives the rows.
    """

    graph: Graph
    mode: str
    fields: Fields
    compute: Callable[[Fields], Tensor]


class EdgeValues(Tensor):
    """Rows of edges that wait for a reader."""

    recipe: Recipe
    _rows: Tensor | None
    _marks: tuple[Any, ...]

    def waits_for(self, graph: Graph) -> bool:
        """Whether the rows belong to ``graph`` and nobody has read or changed them."""
        return self.recipe.graph is graph and self._rows is None

    def rows(self) -> Tensor:
        """The rows, computed once, outside torch's graph.

        Raises: GraphWeftError after a field was changed in place.
        """
        if self._rows is None:
            self.check()
            with torch.no_grad():
                self._rows = self.recipe.compute(self.recipe.fields)
        return self._rows

    def check(self) -> None:
        """Raises GraphWeftError when a field is not any more what it was."""
        if self._marks != _marks(self.recipe.fields):
            raise GraphWeftError("neighbor_apply: an input was modified before its edge values were read")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Every operation reads the rows."""
        args, kwargs = pytree.tree_map_only(EdgeValues, EdgeValues.rows, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)


def edge_values(recipe: Recipe, width: int) -> Tensor:
    """Rows (edges, width) of ``recipe``, not computed yet."""
    tensors = [tensor for tensor, _ in recipe.fields.values()]
    made: Tensor = _Defer.apply(recipe, width, *tensors)  # type: ignore[no-untyped-call]
    return made


def read(tensor: Tensor) -> Tensor:
    """``tensor`` with memory of its own, in torch's graph."""
    return tensor.view_as(tensor) if isinstance(tensor, EdgeValues) else tensor


def _marks(fields: Fields) -> tuple[Any, ...]:
    """Versions and bytes: writes through NumPy or ``.data`` do not count a version."""
    return tuple(
        (0 if tensor.is_inference() else tensor._version, fingerprint(tensor)) for tensor, _ in fields.values()
    )


class _Defer(torch.autograd.Function):
    """Ties rows that do not exist yet into torch's graph."""

    @staticmethod
    def forward(ctx: Any, recipe: Recipe, width: int, *tensors: Tensor) -> Tensor:
        first = tensors[0]
        shape = (recipe.graph.num_edges, width)
        made = wrapper_subclass(EdgeValues, shape, dtype=first.dtype, device=first.device)
        assert isinstance(made, EdgeValues)  # as asked for
        made.recipe, made._rows, made._marks = recipe, None, _marks(recipe.fields)
        ctx.compute, ctx.kinds = recipe.compute, {name: kind for name, (_, kind) in recipe.fields.items()}
        ctx.save_for_backward(*tensors)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        needed, again = ctx.needs_input_grad[2:], torch.is_grad_enabled()
        with torch.enable_grad():  # aliases: where the gradients are to be differentiated, in the graph of the fields
            leaves = [
                (t if again else t.detach().requires_grad_(n)).view_as(t)
                for t, n in zip(ctx.saved_tensors, needed, strict=True)
            ]
            fields = {name: (t, kind) for (name, kind), t in zip(ctx.kinds.items(), leaves, strict=True)}
            rows = ctx.compute(fields)
        wanted = [t for t, n in zip(leaves, needed, strict=True) if n]
        found = iter(gradients_from([rows], wanted, [gradient], create_graph=again))
        return None, None, *(next(found) if n else None for n in needed)
