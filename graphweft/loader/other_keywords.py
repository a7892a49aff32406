"""Keywords of PyTorch Geometric's loaders, and what the loaders here have in their place.

Comes in: keywords that a loader does not have. Goes out: one error that says what to write. Called by the loaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphweft._errors import ConfigError

_OWN_THREADS = "nothing: batches are prepared by threads that share all data (workers=, prefetch=)"
_IN_THE_LOOP = "a function in the loop: for batch in map(transform, loader)"
_IN_PLACE_OF = {
    "num_neighbors": "fanouts",
    "input_nodes": "seeds: ids, a mask, or (type, ids or mask)",
    "input_time": "time, and sampler=gw.SegmentSampler(graph, fanouts, time=...)",
    "time_attr": "sampler=gw.SegmentSampler(graph, fanouts, time=...), the times themselves",
    "temporal_strategy": "sampler=gw.SegmentSampler(..., strategy='uniform' or 'recent')",
    "weight_attr": "weight, the weights themselves, by edge id",
    "disjoint": "sampler=gw.SegmentSampler(graph, fanouts, disjoint=True)",
    "directed": "sampler=gw.ShadowSampler(graph, fanouts) for all edges between the nodes of a batch",
    "subgraph_type": "sampler=gw.ShadowSampler(graph, fanouts) for all edges between the nodes of a seed's subgraph",
    "neighbor_sampler": "sampler",
    "link_sampler": "fanouts, replace and weight",
    "batch_sampler": "batch_size, shuffle and drop_last",
    "generator": "seed",
    "num_workers": "workers, threads",
    "prefetch_factor": "prefetch",
    "persistent_workers": _OWN_THREADS,
    "multiprocessing_context": _OWN_THREADS,
    "worker_init_fn": _OWN_THREADS,
    "filter_per_worker": _OWN_THREADS,
    "timeout": _OWN_THREADS,
    "pin_memory": "batch.to(device) in the loop",
    "pin_memory_device": "batch.to(device) in the loop",
    "transform": _IN_THE_LOOP,
    "transform_sampler_output": _IN_THE_LOOP,
    "collate_fn": _IN_THE_LOOP,
    "custom_cls": _IN_THE_LOOP,
    "is_sorted": "nothing: a graph is sorted once, when it is made",
    "neg_sampling": "negatives ('binary', 'tail', 'triplet', ...) and amount",
    "neg_sampling_ratio": "negatives='binary' and amount",
}


def refuse(who: str, given: Mapping[str, Any]) -> None:
    """Nothing for no keywords.

    Raises: ConfigError that says what stands in a known keyword's place; TypeError, as Python does, for others.

    Example:
        >>> refuse("Loader", {"num_neighbors": [15, 10]})
        Traceback (most recent call last):
        graphweft._errors.ConfigError: Loader: expected fanouts in place of num_neighbors
    """
    for name in given:
        if name in _IN_PLACE_OF:
            raise ConfigError(f"{who}: expected {_IN_PLACE_OF[name]} in place of {name}")
        raise TypeError(f"{who}.__init__() got an unexpected keyword argument {name!r}")
