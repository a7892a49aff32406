"""A library that predicts, as a test calls it through its C interface."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphweft.graph.graph import Graph

_P = ctypes.c_void_p
_FUNCTIONS = {
    "model_load": (ctypes.c_char_p, _P, _P),
    "graph_new": (ctypes.c_int64, _P, _P, _P, _P),
    "weighted_graph_new": (ctypes.c_int64, _P, _P, _P, _P, _P),
    "context_new": (_P, _P, ctypes.c_int32, _P, _P),
    "predict": (_P, _P, _P, _P),
    "predict_sampled": (_P, _P, ctypes.c_int64, _P, ctypes.c_int64, _P, ctypes.c_uint64, _P, _P),
}


class Served:
    """The functions of a library; failures are RuntimeErrors with status and line."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name in ("num_features", "num_classes"):
            getattr(self._library, f"graphweft_{name}").restype = ctypes.c_int64
        for name, types in _FUNCTIONS.items():
            getattr(self._library, f"graphweft_{name}").argtypes = types
        for name in ("model", "graph", "context"):
            function = getattr(self._library, f"graphweft_{name}_free")
            function.argtypes, function.restype = (_P,), None
        self.num_features, self.num_classes = (
            int(getattr(self._library, f"graphweft_{name}")()) for name in ("num_features", "num_classes")
        )

    def _call(self, name: str, *arguments: Any) -> None:
        error = ctypes.create_string_buffer(256)
        if status := getattr(self._library, f"graphweft_{name}")(*arguments, error):
            raise RuntimeError(f"status {status}: {error.value.decode()}")

    def _made(self, name: str, *arguments: Any) -> _P:
        out = _P()
        self._call(name, *arguments, ctypes.byref(out))
        return out

    def model(self, path: Path) -> _P:
        """Weights of a file."""
        return self._made("model_load", str(path).encode())

    def graph(self, graph: Graph, weights: NDArray[np.float32] | None = None) -> _P:
        """In-edges of a graph; ``weights`` by the number of the edge."""
        rows = graph.csc
        if weights is not None and rows.edge_ids is not None:
            weights = weights[rows.edge_ids.numpy()]
        return self.rows(rows.indptr.numpy(), rows.indices.numpy().astype(np.int32), weights)

    def rows(self, indptr: NDArray[Any], indices: NDArray[Any], weights: NDArray[np.float32] | None = None) -> _P:
        """A graph of compressed rows."""
        if weights is not None:
            weights = np.ascontiguousarray(weights, np.float32)
            arrays = (indptr.ctypes.data, indices.ctypes.data, weights.ctypes.data)
            return self._made("weighted_graph_new", len(indptr) - 1, *arrays)
        return self._made("graph_new", len(indptr) - 1, indptr.ctypes.data, indices.ctypes.data)

    def context(self, model: _P, graph: _P, threads: int = 1) -> _P:
        """Working memory."""
        return self._made("context_new", model, graph, threads)

    def free(self, kind: str, what: _P) -> None:
        """Gives something back."""
        getattr(self._library, f"graphweft_{kind}_free")(what)

    def predict(self, context: _P, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores of all nodes."""
        scores = np.full((len(x), self.num_classes), np.nan, np.float32)
        self._call("predict", context, x.ctypes.data, scores.ctypes.data)
        return scores

    def sampled(
        self, context: _P, x: NDArray[np.float32], nodes: list[int], fanouts: list[int], seed: int
    ) -> NDArray[np.float32]:
        """Scores of some nodes."""
        ids, widths = np.array(nodes, np.int64), np.array(fanouts, np.int64)
        scores = np.full((len(nodes), self.num_classes), np.nan, np.float32)
        arguments = (len(nodes), ids.ctypes.data, len(fanouts), widths.ctypes.data, seed, scores.ctypes.data)
        self._call("predict_sampled", context, x.ctypes.data, *arguments)
        return scores


__all__ = ["Served"]
