"""The child process of one sampler: obeys the harness as ``training/worker.py`` does; an "epoch" is one batch.

``python worker.py SYSTEM FOLDER``; FOLDER holds ``indptr.npy, indices.npy, seeds.npy, x.npy`` and ``case.json``. The
"loss" of a batch is its number of distinct nodes, which must agree between samplers up to chance. Systems: ``each`` and
``ahead`` are ours, one batch at a time with all threads or batches in parallel, ``single`` the former on one thread;
``dgl``, ``dgl-int32``, ``graphbolt`` and ``pyg`` are peers. ``+x`` gathers features.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from orders import serve


def _check_degrees(block, degrees, ids, fanout) -> None:
    """Every destination drew exactly min(in-degree, fan-out) edges."""
    drawn = np.asarray(block.in_degrees())
    if not (drawn == np.minimum(degrees[np.asarray(ids)], fanout)).all():
        raise SystemExit("refcheck failed: a destination has another number of in-edges")


def build_own(folder: Path, way: str, with_x: bool):
    """``run(batches)`` -> (nodes, seconds) of each."""
    import torch

    from graphweft._memory import empty
    from graphweft.graph.adjacency import Adjacency
    from graphweft.graph.graph import Graph
    from graphweft.loader.loader import Loader

    def load(name):
        array = torch.from_numpy(np.load(folder / f"{name}.npy"))
        return empty(tuple(array.shape), array.dtype).copy_(array)

    case = json.loads((folder / "case.json").read_text())
    indptr = load("indptr")
    graph = Graph.from_adjacency(Adjacency(indptr, load("indices"), None, indptr.numel() - 1))
    seeds = torch.from_numpy(np.load(folder / "seeds.npy"))
    ds = SimpleNamespace(graph=graph, x=load("x"), y=torch.zeros(graph.num_nodes), train_idx=seeds) if with_x else graph
    if way == "single":
        torch.set_num_threads(1)
    options = (
        {"prefetch": 0} if way in ("each", "single") else {"prefetch": 2 * case["threads"], "workers": case["threads"]}
    )
    loader = Loader(ds, seeds, case["fanouts"], case["batch_size"], shuffle=True, drop_last=True, **options)
    first = next(iter(Loader(graph, seeds, case["fanouts"], case["batch_size"], prefetch=0)))
    for block, fanout in zip(reversed(first.blocks), case["fanouts"], strict=True):
        _check_degrees(block, graph.in_degrees().numpy(), block.dst_ids, fanout)

    run = from_loader(loader, lambda batch: batch.num_nodes)  # nothing is prepared between turns
    return run, f"graphweft, {loader.way}"


def build_dgl(folder: Path, way: str, with_x: bool):
    """As :func:`build_own`."""
    import dgl
    import torch

    case = json.loads((folder / "case.json").read_text())
    indptr, indices = (torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ("indptr", "indices"))
    kind = torch.int32 if way == "dgl-int32" else torch.int64
    seeds = torch.from_numpy(np.load(folder / "seeds.npy")).to(kind)
    graph = dgl.graph(("csc", (indptr.to(kind), indices.to(kind), torch.empty(0, dtype=kind))), idtype=kind)
    graph = graph.formats(["csc"])
    x = torch.from_numpy(np.load(folder / "x.npy")) if with_x else None
    fused = kind == torch.int64
    sampler = dgl.dataloading.NeighborSampler(case["fanouts"][::-1], fused=fused)  # DGL lists the input layer's first
    _, _, blocks = sampler.sample(graph, seeds[: case["batch_size"]])
    for block, fanout in zip(reversed(blocks), case["fanouts"], strict=True):
        _check_degrees(block, np.diff(indptr.numpy()), block.dstdata[dgl.NID], fanout)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(seeds.numel(), generator=generator)
    place = 0

    def run(count):
        nonlocal place, order
        nodes, begun = [], time.perf_counter()
        for _ in range(count):
            if place + case["batch_size"] > order.numel():
                order, place = torch.randperm(seeds.numel(), generator=generator), 0
            batch = seeds[order[place : place + case["batch_size"]]]
            place += case["batch_size"]
            inputs, _, _ = sampler.sample(graph, batch)
            if x is not None:
                x[inputs.long()]
            nodes.append(inputs.numel())
        return nodes, [(time.perf_counter() - begun) / count] * count

    return run, f"dgl {dgl.__version__}, torch {torch.__version__}"


def build_graphbolt(folder: Path, with_x: bool):
    """As :func:`build_own`; GraphBolt's data pipe in this process, which is its fastest form here."""
    import dgl
    import torch
    from dgl import graphbolt

    case = json.loads((folder / "case.json").read_text())
    indptr, indices, seeds = (torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ("indptr", "indices", "seeds"))
    graph = graphbolt.fused_csc_sampling_graph(indptr, indices)
    items = graphbolt.ItemSet(seeds.to(indices.dtype), names="seed_nodes")
    pipe = graphbolt.ItemSampler(items, batch_size=case["batch_size"], shuffle=True, drop_last=True)
    pipe = pipe.sample_neighbor(graph, case["fanouts"][::-1])  # the input layer's first
    if with_x:
        x = graphbolt.TorchBasedFeature(torch.from_numpy(np.load(folder / "x.npy")))
        pipe = pipe.fetch_feature(graphbolt.BasicFeatureStore({("node", None, "x"): x}), node_feature_keys=["x"])
    loader = graphbolt.DataLoader(pipe, num_workers=0)
    first = next(iter(loader))
    for drawn, fanout in zip(reversed(first.sampled_subgraphs), case["fanouts"], strict=True):
        ids = drawn.original_column_node_ids.numpy()
        if not (np.diff(drawn.sampled_csc.indptr) == np.minimum(np.diff(indptr.numpy())[ids], fanout)).all():
            raise SystemExit("refcheck failed: a destination has another number of in-edges")
    return from_loader(loader, lambda batch: batch.input_nodes.numel()), f"dgl {dgl.__version__}, graphbolt"


