"""Keeping a dataset as one ``.npz`` file in the form that ``load`` reads back.

Comes in: a Dataset. Goes out: a file that is whole or not there. Called by ``Dataset.save``, for what took long to read
or to make.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.readers.files import one_line, show
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.int8_features import Int8Features


def save_npz(ds: Any, path: str | os.PathLike[str], *, compress: bool = True) -> Path:
    """Writes the dataset ``ds`` in the ``.npz`` form; an old file is replaced in one step, never left half written.

    Edges and rows of the split keep their order, features their layout.

    Raises: DataError if the file cannot be written.
    """
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
        reason = error.strerror or one_line(str(error), 120)
        raise DataError(f"{show(target)}: expected a place to write to, got: {reason}") from error
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


def _parts(ds: Any) -> dict[str, Any]:
    out: dict[str, Any] = {**(_relations(ds) if ds.graph.is_typed else _edges(ds)), **_features("x", ds.x)}
    if ds.num_classes:
        out["y"], out["num_classes"] = ds.y.numpy(), np.int64(ds.num_classes)
    if ds.task == "regression":
        out["task"] = np.str_("regression")
    if ds.num_classes or any(ds.idx(part).numel() for part in ("train", "val", "test")):
        out |= {f"{part}_mask": getattr(ds, f"{part}_mask").numpy() for part in ("train", "val", "test")}
    for part in ("train", "val", "test"):
        idx = ds.idx(part)
        if bool((idx[1:] <= idx[:-1]).any()):  # a mask does not tell their order
            out[f"{part}_idx"] = idx.numpy()
    for key in ("edge_weight", "edge_features", "edge_time", "edge_label_index", "graph_ptr", "node_ids"):
        value: Tensor | None = getattr(ds, key)
        if value is not None:
            out[key] = value.numpy()
    if ds.class_names:
        out["class_names"] = np.array(ds.class_names, dtype=np.str_)
    if ds.node_names:
        out["node_names"] = np.array(ds.node_names, dtype=np.str_)
    if ds.encoding is not None:
        out["encoding"] = np.str_(json.dumps(ds.encoding.to_dict()))
    return out | {key: value.numpy() for key, value in ds.arrays.items() if key not in out}


def _relations(ds: Any) -> dict[str, Any]:
    """A typed graph in the flat order that it has itself, with the features of its types."""
    layout, small = ds.graph.layout, torch.int32 if ds.num_nodes < 2**31 else torch.int64
    out: dict[str, Any] = {
        "edge_index": torch.stack(ds.graph.edges()).to(small).numpy(),
        "relations": np.array(layout.relations, dtype=np.str_).reshape(-1, 3),
        "edge_offsets": np.array(layout.edge_offsets, np.int64),
        "node_type_names": np.array(layout.node_types, dtype=np.str_),
        "node_offsets": np.array(layout.node_offsets, np.int64),
    }
    if ds.target_type is not None:
        out["target_type"] = np.str_(ds.target_type)
    for name, x in ds.features.items():
        out |= _features(f"x_{name}", x)
    for part, (ends, kinds) in ds.held_out.items():
        out |= {f"held_out_edges_{part}": ends.numpy(), f"held_out_relations_{part}": kinds.numpy()}
    return out


def _edges(ds: Any) -> dict[str, Any]:
    """CSR where the edges are listed source after source, else ``edge_index``; edges keep their order."""
    src, dst = ds.graph.edges()
    small = torch.int32 if ds.num_nodes < 2**31 else torch.int64
    if bool((src[1:] >= src[:-1]).all()):
        counts = torch.bincount(src, minlength=ds.num_nodes)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return {"indptr": indptr.numpy(), "indices": dst.to(small).numpy()}
    edges = torch.stack([src, dst]).to(small)
    return {"edge_index": edges.numpy(), "num_nodes": np.int64(ds.num_nodes)}


def _features(key: str, x: Tensor | SparseFeatures | None) -> dict[str, Any]:
    if x is None:
        return {}
    if isinstance(x, Int8Features):
        return {key: x.levels.numpy(), f"{key}_scale": x.scale.numpy(), f"{key}_offset": x.offset.numpy()}
    if not isinstance(x, SparseFeatures):
        return {key: x.numpy()}
    matrix = x.to_scipy().tocsr()
    return {
        f"{key}_indptr": matrix.indptr.astype(np.int64),
        f"{key}_indices": matrix.indices,
        f"{key}_data": matrix.data.astype(np.float32),
        f"{key}_shape": np.array(matrix.shape, dtype=np.int64),
    }
