"""The examples of the pages under docs/ hold."""

from __future__ import annotations

import contextlib
import doctest
import re
import shlex
import warnings
from dataclasses import fields
from pathlib import Path

import pytest

from graphweft import cli
from graphweft._config import Config
from graphweft.ir.ops import Op

with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its import warns of is no failure of an example
    import torch_geometric  # noqa: F401

# Pages, and the fewest examples that each has.
PAGES = {
    "compile": 15,
    "configuration": 3,
    "data": 16,
    "devices": 15,
    "distributed": 15,
    "explaining": 12,
    "from_pyg": 25,
    "graphs": 25,
    "inference": 15,
    "ir": 15,
    "large_graphs": 15,
    "layers": 15,
    "links": 15,
    "message_passing": 15,
    "options": 8,
    "out_of_core": 10,
    "planning": 10,
    "profiling": 12,
    "programs": 15,
    "sampling": 25,
    "tables": 30,
    "transforms": 30,
    "training": 50,
    "troubleshooting": 15,
    "tutorial": 15,
    "unsupervised": 12,
}

# Tasks of somebody who knows PyTorch Geometric: a name or a word of the field, and where the answer is.
TASKS = {
    "GCNConv": "from_pyg",
    "Data": "from_pyg#the-data",
    "NeighborLoader": "from_pyg#neighbours",
    "ClusterLoader": "from_pyg#other-loaders",
    "HeteroData": "from_pyg#typed-graphs",
    "load_pyg_state_dict": "from_pyg#trained-weights",
    "torch_geometric.nn": "compile#convolutions-of-pytorch-geometric",
    "Planetoid": "data#known-names",
    "networkx": "data#what-can-be-read",
    "MessagePassing": "message_passing#a-layer",
    "SAGEConv": "layers#options",
    "to_hetero": "layers#layers-and-models-for-typed-graphs",
    "edge_weight": "training#edge-weights-and-edge-features",
    "backward": "training#a-loop-of-your-own",
    "return_attention_weights": "training#attention-and-embeddings-to-read",
    "class_weight": "training#your-own-loss-schedule-metrics-and-code",
    "load_state_dict": "training#the-weights-after-training",
    "seed": "training#reproducible-results",
    "GraphSAINT": "sampling",
    "LinkNeighborLoader": "links#batches-of-edges-to-predict",
    "TUDataset": "graphs#sets-of-graphs",
    "global_mean_pool": "graphs#models",
    "RandomLinkSplit": "transforms#splits",
    "AddLaplacianEigenvectorPE": "transforms#columns-beside-the-features",
    "Node2Vec": "unsupervised#through-the-trainer",
    "GNNExplainer": "explaining#with-the-explainers-of-pytorch-geometric",
    "DistributedDataParallel": "distributed#on-several-machines",
    "cuda": "devices",
    "pandas": "data#from-your-own-arrays",
    "CSV": "tables",
    "edge list": "data#what-can-be-read",
    "edge_features": "training#edge-weights-and-edge-features",
    "patience": "training#early-stopping",
    "resume": "training#the-folder-of-a-run",
    "checkpoint": "training#the-folder-of-a-run",
    "predict": "inference#all-nodes",
    "C header": "inference#serve-a-model",
    "larger than memory": "out_of_core",
    "memory budget": "large_graphs#a-memory-budget",
    "bfloat16": "large_graphs#rows-and-products-in-bfloat16",
    "curves.png": "training#the-folder-of-a-run",
    "several labels": "training#labels-losses-and-scores",
    "regression": "training#labels-losses-and-scores",
    "loss": "training#your-own-loss-schedule-metrics-and-code",
    "metrics": "training#your-own-loss-schedule-metrics-and-code",
    "SparseFeatures": "data#sparse-features",
    "Perfetto": "profiling#a-trace-of-a-run",
    "explain": "profiling#what-a-model-compiles-to",
    "identity": "sampling#samplers-of-your-own",
    "FallbackWarning": "troubleshooting",
    "from_dgl": "from_pyg#from-dgl",
}


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_hold(root: Path, page: str) -> None:
    file = root / "docs" / f"{page}.md"
    result = doctest.testfile(str(file), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= PAGES[page] and result.failed == 0


def test_no_page_with_examples_is_forgotten(root: Path) -> None:
    pages = (root / "docs").glob("*.md")
    assert {page.stem for page in pages if ">>> " in page.read_text(encoding="utf-8")} == set(PAGES)


def test_the_page_of_settings_lists_every_setting(root: Path) -> None:
    text = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    for field in fields(Config):
        assert f"| `{field.name}` |" in text and f"`GRAPHWEFT_{field.name.upper()}`" in text, field.name


def test_the_page_of_the_ir_lists_every_operation(root: Path) -> None:
    text = (root / "docs" / "ir.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+)[(`]", text))
    assert not {op.name.lower() for op in Op} - named


def test_every_page_is_in_the_navigation(root: Path) -> None:
    index = (root / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {line for block in re.findall(r"```\{toctree\}(.*?)```", index, flags=re.DOTALL) for line in block.split()}
    pages = {page.stem for page in (root / "docs").glob("*.md")} - {"index"}
    assert pages <= listed, f"docs/index.md: expected every page in a toctree, got none for {pages - listed}"


@pytest.mark.parametrize("front", ["README.md", "docs/index.md"])
def test_tasks_are_two_clicks_from_the_front_page(root: Path, front: str) -> None:
    """Twenty-five and more: a page that two links lead to has the heading and the word that is looked for."""
    first = _linked(root / front)
    reached = first | {page for near in first for page in _linked(near)}
    missing = []
    for word, answer in TASKS.items():
        name, _, heading = answer.partition("#")
        page = root / "docs" / f"{name}.md"
        found = re.search(rf"\b{re.escape(word)}\b", page.read_text(encoding="utf-8"))
        if page not in reached or not found or (heading and heading not in _headings(page)):
            missing.append(f"{word}: {answer}")
    assert len(TASKS) >= 25 and not missing


def test_blocks_of_code_are_run(root: Path) -> None:
    """Python is an example with a prompt, but in the README; commands have options that exist."""
    checked = 0
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            if language in ("python", "pycon", "py"):
                assert ">>> " in block or page.name == "README.md", f"{page.name}: {block}"
            shell = language in ("sh", "bash", "shell") and page.name != "options.md"  # whose commands are run
            for line in block.splitlines() if shell else ():
                words = shlex.split(line, comments=True)
                if words[:1] == ["graphweft"]:
                    command = cli.app(args=words[1:], standalone_mode=False, obj=words[1:])
                    assert callable(command), f"{page.name}: {line}"
                    checked += 1
    assert checked > 20


def _linked(page: Path) -> set[Path]:
    """The pages that a page links to."""
    targets = re.findall(r"\]\(([^)\s#]+\.md)[^)]*\)", page.read_text(encoding="utf-8"))
    found = {(page.parent / target).resolve() for target in targets if "://" not in target}
    return {page for page in found if page.exists()}  # pages of the reference are built


def test_links_between_pages_lead_somewhere(root: Path) -> None:
    """A link to a page or to a heading of it, in all pages and the README; pages of the reference are built."""
    missing = []
    for page in [*(root / "docs").glob("*.md"), *(root / name for name in ("README.md", "benchmarks/README.md"))]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            file, _, heading = target.partition("#")
            if "://" in target or file.startswith("reference/"):
                continue
            found = page if not file else page.parent / file
            if not found.exists() or (heading and heading not in _headings(found)):
                missing.append(f"{page.name}: {target}")
    assert not missing


def _headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
