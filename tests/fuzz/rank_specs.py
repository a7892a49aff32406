"""Random runs over ranks against the same run of one process. A script; ``test_ranks.py`` runs a few.

    python tests/fuzz/rank_specs.py --count 100 --seed 0

A case draws a graph, a model and options, and 2, 3 or 4 ranks. Forked children run ``graphweft train``: one process
alone, then the ranks. In mode full the losses of all epochs agree to 1e-5; in mode mini with ``--rank-reduce ordered``
losses, scores and parameters have the same bits; without it losses agree to 1e-5, and with SGD parameters do. Where
they do not, one process runs again, a few times, from parameters that differ in their last bit: a case that moves as
far by that is "amplified", not wrong. A case that the ranks refuse ends on all of them with status 2 within ten
seconds, and rank 0 says why in one line. Lines say what went wrong, the last ones sum up.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from dist.rank_cases import typed_dataset
from dist.rank_processes import rank_environment
from fraud import fraud_tables

import graphweft.run  # noqa: F401  # once, for all children
from graphweft.cli import main as command
from graphweft.dist.board import Board
from graphweft.partitioning import multilevel
from graphweft.train.spec import TYPED
from graphweft.train.trainer import Trainer

_REFUSED = 10.0  # seconds until all ranks of a refused run have ended
_LONGEST = 60.0  # of any run
_WITHIN = 1e-5
_TRIALS, _LAST_BIT = 6, 2.0**-23  # runs of one process from other last bits
_MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "cgat", "transformer", "ngcf", "appnp", "gcnii")
_GRAPHS = (["--data", "cora", "--scale", "0.15"], ["--data", "arxiv", "--scale", "0.003"])
_GRAPHS += (["--data", "pubmed", "--scale", "0.03"], ["--data", "flickr", "--scale", "0.005"])
_TABLES = (["--label", "fraud"], ["--label", "age"], ["--label", "fraud,verified", "--label-task", "multilabel"])
_OF_LABELS = {  # losses and metrics that go with them
    "classes": ([["--label-smoothing", "0.1"]], [["--metrics", "f1_macro"]]),
    "fraud": ([["--label-smoothing", "0.1"]], [["--metrics", "roc_auc,average_precision"], ["--metrics", "f1_macro"]]),
    "age": ([["--loss", "huber"], ["--loss", "l1"]], [["--metrics", "mae,r2"]]),
    "fraud,verified": ([["--loss", "binary_cross_entropy"]], [["--metrics", "f1_micro"]]),
    "links": ([[]], [["--metrics", "hits@10"]]),
}


def random_case(draw: random.Random) -> dict[str, Any]:
    """Words of ``graphweft train`` and how many ranks; "tables" are labels of the tables of :mod:`fraud`."""
    kind = draw.choices(["full", "mini", "link", "typed", "macro"], [8, 6, 4, 2, 0.3])[0]
    model = draw.choice(_MODELS if kind == "full" else _MODELS[:8])
    words = ["--layers", str(draw.choice([1, 2, 2, 3])), "--hidden", draw.choice(["8", "16"])]
    tables = kind in ("full", "mini") and draw.random() < 0.3
    if kind == "typed":
        model = draw.choice(["rgcn", "hgt"])
        words += ["--bases", draw.choice(["0", "3"])] if model == "rgcn" else []
    elif not tables:
        words += draw.choice(_GRAPHS)
    words += ["--model", model, "--epochs", "6" if kind in ("full", "typed") else "2"]
    if kind in ("mini", "link"):
        layers = int(words[1])
        words += ["--mode", "mini", "--batch-size", draw.choice(["10", "64", "500"])]
        words += ["--fanouts", ",".join(draw.choice(["2", "5", "-1"]) for _ in range(layers))]
        words += ["--task", "link"] if kind == "link" else []
        words += ["--accumulate", "3"] if kind == "mini" and draw.random() < 0.2 else []
        words += ["--prepare", "subtasks"] if draw.random() < 0.05 else []
        words += ["--sampler", draw.choice(["shadow", "layer"])] if kind == "mini" and draw.random() < 0.05 else []
    words += ["--mode", "macro", "--macro", "parts:2/8"] if kind == "macro" else []
    ordered = kind in ("mini", "link") and draw.random() < 0.6
    words += ["--rank-reduce", "ordered"] if ordered else []
    chosen = draw.choice(_TABLES) if tables else None
    words += _random_options(draw, model, ordered, "links" if kind == "link" else chosen[1] if chosen else "classes")
    return {"kind": kind, "words": words, "tables": chosen, "ranks": draw.choice([2, 3, 4])}


def _random_options(draw: random.Random, model: str, ordered: bool, labels: str) -> list[str]:
    """Options that any kind of run has."""
    plain, losses, metrics = model not in ("appnp", "gcnii"), *_OF_LABELS[labels]
    words = ["--optimizer", draw.choice(["adam", "adamw", "sgd"]), "--lr", draw.choice(["0.001", "0.01"])]
    words += ["--dropout", "0.4"] if ordered and draw.random() < 0.5 else []
    words += ["--seed", str(draw.randrange(5))]
    for share, choices in (
        (0.5 * plain, [["--norm", "layer"], ["--norm", "layer"], ["--norm", "batch"]]),
        (0.3 * plain, [["--activation", name] for name in ("relu", "elu", "leaky_relu")]),
        (0.2 * (model in ("gcn", "sage", "gin")), [["--reduce", name] for name in ("sum", "mean", "max")]),
        (0.25 * plain, [["--residual"]]),
        (0.2, [["--normalize", "row"]]),
        (0.2, [["--weight-decay", "0.01"], ["--weight-decay", "0.01", "--weight-decay-on", "first"]]),
        (0.3, [["--clip", "0.5"], ["--clip-value", "0.01"]]),
        (0.2, [["--ema", "0.9"]]),
        (0.25, [["--scheduler", name] for name in ("cosine", "step:2:0.5", "plateau:1:0.5")]),
        (0.1, [["--warmup", "2"]]),
        (0.15, losses),
        (0.04 * (labels == "classes"), [["--class-weight", "balanced"]]),
        (0.15, metrics),
        (0.15 * (model not in TYPED), [["--features", name] for name in ("degree", "random", "embedding", "onehot")]),
        (0.1, [["--precision", "bf16"]]),
        (0.2, [["--eval-every", "2"], ["--eval-every", "4"]]),
        (0.1, [["--patience", "2"], ["--stop-on", "loss", "--patience", "3"]]),
        (0.1, [["--edge-data", "ignore"]]),
    ):
        words += draw.choice(choices) if draw.random() < share else []
    if model in ("gat", "gatv2", "cgat", "transformer", "hgt"):
        words += ["--heads", draw.choice(["1", "2", "4"])]
    return words


def forked(
    commands: Sequence[Sequence[str]],
    folder: Path,
    moved: int | None = None,
    watch: Callable[[list[int]], None] = lambda living: None,
) -> list[tuple[int | None, str, float]]:
    """Every command as a rank of one group, or as one process; status, standard error and seconds; None: no end.

    ``moved``: draws the last bits of the parameters that training begins with. ``watch`` is called with the processes
    that live, again and again.
    """
    folder.mkdir()
    size, begun = len(commands), time.monotonic()
    Board.create(folder / "board", size)
    children: dict[int, int] = {}
    for rank, words in enumerate(commands):
        environment = rank_environment(folder, rank, size) if size > 1 else {}
        child = os.fork()
        if child == 0:
            os.environ.update(environment)
            if moved is not None:
                _move_last_bits(moved)
            _run(words, folder, rank)
        children[child] = rank
    ended: dict[int, tuple[int | None, float]] = {}
    while children:
        for child in list(children):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                ended[children.pop(child)] = os.waitstatus_to_exitcode(status), time.monotonic() - begun
        if time.monotonic() - begun > _LONGEST:
            for child, rank in children.items():
                os.kill(child, 9)
                os.waitpid(child, 0)
                ended[rank] = None, time.monotonic() - begun
            break
        watch(list(children))
        time.sleep(0.01)
    texts = [(folder / f"errors-{rank}").read_text() for rank in range(size)]
    return [(ended[rank][0], texts[rank], ended[rank][1]) for rank in range(size)]


def _run(words: Sequence[str], folder: Path, rank: int) -> None:
    """The command, in a child that ends with its status."""
    for handle, name in ((1, "out"), (2, "errors")):
        os.dup2(os.open(folder / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT), handle)
    status = 70
    try:
        status = command(list(words))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _move_last_bits(seed: int) -> None:
    """Trainers of this process begin with parameters whose last bit is another."""
    fit, generator = Trainer.fit, torch.Generator().manual_seed(seed)

    def moved(self: Trainer, *given: Any, **more: Any) -> Any:
        with torch.no_grad():
            for parameter in self.model.parameters():
                draws = torch.randint(-1, 2, parameter.shape, generator=generator)
                parameter.mul_(1 + _LAST_BIT * draws)
        return fit(self, *given, **more)

    Trainer.fit = moved  # type: ignore[method-assign]


def difference(kind: str, words: Sequence[str], one: Path, many: Path) -> tuple[str, float]:
    """What differs most between two run folders, and by how much; infinite where bits or columns should be the same."""
    a, b = ([json.loads(line) for line in (at / "metrics.jsonl").read_text().splitlines()] for at in (one, many))
    timed = [name for name in a[0] if name.endswith("seconds") or name == "time"]
    a, b = ([{n: v for n, v in row.items() if n not in timed} for row in rows] for rows in (a, b))
    if [list(row) for row in a] != [list(row) for row in b]:
        return "other columns or epochs", math.inf
    models = [torch.load(at / "last.pt", weights_only=True)["model"] for at in (one, many)]
    if "ordered" in words:
        unlike = [name for name, tensor in models[0].items() if not models[1][name].equal(tensor)]
        return f"other bits: {unlike or ''} {a[-1]} {b[-1]}", math.inf if unlike or a != b else 0.0
    losses = [abs(x["loss"] - y["loss"]) / max(abs(x["loss"]), 1e-3) for x, y in zip(a, b, strict=True)]
    # optimisers but SGD divide gradients by themselves: where these are nothing but noise, so are steps
    if kind in ("full", "typed") or "sgd" not in words:
        return f"losses differ by {max(losses):.1e}: {losses}", max(losses)
    gaps = {name: float((models[1][name] - tensor).abs().max()) for name, tensor in models[0].items()}
    most = max(gaps, key=lambda name: gaps[name])
    return f"{most} differs by {gaps[most]:.1e}, losses by {max(losses):.1e}", gaps[most]


def try_case(case: dict[str, Any], folder: Path) -> tuple[str, str]:
    """How a case ended: "same", "amplified", "refused" by ranks, "invalid" for one, "wrong"; and what was said."""
    words = ["train", *case["words"], "--threads", "1", "--quiet"]
    if case["tables"] is not None:
        words += _tables(folder)
        words += case["tables"]
    if case["kind"] == "typed":
        words += ["--data", str(typed_dataset().save(folder / "typed.npz"))]
    ((status, text, _),) = forked([[*words, "--out", str(folder / "one")]], folder / "alone")
    if status != 0:
        return ("invalid" if status in (1, 2) else "wrong"), f"one process: {status}: {text.strip()[-300:]}"
    words = [*words, "--threads", str(case["ranks"]), "--out", str(folder / "many")]
    ended = forked([words] * case["ranks"], folder / "ranks")
    statuses, seconds = [one[0] for one in ended], max(one[2] for one in ended)
    if statuses == [0] * case["ranks"]:
        differs, most = difference(case["kind"], words, folder / "one", folder / "many")
        if most <= _WITHIN:
            return "same", ""
        return ("amplified" if most <= _by_last_bits(case, words, folder) else "wrong"), differs
    told = [text.strip() for _, text, _ in ended]
    good = statuses == [2] * case["ranks"] and len(told[0].splitlines()) == 1 and not any(told[1:])
    if good and seconds <= _REFUSED:
        return "refused", told[0]
    return "wrong", f"statuses {statuses} after {seconds:.1f} s: {told}"


def _by_last_bits(case: dict[str, Any], words: Sequence[str], folder: Path) -> float:
    """Twice how far one process gets from itself where parameters begin with other last bits; 0 for same bits."""
    if "ordered" in words:
        return 0.0
    found = [0.0]
    for trial in range(_TRIALS):
        out = folder / f"moved-{trial}"
        given = [*words, "--threads", "1", "--out", str(out)]
        ((status, _, _),) = forked([given], folder / f"alone-{trial}", moved=trial)
        if status == 0:
            found.append(difference(case["kind"], words, folder / "one", out)[1])
    return 2 * max(found)


def _tables(folder: Path) -> list[str]:
    """Writes two tables; the words that name them."""
    users, transfers = fraud_tables(users=300, transfers=1500)
    users["fraud"] = users["fraud"].map({"yes": 1.0, "no": 0.0})
    users["verified"] = users["verified"].astype(float)
    users, nodes, edges = (
        users[users["fraud"].notna() & users["age"].notna()],
        folder / "users.csv",
        folder / "edges.csv",
    )
    users.to_csv(nodes, index=False)
    transfers.to_csv(edges, index=False)
    words = ["--nodes", str(nodes), "--edges", str(edges), "--id", "user", "--source", "sender"]
    return [*words, "--target", "receiver", "--weight", "amount", "--unknown-ids", "drop"]


def try_many(count: int, seed: int, seconds: float = 1e9) -> dict[str, Any]:
    """So many cases, or as many as fit into ``seconds``; how they ended. Prints what was wrong."""
    torch.set_num_threads(1)
    limit, found, refusals, wrong = time.monotonic() + seconds, Counter[str](), Counter[str](), []
    for number in range(seed, seed + count):
        if time.monotonic() > limit:
            break
        case, folder = random_case(random.Random(number)), Path(tempfile.mkdtemp(prefix="graphweft-specs-"))
        multilevel.WORTH_ORDERING, multilevel.CELL = (0, 16) if number % 2 else (1 << 18, 2048)  # as in large parts
        try:
            ended, text = try_case(case, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found[ended] += 1
        if ended == "refused":
            refusals[text] += 1
        elif ended != "same":
            told = f"{ended}: seed {number}, {case['ranks']} ranks, {case['tables']}, {' '.join(case['words'])}: {text}"
            print(told, flush=True)
            wrong += [told] if ended == "wrong" else []
    return {**found, "refusals": dict(refusals), "faults": wrong}


def main() -> None:
    """Prints a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    print(json.dumps(try_many(given.count, given.seed, given.seconds), indent=1))


if __name__ == "__main__":
    main()
