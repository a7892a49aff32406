"""A folder with a part of a store is called that, with what to do, wherever a store is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import graphweft as gw
from graphweft import cli


@pytest.fixture
def store(tmp_path: Path) -> Path:
    gw.macro.prepare_store(gw.synthetic("cora", scale=0.05, seed=0), tmp_path / "whole", parts=3)
    return tmp_path / "whole"


def _no_manifest(store: Path, here: Path) -> Path:
    shutil.copytree(store, here / "s")
    (here / "s" / "manifest.json").unlink()
    return here / "s"


def _empty_manifest(store: Path, here: Path) -> Path:
    _no_manifest(store, here)
    (here / "s" / "manifest.json").touch()
    return here / "s"


def _half_manifest(store: Path, here: Path) -> Path:
    text = (store / "manifest.json").read_text()
    _no_manifest(store, here)
    (here / "s" / "manifest.json").write_text(text[: len(text) // 2])
    return here / "s"


def _in_the_making(store: Path, here: Path) -> Path:
    made = _no_manifest(store, here).rename(here / ".s.partial")
    (made / "key.json").write_text("{}")
    return made


CASES: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "no manifest": (_no_manifest, "expected a store with manifest.json, got 3 files of parts without it"),
    "empty": (_empty_manifest, "the store is not whole: copy it again, or prepare it anew"),
    "half": (_half_manifest, "the store is not whole: copy it again, or prepare it anew"),
    "making": (_in_the_making, "the folder of an interrupted preparation of s; the same graphweft prepare again"),
    "named": (lambda store, here: _in_the_making(store, here).with_name("s"), "one whose preparation was interrupted"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_partial_store_is_called_one(
    name: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, expected = CASES[name]
    path = make(store, tmp_path / "here")
    for read in (gw.load, gw.macro.Store):
        with pytest.raises(gw.errors.DataError) as caught:
            read(path)
        assert expected in str(caught.value) and "\n" not in str(caught.value)
    run = ["--epochs", "1", "--out", str(tmp_path / "run")]
    for words in (["train", "--data", str(path), "--mode", "macro", *run], ["inspect", str(path)]):
        assert cli.main(words) == 2
        assert expected in capsys.readouterr().err


def test_what_is_no_store_is_called_nothing_of_one(tmp_path: Path) -> None:
    for name in ("part-0.bin", "part-00000.txt"):
        (tmp_path / name).touch()
    with pytest.raises(gw.errors.DataError, match="expected a folder in Planetoid"):
        gw.load(tmp_path)
    with pytest.raises(gw.errors.ConfigError, match="which is something else"):
        gw.macro.prepare_store(gw.synthetic("cora", scale=0.05), tmp_path, parts=2)
