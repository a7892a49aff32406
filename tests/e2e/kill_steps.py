"""Kills mini-batch training at random steps and resumes it. A script, started by test_kill_steps.py.

``python kill_steps.py FOLDER KILLS WAY...``. Each run is a forked child, so that a kill is a real one; torch stays
on one thread, as threads do not survive a fork. The kill comes right before or right after an update, with the
checkpoint of the step before on disk and batches under way in the loader's threads.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from e2e.kill_points import forked
from plain_loop import Recorder, focal
from run_files import assert_same_run

from graphweft.data.synthetic import synthetic
from graphweft.nn.gat import GAT
from graphweft.nn.sage import SAGE
from graphweft.train import run_folder
from graphweft.train.macro import Macro
from graphweft.train.trainer import Trainer

EPOCHS = 3
WAYS: dict[str, dict[str, Any]] = {
    "mini": {},
    "mini-gat": {"model": GAT},
    "large": {"macro": "large:1/3"},
    "parts": {"macro": "parts:3/12"},
    "walks": {"sampler": "saint-walk", "fanouts": None, "batch_size": 60},
    "links": {"task": "link", "batch_size": 400},
    "layers": {"sampler": "layer", "fanouts": (80, 80)},
    "scopes": {"sampler": "shadow", "fanouts": (5, 3)},
    "edges": {"sampler": "saint-edge", "fanouts": None, "batch_size": 300},
    "guarded": {"macro": Macro("parts:3/12", quality=0.2)},
    "together": {"accumulate": 3, "prepare": "subtasks"},
    "scheduled": {"scheduler": "step:1:0.5", "warmup": 1, "ema": 0.8, "clip": 0.5, "loss": focal, "best": "f1_macro"},
}


def train(out: Path, way: str, kill_at: int | None, after: bool = False) -> None:
    """Trains in this process what is left to train; dies in its step number ``kill_at``."""
    run_folder.RunFolder.is_due = lambda self: True  # type: ignore[method-assign]
    run_folder.RunFolder.plot = lambda *_: None  # type: ignore[method-assign]
    options = {"fanouts": (6, 4), "batch_size": 60, **WAYS[way]}
    kind, options["fanouts"] = options.pop("model", SAGE), options.get("fanouts")
    ds = synthetic("arxiv", scale=0.005, seed=1)
    torch.manual_seed(5)
    model = kind(ds.num_features, 16, ds.num_classes, num_layers=2, dropout=0.3)
    seen = [Recorder()] if way == "scheduled" else []  # its state is in the checkpoints that are compared
    trainer = Trainer(model, ds, lr=0.01, mode="mini", seed=3, out=out, callbacks=seen, **options)
    steps, update = 0, trainer.optimizer.step

    def counted() -> None:
        nonlocal steps
        steps += 1
        if after:
            update()
        if steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if not after:
            update()

    trainer.optimizer.step = counted  # type: ignore[method-assign, assignment]
    if (out / "last.pt").exists():
        trainer.resume()
    trainer.fit(EPOCHS - trainer.epoch)


def main(folder: Path, way: str, kills: int) -> int:
    torch.set_num_threads(1)
    rng = random.Random(way)
    whole, out = folder / "whole", folder / "killed"
    if forked(lambda: train(whole, way, None)):
        return 1
    done = finished = 0
    while done < kills:
        at, after = rng.randint(1, 8), rng.random() < 0.5
        status = forked(lambda out=out, at=at, after=after: train(out, way, at, after))
        if status == 0:  # it was done before the kill came
            assert_same_run(whole, out)
            finished += 1
            out = folder / f"killed-{finished}"
        elif status == -signal.SIGKILL:
            done += 1
        else:
            sys.stderr.write(f"{way}, kill {done}: status {status}\n")
            return 1
    if forked(lambda: train(out, way, None)):
        return 1
    assert_same_run(whole, out)
    sys.stdout.write(f"{done}\n")
    return 0


if __name__ == "__main__":
    sys.exit(max(main(Path(sys.argv[1]) / way, way, int(sys.argv[2])) for way in sys.argv[3:]))
