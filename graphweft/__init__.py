"""GraphWeft trains graph neural networks fast, on graphs of any size, on the hardware at hand.

>>> import graphweft as gw
>>> ds = gw.synthetic("default", scale=0.02)
>>> model = gw.nn.GCN(ds.num_features, 16, ds.num_classes)
>>> history = gw.Trainer(model, ds, lr=0.01).fit(epochs=2)
>>> len(history)
2
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphweft import nn as nn
    from graphweft import optim as optim
    from graphweft import transforms as transforms
    from graphweft._config import Config, config
    from graphweft._errors import (
        CertificateWarning,
        CheckpointError,
        ConfigError,
        DataError,
        DataWarning,
        DenseFeaturesWarning,
        DenseSizeError,
        DownloadError,
        DtypeError,
        FallbackWarning,
        FieldError,
        GraphError,
        GraphWeftError,
        IndexRangeError,
        IRError,
        MemoryBudgetError,
        NativeError,
        PassError,
        RecompileWarning,
        ShapeError,
        UserCodeError,
    )
    from graphweft.data.dataset import Dataset
    from graphweft.data.graph_dataset import GraphDataset
    from graphweft.data.graph_files import GraphFiles
    from graphweft.data.load import load
    from graphweft.data.prepare_store import prepare_store
    from graphweft.data.synthetic import synthetic
    from graphweft.dist.ranks import Ranks
    from graphweft.explanation import explain
    from graphweft.frontend.rules import register_rule
    from graphweft.graph.block import Block
    from graphweft.graph.graph import Graph
    from graphweft.inspection import Inspection, inspect
    from graphweft.interop.dgl import from_dgl, to_dgl
    from graphweft.interop.explainable import explainable
    from graphweft.interop.networkx import from_networkx, to_networkx
    from graphweft.interop.pyg import from_pyg
    from graphweft.interop.scipy import from_scipy, to_scipy
    from graphweft.interop.to_pyg import to_pyg
    from graphweft.loaded_run import Run, load_run
    from graphweft.loader.graphs import GraphLoader
    from graphweft.loader.link import LinkLoader
    from graphweft.loader.loader import Loader
    from graphweft.loader.multistage import MultistageLoader
    from graphweft.nn import fn as fn
    from graphweft.nn.apply_functions import apply_edges, apply_nodes
    from graphweft.nn.compiled import compile as compile
    from graphweft.nn.message_passing import MessagePassing, update_all
    from graphweft.nn.napa import apply, neighbor_apply, pull, push
    from graphweft.partitioning.partition import Partition, partition
    from graphweft.planning import plan
    from graphweft.runtime.constants import constant
    from graphweft.runtime.machine import Machine
    from graphweft.runtime.tier import Tier
    from graphweft.sample.cluster import ClusterSampler
    from graphweft.sample.hgt import HGTSampler
    from graphweft.sample.induced import InducedSampler
    from graphweft.sample.labor import LaborSampler
    from graphweft.sample.layer_wise import LayerSampler
    from graphweft.sample.metapath import metapath_walk, visited_neighbors
    from graphweft.sample.negative import NegativeSampler
    from graphweft.sample.neighbor import NeighborSampler
    from graphweft.sample.primitives import collective_sample, compact, individual_sample
    from graphweft.sample.saint import SaintEdgeSampler, SaintNodeSampler, SaintWalkSampler
    from graphweft.sample.segment import SegmentSampler
    from graphweft.sample.shadow import ShadowSampler
    from graphweft.sample.stages import LargeBatch, Parts, Whole
    from graphweft.sample.walk import WalkSampler, random_walk
    from graphweft.sample.whole_graphs import GraphSampler
    from graphweft.schedule.emulated import EmulatedDevice
    from graphweft.schedule.places import Schedule
    from graphweft.schedule.subtasks import Subtasks
    from graphweft.storage.feature import SparseFeatures
    from graphweft.storage.store import Store
    from graphweft.synth.spec import ProgramSpec
    from graphweft.synth.verbs import Verbs
    from graphweft.synthesis import Program, write_program
    from graphweft.train.macro import Macro
    from graphweft.train.plan import Plan
    from graphweft.train.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "Block",
    "CertificateWarning",
    "CheckpointError",
    "ClusterSampler",
    "Config",
    "ConfigError",
    "DataError",
    "DataWarning",
    "Dataset",
    "DenseFeaturesWarning",
    "DenseSizeError",
    "DownloadError",
    "DtypeError",
    "EmulatedDevice",
    "FallbackWarning",
    "FieldError",
    "Graph",
    "GraphDataset",
    "GraphError",
    "GraphFiles",
    "GraphLoader",
    "GraphSampler",
    "GraphWeftError",
    "HGTSampler",
    "IRError",
    "IndexRangeError",
    "InducedSampler",
    "Inspection",
    "LaborSampler",
    "LargeBatch",
    "LayerSampler",
    "LinkLoader",
    "Loader",
    "Machine",
    "Macro",
    "MemoryBudgetError",
    "MessagePassing",
    "MultistageLoader",
    "NativeError",
    "NegativeSampler",
    "NeighborSampler",
    "Partition",
    "Parts",
    "PassError",
    "Plan",
    "Program",
    "ProgramSpec",
    "Ranks",
    "RecompileWarning",
    "Run",
    "SaintEdgeSampler",
    "SaintNodeSampler",
    "SaintWalkSampler",
    "Schedule",
    "SegmentSampler",
    "ShadowSampler",
    "ShapeError",
    "SparseFeatures",
    "Store",
    "Subtasks",
    "Tier",
    "Trainer",
    "UserCodeError",
    "Verbs",
    "WalkSampler",
    "Whole",
    "apply",
    "apply_edges",
    "apply_nodes",
    "collective_sample",
    "compact",
    "compile",
    "config",
    "constant",
    "explain",
    "explainable",
    "fn",
    "from_dgl",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "individual_sample",
    "inspect",
    "load",
    "load_run",
    "metapath_walk",
    "neighbor_apply",
    "nn",
    "optim",
    "partition",
    "plan",
    "prepare_store",
    "pull",
    "push",
    "random_walk",
    "register_rule",
    "synthetic",
    "to_dgl",
    "to_networkx",
    "to_pyg",
    "to_scipy",
    "transforms",
    "update_all",
    "visited_neighbors",
    "write_program",
]

# Where the public names live. They are imported when they are first asked for: `graphweft --help` does not wait for
# torch, and a bad setting in the environment is reported like any other bad input. No module has a public name.
_HOMES = {
    **dict.fromkeys((name for name in __all__ if name.endswith(("Error", "Warning"))), "graphweft._errors"),
    "Config": "graphweft._config",
    "config": "graphweft._config",
    "Dataset": "graphweft.data.dataset",
    "GraphDataset": "graphweft.data.graph_dataset",
    "GraphFiles": "graphweft.data.graph_files",
    "load": "graphweft.data.load",
    "prepare_store": "graphweft.data.prepare_store",
    "synthetic": "graphweft.data.synthetic",
    "compile": "graphweft.nn.compiled",
    "explain": "graphweft.explanation",
    "plan": "graphweft.planning",
    "Plan": "graphweft.train.plan",
    "Machine": "graphweft.runtime.machine",
    **dict.fromkeys(("Inspection", "inspect"), "graphweft.inspection"),
    **dict.fromkeys(("Run", "load_run"), "graphweft.loaded_run"),
    "Block": "graphweft.graph.block",
    "Graph": "graphweft.graph.graph",
    **dict.fromkeys(("from_dgl", "to_dgl"), "graphweft.interop.dgl"),
    **dict.fromkeys(("from_networkx", "to_networkx"), "graphweft.interop.networkx"),
    **dict.fromkeys(("from_scipy", "to_scipy"), "graphweft.interop.scipy"),
    "explainable": "graphweft.interop.explainable",
    "from_pyg": "graphweft.interop.pyg",
    "to_pyg": "graphweft.interop.to_pyg",
    "GraphLoader": "graphweft.loader.graphs",
    "GraphSampler": "graphweft.sample.whole_graphs",
    "LinkLoader": "graphweft.loader.link",
    "Loader": "graphweft.loader.loader",
    "MultistageLoader": "graphweft.loader.multistage",
    **dict.fromkeys(("LargeBatch", "Parts", "Whole"), "graphweft.sample.stages"),
    "NegativeSampler": "graphweft.sample.negative",
    "NeighborSampler": "graphweft.sample.neighbor",
    "Partition": "graphweft.partitioning.partition",
    "partition": "graphweft.partitioning.partition",
    "SegmentSampler": "graphweft.sample.segment",
    "ClusterSampler": "graphweft.sample.cluster",
    "HGTSampler": "graphweft.sample.hgt",
    "InducedSampler": "graphweft.sample.induced",
    "LaborSampler": "graphweft.sample.labor",
    "LayerSampler": "graphweft.sample.layer_wise",
    **dict.fromkeys(("metapath_walk", "visited_neighbors"), "graphweft.sample.metapath"),
    **dict.fromkeys(("collective_sample", "compact", "individual_sample"), "graphweft.sample.primitives"),
    **dict.fromkeys(("SaintEdgeSampler", "SaintNodeSampler", "SaintWalkSampler"), "graphweft.sample.saint"),
    "ShadowSampler": "graphweft.sample.shadow",
    **dict.fromkeys(("WalkSampler", "random_walk"), "graphweft.sample.walk"),
    "MessagePassing": "graphweft.nn.message_passing",
    "register_rule": "graphweft.frontend.rules",
    "update_all": "graphweft.nn.message_passing",
    **dict.fromkeys(("apply_edges", "apply_nodes"), "graphweft.nn.apply_functions"),
    **dict.fromkeys(("apply", "neighbor_apply", "pull", "push"), "graphweft.nn.napa"),
    "SparseFeatures": "graphweft.storage.feature",
    "Store": "graphweft.storage.store",
    "constant": "graphweft.runtime.constants",
    "EmulatedDevice": "graphweft.schedule.emulated",
    "Schedule": "graphweft.schedule.places",
    "Subtasks": "graphweft.schedule.subtasks",
    "Ranks": "graphweft.dist.ranks",
    "Tier": "graphweft.runtime.tier",
    "ProgramSpec": "graphweft.synth.spec",
    "Verbs": "graphweft.synth.verbs",
    **dict.fromkeys(("Program", "write_program"), "graphweft.synthesis"),
    "Macro": "graphweft.train.macro",
    "Trainer": "graphweft.train.trainer",
}
_MODULES = {
    "fn": "graphweft.nn.fn",
    "nn": "graphweft.nn",
    "optim": "graphweft.optim",
    "transforms": "graphweft.transforms",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A public name, imported from its home."""
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name not in _HOMES:
            raise AttributeError(f"module 'graphweft' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names."""
    return sorted([*__all__, "__version__"])
