"""The command ``graphweft``: parses, calls one function per command, and turns every outcome into an exit status.

Comes in: arguments. Goes out: results on standard output, progress and one line for any failure on standard error.
Exit status 0; 2 for bad input or arguments; 1 for a failure that is not the user's; 130 after Ctrl-C. Commands live
in modules that are imported when their command is called, so that ``--help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft import _config
from graphweft._errors import ConfigError, GraphWeftError, IRError, RankError
from graphweft.commands import datasets, plans, programs, runs, stores, sweeps
from graphweft.commands.flags import KINDS, LOOP, TABLES, Action, takes
from graphweft.commands.flags import from_module as _from
from graphweft.commands.flags import given as _given
from graphweft.commands.flags import one_of as _one_of
from graphweft.commands.flags import option as _option
from graphweft.commands.flags import switch as _switch
from graphweft.commands.flags import value as _value
from graphweft.data.feature_kinds import FEATURE_KINDS
from graphweft.dist.launch import is_rank, launch, speaks
from graphweft.synth.spec import options_of_file
from graphweft.train.durations import clock, duration
from graphweft.train.loop_options import METRICS
from graphweft.train.options import (
    DECAY_ON,
    EDGE_DATA,
    HALO,
    LAST,
    MODES,
    OPTIMIZERS,
    PREPARE,
    RANK_REDUCE,
    SAMPLERS,
    STOP_ON,
    TASKS,
)
from graphweft.train.scores import ERRORS, PARTS, shown
from graphweft.train.spec import ACTIVATIONS, MODELS, NORMALIZE, NORMS, READOUTS, REDUCES, TrainSpec

_OF_A_PATH = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_NOT_THE_USERS = (RuntimeError, IRError)  # the errors of ours that are RuntimeErrors: core, passes, benchmark
_USAGE = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_DECAY_HELP = "Layers with weight decay: all, or only the first, as in the GCN paper."
_NOTABLE_GUESS = 0.7  # above it an accuracy says little without that of a constant guess beside it

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    caught: list[str] = []
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, category, *_: caught.append(f"{category.__name__}: {message}")
        try:
            action = app(args=arguments, prog_name="graphweft", standalone_mode=False, obj=arguments)
            if not callable(action):  # help was asked for
                return int(action or 0)
            lines = action()
            for line in dict.fromkeys(caught) if speaks() else ():
                _say(f"warning: {line}")
            return _answer(lines)
        except KeyboardInterrupt as stop:
            return _stopped(stop, arguments)
        except Exception as failure:
            return _failed(failure, arguments)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> Action | None:
    """Trains graph neural networks fast, on graphs of any size, on the hardware at hand."""
    if version:
        sys.stdout.write(f"graphweft {_version()}\n")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
        raise typer.Exit(0)
    return None


# Flags that several commands take.
Data = Annotated[str | None, _option("data", "NAME", "Known name, file or folder.", "a synthetic graph")]
Root = Annotated[str | None, _option("root", "DIR", "Where named datasets are kept.", "data")]
Scale = Annotated[str | None, _option("scale", "X", "Make a synthetic twin of --data, X times its size.", "")]
Mode = Annotated[
    str | None, _option("mode", _one_of(MODES), "full: all nodes in every step; mini: sampled; macro: part by part.")
]
BatchSize = Annotated[str | None, _option("batch_size", "N", "mini: training nodes, or graphs, per step.")]
SamplerName = Annotated[str | None, _option("sampler", _one_of(SAMPLERS), "mini: how batches are sampled.")]
Fanouts = Annotated[
    str | None, _option("fanouts", "K,K,...", "mini: in-edges sampled per node, one number per layer.", "15,10,5")
]
Features = Annotated[
    str | None,
    _option("features", _one_of(tuple(FEATURE_KINDS)), "Compute node features from the graph.", "those of the data"),
]
Task = Annotated[
    str | None,
    _option(
        "task",
        _one_of(TASKS),
        "Predict labels of nodes, graphs or edges, or links; gae, vgae, dgi, node2vec: embeddings without labels.",
        "that of the labels",
    ),
]
Readout = Annotated[str | None, _option("readout", _one_of(READOUTS), "graphs: how the nodes of a graph are combined.")]
Fold = Annotated[
    str | None, _option("fold", "K", "graphs: the test set is fold K of 10, from 0.", "the split of the source")
]
Model = Annotated[str | None, _option("model", _one_of(MODELS), "Model.")]
Layers = Annotated[str | None, _option("layers", "N", "Number of layers.")]
Heads = Annotated[str | None, _option("heads", "N", "Heads of hidden layers with attention.")]
OutHeads = Annotated[str | None, _option("out_heads", "N", "Heads of the last layer with attention, averaged.")]
AttentionDropout = Annotated[
    str | None, _option("attention_dropout", "P", "Dropout on attention weights.", "as --dropout")
]
ValueDropout = Annotated[
    str | None, _option("value_dropout", "P", "gat, cgat: dropout on the values that attention sums.")
]
Activation = Annotated[
    str | None, _option("activation", _one_of(ACTIVATIONS), "Activation between layers; auto: the model's default.")
]
Bases = Annotated[str | None, _option("bases", "N", "rgcn: matrices shared by the relations; 0: one per relation.")]
Hidden = Annotated[str | None, _option("hidden", "N", "Width of the hidden layers.")]
Rate = Annotated[str | None, _option("lr", "X", "Learning rate.")]
Dropout = Annotated[str | None, _option("dropout", "P", "Dropout on the input of every layer.")]
Normalize = Annotated[
    str | None, _option("normalize", _one_of(NORMALIZE), "row: scale the features of every node to sum 1.")
]
Norm = Annotated[str | None, _option("norm", _one_of(NORMS), "Normalisation between layers.")]
Reduce = Annotated[
    str | None, _option("reduce", _one_of(REDUCES), "How neighbours are combined; auto: the model's default.")
]
Residual = Annotated[bool | None, _switch("--residual/--no-residual", "Add a layer's input to its output.")]
Seed = Annotated[str | None, _option("seed", "N", "Seed of parameters, dropout, random splits and graphs.")]
Threads = Annotated[str | None, _option("threads", "N", "Number of threads.", "all physical cores")]
Trace = Annotated[str | None, _option("trace", "FILE", "Write a Chrome trace and report what limits the speed.", "")]
Prepare = Annotated[str | None, _option("prepare", _one_of(PREPARE), "mini: one thread per batch, or several.")]
EdgeData = Annotated[str | None, _option("edge_data", _one_of(EDGE_DATA), "Use or ignore edge weights and features.")]
RanksFlag = Annotated[str | None, _option("ranks", "P", "Processes that train together.", "as torchrun says, or 1")]
RankReduce = Annotated[
    str | None, _option("rank_reduce", _one_of(RANK_REDUCE), "ordered: the same bits for any number of ranks.")
]
HaloFlag = Annotated[str | None, _option("halo", _one_of(HALO), "full over ranks: bf16 sends half the bytes.")]
MaxRestarts = Annotated[str | None, _option("max_restarts", "N", "Restarts of lost ranks, from the last checkpoint.")]
Json = Annotated[bool, _switch("--json/--no-json", "Answer in JSON.")]


_PARTS_AND_RANKS = {
    "macro": Annotated[
        str | None,
        _option(
            "macro",
            "large:A/B|parts:A/B[+hubs:SIZE][+reuse:N]",
            "mini, macro: A/B of the seeds, or A of B parts, with hubs, each group used N times.",
            "",
        ),
    ],
    "memory": Annotated[str | None, _option("memory", "SIZE", "What the run may take, as 8GB.", "")],
    "quality": Annotated[
        str | None, _option("quality", "X", "macro: largest relative error of sampled gradients.", "")
    ],
    "accumulate": Annotated[str | None, _option("accumulate", "N", "mini: batches per update.")],
    "device": Annotated[str | None, _option("device", "NAME", "full: where to train, as cuda.", "cpu")],
    "ranks": RanksFlag,
    "rank_reduce": RankReduce,
    "halo": HaloFlag,
    "max_restarts": MaxRestarts,
}


@app.command()
@takes(TABLES | LOOP | _PARTS_AND_RANKS)
def train(
    context: typer.Context,
    spec: Annotated[str | None, _option("spec", "FILE", "Options as TOML; flags come before them.", "")] = None,
    data: Data = None,
    root: Root = None,
    scale: Scale = None,
    features: Features = None,
    task: Task = None,
    model: Model = None,
    heads: Heads = None,
    out_heads: OutHeads = None,
    attention_dropout: AttentionDropout = None,
    value_dropout: ValueDropout = None,
    activation: Activation = None,
    bases: Bases = None,
    layers: Layers = None,
    hidden: Hidden = None,
    epochs: Annotated[str | None, _option("epochs", "N", "Total epochs, including those before --resume.")] = None,
    lr: Rate = None,
    optimizer: Annotated[str | None, _option("optimizer", _one_of(OPTIMIZERS), "Update rule.")] = None,
    dropout: Dropout = None,
    weight_decay: Annotated[str | None, _option("weight_decay", "X", "L2 penalty.")] = None,
    weight_decay_on: Annotated[str | None, _option("weight_decay_on", _one_of(DECAY_ON), _DECAY_HELP)] = None,
    normalize: Normalize = None,
    norm: Norm = None,
    reduce: Reduce = None,
    residual: Residual = None,
    readout: Readout = None,
    fold: Fold = None,
    mode: Mode = None,
    fanouts: Fanouts = None,
    batch_size: BatchSize = None,
    sampler: SamplerName = None,
    seed: Seed = None,
    seeds: sweeps.Seeds = None,
    threads: Threads = None,
    patience: Annotated[
        str | None, _option("patience", "N", "Stop after N epochs without a better validation score.", "never")
    ] = None,
    stop_on: Annotated[
        str | None, _option("stop_on", _one_of(STOP_ON), "Validation score that decides on the best epoch.")
    ] = None,
    eval_every: Annotated[str | None, _option("eval_every", "N", "Evaluate after every N epochs.")] = None,
    out: Annotated[str | None, _option("out", "DIR", "Folder of the run.", "runs/<data>")] = None,
    edge_data: EdgeData = None,
    prepare: Prepare = None,
    trace: Trace = None,
    resume: Annotated[bool, _switch("--resume/--no-resume", "Continue the run in --out.")] = False,
    as_json: Json = False,
    quiet: Annotated[bool, _switch("--quiet/--no-quiet", "Show no progress.")] = False,
    **more: Any,
) -> Action:
    """Train a model on --data, or on tables of --nodes and --edges; without either, on a synthetic graph.

    With --ranks P, or started by torchrun, several processes train together. With --seeds N it trains N times, into
    the folders seed-0, seed-1 and so on of --out.

    Writes last.pt, best.pt, metrics.jsonl, summary.json and curves.png to --out. An existing run in --out is
    moved to the subfolder earlier-1. With --resume it continues, with its own options where none are given.
    """
    values = _given({**locals(), **more})
    if spec is not None:
        values = {**options_of_file(spec, TrainSpec), **values}
    return lambda: _train({**values, "progress": not quiet}, as_json, context.obj)


@app.command()
def explain(
    data: Data = None,
    root: Root = None,
    scale: Scale = None,
    features: Features = None,
    model: Model = None,
    heads: Heads = None,
    out_heads: OutHeads = None,
    attention_dropout: AttentionDropout = None,
    value_dropout: ValueDropout = None,
    activation: Activation = None,
    bases: Bases = None,
    layers: Layers = None,
    hidden: Hidden = None,
    dropout: Dropout = None,
    normalize: Normalize = None,
    norm: Norm = None,
    reduce: Reduce = None,
    residual: Residual = None,
    mode: Mode = None,
    fanouts: Fanouts = None,
    batch_size: BatchSize = None,
    sampler: SamplerName = None,
    seed: Seed = None,
    threads: Threads = None,
    full: Annotated[bool, _switch("--full", "Show the programs before and after each pass.")] = False,
) -> Action:
    """Show how a model is compiled: a summary, then kernels, predicted time and memory."""
    values = _given({name: value for name, value in locals().items() if name != "full"})
    return lambda: _from("graphweft.run", "explain_run")(TrainSpec(**values), full).splitlines()


_NOT_OF_SPEC = ("rounds", "epochs", "out", "layer", "model", "turns", "length", "file", "timed")


@app.command()
def bench(
    layer: Annotated[
        str | None, typer.Argument(metavar="FILE.py:LAYER", help="A layer called as layer(x, edge_index).")
    ] = None,
    model: Annotated[str, _option("model", "NAME", "Model: gcn, sage, gin, gat or gatv2.", "gcn")] = "gcn",
    data: Data = None,
    root: Root = None,
    scale: Scale = None,
    layers: Annotated[str | None, _option("layers", "N", "Number of layers.", "3")] = None,
    hidden: Hidden = None,
    lr: Rate = None,
    rounds: Annotated[str, _option("rounds", "N", "Rounds of measurement.", "5")] = "5",
    epochs: Annotated[str, _option("epochs", "N", "Epochs in a turn.", "10")] = "10",
    seed: Seed = None,
    threads: Threads = None,
    out: Annotated[str | None, _option("out", "FILE", "Append the rows to this CSV file.", "")] = None,
) -> Action:
    """Time a model, or a layer of yours compiled, against PyTorch Geometric, paired in one run."""
    turns, length, file, timed = _value("rounds", rounds), _value("epochs", epochs), out, layer or model
    values = {
        "layers": 3,
        **_given({name: v for name, v in locals().items() if name not in _NOT_OF_SPEC}),
    }

    def measure() -> Sequence[str]:
        _from("graphweft.run", "bench_run")(
            TrainSpec(**values), turns, length, None if file is None else Path(file), timed
        )
        return ()

    return measure


@app.command()
def partition(
    parts: Annotated[str, _option("parts", "K", "Number of parts.", "64")] = "64",
    data: Data = None,
    root: Root = None,
    scale: Scale = None,
    method: Annotated[str, _option("method", "gap|multilevel|metis|random", "Partitioning method.", "gap")] = "gap",
    passes: Annotated[str, _option("passes", "N", "gap: passes over all nodes.", "3")] = "3",
    seed: Seed = None,
    threads: Threads = None,
    out: Annotated[str | None, _option("out", "FILE", "Write the parts to this .npz file.", "")] = None,
    as_json: Json = False,
) -> Action:
    """Split a graph's nodes into parts with few edges between them and balanced labels."""
    k, times = _value("parts", parts), _value("passes", passes)
    if k < 1:
        raise ConfigError(f"parts: expected a number >= 1, got {k}")
    values = _given({"data": data, "root": root, "scale": scale, "seed": seed, "threads": threads})
    file = None if out is None else Path(out)

    def split() -> Sequence[str]:
        report = _from("graphweft.run", "partition_run")(TrainSpec(**values), k, method, times, file)
        if as_json:
            return (json.dumps(report, allow_nan=False),)
        return [f"{name}: {_short(value)}" for name, value in report.items()]

    return split


