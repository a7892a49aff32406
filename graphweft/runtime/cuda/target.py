"""The table of launchers for CUDA devices.

Comes in: calls of a plan. Goes out: launchers of Triton kernels, of torch's products, and of generated walks. A call
without an entry is run value by value in torch, on the device where its operands lie. Known to ``gw.config(target=)``
as "cuda", and taken for every plan whose tensors lie on such a device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.ir.program import Value
from graphweft.runtime.cuda import attention, edges, heads, losses, products, sparse_features, streams
from graphweft.runtime.cuda.host_rows import RowReader
from graphweft.runtime.cuda.sampling import DeviceSampler
from graphweft.runtime.cuda.updates import updates_on
from graphweft.runtime.cuda.walks import edge_walk, row_region
from graphweft.runtime.target import Target, whole
from graphweft.sample.neighbor import NeighborSampler

_REALS = (torch.float32, torch.float64)
_HALVES = (torch.float16, torch.bfloat16)  # stored so, and added up in float32


def _pad_rows(value: Value, graph: Graph, x: Tensor) -> Tensor:
    more = graph.num_src - graph.num_dst
    return torch.constant_pad_nd(x, (*(0,) * (2 * x.dim() - 2), 0, more))


CUDA = Target("cuda", device="cuda", worth=1, joins=True)
CUDA.has_all = True
CUDA.losses, CUDA.later, CUDA.pinned = losses.LOSSES, streams.later, streams.pinned
CUDA.sender, CUDA.row_reader, CUDA.updates = streams.Sender, RowReader, updates_on
CUDA.sparse_bytes = sparse_features.sent_bytes
CUDA.rounds = CUDA.rounds_in_batches = frozenset({"rows"})  # products are torch's, in float32
for name, launcher in {
    **products.LAUNCHERS,
    "dropout": whole(sparse_features.dropout),
    "edge_nest": edge_walk,
    "reduce": edge_walk,
    "broadcast_src": edge_walk,
    "broadcast_dst": edge_walk,
    "sddmm": edge_walk,
    "edge_softmax": whole(lambda v, g, x: edges.edge_softmax(g, x, bool(v.get("log")))),
    "edge_softmax_grad": whole(lambda v, g, s, d: edges.edge_softmax_gradient(g, s, d)),
    "spmm_max_grad": whole(lambda v, g, arg, dy: edges.extremum_gradient(g, arg, dy)),
}.items():
    CUDA.launches(name, *_REALS, *(() if launcher is edge_walk else _HALVES))(launcher)
CUDA.launches("attention", torch.float32, *_HALVES)(attention.forward)
CUDA.launches("attention_grad", torch.float32, *_HALVES)(attention.backward)
for name, launcher in heads.LAUNCHERS.items():
    CUDA.launches(name, torch.float32)(launcher)
CUDA.launches("row_nest", torch.float32)(row_region)
CUDA.launches("sparse_matmul", *_REALS)(sparse_features.sparse_matmul)
CUDA.launches("spmm_arg")(whole(lambda v, g, x: edges.extremum(g, x, v["kind"] == "min", True)[1]))
CUDA.launches("take_rows", *_REALS, *_HALVES)(whole(sparse_features.take_rows))
CUDA.launches("own_rows", *_REALS, *_HALVES)(whole(lambda v, g, x: x.narrow(0, 0, g.num_dst)))
CUDA.launches("pad_rows", *_REALS, *_HALVES)(whole(_pad_rows))
CUDA.samples(NeighborSampler, DeviceSampler)
