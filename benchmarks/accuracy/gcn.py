"""Accuracy of GCN by the recipe of its paper, over seeds; no times are taken.

    python benchmarks/accuracy/gcn.py cora citeseer nell --root FOLDER_WITH_NPZ_FILES
    python benchmarks/accuracy/gcn.py cora --root FOLDER --seeds 2 --out /dev/null   # a try

Two layers, Adam 0.01, 200 epochs, features whose rows sum to 1, the split in the file. Citation graphs: hidden 16,
dropout 0.5 on the input of both layers, L2 5e-4 on the first layer. nell: hidden 64, dropout 0.1, L2 1e-5, sparse
features. ``last`` is the epoch training ended with, ``best`` the one with the best validation accuracy. Source: Kipf
and Welling, ICLR 2017, section 5.2. Appends a line per dataset to results/gcn_accuracy.csv.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, show, stamp, write_csv

from graphweft.run import run
from graphweft.train.spec import TrainSpec

COLUMNS = ("dataset", "seeds", "feature_path", "last_mean", "last_sd", "best_mean", "best_sd")
FIRST = {"weight_decay_on": "first"}  # the paper decays the first layer only
CITATION = {"hidden": 16, "dropout": 0.5, "weight_decay": 5e-4, **FIRST}
NELL = {"hidden": 64, "dropout": 0.1, "weight_decay": 1e-5, **FIRST}
RECIPES = {"cora": CITATION, "citeseer": CITATION, "nell": NELL}


def measure(root: Path, name: str, seeds: int, threads: int) -> dict[str, object]:
    """One row: test accuracies in per cent over seeds 0, 1, ..."""
    best, last, paths = [], [], set()
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            spec = TrainSpec(
                data=str(root / f"{name}.npz"),
                model="gcn",
                layers=2,
                epochs=200,
                lr=0.01,
                normalize="row",
                seed=seed,
                threads=threads,
                out=f"{folder}/run",
                **RECIPES[name],
            )
            summary = run(spec)
        best.append(100 * summary["test_acc_at_best_val"])
        last.append(100 * summary["test_acc"])
        paths.add(str(summary["feature_path"]))
        sys.stderr.write(f"{name} seed {seed}: last {last[-1]:.1f} best {best[-1]:.1f}\n")
    spread = statistics.stdev if seeds > 1 else (lambda _: 0.0)
    return {
        "dataset": name,
        "seeds": seeds,
        "feature_path": " ".join(sorted(paths)),
        "last_mean": round(statistics.mean(last), 2),
        "last_sd": round(spread(last), 2),
        "best_mean": round(statistics.mean(best), 2),
        "best_sd": round(spread(best), 2),
    }


def main() -> None:
    """Reads arguments, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", nargs="+", choices=sorted(RECIPES), help="names of .npz files in --root")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "gcn_accuracy.csv")
    given = parser.parse_args()
    rows = [measure(given.root, name, given.seeds, given.threads) for name in given.datasets]
    show("test accuracy, per cent", rows, COLUMNS)
    write_csv(given.out, [{**row, **stamp(given.threads)} for row in rows])


if __name__ == "__main__":
    main()