@app.command()
def doctor(
    context: typer.Context,
    network: Annotated[bool, _switch("--network", "Measure latency and bandwidth between ranks.")] = False,
    calibrate: Annotated[bool, _switch("--calibrate", "Measure what plans are priced by, under a minute.")] = False,
    out: Annotated[str | None, _option("out", "FILE", "calibrate: also write the profile here.", "")] = None,
    device: Annotated[str | None, _option("device", "NAME", "Check every kernel there, as cuda.", "")] = None,
    threads: Threads = None,
    ranks: RanksFlag = None,
    as_json: Json = False,
) -> Action:
    """Show what this machine has and lacks; --network: how fast ranks exchange data; --device: its kernels.

    With --calibrate it measures kernels, small runs and the disk, and remembers the profile for plans.
    """
    size = 0 if ranks is None else _value("ranks", ranks)
    if out is not None and not calibrate:
        raise ConfigError("out: expected --calibrate with it, got none")
    cores = 0 if threads is None else _value("threads", threads)
    if size and not network:
        raise ConfigError(f"ranks: expected --network with it, got {size} without")

    def look() -> Sequence[str]:
        if network and size > 1 and not is_rank():
            return _launch(context.obj, size)
        if calibrate:
            measured: Sequence[str] = _from("graphweft.doctor", "profile")(out and Path(out), cores, as_json)
            return measured
        if network:
            _from("graphweft.dist.network", "main")(as_json)
        elif device:
            _from("graphweft.device_check", "main")(device, as_json)
        else:
            _from("graphweft.doctor", "main")(json=as_json)
        return ()

    return look


