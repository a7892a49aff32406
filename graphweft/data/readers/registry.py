"""Which layout lies at a path, and the one way to read it.

Comes in: a path. Goes out: a Dataset, or exactly one DataError of one line that starts with the path; whatever a
reader or a library under it raises ends here. Called by ``load``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from graphweft._errors import DataError, DataWarning, GraphWeftError
from graphweft.data.checks import overlap
from graphweft.data.dataset import NOT_USED, Dataset
from graphweft.data.part_check import is_parts
from graphweft.data.readers import (
    edge_list,
    gnn_benchmark,
    graphsaint,
    heterophilous,
    matrix_market,
    node_link,
    npz,
    ogb,
    planetoid,
    rdf,
    saved_typed,
    tu,
    typed_npz,
)
from graphweft.data.readers.archive import NpzArchive
from graphweft.data.readers.assemble import ReadOptions
from graphweft.data.readers.files import kind_of, list_folder, one_line, open_regular, show

_NETWORKX = "gw.interop.from_networkx(networkx."

# In the order in which they are asked; the first whose members fit reads the archive.
ARCHIVES: tuple[tuple[Callable[[set[str]], bool], Callable[[NpzArchive, ReadOptions], Dataset]], ...] = (
    (heterophilous.is_heterophilous, heterophilous.read_heterophilous),
    (gnn_benchmark.is_gnn_benchmark, gnn_benchmark.read_gnn_benchmark),
    (saved_typed.is_saved_typed, saved_typed.read_saved_typed),
    (typed_npz.is_typed, typed_npz.read_typed_npz),
    (npz.is_npz_form, npz.read_npz),
)
# A folder's layout by the names in it; the folder itself is asked before its ``raw``.
FOLDERS: tuple[tuple[Callable[[list[str]], bool], Callable[[Path, ReadOptions], Dataset]], ...] = (
    (planetoid.is_planetoid, planetoid.read_planetoid),
    (graphsaint.is_graphsaint, graphsaint.read_graphsaint),
    (node_link.is_parts, node_link.read_parts),
    (node_link.is_graphsage, node_link.read_graphsage),
    (ogb.is_ogb, ogb.read_ogb),
    (tu.is_tu, tu.read_tu),
    (rdf.is_rdf, rdf.read_rdf),
)
_SUFFIXES = (".gz", ".npz", ".nt", ".csv", ".tsv", ".txt", ".mtx", ".edges", ".edgelist")


def read_dataset(path: str | os.PathLike[str], options: ReadOptions | None = None) -> Dataset:
    """The dataset at ``path``, whatever its layout.

    Raises: DataError, and nothing else, if it is none.
    """
    options = options or ReadOptions()
    shown = show(path)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            ds = _read(Path(path), options)
            shared = overlap({part: ds.idx(part) for part in ("train", "val", "test")}, ds.num_rows)
            ds = replace(ds, notes=(*ds.notes, shared)) if shared else ds
    except DataError as error:
        text = one_line(str(error)).removeprefix(f"{show(Path(path).name)}: ")
        raise DataError(text if text.startswith(shown) else f"{shown}: {text}") from error
    except GraphWeftError as error:
        raise DataError(f"{shown}: {one_line(str(error))}") from error
    except MemoryError as error:
        raise DataError(f"{shown}: expected content that fits the free memory, got more") from error
    except Exception as error:
        text = one_line(f"{type(error).__name__}: {error}", 160)
        raise DataError(f"{shown}: expected an undamaged dataset, got a failure while reading ({text})") from error
    if shared:
        warnings.warn(f"{shown}: {shared}", DataWarning, stacklevel=3)
    return ds


def holds_graphs(path: Path) -> bool:
    """Whether the names of files or members say that many graphs lie at ``path``; nothing is read.

    Raises: DataError, OSError for what cannot be opened.
    """
    if path.is_dir():
        folders = [place for place in (path, path / "raw") if place.is_dir()]
        names = [list_folder(place) for place in folders]
        return any(tu.is_tu(held) or (ogb.is_ogb(held) and "graph-label.csv.gz" in held) for held in names)
    if path.suffix != ".npz":
        return False
    with open_regular(path) as file:
        return "graph_ptr" in NpzArchive(file, show(path.name))


def default_name(path: Path) -> str:
    """The name a dataset gets from its path: the file's or folder's own, without ``raw`` and suffixes."""
    if path.name == "raw" and path.parent.name:
        path = path.parent
    name = path.name
    while (suffix := Path(name).suffix.lower()) in _SUFFIXES and Path(name).stem:
        name = name[: -len(suffix)]
    return one_line(name, 80) or "graph"


def _read(path: Path, options: ReadOptions) -> Dataset:
    if kind_of(path) == "folder":
        return _read_folder(path, options)
    if planetoid.is_planetoid([path.name]):
        return planetoid.read_planetoid(path.parent, replace(options, name=planetoid.set_name(path.name)))
    named = options if options.name else replace(options, name=default_name(path))
    with open_regular(path) as file:
        start = file.read(16)
        file.seek(0)
        if start[:2] == b"PK" or path.suffix == ".npz":
            return _read_archive(NpzArchive(file, show(path.name)), named)
    other = _other_format(path, start)
    if other:
        raise DataError(other)
    if start.startswith(b"%%MatrixMarket") or path.name.endswith((".mtx", ".mtx.gz")):
        return matrix_market.read_matrix_market(path, named)
    if rdf.is_ntriples(path.name):
        return rdf.read_ntriples(path, named)
    return edge_list.read_edge_list(path, named)


def _other_format(path: Path, start: bytes) -> str:
    """What a file in a common format is that no reader takes, and what to do; empty for any other."""
    text = start.lstrip().lower()
    if start[:6] == b"\x93NUMPY":
        return "expected a graph, got one array of NumPy; np.savez(file, edge_index=, x=, y=) writes a graph"
    if path.name.lower().endswith((".json", ".json.gz")) or text.startswith(b"{"):
        return f"expected a table of edges, got JSON; {_NETWORKX}node_link_graph(held)) takes such a graph"
    if text.startswith((b"<?xml", b"<graphml", b"<gexf", b"<!doctype", b"<html")):
        return f"expected a table of edges, got XML; {_NETWORKX}read_graphml(path)) takes such a graph"
    return ""


def _read_archive(archive: NpzArchive, options: ReadOptions) -> Dataset:
    names = set(archive.names())
    for fits, read in ARCHIVES:
        if fits(names):
            return _with_unused(read(archive, options), archive.unused())
    if any(name.endswith("data.pkl") for name in names):
        raise DataError(
            "expected arrays, got a file of torch.save, which is not unpickled; gw.from_pyg takes what it holds"
        )
    held = one_line(", ".join(sorted(names)), 100) or "nothing"
    raise DataError(f"expected members indptr and indices, or edge_index, got {held}")


def _with_unused(ds: Dataset, members: list[str]) -> Dataset:
    """A note of the members of the file that its reader did not use: a label or a weight may be under another name."""
    if not members:
        return ds
    return replace(ds, notes=(*ds.notes, f"{NOT_USED}: {one_line(', '.join(sorted(members)), 200)}"))


def _read_folder(path: Path, options: ReadOptions) -> Dataset:
    for place in (path, path / "raw"):
        if place != path and not place.is_dir():
            continue
        names = list_folder(place)
        for fits, read in FOLDERS:
            if fits(names):
                return read(place, options)
    if is_parts(path):
        raise DataError("expected data, got the parts of partition, from which graphweft train --ranks trains")
    if (path / "last.pt").is_file():
        raise DataError("expected data, got the folder of a run, which graphweft evaluate, predict and plot take")
    raise DataError(
        "expected a folder in Planetoid, OGB, GraphSAINT, TU or RDF layout, got none of them; "
        "for a set of files name the file itself"
    )
