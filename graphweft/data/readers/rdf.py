"""RDF graphs as N-Triples, alone or in a folder with tab-separated lists of labelled training and test entities.

Comes in: ``*.nt`` or ``*.nt.gz``, one statement a line, and ``trainingSet.tsv``, ``testSet.tsv`` beside it. Goes out: a
Dataset whose graph has one node type and a relation per predicate; IRIs, blank nodes and literals are nodes, and a
statement counts once. Called by the registry. Format: RDF 1.1 N-Triples, W3C Recommendation, 2014.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.assemble import Labels, ReadOptions, Split, no_labels, random_split
from graphweft.data.readers.files import list_folder, one_line, show, text_lines
from graphweft.graph.graph import Graph

_IRI = r"<[^\x00-\x20<>\"{}|^`\\]*(?:\\[uU][0-9A-Fa-f]{4,8}[^\x00-\x20<>\"{}|^`\\]*)*>"
_BLANK = r"_:[^\s<>\"]*[^\s<>\".]"
_LITERAL = rf'"(?:[^"\\\r\n]|\\.)*"(?:\^\^{_IRI}|@[A-Za-z]+(?:-[A-Za-z0-9]+)*)?'
_STATEMENT = re.compile(
    rf"[ \t]*({_IRI}|{_BLANK})[ \t]*({_IRI})[ \t]*({_IRI}|{_BLANK}|{_LITERAL})[ \t]*\.[ \t]*(?:#.*)?\r?"
)
_COMMENT = re.compile(r"[ \t]*(?:#.*)?\r?")
_SUFFIXES = (".nt", ".nt.gz")
_PARTS = {"trainingset.tsv": "train", "testset.tsv": "test"}
_MAX_RELATIONS = 100_000


def is_rdf(names: list[str]) -> bool:
    """A name is that of an N-Triples file."""
    return any(is_ntriples(name) for name in names)


def is_ntriples(name: str) -> bool:
    """The name of an N-Triples file, packed or not."""
    return name.lower().endswith(_SUFFIXES)


def read_rdf(folder: Path, options: ReadOptions) -> Dataset:
    """The one N-Triples file of a folder with its lists of labels, where they are there.

    Raises: DataError naming the file and line at fault.
    """
    names = list_folder(folder)
    files = [name for name in names if is_ntriples(name)]
    if len(files) != 1:
        raise DataError(f"expected one N-Triples file, got {one_line(', '.join(files), 80)}")
    lists = {part: name for name in names if (part := _PARTS.get(name.lower()))}
    return _dataset(folder / files[0], {part: folder / name for part, name in lists.items()}, options, folder.name)


def read_ntriples(path: Path, options: ReadOptions) -> Dataset:
    """One N-Triples file, without labels.

    Raises: DataError naming the line at fault.
    """
    return _dataset(path, {}, options, path.name)


def _dataset(path: Path, lists: dict[str, Path], options: ReadOptions, name: str) -> Dataset:
    nodes, relations = _statements(path)
    if not nodes:
        raise DataError(f"{show(path.name)}: expected statements, got none")
    edges = {
        ("node", predicate.strip("<>"), "node"): torch.tensor(list(pairs)).reshape(-1, 2).T
        for predicate, pairs in relations.items()
    }
    graph = Graph.hetero({relation: (ends[0], ends[1]) for relation, ends in edges.items()}, {"node": len(nodes)})
    labelled = {part: _labelled(file, nodes) for part, file in lists.items()}
    found, class_names = _classes(labelled, len(nodes))
    nothing = torch.empty(0, dtype=torch.int64)
    if found.num_classes and "train" not in labelled:
        split = random_split(found, options.seed)
    else:
        rows: dict[str, Tensor] = {part: torch.tensor([n for n, _ in pairs]) for part, pairs in labelled.items()}
        split = Split(rows.get("train", nothing).long(), nothing, rows.get("test", nothing).long())
    return Dataset(
        name=options.name or name,
        graph=graph,
        x=None,
        y=found.y,
        num_classes=found.num_classes,
        target_type="node",
        class_names=class_names,
        **split.fields(),
    )


def _statements(path: Path) -> tuple[dict[str, int], dict[str, dict[tuple[int, int], None]]]:
    """Numbers of nodes by their text, and distinct (subject, object) by predicate, all in order of appearance."""
    nodes: dict[str, int] = {}
    relations: dict[str, dict[tuple[int, int], None]] = {}
    for number, line in enumerate(text_lines(path), 1):
        found = _STATEMENT.fullmatch(line)
        if found is None:
            if _COMMENT.fullmatch(line):
                continue
            text = f"expected 'subject predicate object .', got {one_line(line, 60)!r}"
            raise DataError(f"{show(path.name)}: line {number}: {text}")
        subject, predicate, target = found.groups()
        ends = nodes.setdefault(subject, len(nodes)), nodes.setdefault(target, len(nodes))
        relations.setdefault(predicate, {})[ends] = None
        if len(relations) > _MAX_RELATIONS:
            raise DataError(f"{show(path.name)}: expected at most {_MAX_RELATIONS} predicates, got more")
    return nodes, relations


def _labelled(path: Path, nodes: dict[str, int]) -> list[tuple[int, str]]:
    """Node and label of every row of a list: of the column ``label...``, and the first but that and ``id``."""
    rows = [line.rstrip("\r").split("\t") for line in text_lines(path) if line.strip()]
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    of_label = [i for i, cell in enumerate(header) if cell.startswith("label")]
    of_entity = [i for i, cell in enumerate(header) if not cell.startswith("label") and cell != "id"]
    if len(of_label) != 1 or not of_entity:
        held = one_line(", ".join(header), 60) or "nothing"
        raise DataError(f"{show(path.name)}: expected a column of entities and one of labels, got {held}")
    found = []
    for number, cells in enumerate(rows[1:], 2):
        if len(cells) != len(header):
            raise DataError(f"{show(path.name)}: row {number}: expected {len(header)} cells, got {len(cells)}")
        entity, label = cells[of_entity[0]].strip(), cells[of_label[0]].strip()
        node = nodes.get(f"<{entity}>", nodes.get(entity))
        if node is None:
            raise DataError(
                f"{show(path.name)}: row {number}: expected an entity of the graph, got {one_line(entity, 60)}"
            )
        found.append((node, label))
    return found


def _classes(labelled: dict[str, list[tuple[int, str]]], rows: int) -> tuple[Labels, tuple[str, ...]]:
    """Labels become numbers in ascending order of their text."""
    pairs = [pair for part in labelled.values() for pair in part]
    if not pairs:
        return no_labels(rows), ()
    names, numbers = np.unique(np.array([label for _, label in pairs]), return_inverse=True)
    y = torch.full((rows,), -1, dtype=torch.int64)
    y[torch.tensor([node for node, _ in pairs])] = torch.from_numpy(numbers.astype(np.int64))
    return Labels(y, len(names), "classification"), tuple(str(name) for name in names)
