"""Batch norms on native kernels.

Comes in: float32 rows on the CPU, vectors of their columns. Goes out: new tensors from the buffer pool, the same bits
for any number of threads. Called by compiled programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from graphweft import _native
from graphweft._abi import TrackedNorm
from graphweft._memory import empty

_batch_norm = _native.declare("gw_batch_norm_f32")
_batch_norm_grad = _native.declare("gw_batch_norm_grad_f32")
_track = _native.declare("gw_track_moments_f32", recorded=False)  # after a step, replayed or not
_track_all = _native.declare("gw_track_norms_f32", recorded=False)
_normalise = _native.declare("gw_normalise_f32")
_at = _native.pointer
_Running = tuple[Tensor, Tensor, Tensor, float | None]  # mean, variance, count, momentum


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, relu: bool = False
) -> tuple[Tensor, Tensor]:
    """``x`` normalised by the statistics of its columns, and these: means, variances over the count of rows.

    Shape: x (n, f), weight and bias (f,) -> (n, f), (2, f).

    Example:
        >>> batch_norm(torch.tensor([[1.0], [3.0]]), None, None, 0.0)
        (tensor([[-1.],
                [ 1.]]), tensor([[2.],
                [1.]]))
    """
    x, (n, f) = x.contiguous(), x.shape
    out, stats = empty((n, f)), torch.empty((2, f), dtype=torch.float32)
    vectors = _flat(weight), _flat(bias)  # which live until the call is over
    _batch_norm(n, f, x.data_ptr(), f, *map(_at, vectors), eps, int(relu), stats.data_ptr(), out.data_ptr(), f)
    return out, stats


def normalise(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, relu: bool
) -> Tensor:
    """``x`` normalised by given statistics.

    Shape: x (n, f), all vectors (f,) -> (n, f).
    """
    x, (n, f) = x.contiguous(), x.shape
    out = empty((n, f))
    vectors = [_flat(v) for v in (mean, variance, weight, bias)]
    _normalise(n, f, x.data_ptr(), f, *map(_at, vectors), eps, int(relu), out.data_ptr(), f)
    return out


def batch_norm_grad(
    x: Tensor, stats: Tensor, dy: Tensor, weight: Tensor | None, eps: float, over: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`batch_norm` without relu by x, weight and bias; ``over``: the first in the memory of ``dy``.

    Shape: x and dy (n, f), stats (2, f), weight (f,) -> (n, f), (f,), (f,).
    """
    x, dy, (n, f) = x.contiguous(), dy.contiguous(), x.shape
    dx = dy if over else empty((n, f))  # which is in the cache
    dweight, dbias = (torch.empty(f, dtype=torch.float32) for _ in range(2))  # not one of two rows: tapes know no views
    weight = _flat(weight)
    given = (x.data_ptr(), f, dy.data_ptr(), f, _at(weight), stats.data_ptr(), eps)
    _batch_norm_grad(n, f, *given, dx.data_ptr(), f, dweight.data_ptr(), dbias.data_ptr())
    return dx, dweight, dbias


def track(stats: Tensor, rows: int, momentum: float, mean: Tensor, variance: Tensor) -> bool:
    """Moves running ``mean`` and ``variance`` in place towards the statistics of ``rows`` rows.

    Shape: stats (2, f), mean and variance (f,). False, and nothing is done, where they are no float32 on the CPU.

    Example:
        >>> mean, variance = torch.zeros(1), torch.ones(1)
        >>> track(torch.tensor([[2.0], [3.0]]), 4, 0.5, mean, variance), mean, variance
        (True, tensor([1.]), tensor([2.5000]))
    """
    if not _are_plain(stats, mean, variance):
        return False
    _track(mean.shape[0], rows, _at(stats), momentum, _at(mean), _at(variance))
    return True


class Tracked:
    """Running statistics of several norms, moved together by one native call towards numbers in the same memory.

    Args:
        norms: Norms, each with the statistics (2, f) that it is moved towards.

    Example:
        >>> norm, stats = nn.BatchNorm1d(1, momentum=0.5), torch.tensor([[2.0], [3.0]])
        >>> made = Tracked.of([(norm, stats)])
        >>> made.move(4), norm.running_mean, norm.running_var, norm.num_batches_tracked
        (None, tensor([1.]), tensor([2.5000]), tensor(1))
    """

    def __init__(self, norms: Sequence[tuple[nn.BatchNorm1d, Tensor]], held: Sequence[_Running]) -> None:
        places = [(kept[0].data_ptr(), kept[1].data_ptr(), kept[2].data_ptr()) for kept in held]
        self._rows: list[tuple[nn.BatchNorm1d, _Running, tuple[int, int, int]]] = [
            (norm, kept, at) for (norm, _), kept, at in zip(norms, held, places, strict=True)
        ]
        rows = [
            TrackedNorm(kept[0].shape[0], _at(stats), *at, kept[3])
            for (_, stats), kept, at in zip(norms, held, places, strict=True)
        ]
        self._table = (TrackedNorm * len(rows))(*rows)

    @classmethod
    def of(cls, norms: Sequence[tuple[nn.BatchNorm1d, Tensor]]) -> Self | None:
        """None where some numbers are no float32 on the CPU, or the momentum changes from batch to batch."""
        norms = [(norm, stats) for norm, stats in norms if norm.running_mean is not None]
        held = [_running(norm) for norm, _ in norms]
        if any(kept[3] is None or not _are_plain(*kept[:2]) for kept in held) or not _are_plain(*(s for _, s in norms)):
            return None
        return cls(norms, held)

    def serves(self) -> bool:
        """Whether the norms have the same running numbers, where they were."""
        for norm, (mean, variance, count, momentum), (at, spread_at, count_at) in self._rows:
            held = norm._buffers
            if held["running_mean"] is not mean or held["running_var"] is not variance or norm.momentum != momentum:
                return False
            if held["num_batches_tracked"] is not count or count.data_ptr() != count_at:
                return False
            if mean.data_ptr() != at or variance.data_ptr() != spread_at:
                return False
        return True

    def move(self, rows: int) -> None:
        """Towards the statistics as they are now, which are those of so many rows."""
        _track_all(self._table, len(self._table), rows)


def _running(norm: nn.BatchNorm1d) -> _Running:
    buffers = norm._buffers
    return buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"], norm.momentum  # type: ignore[return-value]


def _are_plain(*tensors: Tensor) -> bool:
    return all(t.dtype == torch.float32 and t.is_cpu and t.is_contiguous() for t in tensors)


def _flat(vector: Tensor | None) -> Tensor | None:
    return None if vector is None else vector.contiguous()


__all__ = ["Tracked", "batch_norm", "batch_norm_grad", "normalise", "track"]
