"""The picture is a PNG that shows the curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from graphweft.train.history import EpochRecord, History
from graphweft.train.plot import write_plot


def _picture(path: Path, history: History) -> np.ndarray:
    write_plot(path, history, "cora: GCN")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return image.imread(path)


def _orange(picture: np.ndarray) -> int:
    """Pixels of the validation curve's colour."""
    wanted = np.array([0xE0, 0x82, 0x14]) / 255
    return int((np.abs(picture[:, :, :3] - wanted).max(axis=2) < 0.02).sum())


def test_curves_are_drawn_in_their_colours(tmp_path: Path) -> None:
    full = History([EpochRecord(i, 1 / i, 0.5, 0.4 + i / 100, 0.3) for i in range(1, 40)])
    bare = History([EpochRecord(i, 1 / i) for i in range(1, 40)])
    with_validation = _picture(tmp_path / "a.png", full)
    assert min(with_validation.shape[:2]) >= 600
    (tmp_path / "a.png").unlink()
    assert _orange(with_validation) > 500
    assert _orange(_picture(tmp_path / "b.png", bare)) == 0


@pytest.mark.parametrize("epochs", [1, 2])
def test_short_runs_have_a_picture_too(tmp_path: Path, epochs: int) -> None:
    history = History([EpochRecord(i, 1.0, 1.0, 1.0, 1.0) for i in range(1, epochs + 1)])
    assert _orange(_picture(tmp_path / "a.png", history)) > 0


def test_pyplot_and_its_global_state_stay_out(tmp_path: Path) -> None:
    source = Path(write_plot.__code__.co_filename).read_text()
    assert "import pyplot" not in source and "matplotlib.use" not in source
    with pytest.raises(OSError):
        write_plot(tmp_path / "none" / "a.png", History([EpochRecord(1, 1.0)]), "x")
