"""TensorBoard is an extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from standin import make_model, make_task

from graphweft._errors import MissingPackageError
from graphweft.train.trainer import Trainer


def test_without_tensorboard_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    task = make_task()
    with pytest.raises(
        MissingPackageError, match=r"^loggers: expected the package tensorboard .*graphweft\[logging\]\)$"
    ):
        Trainer(make_model(task), task, loggers="tensorboard", out=tmp_path)
