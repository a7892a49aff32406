"""Dense products, loss and dropout against torch, paired and interleaved.

``python benchmarks/kernels/dense.py [--threads 2] [--repeats 11]``. Each row is checked against float64 first, then
timed in turns; medians. ``roof`` is what 68 GB/s of compulsory traffic allows. Pin threads for figures that repeat:
``OMP_PROC_BIND=true OMP_PLACES="{0},{1}"``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from graphweft._memory import empty
from graphweft.runtime.dense import cross_entropy, dropout, matmul, matmul_tn

SHAPES = (
    (169343, 128, 32),
    (169343, 32, 32),
    (169343, 32, 40),
    (612000, 100, 32),
    (612000, 32, 47),
    (58000, 602, 32),
    (89000, 500, 32),
    (57000, 50, 32),
    (57000, 32, 121),
    (13700, 767, 32),
    (20000, 32, 70),
    (66000, 32, 210),
    (34000, 32, 5),
    (50000, 256, 256),
)
BYTES_PER_SECOND = 68e9


def medians(repeats: int, *bodies: Callable[[], Any]) -> list[float]:
    """Median seconds of each body; bodies take turns, the first round is not counted."""
    times: list[list[float]] = [[] for _ in bodies]
    for _ in range(repeats + 1):
        for body, taken in zip(bodies, times, strict=True):
            start = time.perf_counter()
            body()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in times]


def require_close(got: torch.Tensor, exact: torch.Tensor, terms: int) -> None:
    error = (got.double() - exact).abs().max().item()
    if not error < 1e-5 * (1 + terms) ** 0.5:
        raise SystemExit(f"refcheck failed: error {error} over sums of {terms} terms")


def products(n: int, k: int, m: int, repeats: int) -> str:
    x, g, w = empty((n, k)).normal_(), empty((n, m)).normal_(), torch.randn(k, m)
    y, theirs, dw = empty((n, m)), empty((n, m)), torch.empty(k, m)
    head = slice(0, 2000)
    require_close(matmul(x, w)[head], x[head].double() @ w.double(), k)
    require_close(matmul_tn(x[head], g[head]), x[head].double().t() @ g[head].double(), 2000)
    ours, other, ours_tn, other_tn = medians(
        repeats,
        lambda: matmul(x, w, out=y),
        lambda: torch.mm(x, w, out=theirs),
        lambda: matmul_tn(x, g, out=dw),
        lambda: torch.mm(x.t(), g),
    )
    giga, roof = 2e-9 * n * k * m, 4.0 * n * (k + m) / BYTES_PER_SECOND
    return (
        f"{n:7d} x {k:4d} x {m:3d}   X W {giga / ours:6.0f} GFLOP/s, torch {giga / other:6.0f}, x{other / ours:5.2f}"
        f"   Xt G {giga / ours_tn:6.0f}, torch {giga / other_tn:6.0f}, x{other_tn / ours_tn:5.2f}"
        f"   roof {giga / roof:6.0f}"
    )


def losses(n: int, c: int, repeats: int) -> str:
    logits, y = empty((n, c)).normal_(), torch.randint(0, c, (n,))
    leaf = logits.clone().requires_grad_()

    def theirs() -> torch.Tensor:
        leaf.grad = None
        loss = torch.nn.functional.cross_entropy(leaf, y)
        loss.backward()
        return loss

    require_close(cross_entropy(logits, y)[0], torch.nn.functional.cross_entropy(logits.double(), y), 1)
    ours, other = medians(repeats, lambda: cross_entropy(logits, y), theirs)
    return f"cross entropy {n} x {c}: {ours * 1e3:.2f} ms, torch {other * 1e3:.2f} ms, x{other / ours:.1f}"


def dropouts(n: int, f: int, repeats: int) -> str:
    x, out = empty((n, f)).normal_(), empty((n, f))
    ours, other = medians(
        repeats, lambda: dropout(x, 0.5, 1, 2, out=out), lambda: torch.nn.functional.dropout(x, 0.5, True)
    )
    return f"dropout {n} x {f}: {ours * 1e3:.2f} ms, torch {other * 1e3:.2f} ms, x{other / ours:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for shape in SHAPES:
        print(products(*shape, options.repeats), flush=True)
    for n, c in ((169343, 40), (57000, 121), (34000, 5)):
        print(losses(n, c, options.repeats), flush=True)
    print(dropouts(169343, 32, options.repeats), flush=True)


if __name__ == "__main__":
    main()
