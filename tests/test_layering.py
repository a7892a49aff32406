"""The shape of the package: who imports whom, how long a file is, and which names are public."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "graphweft"

# A module imports rooms of lower ranks, or its own room. Modules at the root of the package are rooms named below.
RANKS: list[set[str]] = [
    {"base"},
    {"graph"},
    {"sample", "storage"},
    {"partitioning"},
    {"ir"},
    {"cost"},
    {"frontend", "passes", "codegen"},
    {"runtime"},
    {"loader", "nn", "schedule", "dist", "data", "optim"},
    {"interop", "transforms"},
    {"train"},
    {"synth"},
    {"app"},
]
ROOM_OF_MODULE = {
    **dict.fromkeys(
        [
            "_abi",
            "_errors",
            "_first_use",
            "_backward",
            "_budget",
            "_machine",
            "_checks",
            "_config",
            "_decisions",
            "_distinct",
            "_draws",
            "_html",
            "_keywords",
            "_libraries",
            "_native",
            "_memory",
            "_namespace",
            "_pieces",
            "_trace",
            "_workers",
        ],
        "base",
    ),
    **dict.fromkeys(["_torch_private", "_torch_recording"], "base"),
    "_optim_device": "optim",
    **dict.fromkeys(
        [
            "run",
            "loaded_run",
            "inspection",
            "commands",
            "measure",
            "cli",
            "explanation",
            "synthesis",
            "planning",
            "errors",
            "macro",
            "sampling",
            "model_of_spec",
            "__main__",
        ],
        "app",
    ),
}
# Third-party packages that may be imported inside a function, and why.
OPTIONAL_IMPORTS = {
    "torch_geometric": "a peer, an extra",
    "dgl": "a peer, in an environment of its own",
    "networkx": "converters only",
    "pymetis": "an extra",
    "pandas": "reads tables, an extra",
    "pyarrow": "writes Parquet, an extra",
    "triton": "compiles kernels for CUDA devices, which few machines have",
    "matplotlib": "half a second to import, used once per run",
    "requests": "megabytes that a small budget for preparing has no room for, used where a named set is fetched",
    "urllib3": "comes with requests",
}
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
SAYS_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}


class Import(NamedTuple):
    """One import of a module of the package: where it stands and what it names."""

    module: str
    line: int
    target: str
    inside: bool


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
MODULES = {_name(path): path for path in SOURCES}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def _room(module: str) -> str:
    first = module.split(".")[1]
    return ROOM_OF_MODULE.get(first, first)


def _rank(module: str) -> int:
    room = _room(module)
    for rank, rooms in enumerate(RANKS):
        if room in rooms:
            return rank
    raise AssertionError(f"{module}: room {room!r} has no rank; add it to RANKS where it belongs")


def _nodes(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(tree):
        yield child, inside
        yield from _nodes(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def _targets(module: str, node: ast.AST) -> list[str]:
    """Full names that one import statement refers to; a name that is a module of ours counts as that module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parts = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
        parts = parts[: len(parts) - node.level + 1]
        base = ".".join([*parts, node.module] if node.module else parts)
    names = [f"{base}.{alias.name}" for alias in node.names]
    inner = [name for name in names if name in MODULES]
    return inner if len(inner) == len(names) else [base, *inner]


IMPORTS = [
    Import(module, getattr(node, "lineno", 0), target, inside)
    for module, tree in TREES.items()
    for node, inside in _nodes(tree)
    for target in _targets(module, node)
]
OURS = [item for item in IMPORTS if item.target.split(".")[0] == "graphweft"]


def _where(item: Import) -> str:
    return f"{MODULES[item.module].relative_to(ROOT)}:{item.line} imports {item.target}"


