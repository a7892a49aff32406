"""Executes a training run: names to dataset, model and trainer, and a summary at the end.

Comes in: a :class:`TrainSpec`. Goes out: a run folder and a summary of plain numbers and texts, ready for JSON.
Called by ``graphweft train`` and by programs that want the same in Python.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphweft._budget import Budget
from graphweft._errors import ConfigError, DataError, MemoryBudgetError, RankError
from graphweft._machine import usable_cores
from graphweft._native import LEVEL
from graphweft.data.dataset import Dataset
from graphweft.data.feature_kinds import STRUCTURAL
from graphweft.data.flat_features import with_flat_features
from graphweft.data.graph_dataset import GraphDataset
from graphweft.data.link_split import split_links
from graphweft.data.load import holds_graphs, load
from graphweft.data.stored import StoredDataset
from graphweft.data.stored_graph import StoredGraph
from graphweft.data.synthetic import synthetic
from graphweft.dist.preflight import ready as all_ready
from graphweft.dist.ranks import Ranks, local_size
from graphweft.explanation import explain
from graphweft.graph.graph import Graph
from graphweft.measure import bench
from graphweft.model_of_spec import make_model
from graphweft.storage.memory_size import memory_bytes
from graphweft.storage.store import Store, is_store
from graphweft.train.atomic import write_atomic
from graphweft.train.footprint import check_fits, peak_rss_mb
from graphweft.train.history import History
from graphweft.train.link_task import HITS_AT
from graphweft.train.loop_options import LoopOptions
from graphweft.train.macro import Macro
from graphweft.train.option_table import options_of
from graphweft.train.options import (
    EDGE_TASKS,
    EMBEDDING_TASKS,
    LABEL_TASKS,
    LABELS_OF,
    check_fanouts,
    check_integer,
    check_mode,
)
from graphweft.train.part_data import read_part_of
from graphweft.train.progress import working
from graphweft.train.ranked_run import check_shared
from graphweft.train.record import EpochRecord
from graphweft.train.run_folder import SUMMARY, check_folder, read_last
from graphweft.train.same_run import check_same_run, content_checksum
from graphweft.train.scores import PARTS
from graphweft.train.spec import DEFAULT_DATA, FOLDS, LOOPING, TYPED, TrainSpec
from graphweft.train.table_options import TableOptions
from graphweft.train.trainer import Trainer
from graphweft.train.usual_of_graphs import usual_of_graphs
from graphweft.train.whole_store import check_whole

_KEYWORDS = frozenset(inspect.signature(Trainer).parameters)


def run(spec: TrainSpec) -> dict[str, Any]:
    """Trains as ``spec`` says and returns the summary, which is also ``summary.json`` in the run folder.

    The number of threads holds for this call only. Scores are in ``*_acc`` as fractions (accuracy, or micro-F1 where
    nodes have several labels), for values in ``*_rmse``, ``*_mae`` and ``*_r2``, and for two classes also in ``*_auc``;
    None for a split without labels. They are those of the last epoch, but for ``best_val_*`` and
    ``test_*_at_best_val``; ``metric`` names the score.

    Raises: ConfigError, DataError or CheckpointError for whatever the caller can set right; KeyboardInterrupt.

    Example:
        >>> import tempfile
        >>> summary = run(TrainSpec(data="cora", scale=0.1, epochs=3, out=tempfile.mkdtemp()))
        >>> summary["dataset"], summary["epochs"], summary["mode"]
        ('synthetic:cora@0.1', 3, 'full')
    """
    start = time.perf_counter()
    ranks = _join(spec)
    with ranks.guarded(), run_settings(spec, local_size()), _limited(spec):
        trainer, sparsity = _started(spec, ranks)
        if spec.resume:
            trainer.resume()
        ranks.at("compiling")
        before = trainer.epoch
        trainer.prepare(max(0, spec.epochs - before))
        prepared = time.perf_counter()
        history = trainer.fit(max(0, spec.epochs - before))
        summary = _summary(spec, trainer, history)
        if _shows_features_alone(spec):
            summary["features_alone_acc"] = features_alone(spec)
        if ranks.is_shared:
            summary |= {"ranks": ranks.size, **trainer.exchanged()}
    summary["feature_sparsity"] = sparsity
    summary["resumed_after_epoch"] = before
    summary["prepare_seconds"] = prepared - start
    summary["total_seconds"] = time.perf_counter() - start
    if ranks.is_first:
        text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
        write_atomic(spec.folder / SUMMARY, lambda file: file.write(text.encode()))
    return summary


def _limited(spec: TrainSpec) -> AbstractContextManager[None]:
    """The memory budget of the whole run, reading included; links of a store and groups in memory keep to their own."""
    if spec.memory is None:
        return nullcontext()
    stored = is_store(str(spec.data))
    if (spec.mode == "macro" and not stored) or (
        stored and (spec.task != "nodes" or spec.mode not in ("macro", "mini", "auto"))
    ):
        return nullcontext()
    return Budget(memory_bytes(spec.memory)).enforced()


def features_alone(spec: TrainSpec) -> float | None:
    """Test accuracy, at the best validation, of the same recipe without edges: a GCN is a perceptron then.

    It trains for 100 epochs at most, which takes under a second. None where the run has left too little memory for it.
    """
    quiet = {"progress": False, "out": None, "trace": None}
    try:
        ds = load_dataset(spec)
        none = replace(ds, graph=Graph([], [], num_nodes=ds.num_nodes))
        best = make_trainer(spec, none, make_model(spec, none), **quiet).fit(min(spec.epochs, 100)).best
    except MemoryBudgetError:  # the run itself has ended well
        return None
    return None if best is None else best.test_acc


def _shows_features_alone(spec: TrainSpec) -> bool:
    """Only the graph that is made when nothing is said has features and edges that share the work by design."""
    made = spec.data == DEFAULT_DATA and not spec.has_tables and spec.scale is None
    return made and (spec.model, spec.mode, spec.task) == ("gcn", "full", "nodes")


def _join(spec: TrainSpec) -> Ranks:
    """This process among the ranks. Raises: RankError where there are others than the spec says."""
    ranks = Ranks.join(spec.rank_reduce, spec.halo)
    for rank, wanted in enumerate(ranks.texts(str(spec.ranks or ranks.size))):
        if wanted != str(ranks.size):
            where = f" on rank {rank}" if ranks.size > 1 else ""
            said = f"ranks: expected as many as were started, {ranks.size}, got {wanted}{where}"
            raise RankError(said if ranks.is_first else "", 2)
    return ranks


def _started(spec: TrainSpec, ranks: Ranks) -> tuple[Trainer, float]:
    """A trainer that is the only holder of its data, so that it may let go of features; and their sparsity.

    What ranks are given is compared before they make trainers, which talk to each other while they are made.
    """
    held = [all_ready(ranks, lambda: _read(spec, ranks), lambda made: _facts(spec, made[0]))]
    sparsity = held[0][0].feature_sparsity
    quiet = {} if ranks.is_first else {"progress": False}

    def make() -> Trainer:
        ds, model = held.pop()
        return make_trainer(spec, ds, model, keep_features=False, ranks=ranks, **quiet)

    return all_ready(ranks, make, lambda made: {}), sparsity


def _read(spec: TrainSpec, ranks: Ranks) -> tuple[Dataset, nn.Module]:
    """Data and model, once the folder was seen to be free for the run."""
    check_shared(ranks, spec.task, check_mode(spec.mode), None, None)
    ranks.at("reading data")
    if ranks.is_first:
        check_folder(spec.folder)
        if spec.resume:
            _check_resumable(spec)
    _check_read_whole(spec)
    ds = read_part_of(spec, ranks) or load_dataset(spec if ranks.is_first else replace(spec, progress=False))
    return ds, make_model(spec, ds)


def _check_read_whole(spec: TrainSpec) -> None:
    """A store that is read into memory has room there. Raises: MemoryBudgetError, DataError."""
    if spec.memory is not None and spec.mode == "full" and not spec.has_tables and is_store(str(spec.data)):
        stored = StoredDataset(Store(spec.data))
        stored.check_trainable()
        check_whole(make_model(spec, stored), stored, spec.memory)


def _facts(spec: TrainSpec, ds: Dataset) -> dict[str, Any]:
    """What every rank has to agree on."""
    options = {name: value for name, value in spec.identity().items() if name != "data"}
    later = ("epochs", "patience", "resume")
    return {
        **options,
        **{name: getattr(spec, name) for name in later},
        "data": f"{ds.name}, checksum {content_checksum(ds)}",
        "version": _version(),
    }


def explain_run(spec: TrainSpec, full: bool = False) -> str:
    """What training by ``spec`` runs, as :func:`gw.explain` tells it of its trainer; ``full``: with all programs.

    Raises: ConfigError or DataError for whatever the caller can set right.
    """
    if spec.task == "node2vec":
        raise ConfigError("task: node2vec has no layers to explain; use gae or dgi")
    with run_settings(spec), _limited(spec):
        if spec.task == "nodes" and holds_graphs(spec.data, spec.root):
            spec = replace(spec, task="graphs")
        ds = load_dataset(spec)
        quiet = {"out": None, "progress": False, "trace": None, "loggers": ()}
        return explain(make_trainer(spec, ds, make_model(spec, ds), **quiet), full=full)


def bench_run(spec: TrainSpec, rounds: int, epochs: int, out: Path | None, model: str = "gcn") -> None:
    """Times ``model`` with the sizes of ``spec`` against its peers and writes the table to standard output.

    Raises: ConfigError or DataError for whatever the caller can set right; BenchError when a peer computes another
    loss.
    """
    check_integer("rounds", rounds, 1, 10**6)
    check_integer("epochs", epochs, 2, 10**6)
    if out is not None:
        check_folder(out.parent)
    with run_settings(spec):
        ds = load_dataset(spec)
        check_fits(ds.num_nodes, ds.num_features, spec.hidden, ds.num_classes, spec.layers)
        bench.main(
            ds,
            hidden=spec.hidden,
            layers=spec.layers,
            lr=spec.lr,
            rounds=rounds,
            epochs=epochs,
            seed=spec.seed,
            out=out,
            model=model,
        )


def complete(given: dict[str, Any]) -> TrainSpec:
    """The spec of ``given`` options; with ``resume``, those not given are the ones of the run in the folder.

    Raises: ConfigError for a bad value, CheckpointError when the run there is damaged.
    """
    if given.get("task") in LABEL_TASKS and {"nodes", "edges"} & given.keys():
        given = {**{name: value for name, value in given.items() if name != "task"}, "label_task": given["task"]}
    if given.get("task") == "link":
        given = {"mode": "mini", **given}
    if given.get("edge_label") is not None:
        given = {"task": "edge", **given}
    if given.get("task") in ("edge", *EDGE_TASKS):
        given = {"model": "sage", "mode": "mini", **given}
    if given.get("sampler") == "graphs":
        given = {"batch_size": 1, **given}
    is_open = given.get("task", TrainSpec.task) == "nodes" and "macro" not in given  # which mode a store is trained in
    if given.get("mode") == "auto" and is_store(str(given.get("data", ""))) and not is_open:
        given = {**given, "mode": "macro"}
    spec = TrainSpec(**{**usual_of_graphs(given), **given})
    state = read_last(spec.folder) if spec.resume else None
    if state is None:
        if spec.resume and spec.out is not None and not {"data", "nodes", "edges"} & given.keys():
            raise ConfigError(f"resume: expected a run in {spec.out}, found none; a new run is started with --data")
        return spec
    saved = {**state.get("config", {}), **state.get("options", {})}
    texts = {field.name for kind in (TableOptions, LoopOptions) for field in fields(kind)}
    names = texts | {name for name, (_, said) in options_of(TrainSpec).items() if said.resume != "free"}
    if given.get("mode", saved.get("mode")) == "full":  # of graphs: it follows from the data
        names.discard("batch_size")
    return TrainSpec(**{**{name: saved[name] for name in names if name in saved}, **given})


def load_dataset(spec: TrainSpec) -> Dataset:
    """The dataset that ``spec`` names, ready for training.

    Raises: DataError or ConfigError when there is none such, or it lacks what training needs.
    """
    stored = stored_dataset(spec)
    if stored is not None:
        stored.check_trainable() if LABELS_OF[spec.task] == "nodes" else stored.check_features()
        return stored
    ds = read_dataset(spec)
    if isinstance(ds, GraphDataset) and spec.task not in EMBEDDING_TASKS:
        return _graphs(spec, ds)
    if spec.has_pairs != (ds.edge_label_index is not None) and spec.task not in EMBEDDING_TASKS:
        wanted, got, task = ("edges", "nodes", "nodes") if spec.has_pairs else ("nodes", "edges", "edge")
        raise DataError(
            f"{ds.name}: expected labels of {wanted} for task {spec.task}, got those of {got}; use task {task}"
        )
    ds = _with_features(spec, _fit_for_links(ds) if spec.task in EMBEDDING_TASKS and spec.model not in TYPED else ds)
    if spec.task != "node2vec":  # which reads no features
        ds.check_trainable() if LABELS_OF[spec.task] in ("nodes", "edges") else ds.check_features()
    return _for_model(spec, ds)


def _graphs(spec: TrainSpec, ds: GraphDataset) -> Dataset:
    """A set of graphs with features and the fold that ``spec`` asks for. Raises: DataError, ConfigError."""
    if not spec.has_graphs:
        raise DataError(f"{ds.name}: expected task graphs for a set of {len(ds)} graphs with one label each")
    if spec.features == "embedding":
        raise ConfigError("features=embedding cannot be combined with a set of graphs, whose nodes have no names")
    made = spec.features or ("degree_onehot" if ds.x is None else None)
    found = ds if made is None else ds.with_features(made, seed=spec.seed)
    assert isinstance(found, GraphDataset)  # as it was before
    found = found if spec.fold is None else found.folds(FOLDS, spec.seed)[spec.fold]
    found.check_trainable()
    return _for_model(spec, found)


def stored_dataset(spec: TrainSpec) -> StoredDataset | None:
    """The store that ``spec`` names, where its features stay on disk; None for anything else.

    Raises: DataError for a damaged store, ConfigError for options that change features, which are as they were stored.
    """
    from_disk = spec.mode in ("macro", "mapped", "auto") or (spec.mode == "mini" and spec.memory is not None)
    if not from_disk or spec.has_tables or spec.scale is not None or not is_store(spec.data):
        return None
    for name, usual in (("features", None), ("normalize", "none")):
        if getattr(spec, name) != usual:
            got = getattr(spec, name)
            raise ConfigError(
                f"{name}: expected {usual or 'none'} with a store, whose features are as stored, got {got}"
            )
    store = Store(spec.data)
    if (spec.model in TYPED) != (store.types is not None):
        wanted = (
            "one without types for a store without types" if store.types is None else "rgcn or hgt for a typed store"
        )
        raise ConfigError(f"model: expected {wanted}, got {spec.model}")
    in_parts = spec.mode in ("macro", "auto")
    return StoredDataset(store) if in_parts else StoredGraph(store, mapped=spec.mode == "mapped")


def read_dataset(spec: TrainSpec) -> Dataset:
    """The dataset that ``spec`` names, as it is: made, read by name or path, or from tables.

    Raises: DataError or ConfigError when there is none such.
    """
    made = not spec.has_tables and (spec.data == DEFAULT_DATA or spec.scale is not None)
    source = f"{spec.nodes or ''} {spec.edges}".strip() if spec.has_tables else spec.data
    with working(f"{'making' if made else 'reading'} {source}", spec.progress) as say:
        if made:
            return synthetic(spec.data, scale=1.0 if spec.scale is None else spec.scale, seed=spec.seed)
        if spec.has_tables:
            return Dataset.from_tables(**spec.table_arguments(), seed=spec.seed)
        return load(spec.data, root=spec.root, seed=spec.seed, progress=lambda *now: say(_fetching(*now)))


def ready(spec: TrainSpec, ds: Dataset) -> Dataset:
    """Another dataset as the model of ``spec`` reads it: with the same features and preparation; labels or not.

    Raises: DataError or ConfigError for one that the model cannot read.
    """
    return _for_model(spec, _with_features(spec, ds))


def _for_model(spec: TrainSpec, ds: Dataset) -> Dataset:
    if ds.graph.is_typed and spec.model in LOOPING:
        raise ConfigError(
            f"model: expected rgcn or hgt for a typed graph ({len(ds.graph.relations)} relations), got {spec.model}"
        )
    ds = ds.row_normalized() if spec.normalize == "row" else ds
    if spec.model != "rgcn" or ds.features or not ds.graph.is_typed:  # R-GCN alone does without any
        ds = with_flat_features(ds)
    return ds.with_inverse_relations() if spec.model in TYPED else ds


def _fit_for_links(ds: Dataset) -> Dataset:
    """``ds`` without types, which link prediction does not use; its own held-out edges are not known to the split."""
    left = [name for name, held in (("relations", ds.graph.is_typed), ("held-out edges", ds.held_out)) if held]
    if not left:
        return ds
    graph = Graph.from_adjacency(ds.graph.csc) if ds.graph.is_typed else ds.graph
    note = f"link prediction does not use the {' and '.join(left)} of the source; it holds out edges of its own"
    return replace(ds, graph=graph, held_out={}, target_type=None, notes=(*ds.notes, note))


def _with_features(spec: TrainSpec, ds: Dataset) -> Dataset:
    """``ds`` with the features that ``spec`` asks for; of links those of the training graph alone."""
    if spec.features is None:
        return ds
    held_out = spec.task in EMBEDDING_TASKS and spec.features in STRUCTURAL
    graph = split_links(ds.graph, seed=spec.seed).graph if held_out else None
    return ds.with_features(spec.features, graph=graph, seed=spec.seed)


def make_trainer(spec: TrainSpec, ds: Dataset, model: nn.Module, **changes: Any) -> Trainer:
    """The trainer of ``spec``, with other keywords where ``changes`` has some."""
    same = [name for name in options_of(TrainSpec) if name in _KEYWORDS and name not in ("model", "ranks")]
    # a run of mode "auto" is resumed as it was asked for
    asked = {name: getattr(spec, name) for name in ("mode", "fanouts", "batch_size") if spec.mode == "auto"}
    stored = asked if isinstance(ds, StoredDataset) else {}
    options: dict[str, Any] = {
        **{name: getattr(spec, name) for name in same},
        **spec.loop_arguments(),
        "out": spec.folder,
        "fanouts": check_fanouts(spec.fanouts),
        "macro": None if spec.macro is None else Macro(spec.macro, quality=spec.quality),
        "config": spec.identity(),
        "remember": {**spec.remembered(), **_started_in(spec), **stored},
    }
    trainer = Trainer(model, ds, **{**options, **changes})
    if asked and trainer.mode != "full":
        trainer._remember |= asked
    return trainer


def _started_in(spec: TrainSpec) -> dict[str, str]:
    """The folder from which the spec names files, where it does."""
    named = (Path(name) for name in (spec.data, spec.nodes, spec.edges, spec.root) if name is not None)
    return {"started_in": str(Path.cwd())} if any(not p.is_absolute() and p.exists() for p in named) else {}


def _check_resumable(spec: TrainSpec) -> None:
    """Finds out before anything is loaded that the folder holds another run."""
    state = read_last(spec.folder)
    if state is not None:
        check_same_run(str(spec.folder), state.get("config", {}), spec.identity())


@contextmanager
def run_settings(spec: TrainSpec, processes: int = 1) -> Iterator[None]:
    """Threads and precision of float32 products of a run for the block, of so many ``processes`` on this machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, (spec.threads or usable_cores()) // processes))
    try:
        with nullcontext() if spec.matmul_precision == "highest" else _multiplying(spec.matmul_precision):
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _multiplying(precision: str) -> Iterator[None]:
    """Products of float32 by ``torch.set_float32_matmul_precision(precision)`` for the block."""
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(former)


