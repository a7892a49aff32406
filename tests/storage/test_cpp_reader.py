"""The C++ reader of stores, compiled from the headers alone, against what was written, and on damaged stores."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import graphweft as gw

SOURCE = Path(__file__).with_name("sums_of_store.cpp")
INCLUDE = Path(__file__).parents[2] / "csrc" / "include"
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reader") / "sums"
    subprocess.run([os.environ.get("CXX", "c++"), *FLAGS, f"-I{INCLUDE}", str(SOURCE), "-o", str(out)], check=True)
    return out


def run(reader: Path, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(reader), str(store)], capture_output=True, text=True, errors="replace", check=False)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    ds = gw.synthetic("default", scale=0.05, seed=0)
    return gw.macro.prepare_store(ds, tmp_path_factory.mktemp("plain") / "store", parts=3, memory="64MB")


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    """Two types with features of 16 bits, relations, weights, and a name that JSON escapes."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 60, (2, 400), generator=draw)
    graph = gw.Graph.hetero({("a", "to", "b"): (ends[0] % 40, ends[1])}, {"a": 40, "b": 60})
    features = {"a": torch.randn(40, 6, generator=draw), "b": torch.randn(60, 4, generator=draw)}
    labels = torch.cat([torch.full((40,), -1), torch.arange(60) % 3])
    name = 'two "types"\n\u00e9\U0001f578'
    data = gw.Dataset(name, graph, y=labels, features=features, target_type="b", seed=0)
    folder = tmp_path_factory.mktemp("typed") / "store"
    return gw.macro.prepare_store(data, folder, parts=4, memory="64MB", dtype="float16", method="hash")


def expected(store: gw.macro.Store, given: str = "") -> list[str]:
    """The sums in NumPy, of the bytes at the offsets of the manifest."""
    manifest = json.loads((store.path / "manifest.json").read_text(encoding="utf-8"))
    counts = [manifest[key] for key in ("num_nodes", "num_edges", "num_classes")]
    name = given or manifest["name"]
    lines = [*(f"{name} " + " ".join(map(str, [*counts, manifest["shape"]["num_features"], len(store)]))).split("\n")]
    first = 0
    for part in manifest["parts"]:
        data = (store.path / part["file"]).read_bytes()
        sums, sources = [], 0
        for block in part["blocks"]:
            kind = {"float16": "uint16", "bfloat16": "uint16"}.get(block["dtype"], block["dtype"])
            values = np.frombuffer(data, kind, int(np.prod(block["shape"])), block["offset"])
            if kind == "float32":
                total = 0.0
                for value in values.tolist():
                    total += value
                sums.append((block["name"], total))
            else:
                sums.append((block["name"], sum(values.tolist()) % 2**64))
            sources = sum(values.tolist()) if block["name"] == "indices" else sources
        lines.append(f"part {first} {sources}")
        lines.extend(f"{name} {value}" for name, value in sums)
        first += part["nodes"]
    return lines


@pytest.mark.parametrize("kind", ["plain", "typed"])
def test_sums_are_those_of_what_was_written(kind: str, reader: Path, request: pytest.FixtureRequest) -> None:
    store = request.getfixturevalue(kind)
    done = run(reader, store.path)
    assert (done.returncode, done.stderr) == (0, "")
    found = []
    for line in done.stdout.rstrip("\n").split("\n"):
        name, _, value = line.rpartition(" ")
        found.append(f"{name} {float.fromhex(value)}" if value.lstrip("-").startswith("0x") else line)
    assert found == expected(store)
    assert sum(line.startswith("part ") for line in found) == len(store)


def copied(store: gw.macro.Store, folder: Path) -> Path:
    return Path(shutil.copytree(store.path, folder / "copy"))


def test_damage_is_one_line(reader: Path, plain: gw.macro.Store, tmp_path: Path) -> None:
    for block in plain.manifest.parts[1].blocks:
        path = copied(plain, tmp_path)
        with (path / plain.manifest.parts[1].file).open("r+b") as file:
            file.seek(block.offset)
            byte = file.read(1)[0]
            file.seek(block.offset)
            file.write(bytes([byte ^ 4]))
        done = run(reader, path)
        assert done.returncode == 1 and f"block {block.name} at byte {block.offset} differs" in done.stderr
        shutil.rmtree(path)
    path = copied(plain, tmp_path)
    last = path / plain.manifest.parts[2].file
    os.truncate(last, plain.manifest.parts[2].blocks[-1].offset + 1)
    assert "it is truncated" in run(reader, path).stderr
    last.unlink()
    assert "expected the file of a part" in run(reader, path).stderr
    (path / "manifest.json").unlink()
    assert "expected a store with manifest.json" in run(reader, path).stderr


def test_broken_manifests_never_crash(reader: Path, typed: gw.macro.Store, tmp_path: Path) -> None:
    """Bytes of the manifest changed, cut or doubled at random: one line, or an answer, and no report of a sanitizer."""
    path, draw = copied(typed, tmp_path), random.Random(0)
    text = (path / "manifest.json").read_bytes()
    refused = 0
    for turn in range(80):
        at, changed = draw.randrange(len(text)), bytearray(text)
        kind = turn % 4
        if kind == 0:
            changed[at] = draw.randrange(256)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            changed[at:at] = changed[at : at + draw.randrange(1, 40)]
        else:
            place = changed.find(b": ", at)
            changed[place + 2 : place + 2] = draw.choice([b"-", b"9" * 18, b"[" * 50, b"1.5e3", b'"\\ud800"'])
        (path / "manifest.json").write_bytes(bytes(changed))
        done = run(reader, path)
        assert done.returncode in (0, 1), (turn, done.stderr[:500])
        assert done.returncode == 0 or done.stderr.count("\n") == 1, (turn, done.stderr[:500])
        refused += done.returncode
    assert refused > 60
