"""Random specs on random graphs: the program's losses and scores against the library's, bit for bit.

``python tests/fuzz/programs.py --count 20``. Also run by ``tests/synth/test_programs.py`` with a few. A spec is drawn
from all options of a program, a file from all forms that the library reads: edge lists and compressed rows, dense and
sparse features, several masks, unlabelled nodes, nodes without edges, hubs, parallel edges and loops.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import scipy.sparse as sp
from built_program import FLAGS, SCORES, Built
from synth.compile_once import compiled

import graphweft as gw
from graphweft.run import run
from graphweft.runtime.build import find_compiler
from graphweft.synth.spec import MODELS
from graphweft.synthesis import ProgramSpec, write_program


def random_spec(draw: random.Random, data: str) -> ProgramSpec:
    """A spec over all options of a program."""
    model = draw.choice(MODELS)
    heads = draw.choice((1, 2, 3, 8))
    reduce = draw.choice(("auto", "sum", "mean", "max"))
    attends = model in ("gat", "gatv2", "transformer")
    more: dict[str, Any] = {"heads": heads} if attends else {"reduce": reduce}
    if model in ("appnp", "gcnii"):
        more = {"alpha": draw.choice((0.1, 0.3)), **({"hops": draw.choice((1, 4))} if model == "appnp" else {})}
    return ProgramSpec(
        data=data,
        model=model,
        layers=draw.choice((1, 2, 2, 3, 4)),
        hidden=draw.choice((1, 3, 8, 20, 33, 64)) * (heads if attends else 1),
        activation="auto" if "alpha" in more else draw.choice(("auto", "relu", "relu", "elu", "leaky_relu")),
        residual="alpha" not in more and draw.random() < 0.3,
        dropout=draw.choice((0.0, 0.0, 0.3, 0.6)),
        optimizer=draw.choice(("adam", "adamw", "sgd")),
        lr=draw.choice((0.001, 0.01, 0.05)),
        weight_decay=draw.choice((0.0, 5e-4, 0.01)),
        weight_decay_on=draw.choice(("all", "first")),
        normalize=draw.choice(("none", "none", "row")),
        eval_every=draw.choice((1, 1, 2)),
        epochs=4,
        seed=draw.randrange(1000),
        **more,
    )


def random_file(draw: random.Random, file: Path) -> str:
    """Writes a graph; returns its description."""
    rng = np.random.default_rng(draw.randrange(1 << 30))
    nodes, width = draw.choice((6, 40, 300, 2000)), draw.choice((1, 7, 32, 150, 700))
    edges = draw.choice((0, 1, nodes, 8 * nodes))
    if draw.random() < 0.5:
        ends = rng.integers(0, nodes, (2, edges))
    else:  # a few nodes have most edges, and many have none
        ends = np.minimum((nodes * rng.random((2, edges)) ** 4).astype(np.int64), nodes - 1)
    arrays: dict[str, Any] = {}
    if draw.random() < 0.5:
        arrays["edge_index"] = ends.astype(draw.choice((np.int32, np.int64)))
    else:
        rows = sp.csr_matrix((np.ones(edges), (ends[0], ends[1])), shape=(nodes, nodes))
        arrays |= {"indptr": rows.indptr, "indices": rows.indices}
    x = rng.random((nodes, width)) - draw.choice((0.0, 0.5))
    if draw.random() < 0.4:
        x[rng.random(x.shape) < 0.97] = 0.0
        kept = sp.csr_matrix(x.astype(np.float32))
        arrays |= {"x_data": kept.data, "x_indices": kept.indices, "x_indptr": kept.indptr, "x_shape": kept.shape}
    else:
        arrays["x"] = x.astype(draw.choice((np.float32, np.float64)))
    classes = min(draw.choice((2, 5, 40)), nodes)
    y = rng.integers(0, classes, nodes)
    y[:classes] = np.arange(classes)
    if draw.random() < 0.3:
        y[classes + 2 :: 7] = -1
    arrays["y"] = y
    part = rng.integers(0, 3, nodes)
    part[:3] = (0, 1, 2)
    arrays |= {f"{name}_mask": part == index for index, name in enumerate(("train", "val", "test"))}
    (np.savez if draw.random() < 0.5 else np.savez_compressed)(file, **arrays)
    return f"{nodes} nodes, {edges} edges, {width} features, {', '.join(arrays)}"


def built(folder: Path, objects: Path) -> Built:
    """The program in ``folder``, compiled with warnings as errors."""
    compiler = find_compiler()
    assert compiler is not None, "expected a C++ compiler, got none"
    sources = [path for path in sorted(folder.glob("*.cpp")) if path.name != "cpu_level.cpp"]
    sources += [path for part in ("core", "support") for path in sorted((folder / part).glob("*.cpp"))]
    made = [str(compiled(objects, compiler.command, source, folder, FLAGS)) for source in sources]
    subprocess.run([*compiler.command, "-fopenmp", *made, "-lz", "-o", str(folder / "train")], check=True)
    return Built(folder, folder / "train")


def one_case(draw: random.Random, folder: Path, objects: Path) -> tuple[str, str]:
    """(description, first difference or "")."""
    file = folder / "data.npz"
    graph = random_file(draw, file)
    spec = random_spec(draw, str(file))
    said = f"{spec!r} on {graph}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gw.errors.DataWarning)
        try:
            run(replace(spec.to_train(), out=str(folder / "run"), threads=1))
        except gw.errors.GraphWeftError as refused:
            try:
                write_program(spec, folder / "program")
            except gw.errors.GraphWeftError as also:
                return said, "" if str(also) == str(refused) else f"the library says {refused}; the writer {also}"
            return said, f"the library refuses: {refused}; the program is written"
    wanted = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    try:
        written = write_program(spec, folder / "program")
    except gw.errors.ConfigError as refused:
        return f"refused ({refused}): {said}", ""
    program = built(written.folder, objects)
    for threads in (1, 2):
        found = program.records("--data", spec.data, "--threads", threads)
        for line, other in zip(found, wanted, strict=True):
            for name in SCORES:
                a, b = line[name], other[name]
                if a != b:
                    return said, f"{threads} threads, epoch {line['epoch']}: {name} {a!r}, the library's {b!r}"
    return said, ""


def main() -> None:
    """Runs cases and prints each that differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="start at this case")
    parser.add_argument("--objects", type=Path, help="folder in which compiled sources are kept")
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        objects = options.objects or Path(name) / "objects"
        objects.mkdir(exist_ok=True, parents=True)
        for number in range(options.first, options.first + options.count):
            folder = Path(name) / str(number)
            folder.mkdir()
            said, wrong = one_case(random.Random(f"{options.seed} {number}"), folder, objects)
            bad += bool(wrong)
            print(f"{number}: {'WRONG ' + wrong if wrong else 'same'}: {said}", flush=True)
            shutil.rmtree(folder)
    print(f"{options.count} programs, {bad} wrong")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
