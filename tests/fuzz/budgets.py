"""Runs in memory under random budgets: models, modes and sizes. A script; ``test_budgets.py`` runs a few.

    python -m fuzz.budgets --count 100 --seed 0        # in tests/, with the tree on PYTHONPATH

A case draws a graph, a model, a mode and a share. A forked child trains two epochs, or until every way of preparing
batches was tried, and predicts with plenty of memory, and its peak is compared with what was predicted: anonymous
memory above what it had before its data. A second one gets that share of the prediction. It keeps
to it, or is refused before training with the least that would do; then a third one gets exactly that, and has to train
within it, and a fourth one gets clearly less, and has to be refused. Lines say what went wrong, the last ones sum up.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from fuzz.stores import anonymous, forked
from nn.models import UserGAT, UserGCN
from torch import Tensor, nn

import graphweft as gw
from graphweft._memory import POOL
from graphweft.frontend.symbolic_sizes import Sizes
from graphweft.train.needs import data_bytes
from graphweft.train.trainer import Trainer  # its modules are no part of a run

Sizes()  # nor are those of torch that recording a user's function imports

MODES = ("full", "mini", "auto")
GRAPHS = {"arxiv": 0.3, "products": 0.03, "flickr": 0.3, "pubmed": 1.0, "reddit": 0.02}
MODELS = ("GCN", "SAGE", "GIN", "GAT", "CGAT", "NGCF", "APPNP", "GCNII", "Transformer", "UserGCN", "UserGAT")
_PLENTY = 64 << 30
_EVERY = 0.001  # seconds between two looks
_EPOCHS, _TRIED = 2, 26  # at least, and batches until every way of preparing them was tried: some hold more than others
_LESS, _BESIDE = 0.8, 2 << 20  # of the least that was named, and bytes: what another run may take less
_SHARES = (0.5, 0.7, 0.9, 1.0, 1.05, 1.2, 2.0)  # of what the run is predicted to need where memory is plenty


class Written(nn.Module):
    """A user's layers and plain torch around them."""

    def __init__(self, layer: Callable[[int, int], nn.Module], features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = layer(features, hidden), layer(hidden, classes)

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        return self.second(graph, torch.relu(self.first(graph, x)))


def model_of(case: dict[str, Any], ds: gw.Dataset) -> nn.Module:
    """The case's model, new."""
    torch.manual_seed(0)
    sizes = (ds.num_features, case["hidden"], ds.num_classes)
    if case["model"] in ("UserGCN", "UserGAT"):
        return Written(UserGCN if case["model"] == "UserGCN" else UserGAT, *sizes)
    made: nn.Module = getattr(gw.nn, case["model"])(*sizes, num_layers=case["layers"], dropout=case["dropout"])
    return made


def random_case(draw: random.Random) -> dict[str, Any]:
    """What a run is made of; ``share`` of its predicted need is its budget."""
    graph, model = draw.choice(sorted(GRAPHS)), draw.choice(MODELS)
    own = model in ("APPNP", "GCNII")
    mode = "full" if own else draw.choice(MODES)
    return {
        "graph": graph,
        "scale": round(GRAPHS[graph] * draw.uniform(0.2, 1.0), 4),
        "seed": draw.randrange(1000),
        "model": model,
        "layers": draw.choice([2, 2, 3]),
        "hidden": draw.choice([16, 32, 64, 128]),
        "dropout": draw.choice([0.0, 0.5]),
        "mode": mode,
        "batch_size": draw.choice([256, 1024]),
        "fanout": draw.choice([4, 10]),
        "share": draw.choice(_SHARES),
    }


def options_of(case: dict[str, Any]) -> dict[str, Any]:
    """The trainer's."""
    layers = 2 if case["model"].startswith("User") else case["layers"]
    drawn = {"batch_size": case["batch_size"], "fanouts": (case["fanout"],) * layers}
    return {"mode": case["mode"], **({} if case["mode"] == "full" else drawn)}


def data_of(case: dict[str, Any]) -> gw.Dataset:
    """The case's graph; what making it took is given back."""
    ds = gw.synthetic(case["graph"], scale=case["scale"], seed=case["seed"])
    POOL.trim()
    return ds


def run(case: dict[str, Any], memory: int) -> dict[str, Any]:
    """Trains within a budget: what was predicted, and the peak; or the least that is asked for."""
    ds = data_of(case)
    floor, peak, ended = anonymous() - data_bytes(ds), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(_EVERY):
            peak = max(peak, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    told: dict[str, Any] = {}
    trainer = None
    try:
        trainer = Trainer(model_of(case, ds), ds, memory=memory, **options_of(case))
        told |= {"predicted": trainer.needs.total if trainer.needs else 0, "mode": trainer.mode}
        trainer.fit(max(_EPOCHS, trainer._batch.epochs_until(_TRIED)))
        trainer.predict()
    except gw.errors.MemoryBudgetError as refused:
        told |= {"least": refused.least, "late": trainer is not None, "words": str(refused)}
    finally:
        ended.set()
        thread.join()
    return {**told, "peak": peak - floor}


def tried(case: dict[str, Any], memory: int) -> dict[str, Any]:
    """:func:`run` in a forked child; this process computes nothing. Raises: SystemExit where the child failed."""
    status, told = forked(lambda: run(case, memory))
    if status:
        raise SystemExit(f"{case} with {memory:,} bytes: status {status}, {told}")
    return {**told, "memory": memory}


def one_case(case: dict[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """What went wrong, and the rows of the runs, the one with plenty of memory first."""
    found = [tried(case, _PLENTY)]
    found.append(tried(case, int(case["share"] * found[0]["predicted"])))
    if "least" in found[1] and not found[1]["late"]:
        least = found[1]["least"]
        found += [tried(case, least), tried(case, int(_LESS * least) - _BESIDE)]
    wrong = []
    for number, row in enumerate(found):
        if row["peak"] > row["memory"] and number < 3:
            wrong.append(f"took {row['peak']:,} of {row['memory']:,} bytes")
        if row.get("late"):
            wrong.append(f"refused while it trained: {row['words']}")
        if number == 2 and "least" in row:
            wrong.append(f"the least that was named is refused: {row['words']}")
        if number == 3 and "least" not in row:
            wrong.append(f"trains within {row['memory']:,} of the {found[1]['least']:,} bytes that were the least")
    return wrong, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="cases that were run before")
    options = parser.parse_args()
    draw, bad, refused = random.Random(options.seed), 0, 0
    off: dict[str, list[float]] = defaultdict(list)
    cases = [random_case(draw) for _ in range(options.first + options.count)][options.first :]
    for number, case in enumerate(cases, options.first):
        begun = time.monotonic()
        wrong, rows = one_case(case)
        bad += bool(wrong)
        refused += len(rows) > 2
        off[rows[0]["mode"]].append(rows[0]["predicted"] / rows[0]["peak"])
        told = ", ".join(
            f"{row['peak'] / 1e6:.0f} of {row.get('predicted', row.get('least')) / 1e6:.0f} predicted"
            + ("" if row["memory"] == _PLENTY else f" with {row['memory'] / 1e6:.0f}")
            for row in rows
        )
        print(f"{number} {case['model']} {rows[0]['mode']}: {told} MB, {time.monotonic() - begun:.0f} s", flush=True)
        if wrong:
            print(f"  WRONG {'; '.join(wrong)}: {json.dumps(case)}", flush=True)
    for mode, ratios in sorted(off.items()):
        near = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}"
        print(f"{mode}: predicted over measured {spread}; {near} of {len(ratios)} within 10 %")
    print(f"{len(cases)} cases, {refused} refused, {bad} wrong")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
