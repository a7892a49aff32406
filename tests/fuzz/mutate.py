"""Damage to dataset files, by seed: random bytes, edited numbers, wrong arrays, lying headers, hostile pickles.

Comes in: a layout's files and a generator. Goes out: files by name, as bytes, or a marker for something that is no
file at all.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from layouts import Layout, npz_bytes

Files = dict[str, bytes | str]  # text: "fifo", "loop", "folder", "missing"
NUMBERS = [
    b"-1",
    b"0",
    b"1e400",
    b"nan",
    b"inf",
    b"99999999999999999999",
    b"9223372036854775807",
    b"1.5",
    b"",
    b"x",
    b"4294967296",
    b"0x10",
    b"1_0",
    b"\xff",
]
SPECIAL = [0, -1, 1, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, 7, 1000]
NASTY_FLOATS = [np.nan, np.inf, -np.inf, 1e38, -1e38, 0.0, 1e-45]


def bytes_damage(rng: Random, data: bytes) -> bytes:
    """One or more random edits of raw bytes."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
        if not out:
            break
        at = rng.randrange(len(out))
        kind = rng.randrange(8)
        if kind <= 2:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            out[at] = rng.choice([0, 0xFF, 0x7F, 0x80, rng.randrange(256)])
        elif kind == 4:
            del out[at : at + rng.choice([1, 4, 64, len(out)])]
        elif kind == 5:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 4, 64])))
        elif kind == 6:
            piece = out[at : at + rng.choice([4, 16, 200])]
            to = rng.randrange(len(out))
            out[to : to + len(piece)] = piece
        else:
            width = rng.choice([2, 4, 8])
            value = rng.choice(SPECIAL) & ((1 << (8 * width)) - 1)
            out[at : at + width] = value.to_bytes(width, "little")
    return bytes(out)


