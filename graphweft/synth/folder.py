"""The folder of a program: its text, the headers and sources that it needs, how it is built, and what it is.

Comes in: a spec and its :class:`Steps`. Goes out: a folder that appears whole or not at all. Called by
:mod:`graphweft.synthesis`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from graphweft._errors import ConfigError
from graphweft.synth.head_shapes import FILE, head_shapes
from graphweft.synth.kits import Kit
from graphweft.synth.spec import ProgramSpec
from graphweft.synth.steps import Steps

_PACKAGE = Path(__file__).parents[1]
_MARK = "model.toml"  # tells a program of ours from other folders
_HEADS = '"attention.h"'
_OPTIONAL: dict[str, str] = {  # core and support: needed where the model has the pattern
    **dict.fromkeys(("spmm_max", "extremes"), r"spmm_max\("),
    "stretches": r"_by_stretches\(",
    "sddmm": r"sparse_dropout\(",
    **dict.fromkeys(("spmm", "sums"), r"spmm\(|sparse_matmul\("),
    **dict.fromkeys((f"attention{part}" for part in ("", "_test", "_kernels", "_operands", "_draws")), _HEADS),
    "heads.cpp": r"\b(head_\w+|sum_heads|repeat_heads)\(",
    "heads": _HEADS,
    **dict.fromkeys(("attention_rows", "attention_rows_test"), "<Score::(add2|dot)>"),
    "elements": r"elements\.cu",
    **dict.fromkeys(("norms", "norm", "norms_test", "batch_norm"), r'"norms\.h"'),
    **{f"attention_{score}": f"<Score::{score}>" for score in ("add", "add2", "dot")},
}
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def sources() -> Path:
    """The folder of C++ sources: of the installed package, or of the source tree. Raises: ConfigError."""
    for folder in (_PACKAGE.parent / "csrc", _PACKAGE / "csrc"):
        if (folder / "program" / "main.cpp").is_file():
            return folder
    raise ConfigError("synth: expected the C++ sources beside the package, got none; reinstall graphweft")


def program_files(spec: ProgramSpec, steps: Steps, data: str, kit: Kit) -> dict[str, str]:
    """All files of a program of one kind by their path in its folder."""
    folder = sources()
    model = kit.model(spec, steps, data)
    files = {_MARK: spec.to_toml() + "\n", kit.name: model, **kit.more(steps)}
    found = [path for part in kit.folders for path in sorted((folder / part).iterdir()) if path.is_file()]
    for path in found:
        if {path.name, path.stem} & {*kit.left_out} or not (
            _is_wanted(path.stem, model) and _is_wanted(path.name, model)
        ):
            continue
        top = path.name in kit.top
        files[path.name if top else f"support/{path.name}"] = path.read_text(encoding="utf-8")
    for name in kit.core:
        if _is_wanted(name, model):
            files[f"core/{name}.cpp"] = (folder / "core" / f"{name}.cpp").read_text(encoding="utf-8")
    files["cpu_level.cpp"] = (folder / "cpu_level.cpp").read_text(encoding="utf-8")
    files |= _headers(folder, files)
    if FILE in files:
        files[FILE] = head_shapes(files[FILE], steps)
    files["CMakeLists.txt"] = kit.cmake(spec, steps)
    files["README.md"] = kit.readme(spec, steps, data)
    return files


def _is_wanted(stem: str, model: str) -> bool:
    return re.search(_OPTIONAL.get(stem, ""), model) is not None


def _headers(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The headers that ``files`` include, directly or not."""
    found: dict[str, str] = {}
    open_ = list(files.values())
    while open_:
        for name in _INCLUDE.findall(open_.pop()):
            if name.startswith("graphweft/") and name not in found:
                path = next(p for p in (folder / "include", _PACKAGE / "include") if (p / name.split("/")[0]).is_dir())
                found[name] = path.joinpath(*name.split("/")).read_text(encoding="utf-8")
                open_.append(found[name])
    return {f"include/{name}": text for name, text in sorted(found.items())}


def check_folder(out: Path) -> None:
    """``out`` can become a program's folder. Raises: ConfigError."""
    try:
        is_there = out.exists()
    except OSError as failure:
        raise ConfigError(f"out: expected a folder that can be made, got {out}: {failure.strerror}") from None
    if is_there and not (out.is_dir() and ((out / _MARK).is_file() or not any(out.iterdir()))):
        raise ConfigError(f"out: expected a new folder or one of an earlier program, got {out}")
    if out.resolve() == Path.cwd():
        raise ConfigError("out: expected another folder than the working one, which is replaced as a whole, got it")
    parent = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    if not parent.is_dir():
        raise ConfigError(f"out: expected a folder, got {parent}")


def write_folder(out: Path, files: dict[str, str], more: Callable[[Path], None] = lambda _: None) -> None:
    """Writes ``files``, and what ``more`` writes, beside ``out`` and puts the whole in its place.

    Raises: ConfigError, OSError.
    """
    check_folder(out)
    out = out.resolve()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as failure:
        raise ConfigError(f"out: expected a folder that can be made, got {out}: {failure.strerror}") from None
    try:
        fresh.chmod(0o755)
        for name, text in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        more(fresh)
        if out.exists():
            _exchange(fresh, out)
        else:
            fresh.rename(out)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _exchange(fresh: Path, out: Path) -> None:
    """``fresh`` in the place of ``out``, which goes only then."""
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    former = aside / out.name
    try:
        out.rename(former)
        try:
            fresh.rename(out)
        except BaseException:
            former.rename(out)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


__all__ = ["check_folder", "program_files", "sources", "write_folder"]
