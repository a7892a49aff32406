"""Full-batch NGCF (2 layers, 64 hidden) against the same layers with the order of Pull and Apply fixed by hand.

    python benchmarks/training/ngcf.py light      # amazon-products twin at 0.1: 200 features, many edges
    python benchmarks/training/ngcf.py heavy      # 4,353 features, the sizes of GraphTensor's sampled gowalla

``graphweft`` is the model as the trainer runs it. ``pull`` and ``apply`` are the two orders that a row's linear term
can take, sums of rows before the product or after it, fixed for all layers: ``own-`` on our kernels without placement,
hoisting and row demand, ``csr-`` on ``torch.sparse`` with the transpose made beforehand. The term of products by
element can only pull first. Losses are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paired_case

from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic

SYSTEMS = ("ngcf-graphweft", "ngcf-own-pull", "ngcf-own-apply", "ngcf-csr-pull", "ngcf-csr-apply")


def data(kind: str, scale: float) -> Dataset:
    """A graph with many edges and few features, or few edges and many features."""
    if kind == "light":
        return synthetic("amazonproducts", scale=0.1 * scale, seed=0)
    sizes = {"num_nodes": int(54_000 * scale), "num_edges": int(183_000 * scale), "num_features": 4353}
    return synthetic("default", num_classes=2, seed=0, **sizes)


def main(given: list[str] | None = None) -> int:
    """Measures one graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("light", "heavy"))
    parser.add_argument("--scale", type=float, default=1.0)
    paired_case.add_options(parser, "ngcf.csv")
    arguments = parser.parse_args(given)
    about = {"kind": arguments.kind, "scale": arguments.scale}
    pythons = dict.fromkeys(SYSTEMS, sys.executable)
    return paired_case.run(data(arguments.kind, arguments.scale), pythons, about, "NGCF", arguments)


if __name__ == "__main__":
    sys.exit(main())
