"""Examples of PyTorch Geometric's repository with one line changed: ``model = gw.compile(model)``.

Comes in: ``--examples FOLDER``, the folder ``examples`` of a checkout, and names of scripts. Goes out: for each the
greatest difference of the losses of the first steps, with and without that line, on standard output; ``--csv FILE``
writes it to a file. Data sets are replaced by synthetic ones of the same form; numbers are float64, dropout keeps
everything, and both runs begin with the same seed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import importlib.util
import io
import random
import sys
import traceback
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
import torch_geometric.datasets
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data, InMemoryDataset

import graphweft as gw
from graphweft.nn.compiled import calls_of

NAMES = (
    *("gcn", "gat", "arma", "tagcn", "sgc", "super_gat", "agnn", "autoencoder", "link_pred", "infomax_transductive"),
    *("argva_node_clustering", "gcn2_cora", "mixhop", "dna", "graph_unet", "pmlp", "film"),
    *("mutag_gin", "rgcn", "rgat", "dir_gnn", "pna", "linkx"),
    *("proteins_topk_pool",),
)
STEPS = 6  # losses that are compared
CLASSES, FEATURES = 7, 48


class Done(Exception):
    """Enough steps were taken."""


def _graph(made: torch.Generator, nodes: int, several_labels: bool = False) -> Data:
    """A graph of communities, with masks."""
    y = torch.randint(0, CLASSES, (nodes,), generator=made)
    ends = torch.randint(0, nodes, (2, 4 * nodes), generator=made)
    kept = (y[ends[0]] == y[ends[1]]) | (torch.rand(4 * nodes, generator=made) < 0.3)
    ends = ends[:, kept & (ends[0] != ends[1])]
    edge_index = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
    x = torch.rand(nodes, FEATURES, generator=made) + functional.one_hot(y, FEATURES)
    part = torch.randint(0, 3, (nodes,), generator=made)
    masks = {f"{name}_mask": part == at for at, name in enumerate(("train", "val", "test"))}
    if several_labels:
        y = (torch.rand(nodes, CLASSES, generator=made) < 0.4).to(x.dtype)
    return Data(x=x, edge_index=edge_index, y=y, **masks)


class Synthetic(InMemoryDataset):
    """In the place of a data set of one graph: calls may have any form that those have."""

    def __init__(self, root: Any = None, *_: Any, transform: Any = None, pre_transform: Any = None, **__: Any) -> None:
        super().__init__(None, transform)
        graphs = self._graphs(torch.Generator().manual_seed(1))
        self.data, self.slices = self.collate(graphs if pre_transform is None else list(map(pre_transform, graphs)))

    def _graphs(self, made: torch.Generator) -> list[Data]:
        return [_graph(made, 300)]


class Molecules(Synthetic):
    """In the place of small graphs with a label each."""

    def _graphs(self, made: torch.Generator) -> list[Data]:
        graphs = [_graph(made, 10 + at % 7) for at in range(256)]
        return [Data(x=g.x, edge_index=g.edge_index, y=g.y[:1] % 2) for g in graphs]


class Tissues(Synthetic):
    """In the place of graphs whose nodes have several labels."""

    def _graphs(self, made: torch.Generator) -> list[Data]:
        return [_graph(made, 60 + at, several_labels=True) for at in range(4)]


class Splits(Synthetic):
    """In the place of data sets with ten splits."""

    def _graphs(self, made: torch.Generator) -> list[Data]:
        graph = _graph(made, 300)
        for name in ("train_mask", "val_mask", "test_mask"):
            graph[name] = graph[name][:, None].repeat(1, 10)
        return [graph]


class Atoms(Synthetic):
    """In the place of molecules whose atoms and bonds have kinds, with a number to predict."""

    def _graphs(self, made: torch.Generator) -> list[Data]:
        graphs = [_graph(made, 10 + at % 7) for at in range(256)]
        for graph in graphs:
            graph.x, graph.edge_attr = graph.y[:, None], graph.edge_index.sum(0) % 4
            graph.y = torch.rand(1, generator=made)
        return graphs


class Relations(Synthetic):
    """In the place of typed edges over nodes without features."""

    num_relations, num_classes = 4, 4

    def _graphs(self, made: torch.Generator) -> list[Data]:
        graph = _graph(made, 200)
        kinds = torch.randint(0, self.num_relations, (graph.num_edges,), generator=made)
        order = torch.randperm(200, generator=made)
        ids = {"train_idx": order[:100], "test_idx": order[100:]}
        labels = {f"{name[:-4]}_y": graph.y[rows] % 4 for name, rows in ids.items()}
        return [Data(edge_index=graph.edge_index, edge_type=kinds, num_nodes=200, **ids, **labels)]


DATASETS = {
    "Planetoid": Synthetic,
    **dict.fromkeys(("WikipediaNetwork", "LINKXDataset"), Splits),
    "TUDataset": Molecules,
    "ZINC": Atoms,
    "PPI": Tissues,
    "Entities": Relations,
}


class _Absent(types.ModuleType):
    """A package that is not installed: its functions, which rate results, give 0."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: 0.0


