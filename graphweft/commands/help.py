"""How commands are listed, and how one with many options shows them: in groups, with examples below.

Comes in: commands, the options of a command. Goes out: the text of ``--help``. Used by ``graphweft`` itself, by
``train``, ``sweep`` and ``plan``.
"""

from __future__ import annotations

from typing import Any

import typer
import typer.core

from graphweft.train.loop_options import LoopOptions
from graphweft.train.option_table import options_of
from graphweft.train.table_options import TableOptions

_MODEL = (
    "model heads out_heads attention_dropout value_dropout activation bases hops alpha train_eps layers hidden "
    "dropout norm reduce residual readout"
)
_DATA = "spec data root scale features task normalize fold edge_data"
_BATCHES = "mode fanouts batch_size sampler macro quality accumulate prepare cuda_graphs schedule memory"
_RANKS = "ranks rank_reduce halo max_restarts device precision matmul_precision threads"
_OUTPUT = "out trace resume as_json quiet help machine"
GROUPS: dict[str, tuple[str, ...]] = {
    "Data": tuple(_DATA.split()),
    "Tables": tuple(options_of(TableOptions)),
    "Model": tuple(_MODEL.split()),
    "Batches": tuple(_BATCHES.split()),
    "Machine": tuple(_RANKS.split()),
    "Output": tuple(_OUTPUT.split()),
    "Training": tuple(options_of(LoopOptions)),
}
_ORDER = ("Data", "Tables", "Model", "Training", "Batches", "Machine", "Output")
_GROUP_OF = {name: group for group in _ORDER for name in GROUPS[group]}

TRAIN_EXAMPLES = """Examples:

\b
  graphweft train --data cora --hidden 16 --dropout 0.5 --normalize row
  graphweft train --data products --scale 0.1 --model sage --layers 3 --mode mini --fanouts 15,10,5
  graphweft train --nodes users.csv --edges transfers.csv --id user --source sender --target receiver --label fraud
"""
SWEEP_EXAMPLES = """Examples:

\b
  graphweft sweep --data cora --grid lr=0.01,0.005 --grid hidden=16,64 --seeds 5
  graphweft sweep --data cora --model sage --mode mini --grid "fanouts=15,10;5,5" --out runs/fanouts
  graphweft sweep --nodes users.csv --edges transfers.csv --id user --label fraud --grid model=gcn,sage,gat
"""


# The commands by what they are for, each in one line of 80 columns.
COMMANDS = {
    "Training": {
        "train": "Train a model on your data, or on a synthetic graph.",
        "predict": "Write the predictions of a run for every node.",
        "evaluate": "Show the scores of a run.",
        "plot": "Plot one run, or compare several runs.",
        "sweep": "Train with every combination of some options.",
    },
    "Data": {
        "data": "List the known datasets.",
        "inspect": "Show statistics of a dataset.",
        "prepare": "Write a graph as a store on disk, for graphs larger than memory.",
        "partition": "Split a graph into parts, for several processes.",
    },
    "Speed": {
        "plan": "Predict time and memory of a run, without training.",
        "explain": "Show how a model is compiled.",
        "bench": "Time a model or a layer against PyTorch Geometric.",
        "synth": "Write a C++ program that trains a model or predicts.",
        "doctor": "Show what this machine has and lacks.",
    },
}


class CommandList(typer.core.TyperGroup):
    """The commands under headings, each with one whole line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the groups in order."""
        for name, commands in COMMANDS.items():
            with formatter.section(name):
                formatter.write_dl(list(commands.items()))


class GroupedCommand(typer.core.TyperCommand):
    """A command whose options stand under headings; an option without a heading of its own is one of training."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the groups in order."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in _ORDER}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                groups[_GROUP_OF.get(str(param.name), "Training")].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
