"""Kills a training run at every one of its file operations and resumes it. A script, started by test_kill_resume.py.

Each run is a forked child, so that a kill is a real one; torch stays on one thread, as threads do not survive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from run_files import assert_same_run
from standin import make_model, make_task

from graphweft.train import run_folder
from graphweft.train.trainer import Trainer

EPOCHS = 4


def train(out: Path, kill_at: int | None, finish: bool) -> None:
    """Trains in this process; dies before file operation number ``kill_at``."""
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return wrapper

    run_folder._LEAST_SECONDS = run_folder._SHARE = 1e9  # type: ignore[assignment]
    run_folder.RunFolder.is_due = lambda self: True  # type: ignore[method-assign]
    run_folder.RunFolder.plot = lambda *_: None  # type: ignore[method-assign]
    for owner, name in (
        (os, "fsync"),
        (os, "rename"),
        (Path, "replace"),
        (Path, "open"),
        (Path, "unlink"),
        (Path, "mkdir"),
    ):
        setattr(owner, name, counted(getattr(owner, name)))
    torch.save = counted(torch.save)
    run_folder.RunFolder.log = counted(run_folder.RunFolder.log)  # type: ignore[method-assign]
    task = make_task()
    trainer = Trainer(make_model(task), task, out=out, weight_decay=0.01)  # type: ignore[arg-type]
    if finish:
        trainer.resume()
    trainer.fit(EPOCHS - trainer.epoch)


def forked(call: Callable[[], None]) -> int:
    """Exit status of ``call`` in a child; negative for a signal."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    whole = folder / "whole"
    if forked(lambda: train(whole, None, finish=False)):
        return 1
    kill_at = 0
    while True:
        kill_at += 1
        out = folder / f"killed-{kill_at}"
        status = forked(lambda out=out, at=kill_at: train(out, at, finish=False))
        if status == 0:
            break
        if status != -signal.SIGKILL or forked(lambda out=out: train(out, None, finish=True)):
            sys.stderr.write(f"kill at operation {kill_at}: status {status}\n")
            return 1
        assert_same_run(whole, out)
        left = [file.name for file in out.iterdir() if file.name.endswith(".partial")]
        if left:
            sys.stderr.write(f"kill at operation {kill_at}: left {left}\n")
            return 1
    sys.stdout.write(f"{kill_at - 1}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
