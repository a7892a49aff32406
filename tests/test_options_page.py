"""The page of options: every option of ``graphweft train`` is in a command there, and the commands run."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
import torch
import typer

import graphweft as gw
from graphweft import cli

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "options.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
COMMANDS = [line for kind, text in _BLOCK.findall(PAGE) if kind == "sh" for line in text.splitlines() if line]
TEXTS = [text for kind, text in _BLOCK.findall(PAGE) if kind in ("toml", "csv")]
FILES = dict(zip(("small.toml", "users.csv", "transfers.csv"), TEXTS, strict=True))


def _options() -> set[str]:
    command = typer.main.get_command(cli.app).commands["train"]  # type: ignore[attr-defined]
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


def test_every_option_is_in_a_command_and_no_other() -> None:
    used = {word for line in COMMANDS for word in shlex.split(line) if word.startswith("--")}
    assert used == {name for name in _options() if name.startswith("--")} - {"--help"}


def _write_rings(to: Path, sizes: list[int]) -> None:
    """Rings as a folder in the format of the TU sets; nodes have tags."""
    to.mkdir()
    edges, owners, first = list[str](), list[str](), 1
    for number, size in enumerate(sizes, 1):
        edges += [f"{first + i}, {first + (i + 1) % size}" for i in range(size)]
        owners += [str(number)] * size
        first += size
    labels = [str(size % 2) for size in sizes]
    tags = [str(i % 3) for i in range(first - 1)]
    for name, lines in {"A": edges, "graph_indicator": owners, "graph_labels": labels, "node_labels": tags}.items():
        (to / f"RINGS_{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page, a set of graphs and a typed graph."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    _write_rings(tmp_path / "RINGS", list(range(3, 23)))
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 20, (60,), generator=draw), torch.randint(0, 30, (60,), generator=draw)
    films = gw.Graph.hetero({("user", "rates", "film"): ends}, {"user": 20, "film": 30})
    y = torch.cat([torch.full((20,), -1), torch.arange(30) % 3])
    gw.Dataset("films", films, torch.randn(50, 4, generator=draw), y).save(tmp_path / "films.npz")
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*edge_time not used by the trainer")
@pytest.mark.parametrize("at", range(len(COMMANDS)))
def test_the_commands_run(folder: Path, at: int) -> None:
    words = shlex.split(COMMANDS[at])[1:]
    out = words[words.index("--out") + 1]
    if "--resume" in words:
        earlier = next(line for line in COMMANDS if f"--out {out}" in line)
        assert cli.main(shlex.split(earlier)[1:]) == 0
    assert cli.main(words) == 0
    assert (folder / out / "summary.json").exists()


def test_every_keyword_of_the_trainer_is_in_an_example(root: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in sorted((root / "docs").glob("*.md"))]
    code = "\n".join(line for page in pages for line in re.findall(r"^(?:>>>|\.\.\.) .*", page, re.MULTILINE))
    names = set(inspect.signature(gw.Trainer.__init__).parameters) - {"self", "others", "model", "ds"}
    assert not {name for name in names if not re.search(rf"\b{name}=", code)}
