"""Our path against PyTorch Geometric on one dataset, paired in one run.

Comes in: a dataset, a model and its sizes. Goes out: one :class:`Row` per system, a table, CSV rows with the machine's
stamp. Called by ``graphweft bench``; the stamp and the CSV writer serve the scripts of ``benchmarks/`` too.

All systems start from the same weights, and nothing is timed before their first losses agree. Then they take turns,
round after round, so that a change of the machine's mood hits all alike; the first epoch of a turn is not counted.
"""

from __future__ import annotations

import csv
import datetime
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path

import psutil
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from graphweft._errors import ConfigError, GraphWeftError
from graphweft._native import LEVEL
from graphweft.data.dataset import Dataset
from graphweft.interop.pyg_model import adapted, edge_index_of
from graphweft.measure.bench_models import BUILT_IN, built_in, check_model, from_file
from graphweft.nn.gcn import GCN
from graphweft.storage.feature import SparseFeatures, is_dense
from graphweft.train.full_batch import FullBatch
from graphweft.train.optimizer import make_optimizer
from graphweft.train.settle import settle_features

REFCHECK_EPOCHS = 3
REFCHECK_TOLERANCE = 1e-3
DENSE_LIMIT = 4 << 30  # bytes; larger features are given to a peer in sparse form
OURS = "graphweft"
_PEER = "torch_geometric"


class BenchError(GraphWeftError, RuntimeError):
    """A peer computed something else, so that its time says nothing."""


@dataclass
class Row:
    """What one system did.

    Attributes:
        system: Its name.
        features: "dense" or "sparse": how it took the input features.
        prepare_seconds: From the dataset to a model that is ready to train.
        seconds: Every counted epoch: forward, backward and update.
        memory_bytes: Peak resident memory through preparation and first epochs, above what was held before.
    """

    system: str
    features: str
    prepare_seconds: float
    memory_bytes: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """Median epoch in milliseconds."""
        return 1e3 * statistics.median(self.seconds)


Epoch = Callable[[], float]
Builders = dict[str, Callable[[], tuple[Epoch, str]]]  # by system: its epoch, and how it takes the features


def compare(
    ds: Dataset,
    *,
    hidden: int = 32,
    layers: int = 3,
    lr: float = 0.01,
    rounds: int = 5,
    epochs: int = 10,
    seed: int = 0,
    model: str = "gcn",
) -> list[Row]:
    """Times a model with ``layers`` layers on ``ds``, ours first, then PyTorch Geometric's forms if it is installed.

    Args:
        ds: The data.
        hidden: Width between layers.
        layers: How many.
        lr: Rate of Adam.
        rounds: Turns of every system.
        epochs: Counted epochs of a turn.
        seed: Of the first weights.
        model: "gcn", "sage", "gin", "gat", "gatv2", or a layer called as ``layer(x, edge_index)``, as
            "my_layer.py:Layer": it is compiled on our side.

    Raises: BenchError when the losses of the first epochs differ by more than one in a thousand; ConfigError for a
    model that is unknown or does not serve.
    """
    torch.manual_seed(seed)
    builders = _gcns(ds, hidden, layers, lr) if check_model(model) == "gcn" else _pair(ds, model, hidden, layers, lr)
    return _measured(builders, rounds, epochs)


def _gcns(ds: Dataset, hidden: int, layers: int, lr: float) -> Builders:
    """A GCN, normalised once on every side."""
    model = GCN(ds.num_features, hidden, ds.num_classes, num_layers=layers)
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    weights = list(zip(parameters[::2], parameters[1::2], strict=True))  # (in, out) and (out,) of every layer
    builders: Builders = {OURS: lambda: own_epoch(ds, model, lr)}
    if util.find_spec(_PEER) is not None:
        builders["pyg edge_index"] = lambda: _pyg(ds, weights, lr, on_csr=False)
        builders["pyg CSR"] = lambda: _pyg(ds, weights, lr, on_csr=True)
    return builders


def _pair(ds: Dataset, model: str, hidden: int, layers: int, lr: float) -> Builders:
    """Another model beside PyTorch Geometric's, or a layer compiled and as it is written."""
    sizes = (_features(ds).shape[1], hidden, ds.num_classes, layers)
    if model in BUILT_IN and util.find_spec(_PEER) is None:
        raise ConfigError(
            f"model={model}: expected torch_geometric to compare with; pip install torch_geometric==2.8.1"
        )
    mine, theirs = built_in(model, sizes) if model in BUILT_IN else from_file(model, sizes)
    peer = "pyg edge_index" if model in BUILT_IN else "as written"
    return {OURS: lambda: own_epoch(ds, adapted(mine), lr), peer: lambda: _peer_epoch(ds, theirs, lr)}


