"""The child process of one link sampler: obeys the harness; an "epoch" is one batch, its "loss" the distinct nodes.

``python links_worker.py SYSTEM FOLDER``; FOLDER holds ``src.npy, dst.npy, targets.npy`` and ``case.json``.
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


def _load(folder: Path):
    case = json.loads((folder / "case.json").read_text())
    return case, *(np.load(folder / f"{name}.npy") for name in ("src", "dst", "targets"))


def build_own(folder: Path, way: str):
    """``run(batches)`` -> (nodes, seconds) of each."""
    import torch

    from graphweft.graph.graph import Graph
    from graphweft.loader.link import LinkLoader

    case, src, dst, targets = _load(folder)
    graph = Graph(src, dst, case["num_nodes"])
    index = torch.from_numpy(np.stack([src[targets], dst[targets]]))
    options = {"prefetch": 0} if way == "each" else {"prefetch": 2 * case["threads"], "workers": case["threads"]}
    loader = LinkLoader(
        graph, index, None, case["fanouts"], case["batch_size"], shuffle=True, exclude="both", **options
    )
    batch = next(iter(loader))
    hidden = index[:, batch.input_id]
    taken = torch.cat([hidden[0] * graph.num_nodes + hidden[1], hidden[1] * graph.num_nodes + hidden[0]])
    passed = torch.from_numpy(src)[batch.e_id] * graph.num_nodes + torch.from_numpy(dst)[batch.e_id]
    joined = batch.n_id[batch.edge_label_index[:, batch.batch_size :]]
    known = torch.from_numpy(src * graph.num_nodes + dst)
    if torch.isin(passed, taken).any() or torch.isin(joined[0] * graph.num_nodes + joined[1], known).any():
        raise SystemExit("refcheck failed: an excluded edge is in a batch, or a negative is an edge")

    def run(count):
        nodes, begun = [], time.perf_counter()
        while len(nodes) < count:
            for batch in loader:
                if batch.batch_size == loader.batch_size:
                    nodes.append(batch.num_nodes)
                if len(nodes) == count:
                    taken = time.perf_counter() - begun
                    break
        return nodes, [taken / count] * count

    return run, f"graphweft, {loader.way}"


def build_dgl(folder: Path):
    """As :func:`build_own`."""
    import dgl
    import torch

    case, src, dst, targets = _load(folder)
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=case["num_nodes"])
    order = np.lexsort((src, dst))
    turned = np.lexsort((dst, src))
    reverse = np.empty_like(order)
    reverse[order] = (
        turned  # of a symmetric simple graph the edges by (dst, src) are the reverses of those by (src, dst)
    )
    if not (src[reverse] == dst).all():
        raise SystemExit("refcheck failed: an edge has another reverse")
    graph.create_formats_()
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler(case["fanouts"][::-1]),
        exclude="reverse_id",
        reverse_eids=torch.from_numpy(reverse),
        negative_sampler=dgl.dataloading.negative_sampler.GlobalUniform(1),
    )
    targets = torch.from_numpy(targets)
    generator = torch.Generator().manual_seed(0)

    def run(count):
        nodes, begun = [], time.perf_counter()
        for _ in range(count):
            batch = targets[torch.randint(targets.numel(), (case["batch_size"],), generator=generator)]
            inputs = sampler.sample(graph, batch)[0]
            nodes.append(inputs.numel())
        return nodes, [(time.perf_counter() - begun) / count] * count

    return run, f"dgl {dgl.__version__}, torch {torch.__version__}"


def load():
    """The system that is asked for, to be built over the case."""
    system, folder = sys.argv[1], Path(sys.argv[2])
    return partial(build_dgl, folder) if system == "dgl" else partial(build_own, folder, system)


if __name__ == "__main__":
    sys.exit(serve(load))
