"""Random specs on random graphs: what programs compute against what the library does.

``python tests/fuzz/programs.py --count 20 --target openmp``. Also run by ``tests/synth/test_programs.py`` with a few.
A spec is drawn from all options of a program, a file from all forms that the library reads: edge lists and
compressed rows, dense and sparse features, weights of edges, several masks, unlabelled nodes, nodes without edges,
hubs, parallel edges and loops. Of "openmp" losses, scores and weights are the library's bit for bit, also those of a
run that was cut in two; of "mpi", with one to four processes, and of "cuda", run block by block on the host, they agree
to float32 rounding; of "predict" scores are the library's bit for bit. ``--sanitize`` compiles with the sanitizers of
addresses and of undefined behaviour, ``--compiler clang++`` with another compiler; both round otherwise, so results
agree to float32 rounding then. ``--small`` draws graphs of 6 or 40 nodes, so that more specs fit into the time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import scipy.sparse as sp
import torch
from built_program import FLAGS, Built, flags_of
from safetensors.torch import load_file, save_file
from synth.compile_once import Call, all_compiled, reads
from synth.served import Served

import graphweft as gw
from graphweft.run import make_model, run
from graphweft.runtime.build import find_compiler
from graphweft.synth.spec import MODELS
from graphweft.synthesis import ProgramSpec, write_program
from graphweft.train.spec import ATTENTIVE

HOST = Path(__file__).resolve().parents[1] / "synth" / "cuda_host"  # headers in place of CUDA's
Save = Callable[..., None]
SIZES = (6, 40, 300, 2000)


def random_spec(draw: random.Random, data: str) -> ProgramSpec:
    """A spec over all options of a program."""
    model = draw.choice(MODELS)
    heads = draw.choice((1, 2, 3, 8))
    reduce = draw.choice(("auto", "sum", "mean", "max"))
    attends = model in ATTENTIVE
    more: dict[str, Any] = {"heads": heads} if attends else {"reduce": reduce}
    if model in ("appnp", "gcnii"):
        more = {"alpha": draw.choice((0.1, 0.3)), **({"hops": draw.choice((1, 4))} if model == "appnp" else {})}
    spec = ProgramSpec(
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
    if model == "gin":
        return replace(spec, train_eps=draw.random() < 0.5)
    if attends and draw.random() < 0.3:
        return replace(spec, attention_dropout=draw.choice((0.0, 0.2)), value_dropout=0.3 if model == "gat" else 0.0)
    return spec


def random_arrays(draw: random.Random, sizes: tuple[int, ...] = SIZES) -> tuple[dict[str, Any], Save]:
    """A graph of one of the numbers of nodes as arrays of a file, and what writes it."""
    rng = np.random.default_rng(draw.randrange(1 << 30))
    nodes, width = draw.choice(sizes), draw.choice((1, 7, 32, 150, 700))
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
    return arrays, np.savez if draw.random() < 0.5 else np.savez_compressed


def with_norms_and_labels(draw: random.Random, spec: ProgramSpec, arrays: dict[str, Any]) -> ProgramSpec:
    """The spec with a norm and averaged heads, perhaps, and labels of another kind among the arrays."""
    rng, nodes = np.random.default_rng(draw.randrange(1 << 30)), len(arrays["y"])
    task = draw.choice(("classes", "classes", "labels", "values"))
    if task == "labels":
        arrays["y"] = (rng.random((nodes, draw.choice((2, 5, 17)))) < 0.3).astype(draw.choice((np.uint8, np.float32)))
    if task == "values":
        arrays["y"] = rng.standard_normal((nodes, 3) if draw.random() < 0.5 else nodes).astype(np.float32)
        arrays["y"][rng.random(arrays["y"].shape) < 0.2] = np.nan
        arrays["task"] = np.array("regression")
    norm = draw.choice(("none", "none", "batch", "layer"))
    return replace(
        spec,
        norm="none" if spec.model in ("appnp", "gcnii") else norm,
        out_heads=draw.choice((1, 1, 2, 3)) if spec.model in ATTENTIVE else 1,
    )


def write_arrays(draw: random.Random, arrays: dict[str, Any], save: Save, spec: ProgramSpec) -> str:
    """Writes the file of ``spec``, perhaps with less precise features and with weights; returns its description."""
    for name in ("x", "x_data"):
        if name in arrays and draw.random() < 0.2:
            arrays[name] = arrays[name].astype(np.float16)
    edges = arrays["indices"].size if "indices" in arrays else arrays["edge_index"].shape[1]
    if spec.model not in ATTENTIVE and draw.random() < 0.4:
        rng = np.random.default_rng(draw.randrange(1 << 30))
        arrays["edge_weight"] = rng.random(edges).astype(draw.choice((np.float32, np.float64)))
    save(spec.data, **arrays)
    width = arrays["x"].shape[1] if "x" in arrays else arrays["x_shape"][1]
    typed = ("x", "x_data", "edge_index", "edge_weight")
    said = (f"{name} {array.dtype}" if name in typed else name for name, array in arrays.items())
    return f"{len(arrays['y'])} nodes, {edges} edges, {width} features, {', '.join(said)}"


def built(
    folder: Path, objects: Path, target: str = "openmp", flags: tuple[str, ...] = FLAGS, other: str | None = None
) -> Built:
    """The program in ``folder``, compiled with warnings as errors, by the library's compiler or another."""
    found = find_compiler()
    assert found is not None or other is not None, "expected a C++ compiler, got none"
    command = [other] if other is not None else found.command
    is_library = target == "predict"
    sources = [path for path in sorted(folder.glob("*.cpp")) if path.name != "cpu_level.cpp"]
    sources += [path for part in ("core", "support") for path in sorted((folder / part).glob("*.cpp"))]
    sources += sorted((folder / "support").glob("*.cu"))
    own = [mpi_tool("mpicxx")] if target == "mpi" else command
    more = (*flags, f"-I{HOST}") if target == "cuda" else flags
    names = {"mpi.h", *(path.name for path in HOST.iterdir())}
    calls = []
    for source in sources:
        is_own = source.parent.name != "core" and reads(source, folder, names)
        one = [*(own if is_own else command), *(["-x", "c++"] if source.suffix == ".cu" else [])]
        calls.append(Call(one, source, folder, flags_of(source, more if is_own else flags)))
    made = map(str, all_compiled(objects, calls))
    switches = [flag for flag in flags if flag.startswith(("-fopenmp", "-fsanitize"))]
    if is_library:
        switches += ["-shared", "-static-libstdc++", "-static-libgcc"]  # its memory is its own
        switches += [f"-Wl,--version-script={folder / 'exports.map'}"]
    out = folder / ("libmodel.so" if is_library else "train")
    subprocess.run([*own, *switches, *made, "-lz", "-o", str(out)], check=True)
    return Built(folder, out)


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def has_mpi() -> bool:
    """Whether MPI is beside this Python or on the path."""
    return None not in (_tool("mpicxx"), _tool("mpiexec"))


