"""Samplers by name, with what the trainer knows filled in.

Comes in: a name, or a sampler that the caller made. Goes out: a sampler over the dataset's graph. Called by the
mini-batch trainer.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.nn.module import CompiledModule
from graphweft.nn.node_embedding import NodeEmbedding
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.saint import SaintEdgeSampler, SaintNodeSampler, SaintWalkSampler
from graphweft.sample.sampler import GroupSampler, Sampler
from graphweft.sample.segment import SegmentSampler
from graphweft.sample.shadow import ShadowSampler
from graphweft.sample.whole_graphs import GraphSampler
from graphweft.train.options import SAMPLERS, check_choice

AnySampler = Sampler | GroupSampler

USUAL_FANOUTS = (15, 10, 5)
USUAL_LAYER = 512
USUAL_SCOPE = (10, 5)
USUAL_WALK = 2


def sampler_of(
    model: nn.Module,
    graph: Graph,
    given: str | AnySampler,
    fanouts: Sequence[int] | None,
    graph_id: Tensor | None = None,
) -> AnySampler:
    """The sampler called ``given``, or ``given`` itself.

    ``fanouts``: in-edges of a node for "neighbor" (of every relation for a typed model) and "shadow", nodes of a layer
    for "layer"; None for the usual ones.
    Walks of "saint-walk" have as many steps as the model has layers. "graphs" needs ``graph_id``, the graph of each
    node.

    Raises: ConfigError for an unknown name, or fan-outs that do not fit sampler or model.

    Example:
        >>> sampler_of(nn.Linear(1, 1), Graph([0], [1]), "shadow", None).fanouts
        (10, 5)
    """
    layers = _layers(model)
    if not isinstance(given, str):
        if fanouts is not None:
            raise ConfigError("fanouts cannot be combined with a sampler object, which has its own")
        drawn = given.fanouts if isinstance(given, NeighborSampler | SegmentSampler) else None
        blocks = getattr(given, "sizes", None) or drawn
        if layers is not None and blocks is not None and len(blocks) != layers:
            raise ConfigError(f"sampler: expected one of {layers} hops, one per layer, got {len(blocks)}")
        return given
    check_choice("sampler", given, SAMPLERS)
    if given == "neighbor":
        wanted = fitting_fanouts(model, fanouts)
        return SegmentSampler(graph, wanted) if isinstance(model, TypedStack) else NeighborSampler(graph, wanted)
    if isinstance(model, TypedStack):
        raise ConfigError(f"sampler: expected neighbor for {type(model).__name__}, a model of types, got {given}")
    if given == "layer":
        return LayerSampler(graph, fitting_fanouts(model, fanouts, (USUAL_LAYER,)))
    if given == "shadow":
        return ShadowSampler(graph, USUAL_SCOPE if fanouts is None else tuple(fanouts))
    if fanouts is not None:
        raise ConfigError(f"fanouts={','.join(map(str, fanouts))} cannot be combined with sampler={given}")
    if given == "graphs":
        if graph_id is None:
            raise ConfigError(
                "sampler='graphs' cannot be combined with one graph; gw.Dataset.from_graphs takes several"
            )
        return GraphSampler(graph, graph_id)
    if given == "saint-node":
        return SaintNodeSampler(graph)
    if given == "saint-edge":
        return SaintEdgeSampler(graph)
    return SaintWalkSampler(graph, layers or USUAL_WALK)


def usual_graphs(sampler: str | AnySampler, mode: str | None, batch_size: int | None) -> int | None:
    """``batch_size``, which is one graph where none is given and whole graphs are drawn."""
    whole = mode == "mini" and (sampler == "graphs" or isinstance(sampler, GraphSampler))
    return 1 if whole and batch_size is None else batch_size


def fitting_fanouts(
    model: nn.Module, fanouts: Sequence[int] | None, usual: tuple[int, ...] = USUAL_FANOUTS
) -> tuple[int, ...]:
    """Numbers, one a layer where the number of layers is known; the last usual one repeats.

    Raises: ConfigError.
    """
    layers = _layers(model)
    if fanouts is None:
        wanted = layers or len(USUAL_FANOUTS)
        return tuple(usual[min(i, len(usual) - 1)] for i in range(wanted))
    if layers is not None and len(fanouts) != layers:
        raise ConfigError(f"fanouts: expected {layers} numbers, one per layer, got {','.join(map(str, fanouts))}")
    return tuple(fanouts)


def _layers(model: nn.Module) -> int | None:
    """Layers of the model; None: unknown."""
    model = model.model if isinstance(model, NodeEmbedding) else model
    return len(model.layers) if isinstance(model, Stack) else 1 if isinstance(model, CompiledModule) else None
