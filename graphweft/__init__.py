"""GraphWeft trains graph neural networks fast, on graphs of any size, on the hardware at hand.

>>> import graphweft as gw
>>> ds = gw.synthetic("default", scale=0.02)
>>> model = gw.nn.GCN(ds.num_features, 16, ds.num_classes)
>>> history = gw.Trainer(model, ds, lr=0.01).fit(epochs=2)
>>> len(history)
2
"""

from graphweft import nn as nn
from graphweft import optim as optim
from graphweft._config import Config, config
from graphweft._errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DownloadError,
    DtypeError,
    FallbackWarning,
    GraphError,
    GraphWeftError,
    IndexRangeError,
    IRError,
    NativeError,
    PassError,
    ShapeError,
)
from graphweft.data.dataset import Dataset
from graphweft.data.load import load
from graphweft.data.synthetic import synthetic
from graphweft.explain import explain
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures
from graphweft.train.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "DataError",
    "Dataset",
    "DownloadError",
    "DtypeError",
    "FallbackWarning",
    "Graph",
    "GraphError",
    "GraphWeftError",
    "IRError",
    "IndexRangeError",
    "NativeError",
    "PassError",
    "ShapeError",
    "SparseFeatures",
    "Trainer",
    "config",
    "explain",
    "load",
    "nn",
    "optim",
    "synthetic",
]
