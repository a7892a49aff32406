"""The package as a user gets it: libraries mapped, headers, examples in docstrings, pins, the README's lines."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.metadata
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import graphweft
from graphweft import _native

with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its import warns of is no failure of an example
    import torch_geometric  # noqa: F401

PACKAGE = Path(graphweft.__file__).parent
MODULES = ["graphweft", *(found.name for found in pkgutil.walk_packages([str(PACKAGE)], "graphweft."))]


def _distribution_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_native_core_is_beside_the_package() -> None:
    found = sorted(path.name for path in (PACKAGE / "lib").iterdir())
    assert "libgraphweft_cpu.so" in found
    assert "libgraphweft_portable.so" in found or any(name.startswith("libgraphweft_any_portable_") for name in found)
    assert f"libgraphweft_{_native.LEVEL}.so" in found


def test_one_openmp_runtime_is_mapped() -> None:
    code = """
import json
import graphweft
from graphweft import _memory, _native
block = _memory.empty((1 << 20,))
block.zero_()
with open("/proc/self/maps") as maps:
    files = {line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6}
print(json.dumps(sorted({f for f in files if "omp" in f.rsplit("/", 1)[-1] and ".so" in f})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    mapped = json.loads(done.stdout)
    assert len(mapped) == 1, mapped


def test_native_sources_include_neither_torch_nor_python(root: Path) -> None:
    sources = [*root.glob("csrc/**/*.h"), *root.glob("csrc/**/*.cpp")]
    assert sources
    bad = re.compile(r'#\s*include\s*[<"](torch|ATen|c10|Python\.h|pybind11|nanobind)', re.MULTILINE)
    assert [str(path) for path in sources if bad.search(path.read_text(encoding="utf-8"))] == []


def test_native_headers_ship_with_the_package(root: Path) -> None:
    written = {path.name for path in (root / "csrc/include/graphweft").glob("*.h")}
    shipped = {path.name for path in (PACKAGE / "include/graphweft").glob("*.h")}
    assert shipped == written


@pytest.mark.parametrize("level", ["sse9", "AVX2", ""])
def test_an_unknown_level_is_refused_in_one_line(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_CPU_LEVEL", level)
    done = subprocess.run(
        [sys.executable, "-c", "import graphweft._native"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "graphweft._errors.NativeError: GRAPHWEFT_CPU_LEVEL: expected one of portable"
    )


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_every_dependency_is_pinned(root: Path) -> None:
    """What the dev extra pulls in, all the way down, stands in constraints.txt with its version."""
    text = (root / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in text.splitlines() if line and not line.startswith("#"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"], *(r for e in extras for r in e)]
    missing: set[str] = set()
    seen: set[str] = set()

    def visit(requirements: list[str], wanted: set[str]) -> None:
        for requirement in map(Requirement, requirements):
            name = _distribution_name(requirement.name)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in {"", *wanted}):
                continue
            if name == "graphweft" or name in seen:
                continue
            seen.add(name)
            if name not in pins:
                missing.add(name)
            try:
                visit(importlib.metadata.requires(name) or [], set(requirement.extras))
            except importlib.metadata.PackageNotFoundError:
                continue

    visit(asked, set())
    if importlib.metadata.version("torch").split("+")[0] != pins["torch"]:
        pytest.skip("another torch than the pinned one is installed: its dependencies are not those of the pins")
    assert not missing
    assert next(iter(pins)) == "torch"


TRAIN = """
import json, sys
import torch
import graphweft as gw
torch.set_num_threads(int(sys.argv[1]))
for name, scale in zip(sys.argv[2::2], sys.argv[3::2]):
    torch.manual_seed(0)
    ds = gw.synthetic(name, scale=float(scale), seed=1)
    model = gw.nn.GCN(ds.num_features, 33, ds.num_classes, num_layers=3)
    history = gw.Trainer(model, ds, lr=0.01).fit(epochs=3)
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    print(json.dumps([parameters.double().sum().item(), parameters.double().norm().item(), *parameters.tolist()[:200]]))
"""


TWINS = ("default", "0.05", "corafull", "0.02")  # dense features, sparse ones


def _trained(level: str, threads: int, cache: Path) -> list[list[float]]:
    """Parameters after three epochs on each graph, in a process; decisions that rest on times come from ``cache``."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(threads), *TWINS],
        capture_output=True, text=True, check=False,
        env=os.environ | {"GRAPHWEFT_CPU_LEVEL": level, "GRAPHWEFT_CACHE_DIR": str(cache), "GRAPHWEFT_CALIBRATE": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-2:]]


def test_levels_agree_and_thread_counts_are_bitwise_equal(tmp_path: Path) -> None:
    levels = _native.usable_levels(_native.LEVELS.index(_native.LEVEL))
    results = {level: _trained(level, 2, tmp_path / level) for level in levels}
    for level, found in results.items():
        for parameters, portable in zip(found, results["portable"], strict=True):
            assert parameters == pytest.approx(portable, rel=2e-4, abs=2e-4), level
    assert _trained(_native.LEVEL, 1, tmp_path / _native.LEVEL) == results[_native.LEVEL]


def _shell_blocks(root: Path) -> list[str]:
    text = (root / "README.md").read_text(encoding="utf-8")
    return [block.strip() for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)]


def test_the_readme_starts_with_its_two_lines(root: Path) -> None:
    train, tests = _shell_blocks(root)[:2]
    assert "\n" not in train and "\n" not in tests
    for line in (train, tests):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install")
        assert "-c constraints.txt" in shlex.join(shlex.split(line))
    assert ".venv/bin/graphweft train" in train
    assert tests.endswith(".venv/bin/pytest")


THE_TWO_FORMS = """
z, a, b = torch.randn(ds.num_nodes, 8), torch.randn(ds.num_nodes, 1), torch.randn(ds.num_nodes, 1)
ours, theirs = Attend()(ds.graph, z, a, b), PyGAttend()(torch.stack(ds.graph.edges()).long(), z, a, b)
print(torch.allclose(ours, theirs, atol=1e-5), len(logits))
"""


def test_the_readme_examples_run(root: Path, tmp_path: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    code = "\n".join(block for block in blocks if "import dgl" not in block)  # it has an environment of its own
    assert "epochs=100" in code and len(blocks) > 4
    program = tmp_path / "example.py"
    program.write_text(code.replace("epochs=100", "epochs=2") + THE_TWO_FORMS)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["True 1000"], done.stderr


def test_the_gate_can_be_run(root: Path) -> None:
    gate = root / ".ci" / "run"
    assert gate.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(gate)], check=False).returncode == 0


def test_public_names_come_from_their_homes() -> None:
    code = """
import sys
import graphweft as gw
assert "torch" not in sys.modules
import graphweft.run
assert {name for name in gw.__all__} <= set(dir(gw))
for name in gw.__all__:
    value = getattr(gw, name)
    assert callable(value) or name == "nn", name
from graphweft import *
assert Graph is gw.Graph and nn.GCN is gw.nn.GCN
try:
    gw.nothing
except AttributeError as failure:
    assert "nothing" in str(failure)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_of_ideas_names_files_that_exist(root: Path) -> None:
    text = (root / "docs" / "papers.md").read_text(encoding="utf-8")
    named = [name.replace("csrc/.../", "csrc/include/graphweft/") for name in re.findall(r"`([\w./]+\.\w+)`", text)]
    assert len(named) > 20
    missing = [name for name in named if not (root / name).exists() and not (root / "graphweft" / name).exists()]
    assert not missing, missing


def test_names_that_moved_work_with_a_warning_and_are_used_nowhere(root: Path) -> None:
    moved = graphweft._MOVED
    assert not set(moved) & set(graphweft.__all__)
    for name, home in moved.items():
        with pytest.warns(DeprecationWarning, match=rf"gw\.{name} has moved to gw\.{home}\.{name}; .* version 0\.3"):
            old = getattr(graphweft, name)
        assert old is getattr(importlib.import_module(f"graphweft.{home}"), name)
    old_form = re.compile(r"\b(?:gw|graphweft)\.(" + "|".join(moved) + r")\b(?!\.py)")
    files = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("*/**/*.py")]
    ours = [path for path in files if not {".venv", "build", "__pycache__"} & set(path.relative_to(root).parts)]
    assert len(ours) > 800
    used = [
        f"{path.relative_to(root)}: {found[0]}" for path in ours for found in old_form.finditer(path.read_text("utf-8"))
    ]
    assert not used, "\n".join(used)


def test_sources_that_hide_an_installed_package_say_so(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "graphweft", tmp_path / "graphweft", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    shutil.copy(root / "CMakeLists.txt", tmp_path)
    command = [sys.executable, "-c", "import graphweft; graphweft.Graph"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "holds the sources, which are not compiled there" in done.stderr.splitlines()[-1]
    assert "run Python from another folder" in done.stderr.splitlines()[-1]
