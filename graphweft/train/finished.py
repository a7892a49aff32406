"""What the folder of a run tells without its data and model: its epochs and its options.

Comes in: a folder. Goes out: its state, or a :class:`Finished`. Called by ``load_run`` and by the commands that compare
runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graphweft._errors import CheckpointError, ConfigError
from graphweft.train.chosen import judged_by
from graphweft.train.description import Description
from graphweft.train.history import History
from graphweft.train.options import LAST
from graphweft.train.run_folder import EARLIER, read_last


class Finished(NamedTuple):
    """A run as its folder tells it.

    Attributes:
        folder: Where it lies.
        history: Its epochs.
        options: The options that made it, by name.
    """

    folder: Path
    history: History
    options: dict[str, Any]


def of_state(path: Path) -> tuple[dict[str, Any], Description]:
    """The last state of the run in ``path``, and how its model was made.

    Raises: CheckpointError where there is no run, or a damaged one.
    """
    state = read_last(path)
    if state is None:
        below = sorted(file.parent for file in path.glob(f"*/{LAST}"))
        more = f"; there are runs below it, as {below[0]}" if below else ""
        raise CheckpointError(f"{path}: expected the folder of a run, with {LAST} in it, got none{more}")
    text = state.get("options", {}).get("description")
    if text is None:
        raise CheckpointError(f"{path}: expected a run that says how its model was made, got one of an earlier version")
    return state, Description.from_json(text)


def history_of(state: dict[str, Any], description: Description) -> History:
    """The epochs of a run. Raises: CheckpointError for columns that do not fit together."""
    config = state["config"]
    history = History.from_state(state["history"], since=int(state.get("best_since", 0)), **judged_by(config))
    history.metric, history.name = description.metric, f"{description.dataset}: {description.model_class}"
    return history


def finished_runs(folders: Sequence[str | os.PathLike[str]]) -> list[Finished]:
    """The runs in ``folders``: a folder that is none stands for those below it, earlier ones left out.

    Raises: CheckpointError where there is none, or one is damaged; ConfigError for runs with different metrics.
    """
    there = list(dict.fromkeys(path for folder in folders for path in _runs_below(Path(folder))))
    if not there:
        told = str(folders[0]) if len(folders) == 1 else f"{len(folders)} paths"
        raise CheckpointError(f"{told}: expected the folder of a run, with {LAST} in it, got none")
    found = []
    for path in there:
        state, description = of_state(path)
        found.append(Finished(path, history_of(state, description), state["config"]))
    first = found[0]
    for run in found:
        if run.history.metric != first.history.metric:
            one, other = (f"{run.history.metric} ({run.folder})" for run in (first, run))
            raise ConfigError(f"plot: expected runs with one metric, got {one} and {other}")
    return found


def _runs_below(path: Path) -> list[Path]:
    """The folder itself where it is a run's, else the runs in it."""
    if (path / LAST).exists() or not path.is_dir():
        return [path] if (path / LAST).exists() else []
    found = (file.parent for file in sorted(path.rglob(LAST)))
    return [one for one in found if not any(p.startswith(EARLIER) for p in one.relative_to(path).parts)]


def names_of(runs: Sequence[Finished]) -> list[str]:
    """What tells runs apart: their folders from the last common one on.

    Example:
        >>> names_of([Finished(Path(f"runs/sweep/{name}"), History(), {}) for name in ("a/seed-0", "a/seed-1")])
        ['seed-0', 'seed-1']
    """
    if len(runs) == 1:
        return [runs[0].folder.resolve().name]
    paths = [run.folder.resolve() for run in runs]
    common = os.path.commonpath([str(path.parent) for path in paths])
    return [str(path.relative_to(common)) for path in paths]
