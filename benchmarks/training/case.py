"""One training task as files that every system reads in the form it likes: an edge list, compressed in-edges, features.

Comes in: a GraphWeft dataset, or a folder. Goes out: a folder of ``.npy`` files, or a :class:`Case`. Reading needs
NumPy only, so that peers with another Python environment can do it, and makes no copies that would count as a system's
memory.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

DENSE_LIMIT = 4 << 30  # bytes; features that would be larger are given to peers in sparse form only
SPARSE_FROM = 0.5  # sparsity at which peers get a sparse candidate too


@dataclass(frozen=True)
class Meta:
    """What does not need an array."""

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    hidden: int
    layers: int
    lr: float
    sparsity: float
    has_dense: bool
    has_sparse: bool
    own_form: str  # "dense" or "sparse": how the dataset holds its features


@dataclass(frozen=True)
class Case:
    """A folder that :func:`save` made. Arrays are read when asked for."""

    folder: Path
    meta: Meta

    @classmethod
    def load(cls, folder: str | Path) -> Case:
        """The case in ``folder``."""
        text = (Path(folder) / "meta.json").read_text(encoding="utf-8")
        return cls(Path(folder), Meta(**json.loads(text)))

    def array(self, name: str) -> Any:
        """The array ``name``."""
        return np.load(self.folder / f"{name}.npy")

    def weights(self) -> list[tuple[Any, Any]]:
        """Initial (in, out) weight and bias of every layer."""
        return [(self.array(f"weight{layer}"), self.array(f"bias{layer}")) for layer in range(self.meta.layers)]


def save(folder: Path, ds: Any, *, hidden: int, layers: int, lr: float, seed: int) -> Case:
    """Writes ``ds`` (a GraphWeft dataset) and initial weights drawn from ``seed``."""
    folder.mkdir(parents=True, exist_ok=True)
    csc = ds.graph.csc
    _save_graph(folder, csc)
    own_form = "sparse" if hasattr(ds.x, "indptr") else "dense"
    sparsity = ds.feature_sparsity
    dense_bytes = 4 * ds.num_nodes * ds.num_features
    meta = Meta(
        name=ds.name,
        num_nodes=ds.num_nodes,
        num_edges=csc.num_edges,
        num_features=ds.num_features,
        num_classes=ds.num_classes,
        hidden=hidden,
        layers=layers,
        lr=lr,
        sparsity=sparsity,
        has_dense=dense_bytes <= DENSE_LIMIT,
        has_sparse=own_form == "sparse" or sparsity >= SPARSE_FROM,
        own_form=own_form,
    )
    _save_features(folder, ds.x, meta)
    np.save(folder / "y.npy", ds.y.numpy())
    labelled = ds.train_idx if ds.y.dim() > 1 else ds.train_idx[ds.y[ds.train_idx] >= 0]
    np.save(folder / "train_idx.npy", labelled.numpy())
    rng = np.random.default_rng(seed)
    widths = [meta.num_features, *[hidden] * (layers - 1), meta.num_classes]
    for layer, (rows, columns) in enumerate(itertools.pairwise(widths)):
        bound = (6.0 / (rows + columns)) ** 0.5  # Glorot
        np.save(folder / f"weight{layer}.npy", rng.uniform(-bound, bound, (rows, columns)).astype(np.float32))
        np.save(folder / f"bias{layer}.npy", np.zeros(columns, dtype=np.float32))
    (folder / "meta.json").write_text(json.dumps(asdict(meta)), encoding="utf-8")
    return Case(folder, meta)


def _save_graph(folder: Path, csc: Any) -> None:
    """Compressed in-edges, and the same edges in the same order as a (2, E) list of sources and destinations."""
    indptr, indices = csc.indptr.numpy(), csc.indices.numpy()
    np.save(folder / "indptr.npy", indptr)
    np.save(folder / "indices.npy", indices)
    edges = np.lib.format.open_memmap(folder / "edge_index.npy", "w+", np.int64, (2, len(indices)))
    edges[0] = indices
    edges[1] = np.repeat(np.arange(csc.num_rows), np.diff(indptr))
    edges.flush()


def _save_features(folder: Path, x: Any, meta: Meta) -> None:
    """Dense rows where they fit, compressed rows where there are many zeros; block by block."""
    shape = (meta.num_nodes, meta.num_features)
    if meta.own_form == "dense":
        dense = x.numpy()
        np.save(folder / "x.npy", dense)
        if meta.has_sparse:
            rows, columns = np.nonzero(dense)
            counts = np.bincount(rows, minlength=meta.num_nodes)
            _save_rows(folder, np.concatenate([[0], np.cumsum(counts)]), columns, dense[rows, columns])
        return
    indptr, indices, values = x.indptr.numpy(), x.indices.numpy(), x.values.numpy()
    _save_rows(folder, indptr, indices, values)
    if meta.has_dense:
        out = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, shape)
        step = 4096
        for start in range(0, meta.num_nodes, step):
            stop = min(start + step, meta.num_nodes)
            low, high = indptr[start], indptr[stop]
            rows = np.repeat(np.arange(start, stop), np.diff(indptr[start : stop + 1]))
            np.add.at(out, (rows, indices[low:high]), values[low:high])
        out.flush()


def _save_rows(folder: Path, indptr: Any, indices: Any, values: Any) -> None:
    np.save(folder / "x_indptr.npy", indptr.astype(np.int64))
    np.save(folder / "x_indices.npy", indices.astype(np.int64))
    np.save(folder / "x_values.npy", values.astype(np.float32))
