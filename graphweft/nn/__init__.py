"""Models and layers, each compiled as a whole."""

from graphweft.nn.cgat import CGAT, CGATConv
from graphweft.nn.dgi import DGI
from graphweft.nn.edge_model import EdgeDecoder, EdgeModel
from graphweft.nn.gae import GAE, VGAE
from graphweft.nn.gat import GAT, GATConv, GATv2Conv
from graphweft.nn.gcn import GCN, GCNConv
from graphweft.nn.gin import GIN, GINConv
from graphweft.nn.graph_model import GraphModel
from graphweft.nn.graph_pooling import SAGPool, TopKPool
from graphweft.nn.hgt import HGT, HGTConv
from graphweft.nn.module import CompiledModule
from graphweft.nn.ngcf import NGCF, NGCFConv
from graphweft.nn.node2vec import Node2Vec
from graphweft.nn.node_embedding import NodeEmbedding
from graphweft.nn.pyg_weights import load_pyg_state_dict
from graphweft.nn.readout import AttentionPool, Readout, Set2Set, graph_softmax, readout
from graphweft.nn.rgcn import RGCN, RGCNConv
from graphweft.nn.sage import SAGE, SAGEConv

__all__ = [
    "CGAT",
    "DGI",
    "GAE",
    "GAT",
    "GCN",
    "GIN",
    "HGT",
    "NGCF",
    "RGCN",
    "SAGE",
    "VGAE",
    "AttentionPool",
    "CGATConv",
    "CompiledModule",
    "EdgeDecoder",
    "EdgeModel",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GraphModel",
    "HGTConv",
    "NGCFConv",
    "Node2Vec",
    "NodeEmbedding",
    "RGCNConv",
    "Readout",
    "SAGEConv",
    "SAGPool",
    "Set2Set",
    "TopKPool",
    "graph_softmax",
    "load_pyg_state_dict",
    "readout",
]
