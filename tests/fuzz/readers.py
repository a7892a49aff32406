"""The mutation run: damaged files of every layout through the readers, in a child with bounded memory and time.

``python -m tests.fuzz.readers --cases 20000 --seed 0`` from the root of the checkout. Prints what went wrong and one
last line of counts; exit status 1 if anything did. Case i of a seed is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# never the checkout itself: where the package is installed, the one that lies there has no core
if str(ROOT / "tests") not in sys.path:
    sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from fuzz.mutate import Files, damage  # noqa: E402
from layouts import LAYOUTS  # noqa: E402

from graphweft._errors import GraphWeftError  # noqa: E402
from graphweft.data.dataset import Dataset  # noqa: E402
from graphweft.data.readers.registry import read_dataset  # noqa: E402
from graphweft.storage.feature import SparseFeatures  # noqa: E402

CASE_SECONDS = 10
EXTRA_MEMORY = 1 << 30
OTHERS = [content for layout in LAYOUTS.values() for content in layout.files.values()] + [
    b"",
    b"\n",
    b"PK\x05\x06" + bytes(18),
]


def write_files(files: Files, folder: Path) -> None:
    """Puts the files, and what is no file, into an empty folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.exists():
            continue
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content == "fifo":
            os.mkfifo(path)
        elif content == "loop":
            path.symlink_to(path.name)
        elif content == "folder":
            path.mkdir()


def check_dataset(ds: Dataset) -> str | None:
    """What is wrong with a dataset that a reader gave, if anything; written apart from the package's own checks."""
    src, dst = (ids.numpy() for ids in ds.graph.edges())
    n = ds.num_nodes
    if len(src) and not (min(src.min(), dst.min()) >= 0 and max(src.max(), dst.max()) < n):
        return "edges out of range"
    rows = n if ds.graph_ptr is None else len(ds.graph_ptr) - 1
    if len(ds.y) != rows:
        return "labels of another length"
    if (
        ds.task == "classification"
        and rows
        and not (int(ds.y.min()) >= -1 and int(ds.y.max()) < max(ds.num_classes, 0))
    ):
        return "labels out of range"
    for idx in (ds.train_idx, ds.val_idx, ds.test_idx):
        ids = idx.numpy()
        if idx.dtype != torch.int64 or (len(ids) and not (ids.min() >= 0 and ids.max() < rows)):
            return "split out of range"
    for x in (ds.x, *ds.features.values()):
        if x is None:
            continue
        values = (x.values if isinstance(x, SparseFeatures) else x).numpy()
        if values.dtype != np.float32 or not np.isfinite(values).all():
            return "features that are not finite float32"
    if ds.x is not None and ds.x.shape[0] != n:
        return "features of another length"
    return None


class Result(NamedTuple):
    """What came of one case: "dataset", "error" or "wrong", why, and how long the reader took."""

    kind: str
    detail: str
    seconds: float


def run_case(seed: int, number: int, of: list[str]) -> Result:
    """Damages one of the layouts ``of`` as the case says, and reads it."""
    rng = Random(f"{seed}/{number}")
    layout = LAYOUTS[rng.choice(of)]
    files = damage(rng, layout, OTHERS)
    folder = Path(tempfile.mkdtemp(prefix="gwfuzz"))
    try:
        write_files(files, folder)
        start = time.perf_counter()
        kind, detail = _read(folder / layout.target if layout.target else folder)
        return Result(kind, detail, time.perf_counter() - start)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> tuple[str, str]:
    try:
        ds = read_dataset(path)
    except GraphWeftError as error:
        text = str(error)
        clear = len(text.splitlines()) == 1 and text.isprintable() and "expected" in text and len(text) < 600
        return ("error", text) if clear else ("wrong", f"message {text!r}")
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"
    fault = check_dataset(ds)
    return ("dataset", "") if fault is None else ("wrong", fault)


class TimeoutCase(BaseException):
    """A case took too long."""


def _alarm(*_: Any) -> None:
    raise TimeoutCase


def child(seed: int, first: int, last: int, of: list[str]) -> None:
    """Runs cases and writes one line of JSON for each."""
    torch.set_num_threads(1)
    run_case(seed, -1, of)  # imports and pools are there before memory is bounded
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + EXTRA_MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, _alarm)
    for number in range(first, last):
        signal.alarm(CASE_SECONDS)
        try:
            result = run_case(seed, number, of)
        except TimeoutCase:
            result = Result("hang", f"over {CASE_SECONDS} s", CASE_SECONDS)
        signal.alarm(0)
        line = {"case": number, "result": result.kind, "detail": result.detail, "seconds": result.seconds}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def run(seed: int, cases: int, of: list[str]) -> tuple[Counter[str], list[str], float, int]:
    """All cases; a child that dies is a crash of its case, and the next one goes on behind it."""
    counts: Counter[str] = Counter()
    faults: list[str] = []
    slowest, peak, number = 0.0, 0, 0
    while number < cases:
        command = [sys.executable, "-m", "tests.fuzz.readers", "--seed", str(seed), "--layouts", *of]
        command += ["--child", str(number), str(cases)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for text in process.stdout:
                line = json.loads(text)
                counts[line["result"]] += 1
                slowest = max(slowest, line["seconds"])
                number = line["case"] + 1
                if line["result"] not in ("dataset", "error"):
                    faults.append(f"case {line['case']}: {line['result']}: {line['detail']}")
            status = process.wait()
        peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
        if number < cases:
            counts["crash"] += 1
            faults.append(f"case {number}: crash: exit status {status}")
            number += 1
    return counts, faults, slowest, peak


def main() -> int:
    """Arguments, run, report."""
    parser = argparse.ArgumentParser(description="Damaged files through the readers.")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=int, help="run one case here and show what comes of it")
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS), metavar="NAME")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.seed, *arguments.child, arguments.layouts)
        return 0
    if arguments.one is not None:
        sys.stdout.write(f"{run_case(arguments.seed, arguments.one, arguments.layouts)}\n")
        return 0
    start = time.perf_counter()
    counts, faults, slowest, peak = run(arguments.seed, arguments.cases, arguments.layouts)
    for fault in faults[:50]:
        sys.stdout.write(fault + "\n")
    seconds = time.perf_counter() - start
    sys.stdout.write(
        f"{arguments.cases} cases, seed {arguments.seed}: {counts['dataset']} datasets, "
        f"{counts['error']} clear errors, {counts['wrong']} wrong, {counts['hang']} hangs, {counts['crash']} crashes; "
        f"slowest {slowest:.2f} s, peak {peak // 1024} MiB, {seconds:.0f} s in all\n"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
