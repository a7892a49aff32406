"""The command ``partition``: a graph in parts, for ranks or for macro-batches.

Comes in: flags. Goes out: a typer command whose action answers with lines. Added to the application by
:mod:`graphweft.cli`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft._errors import ConfigError
from graphweft.commands.flags import Action, from_module, given, option, switch, value
from graphweft.train.spec import TrainSpec

_METHODS = "gap|multilevel|metis|random|components|greedy|hierarchical|auto"
_LISTED = ("ghosts", "methods", "phase_seconds")
_COLUMNS = ("method", "made in", "seconds an epoch", "bytes an epoch", "ghosts", "degree balance")
Text = str | None


def add_to(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(partition)


def partition(
    parts: Annotated[Text, option("parts", "K", "Number of parts.", "64, or one a node")] = None,
    data: Annotated[Text, option("data", "NAME", "Known name, file or folder.")] = None,
    root: Annotated[Text, option("root", "DIR", "Folder of named datasets.", "data")] = None,
    scale: Annotated[Text, option("scale", "X", "Make a synthetic twin of DATA, X times its size.", "")] = None,
    method: Annotated[str, option("method", _METHODS, "How nodes are assigned to parts.", "gap")] = "gap",
    passes: Annotated[str, option("passes", "N", "gap: passes over all nodes.", "3")] = "3",
    model: Annotated[Text, option("model", "NAME", "Model whose epochs over ranks are predicted.")] = None,
    layers: Annotated[Text, option("layers", "N", "Layers of that model.")] = None,
    hidden: Annotated[Text, option("hidden", "N", "Hidden width of that model.")] = None,
    heads: Annotated[Text, option("heads", "N", "Attention heads of that model.")] = None,
    halo: Annotated[
        Text, option("halo", "exact|bf16|int8|stale|sampled", "How rows are exchanged between ranks.")
    ] = None,
    memory: Annotated[
        Text, option("memory", "SIZE", "Memory budget for a folder of parts.", "a quarter of the machine's")
    ] = None,
    seed: Annotated[Text, option("seed", "N", "Seed of random parts, splits and graphs.")] = None,
    threads: Annotated[Text, option("threads", "N", "Number of threads.", "all cores")] = None,
    out: Annotated[Text, option("out", "PATH", "An .npz file, or a folder with one part per rank.", "")] = None,
    as_json: Annotated[bool, switch("--json/--no-json", "Answer in JSON.")] = False,
) -> Action:
    """Split a graph's nodes into parts with few edges between them, and predict epochs of as many ranks.

    --out FILE.npz writes the part of every node. --out DIR writes a folder for each part, from which graphweft train
    --ranks K --data DIR trains; every rank reads only its part.
    """
    k, times = None if parts is None else value("parts", parts), value("passes", passes)
    if k is not None and k < 1:
        raise ConfigError(f"parts: expected a number >= 1, got {k}")
    values = {"data": data, "root": root, "scale": scale, "seed": seed, "threads": threads, "memory": memory}
    values |= {"model": model, "layers": layers, "hidden": hidden, "heads": heads, "halo": halo}
    spec = TrainSpec(**given(values))
    file = None if out is None else Path(out)

    def split() -> list[str]:
        report = from_module("graphweft.commands.partition_run", "partition_run")(spec, k, method, times, file)
        return [json.dumps(report, allow_nan=False)] if as_json else _lines(report)

    return split


def _lines(report: dict[str, Any]) -> list[str]:
    """The report for people: one number a line, then methods side by side."""
    lines = [f"{name}: {_short(held)}" for name, held in report.items() if name not in _LISTED]
    lines += [f"ghosts: {', '.join(f'{count:,}' for count in report['ghosts'])}"]
    lines += [f"phase {name}: {_short(held)} s" for name, held in report["phase_seconds"].items()]
    methods = report.get("methods")
    if methods is None:
        return lines
    rows = [_COLUMNS]
    for name, held in methods.items():
        if "refused" in held:
            lines.append(f"{name} was left out: {held['refused']}")
            continue
        numbers = (held["seconds"], held["predicted_epoch_seconds"])
        counts = (held["predicted_bytes_per_epoch"], sum(held["ghosts"]))
        cells = (*(f"{number:.4g} s" for number in numbers), *(f"{count:,}" for count in counts))
        rows.append((name, *cells, f"{held['degree_balance']:.3f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return lines + ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _short(held: Any) -> str:
    """For people to read: four digits of a number that is no count."""
    return f"{held:.4g}" if isinstance(held, float) else str(held)
