"""Times on a CUDA device: medians of events, memory above what was there, and the machine's stamp with the device."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from graphweft.measure.bench import machine_stamp

HERE = torch.device("cuda")


def stamp() -> dict[str, str]:
    """Of the machine, with its device and what runs there."""
    import triton

    free, total = torch.cuda.mem_get_info()
    return {
        **machine_stamp(),
        "device": torch.cuda.get_device_name(),
        "device_gib": f"{total / 2**30:.0f}",
        "device_free_gib": f"{free / 2**30:.0f}",
        "cuda": str(torch.version.cuda),
        "triton": triton.__version__,
    }


def milliseconds(run: Callable[[], Any], times: int = 20, warm: int = 3) -> tuple[float, float]:
    """Median over runs, each between two events, and its interquartile range over it."""
    for _ in range(warm):
        run()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
    torch.cuda.synchronize()
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    found = [begin.elapsed_time(end) for begin, end in pairs]
    low, middle, high = statistics.quantiles(found, n=4)
    return middle, (high - low) / middle


def recorded(run: Callable[[], Any]) -> Callable[[], Any]:
    """``run`` as a CUDA graph, as the trainer runs its steps: without the time of Python between launches."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(aside):
        for _ in range(3):
            run()
    aside.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def copy_rate() -> float:
    """Bytes a second that a copy reads and writes: the ceiling of what is bound by memory."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=HERE)
    target = torch.empty_like(source)
    return 2 * source.numel() / (milliseconds(lambda: target.copy_(source))[0] / 1e3)
