"""GraphWeft trains graph neural networks fast, on graphs of any size, on the hardware at hand.

>>> import graphweft as gw
>>> ds = gw.synthetic("default", scale=0.02)
>>> model = gw.nn.GCN(ds.num_features, 16, ds.num_classes)
>>> history = gw.Trainer(model, ds, lr=0.01).fit(epochs=2)
>>> len(history)
2
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphweft import data as data
    from graphweft import dist as dist
    from graphweft import errors as errors
    from graphweft import inspection as inspection
    from graphweft import interop as interop
    from graphweft import loaded_run as loaded_run
    from graphweft import macro as macro
    from graphweft import nn as nn
    from graphweft import optim as optim
    from graphweft import partitioning as partitioning
    from graphweft import planning as planning
    from graphweft import sampling as sampling
    from graphweft import schedule as schedule
    from graphweft import synthesis as synthesis
    from graphweft import transforms as transforms
    from graphweft._config import Config, config
    from graphweft._errors import FallbackWarning
    from graphweft.data.dataset import Dataset
    from graphweft.data.graph_dataset import GraphDataset
    from graphweft.data.load import load
    from graphweft.data.synthetic import synthetic
    from graphweft.explanation import explain
    from graphweft.graph.graph import Graph
    from graphweft.inspection import inspect
    from graphweft.interop.pyg import from_pyg
    from graphweft.loaded_run import load_run
    from graphweft.loader.graphs import GraphLoader
    from graphweft.loader.link import LinkLoader
    from graphweft.loader.loader import Loader
    from graphweft.nn import fn as fn
    from graphweft.nn.apply_functions import apply_edges, apply_nodes
    from graphweft.nn.compiled import compile as compile
    from graphweft.nn.message_passing import MessagePassing, update_all
    from graphweft.nn.napa import apply, neighbor_apply, pull, push
    from graphweft.partitioning.partition import partition
    from graphweft.planning import plan
    from graphweft.runtime.constants import constant
    from graphweft.train.trainer import Trainer

__version__ = "0.2.0"

__all__ = [
    "Config",
    "Dataset",
    "FallbackWarning",
    "Graph",
    "GraphDataset",
    "GraphLoader",
    "LinkLoader",
    "Loader",
    "MessagePassing",
    "Trainer",
    "apply",
    "apply_edges",
    "apply_nodes",
    "compile",
    "config",
    "constant",
    "explain",
    "from_pyg",
    "inspect",
    "load",
    "load_run",
    "neighbor_apply",
    "nn",
    "partition",
    "plan",
    "pull",
    "push",
    "synthetic",
    "update_all",
]

# Where the public names live. They are imported when they are first asked for: `graphweft --help` does not wait for
# torch, and a bad setting in the environment is reported like any other bad input. No module has a public name.
_HOMES = {
    **dict.fromkeys(("Config", "config"), "graphweft._config"),
    "FallbackWarning": "graphweft._errors",
    "Dataset": "graphweft.data.dataset",
    "GraphDataset": "graphweft.data.graph_dataset",
    "load": "graphweft.data.load",
    "synthetic": "graphweft.data.synthetic",
    "explain": "graphweft.explanation",
    "Graph": "graphweft.graph.graph",
    "inspect": "graphweft.inspection",
    "from_pyg": "graphweft.interop.pyg",
    "load_run": "graphweft.loaded_run",
    "GraphLoader": "graphweft.loader.graphs",
    "LinkLoader": "graphweft.loader.link",
    "Loader": "graphweft.loader.loader",
    **dict.fromkeys(("apply_edges", "apply_nodes"), "graphweft.nn.apply_functions"),
    "compile": "graphweft.nn.compiled",
    **dict.fromkeys(("MessagePassing", "update_all"), "graphweft.nn.message_passing"),
    **dict.fromkeys(("apply", "neighbor_apply", "pull", "push"), "graphweft.nn.napa"),
    "partition": "graphweft.partitioning.partition",
    "plan": "graphweft.planning",
    "constant": "graphweft.runtime.constants",
    "Trainer": "graphweft.train.trainer",
}
# Namespaces of everything that is asked for less often.
_MODULES = {
    "fn": "graphweft.nn.fn",
    **{
        name: f"graphweft.{name}"
        for name in (
            "data",
            "dist",
            "errors",
            "inspection",
            "interop",
            "loaded_run",
            "macro",
            "nn",
            "optim",
            "partitioning",
            "planning",
            "sampling",
            "schedule",
            "synthesis",
            "transforms",
        )
    },
}
# Names of version 0.1 that stood here. They go in version 0.3.
_MOVED = {
    **dict.fromkeys(("SparseFeatures",), "data"),
    **dict.fromkeys(("Ranks",), "dist"),
    **dict.fromkeys(
        (
            "CertificateWarning",
            "CheckpointError",
            "ConfigError",
            "DataError",
            "DataWarning",
            "DenseFeaturesWarning",
            "DenseSizeError",
            "DownloadError",
            "DtypeError",
            "FieldError",
            "GraphError",
            "GraphWeftError",
            "IRError",
            "IndexRangeError",
            "MemoryBudgetError",
            "NativeError",
            "PassError",
            "RecompileWarning",
            "ShapeError",
            "UserCodeError",
        ),
        "errors",
    ),
    **dict.fromkeys(("Inspection",), "inspection"),
    **dict.fromkeys(
        ("from_dgl", "from_networkx", "from_scipy", "to_dgl", "to_networkx", "to_pyg", "to_scipy"), "interop"
    ),
    **dict.fromkeys(("Run",), "loaded_run"),
    **dict.fromkeys(
        ("GraphFiles", "LargeBatch", "Macro", "MultistageLoader", "Parts", "Store", "Whole", "prepare_store"), "macro"
    ),
    **dict.fromkeys(("register_rule",), "nn"),
    **dict.fromkeys(("Partition",), "partitioning"),
    **dict.fromkeys(("Machine", "Plan"), "planning"),
    **dict.fromkeys(
        (
            "Block",
            "ClusterSampler",
            "GraphSampler",
            "InducedSampler",
            "LaborSampler",
            "LayerSampler",
            "NegativeSampler",
            "NeighborSampler",
            "SaintEdgeSampler",
            "SaintNodeSampler",
            "SaintWalkSampler",
            "SegmentSampler",
            "ShadowSampler",
            "WalkSampler",
            "collective_sample",
            "compact",
            "individual_sample",
            "metapath_walk",
            "random_walk",
            "visited_neighbors",
        ),
        "sampling",
    ),
    **dict.fromkeys(("EmulatedDevice", "Schedule", "Subtasks", "Tier"), "schedule"),
    **dict.fromkeys(("Program", "ProgramSpec", "Verbs", "load_weights", "save_weights", "write_program"), "synthesis"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A public name, imported from its home."""
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name in _MOVED:
            home = _MOVED[name]
            warnings.warn(
                f"gw.{name} has moved to gw.{home}.{name}; the old name will be removed in version 0.3",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(importlib.import_module(f"graphweft.{home}"), name)
        if name not in _HOMES:
            raise AttributeError(f"module 'graphweft' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names and namespaces."""
    return sorted({*__all__, *_MODULES, "__version__"})