def test_imports_go_to_lower_ranks_or_stay_in_the_room() -> None:
    wrong = [
        f"{_where(item)}: rank {_rank(item.module)} ({_room(item.module)}) may not see {_rank(item.target)}"
        for item in OURS
        if "." in item.module
        and "." in item.target
        and _room(item.module) != _room(item.target)
        and _rank(item.target) >= _rank(item.module)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_room_has_a_rank() -> None:
    assert [module for module in MODULES if "." in module and _rank(module) < 0] == []


def test_nobody_imports_the_package_root() -> None:
    wrong = [_where(item) for item in OURS if item.target == "graphweft" and item.module != "graphweft"]
    assert not wrong, "\n".join(wrong)


def test_there_is_no_import_cycle() -> None:
    edges: dict[str, set[str]] = {module: set() for module in MODULES}
    for item in OURS:
        if item.target in MODULES and item.target != item.module:
            edges[item.module].add(item.target)
    state: dict[str, int] = {}
    cycles: list[str] = []

    def visit(module: str, path: tuple[str, ...]) -> None:
        state[module] = 1
        for target in sorted(edges[module]):
            if state.get(target) == 1:
                cycles.append(" -> ".join([*path[path.index(target) :], target]))
            elif target not in state:
                visit(target, (*path, target))
        state[module] = 2

    for module in MODULES:
        if module not in state:
            visit(module, (module,))
    assert not cycles, "\n".join(cycles)


def test_no_import_hides_in_a_function() -> None:
    wrong = [_where(item) for item in IMPORTS if item.inside and item.target.split(".")[0] not in OPTIONAL_IMPORTS]
    assert not wrong, "\n".join(wrong)


def _written_files() -> list[Path]:
    """Sources that people write: not what a build installs into the tree."""
    kinds = {".py", ".h", ".cpp", ".hpp", ".cu"}
    tops = [ROOT / top for top in ("graphweft", "csrc", "tests", "benchmarks")]
    built = (PACKAGE / "include", PACKAGE / "lib")
    return [
        path
        for top in tops
        for path in top.rglob("*")
        if path.suffix in kinds and not any(path.is_relative_to(folder) for folder in built)
    ]


def test_no_file_is_longer_than_the_limit() -> None:
    long = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in _written_files()}
    wrong = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in long.items() if lines > MAX_FILE_LINES]
    assert not wrong, "\n".join(wrong)


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    body = node.body
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    text = (body[0].end_lineno or 0) - body[0].lineno + 1 if documented else 0
    return (node.end_lineno or 0) - node.lineno + 1 - text


def test_no_function_is_longer_than_the_limit() -> None:
    wrong = [
        f"{MODULES[module].relative_to(ROOT)}:{node.lineno} {node.name}: {_code_lines(node)} lines"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _code_lines(node) > MAX_FUNCTION_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_file_names_say_something() -> None:
    wrong = [str(path.relative_to(ROOT)) for path in _written_files() if path.stem in SAYS_NOTHING]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_is(module: str) -> None:
    assert ast.get_docstring(TREES[module]), f"{module} has no docstring"


def _narrows(test: ast.expr) -> bool:
    """``isinstance(...)``, ``... is not None``, or several of them: what a type checker wants to be told."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and all(map(_narrows, test.values))
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot)
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance"


def test_input_is_not_asserted_and_nothing_is_printed() -> None:
    wrong = [
        f"{MODULES[module].relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Assert) and not _narrows(node.test))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print")
    ]
    assert not wrong, "\n".join(wrong)


def _exported(module: str) -> list[str]:
    for node in TREES[module].body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    raise AssertionError(f"{module} has no __all__")


def test_public_names_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed: dict[str, list[str]] = {"graphweft": []}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        if title == "Top level":
            listed["graphweft"] += re.findall(r"^\| `gw\.(\w+)` ", section, flags=re.MULTILINE)
        elif title.startswith("gw."):
            names = re.findall(rf"^\| `{re.escape(title)}\.(\w+)` ", section, flags=re.MULTILINE)
            listed[title.replace("gw.", "graphweft.", 1)] = names
    exported = {module: _exported(module) for module in listed}
    assert {module: sorted(names) for module, names in exported.items()} == {
        module: sorted(names) for module, names in listed.items()
    }


def test_at_most_thirty_names_are_at_the_top_level() -> None:
    assert len(_exported("graphweft")) <= 30