def _peer_epoch(ds: Dataset, model: nn.Module, lr: float) -> tuple[Epoch, str]:
    """A plain loop over ``model(x, edge_index)``."""
    x, features = _peer_features(ds, keep_sparse=False)
    index = edge_index_of(ds.graph)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    return _loop(ds, optimizer, lambda: model(x, index)), features


def _measured(builders: Builders, rounds: int, epochs: int) -> list[Row]:
    """Every system made, compared and timed."""
    rows: dict[str, Row] = {}
    runs: dict[str, Epoch] = {}
    losses: dict[str, list[float]] = {}
    for system, build in builders.items():
        before, began = _reset_peak(), time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)  # torch on its own sparse tensors
            runs[system], features = build()
        prepared = time.perf_counter() - began
        losses[system] = [runs[system]() for _ in range(REFCHECK_EPOCHS)]
        rows[system] = Row(system, features, prepared, max(0, _status("VmHWM") - before))
    refcheck(losses, OURS)
    _interleave(runs, rows, rounds, epochs)
    return list(rows.values())


def own_epoch(ds: Dataset, model: nn.Module, lr: float, keep_features: bool = True) -> tuple[Epoch, str]:
    """One epoch as the trainer runs it, with Adam; and the path that the features take, "dense" or "sparse".

    Everything that the trainer settles before its first epoch is settled here. ``keep_features`` as for the trainer.
    """
    x = settle_features(_features(ds))
    batch = FullBatch(model, ds, x, make_optimizer(model, "adam", lr, 0.0, "all"), keep_features)
    batch.prepare()
    return lambda: float(batch.step()), "dense" if is_dense(x) else "sparse"


def refcheck(losses: Mapping[str, Sequence[float]], reference: str, tolerance: float = REFCHECK_TOLERANCE) -> None:
    """Every system's losses equal those of ``reference``, relative to them.

    Raises: BenchError naming the system, the epoch and both losses.

    Example:
        >>> refcheck({"a": [1.0, 0.5], "b": [1.0, 0.6]}, "a")
        Traceback (most recent call last):
        graphweft.measure.bench.BenchError: b: expected loss 0.5 in epoch 1, as a has, got 0.6
    """
    for system, got in losses.items():
        for epoch, (loss, wanted) in enumerate(zip(got, losses[reference], strict=True)):
            if not abs(loss - wanted) <= tolerance * max(abs(wanted), 1e-12):
                raise BenchError(
                    f"{system}: expected loss {wanted:.6g} in epoch {epoch}, as {reference} has, got {loss:.6g}"
                )


def main(
    ds: Dataset,
    *,
    hidden: int = 32,
    layers: int = 3,
    lr: float = 0.01,
    rounds: int = 5,
    epochs: int = 10,
    seed: int = 0,
    out: Path | None = None,
    model: str = "gcn",
) -> list[dict[str, object]]:
    """Runs :func:`compare`, prints a table, appends the rows to ``out`` and returns them."""
    rows = compare(ds, hidden=hidden, layers=layers, lr=lr, rounds=rounds, epochs=epochs, seed=seed, model=model)
    called = model.upper() if model in BUILT_IN else model
    ours = rows[0].median_ms
    table = Table(
        "system", "features", "epoch ms", "times ours", "memory MiB", "prepare s",
        title=f"{ds.name}: {ds.num_nodes:,} nodes, {ds.num_edges:,} edges, {called} {layers} x {hidden}",
    )  # fmt: skip
    stamp = machine_stamp()
    records: list[dict[str, object]] = []
    for row in rows:
        memory = row.memory_bytes / 2**20
        times = row.median_ms / ours
        table.add_row(
            row.system, row.features, f"{row.median_ms:.2f}", f"{times:.2f}", f"{memory:.0f}",
            f"{row.prepare_seconds:.2f}",
        )  # fmt: skip
        records.append(
            {
                "dataset": ds.name, "num_nodes": ds.num_nodes, "num_edges": ds.num_edges,
                "num_features": ds.num_features, "model": model, "hidden": hidden, "layers": layers,
                "system": row.system, "features": row.features,
                "epoch_ms_median": round(row.median_ms, 4), "epochs": len(row.seconds),
                "times_ours": round(times, 3), "memory_mib": round(memory, 1),
                "prepare_seconds": round(row.prepare_seconds, 4), **stamp,
            }
        )  # fmt: skip
    console = Console()
    console.print(table)
    if len(rows) == 1:
        console.print("PyTorch Geometric is not installed: pip install torch_geometric==2.8.1 to compare with it.")
    if out is not None:
        write_csv(out, records)
    return records