runs.add_to(app)
programs.add_to(app)
datasets.add_to(app)
stores.add_to(app)
_OF_TRAIN = inspect.signature(train).parameters.values()
sweeps.add_to(app, {flag.name: flag.annotation for flag in _OF_TRAIN})
plans.add_to(app, {flag.name: flag.annotation for flag in _OF_TRAIN})


def _train(given: dict[str, Any], as_json: bool, arguments: Sequence[str]) -> Sequence[str]:
    """By this process, or by as many as are asked for; once, or with several seeds."""
    seeds = given.pop("seeds", None)
    if seeds is not None:
        return sweeps.repeat(given, seeds, as_json)
    if given.get("ranks", 0) > 1 and not is_rank():
        spec = TrainSpec(**given)  # what can be refused is refused once
        return _launch(arguments, spec.ranks, spec.max_restarts, spec.folder / LAST)
    complete, run = _from("graphweft.run", "complete"), _from("graphweft.run", "run")
    with _config.defaults(keep_heap=True):  # the process is the command's own
        summary = run(complete(given))
    if not speaks():
        return ()
    return (json.dumps(summary, allow_nan=False),) if as_json else _report(summary)


def _launch(arguments: Sequence[str], size: int, restarts: int = 0, state: Path | None = None) -> Sequence[str]:
    """The command as several ranks, of which the first answers."""
    status = launch(arguments, size, restarts, state)
    if status:
        raise RankError("", status)
    return ()


