"""Small valid datasets in every layout that the readers know, as bytes by file name. Made on the spot, no real data.

``from layouts import LAYOUTS``; the readers' tests and the mutation run write them to a folder.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

NODES, FEATURES, CLASSES = 12, 5, 3


class Layout(NamedTuple):
    """Files by relative name, and which of them (or "" for the folder) is read."""

    files: dict[str, bytes]
    target: str


class Sample(NamedTuple):
    """The graph behind all layouts."""

    adjacency: sp.csr_array
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    masks: dict[str, NDArray[np.bool_]]


def sample() -> Sample:
    """A symmetric graph of 12 nodes with sparse features, 3 classes and a split of 4/4/4."""
    rng = np.random.default_rng(7)
    upper = sp.csr_array(np.triu(rng.random((NODES, NODES)) < 0.3, 1).astype(np.float32))
    x = (rng.random((NODES, FEATURES)) < 0.4).astype(np.float32)
    x[:, 0] = 1
    masks = {part: np.arange(NODES) // 4 == i for i, part in enumerate(("train", "val", "test"))}
    return Sample(sp.csr_array(upper + upper.T), x, np.arange(NODES) % CLASSES, masks)


def npz_bytes(arrays: dict[str, Any], compress: bool = True) -> bytes:
    """Arrays as the content of a ``.npz`` file."""
    out = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(out, **arrays)
    return out.getvalue()


def _csv(table: Any, form: str = "%g", delimiter: str = ",") -> bytes:
    out = io.StringIO()
    np.savetxt(out, np.asarray(table), fmt=form, delimiter=delimiter)
    return out.getvalue().encode()


def _gz(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _form(s: Sample) -> dict[str, Any]:
    a = s.adjacency
    masks = {f"{part}_mask": mask for part, mask in s.masks.items()}
    return {
        "indptr": a.indptr.astype(np.int64),
        "indices": a.indices.astype(np.int32),
        "y": s.y.astype(np.int16),
        **masks,
    }


def npz_sparse() -> Layout:
    s = sample()
    x = sp.csr_array(s.x)
    parts = {
        "x_indptr": x.indptr,
        "x_indices": x.indices,
        "x_data": x.data.astype(np.uint8),
        "x_shape": np.array(x.shape),
    }
    return Layout({"g.npz": npz_bytes({**_form(s), **parts})}, "g.npz")


def npz_dense() -> Layout:
    s = sample()
    coo = s.adjacency.tocoo()
    form = {key: value for key, value in _form(s).items() if key not in ("indptr", "indices")}
    masks = {
        key: np.stack([value, ~value]) if key == "train_mask" else np.stack([value] * 2)
        for key, value in form.items()
        if "mask" in key
    }
    arrays = {**form, **masks, "edge_index": np.stack([coo.row, coo.col]).astype(np.int64), "x": s.x}
    return Layout({"g.npz": npz_bytes(arrays, compress=False)}, "g.npz")


def npz_graphs() -> Layout:
    blocks = [np.ones((3, 3)) - np.eye(3)] * 4
    a = sp.block_diag(blocks, format="csr")
    arrays = {
        "graph_ptr": np.arange(0, 13, 3),
        "indptr": a.indptr.astype(np.int64),
        "indices": a.indices.astype(np.int32),
        "node_tag": np.tile([0, 1, 2], 4),
        "y": np.array([0, 1, 0, 1], np.int16),
        "fold": np.array([0, 1, 2, -1], np.int8),
    }
    return Layout({"g.npz": npz_bytes(arrays)}, "g.npz")


def npz_relations() -> Layout:
    s = sample()
    coo = s.adjacency.tocoo()
    arrays = {
        "edge_index": np.stack([coo.row, coo.col]).astype(np.int32),
        "edge_type": (np.arange(coo.nnz) % 3).astype(np.int16),
        "relation_names": np.array(["a", "b", "c"]),
        "y": np.where(s.y == 2, -1, s.y),
        "train_mask": s.masks["train"],
        "test_mask": s.masks["test"],
        "node_kind": np.zeros(NODES, np.uint8),
    }
    return Layout({"g.npz": npz_bytes(arrays)}, "g.npz")


def npz_node_types() -> Layout:
    x = sp.csr_array(sample().x[:8])
    arrays = {
        "edge_index": np.array([[0, 1, 2, 7, 3], [8, 9, 9, 10, 11]], np.int32),
        "edge_type": np.array([0, 0, 0, 1, 1], np.uint8),
        "node_type": np.repeat([0, 1, 2], [8, 2, 2]).astype(np.uint8),
        "node_type_names": np.array(["paper", "author", "subject"]),
        "edge_type_names": np.array(["paper-author", "paper-subject"]),
        "y": (np.arange(8) % 3).astype(np.int16),
        "target_type": np.int64(0),
        "x_paper_indptr": x.indptr,
        "x_paper_indices": x.indices,
        "x_paper_data": x.data,
        "x_paper_shape": np.array(x.shape),
        "x_author": np.ones((2, 3), np.float32),
        **{f"{part}_index_20": np.array([2 * i, 2 * i + 1]) for i, part in enumerate(("train", "val", "test"))},
    }
    return Layout({"g.npz": npz_bytes(arrays)}, "g.npz")


def npz_triples() -> Layout:
    rng = np.random.default_rng(3)
    arrays: dict[str, Any] = {"relation_names": np.array(["_a", "_b"]), "num_nodes": np.int64(NODES)}
    for part, count in (("train", 20), ("valid", 4), ("test", 4)):
        arrays[f"{part}_edge_index"] = rng.integers(0, NODES, (2, count)).astype(np.int32)
        arrays[f"{part}_edge_type"] = rng.integers(0, 2, count).astype(np.uint8)
    return Layout({"g.npz": npz_bytes(arrays)}, "g.npz")


def planetoid() -> Layout:
    """Eight known nodes, three test nodes in mixed order and a gap, as in Citeseer."""
    s = sample()
    x, one_hot = sp.csr_matrix(s.x), np.eye(CLASSES, dtype=np.int32)[s.y]
    listed = [11, 8, 10]
    graph: dict[int, list[int]] = defaultdict(list)
    for u, v in zip(*s.adjacency.nonzero(), strict=True):
        graph[int(u)].append(int(v))
    parts = {
        "x": x[:4],
        "y": one_hot[:4],
        "allx": x[:8],
        "ally": one_hot[:8],
        "tx": x[listed],
        "ty": one_hot[listed],
        "graph": graph,
    }
    files = {f"ind.toy.{part}": pickle.dumps(value, protocol=2) for part, value in parts.items()}
    files["ind.toy.test.index"] = "".join(f"{i}\n" for i in listed).encode()
    return Layout(files, "")


def gnn_benchmark() -> Layout:
    s = sample()
    x, a = sp.csr_array(s.x), sp.csr_array(s.adjacency)
    parts = {f"adj_{key}": getattr(a, key) for key in ("data", "indices", "indptr")}
    parts |= {f"attr_{key}": getattr(x, key) for key in ("data", "indices", "indptr")}
    shapes = {"adj_shape": np.array(a.shape), "attr_shape": np.array(x.shape)}
    names = {"class_names": np.array(["u", "v", "w"])}
    return Layout({"g.npz": npz_bytes({**parts, **shapes, **names, "labels": s.y.astype(np.int8)})}, "g.npz")


def heterophilous() -> Layout:
    s = sample()
    upper = sp.triu(s.adjacency).tocoo()
    masks = {f"{part}_masks": np.stack([mask] * 10) for part, mask in s.masks.items()}
    edges = np.stack([upper.row, upper.col], axis=1).astype(np.int64)
    return Layout({"g.npz": npz_bytes({"node_features": s.x, "node_labels": s.y, "edges": edges, **masks})}, "g.npz")


def graphsaint(several: bool = False) -> Layout:
    s = sample()
    a = s.adjacency
    adjacency = {
        "indptr": a.indptr,
        "indices": a.indices,
        "data": np.ones(a.nnz, bool),
        "shape": np.array(a.shape),
        "format": np.array(b"csr"),
    }
    roles = dict(zip(("tr", "va", "te"), (np.flatnonzero(m).tolist() for m in s.masks.values()), strict=True))
    classes = {str(i): np.eye(CLASSES, dtype=int)[c].tolist() if several else int(c) for i, c in enumerate(s.y)}
    feats = io.BytesIO()
    np.save(feats, s.x.astype(np.float64))
    files = {
        "adj_full.npz": npz_bytes(adjacency),
        "role.json": json.dumps(roles).encode(),
        "class_map.json": json.dumps(classes).encode(),
        "feats.npy": feats.getvalue(),
    }
    return Layout(files, "")


def ogb_nodes() -> Layout:
    s = sample()
    coo = s.adjacency.tocoo()
    raw = {
        "edge": _csv(np.stack([coo.row, coo.col], axis=1)),
        "node-feat": _csv(s.x),
        "node-label": _csv(s.y),
        "num-node-list": f"{NODES}\n".encode(),
        "num-edge-list": f"{coo.nnz}\n".encode(),
    }
    files = {f"raw/{name}.csv.gz": _gz(content) for name, content in raw.items()}
    for part, mask in zip(("train", "valid", "test"), s.masks.values(), strict=True):
        files[f"split/time/{part}.csv.gz"] = _gz(_csv(np.flatnonzero(mask)))
    return Layout(files, "")


def ogb_graphs() -> Layout:
    """Three paths of 3, 4 and 5 nodes with a value each."""
    raw = {
        "edge": b"0,1\n1,2\n0,1\n1,2\n2,3\n0,1\n1,2\n2,3\n3,4\n",
        "edge-feat": b"1,0\n" * 9,
        "node-feat": _csv(sample().x),
        "graph-label": b"-0.5\n1.25\n3\n",
        "num-node-list": b"3\n4\n5\n",
        "num-edge-list": b"2\n3\n4\n",
    }
    files = {f"raw/{name}.csv.gz": _gz(content) for name, content in raw.items()}
    for i, part in enumerate(("train", "valid", "test")):
        files[f"split/scaffold/{part}.csv.gz"] = _gz(f"{i}\n".encode())
    return Layout(files, "")


def tu() -> Layout:
    """Two triangles and two pairs."""
    pairs = [(1, 2), (2, 3), (1, 3), (4, 5), (5, 6), (4, 6), (7, 8), (9, 10)]
    both = pairs + [(v, u) for u, v in pairs]
    text = {
        "A": "".join(f"{u}, {v}\n" for u, v in both),
        "graph_indicator": "".join(f"{g}\n" for g in (1, 1, 1, 2, 2, 2, 3, 3, 4, 4)),
        "graph_labels": "1\n-1\n1\n-1\n",
        "node_labels": "".join(f"{1 + i % 3}\n" for i in range(10)),
        "node_attributes": "".join(f" {i}.5, {i * i}.25\n" for i in range(10)),
    }
    return Layout({f"raw/TOY_{name}.txt": content.encode() for name, content in text.items()}, "")


def snap() -> Layout:
    """Ids with gaps under a SNAP header."""
    upper = sp.triu(sample().adjacency).tocoo()
    lines = "".join(f"{3 * u + 5}\t{3 * v + 5}\n" for u, v in zip(upper.row, upper.col, strict=True))
    nodes = len(np.unique(np.concatenate([upper.row, upper.col])))
    return Layout({"g.txt": f"# toy\n# Nodes: {nodes} Edges: {upper.nnz}\n# From\tTo\n{lines}".encode()}, "g.txt")


def csv_edges() -> Layout:
    upper = sp.triu(sample().adjacency).tocoo()
    lines = "".join(f"{u},{v},{0.5 * (u + 1)}\n" for u, v in zip(upper.row, upper.col, strict=True))
    return Layout({"g.csv": f"source,target,weight\n{lines}".encode()}, "g.csv")


def matrix_market() -> Layout:
    coo = sample().adjacency.tocoo()
    lines = "".join(f"{u + 1} {v + 1} 1\n" for u, v in zip(coo.row, coo.col, strict=True))
    head = f"%%MatrixMarket matrix coordinate real general\n% toy\n{NODES} {NODES} {coo.nnz}\n"
    return Layout({"g.mtx": (head + lines).encode()}, "g.mtx")


def rdf(packed: bool) -> Layout:
    """N-Triples with three predicates, blank nodes and literals, and lists of labels."""
    g = sample()
    coo = g.adjacency.tocoo()
    lines = ["# a toy"]
    for at, (a, b) in enumerate(zip(coo.row.tolist(), coo.col.tolist(), strict=True)):
        lines.append(f"<http://toy/{a}> <http://toy/p{at % 2}> <http://toy/{b}> .")
    lines += [f'<http://toy/{v}> <http://toy/name> "node \\"{v}\\" \\u00e9"@en-GB . # a literal' for v in range(NODES)]
    lines += ["", '_:b1 <http://toy/p0> "7"^^<http://www.w3.org/2001/XMLSchema#int> .']
    text = ("\n".join(lines) + "\n").encode()
    parts = {"trainingSet.tsv": range(8), "testSet.tsv": range(8, NODES)}
    lists = {
        name: "\n".join(["id\tnode\tlabel", *(f"{v}\thttp://toy/{v}\tc{g.y[v]}" for v in rows), ""]).encode()
        for name, rows in parts.items()
    }
    return Layout({("toy.nt.gz" if packed else "toy.nt"): _gz(text) if packed else text, **lists}, "")


LAYOUTS: dict[str, Layout] = {
    "npz_sparse": npz_sparse(),
    "npz_dense": npz_dense(),
    "npz_graphs": npz_graphs(),
    "npz_relations": npz_relations(),
    "npz_node_types": npz_node_types(),
    "npz_triples": npz_triples(),
    "planetoid": planetoid(),
    "gnn_benchmark": gnn_benchmark(),
    "heterophilous": heterophilous(),
    "graphsaint": graphsaint(),
    "graphsaint_multilabel": graphsaint(several=True),
    "ogb_nodes": ogb_nodes(),
    "ogb_graphs": ogb_graphs(),
    "tu": tu(),
    "snap": snap(),
    "csv": csv_edges(),
    "rdf": rdf(packed=True),
    "rdf_plain": rdf(packed=False),
    "ntriples": Layout({"toy.nt": rdf(packed=False).files["toy.nt"]}, "toy.nt"),
    "matrix_market": matrix_market(),
}
