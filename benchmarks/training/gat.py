"""Full-batch GAT (2 layers, 64 hidden, 8 heads, ELU) against PyTorch Geometric's and DGL's GATConv, in one run.

    python benchmarks/training/gat.py ogbn-arxiv --dgl-python /path/to/dgl/bin/python
    python benchmarks/training/gat.py ogbn-arxiv --scale 0.01 --rounds 2        # does everything work?

One line per system. Losses are compared before anything is timed; an epoch is forward, loss, backward and update after
warm-up; memory is the peak resident set of the system's own process above what it held after its imports.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paired_case

from graphweft.data.synthetic import synthetic


def main(given: list[str] | None = None) -> int:
    """Measures one twin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("twin", nargs="?", default="ogbn-arxiv")
    parser.add_argument("--scale", type=float, default=1.0)
    paired_case.add_options(parser, "gat.csv")
    arguments = parser.parse_args(given)
    options = {"bidirected": True} if arguments.twin == "ogbn-arxiv" else {}
    ds = synthetic(arguments.twin, scale=arguments.scale, seed=0, **options)
    pythons = {"gat-graphweft": sys.executable, "gat-pyg": sys.executable, "gat-dgl": arguments.dgl_python}
    about = {"twin": ds.name, "scale": arguments.scale}
    return paired_case.run(ds, pythons, about, "GAT", arguments)


if __name__ == "__main__":
    sys.exit(main())
