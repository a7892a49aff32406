"""Message-passing calls on a graph that is shared out over processes.

Comes in: a :class:`Call` with rows of own nodes. Goes out: results for own nodes, as one process would have them. Only
the fields that the message reads at the sources travel. Called by ``message_passing.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.frontend.call import Call, Fields
from graphweft.frontend.captured import capture
from graphweft.graph.block import Block
from graphweft.graph.derived import derived
from graphweft.graph.shared import SharedGraph
from graphweft.nn.user_call import compiled_call, execute


def execute_shared(call: Call) -> Fields:
    """Runs ``call``, whose graph is a :class:`SharedGraph`.

    Raises: ConfigError for functions that are not compiled, or that read all edges or nodes at once.
    """
    graph = call.graph
    assert isinstance(graph, SharedGraph)  # as the caller saw
    names = _read_at_sources(replace(call, graph=graph.block))

    def run(block: Block, sources: Fields) -> Fields:
        span = graph.span(block)
        rows = {name: tensor[span] for name, tensor in call.dst.items()}
        missing = {name: tensor for name, tensor in call.src.items() if name not in sources}  # read by nobody
        edges = derived(block, _edge_ids)
        src = {name: sources[name] if name in sources else missing[name][:0] for name in call.src}
        given = {name: tensor[edges] for name, tensor in call.edata.items()}
        return execute(replace(call, graph=block, src=src, dst=rows, edata=given))

    fields = {name: call.src[name] for name in names}
    if not fields:
        return run(graph.block, {})
    kinds = {tensor.dtype for tensor in fields.values()}
    if len(kinds) > 1:
        packed = {kind: {n: t for n, t in fields.items() if t.dtype == kind} for kind in kinds}
        order = sorted(kinds, key=str)  # the same on all processes
        tables = {kind: graph.fetched(_packed(list(packed[kind].values()))) for kind in order}
        sources = {n: t for kind in order for n, t in _unpacked(tables[kind], packed[kind]).items()}
        return run(graph.block, sources)
    rows = _packed(list(fields.values()))
    pieces = graph.over(rows, lambda block, table: _tied(block, run(block, _unpacked(table, fields)), table))
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _read_at_sources(call: Call) -> list[str]:
    """Names of the fields that the message reads at the sources of edges."""
    captured = capture((call.message, call.reduce, call.update, call.params))
    compiled, failure, _ = compiled_call(call, captured)
    if compiled is None:
        assert failure is not None  # a call is compiled or has a reason
        line = f" ({failure.line})" if failure.line else ""
        raise ConfigError(f"{failure.what} is not supported over several ranks, where functions are compiled{line}")
    given = compiled.raised.given(call, captured)
    if compiled.reads_all_rows(given):
        raise ConfigError(
            "message, reduce or update: a value of all edges or nodes at once is not supported over several ranks; "
            "compute it per node"
        )
    return [name.removeprefix("src:") for name in given if name.startswith("src:")]


def _edge_ids(block: Block) -> Tensor:
    return block.e_id


def _packed(fields: Sequence[Tensor]) -> Tensor:
    """Fields side by side, (rows, columns); one of two dimensions as it is."""
    if len(fields) == 1 and fields[0].dim() == 2:
        return fields[0]
    return torch.cat([field.reshape(field.shape[0], _width(field)) for field in fields], 1)


def _unpacked(table: Tensor, fields: Fields) -> Fields:
    """The rows of ``table`` in the shapes that ``fields`` have."""
    ends = [0, *accumulate(_width(field) for field in fields.values())]
    return {
        name: table[:, a:b].reshape(-1, *field.shape[1:])
        for (name, field), (a, b) in zip(fields.items(), pairwise(ends), strict=True)
    }


def _width(field: Tensor) -> int:
    """Numbers of a row."""
    return int(torch.Size(field.shape[1:]).numel())


def _tied(block: Block, results: Fields, table: Tensor) -> Fields:
    """``results``, from which torch finds ``table`` also where no edge leads there: all processes go back alike."""
    if block.num_edges or not table.requires_grad:
        return results
    return {name: t + table.sum().to(t.dtype) * 0 if t.is_floating_point() else t for name, t in results.items()}
