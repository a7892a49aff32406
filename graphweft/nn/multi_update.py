"""Message passing with functions of their own for every relation of a typed graph, as DGL's ``multi_update_all``.

Comes in: a typed graph, functions by relation, fields by type. Goes out: fields by destination type. Called by users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.frontend.call import Function
from graphweft.graph.graph import Graph
from graphweft.nn.message_passing import update_all
from graphweft.nn.relations import Relation, check_relations, check_typed, check_way, joined, relation_of, rows_by_type

Functions = tuple[Function, Function] | tuple[Function, Function, Function | None]


def multi_update_all(
    graph: Graph,
    functions: Mapping[Relation | str, Functions],
    cross_reducer: str | Callable[[Sequence[Tensor]], Tensor] = "sum",
    update: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
    *,
    ndata: Mapping[str, Any] | None = None,
    edata: Mapping[str, Mapping[Relation, Tensor]] | None = None,
    params: Sequence[Any] = (),
) -> dict[str, dict[str, Tensor]]:
    """One round of message passing for each relation, with separate functions. The results for one type are combined.

    Args:
        graph: The typed graph.
        functions: Dict from a relation, or from its name if it is unique, to (message, reduce) or (message, reduce,
            update), as in :func:`graphweft.update_all`.
        cross_reducer: ``"sum"``, ``"mean"``, ``"min"``, ``"max"``, ``"cat"`` or ``"stack"``. Or a function that gets
            the list of results (nodes, ...) of the relations into a type, in the order of ``functions``.
        update: A function of the combined fields of a type, called once per type.
        ndata: Node fields: dicts of rows by type, or one tensor of all nodes, type after type. The functions of a
            relation see the fields that both of its types have.
        edata: Edge fields: dicts of rows by relation.
        params: Further arguments of every message function.

    Returns: the combined fields by destination type.

    Raises: GraphError for a graph that is not typed or lacks a relation; ConfigError for an unknown reducer; else as
    :func:`graphweft.update_all`.

    Example:
        >>> import torch
        >>> from graphweft.nn import fn
        >>> g = Graph.hetero(
        ...     {("a", "x", "c"): ([0, 1], [0, 0]), ("b", "y", "c"): ([0], [0])}, {"a": 2, "b": 1, "c": 1}
        ... )
        >>> h = {"a": torch.tensor([[1.0], [2.0]]), "b": torch.tensor([[5.0]]), "c": torch.zeros(1, 1)}
        >>> pair = (fn.copy_u("h", "m"), fn.sum("m", "out"))
        >>> multi_update_all(g, {"x": pair, "y": pair}, "max", ndata={"h": h})["c"]["out"].tolist()
        [[5.0]]
    """
    who = "multi_update_all"
    check_typed(who, graph)
    if isinstance(cross_reducer, str):
        check_way(who, "cross_reducer", cross_reducer)
    elif not callable(cross_reducer):
        raise ConfigError(f"{who}: expected cross_reducer as a name or a function, got {cross_reducer!r}")
    named = {_relation(graph, name): given for name, given in functions.items()}
    check_relations(who, graph, list(named))
    nodes = {field: rows_by_type(who, graph, rows) for field, rows in (ndata or {}).items()}
    made: dict[str, dict[str, list[Tensor]]] = {}
    for relation, given in named.items():
        source, _, target = relation
        over = relation_of(graph, relation)
        fields = {
            field: rows[source] if source == target else (rows[source], rows[target])
            for field, rows in nodes.items()
            if source in rows and target in rows
        }
        edges = {field: rows[relation] for field, rows in (edata or {}).items() if relation in rows}
        for field, rows in update_all(over, *given, ndata=fields, edata=edges, params=params).items():
            made.setdefault(target, {}).setdefault(field, []).append(rows)
    found = {}
    for target, fields_of in made.items():
        out = {
            field: joined(who, rows, cross_reducer) if isinstance(cross_reducer, str) else cross_reducer(rows)
            for field, rows in fields_of.items()
        }
        found[target] = out if update is None else update(out)
    return found


def _relation(graph: Graph, name: Relation | str) -> Relation:
    """A relation by its name alone. Raises: ConfigError where several have it."""
    if not isinstance(name, str):
        return name
    alike = [relation for relation in graph.relations if relation[1] == name]
    if len(alike) > 1:
        raise ConfigError(f"multi_update_all: expected one relation called {name!r}, got {', '.join(map(str, alike))}")
    return alike[0] if alike else ("", name, "")
