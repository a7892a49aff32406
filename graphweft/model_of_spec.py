"""The model that a spec names.

Comes in: a :class:`TrainSpec` and a dataset. Goes out: a model with new parameters. Called by :mod:`graphweft.run` and
whatever runs a spec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphweft.data.dataset import Dataset
from graphweft.data.stored import StoredDataset
from graphweft.nn.cgat import CGAT
from graphweft.nn.dgi import DGI
from graphweft.nn.edge_model import EdgeModel
from graphweft.nn.gae import GAE, VGAE
from graphweft.nn.graph_model import CONVS, GraphModel
from graphweft.nn.hgt import HGT
from graphweft.nn.module import CompiledModule
from graphweft.nn.ngcf import NGCF
from graphweft.nn.node2vec import Node2Vec
from graphweft.nn.node_data import edge_columns
from graphweft.nn.node_embedding import NodeEmbedding
from graphweft.nn.propagation import APPNP, GCNII
from graphweft.nn.rgcn import RGCN
from graphweft.train.edge_task import pair_columns
from graphweft.train.footprint import check_fits
from graphweft.train.options import EMBEDDING_TASKS, check_mode
from graphweft.train.spec import ATTENTIVE, PROPAGATING, TYPED, TrainSpec

MODELS: dict[str, Callable[..., CompiledModule]] = {
    **CONVS,
    "appnp": APPNP,
    "gcnii": GCNII,
    "cgat": CGAT,
    "ngcf": NGCF,
    "rgcn": RGCN,
    "hgt": HGT,
}


Made = CompiledModule | NodeEmbedding | GraphModel | EdgeModel | GAE | DGI | Node2Vec


def make_model(spec: TrainSpec, ds: Dataset) -> Made:
    """The model that ``spec`` names for ``ds``; its parameters depend on the seed alone.

    Raises: ConfigError when it cannot fit in memory.
    """
    learned = spec.features == "embedding"
    if check_mode(spec.mode) == "full":
        check_fits(ds.num_nodes, spec.hidden if learned else ds.num_features, spec.hidden, ds.num_classes, spec.layers)
    options: dict[str, Any] = {
        "num_layers": spec.layers,
        "dropout": spec.dropout,
        "norm": None if spec.norm == "none" else spec.norm,
        "residual": spec.residual,
    }
    if spec.reduce != "auto":
        options["reduce"] = spec.reduce
    if spec.activation != "auto":
        options["activation"] = spec.activation
    if spec.model in ATTENTIVE:
        options |= {"heads": spec.heads, "out_heads": spec.out_heads, "attention_dropout": spec.attention_dropout}
    if spec.model in ("gat", "gatv2", "transformer") and spec.edge_data == "use":
        options["edge_dim"] = edge_columns(ds)
    if spec.train_eps:
        options["train_eps"] = True
    if spec.value_dropout:
        options["value_dropout"] = spec.value_dropout
    if spec.model in TYPED:
        types = (ds.store.types if isinstance(ds, StoredDataset) else None) or ds.graph
        options["num_relations"] = len(types.relations)
        if spec.model == "hgt":
            options |= {"heads": spec.heads, "num_node_types": len(types.node_types)}
    if spec.model in PROPAGATING:
        options = {"num_layers": spec.layers, "dropout": spec.dropout, "alpha": spec.alpha}
        options |= {"hops": spec.hops} if spec.model == "appnp" else {}
    if spec.model == "rgcn" and spec.bases:
        options["num_bases"] = spec.bases
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(spec.seed)
        if spec.has_graphs:
            sizes = (ds.num_features, spec.hidden, ds.num_classes, options.pop("num_layers"), spec.model)
            return GraphModel(*sizes, readout=spec.readout, **options)
        if spec.has_pairs:
            sizes = (ds.num_features, spec.hidden, ds.num_classes, options.pop("num_layers"), spec.model)
            of_pairs = pair_columns(ds) if spec.edge_data == "use" else 0
            return EdgeModel(*sizes, pair_dim=of_pairs, **options)
        if spec.task == "node2vec":
            return Node2Vec(ds.graph, spec.hidden)
        width = spec.hidden if spec.task in EMBEDDING_TASKS else ds.num_classes
        width *= 2 if spec.task == "vgae" else 1  # a mean and a deviation for every column
        given: int | None = spec.hidden if learned else ds.num_features
        if spec.model == "rgcn" and ds.x is None:
            given, options["num_nodes"] = None, ds.num_nodes
        model = MODELS[spec.model](given, spec.hidden, width, **options)
        return _without_labels(spec, model) or (NodeEmbedding(ds.num_nodes, model) if learned else model)


def _without_labels(spec: TrainSpec, encoder: CompiledModule) -> GAE | DGI | None:
    """The encoder with the loss of a task without labels; None for other tasks."""
    if spec.task == "dgi":
        return DGI(encoder, spec.hidden)
    return {"gae": GAE, "vgae": VGAE}[spec.task](encoder) if spec.task in ("gae", "vgae") else None
