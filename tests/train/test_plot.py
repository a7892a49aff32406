"""The picture is a PNG that shows the curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from graphweft._errors import ConfigError
from graphweft.train.history import History
from graphweft.train.plot import NamedRun, picture_of, picture_of_several, write_plot
from graphweft.train.record import EpochRecord


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


def test_several_runs_have_a_curve_each_and_their_test_scores(tmp_path: Path) -> None:
    runs = [
        NamedRun(name, History([EpochRecord(i, 1 / i, None, top * i / 9, top, 1 / i) for i in range(1, 10)]))
        for name, top in (("one", 0.5), ("two", 0.75))
    ]
    figure = picture_of_several(runs, "both", "accuracy")
    lower = figure.axes[1]
    assert [text.get_text() for text in lower.get_legend().get_texts()] == ["one  50.0 %", "two  75.0 %"]
    assert [len(line.get_xdata()) for line in lower.lines] == [9, 1, 9, 1]
    assert lower.lines[2].get_ydata()[-1] == 0.75 and figure.axes[0].get_ylabel() == "validation loss"
    many = [runs[0]._replace(name=str(i)) for i in range(25)]
    legend = picture_of_several(many, "many", "accuracy").axes[1].get_legend()
    assert len(legend.get_texts()) == 20 and legend.get_title().get_text().endswith("and 5 more")


def test_the_picture_has_validation_loss_and_test_score_of_the_best_epoch() -> None:
    history = History([EpochRecord(i, 1 / i, 0.9, 1 - abs(i - 4) / 10, i / 10, 2 / i) for i in range(1, 10)])
    upper = picture_of(history, "run").axes[0]
    assert upper.lines[1].get_ydata()[3] == 0.5
    assert upper.get_title(loc="right") == "best validation: 100.0 % at epoch 4, test 40.0 %"
    with pytest.raises(ConfigError, match=r"^path: expected a file name ending in .png, .svg or .pdf, got 'a.gif'$"):
        history.plot("a.gif")


@pytest.mark.parametrize("name", ["a", "a run of a long name with the seed 12"])
def test_labels_lie_inside_the_picture_and_legends_beside_their_panels(name: str) -> None:
    history = History([EpochRecord(i, 1e-4 * i, 1.0, 0.9, 0.5, 2e-4 * i) for i in range(1, 10)])
    for figure in (picture_of(history, "run"), picture_of_several([NamedRun(name, history)], "runs", "accuracy")):
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        upper, lower = figure.axes
        for axis in (upper, lower):
            taken = axis.get_tightbbox(renderer)
            assert taken.x0 >= 0 and taken.x1 <= figure.bbox.width
            assert taken.y0 >= 0 and taken.y1 <= figure.bbox.height
        assert lower.get_legend().get_window_extent(renderer).x0 >= lower.bbox.x1
        assert upper.bbox.y0 > lower.bbox.y1
