"""The command ``prepare``: a graph of any size as a store on disk, within a memory budget.

Comes in: flags. Goes out: a typer command whose action answers with lines. Added to the application by
:mod:`graphweft.cli`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft._errors import ConfigError
from graphweft.commands.flags import Action, from_module, option, switch, value
from graphweft.train.durations import clock

_METHODS = "auto|multilevel|gap|metis|random|range|hash|FILE"
_LINE_SECONDS = 5.0
File = str | None


def add_to(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(prepare)


def prepare(
    out: Annotated[str, option("out", "DIR", "Folder of the store, which must not exist.", "")] = "",
    data: Annotated[File, option("data", "NAME", "Known name, file or folder, read into memory first.", "")] = None,
    root: Annotated[File, option("root", "DIR", "Folder of named datasets.", "data")] = None,
    edge_file: Annotated[File, option("edge_file", "FILE", "Edges in .npy, .npz, .bin or text, streamed.", "")] = None,
    x_file: Annotated[File, option("x_file", "FILE", "Features, .npy of shape (N, F), streamed.", "")] = None,
    y_file: Annotated[File, option("y_file", "FILE", "Labels, .npy.", "")] = None,
    split_file: Annotated[
        File, option("split_file", "FILE", "train_idx, val_idx, test_idx or masks, .npz.", "")
    ] = None,
    num_nodes: Annotated[File, option("num_nodes", "N", "Number of nodes, if no file shows it.", "")] = None,
    bidirected: Annotated[bool, switch("--bidirected/--directed", "Add the reverse of every edge.")] = False,
    regression: Annotated[bool, switch("--regression/--classes", "Labels of --y-file are values.")] = False,
    parts: Annotated[File, option("parts", "P", "Number of parts.", "64, or one per node")] = None,
    memory: Annotated[
        File, option("memory", "SIZE", "Memory budget, such as 2GB.", "a quarter of the machine's")
    ] = None,
    method: Annotated[
        str,
        option("method", _METHODS, "How nodes are assigned to parts; auto: multilevel, or hash if too large.", "auto"),
    ] = ("auto"),
    dtype: Annotated[
        str, option("dtype", "float32|float16|bfloat16", "Dtype of features on disk.", "float32")
    ] = "float32",
    seed: Annotated[str, option("seed", "N", "Seed of parts and random splits.", "0")] = "0",
    as_json: Annotated[bool, switch("--json/--no-json", "Answer in JSON.")] = False,
    quiet: Annotated[bool, switch("--quiet/--no-quiet", "Show no progress.")] = False,
) -> Action:
    """Write a graph as a store, which graphweft train --mode macro reads part by part.

    With --edge-file the input is streamed and may be larger than memory. After an interruption, the same command
    resumes the preparation.
    """
    count, number = None if parts is None else value("parts", parts), value("seed", seed)
    nodes = None if num_nodes is None else value("num_nodes", num_nodes)
    if not out:
        raise ConfigError("out: expected a folder for the store, got none")
    if (data is None) == (edge_file is None):
        raise ConfigError("data: expected --data or --edge-file, got " + ("none" if data is None else "both"))
    streamed = {"--x-file": x_file, "--y-file": y_file, "--split-file": split_file, "--num-nodes": num_nodes}
    _check_streamed(edge_file, root, {**streamed, "--bidirected": bidirected, "--regression": regression})

    def write() -> list[str]:
        given: Any = data
        if edge_file is not None:
            kinds = {"bidirected": bidirected, "regression": regression, "seed": number}
            files = from_module("graphweft.data.graph_files", "GraphFiles")
            given = files(edge_file, x_file, y_file, split_file, nodes, **kinds)
        named = {} if _is_method(method) else {"part": from_module("graphweft.data.prepare_store", "read_part")(method)}
        how = method if _is_method(method) else "auto"
        begun = time.monotonic()
        store = from_module("graphweft.data.prepare_store", "prepare_store")(
            given, out, count, memory, method=how, dtype=dtype, root=root, seed=number, **named,
            progress=None if quiet else _Progress(),
        )  # fmt: skip
        sizes = {
            "nodes": store.num_nodes, "edges": store.num_edges, "features": store.num_features, "parts": len(store),
            "bytes": store.nbytes, "method": store.manifest.method, "seconds": round(time.monotonic() - begun, 3),
        }  # fmt: skip
        if as_json:
            return [json.dumps({"out": out, **sizes})]
        told = (f"{name} {held:,}" if isinstance(held, int) else f"{name} {held}" for name, held in sizes.items())
        return [f"{out}: {', '.join(told)}"]

    return write


def _check_streamed(edge_file: File, root: File, given: dict[str, Any]) -> None:
    """Flags go with the kind of input that they describe. Raises: ConfigError."""
    left = [flag for flag, held in given.items() if held]
    if edge_file is None and left:
        raise ConfigError(f"edge_file: expected a file of edges with {left[0]}, got none")
    if edge_file is not None and root is not None:
        raise ConfigError("root: expected --data with it, got --edge-file")


def _is_method(text: str) -> bool:
    return text in _METHODS.split("|")[:-1] or not Path(text).suffix


class _Progress:
    """A line on standard error when a step begins, every five seconds, and when it ends."""

    def __init__(self) -> None:
        self._step, self._begun, self._told = "", 0.0, 0.0

    def __call__(self, step: str, done: int, total: int | None) -> None:
        """So much of a step is done."""
        now = time.monotonic()
        if step != self._step:
            self._step, self._begun, self._told = step, now, 0.0
        if now - self._told < _LINE_SECONDS and done != total:
            return
        self._told = now
        spent = now - self._begun
        left = f", {clock(spent * (total - done) / done)} left" if total and 0 < done < total else ""
        share = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        sys.stderr.write(f"{step}: {share}{left}\n")
