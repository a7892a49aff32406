"""The command ``plan``: how a run would train, before it does.

Comes in: flags. Goes out: a typer command whose action answers with lines. Added to the application by
:mod:`graphweft.cli`.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from graphweft.commands.flags import EXPLAINED, Action, flags_of, from_module, given, option, switch, takes, words_of
from graphweft.commands.help import GroupedCommand
from graphweft.synth.spec import options_of_file, placing
from graphweft.train.loop_options import LoopOptions
from graphweft.train.option_table import options_of
from graphweft.train.spec import TrainSpec

_NOT_OF_PLANS = ("out", "resume", "trace", "epochs", "patience", "stop_on", "eval_every", "rank_reduce")


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(cls=GroupedCommand)(
        takes(flags_of(TrainSpec, without=(*_NOT_OF_PLANS, *options_of(LoopOptions))))(plan)
    )


def plan(
    spec: Annotated[str | None, option("spec", "FILE", "Options as TOML; flags override them.", "")] = None,
    machine: Annotated[
        str | None, option("machine", "FILE", "A profile that doctor --calibrate --out wrote.", "this machine")
    ] = None,
    network: Annotated[
        str | None, option("network", "RATE:LATENCY", "With --ranks: predict full batches over such a network.", "")
    ] = None,
    as_json: Annotated[bool, switch("--json/--no-json", "Answer in JSON.")] = False,
    **flags: Any,
) -> Action:
    """Show a plan of a run without training: mode, seconds of an epoch, memory, and alternatives.

    train --mode auto follows the same plan. Without --mode all modes are considered. With --ranks 64 --network
    100Gbit/s:5us it predicts how full batches scale, from real parts of the graph.
    """
    own = given(flags)
    values = own if spec is None else {**options_of_file(spec, TrainSpec), **own}
    values = {"mode": "auto", **values}
    ranks = values.pop("ranks", 0) or 1
    wanted = TrainSpec(**values)

    def show() -> list[str]:
        with placing(spec, own.keys()):
            found = from_module("graphweft.planning", "plan_run")(wanted, machine, ranks)
        on_ranks = partial(from_module, "graphweft.commands.scaling")
        rows = [] if network is None else on_ranks("scaling_run")(wanted, ranks, network, found)
        if as_json:
            facts = on_ranks("scaling_facts")(rows) if rows else []
            return [json.dumps(found.to_dict() | ({"scaling": facts} if rows else {}), allow_nan=False)]
        told = {name: held for name, held in values.items() if name in EXPLAINED and name != "mode"}
        words = words_of(told if found.mode == "full" else {**told, "mode": found.mode})
        lines = str(replace(found, explain=shlex.join(["graphweft", "explain", *words]))).splitlines()
        return [*lines, "", *on_ranks("scaling_lines")(rows, network)] if rows else lines

    return show


__all__ = ["add_to"]
