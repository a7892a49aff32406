"""The child process of one sampler of typed graphs: obeys the harness as ``training/worker.py`` does, an "epoch" is one
batch, whose "loss" is its number of distinct nodes.

``python typed_worker.py SYSTEM FOLDER``; FOLDER holds ``case.json``, ``seeds.npy`` and the ends by relation, as
``src0.npy`` and ``dst0.npy``. ``sampled``, ``views`` and ``layers`` are ours: blocks over all nodes; besides edges by
relation and nodes by type; or a typed graph per layer, as models take it. ``dgl`` has blocks by relation, fused on
64-bit ids; ``dgl-int32`` is unfused: fused on 32-bit ids DGL 2.1.0 loses nodes from batch to batch.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from orders import serve
from worker import from_loader


def _read(folder: Path):
    """The case, ends by relation, seeds."""
    case = json.loads((folder / "case.json").read_text())
    ends = [[np.load(folder / f"{end}{at}.npy") for end in ("src", "dst")] for at in range(len(case["relations"]))]
    return (
        case,
        {tuple(r): pair for r, pair in zip(case["relations"], ends, strict=True)},
        np.load(folder / "seeds.npy"),
    )


def build_own(folder: Path, way: str):
    """``run(batches)`` -> (nodes, seconds) of each."""
    from graphweft.graph.graph import Graph
    from graphweft.graph.typed_block import typed_block
    from graphweft.loader.loader import Loader

    case, ends, seeds = _read(folder)
    graph = Graph.hetero(ends, case["num_nodes"])
    seeds = seeds + graph.layout.node_range(case["target"]).start
    fanouts = dict.fromkeys(graph.relations, case["fanouts"])
    loader = Loader(graph, seeds, fanouts, case["batch_size"], shuffle=True, drop_last=True, prefetch=0)

    def nodes_of(batch):
        if way == "views":
            batch.typed  # noqa: B018 -- made when first asked for
        if way == "layers":
            for block in batch.blocks:
                typed_block(block)
        return batch.num_nodes

    return from_loader(loader, nodes_of), "graphweft"


def build_dgl(folder: Path, way: str):
    """As :func:`build_own`."""
    import dgl
    import torch

    case, ends, seeds = _read(folder)
    kind = torch.int32 if way == "dgl-int32" else torch.int64
    given = {r: tuple(torch.from_numpy(end).to(kind) for end in pair) for r, pair in ends.items()}
    graph = dgl.heterograph(given, case["num_nodes"], idtype=kind).formats(["csc"])
    ids = torch.from_numpy(seeds).to(kind)
    fanouts = case["fanouts"][::-1]  # of every relation; the input layer's first
    sampler = dgl.dataloading.NeighborSampler(fanouts, fused=kind == torch.int64)
    generator = torch.Generator().manual_seed(0)

    def run(count):
        nodes, begun = [], time.perf_counter()
        for _ in range(count):
            batch = ids[torch.randperm(ids.numel(), generator=generator)[: case["batch_size"]]]
            inputs, _, _ = sampler.sample(graph, {case["target"]: batch})
            nodes.append(sum(part.numel() for part in inputs.values()))
        return nodes, [(time.perf_counter() - begun) / count] * count

    return run, f"dgl {dgl.__version__}, torch {torch.__version__}"


def load():
    """The system that is asked for, to be built over the case."""
    system, folder = sys.argv[1], Path(sys.argv[2])
    return partial(build_dgl if system.startswith("dgl") else build_own, folder, system)


if __name__ == "__main__":
    sys.exit(serve(load))