def _summary(spec: TrainSpec, trainer: Trainer, history: History) -> dict[str, Any]:
    """What a reader of one line wants to know; everything is finite or None."""
    ds, last, best = trainer.ds, history.last, history.best
    steps = [record.epoch_seconds for record in history]
    evaluations = [record.eval_seconds for record in history if record.eval_seconds]
    summary: dict[str, Any] = {
        "dataset": ds.name,
        "model": spec.model,
        "mode": trainer.mode,
        **({"num_graphs": len(ds)} if isinstance(ds, GraphDataset) else {}),
        "num_nodes": ds.num_nodes,
        "num_edges": ds.num_edges,
        "num_features": ds.num_features,
        "num_classes": ds.num_classes,
        "notes": list(ds.notes),
        "num_parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "layers": spec.layers,
        "hidden": spec.hidden,
        "epochs": trainer.epoch,
        "stopped_early": trainer.stopped_early,
        "first_epoch_seconds": steps[0] if steps else None,
        "epoch_seconds_median": statistics.median(steps[1:] or steps) if steps else None,
        "eval_seconds_median": statistics.median(evaluations) if evaluations else None,
        "peak_rss_mb": round(peak_rss_mb(), 1),
        **trainer.promise.facts(),
        "feature_path": trainer.feature_path,
        "metric": trainer.metric,
        "loss": last.loss if last else None,
        "train_acc": last.train_acc if last else None,
        "val_acc": last.val_acc if last else None,
        "test_acc": last.test_acc if last else None,
        "best_by": history.best_by,
        "best_epoch": best.epoch if best else None,
        "best_val_acc": best.val_acc if best else None,
        "test_acc_at_best_val": best.test_acc if best else None,
        **_further_scores(last, best),
        **_named_metrics(last, best),
        "constant_guess_acc": history.constant_guess,
        "seed": spec.seed,
        "threads": torch.get_num_threads(),
        "cpu_level": LEVEL,
        "version": _version(),
        "out": str(spec.folder),
    }
    if trainer.node_order:
        summary["node_order"] = trainer.node_order
    if trainer.scheduled:
        summary["schedule"] = trainer.scheduled.splitlines()
    if spec.cuda_graphs == "on" or trainer.replays.get("launches"):
        summary["cuda_graphs"] = trainer.replays
    if trainer.verdict is not None:
        summary |= {"trace": spec.trace, "verdict": trainer.verdict.text, "waiting": trainer.verdict.waiting}
    if spec.task == "link":
        summary |= {"task": "link", **_link_scores(last)}
    elif trainer.task != "nodes":
        summary["task"] = trainer.task
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in summary.items()}