def _report(summary: dict[str, Any]) -> Sequence[str]:
    """The summary for people."""
    metric = summary["metric"]
    column = "rmse" if metric in ERRORS else "acc"
    last = _by_part(summary, column, metric)
    many = summary.get("num_graphs")
    outputs = f"values a {'node' if many is None else 'graph'}" if metric in ERRORS else "classes"
    graphs = "" if many is None else f"{many:,} graphs, "
    lines = [
        f"{summary['dataset']}: {graphs}{summary['num_nodes']:,} nodes, {summary['num_edges']:,} edges, "
        f"{summary['num_features']:,} features ({summary['feature_path']}), {summary['num_classes']} {outputs}",
        f"{summary['model']}: {summary['epochs']} epochs of {duration(summary['epoch_seconds_median'])} (median), "
        f"prepared in {duration(summary['prepare_seconds'])}, {clock(summary['total_seconds'])} in all, "
        f"peak memory {summary['peak_rss_mb']:.0f} MB",
        f"{metric} of the last epoch: {last}",
    ]
    for name, title in (("auc", "ROC AUC"), ("mae", "MAE"), ("r2", "R2")):
        if summary.get(f"train_{name}") is not None:
            lines.append(f"{title} of the last epoch: {_by_part(summary, name, _SHOWN_AS[name])}")
    for name in _named(summary):
        lines.append(f"{name} of the last epoch: {_by_part(summary, name, 'RMSE')}")
    if summary.get(f"test_{column}_at_best_val") is not None:
        best, test = (
            shown(summary[f"{name}"], metric) for name in (f"best_val_{column}", f"test_{column}_at_best_val")
        )
        auc = summary.get("test_auc_at_best_val")
        more = "" if auc is None else f", ROC AUC {shown(auc, 'ROC AUC')}"
        at_best = ((name, summary.get(f"test_{name}_at_best_val")) for name in _named(summary))
        more += "".join(f", {name} {value:.4g}" for name, value in at_best if value is not None)
        lines.append(f"at the best validation, {best} in epoch {summary['best_epoch']}: test {test}{more}")
    guess = summary.get("constant_guess_acc")
    if guess is not None and guess > _NOTABLE_GUESS:
        row = "node" if many is None else "graph"
        lines.append(
            f"for comparison: the most frequent training class, given to every {row}, scores {shown(guess, metric)}"
        )
    if summary.get("test_mrr") is not None:
        ranks = "   ".join(
            f"{part} mrr {summary[f'{part}_mrr']:.3f}, hits@10 {100 * summary[f'{part}_hits_at_10']:.1f} %"
            for part in ("val", "test")
        )
        lines.append(f"ranked among 100 other destinations: {ranks}")
    if summary.get("verdict"):
        lines.append(f"{summary['verdict']} ({summary['trace']})")
    lines.append(f"in {summary['out']}: best.pt last.pt metrics.jsonl summary.json curves.png")
    alone, with_graph = summary.get("features_alone_acc"), summary.get("test_acc_at_best_val")
    if alone is not None and with_graph is not None:
        lines.append(
            f"test accuracy: features alone {shown(alone, metric)}, with the graph {shown(with_graph, metric)}"
        )
    return lines