def build_pyg(folder: Path, with_x: bool):
    """As :func:`build_own`; NeighborLoader in this process."""
    import torch
    import torch_geometric
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    case = json.loads((folder / "case.json").read_text())
    indptr, indices, seeds = (torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ("indptr", "indices", "seeds"))
    dst = torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff())
    data = Data(edge_index=torch.stack([indices.long(), dst]), num_nodes=indptr.numel() - 1)
    if with_x:
        data.x = torch.from_numpy(np.load(folder / "x.npy"))
    given = {"batch_size": case["batch_size"], "input_nodes": seeds, "shuffle": True, "drop_last": True}
    loader = NeighborLoader(data, case["fanouts"], is_sorted=True, **given)
    return from_loader(loader, lambda batch: batch.num_nodes), f"torch_geometric {torch_geometric.__version__}"


def from_loader(loader, nodes_of):
    """``run`` over a loader's epochs, none of which is begun before the clock runs."""

    def run(count):
        nodes, begun = [], time.perf_counter()
        while len(nodes) < count:
            for batch in loader:
                nodes.append(nodes_of(batch))
                if len(nodes) == count:
                    taken = time.perf_counter() - begun
                    break
        return nodes, [taken / count] * count

    return run


BUILDERS = {"graphbolt": build_graphbolt, "pyg": build_pyg}


def load():
    """The system that is asked for, to be built over the case."""
    system, _, extra = sys.argv[1].partition("+")
    folder, with_x = Path(sys.argv[2]), extra == "x"
    if system in BUILDERS:
        return partial(BUILDERS[system], folder, with_x)
    return partial(build_dgl if system.startswith("dgl") else build_own, folder, system, with_x)


if __name__ == "__main__":
    sys.exit(serve(load))
