"""What a training run is: every option of ``graphweft train``, checked.

Comes in: keyword arguments. Goes out: a frozen :class:`TrainSpec`. Used by :mod:`graphweft.run` and
:mod:`graphweft.cli`; imports no torch, so that ``graphweft --help`` is quick.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from graphweft._errors import ConfigError
from graphweft.data.feature_kinds import FEATURE_KINDS
from graphweft.train.loop_options import LoopOptions
from graphweft.train.options import (
    DECAY_ON,
    EDGE_DATA,
    EDGE_TASKS,
    GRAPH_TASKS,
    HALO,
    MINI_USUAL,
    OPTIMIZERS,
    PREPARE,
    RANK_REDUCE,
    SAMPLERS,
    STOP_ON,
    UNSUPERVISED,
    check_choice,
    check_fanouts,
    check_integer,
    check_macro_of,
    check_mini_only,
    check_mode,
    check_number,
    check_quality,
    check_task,
)
from graphweft.train.table_options import TableOptions

MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "cgat", "ngcf", "rgcn", "hgt")
ATTENTIVE = ("gat", "gatv2", "cgat")
TYPED = ("rgcn", "hgt")
LOOPING = ("gcn", *ATTENTIVE)  # they add self-loops, which graphs with types have no relation for
NORMALIZE = ("none", "row")
NORMS = ("none", "batch", "layer")
REDUCES = ("auto", "sum", "mean", "max")
READOUTS = ("sum", "mean", "max", "mean+max", "sum+max")
OF_GRAPHS = ("gin", "gcn", "sage", "gat", "gatv2")
FOLDS = 10
ACTIVATIONS = ("auto", "relu", "elu", "leaky_relu")
DEFAULT_DATA = "default"

# Options that may differ when a run is resumed: they do not change the numbers of an epoch. The first are remembered.
_REMEMBERED = ("root", "epochs", "patience", "logger", "memory")
_TABLES = tuple(field.name for field in fields(TableOptions))
_LOOP = tuple(field.name for field in fields(LoopOptions))
_FREE = (*_REMEMBERED, "threads", "out", "resume", "progress", "trace", "prepare", "ranks", "max_restarts", "device")


@dataclass(frozen=True)
class TrainSpec(LoopOptions, TableOptions):
    """One training run; ``nodes`` and ``edges`` with what belongs to them take the place of ``data``.

    Options of the loop are those of :class:`LoopOptions`.

    Attributes:
        data: A known name, or a path to a file or folder; "default" is a synthetic graph made on the spot.
        root: Folder where named datasets are kept; None is the configured one.
        scale: Make a synthetic twin of the named dataset with so much of its nodes instead of loading it.
        features: Features made of the graph in the place of the source's: "degree", "onehot", "random", "laplacian" or
            "embedding" (a learned row of width ``hidden`` per node); None: those of the source.
        task: "nodes" predicts labels of nodes; "graphs" those of graphs, "edge" those of edges, with
            "graph_classification", "graph_regression", "edge_classification" and "edge_regression" as names where the
            labels are to be of that kind; "link" learns embeddings of width ``hidden`` that tell edges from pairs
            without one, in mode "mini"; "gae", "vgae", "dgi" and "node2vec" embeddings without labels.
        model: "gcn", "sage", "gin", "gat", "gatv2", "cgat" or "ngcf"; on typed graphs, with inverse relations added,
            "rgcn" (without features as published: a learned row per relation and node) or "hgt".
        heads: Heads of the hidden layers of models with attention; they divide ``hidden``.
        out_heads: Heads of their last layer, which are averaged.
        attention_dropout: Probability of dropping an attention weight; None: as ``dropout``.
        value_dropout: For gat and cgat: probability of dropping an element of the rows that attention sums.
        activation: "relu", "elu" or "leaky_relu" between layers; "auto" is the model's own.
        bases: For rgcn: matrices are combinations of so many; 0: a matrix of its own for each relation.
        layers: Number of layers.
        hidden: Width of the hidden layers.
        epochs: Epochs in all, those before a resume included.
        lr: Learning rate.
        optimizer: "adam", "adamw" or "sgd".
        dropout: Probability of dropping an input of a layer, for every layer.
        weight_decay: Strength of the L2 penalty.
        weight_decay_on: "all" parameters, or those of the "first" layer only, as in the GCN paper.
        normalize: "row" divides the features of a node by their sum, "none" leaves them.
        norm: "batch" or "layer" normalisation between layers, or "none".
        reduce: "sum", "mean" or "max" over neighbours; "auto" is the model's own.
        residual: Add a layer's input to its output where the widths agree.
        mode: "full", "mini", "macro" (on groups of parts, mostly of a store) or "auto".
        fanouts: For "mini": in-edges that a node draws, from the seeds outwards, as "15,10,5", of every relation for
            rgcn and hgt; None: the trainer's.
        batch_size: For "mini": training nodes of a step, or draws of a GraphSAINT sampler.
        macro: For "mini": macro-batches, as "large:1/8" or "parts:16/128"; None: batches come from the whole graph.
        memory: What the run may take, as "8GB"; on a store what its data may: for "macro" groups of parts, for "mini"
            structure, labels and rows of features, which are on disk then. None: without a limit; for "macro" a quarter
            of the machine's memory, and for "mini" the store is read into memory.
        quality: With macro: relative error of sampled gradients to keep to; infinite: measured, nothing changed; None:
            not measured.
        accumulate: For "mini": batches whose gradients make one update.
        device: For "full": where to train, such as "cuda"; None: the CPU.
        sampler: For "mini": how batches are drawn, a name of ``options.SAMPLERS``.
        seed: Of the parameters, dropout, a random split and a synthetic graph.
        threads: 0 uses every physical core at hand.
        out: Folder of the run; None is ``runs/<data>``.
        resume: Go on with the run in ``out``; starts one when there is none.
        patience: Stop when validation has not become better for so many epochs; 0 never does.
        stop_on: What that means: "accuracy" (for values the RMSE), "loss", or "both", where either counts; also which
            epoch is the best.
        eval_every: Evaluate after every so many epochs.
        progress: Show progress on standard error.
        trace: File for a Chrome trace of the run.
        edge_data: "use" trains with the edge weights and features of the data that the model can read, "ignore" with
            neither.
        prepare: For "mini": batches are made "whole" by one thread each, or in "subtasks" by several.
        readout: For graphs as samples: "sum", "mean", "max", or two of them as "mean+max", over the nodes of a graph.
        fold: For graphs as samples: which of 10 stratified folds, from 0, is the test set; the next one is for
            validation. None: the split of the source, or 60/20/20 at random.
        ranks: Processes that train together; 0: as many as torchrun started, else this one alone.
        rank_reduce: How their gradients are summed: in "any" order, or "ordered", with the same bits for any number of
            ranks.
        halo: How they send each other rows of nodes in full batches: "exact", or as "bf16" or "int8", in fewer bytes.
        max_restarts: How often lost ranks of ``ranks`` are started again, from the last checkpoint.

    Raises: ConfigError for a value out of range.

    Example:
        >>> TrainSpec(epochs=-3)
        Traceback (most recent call last):
        graphweft._errors.ConfigError: epochs: expected an integer from 1 to 1000000000, got -3
    """

    data: str = DEFAULT_DATA
    root: str | None = None
    scale: float | None = None
    features: str | None = None
    task: str = "nodes"
    model: str = "gcn"
    heads: int = 8
    out_heads: int = 1
    attention_dropout: float | None = None
    value_dropout: float = 0.0
    activation: str = "auto"
    bases: int = 0
    layers: int = 2
    hidden: int = 32
    epochs: int = 200
    lr: float = 0.01
    optimizer: str = "adam"
    dropout: float = 0.0
    weight_decay: float = 0.0
    weight_decay_on: str = "all"
    normalize: str = "none"
    norm: str = "none"
    reduce: str = "auto"
    residual: bool = False
    mode: str = "full"
    fanouts: str | None = None
    batch_size: int = 1024
    macro: str | None = None
    memory: str | None = None
    quality: float | None = None
    accumulate: int = 1
    device: str | None = None
    sampler: str = "neighbor"
    seed: int = 0
    threads: int = 0
    out: str | None = None
    resume: bool = False
    patience: int = 0
    stop_on: str = "accuracy"
    eval_every: int = 1
    progress: bool = False
    trace: str | None = None
    prepare: str = "whole"
    edge_data: str = "use"
    readout: str = "sum"
    fold: int | None = None
    ranks: int = 0
    rank_reduce: str = "any"
    halo: str = "exact"
    max_restarts: int = 0

    def __post_init__(self) -> None:
        for name in ("data", "root", "out", "trace", "nodes", "edges"):
            _check_text(name, getattr(self, name))
        if self.data is None:
            raise ConfigError("data: expected a name or a path, got None")
        if self.scale is not None:
            check_number("scale", self.scale, above=0.0, most=1000.0)
        for name, choices in (
            ("model", MODELS),
            ("optimizer", OPTIMIZERS),
            ("weight_decay_on", DECAY_ON),
            ("normalize", NORMALIZE),
            ("norm", NORMS),
            ("reduce", REDUCES),
            ("activation", ACTIVATIONS),
            ("stop_on", STOP_ON),
            ("sampler", SAMPLERS),
            ("prepare", PREPARE),
            ("edge_data", EDGE_DATA),
        ):
            check_choice(name, getattr(self, name), choices)
        given = {"data": self.data != DEFAULT_DATA, "scale": self.scale is not None, "root": self.root is not None}
        self.check_tables(given)
        self._check_features()
        self._check_task()
        mode, fanouts = check_mode(self.mode), check_fanouts(self.fanouts)
        if self.sampler.startswith("saint") and fanouts is not None:
            raise ConfigError(f"fanouts: expected none for sampler {self.sampler}, got {self.fanouts}")
        per_layer = mode != "full" and self.sampler in ("neighbor", "layer")
        if per_layer and fanouts is not None and len(fanouts) != self.layers:
            raise ConfigError(f"fanouts: expected {self.layers} numbers, one per layer, got {self.fanouts}")
        for name, least, most in (
            ("heads", 1, 10**6),
            ("out_heads", 1, 10**6),
            ("bases", 0, 10**6),
            ("layers", 1, 1000),
            ("hidden", 1, 10**9),
            ("epochs", 1, 10**9),
            ("seed", 0, 2**63 - 1),
            ("threads", 0, 4096),
            ("patience", 0, 10**9),
            ("eval_every", 1, 10**9),
            ("batch_size", 1, 2**31 - 1),
            ("accumulate", 1, 10**9),
        ):
            check_integer(name, getattr(self, name), least, most)
        self._check_macro_and_ranks()
        self.check_loop(self.task, self.stop_on)
        if self.model in (*ATTENTIVE, "hgt") and self.hidden % self.heads:
            raise ConfigError(f"hidden: expected a width that {self.heads} heads divide, got {self.hidden}")
        if self.model in TYPED and mode != "full":
            self._check_typed()
        check_number("lr", self.lr, above=0.0)
        check_number("dropout", self.dropout, least=0.0, below=1.0)
        check_number("value_dropout", self.value_dropout, least=0.0, below=1.0)
        if self.attention_dropout is not None:
            check_number("attention_dropout", self.attention_dropout, least=0.0, below=1.0)
        if self.value_dropout and self.model not in ("gat", "cgat"):
            raise ConfigError(f"value_dropout: expected 0 with model {self.model}, got {self.value_dropout}")
        check_number("weight_decay", self.weight_decay, least=0.0)

    def _check_features(self) -> None:
        if self.features is not None:
            check_choice("features", self.features, tuple(FEATURE_KINDS))
        if self.features == "embedding" and self.model in TYPED:
            raise ConfigError(
                f"features: embedding cannot be combined with model {self.model}, which learns rows of nodes without it"
            )

    def _check_task(self) -> None:
        """The task fits the mode, and what belongs to sets of graphs is given with them."""
        check_task(self.task, self.mode)
        if self.task == "unsupervised":
            raise ConfigError(f"task: expected one of {', '.join(UNSUPERVISED[1:])}, got unsupervised, which is any")
        check_choice("readout", self.readout, READOUTS)
        if self.is_unsupervised:
            check_choice("model", self.model, OF_GRAPHS)
            if self.features == "embedding":
                raise ConfigError(f"features: embedding cannot be combined with task {self.task}; onehot is alike")
            if self.mode in ("full", "auto"):
                object.__setattr__(self, "mode", "mini")
        if self.fold is not None:
            check_integer("fold", self.fold, 0, FOLDS - 1)
        if self.has_graphs:
            check_choice("model", self.model, OF_GRAPHS)
            if self.mode in ("full", "auto"):  # batches of whole graphs
                object.__setattr__(self, "mode", "mini")
            return
        if self.has_pairs:
            check_choice("model", self.model, OF_GRAPHS)
            if self.features == "embedding":
                raise ConfigError(f"features: embedding cannot be combined with task {self.task}; degree makes some")
            if self.mode == "auto":  # batches of pairs
                object.__setattr__(self, "mode", "mini")
        if self.readout != "sum" or self.fold is not None:
            name, value = ("fold", self.fold) if self.fold is not None else ("readout", self.readout)
            raise ConfigError(f"{name}={value} cannot be combined with task {self.task}, which has no set of graphs")

    @property
    def has_graphs(self) -> bool:
        """Whether samples are graphs."""
        return self.task == "graphs" or self.task in GRAPH_TASKS

    @property
    def is_unsupervised(self) -> bool:
        """Whether embeddings are learned without labels."""
        return self.task in UNSUPERVISED

    @property
    def has_pairs(self) -> bool:
        """Whether samples are pairs of nodes with labels."""
        return self.task == "edge" or self.task in EDGE_TASKS

    def _check_macro_and_ranks(self) -> None:
        check_mini_only(self.mode, {name: getattr(self, name) for name in MINI_USUAL})
        check_integer("ranks", self.ranks, 0, 4096)
        check_choice("rank_reduce", self.rank_reduce, RANK_REDUCE)
        check_choice("halo", self.halo, HALO)
        check_integer("max_restarts", self.max_restarts, 0, 10**6)
        if self.max_restarts and self.ranks < 2:
            raise ConfigError(
                f"max_restarts={self.max_restarts} cannot be combined with ranks={self.ranks}; it is for --ranks P "
                "(torchrun has --max-restarts of its own)"
            )
        if self.device is not None and (not isinstance(self.device, str) or not self.device.strip()):
            raise ConfigError(f"device: expected the name of a device, such as cuda, got {self.device!r}")
        if self.macro is not None:
            check_macro_of(self.mode, self.macro)
        if self.quality is None:
            return
        check_quality(self.quality)
        if self.macro is None:
            raise ConfigError("quality: expected macro as well, got none")

    def _check_typed(self) -> None:
        """Mini-batches of a typed graph are drawn relation by relation, from the whole graph, around labelled nodes."""
        if self.mode == "macro":
            raise ConfigError(f"mode: expected full or mini for {self.model}, a model of types, got 'macro'")
        usual = {"task": "nodes", "sampler": "neighbor", "macro": None}
        for name, wanted in usual.items():
            if getattr(self, name) != wanted:
                raise ConfigError(f"{name}: expected {wanted} for {self.model}, got {getattr(self, name)}")

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        if self.out is not None:
            return Path(self.out)
        named = self.data if not self.has_tables else Path(self.nodes or self.edges or "").name.split(".")[0]
        name = re.sub(r"[^\w.-]+", "-", Path(named).name.removesuffix(".npz")).strip("-.")
        return Path("runs") / (name or "run")

    def remembered(self) -> dict[str, Any]:
        """Options that a resumed run takes up where it is given no others, though it may be."""
        return {name: getattr(self, name) for name in _REMEMBERED}

    def identity(self) -> dict[str, Any]:
        """The options that decide the numbers: what must agree when a run is resumed."""
        values = {name: value for name, value in asdict(self).items() if name not in _FREE}
        values = {name: value for name, value in values.items() if name not in (*_TABLES, *_LOOP)}
        values |= self.table_identity() | self.loop_identity()
        mode = check_mode(self.mode)
        usual = {"macro": None, "quality": None, "accumulate": 1, "sampler": "neighbor"}
        later = [name for name, value in usual.items() if mode == "full" or values[name] == value]
        for name in later if mode != "full" else ["fanouts", "batch_size", *later]:
            del values[name]
        if self.task == "nodes":
            del values["task"]
        if self.edge_data == "use":
            del values["edge_data"]
        if self.rank_reduce == "any":
            del values["rank_reduce"]
        if self.halo == "exact":
            del values["halo"]
        if self.features is None:
            del values["features"]
        if self.fold is None:
            del values["fold"]
        if self.readout == "sum":
            del values["readout"]
        return {**values, "mode": mode}


def _check_text(name: str, value: Any) -> None:
    """None, or a string that can name a file.

    Raises: ConfigError.
    """
    if value is None:
        return
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{name}: expected a text, not empty and without null bytes, got {value!r}")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: expected a text that can name a file, got {value!r}") from None
