"""Batches that are drawn on a device: who draws them, and which rows of features lie there.

Comes in: a device and what a loader was given. Goes out: the device's sampler, and its rows. Called by the loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graphweft._errors import ConfigError, MemoryBudgetError
from graphweft.loader.device_rows import DeviceRows
from graphweft.runtime.targets import target_of
from graphweft.storage.device_cache import choose, expected_reads
from graphweft.storage.feature import is_dense


def drawn_on(device: torch.device | None, sampler: Any, others: Mapping[str, Any]) -> Any:
    """What draws the batches of ``sampler`` on ``device``; itself on the CPU.

    Raises: ConfigError where nothing draws there, or for ``others`` that only the CPU has.
    """
    if device is None:
        return sampler
    target = target_of(device)
    if not target.has_samplers and device.type == "cpu":
        return sampler
    for name, given in others.items():
        if given is not None:
            raise ConfigError(f"device='{device}' cannot be combined with {name}; batch.to(device) in the loop")
    return target.sampler(sampler, device)


def hot_rows(loader: Any, x: Any, memory: int) -> DeviceRows:
    """The rows of ``x`` that the batches of ``loader`` read most, as many as fit beside the structure.

    Raises: ConfigError for features that are not dense, MemoryBudgetError where the structure does not fit.
    """
    if not is_dense(x):
        raise ConfigError("device_memory cannot be combined with sparse features; gw.load(..., dense) has rows")
    graph = loader.graph
    structure = graph.csc.nbytes + 4 * graph.num_nodes
    if structure > memory:
        raise MemoryBudgetError(
            f"device_memory: expected at least {structure} bytes for the structure, got {memory}", structure
        )
    reads = expected_reads(graph, loader.seeds, loader.batch_size, loader.fanouts)
    row = x[:1].nbytes
    kept = choose(memory - structure, reads, row, None).rows if structure + x.nbytes > memory else None
    return DeviceRows(x, kept, loader.device)


__all__ = ["drawn_on", "hot_rows"]
