"""The format of a store on disk: what its manifest says, and where blocks lie in the file of a part.

Comes in: sizes and element types. Goes out: a :class:`Manifest` as JSON and back, checked against its schema, and
layouts of part files. Called by the builder and by :class:`graphweft.storage.store.Store`.

A store is a folder of ``manifest.json`` and a file a part. Nodes are numbered part after part. A part's file has the
blocks of :data:`BLOCKS`, each from a multiple of 4096 bytes on, little-endian; what lies between them is zero. The
structure is that of in-edges: row i of ``indptr`` and ``indices`` lists the sources of the part's node i, ascending.
A store of a typed graph has a block of features for each node type that has some, and the relation of every edge;
rows are then sorted by relation, then by source. A store without types and weights is written as version 1, which
had neither.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import torch

from graphweft._errors import DataError
from graphweft.storage.store_types import Types, check_types, types_of

FORMAT, VERSION = "graphweft-store", 2
MANIFEST = "manifest.json"
KEY = "key.json"  # what a store in the making is made of, in its temporary folder
ALIGNMENT = 4096
BLOCKS = ("x", "y", "split", "node_ids", "indptr", "indices", "relations", "weights")
SPLIT_BITS = {"train": 1, "val": 2, "test": 4}  # of the block "split"
DTYPES: dict[str, torch.dtype] = {
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
FEATURE_DTYPES = ("float32", "float16", "bfloat16")
TASKS = ("classification", "multilabel", "regression")
_CRC = "crc32"


def itemsize(dtype: str) -> int:
    """Bytes of an element.

    Example:
        >>> itemsize("bfloat16"), itemsize("int64")
        (2, 8)
    """
    return torch.empty(0, dtype=DTYPES[dtype]).element_size()


@dataclass(frozen=True)
class Shape:
    """What all parts of a store have in common.

    Attributes:
        num_features: Columns of the features; 0 for none.
        feature_dtype: Of the features.
        index_dtype: Of source ids, "int32" or "int64".
        label_dtype: Of the labels, "int64" for class ids, else "float32".
        label_columns: Columns of the labels; 0 for one number a node.
        edge_weight: Edges have weights.
        type_widths: Columns of each node type's own features, 0 for none; empty where all nodes have the same columns.
        num_relations: Of a typed graph; else 0.
    """

    num_features: int
    feature_dtype: str
    index_dtype: str
    label_dtype: str
    label_columns: int
    edge_weight: bool = False
    type_widths: tuple[int, ...] = ()
    num_relations: int = 0

    @property
    def relation_dtype(self) -> str:
        """Of the block "relations"."""
        return "uint8" if self.num_relations <= 1 << 8 else "int32"

    @property
    def row_width(self) -> int:
        """Columns of the widest row of features on disk."""
        return max((self.num_features, *self.type_widths))


@dataclass(frozen=True)
class Block:
    """One array of a part.

    Attributes:
        name: One of :data:`BLOCKS`; features of type 2 of a typed graph are "x.2".
        dtype: A name of :data:`DTYPES`.
        shape: Its dimensions.
        offset: Where it begins in the file, a multiple of 4096.
        crc32: Of its bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    crc32: int = 0

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True)
class PartEntry:
    """One part.

    Attributes:
        file: Its file in the store's folder.
        nodes: Number of nodes.
        edges: Number of edges into them.
        train, val, test: Nodes of each split.
        blocks: Its arrays in the order of the file.
        types: Nodes of each type, for a typed graph.
    """

    file: str
    nodes: int
    edges: int
    train: int
    val: int
    test: int
    blocks: tuple[Block, ...]
    types: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        last = self.blocks[-1]
        return aligned(last.offset + last.nbytes)

    def block(self, name: str) -> Block:
        """The block of that name."""
        return next(block for block in self.blocks if block.name == name)


