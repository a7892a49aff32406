"""Accuracy of GAT by the recipe of its paper, over seeds; no times are taken.

    python benchmarks/accuracy/gat.py cora citeseer --root FOLDER_WITH_NPZ_FILES
    python benchmarks/accuracy/gat.py cora --root FOLDER --seeds 2 --epochs 30 --out /dev/null   # a try

Two layers, 8 heads of 8 channels, one output head, ELU, dropout 0.6 on inputs, attention weights and summed rows, Adam
0.005, L2 5e-4 on all parameters, features whose rows sum to 1, the split in the file (20 nodes a class for training).
Training ends 100 epochs after validation accuracy and loss both stopped getting better; the epoch reported as ``best``
is chosen on validation nodes only: the last at which neither was worse than before. ``last`` is the epoch training
ended with. Source: Velickovic et al., ICLR 2018, section 3.3. Appends a line per dataset to results/gat_accuracy.csv.
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

COLUMNS = ("dataset", "seeds", "epochs_mean", "best_mean", "best_sd", "last_mean", "last_sd", "best_min", "best_max")


def measure(data: Path, seeds: int, epochs: int, threads: int, model: str) -> dict[str, object]:
    """One row: test accuracies in per cent over seeds 0, 1, ..."""
    best, last, length = [], [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            spec = TrainSpec(
                data=str(data),
                model=model,
                hidden=64,
                heads=8,
                out_heads=1,
                epochs=epochs,
                lr=0.005,
                weight_decay=5e-4,
                weight_decay_on="all",
                dropout=0.6,
                value_dropout=0.6 if model == "gat" else 0.0,
                normalize="row",
                patience=100,
                stop_on="both",
                seed=seed,
                threads=threads,
                out=f"{folder}/run",
            )
            summary = run(spec)
        best.append(100 * summary["test_acc_at_best_val"])
        last.append(100 * summary["test_acc"])
        length.append(summary["epochs"])
        sys.stderr.write(f"{data.stem} seed {seed}: best {best[-1]:.1f} last {last[-1]:.1f} ({length[-1]} epochs)\n")
    spread = statistics.stdev if seeds > 1 else (lambda _: 0.0)
    return {
        "dataset": data.stem,
        "model": model,
        "seeds": seeds,
        "epochs_mean": round(statistics.mean(length)),
        "best_mean": round(statistics.mean(best), 2),
        "best_sd": round(spread(best), 2),
        "best_min": round(min(best), 1),
        "best_max": round(max(best), 1),
        "last_mean": round(statistics.mean(last), 2),
        "last_sd": round(spread(last), 2),
        "stop_on": "both, patience 100",
    }


def main() -> None:
    """Reads arguments, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", nargs="+", help="names of .npz files in --root")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--model", default="gat", choices=("gat", "gatv2", "cgat"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3000, help="at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "gat_accuracy.csv")
    given = parser.parse_args()
    rows = [
        measure(given.root / f"{name}.npz", given.seeds, given.epochs, given.threads, given.model)
        for name in given.datasets
    ]
    show("test accuracy, per cent", rows, COLUMNS)
    write_csv(given.out, [{**row, **stamp(given.threads)} for row in rows])


if __name__ == "__main__":
    main()
