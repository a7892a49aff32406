"""The command ``graphweft``: parses, calls one function per command, and turns every outcome into an exit status.

Comes in: arguments. Goes out: results on standard output, progress and one line for any failure on standard error.
Exit status 0; 2 for bad input or arguments; 1 for a failure that is not the user's; 130 after Ctrl-C. Commands live
in modules that are imported when their command is called, so that ``--help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft import _config
from graphweft._errors import ConfigError, GraphWeftError, IRError, RankError
from graphweft.commands import datasets, partitions, plans, programs, runs, stores, sweeps
from graphweft.commands.flags import EXPLAINED, OF_DATA, Action, as_typed, flags_of, takes
from graphweft.commands.flags import from_module as _from
from graphweft.commands.flags import given as _given
from graphweft.commands.flags import option as _option
from graphweft.commands.flags import switch as _switch
from graphweft.commands.flags import value as _value
from graphweft.commands.help import TRAIN_EXAMPLES, CommandList, GroupedCommand
from graphweft.data.part_check import is_parts, why_not
from graphweft.dist.launch import is_rank, launch, speaks
from graphweft.synth.spec import options_of_file, placing
from graphweft.train.durations import clock, duration
from graphweft.train.loop_options import METRICS
from graphweft.train.options import LAST, check_mode
from graphweft.train.rank_options import check_together
from graphweft.train.scores import ERRORS, PARTS, shown
from graphweft.train.spec import TrainSpec

_OF_A_PATH = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_NOT_THE_USERS = (RuntimeError, IRError)  # the errors of ours that are RuntimeErrors: core, passes, benchmark
_USAGE = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_NOTABLE_GUESS = 0.7  # above it an accuracy says little without that of a constant guess beside it

app = typer.Typer(
    cls=CommandList,
    epilog="graphweft COMMAND --help shows the options of a command.",
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
    """Train graph neural networks fast, on graphs of any size."""
    if version:
        sys.stdout.write(f"graphweft {_version()}\n")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
        raise typer.Exit(0)
    return None


Json = Annotated[bool, _switch("--json/--no-json", "Answer in JSON.")]


@app.command(cls=GroupedCommand, epilog=TRAIN_EXAMPLES)
@takes(flags_of(TrainSpec), first=True)
def train(
    context: typer.Context,
    spec: Annotated[str | None, _option("spec", "FILE", "Options as TOML; flags override them.", "")] = None,
    seeds: sweeps.Seeds = None,
    as_json: Json = False,
    quiet: Annotated[bool, _switch("--quiet/--no-quiet", "Show no progress.")] = False,
    **options: Any,
) -> Action:
    """Train a model on --data, or on tables of --nodes and --edges; without either, on a synthetic graph.

    With --ranks P, or started by torchrun, several processes train together. With --seeds N it trains N times, into
    the folders seed-0, seed-1 and so on of --out.

    Writes last.pt, best.pt, metrics.jsonl, summary.json and curves.png to --out. An existing run in --out is
    moved to the subfolder earlier-1. With --resume it continues; options that are not given are those of the run.
    """
    flags = _given({**options, "seeds": seeds})
    values = flags if spec is None else {**options_of_file(spec, TrainSpec), **flags}

    def run() -> Sequence[str]:
        with placing(spec, flags.keys()):
            return _train({**values, "progress": not quiet}, as_json, context.obj)

    return run


@app.command()
@takes(flags_of(TrainSpec, *EXPLAINED), first=True)
def explain(
    full: Annotated[bool, _switch("--full", "Show the programs before and after each pass.")] = False, **options: Any
) -> Action:
    """Show what a step of training runs, in any mode: a summary, then kernels, predicted time and memory."""
    values = _given(options)

    def told() -> Sequence[str]:
        spec = _from("graphweft.run", "complete")(values)
        return list(_from("graphweft.run", "explain_run")(spec, full).splitlines())

    return told


@app.command()
@takes(flags_of(TrainSpec, *OF_DATA, "hidden", "lr"), first=True)
def bench(
    layer: Annotated[
        str | None, typer.Argument(metavar="FILE.py:LAYER", help="A layer called as layer(x, edge_index).")
    ] = None,
    model: Annotated[str, _option("model", "NAME", "Model: gcn, sage, gin, gat or gatv2.", "gcn")] = "gcn",
    layers: Annotated[str, _option("layers", "N", "Number of layers.", "3")] = "3",
    rounds: Annotated[str, _option("rounds", "N", "Rounds of measurement.", "5")] = "5",
    epochs: Annotated[str, _option("epochs", "N", "Epochs per turn.", "10")] = "10",
    out: Annotated[str | None, _option("out", "FILE", "Append the rows to this CSV file.", "")] = None,
    **options: Any,
) -> Action:
    """Time a model, or a compiled layer of your own, against PyTorch Geometric, in turns of one run."""
    turns, length, file, timed = _value("rounds", rounds), _value("epochs", epochs), out, layer or model
    values = _given({**options, "layers": layers})

    def measure() -> Sequence[str]:
        _from("graphweft.run", "bench_run")(
            TrainSpec(**values), turns, length, None if file is None else Path(file), timed
        )
        return ()

    return measure


@app.command()
@takes(flags_of(TrainSpec, "threads", "ranks"))
def doctor(
    context: typer.Context,
    network: Annotated[bool, _switch("--network", "Measure latency and bandwidth between ranks.")] = False,
    calibrate: Annotated[
        bool, _switch("--calibrate", "Measure the costs that plans use; takes under a minute.")
    ] = False,
    out: Annotated[str | None, _option("out", "FILE", "calibrate: also write the profile here.", "")] = None,
    device: Annotated[
        str | None, _option("device", "NAME", "Check every kernel on a device, such as cuda.", "")
    ] = None,
    kernels: Annotated[bool, _switch("--compile", "Compile the kernels that are compiled at first use now.")] = False,
    as_json: Json = False,
    **options: Any,
) -> Action:
    """Show what this machine has and lacks. --network times exchanges between ranks, --device checks kernels.

    --calibrate measures kernels, small runs and the disk, and stores the profile for plans. With --device it measures
    which product of edges and rows is faster on the device.
    """
    given = _given(options)
    size, cores = given.get("ranks", 0), given.get("threads", 0)
    if out is not None and not calibrate:
        raise ConfigError("out: expected --calibrate with it, got none")
    if out is not None and device is not None:
        raise ConfigError(f"out={out!r} cannot be combined with device={device!r}")
    if size and not network:
        raise ConfigError(f"ranks: expected --network with it, got {size} without")

    if device == "":
        raise ConfigError("device: expected a name such as cuda, got ''")
    if kernels and (network or calibrate or device is not None):
        raise ConfigError("--compile cannot be combined with --network, --calibrate or --device")
    if network and (calibrate or device is not None):
        raise ConfigError("--network cannot be combined with --calibrate or --device")

    def look() -> Sequence[str]:
        if kernels:
            told: Sequence[str] = _from("graphweft.measure.doctor", "compile_kernels")(as_json)
            return told
        if network and size > 1 and not is_rank():
            return _launch(context.obj, size)
        if calibrate and device is not None:
            _from("graphweft.measure.device_check", "calibrate")(device, as_json)
            return ()
        if calibrate:
            measured: Sequence[str] = _from("graphweft.measure.doctor", "profile")(out and Path(out), cores, as_json)
            return measured
        if network:
            _from("graphweft.dist.network", "main")(as_json)
        elif device:
            _from("graphweft.measure.device_check", "main")(device, as_json)
        else:
            _from("graphweft.measure.doctor", "main")(json=as_json)
        return ()

    return look


runs.add_to(app)
programs.add_to(app)
datasets.add_to(app)
stores.add_to(app)
partitions.add_to(app)
sweeps.add_to(app)
plans.add_to(app)


def _train(given: dict[str, Any], as_json: bool, arguments: Sequence[str]) -> Sequence[str]:
    """By this process, or by as many as are asked for; once, or with several seeds."""
    seeds = given.pop("seeds", None)
    if seeds is not None:
        return sweeps.repeat(given, seeds, as_json)
    if given.get("ranks", 0) > 1 and not is_rank():
        spec = TrainSpec(**given)  # what can be refused is refused once
        if not spec.resume:  # whose other options are in the folder
            kinds = spec.task, check_mode(spec.mode)
            check_together(spec.ranks, spec.rank_reduce, spec.halo, *kinds, spec.loss, spec.class_weight)
        check = partial(why_not, spec.data, spec.ranks) if is_parts(spec.data) else None
        return _launch(arguments, spec.ranks, spec.max_restarts, spec.folder / LAST, check)
    complete, run = _from("graphweft.run", "complete"), _from("graphweft.run", "run")
    with _config.defaults(keep_heap=True):  # the process is the command's own
        summary = run(complete(given))
    if not speaks():
        return ()
    return (json.dumps(summary, allow_nan=False),) if as_json else _report(summary)


def _launch(arguments: Sequence[str], size: int, *more: Any) -> Sequence[str]:
    """The command as several ranks, of which the first answers; ``more`` as :func:`launch`."""
    status = launch(arguments, size, *more)
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
        f"{_model_of(summary)}: {summary['epochs']} epochs of {duration(summary['epoch_seconds_median'])} (median), "
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
        which = "" if _is_score(summary) else f"{metric} "
        lines.append(f"{_best(summary, best)} in epoch {summary['best_epoch']}: test {which}{test}{more}")
    guess = summary.get("constant_guess_acc")
    if guess is not None and guess > _NOTABLE_GUESS:
        row = "edge" if str(summary.get("task")).startswith("edge") else "node" if many is None else "graph"
        lines.append(
            f"for comparison: the most frequent training class, given to every {row}, scores {shown(guess, metric)}"
        )
    if (summary.get("test_r2_at_best_val") or 0.0) < 0.0:
        lines.append(_WORSE_THAN_MEAN)
    if summary.get("test_mrr") is not None:
        ranks = "   ".join(
            f"{part} mrr {summary[f'{part}_mrr']:.3f}, hits@10 {100 * summary[f'{part}_hits_at_10']:.1f} %"
            for part in ("val", "test")
        )
        lines.append(f"ranked among 100 other destinations: {ranks}")
    lines += summary.get("schedule", [])
    if summary.get("verdict"):
        lines.append(f"{summary['verdict']} ({summary['trace']})")
    lines.append(f"in {summary['out']}: best.pt last.pt metrics.jsonl summary.json curves.png")
    alone, with_graph = summary.get("features_alone_acc"), summary.get("test_acc_at_best_val")
    if alone is not None and with_graph is not None:
        lines.append(
            f"test accuracy: features alone {shown(alone, metric)}, with the graph {shown(with_graph, metric)}"
        )
    return lines


def _model_of(summary: dict[str, Any]) -> str:
    """What was trained: of the tasks that are models, node2vec has no layers of another."""
    return "node2vec" if summary.get("task") == "node2vec" else str(summary["model"])


_WORSE_THAN_MEAN = (
    "for comparison: the mean of the test values, given to every row, scores better (R2 below 0); more epochs, "
    "a larger --lr, or labels scaled to mean 0 and deviation 1 help"
)
_ALSO_SHOWN = ("rmse", "mae", "r2")  # of values, asked for or not
_SHOWN_AS = {"auc": "ROC AUC", "mae": "MAE", "r2": "RMSE"}  # per cent or a number


def _is_score(summary: dict[str, Any]) -> bool:
    """Whether the best epoch is that of the best score."""
    return summary.get("best_by", "accuracy") in ("accuracy", summary["metric"])


def _best(summary: dict[str, Any], score: str) -> str:
    """By which validation value the best epoch was chosen, and that value; for losses the score of that epoch."""
    if _is_score(summary):
        return f"at the best validation, {score}"
    by = summary["best_by"]
    value = summary.get(f"best_val_{by}")
    return f"at the best validation {by}, {score if value is None else format(value, '.4g')}"


def _named(summary: dict[str, Any]) -> list[str]:
    """Names of the metrics that were asked for."""
    shown_anyway: tuple[str, ...]
    shown_anyway = (summary["metric"], *_ALSO_SHOWN) if summary["metric"] in ERRORS else (summary["metric"],)
    shown_anyway += ("roc_auc",) if summary.get("train_auc") is not None else ()
    ranked = [name.removeprefix("best_val_") for name in summary if name.startswith("best_val_hits@")]
    known = (name for name in (*METRICS, *ranked) if name not in shown_anyway)
    return [name for name in known if f"best_val_{name}" in summary and f"test_{name}" in summary]


def _by_part(summary: dict[str, Any], column: str, metric: str) -> str:
    """The scores of all splits that have one."""
    found = ((part, summary.get(f"{part}_{column}")) for part in PARTS)
    return "   ".join(f"{part} {shown(value, metric)}" for part, value in found if value is not None)


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
    command = next((word for word in arguments[:1] if word in commands), None)
    who = f"graphweft {command}" if command else "graphweft"
    if os.environ.get("GRAPHWEFT_DEBUG"):
        raise failure
    if isinstance(failure, RankError):
        if str(failure):
            _say(as_typed(str(failure), _flags(command)), who)
        return failure.status
    if isinstance(failure, _USAGE):
        _say(failure.format_message().rstrip("."), who)  # type: ignore[attr-defined]
        return 2
    if isinstance(failure, GraphWeftError) and not isinstance(failure, _NOT_THE_USERS):
        _say(as_typed(str(failure), _flags(command)), who)
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


def _flags(command: str | None) -> dict[str, str]:
    """The flags of a command that take values or switch something on, by option; before a command those of all."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    chosen = [commands[command]] if command in commands else commands.values()
    return {one.name: one.opts[0] for each in chosen for one in each.params if one.param_type_name == "option"}


def _say(text: str, who: str = "graphweft") -> None:
    """One line on standard error, whatever the text holds."""
    if sys.stderr is not None:
        sys.stderr.write(f"{who}: {' '.join(text.split())}\n")
