"""A GCN written by hand in C++ (``by_hand.cpp``), compiled for the case's widths when it is built.

The peer that a user of stand-alone programs has in mind: no library, no Python in the epoch, the same model and losses.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("by_hand.cpp")


def _compiled(case, several: bool, sparse: bool) -> ctypes.CDLL:
    """The program with the case's widths as constants."""
    compiler = os.environ.get("CXX", "g++")
    meta = case.meta
    widths = {"FEATURES": meta.num_features, "HIDDEN": meta.hidden, "CLASSES": meta.num_classes}
    defines = [f"-D{name}={value}" for name, value in {**widths, "LABELS": int(several), "SPARSE": int(sparse)}.items()]
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        library = Path(folder) / "by_hand.so"
        flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run([compiler, "-std=c++17", *flags, *defines, SOURCE, "-o", library], check=True)
        return ctypes.CDLL(str(library))


def build(case, variant):
    """``dense`` or ``sparse`` input features; three layers."""
    if case.meta.layers != 3:
        raise ValueError(f"by hand: expected 3 layers, got {case.meta.layers}")
    sparse, labels = variant == "sparse", case.array("y")
    labels = labels.astype(np.float32 if labels.ndim > 1 else np.int64)
    library = _compiled(case, labels.ndim > 1, sparse)
    names = ("x_values", "x_indptr", "x_indices") if sparse else ("x",)
    features = [case.array(name) for name in names]
    graph = [case.array(name).astype(np.int64) for name in ("indptr", "indices")]
    train = case.array("train_idx").astype(np.int64)
    weights = [np.ascontiguousarray(part) for layer in case.weights() for part in layer]

    def pointer(array):
        return ctypes.c_void_p(array.ctypes.data)

    parameters = (ctypes.c_void_p * len(weights))(*(part.ctypes.data for part in weights))
    library.make.restype = ctypes.c_void_p
    library.epoch.restype = ctypes.c_float
    library.epoch.argtypes = [ctypes.c_void_p]
    given = [*map(pointer, graph), *map(pointer, features), *[None] * (3 - len(features)), pointer(labels)]
    model = library.make(
        ctypes.c_int64(case.meta.num_nodes), *given, pointer(train), ctypes.c_int64(train.size), parameters,
        ctypes.c_float(case.meta.lr),
    )  # fmt: skip
    return lambda: library.epoch(model), "g++ -O3 -march=native"