def _further_scores(last: EpochRecord | None, best: EpochRecord | None) -> dict[str, float | None]:
    """Scores that only some labels have: after the last epoch, and in the best."""
    found: dict[str, float | None] = {}
    for name in ("auc", "rmse", "mae", "r2"):
        if not any(getattr(last, f"{part}_{name}", None) is not None for part in PARTS):
            continue
        found |= {f"{part}_{name}": getattr(last, f"{part}_{name}") for part in PARTS}
        found[f"best_val_{name}"] = getattr(best, f"val_{name}", None)
        found[f"test_{name}_at_best_val"] = getattr(best, f"test_{name}", None)
    return found


def _named_metrics(last: EpochRecord | None, best: EpochRecord | None) -> dict[str, float | None]:
    """What was asked for beside the score: after the last epoch, and in the best."""
    found = {} if last is None else dict(last.metrics)
    if best is not None:
        found |= {f"{name}_at_best_val": value for name, value in best.metrics.items() if name.startswith("test_")}
        found |= {f"best_{name}": value for name, value in best.metrics.items() if name.startswith("val_")}
    return found


def _link_scores(last: EpochRecord | None) -> dict[str, float | None]:
    """Scores of link prediction after the last epoch."""
    names = {"auc": "acc", "ap": "ap", "mrr": "mrr", f"hits_at_{HITS_AT}": "hits"}
    return {
        f"{part}_{name}": getattr(last, f"{part}_{column}", None)
        for part in ("val", "test")
        for name, column in names.items()
    }


def _fetching(name: str, done: int, total: int | None) -> str:
    """How far a download is."""
    return f"fetching {name}, {done / 1e6:.1f}{'' if total is None else f' of {total / 1e6:.1f}'} MB"


def _version() -> str | None:
    """Of the installed package; None in a source tree."""
    try:
        return importlib.metadata.version("graphweft")
    except importlib.metadata.PackageNotFoundError:
        return None