def _absent() -> dict[str, types.ModuleType]:
    names = ("sklearn", "sklearn.metrics", "sklearn.metrics.cluster", "sklearn.cluster", "sklearn.manifold")
    names += ("sklearn.model_selection",)
    return {name: _Absent(name) for name in names if importlib.util.find_spec("sklearn") is None}


def _compiling(path: Path) -> ast.Module:
    """The script with the line after the one that makes the model."""
    tree = ast.parse(path.read_text())
    body: list[ast.stmt] = []
    for statement in tree.body:
        body.append(statement)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        named = [t.elts[0] if isinstance(t, ast.Tuple) else t for t in targets]
        if any(isinstance(target, ast.Name) and target.id == "model" for target in named):
            body += ast.parse("import graphweft; model = graphweft.compile(model)").body
    tree.body = body
    return ast.fix_missing_locations(tree)


@contextlib.contextmanager
def _replaced(losses: list[float]) -> Iterator[None]:
    """Inside, data sets are synthetic, dropout keeps everything, and losses are noted."""
    backward, dropout = Tensor.backward, functional.dropout

    def noting(self: Tensor, *args: Any, **kwargs: Any) -> None:
        losses.append(float(self))
        backward(self, *args, **kwargs)
        if len(losses) >= STEPS:
            raise Done

    def keeping(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return dropout(x, 0.0, training, inplace)

    with contextlib.ExitStack() as stack:
        for name, made in DATASETS.items():
            stack.enter_context(mock.patch.object(torch_geometric.datasets, name, made))
        stack.enter_context(mock.patch.dict(sys.modules, _absent()))
        stack.enter_context(mock.patch.object(Tensor, "backward", noting))
        stack.enter_context(mock.patch.object(functional, "dropout", keeping))
        yield


def run(path: Path, compiled: bool) -> tuple[list[float], Any]:
    """The losses of the first steps, and the model."""
    losses: list[float] = []
    code = compile(_compiling(path) if compiled else path.read_text(), str(path), "exec")
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    quiet = contextlib.redirect_stdout(io.StringIO())
    with _replaced(losses), mock.patch.object(sys, "argv", [str(path)]), quiet, contextlib.suppress(Done):
        exec(code, names)
    return losses, names.get("model")


def _how(model: Any) -> str:
    """How the model's last calls ran."""
    calls = calls_of(model)
    used = [one for one in (calls, *calls._methods.values()) if one.last is not None or one.reason is not None]
    words = []
    for one in used:
        if one.last is None:
            words.append(f"as it stands ({one.reason})")
        elif len(one.last.regions) == 1 and not one.last.planned.apart:
            words.append("whole")
        else:
            apart = ", ".join(dict.fromkeys(step.name for step, _ in one.last.planned.apart))
            words.append(f"in parts ({len(one.last.regions)} programs; {apart})")
    return "; ".join(words) or "never called"


def _row(path: Path) -> dict[str, Any]:
    """One example."""
    try:
        plain, _ = run(path, compiled=False)
    except Exception as failure:
        return {"example": path.stem, "steps": 0, "difference": "", "how": f"not run: {_last(failure)}"}
    try:
        got, model = run(path, compiled=True)
    except Exception as failure:
        return {"example": path.stem, "steps": len(plain), "difference": "failed", "how": _last(failure)}
    same = len(plain) == len(got)
    difference = (
        max((abs(a - b) / max(abs(a), 1e-9) for a, b in zip(plain, got, strict=True)), default=0.0) if same else "steps"
    )
    how = "no model" if model is None else _how(model)
    return {"example": path.stem, "steps": len(plain), "difference": difference, "how": how}


def _last(failure: Exception) -> str:
    place = traceback.extract_tb(failure.__traceback__)[-1]
    return f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''} ({place.name})"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--examples", type=Path, required=True, help="the folder examples of a checkout")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", gw.FallbackWarning)
    rows = []
    for name in args.names:
        rows.append(_row(args.examples / f"{name}.py"))
        print(*rows[-1].values(), sep="\t", flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
