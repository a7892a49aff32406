"""Inference layer by layer: what does not fit is told in one line. Its rows are compared in test_mini_batch.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphweft._errors import ConfigError, DtypeError, GraphWeftError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.nn.sage import SAGE
from graphweft.storage.feature import SparseFeatures
from graphweft.train.inference import infer

GRAPH, X = Graph([0, 1, 2], [1, 2, 0]), torch.eye(3)
BAD: dict[str, tuple[type[GraphWeftError], Callable[[Any], Any]]] = {
    "model": (ConfigError, lambda model: infer(torch.nn.Linear(3, 2), GRAPH, X)),  # type: ignore[arg-type]
    "array": (DtypeError, lambda model: infer(model, GRAPH, X.numpy())),  # type: ignore[arg-type]
    "half": (DtypeError, lambda model: infer(model, GRAPH, X.half())),
    "rows": (ShapeError, lambda model: infer(model, GRAPH, X[:2])),
    "sparse rows": (ShapeError, lambda model: infer(model, GRAPH, SparseFeatures.from_dense(X[:2]))),
    "tile": (ConfigError, lambda model: infer(model, GRAPH, X, tile=0)),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit(what: str) -> None:
    error, call = BAD[what]
    with pytest.raises(error, match=r"^infer: expected ") as failure:
        call(SAGE(3, 4, 2, num_layers=2))
    assert "\n" not in str(failure.value)


def test_parameters_in_double_precision_take_features_of_it() -> None:
    model = SAGE(3, 4, 2, num_layers=2).double()
    rows = infer(model, GRAPH, X.double(), tile=2)
    torch.testing.assert_close(rows, model.eval()(GRAPH, X.double()))