def machine_stamp() -> dict[str, str]:
    """What a number means nothing without: time, processor, threads, memory, versions, load.

    Example:
        >>> machine_stamp()["level"] in ("portable", "avx2", "avx512")
        True
    """
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
        "cores": str(os.cpu_count()),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.1f}",
        "level": LEVEL,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "graphweft": metadata.version("graphweft") if util.find_spec("graphweft") and _installed() else "source tree",
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Appends ``rows`` to ``path``; a file with other columns is left alone and a numbered one beside it is used."""
    if not rows:
        return
    columns = list(rows[0])
    header = ",".join(columns)
    number = 1
    target = path
    while target.exists() and target.read_text(encoding="utf-8").split("\n", 1)[0].strip() != header:
        number += 1
        target = path.with_stem(f"{path.stem}-{number}")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = not target.exists()
    with target.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def _installed() -> bool:
    try:
        metadata.version("graphweft")
    except metadata.PackageNotFoundError:
        return False
    return True


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), sys.platform)


def _status(key: str) -> int:
    """Bytes of one entry of /proc/self/status; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":")), 0)


def _reset_peak() -> int:
    """Starts the process's peak anew; bytes resident now."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:  # a sandbox may forbid it; the peak is then that of the whole process
        return _status("VmHWM")
    return _status("VmRSS")


def _interleave(runs: Mapping[str, Epoch], rows: Mapping[str, Row], rounds: int, epochs: int) -> None:
    """Turns of ``epochs`` counted epochs, systems in an order that rotates."""
    names = list(runs)
    for turn in range(rounds):
        first = turn % len(names)
        for system in (*names[first:], *names[:first]):
            runs[system]()
            for _ in range(epochs):
                began = time.perf_counter()
                runs[system]()
                rows[system].seconds.append(time.perf_counter() - began)


def _pyg(ds: Dataset, weights: list[tuple[Tensor, Tensor]], lr: float, *, on_csr: bool) -> tuple[Epoch, str]:
    """GCNConv, normalised once; on the edge list as its examples have it, or on a CSR tensor."""
    from torch_geometric.nn import GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    source, destination = ds.graph.edges()
    index, values = gcn_norm(torch.stack([source, destination]).long(), num_nodes=ds.num_nodes)
    adjacency = index
    if on_csr:
        shape = (ds.num_nodes, ds.num_nodes)
        adjacency = torch.sparse_coo_tensor(index.flip(0), values, shape, check_invariants=False).coalesce()
        adjacency, values = adjacency.to_sparse_csr(), None
    x, features = _peer_features(ds, keep_sparse=on_csr)
    convs = torch.nn.ModuleList()
    for weight, bias in weights:
        conv = GCNConv(*weight.shape, normalize=False)
        conv.lin.weight = torch.nn.Parameter(weight.t().contiguous())
        conv.bias = torch.nn.Parameter(bias.clone())
        convs.append(conv)
    optimizer = torch.optim.Adam(convs.parameters(), lr=lr, fused=True)

    def forward() -> Tensor:
        h = x
        for place, conv in enumerate(convs):
            h = conv(h, adjacency, values)
            if place + 1 < len(convs):
                h = h.relu()
        return h

    return _loop(ds, optimizer, forward), features


def _loop(ds: Dataset, optimizer: torch.optim.Optimizer, forward: Callable[[], Tensor]) -> Epoch:
    """One step of a plain loop; its loss."""
    rows = ds.train_idx if ds.y.dim() > 1 else ds.train_idx[ds.y[ds.train_idx] >= 0]
    targets = ds.y[rows]
    loss_of = functional.binary_cross_entropy_with_logits if ds.y.dim() > 1 else functional.cross_entropy

    def epoch() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(forward()[rows], targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return epoch


def _features(ds: Dataset) -> Tensor | SparseFeatures:
    if ds.x is None:
        raise BenchError(f"{ds.name}: expected node features, got none")
    return ds.x


def _peer_features(ds: Dataset, *, keep_sparse: bool) -> tuple[Tensor, str]:
    """Dense rows as users have them; a CSR tensor where the dataset is sparse and asked so, or too large when dense."""
    x = _features(ds)
    if not isinstance(x, SparseFeatures):
        return x, "dense"
    if not keep_sparse and 4 * x.num_rows * x.width <= DENSE_LIMIT:
        return x.to_dense(), "dense"
    indices = x.indices.long()
    return torch.sparse_csr_tensor(x.indptr, indices, x.values, x.shape, check_invariants=False), "sparse"