def mpi_tool(name: str) -> str:
    """A program of MPI."""
    found = _tool(name)
    assert found is not None, f"expected {name}, got none"
    return found


def _runs(program: Built, target: str, spec: ProgramSpec) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Records of runs with several numbers of threads or processes."""
    if target != "mpi":
        for threads in (1, 2):
            yield f"{threads} threads", program.records("--data", spec.data, "--threads", threads)
        return
    for parts in sorted(program.folder.glob("parts-*")):
        ranks = parts.name.removeprefix("parts-")
        command = [mpi_tool("mpiexec"), "-n", ranks, str(program.train), "--data", str(parts), "--threads", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        yield f"{ranks} ranks", [json.loads(line) for line in done.stdout.splitlines()]


def _differs(name: str, a: float, b: float, exact: bool) -> bool:
    if a == b or exact or a is None or b is None:
        return a != b
    return not abs(a - b) <= (0.03 if "acc" in name else 1e-4 * abs(b) + 1e-7)  # a row of few may go either way


def _cut_in_two(program: Built, spec: ProgramSpec, folder: Path) -> str:
    """What differs where a run is saved and taken up again; "" for nothing."""
    whole, half, rest = (folder / f"{name}.safetensors" for name in ("whole", "half", "rest"))
    data = ("--data", spec.data, "--threads", 2)
    program.run(*data, "--save", whole)
    program.run(*data, "--epochs", 2, "--save", half)
    program.run(*data, "--load", half, "--save", rest)
    return "" if whole.read_bytes() == rest.read_bytes() else "weights of a run that was cut in two"


def _library(spec: ProgramSpec, folder: Path) -> list[dict[str, Any]]:
    run(replace(spec.to_train(), out=str(folder), threads=1))
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _trained(spec: ProgramSpec, folder: Path) -> dict[str, torch.Tensor]:
    """Weights that the library ends with."""
    state = torch.load(folder / "last.pt", weights_only=True)["model"]
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def one_case(
    draw: random.Random,
    folder: Path,
    objects: Path,
    target: str = "openmp",
    flags: tuple[str, ...] = FLAGS,
    norms_and_labels: bool = False,
    other: str | None = None,
    sizes: tuple[int, ...] = SIZES,
) -> tuple[str, str]:
    """(description, first difference or "")."""
    arrays, save = random_arrays(draw, sizes)
    spec = random_spec(draw, str(folder / "data.npz"))
    if norms_and_labels:
        spec = with_norms_and_labels(draw, spec, arrays)
    if target == "mpi":  # each process draws for its own nodes
        spec = replace(spec, dropout=0.0, attention_dropout=None, value_dropout=0.0)
    exact = target == "openmp" and other is None and not any(flag.startswith("-fsanitize") for flag in flags)
    if not exact and spec.norm == "batch":
        # A bias before a batch norm has a gradient of zero but for rounding, by whose sign Adam moves it a whole step;
        # evaluations, with running means, see that.
        spec = replace(spec, optimizer="sgd")
    said = f"{spec!r} on {write_arrays(draw, arrays, save, spec)}"
    nodes = len(arrays["y"])
    how: dict[str, Any] = {"target": "openmp", "what": "predict"} if target == "predict" else {"target": target}
    if target == "mpi":
        how["ranks"] = tuple(ranks for ranks in (1, 2, 3, 4) if ranks < nodes / 2)
    if target == "cuda" and draw.random() < 0.5:
        how["deterministic"] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gw.errors.DataWarning)
        warnings.simplefilter("ignore", gw.errors.DenseFeaturesWarning)
        try:
            wanted = _library(spec, folder / "run")
        except gw.errors.GraphWeftError as refused:
            try:
                write_program(spec, folder / "program")
            except gw.errors.GraphWeftError as also:
                return said, "" if str(also) == str(refused) else f"the library says {refused}; the writer {also}"
            return said, f"the library refuses: {refused}; the program is written"
        try:
            written = write_program(spec, folder / "program", **how)
        except gw.errors.ConfigError as refused:
            return f"refused ({refused}): {said}", ""
    program = built(written.folder, objects, target, flags, other)
    if target == "predict":
        return said, _predicted(program, spec, folder)
    for name, found in _runs(program, target, spec):
        for line, other in zip(found, wanted, strict=True):
            # an area under a curve is not a sum over processes
            odd = [name for name in line.keys() ^ other.keys() if target != "mpi" or not name.endswith("_auc")]
            if odd:
                return said, f"{name}, epoch {line['epoch']}: columns {', '.join(odd)}"
            for score in sorted((line.keys() & other.keys()) - {"epoch_seconds", "eval_seconds"}):
                is_exact = exact and not (
                    score.endswith(("rmse", "mae", "r2")) or ("val_rmse" in line and score == "val_loss")
                )
                if _differs(score, line[score], other[score], is_exact):
                    told = f"{score} {line[score]!r}, the library's {other[score]!r}"
                    return said, f"{name}, epoch {line['epoch']}: {told}"
    if not exact:
        return said, ""
    cut = _cut_in_two(program, spec, folder)
    weights, trained = load_file(folder / "whole.safetensors"), _trained(spec, folder / "run")
    off = [name for name, tensor in trained.items() if not torch.equal(weights[name], tensor)]
    return said, cut or (f"weights at the end: {', '.join(off)}" if off else "")


def _predicted(program: Built, spec: ProgramSpec, folder: Path) -> str:
    """What differs between the library's scores of all nodes and the program's; "" for nothing."""
    ds = gw.load(spec.data)
    model: Any = make_model(spec.to_train(), ds).eval()
    file = folder / "weights.safetensors"
    save_file(dict(model.state_dict()), file)
    x = ds.x.to_dense() if isinstance(ds.x, gw.data.SparseFeatures) else ds.x
    with torch.no_grad():
        given = {"edge_weight": ds.edge_weight} if ds.edge_weight is not None and model.takes_edge_weight else {}
        wanted = model(ds.graph, x, **given).numpy()
    served = Served(program.train)
    context = served.context(served.model(file), served.graph(ds.graph, *(w.numpy() for w in given.values())), 2)
    found = served.predict(context, x.numpy())
    return "" if np.array_equal(found, wanted) else f"scores, by {np.abs(found - wanted).max()}"


def main() -> None:
    """Runs cases and prints each that differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="start at this case")
    parser.add_argument("--target", choices=("openmp", "mpi", "cuda", "predict"), default="openmp")
    parser.add_argument("--sanitize", action="store_true", help="compile with sanitizers")
    parser.add_argument("--compiler", help="in place of the library's")
    parser.add_argument("--small", action="store_true", help="graphs of 6 or 40 nodes")
    parser.add_argument("--objects", type=Path, help="folder in which compiled sources are kept")
    options = parser.parse_args()
    flags = (*FLAGS, "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all") if options.sanitize else FLAGS
    bad = refused = 0
    with tempfile.TemporaryDirectory() as name:
        objects = options.objects or Path(name) / "objects"
        objects.mkdir(exist_ok=True, parents=True)
        for number in range(options.first, options.first + options.count):
            folder = Path(name) / str(number)
            folder.mkdir()
            draw = random.Random(f"{options.seed} {number}")
            try:
                sizes = SIZES[:2] if options.small else SIZES
                said, wrong = one_case(draw, folder, objects, options.target, flags, True, options.compiler, sizes)
            except (AssertionError, subprocess.SubprocessError) as failure:
                said, wrong = (folder / "program" / "model.toml").read_text(), str(failure)
            bad += bool(wrong)
            refused += said.startswith("refused")
            print(f"{number}: {'WRONG ' + wrong if wrong else 'same'}: {said}", flush=True)
            shutil.rmtree(folder)
    print(f"{options.count} programs, {bad} wrong, {refused} refused")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
