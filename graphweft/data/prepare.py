"""Keeping a dataset as one ``.npz`` file in the form that ``load`` reads back.

Comes in: an untyped Dataset. Goes out: a file that is whole or not there. Called by the command line and by users who
convert a slow layout once.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.files import one_line, show
from graphweft.storage.feature import SparseFeatures


def save_npz(ds: Dataset, path: str | os.PathLike[str], *, compress: bool = True) -> Path:
    """Writes ``ds`` in the ``.npz`` form; an existing file is replaced in one step, never left half written.

    Edges keep their order, features their layout; the split is kept as masks.

    Raises: DataError if the dataset has parts that the form has no place for, or the file cannot be written.
    """
    if ds.features or ds.held_out or ds.target_type is not None:
        raise DataError(f"{ds.name}: expected an untyped dataset, got a typed one, which save_npz does not support yet")
    target = Path(path)
    if target.suffix != ".npz":
        raise DataError(f"{show(target)}: expected a file name ending in .npz, got another")
    parts = _parts(ds)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            temporary = Path(file.name)
            (np.savez_compressed if compress else np.savez)(file, allow_pickle=False, **parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise DataError(f"{show(target)}: expected a place to write to, got: {one_line(str(error), 120)}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return target


def _sync_folder(folder: Path) -> None:
    """The new name survives a power cut too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _parts(ds: Dataset) -> dict[str, Any]:
    out: dict[str, Any] = {**_edges(ds), **_features(ds)}
    if ds.num_classes:
        out["y"], out["num_classes"] = ds.y.numpy(), np.int64(ds.num_classes)
    if ds.task == "regression":
        out["task"] = np.str_("regression")
    if any(ds.idx(part).numel() for part in ("train", "val", "test")):
        out |= {f"{part}_mask": getattr(ds, f"{part}_mask").numpy() for part in ("train", "val", "test")}
    for key in ("edge_weight", "edge_features", "graph_ptr", "node_ids"):
        value: Tensor | None = getattr(ds, key)
        if value is not None:
            out[key] = value.numpy()
    if ds.class_names:
        out["class_names"] = np.array(ds.class_names, dtype=np.str_)
    if ds.node_names:
        out["node_names"] = np.array(ds.node_names, dtype=np.str_)
    return out | {key: value.numpy() for key, value in ds.arrays.items() if key not in out}


def _edges(ds: Dataset) -> dict[str, Any]:
    """CSR where the edges are listed source after source, else ``edge_index``; edges keep their order."""
    src, dst = ds.graph.edges()
    small = torch.int32 if ds.num_nodes < 2**31 else torch.int64
    if bool((src[1:] >= src[:-1]).all()):
        counts = torch.bincount(src, minlength=ds.num_nodes)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return {"indptr": indptr.numpy(), "indices": dst.to(small).numpy()}
    edges = torch.stack([src, dst]).to(small)
    return {"edge_index": edges.numpy(), "num_nodes": np.int64(ds.num_nodes)}


def _features(ds: Dataset) -> dict[str, Any]:
    x = ds.x
    if x is None:
        return {}
    if not isinstance(x, SparseFeatures):
        return {"x": x.numpy()}
    matrix = x.to_scipy().tocsr()
    return {
        "x_indptr": matrix.indptr.astype(np.int64),
        "x_indices": matrix.indices,
        "x_data": matrix.data.astype(np.float32),
        "x_shape": np.array(matrix.shape, dtype=np.int64),
    }
