"""What a training run is: every option of ``graphweft train``, checked.

Comes in: keyword arguments. Goes out: a frozen :class:`TrainSpec`. Used by :mod:`graphweft.run` and
:mod:`graphweft.cli`; imports no torch, so that ``graphweft --help`` is quick.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from graphweft._config import PRECISIONS
from graphweft._errors import ConfigError
from graphweft.data.feature_kinds import FEATURE_KINDS
from graphweft.dist.launch import SLICES
from graphweft.schedule.places import SCHEDULES
from graphweft.train.loop_options import LoopOptions
from graphweft.train.option_table import (
    check_drawn,
    check_options,
    identity_of,
    kept_by_resume,
    option,
    usually_drawn,
)
from graphweft.train.options import (
    CUDA_GRAPHS,
    DECAY_ON,
    EDGE_DATA,
    EDGE_TASKS,
    GRAPH_TASKS,
    HALO,
    MODES,
    NODE_ORDERS,
    OPTIMIZERS,
    PREPARE,
    RANK_REDUCE,
    SAMPLERS,
    STOP_ON,
    TASKS,
    UNSUPERVISED,
    USUAL_BATCH,
    USUAL_RATE,
    check_choice,
    check_fanouts,
    check_macro_of,
    check_macro_text,
    check_mode,
    check_quality,
    check_readout,
    check_stop_on,
    check_task,
)
from graphweft.train.table_options import TableOptions

PROPAGATING = ("appnp", "gcnii")  # whole graphs, with layers of their own kind
MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "cgat", "transformer", *PROPAGATING, "ngcf", "rgcn", "hgt")
ATTENTIVE = ("gat", "gatv2", "cgat", "transformer")
TYPED = ("rgcn", "hgt")
LOOPING = ("gcn", "gat", "gatv2", "cgat", *PROPAGATING)  # they add self-loops, which types have no relation for
OF_SOME_MODELS: dict[str, tuple[str, ...]] = {  # options that other models have no use for
    "heads": (*ATTENTIVE, "hgt"),
    "out_heads": ATTENTIVE,
    "attention_dropout": ATTENTIVE,
    "value_dropout": ("gat", "cgat"),
    "bases": ("rgcn",),
    "hops": ("appnp",),
    "alpha": PROPAGATING,
    "train_eps": ("gin",),
}
ATTENTION_REDUCES = {
    "cgat": ("auto", "sum", "mean"),
    **dict.fromkeys(("gat", "gatv2", "transformer", "hgt"), ("auto", "sum")),
}
OF_ENCODERS = ("model", "layers", "dropout", "norm", "reduce", "residual", "activation")  # node2vec has no layers
NORMALIZE = ("none", "row")
NORMS = ("none", "batch", "layer")
REDUCES = ("auto", "sum", "mean", "max")
OF_GRAPHS = ("gin", "gcn", "sage", "gat", "gatv2", "transformer")
FOLDS = 10
ACTIVATIONS = ("auto", "relu", "elu", "leaky_relu")
DEFAULT_DATA = "default"
share = partial(option, least=0.0, below=1.0)


@dataclass(frozen=True)
class TrainSpec(LoopOptions, TableOptions):
    """One training run; ``nodes`` and ``edges`` with what belongs to them take the place of ``data``.

    Each field is one line: its default, flag and help, what is allowed, and whether a resumed run has to agree on it;
    :class:`gw.Trainer` and :func:`gw.load` say more of what they mean.

    Raises: ConfigError for a value out of range.

    Example:
        >>> TrainSpec(epochs=-3)
        Traceback (most recent call last):
        graphweft._errors.ConfigError: epochs: expected an integer from 1 to 1000000000, got -3
    """

    # fmt: off
    data: str = option(DEFAULT_DATA, "NAME", "Known name, file or folder.", "a synthetic graph")
    root: str | None = option(None, "DIR", "Folder of named datasets.", "data", resume="kept")
    scale: float | None = option(None, "X", "Make a synthetic twin of --data, X times its size.", "", above=0.0,
        most=1000.0)
    features: str | None = option(None, "", "Compute node features from the graph.", "those of the data",
        choices=tuple(FEATURE_KINDS), resume="given")
    task: str = option("nodes", "|".join(TASKS),
        "Predict labels of nodes, graphs or edges, or links; gae, vgae, dgi, node2vec: embeddings without labels.",
        "that of the labels", check=partial(check_task, mode="mini"), resume="given")
    model: str = option("gcn", "", "Model.", choices=MODELS)
    heads: int = option(8, "N", "Heads of hidden layers with attention.", least=1, most=10**6)
    out_heads: int = option(1, "N", "Heads of the last layer with attention, averaged.", least=1, most=10**6)
    attention_dropout: float | None = share(None, "P", "Dropout on attention weights.", "as --dropout")
    value_dropout: float = share(0.0, "P", "gat, cgat: dropout on the values in sums of attention.")
    activation: str = option("auto", "", "Activation between layers; auto: the model's default.", choices=ACTIVATIONS)
    bases: int = option(0, "N", "rgcn: matrices shared by the relations; 0: one per relation.", least=0, most=10**6)
    hops: int = option(10, "N", "appnp: number of propagation steps.", least=1, most=1000, resume="given")
    alpha: float = option(0.1, "X", "appnp, gcnii: share of a node's own rows in every hop or layer.", least=0.0,
        most=1.0, resume="given")
    train_eps: bool = option(False, "--train-eps/--no-train-eps", "gin: learn the weight of a node's own row.",
        resume="given")
    layers: int = option(2, "N", "Number of layers.", least=1, most=1000)
    hidden: int = option(32, "N", "Width of the hidden layers.", least=1, most=10**9)
    epochs: int = option(200, "N", "Total epochs, including those before --resume.", least=1, most=10**9, resume="kept")
    lr: float = option(USUAL_RATE, "X", "Learning rate.", above=0.0)
    optimizer: str = option("adam", "", "Update rule.", choices=OPTIMIZERS)
    dropout: float = share(0.0, "P", "Dropout on the input of every layer.")
    weight_decay: float = option(0.0, "X", "L2 penalty.", least=0.0)
    weight_decay_on: str = option("all", "", "Layers with weight decay: all, or only the first, as in the GCN paper.",
        choices=DECAY_ON)
    normalize: str = option("none", "", "row: scale the features of every node to sum 1.", choices=NORMALIZE)
    norm: str = option("none", "", "Normalisation between layers.", choices=NORMS)
    reduce: str = option("auto", "", "How neighbours are combined; auto: the model's default.", choices=REDUCES)
    residual: bool = option(False, "--residual/--no-residual", "Add a layer's input to its output.")
    readout: str = option("sum", "HOW", "graphs: how the nodes of a graph are combined; sum, mean or max, or some of "
        "them joined by +.", check=check_readout, resume="given")
    fold: int | None = option(None, "K", "graphs: the test set is fold K of 10, from 0.", "the split of the source",
        least=0, most=FOLDS - 1, resume="given")
    mode: str = option("full", "", "full: all nodes in every step; mini: sampled neighbourhoods; macro: part by part; "
        "mapped: as mini, with features of a store in a memory map.", choices=MODES)
    fanouts: str | None = option(None, "K,K,...", "mini: in-edges sampled per node, one number per layer.", "15,10,5",
        check=check_fanouts, drawn=True)
    batch_size: int = option(USUAL_BATCH, "N", "mini: training nodes, or graphs, per step.", least=1, most=2**31 - 1,
        drawn=True)
    sampler: str = option("neighbor", "", "mini: sampler of the batches.", choices=SAMPLERS, resume="given",
        drawn=True)
    precision: str = option("float32", "", "bf16: sums and products read bfloat16; int8: batches read 8-bit features.",
        choices=PRECISIONS, resume="given")
    matmul_precision: str = option("highest", "", "high: wide float32 products from bfloat16 parts, as accurate and "
        "faster on processors with matrix tiles.", choices=("highest", "high"), resume="given")
    order: str = option("auto", "", "full: put neighbours near each other; auto: if it saves time.",
        choices=NODE_ORDERS, resume="free")
    seed: int = option(0, "N", "Seed of parameters, dropout, random splits and graphs.", least=0, most=2**63 - 1)
    threads: int = option(0, "N", "Number of threads.", "all physical cores", least=0, most=4096, resume="free")
    patience: int = option(0, "N", "Stop after N epochs without a better validation score.", "never", least=0,
        resume="kept")
    stop_on: str = option("accuracy", "", "Validation score that decides on the best epoch.", choices=STOP_ON,
        check=check_stop_on)
    eval_every: int = option(1, "N", "Evaluate after every N epochs.", least=1)
    out: str | None = option(None, "DIR", "Folder of the run.", "runs/<data>", resume="free")
    resume: bool = option(False, "--resume/--no-resume", "Continue the run in --out.", resume="free")
    progress: bool = option(False, "", "Show progress.", resume="free")
    edge_data: str = option("use", "", "Use or ignore edge weights and features.", choices=EDGE_DATA, resume="given")
    prepare: str = option("whole", "", "mini: prepare a batch with one thread, or with several.", choices=PREPARE,
        resume="free", drawn=True)
    cuda_graphs: str = option("auto", "", "Replay recorded steps; auto: on a device.",
        choices=CUDA_GRAPHS, resume="free")
    schedule: str = option("auto", "", "mini, with a device: where batches are prepared.", choices=SCHEDULES,
        resume="free", drawn=True)
    trace: str | None = option(None, "FILE", "Write a Chrome trace and report what limits the speed.", "",
        resume="free")
    macro: str | None = option(None, "large:A/B|parts:A/B[+hubs:SIZE][+neighbours:SHARE][+first:whole][+reuse:N]"
        "[+keep:K]",
        "mini, macro: A/B of the seeds, or A of B parts, with hubs or as many neighbours as SHARE of their nodes, the "
        "first layer on all edges, each group used N times, K parts kept between epochs.", "",
        check=check_macro_text, resume="given", drawn=True)
    memory: str | None = option(None, "SIZE", "Memory budget of the run, such as 8GB.", "", resume="kept")
    quality: float | None = option(None, "X", "macro: largest relative error of sampled gradients.", "",
        check=check_quality, resume="given")
    accumulate: int = option(1, "N", "mini: batches per update.", least=1, resume="given", drawn=True)
    device: str | None = option(None, "NAME", "Device to train on, such as cuda; mini: also emulated.", "cpu",
        resume="free")
    ranks: int = option(0, "P", "Processes that train together.", "those of torchrun, or 1", least=0, most=4096,
        resume="free")
    rank_reduce: str = option("any", "", "ordered: same results for any number of ranks.", choices=RANK_REDUCE,
        resume="given")
    halo: str = option("exact", "", "full, with ranks: how rows are exchanged; bf16, int8, sampled send less.",
        choices=HALO, resume="given")
    max_restarts: int = option(0, "N", "Restarts of lost ranks, from the last checkpoint.", least=0, most=10**6,
        resume="free")
    # fmt: on

    def __post_init__(self) -> None:
        if self.data is None:
            raise ConfigError("data: expected a name or a path, got None")
        check_options(self)
        given = {"data": self.data != DEFAULT_DATA, "scale": self.scale is not None, "root": self.root is not None}
        self.check_tables(given)
        self._check_features()
        self._check_task()
        mode, fanouts = check_mode(self.mode), check_fanouts(self.fanouts)
        if self.sampler.startswith("saint") and fanouts is not None:
            raise ConfigError(f"fanouts={self.fanouts} cannot be combined with sampler={self.sampler}")
        per_layer = mode != "full" and self.sampler in ("neighbor", "layer")
        if per_layer and fanouts is not None and len(fanouts) != self.layers:
            raise ConfigError(f"fanouts: expected {self.layers} numbers, one per layer, got {self.fanouts}")
        self._check_macro_and_ranks()
        self.check_loop(self.task, self.stop_on)
        if self.model in PROPAGATING:
            self._check_propagating(mode)
        if self.model in (*ATTENTIVE, "hgt") and self.hidden % self.heads:
            raise ConfigError(f"hidden: expected a width that {self.heads} heads divide, got {self.hidden}")
        if self.model in TYPED and mode != "full":
            self._check_typed()
        self._check_used()

    def _check_used(self) -> None:
        """No option is given that the model would ignore. Raises: ConfigError."""
        usual = {field.name: field.default for field in fields(self)}
        for name, models in OF_SOME_MODELS.items():
            if getattr(self, name) != usual[name] and self.model not in models:
                value, known = getattr(self, name), ", ".join(models)
                raise ConfigError(f"{name}={value} cannot be combined with model={self.model}; it is for {known}")
        reduces = ATTENTION_REDUCES.get(self.model, REDUCES)
        if self.reduce not in reduces:
            known = " or ".join(reduces[1:])
            raise ConfigError(f"reduce={self.reduce} cannot be combined with model={self.model}; use reduce={known}")
        for name in OF_ENCODERS if self.task == "node2vec" else ():
            if getattr(self, name) != usual[name]:
                value = getattr(self, name)
                raise ConfigError(f"{name}={value} cannot be combined with task=node2vec, which has no layers")

    def _check_features(self) -> None:
        if self.features == "embedding" and self.model in TYPED:
            raise ConfigError(
                f"features=embedding cannot be combined with model={self.model}, which learns rows of nodes without it"
            )

    def _check_task(self) -> None:
        """The task fits the mode, and what belongs to sets of graphs is given with them."""
        check_task(self.task, self.mode)
        if self.task == "unsupervised":
            raise ConfigError(f"task: expected one of {', '.join(UNSUPERVISED[1:])}, got unsupervised")
        if self.is_unsupervised:
            check_choice("model", self.model, OF_GRAPHS)
            if self.features == "embedding":
                raise ConfigError(f"features=embedding cannot be combined with task={self.task}; use features=onehot")
            if self.mode in ("full", "auto"):
                object.__setattr__(self, "mode", "mini")
        if self.has_graphs:
            check_choice("model", self.model, OF_GRAPHS)
            if self.mode == "auto":  # batches of whole graphs
                object.__setattr__(self, "mode", "mini")
            return
        if self.has_pairs:
            check_choice("model", self.model, OF_GRAPHS)
            if self.features == "embedding":
                raise ConfigError(f"features=embedding cannot be combined with task={self.task}; use features=degree")
            if self.mode == "auto":  # batches of pairs
                object.__setattr__(self, "mode", "mini")
        if self.readout != "sum" or self.fold is not None:
            name, value = ("fold", self.fold) if self.fold is not None else ("readout", self.readout)
            raise ConfigError(f"{name}={value} cannot be combined with task={self.task}, which has no set of graphs")

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
        check_drawn(self, self.mode, vars(self))
        if self.max_restarts and self.ranks < 2:
            got = f"ranks={self.ranks}" if self.ranks else "none"
            raise ConfigError(
                f"max_restarts: expected ranks=2 or more with it, got {got} (torchrun has --max-restarts of its own)"
            )
        if self.rank_reduce == "ordered" and self.ranks > SLICES:
            raise ConfigError(f"rank_reduce=ordered cannot be combined with more than {SLICES} ranks, got {self.ranks}")
        if self.macro is not None:
            check_macro_of(self.mode, self.macro)
        if self.quality is not None and self.macro is None:
            raise ConfigError("quality: expected macro with it, got none")

    def _check_propagating(self, mode: str) -> None:
        """These models are compiled as a whole, over all nodes. Raises: ConfigError."""
        if mode != "full":
            raise ConfigError(f"mode={mode} cannot be combined with model={self.model}; use mode=full")
        for name, usual in {"norm": "none", "reduce": "auto", "activation": "auto", "residual": False}.items():
            if getattr(self, name) != usual:
                raise ConfigError(f"{name}={getattr(self, name)} cannot be combined with model={self.model}")

    def _check_typed(self) -> None:
        """Mini-batches of a typed graph are drawn relation by relation, from the whole graph, around labelled nodes."""
        usual = {"task": "nodes", "sampler": "neighbor"} | ({} if self.mode == "macro" else {"macro": None})
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
        return kept_by_resume(self)

    def identity(self) -> dict[str, Any]:
        """The options that decide the numbers: what must agree when a run is resumed."""
        mode = check_mode(self.mode)
        return {**identity_of(self, mode), "mode": mode}


USUALLY_DRAWN = usually_drawn(TrainSpec)
