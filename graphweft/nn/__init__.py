"""Models and layers, each compiled as a whole."""

from graphweft.frontend.rules import register_rule
from graphweft.nn.cgat import CGAT, CGATConv
from graphweft.nn.cheb import ChebConv
from graphweft.nn.dgi import DGI
from graphweft.nn.edge_model import EdgeDecoder, EdgeModel
from graphweft.nn.gae import GAE, VGAE
from graphweft.nn.gat import GAT, GATConv, GATv2Conv
from graphweft.nn.gcn import GCN, GCNConv
from graphweft.nn.gin import GIN, GINConv
from graphweft.nn.gine import GINEConv
from graphweft.nn.graph_model import GraphModel
from graphweft.nn.graph_pooling import SAGPool, TopKPool
from graphweft.nn.hgt import HGT, HGTConv
from graphweft.nn.jumping import JumpingKnowledge
from graphweft.nn.module import CompiledModule
from graphweft.nn.ngcf import NGCF, NGCFConv
from graphweft.nn.node2vec import Node2Vec
from graphweft.nn.node_embedding import NodeEmbedding
from graphweft.nn.pna import PNAConv, mean_log_degree
from graphweft.nn.propagation import APPNP, GCNII, SGConv
from graphweft.nn.pyg_weights import load_pyg_state_dict
from graphweft.nn.readout import AttentionPool, Readout, Set2Set, graph_softmax, readout
from graphweft.nn.rgcn import RGCN, RGCNConv
from graphweft.nn.sage import SAGE, SAGEConv
from graphweft.nn.transformer import Transformer, TransformerConv

__all__ = [
    "APPNP",
    "CGAT",
    "DGI",
    "GAE",
    "GAT",
    "GCN",
    "GCNII",
    "GIN",
    "HGT",
    "NGCF",
    "RGCN",
    "SAGE",
    "VGAE",
    "AttentionPool",
    "CGATConv",
    "ChebConv",
    "CompiledModule",
    "EdgeDecoder",
    "EdgeModel",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GraphModel",
    "HGTConv",
    "JumpingKnowledge",
    "NGCFConv",
    "Node2Vec",
    "NodeEmbedding",
    "PNAConv",
    "RGCNConv",
    "Readout",
    "SAGEConv",
    "SAGPool",
    "SGConv",
    "Set2Set",
    "TopKPool",
    "Transformer",
    "TransformerConv",
    "graph_softmax",
    "load_pyg_state_dict",
    "mean_log_degree",
    "readout",
    "register_rule",
]