@dataclass(frozen=True)
class Manifest:
    """What a store says of itself.

    Attributes:
        name: Of the dataset.
        num_nodes: N.
        num_edges: E, directed.
        num_classes: Width of a model's output; 0 where nothing is labelled.
        task: What the labels are.
        class_names: Names of the classes, where the source has them.
        notes: Those of the dataset.
        method: How nodes came to their parts.
        shape: What all parts have in common.
        parts: The parts.
        crc32: Of the manifest itself, without this number.
        types: Node types and relations of a typed graph; None for another.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_classes: int
    task: str
    class_names: tuple[str, ...]
    notes: tuple[str, ...]
    method: str
    shape: Shape
    parts: tuple[PartEntry, ...]
    crc32: int = 0
    types: Types | None = None

    def to_json(self) -> str:
        """The text of ``manifest.json``, with its checksum."""
        is_plain = self.types is None and not self.shape.edge_weight
        held = {"format": FORMAT, "version": 1 if is_plain else VERSION, **asdict(self)}
        del held[_CRC]
        if is_plain:
            del held["types"]
            for name in _LATER:
                del held["shape"][name]
            for part in held["parts"]:
                del part["types"]
        return json.dumps({**held, _CRC: _crc_of(held)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, who: str) -> Manifest:
        """The inverse of :meth:`to_json`. Raises: DataError for another text, version or checksum."""
        try:
            held = json.loads(text)
        except ValueError as failure:
            got = f"got a text that is none ({failure})"
            raise DataError(
                f"{who}: expected a manifest in JSON, {got}; the store is not whole: copy it again, or prepare it anew"
            ) from None
        if not isinstance(held, dict) or held.get("format") != FORMAT:
            raise DataError(f"{who}: expected the manifest of a store, got another JSON text")
        version = held.get("version")
        if version not in (1, VERSION):
            raise DataError(f"{who}: expected version 1 or {VERSION}, got {version!r}; prepare the store anew")
        stated = held.pop(_CRC, None)
        if stated != _crc_of(held):
            raise DataError(f"{who}: expected the checksum {stated}, got {_crc_of(held)}; the file is damaged")
        del held["format"], held["version"]
        made: Manifest = cls(**_as_declared(held, version, who), crc32=stated)
        _check(made, who)
        return made


def _crc_of(held: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(held, sort_keys=True).encode())


def aligned(offset: int) -> int:
    """The next multiple of 4096.

    Example:
        >>> aligned(0), aligned(1), aligned(4096)
        (0, 4096, 4096)
    """
    return -(-offset // ALIGNMENT) * ALIGNMENT


def layout(shape: Shape, nodes: int, edges: int, types: tuple[int, ...] = ()) -> tuple[Block, ...]:
    """The blocks of a part, without checksums; ``types``: nodes of each type, for a typed graph.

    Example:
        >>> [(b.name, b.offset) for b in layout(Shape(8, "float32", "int32", "int64", 0), 300, 1000)][:3]
        [('x', 0), ('y', 12288), ('split', 16384)]
    """
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {"x": (shape.feature_dtype, (nodes, shape.num_features))}
    if shape.type_widths:
        widths = zip(types, shape.type_widths, strict=True)
        arrays = {f"x.{t}": (shape.feature_dtype, (n, width)) for t, (n, width) in enumerate(widths) if width}
    arrays |= {
        "y": (shape.label_dtype, (nodes, shape.label_columns) if shape.label_columns else (nodes,)),
        "split": ("uint8", (nodes,)),
        "node_ids": ("int64", (nodes,)),
        "indptr": ("int64", (nodes + 1,)),
        "indices": (shape.index_dtype, (edges,)),
    }
    if shape.num_relations:
        arrays["relations"] = (shape.relation_dtype, (edges,))
    if shape.edge_weight:
        arrays["weights"] = ("float32", (edges,))
    blocks: list[Block] = []
    at = 0
    for name, (dtype, dimensions) in arrays.items():
        blocks.append(Block(name, dtype, dimensions, at))
        at = aligned(at + blocks[-1].nbytes)
    return tuple(blocks)


_FIELDS: dict[str, type] = {
    "name": str, "num_nodes": int, "num_edges": int, "num_classes": int, "task": str, "class_names": list,
    "notes": list, "method": str, "shape": dict, "parts": list,
}  # fmt: skip
_SHAPE: dict[str, type] = {
    "num_features": int, "feature_dtype": str, "index_dtype": str, "label_dtype": str, "label_columns": int,
}  # fmt: skip
_PART: dict[str, type] = {
    "file": str, "nodes": int, "edges": int, "train": int, "val": int, "test": int, "blocks": list,
}  # fmt: skip
_LATER: dict[str, type] = {"edge_weight": bool, "type_widths": list, "num_relations": int}  # since version 2
_BLOCK: dict[str, type] = {"name": str, "dtype": str, "shape": list, "offset": int, "crc32": int}


def _fields(held: Any, wanted: dict[str, type], who: str) -> dict[str, Any]:
    """``held`` has exactly the wanted fields, of their types; counts are not negative. Raises: DataError."""
    if not isinstance(held, dict) or set(held) != set(wanted):
        got = ", ".join(sorted(held)) if isinstance(held, dict) else type(held).__name__
        raise DataError(f"{who}: expected the fields {', '.join(sorted(wanted))}, got {got}")
    for name, kind in wanted.items():
        if not isinstance(held[name], kind) or (isinstance(held[name], bool) and kind is not bool):
            raise DataError(f"{who}: expected {name} as {kind.__name__}, got {held[name]!r:.80}")
        if kind is int and held[name] < 0:
            raise DataError(f"{who}: expected {name} >= 0, got {held[name]}")
    return held


def _counts(held: Any, who: str, name: str) -> tuple[int, ...]:
    """A list of counts. Raises: DataError."""
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in held):
        raise DataError(f"{who}: expected {name} as counts, got {held!r:.80}")
    return tuple(held)


def _as_declared(held: Any, version: int, who: str) -> dict[str, Any]:
    """The arguments of a manifest from what a JSON text holds. Raises: DataError."""
    is_first = version == 1
    types = None if is_first else held.pop("types", None)
    fields = _fields(held, _FIELDS, who)
    for name in ("class_names", "notes"):
        if not all(isinstance(text, str) for text in fields[name]):
            raise DataError(f"{who}: expected {name} as texts, got {fields[name]!r:.80}")
    parts = []
    for number, part in enumerate(fields["parts"]):
        entry = _fields(part, _PART if is_first else {**_PART, "types": list}, f"{who}, part {number}")
        if not is_first:
            entry["types"] = _counts(entry["types"], who, f"types of part {number}")
        blocks = [_fields(block, _BLOCK, f"{who}, part {number}") for block in entry["blocks"]]
        parts.append(
            PartEntry(**{**entry, "blocks": tuple(Block(**{**b, "shape": tuple(b["shape"])}) for b in blocks)})
        )
    shape = _fields(fields["shape"], _SHAPE if is_first else {**_SHAPE, **_LATER}, who)
    if not is_first:
        shape["type_widths"] = _counts(shape["type_widths"], who, "type_widths")
    return {
        **fields,
        "types": None if types is None else types_of(types, who),
        "class_names": tuple(fields["class_names"]),
        "notes": tuple(fields["notes"]),
        "shape": Shape(**shape),
        "parts": tuple(parts),
    }


def _check(made: Manifest, who: str) -> None:
    """Names are known, sums agree, and blocks lie where the sizes put them. Raises: DataError."""
    shape = made.shape
    for name, value, known in (
        ("feature_dtype", shape.feature_dtype, FEATURE_DTYPES),
        ("index_dtype", shape.index_dtype, ("int32", "int64")),
        ("label_dtype", shape.label_dtype, ("int64", "float32")),
        ("task", made.task, TASKS),
    ):
        if value not in known:
            raise DataError(f"{who}: expected {name} as one of {', '.join(known)}, got {value!r}")
    for total, name in ((made.num_nodes, "nodes"), (made.num_edges, "edges")):
        found = sum(getattr(part, name) for part in made.parts)
        if found != total:
            raise DataError(f"{who}: expected parts of {total} {name} in all, got {found}")
    check_types(made.types, shape.num_relations, shape.type_widths, made.num_nodes, made.num_edges, who)
    of_type = len(made.types.node_types) if made.types is not None else 0
    for number, part in enumerate(made.parts):
        if len(part.types) != of_type or sum(part.types) != (part.nodes if of_type else 0):
            raise DataError(f"{who}: expected the nodes of part {number} in {of_type} types, got {part.types}")
        expected = layout(shape, part.nodes, part.edges, part.types)
        if [(b.name, b.dtype, b.shape, b.offset) for b in part.blocks] != [
            (b.name, b.dtype, b.shape, b.offset) for b in expected
        ]:
            raise DataError(f"{who}: expected the blocks of part {number} where its sizes put them, got others")
        if "/" in part.file or part.file.startswith("."):
            raise DataError(f"{who}: expected part {number} in the folder of the store, got {part.file!r:.80}")
