"""The command ``synth``: a spec becomes a C++ program.

Comes in: flags. Goes out: a typer command whose action answers with lines. Added to the application by
:mod:`graphweft.cli`.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft._errors import ConfigError
from graphweft.commands.flags import Action, from_module, one_of, option, switch
from graphweft.synth.spec import TARGETS, WHAT, check_target, check_what, placing, read_spec


def add_to(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(synth)


def synth(
    spec: Annotated[
        str | None, option("spec", "FILE", "Spec as TOML, whose keys are the options of train.", "")
    ] = None,
    target: Annotated[str, option("target", one_of(TARGETS), "Platform of the program.", "openmp")] = "openmp",
    what: Annotated[str, option("what", one_of(WHAT), "What the program does.", "train")] = "train",
    ranks: Annotated[
        str | None, option("ranks", "P,...", "With target mpi: numbers of processes to write parts for.", "")
    ] = None,
    deterministic: Annotated[
        bool, switch("--deterministic/--no-deterministic", "With target cuda: equal runs give equal bits.")
    ] = False,
    out: Annotated[str, option("out", "DIR", "Folder of the program.", "program")] = "program",
    data: Annotated[str | None, option("data", "NAME", "Known name, file or folder.", "that of the spec")] = None,
    as_json: Annotated[bool, switch("--json/--no-json", "Answer in JSON.")] = False,
) -> Action:
    """Write a C++ program that trains exactly the model of a spec, or predicts with it, without Python and torch.

    Its losses have the bits of graphweft train with the same options. Build it with
    cmake -S DIR -B DIR/build && cmake --build DIR/build, run DIR/build/train --data FILE.npz. With --what predict it is
    a shared library with a C header.
    """
    check_target(target)
    check_what(what)
    if spec is None:
        raise ConfigError("spec: expected a TOML file, got none")
    read = read_spec(spec)
    if data is not None:
        read = replace(read, data=data)

    def write() -> list[str]:
        write_program = from_module("graphweft.synthesis", "write_program")
        with placing(spec, {"data"} if data is not None else set()):
            made: Any = write_program(read, Path(out), target, what, _counts(ranks), deterministic)
        unit = "an epoch" if what == "train" else "a prediction"
        room = f"{made.arena_bytes:,} bytes of buffers"
        facts = {"calls": made.calls, "arena_bytes": made.arena_bytes, "lines": made.lines}
        if as_json:
            return [json.dumps({"out": str(made.folder), "model": read.model, "target": target, **facts})]
        folder, build = (shlex.quote(str(path)) for path in (made.folder, made.folder / "build"))
        told = f"{made.lines} lines, {made.calls} kernel calls {unit}, {room}"
        return [
            f"{made.folder}: {read.model} of {read.layers} layers, {told}",
            f"build it with: cmake -S {folder} -B {build} && cmake --build {build}",
        ]

    return write


def _counts(text: str | None) -> tuple[int, ...]:
    """Numbers between commas. Raises: ConfigError."""
    words = [] if text is None else text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise ConfigError(f"ranks: expected numbers of processes as in 1,2,4, got {text}")
    return tuple(int(word) for word in words)
