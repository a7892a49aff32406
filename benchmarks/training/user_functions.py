"""Layers written as user functions: compiled, on the reference executor, and on DGL, in one run.

    python benchmarks/training/user_functions.py ogbn-arxiv gat --dgl-python /path/to/dgl/bin/python
    python benchmarks/training/user_functions.py ppi gcn --scale 0.01 --rounds 2        # does everything work?

Two layers, 64 hidden; the functions are those of ``user_layers.py`` in all systems, with the transforms outside of
them; in ``layer`` they stand in the ``forward`` of message-passing modules, ``whole`` has all of the layer in the
functions. ``gat`` (8 heads) stands beside the built-in model in the same training loop, ``gat-module``, and as the
trainer runs it, ``gat-graphweft``; ``times_module`` is the median over rounds of a system's turn over the module's,
with its quartiles. Losses are compared before anything is timed; an epoch is forward, loss, backward and update after
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
    """Measures one model on one twin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("twin")
    parser.add_argument("model", choices=("gcn", "gat", "cgat", "distance"))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--alone", action="store_true", help="without reference executor and DGL")
    paired_case.add_options(parser, "user_functions.csv")
    arguments = parser.parse_args(given)
    options = {"bidirected": True} if arguments.twin == "ogbn-arxiv" else {}
    ds = synthetic(arguments.twin, scale=arguments.scale, seed=0, **options)
    own = f"{arguments.model}-user"
    pythons = {own: sys.executable, f"{own}-layer": sys.executable, f"{own}-whole": sys.executable}
    if arguments.model == "gat":
        pythons |= {"gat-module": sys.executable, "gat-graphweft": sys.executable}
    if not arguments.alone:
        pythons |= {f"{own}-reference": sys.executable, f"{own}-dgl": arguments.dgl_python}
    about = {"twin": ds.name, "scale": arguments.scale, "model": arguments.model}
    module = "gat-module" if arguments.model == "gat" else ""
    return paired_case.run(ds, pythons, about, f"user {arguments.model}", arguments, module)


if __name__ == "__main__":
    sys.exit(main())
