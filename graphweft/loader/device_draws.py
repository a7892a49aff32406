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

# Threads that launch: more of them wait for each other.
AHEAD = {"prefetch": 4, "workers": 2}


def drawn_on(device: torch.device | None, sampler: Any, others: Mapping[str, Any], memory: int | None = None) -> Any:
    """What draws the batches of ``sampler`` on ``device``; itself on the CPU.

    ``memory``: bytes there beyond which lists of in-edges stay in host memory.

    Raises: ConfigError where nothing draws there, or for ``others`` that only the CPU has; MemoryBudgetError where
        not even offsets and numbers of nodes fit.
    """
    if device is None:
        return sampler
    target = target_of(device)
    if not target.has_samplers and device.type == "cpu":
        return sampler
    for name, given in others.items():
        if given is not None:
            raise ConfigError(f"device='{device}' cannot be combined with {name}; batch.to(device) in the loop")
    made = target.sampler(sampler, device, memory)
    least = int(getattr(made, "nbytes", 0))
    if memory is not None and least > memory:
        told = f"device_memory: expected at least {least} bytes for the structure, got {memory}"
        raise MemoryBudgetError(told, least)
    return made


def hot_rows(loader: Any, x: Any, memory: int, far: str) -> DeviceRows:
    """The rows of ``x`` that the batches of ``loader`` read most, as many as fit beside what draws there.

    Where lists of in-edges stay in host memory, those that save more a byte than rows are sent, too.

    Raises: ConfigError for features that are not dense, or for rows that are to be read and cannot.
    """
    if not is_dense(x):
        raise ConfigError("device_memory cannot be combined with sparse features; gw.load(..., dense) has rows")
    structure, draws = int(getattr(loader._draws, "nbytes", 0)), loader._draws
    are_far = getattr(draws, "is_far", False)
    if structure + x.nbytes <= memory and not are_far:
        return DeviceRows(x, None, loader.device, far)
    reads = expected_reads(loader.graph, loader.seeds, loader.batch_size, loader.fanouts)
    places = 0 if far == "sent" else 4 * loader.graph.num_nodes  # which a kernel looks up
    room, row, nodes = memory - structure - places, x[:1].nbytes, loader.graph.num_nodes
    kept = torch.arange(nodes) if x.nbytes <= room else choose(max(room, 0), reads, row, None).rows
    if are_far and room > 8 * nodes:  # where each list begins
        degrees, columns = loader.graph.in_degrees(), loader.graph.csc.indices.element_size()
        most = -1 if min(loader.fanouts) < 0 else max(loader.fanouts)
        share = choose(room - 8 * nodes, reads, row, degrees, most, columns)
        if share.lists.numel():
            kept = share.rows
            draws.keep_lists(share.lists)
    made = DeviceRows(x, kept, loader.device, far)
    typical = torch.rand(reads.shape, generator=torch.Generator().manual_seed(0), dtype=reads.dtype) < reads
    made.settle(typical.nonzero().reshape(-1))
    return made


__all__ = ["drawn_on", "hot_rows"]