def text_damage(rng: Random, data: bytes) -> bytes:
    """One or more numbers, lines or separators changed."""
    if len(data) > 1 << 16:  # a bomb of an earlier round
        return data
    for _ in range(rng.choice([1, 1, 2, 4])):
        kind = rng.randrange(7)
        numbers = list(re.finditer(rb"-?\d+(\.\d+)?", data))
        lines = data.split(b"\n")
        if kind <= 2 and numbers:
            match = rng.choice(numbers)
            value = rng.choice([*NUMBERS, str(rng.choice(SPECIAL)).encode(), str(rng.randrange(40)).encode()])
            data = data[: match.start()] + value + data[match.end() :]
        elif kind == 3:
            at = rng.randrange(len(lines))
            lines[at : at + 1] = rng.choice(
                [[], [lines[at]] * 2, [lines[at][: len(lines[at]) // 2]], [b""], [b"#"], [b"a b c d e f"]]
            )
            data = b"\n".join(lines)
        elif kind == 4:
            data = data.replace(
                rng.choice([b",", b"\n", b" ", b"\t", b"{", b"]", b'"']),
                rng.choice([b";", b"", b"\t", b"\r", b"\0", b"[" * 5000]),
                rng.choice([1, -1]),
            )
        elif kind == 5:
            rng.shuffle(lines)
            data = b"\n".join(lines)
        else:
            data = data[: rng.randrange(len(data) + 1)]
    return data


def _array_damage(rng: Random, a: np.ndarray) -> Any:
    generator = np.random.default_rng(rng.randrange(2**32))
    kind = rng.randrange(16)
    if kind == 0 and a.size and a.dtype.kind in "iu":
        a = a.copy()
        info = np.iinfo(a.dtype)
        a.reshape(-1)[rng.randrange(a.size)] = min(
            max(rng.choice([*SPECIAL, rng.randrange(-3, 40)]), info.min), info.max
        )
    elif kind == 1 and a.size and a.dtype.kind == "f":
        a = a.copy()
        a.reshape(-1)[rng.randrange(a.size)] = rng.choice(NASTY_FLOATS)
    elif kind == 2 and a.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            a = a.astype(
                rng.choice(
                    ["i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8", "bool", "c16", "S3", "U3", ">i4", ">f8"]
                )
            )
    elif kind == 3 and a.ndim:
        a = a[: rng.randrange(len(a) + 1)]
    elif kind == 4 and a.ndim:
        a = np.concatenate([a, a[: rng.randrange(len(a) + 1)]])
    elif kind == 5:
        a = a.reshape(rng.choice([(-1,), (1, -1), (-1, 1), (1, -1, 1)])) if a.size else a
    elif kind == 6:
        a = np.asfortranarray(a.T)
    elif kind == 7:
        return np.array([{"a": 1}, [2]], dtype=object)
    elif kind == 8:
        a = np.zeros(max(1, a.size // 2), dtype=[("a", "i4"), ("b", "f8")])
    elif kind == 9:
        a = np.empty((0,) * rng.randrange(3), a.dtype)
    elif kind == 10 and a.dtype.kind in "iu":
        a = generator.integers(-2, 15, a.shape).astype(a.dtype)
    elif kind == 11 and a.dtype.kind in "biuf":
        a = np.zeros_like(a)
    elif kind == 12 and a.ndim:
        a = generator.permutation(a)
    elif kind == 13:
        a = np.array(rng.choice(SPECIAL))
    elif kind == 14:
        a = a[..., None] if a.ndim < 3 else a
    else:
        a = np.array(["x" * rng.randrange(5)] * rng.randrange(4))
    return a


def npz_damage(rng: Random, data: bytes) -> bytes:
    """Members of an archive changed, exchanged, renamed or dropped."""
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        arrays: dict[str, Any] = {key: loaded[key] for key in loaded.files}
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        keys = list(arrays)
        if not keys:
            break
        key, other = rng.choice(keys), rng.choice(keys)
        kind = rng.randrange(10)
        if kind <= 5:
            arrays[key] = _array_damage(rng, np.asarray(arrays[key]))
        elif kind == 6:
            arrays[key], arrays[other] = arrays[other], arrays[key]
        elif kind == 7:
            del arrays[key]
        elif kind == 8:
            arrays[
                rng.choice(
                    [
                        "x",
                        "y",
                        "indptr",
                        "num_nodes",
                        "graph_ptr",
                        "num_classes",
                        "format",
                        "task",
                        "edge_weight",
                        "node_ids",
                        "a/b",
                        "../x",
                    ]
                )
            ] = arrays.pop(key)
        else:
            arrays[rng.choice(["num_nodes", "num_classes", "edge_weight", "node_tag"])] = np.array(rng.choice(SPECIAL))
    return npz_bytes(arrays, compress=rng.random() < 0.5)


def npy_header(shape: str, descr: str = "<f4", order: str = "False") -> bytes:
    """A ``.npy`` start with whatever it is told to claim."""
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


SHAPES = [
    "(1000000000,)",
    "(99999999999999999999,)",
    "(-1,)",
    "(2**31,)",
    "()",
    "(3, 4)",
    "(0,)",
    "(1,)*9",
    "(((((((1)))))))",
    "__import__('os')",
    "(12, 1152921504606846976)",
    "(4294967296, 4294967296)",
]


def npz_lies(rng: Random, data: bytes) -> bytes:
    """An archive whose headers or sizes are not true, or which holds what no dataset does."""
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        members = {name: source.read(name) for name in source.namelist()}
    name = rng.choice(list(members))
    kind = rng.randrange(9)
    out = io.BytesIO()
    method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    if kind <= 2:
        body = members[name][128:] if rng.random() < 0.5 else b""
        members[name] = (
            npy_header(
                rng.choice(SHAPES),
                rng.choice(["<f4", "|O", "<i8", "<U9", "|V8", "<M8[ns]", "<f4" * 50]),
                rng.choice(["False", "True", "1"]),
            )
            + body
        )
    elif kind == 3:
        size = rng.choice([1, 8]) * 1_000_000  # a small bomb; the real one has a test of its own
        members[name] = npy_header(f"({size},)", "|u1") + bytes(size)
        method = zipfile.ZIP_DEFLATED
    elif kind == 4:
        members[name] = data
    elif kind == 5:
        method = rng.choice([zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as target:
        warnings.simplefilter("ignore")  # about names given twice
        for member, content in members.items():
            target.writestr(member, content)
        if kind == 6:
            target.writestr("../../outside.npy", b"x")
            target.writestr("y", members[name])
        if kind == 7:
            for i in range(rng.choice([10, 5000])):
                target.writestr(f"m{i}.npy", b"")
    content = bytearray(out.getvalue())
    if kind == 8:  # sizes in the central directory
        at = content.rfind(b"PK\x01\x02")
        content[at + 20 : at + 28] = struct.pack(
            "<II", rng.choice([1, 2**32 - 1, 2**31]), rng.choice([0, 1, 2**32 - 2, 10**9])
        )
    return bytes(content)


def _deep(depth: int) -> bytes:
    return b"\x80\x02" + b"(" * depth + b"t" * depth + b"."


def _hash_bomb() -> bytes:
    return b"\x80\x02}(K\x01" + b"2\x86" * 60 + b"K\x01u."


class Evil:
    """Pickles as a call of os.system."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (__import__("os").system, ("touch /tmp/graphweft-was-here",))


PICKLES = [
    pickle.dumps(Evil(), protocol=2),
    pickle.dumps(Evil(), protocol=4),
    _deep(100_000),
    _hash_bomb(),
    b"\x80\x02K\x01r\xff\xff\xff\x7f.",
    b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    b"\x80\x02\x8b\xff\xff\xff\x7f.",
    b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    b"I" + b"9" * 10_000 + b"\n.",
    b"\x80\x02cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
    b"\x80\x02]q\x00h\x00a.",
    pickle.dumps(np.array([[1, None]], dtype=object), protocol=2),
    pickle.dumps({"a": [1]}, protocol=5),
    b"",
    b".",
    b"\x80\x02}.",
]
GZIPS = [
    gzip.compress(b"1" * 8_000_000),
    gzip.compress(b"0,0\n" * 300_000),
    gzip.compress(b"\0" * 1000),
    gzip.compress(b""),
    b"\x1f\x8b\x08",
]


def file_damage(rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes | str:
    """One file of a layout, damaged in a way that fits its kind or in any way."""
    ways: list[Callable[[], bytes | str]] = [
        lambda: bytes_damage(rng, data),
        lambda: bytes_damage(rng, data),
        lambda: data[: rng.randrange(len(data) + 1)],
        lambda: rng.choice(others),
        lambda: rng.choice(["fifo", "loop", "folder", "missing", "empty"]),
    ]
    if name.endswith(".npz"):
        ways += [lambda: npz_damage(rng, data)] * 8 + [lambda: npz_lies(rng, data)] * 4
    elif name.endswith(".gz"):
        ways += [lambda: gzip.compress(text_damage(rng, gzip.decompress(data)), mtime=0)] * 6 + [
            lambda: rng.choice(GZIPS)
        ]
    elif ".toy." in name and not name.endswith("index"):
        ways += [lambda: bytes_damage(rng, data)] * 6 + [lambda: rng.choice(PICKLES)] * 2
    elif name.endswith(".npy"):
        ways += [lambda: npy_header(rng.choice(SHAPES)) + data[128:]] * 3
    else:
        ways += [lambda: text_damage(rng, data)] * 8
    try:
        found = rng.choice(ways)()
    except Exception:  # damaged before, so that it cannot be taken apart any more
        found = bytes_damage(rng, data)
    return b"" if found == "empty" else found


def damage(rng: Random, layout: Layout, others: list[bytes]) -> Files:
    """The layout's files with one or a few of them damaged, exchanged or renamed."""
    files: Files = dict(layout.files)
    names = list(files)
    for _ in range(rng.choice([1, 1, 1, 2])):
        name, kind = rng.choice(names), rng.randrange(12)
        content = files.get(name)
        if not isinstance(content, bytes):
            continue
        if kind == 0 and len(names) > 1:
            other = rng.choice(list(files))
            files[name], files[other] = files[other], content
        elif kind == 1 and len(names) > 1:
            files[name + rng.choice([".bak", "x", ".gz"])] = files.pop(name)
        else:
            files[name] = file_damage(rng, name, content, others)
    return files
