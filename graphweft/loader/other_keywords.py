"""Keywords of PyTorch Geometric's and DGL's loaders, and what the loaders here have in their place.

Comes in: keywords that a loader does not have. Goes out: one error that says what to write. Called by the loaders.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from graphweft._errors import ConfigError
from graphweft._keywords import unexpected

_OWN_THREADS = "nothing: batches are prepared by threads that share all data (workers=, prefetch=)"
_IN_THE_LOOP = "a function in the loop: for batch in map(transform, loader)"
_INDUCED = "sampler=gw.sampling.InducedSampler(gw.sampling.NeighborSampler(graph, fanouts)), for 'induced',"
_ONE_PLACE = "nothing: batches are made on the CPU; batch.to(device) in the loop"
_OF_DGL = {
    "g": "ds, the first argument",
    "graph": "ds, the first argument",
    "data_source": "ds, the first argument",
    "indices": "seeds",
    "nids": "seeds",
    "item_set": "seeds",
    "graph_sampler": "sampler, or fanouts",
    "block_sampler": "sampler, or fanouts",
    "device": _ONE_PLACE,
    "output_device": _ONE_PLACE,
    "use_uva": _ONE_PLACE,
    "gpu_cache": _ONE_PLACE,
    "pin_prefetcher": _ONE_PLACE,
    "use_alternate_streams": _ONE_PLACE,
    "use_prefetch_thread": "prefetch and workers",
    "use_ddp": "share=(rank, number of ranks)",
    "ddp_seed": "seed, the same on all ranks, and share=(rank, number of ranks)",
    "prob": "weight, the weights themselves, by edge id",
    "probs_or_mask": "weight, the weights themselves, by edge id",
    "mask": "weight, 1 and 0 by edge id",
    "prefetch_node_feats": "nothing: batch.x and every tensor of graph.ndata are read by name",
    "prefetch_edge_feats": "nothing: every tensor of graph.edata is read by name",
    "prefetch_labels": "nothing: batch.y is read by name",
    "edge_dir": "ds with graph.reverse() as its graph",
}
_IN_PLACE_OF = {
    **_OF_DGL,
    "num_neighbors": "fanouts",
    "input_nodes": "seeds: ids, a mask, or (type, ids or mask)",
    "input_time": "time, and sampler=gw.sampling.SegmentSampler(graph, fanouts, time=...)",
    "time_attr": "sampler=gw.sampling.SegmentSampler(graph, fanouts, time=...), the times themselves",
    "temporal_strategy": "sampler=gw.sampling.SegmentSampler(..., strategy='uniform' or 'recent')",
    "weight_attr": "weight, the weights themselves, by edge id",
    "disjoint": "sampler=gw.sampling.SegmentSampler(graph, fanouts, disjoint=True)",
    "directed": _INDUCED,
    "subgraph_type": _INDUCED,
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


_OF_LINKS = {
    **_IN_PLACE_OF,
    "indices": "edge_label_index, the ends of the edges, (2, P)",
    "eids": "edge_label_index, the ends of the edges, (2, P)",
    "item_set": "edge_label_index, the ends of the edges, (2, P)",
    "seeds": "edge_label_index, the ends of the edges, (2, P)",
    "graph_sampler": "fanouts, replace and weight",
    "block_sampler": "fanouts, replace and weight",
    "negative_sampler": "negatives ('binary', 'tail', 'triplet', ...) and amount",
    "g_sampling": "ds, the graph that messages pass over, and known",
    "reverse_eids": "exclude='both'",
    "reverse_etypes": "exclude='both' and reverse_relation",
    "input_nodes": "edge_label_index",
    "input_time": "edge_label_time",
    "time_attr": "time, the times themselves",
    "temporal_strategy": "strategy='uniform' or 'recent'",
    "disjoint": "time, with which every end has a tree of its own",
    "directed": "nothing: edges go from sampled nodes to those that drew them",
    "subgraph_type": "nothing: edges go from sampled nodes to those that drew them",
    "neighbor_sampler": "fanouts, replace and weight",
    "sampler": "fanouts, replace and weight",
}


def refuse(who: str, given: Mapping[str, Any], loader: type) -> None:
    """Nothing for no keywords.

    Raises: ConfigError that says what stands in a known keyword's place; TypeError, as Python does, for others.

    Example:
        >>> refuse("Loader", {"num_neighbors": [15, 10]}, object)
        Traceback (most recent call last):
        graphweft._errors.ConfigError: Loader: expected fanouts in place of num_neighbors
    """
    answers = _OF_LINKS if who == "LinkLoader" else _IN_PLACE_OF
    for name in given:
        if name in answers:
            raise ConfigError(f"{who}: expected {answers[name]} in place of {name}")
        raise unexpected(f"{who}.__init__()", name, inspect.signature(loader).parameters)
