"""Explainers of PyTorch Geometric on models of this library give what they give on its own with equal weights."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import graphweft as gw

nn = pytest.importorskip("torch_geometric.nn")
explain = pytest.importorskip("torch_geometric.explain")


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.02, seed=0)


def _pair(kind: str, ds: gw.Dataset) -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    peer = {"sage": nn.GraphSAGE, "gin": nn.GIN}[kind](ds.num_features, 16, 2, ds.num_classes).eval()
    mine = {"sage": gw.nn.SAGE, "gin": gw.nn.GIN}[kind](ds.num_features, 16, ds.num_classes).eval()
    gw.nn.load_pyg_state_dict(mine, peer.state_dict())
    return peer, gw.interop.explainable(mine)


def _explained(model: torch.nn.Module, x: torch.Tensor, edges: torch.Tensor, **masks: str) -> Any:
    torch.manual_seed(3)
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    explainer = explain.Explainer(
        model, explain.GNNExplainer(epochs=20), explanation_type="model", model_config=config, **masks
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return explainer(x, edges, index=7)


@pytest.mark.parametrize("kind", ["sage", "gin"])
def test_masks_are_those_of_a_peer_with_equal_weights(kind: str, ds: gw.Dataset) -> None:
    edges = torch.stack(ds.graph.edges()).long()
    masks = {"node_mask_type": "attributes", "edge_mask_type": "object"}
    expected, found = (_explained(model, ds.x, edges, **masks) for model in _pair(kind, ds))
    assert 0 < int((expected.edge_mask > 0).sum()) < ds.num_edges
    torch.testing.assert_close(found.edge_mask, expected.edge_mask, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.node_mask, expected.node_mask, rtol=1e-4, atol=1e-5)


def test_weights_count_beside_the_mask_and_the_graph_follows_its_edges(ds: gw.Dataset) -> None:
    model = gw.nn.SAGE(ds.num_features, 8, ds.num_classes).eval()
    wrapped = gw.interop.explainable(model)
    edges, weight = torch.stack(ds.graph.edges()).long(), torch.rand(ds.num_edges)
    graph = gw.Graph(*edges, num_nodes=ds.num_nodes)
    assert torch.equal(wrapped(ds.x, edges, weight), model(graph, ds.x, edge_weight=weight))
    wrapped.masked.explain, wrapped.masked._apply_sigmoid = True, True
    wrapped.masked._edge_mask = torch.randn(ds.num_edges)
    both = weight * wrapped.masked._edge_mask.sigmoid()
    torch.testing.assert_close(wrapped(ds.x, edges, weight), model(graph, ds.x, edge_weight=both))
    wrapped.masked.explain = None
    assert torch.equal(wrapped(ds.x, edges), model(graph, ds.x))
    edges[:, :50] = edges[:, 50:100].clone()
    changed = gw.Graph(*edges, num_nodes=ds.num_nodes)
    assert torch.equal(wrapped(ds.x, edges), model(changed, ds.x))


def test_models_without_edge_weights_explain_nodes_and_features_only(ds: gw.Dataset) -> None:
    edges = torch.stack(ds.graph.edges()).long()
    model = gw.interop.explainable(gw.nn.GAT(ds.num_features, 8, ds.num_classes, heads=2).eval())
    assert _explained(model, ds.x, edges, node_mask_type="object").node_mask.abs().sum() > 0
    with pytest.raises(
        gw.errors.ConfigError, match=r"such as gw\.nn\.GCN, SAGE or GIN, for masks of edges, got GAT; masks of"
    ):
        _explained(model, ds.x, edges, edge_mask_type="object")
    with pytest.raises(gw.errors.ConfigError, match=r"explainable: expected model as a torch\.nn\.Module, got str"):
        gw.interop.explainable("gcn")  # type: ignore[arg-type]
