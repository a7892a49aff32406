"""The commands ``inspect`` and ``data``: what a dataset is like, and which sets have a name.

Comes in: flags. Goes out: typer commands whose actions answer with lines. Added to the application by
:mod:`graphweft.cli`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft._errors import ConfigError
from graphweft.commands.flags import Action, flags_of, from_module, given, option, switch, takes
from graphweft.train.spec import DEFAULT_DATA, TrainSpec
from graphweft.train.table_options import TableOptions

_PICTURES = (".png", ".svg", ".pdf")
Root = Annotated[str | None, option("root", "DIR", "Folder of named datasets.", "data")]
Json = Annotated[bool, switch("--json/--no-json", "Answer in JSON.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(inspect)
    app.command(name="data")(known)


@takes(flags_of(TableOptions))
def inspect(
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="Known name, file or folder.")] = None,
    root: Root = None,
    scale: Annotated[str | None, option("scale", "X", "Make a synthetic twin of DATA, X times its size.", "")] = None,
    seed: Annotated[str | None, option("seed", "N", "Seed of a random split or graph.")] = None,
    plot: Annotated[str | None, option("plot", "FILE", "Draw degrees, classes and edges between them.", "")] = None,
    verify: Annotated[bool, switch("--verify/--no-verify", "Verify all checksums of a store.")] = False,
    as_json: Json = False,
    **tables: Any,
) -> Action:
    """Show statistics of a dataset: counts, degrees, components, labels, homophily, isolated nodes, self-loops."""
    values = given({"data": data, "root": root, "scale": scale, "seed": seed, **tables})
    spec = TrainSpec(**values)
    if spec.data == DEFAULT_DATA and not spec.has_tables and spec.scale is None and data is None:
        raise ConfigError("DATA: expected the name or path of a dataset, or --nodes and --edges, got none")
    if plot is not None and Path(plot).suffix.lower() not in _PICTURES:
        raise ConfigError(f"plot: expected a file name ending in .png, .svg or .pdf, got {plot!r}")

    if verify:
        return lambda: _verified(str(data), as_json)

    def look() -> list[str]:
        ds = from_module("graphweft.run", "read_dataset")(spec)
        found = from_module("graphweft.inspection", "inspect")(ds)
        if plot is not None:
            from_module("graphweft.inspection", "plot_dataset")(ds, Path(plot))
        drawn = [] if plot is None else [f"drawn in {plot}"]
        return [json.dumps(found.to_dict(), allow_nan=False)] if as_json else [*found.lines(), *drawn]

    return look


def _verified(path: str, as_json: bool) -> list[str]:
    """What a store holds, once every block of it was read."""
    store = from_module("graphweft.storage.store", "Store")(path)
    read = store.verify()
    if as_json:
        return [json.dumps({"store": path, "parts": len(store), "bytes": read, "verified": True})]
    return [repr(store), f"verified: {read:,} bytes in {len(store)} parts"]


def known(root: Root = None, as_json: Json = False) -> Action:
    """List the known datasets with their sizes, and mark those that are on disk."""

    def tell() -> list[str]:
        found = from_module("graphweft.data.known_sets", "known_sets")(root)
        if as_json:
            return [json.dumps([{**asdict(one), "at": None if one.at is None else str(one.at)} for one in found])]
        rows = [("name", "task", "graphs", "nodes", "edges", "features", "classes", "at hand")]
        for one in found:
            sizes = (one.graphs, one.num_nodes, one.num_edges, one.num_features, one.num_classes)
            here = str(one.at) if one.at is not None else {"fetched": "to be fetched"}.get(one.source, one.source)
            rows.append((one.name, one.task, *(f"{size:,}" if size else "-" for size in sizes), here))
        widths = [max(len(row[i]) for row in rows) for i in range(8)]
        lines = []
        for row in rows:
            cells = [
                t.rjust(w) if 2 <= i <= 6 else t.ljust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return lines

    return tell