_SHOWN_AS = {"auc": "ROC AUC", "mae": "MAE", "r2": "RMSE"}  # per cent or a number


def _named(summary: dict[str, Any]) -> list[str]:
    """Names of the metrics that were asked for."""
    known = (name for name in METRICS if name != summary["metric"])
    return [name for name in known if f"best_val_{name}" in summary and f"test_{name}" in summary]


def _by_part(summary: dict[str, Any], column: str, metric: str) -> str:
    """The scores of all splits that have one."""
    found = ((part, summary.get(f"{part}_{column}")) for part in PARTS)
    return "   ".join(f"{part} {shown(value, metric)}" for part, value in found if value is not None)


def _short(value: Any) -> str:
    """For people to read: four digits of a number that is no count."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _version() -> str:
    try:
        return importlib.metadata.version("graphweft")
    except importlib.metadata.PackageNotFoundError:
        return "from a source tree"


def _answer(lines: Sequence[str]) -> int:
    """Writes results; a reader that went away, as in ``| head``, is no failure."""
    try:
        if sys.stdout is not None:
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter flushes again at exit
    return 0


def _stopped(stop: KeyboardInterrupt, arguments: list[str]) -> int:
    """Reports what was saved and how to continue."""
    epoch = getattr(stop, "epoch", None)
    if epoch is None:
        _say("stopped; the last checkpoint is kept, --resume continues from it")
    else:
        again = [*arguments, *(() if "--resume" in arguments else ("--resume",))]
        _say(f"stopped after epoch {epoch}, saved; continue with: graphweft {shlex.join(again)}")
    return 128 + int(getattr(stop, "signum", signal.SIGINT))


def _failed(failure: Exception, arguments: list[str]) -> int:
    """One line for any failure, and its exit status."""
    commands = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    who = " ".join(["graphweft", *[word for word in arguments[:1] if word in commands]])
    if os.environ.get("GRAPHWEFT_DEBUG"):
        raise failure
    if isinstance(failure, RankError):
        if str(failure):
            _say(str(failure), who)
        return failure.status
    if isinstance(failure, _USAGE):
        _say(failure.format_message().rstrip("."), who)  # type: ignore[attr-defined]
        return 2
    if isinstance(failure, GraphWeftError) and not isinstance(failure, _NOT_THE_USERS):
        _say(_as_flag(str(failure)), who)
        return 2
    if isinstance(failure, OSError) and failure.strerror:
        named = f"{os.fsdecode(failure.filename)}: " if isinstance(failure.filename, str | bytes) else ""
        _say(f"{named}{failure.strerror}", who)
        return 2 if named and isinstance(failure, _OF_A_PATH) else 1
    if isinstance(failure, MemoryError):
        _say(
            f"not enough memory{f' ({failure})' if str(failure) else ''}; try a smaller --hidden or fewer --layers", who
        )
        return 1
    _say(f"internal error, {type(failure).__name__}: {failure} (GRAPHWEFT_DEBUG=1 shows where)", who)
    return 1


def _as_flag(text: str) -> str:
    """``weight_decay: expected ...`` as the flag the user typed."""
    name, colon, rest = text.partition(":")
    return f"--{name.replace('_', '-')}{colon}{rest}" if name in KINDS else text


def _say(text: str, who: str = "graphweft") -> None:
    """One line on standard error, whatever the text holds."""
    if sys.stderr is not None:
        sys.stderr.write(f"{who}: {' '.join(text.split())}\n")
