"""What a dataset is like before anything is trained on it: sizes, degrees, components, homophily, balance of labels.

Comes in: a dataset. Goes out: an :class:`Inspection`, as lines, as JSON or as a picture. Called by users as
``gw.inspect`` and by ``graphweft inspect``.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from numpy.typing import NDArray

from graphweft import _html
from graphweft._errors import DataError
from graphweft.data.dataset import Dataset, Part
from graphweft.data.readers.files import one_line
from graphweft.storage.feature import SparseFeatures
from graphweft.train.atomic import write_atomic

_PARTS: tuple[Part, ...] = ("train", "val", "test")
_INK, _GRID, _BLUE = "#333333", "#e4e4e4", "#2166ac"
_COLORS = {"train": "#9aa5b1", "val": "#e08214", "test": "#2166ac", "in no part": "#d9d9d9"}
_MOST_CLASSES = 40  # shown apart


@dataclass(frozen=True)
class Degrees:
    """In- or out-degrees: least, median, mean and largest."""

    least: int
    median: float
    mean: float
    largest: int


@dataclass(frozen=True)
class Inspection:
    """Statistics of a dataset, the result of :func:`inspect`.

    Attributes:
        name: Name of the dataset.
        task: Kind of its labels, or "none".
        num_nodes: Number of nodes.
        num_edges: Number of directed edges.
        num_features: Columns of the features; 0 for none.
        feature_sparsity: Share of the features' entries that are zero.
        empty_features: Nodes whose features are all zero.
        num_classes: Number of classes, labels or values.
        graphs: Number of graphs of a set of graphs; None for one graph.
        node_types: Number of nodes by type, for a typed graph.
        relations: Number of edges by relation, for a typed graph.
        in_degrees: Numbers of edges into a node.
        out_degrees: Numbers of edges out of a node.
        isolated: Number of nodes without an edge, apart from self-loops.
        self_loops: Number of edges from a node to itself.
        duplicates: Number of edges that repeat an earlier one of the same relation.
        reciprocal: Share of the edges, without self-loops, whose reverse is an edge too; None without edges.
        components: Number of weakly connected components.
        largest_component: Share of the nodes in the largest component.
        labelled: Number of rows with a label.
        split: Number of labelled rows of each part.
        balance: Number of labelled rows of each class by name, the most frequent first; for several labels, of rows
            with the label.
        homophily: Share of the edges between labelled nodes, without self-loops, whose ends have the same class.
        adjusted_homophily: Homophily adjusted for the degrees of the classes, at most 1 (the assortativity of the
            classes); None if all edges end in one class.
        edge_columns: Data of the edges: weights, features, times.
        notes: Notes of the dataset.
    """

    name: str
    task: str
    num_nodes: int
    num_edges: int
    num_features: int
    feature_sparsity: float
    empty_features: int
    num_classes: int
    graphs: int | None
    node_types: dict[str, int]
    relations: dict[str, int]
    in_degrees: Degrees
    out_degrees: Degrees
    isolated: int
    self_loops: int
    duplicates: int
    reciprocal: float | None
    components: int
    largest_component: float
    labelled: int
    split: dict[str, int]
    balance: dict[str, int]
    homophily: float | None
    adjusted_homophily: float | None
    edge_columns: dict[str, str]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "notes": list(self.notes)}

    def rows(self) -> list[tuple[str, str]]:
        """Statistics for display, by name."""
        kinds = {"classification": "classes", "multilabel": "labels a node", "regression": "values"}
        width = (
            f"{self.num_features:,} columns, {100 * self.feature_sparsity:.1f} % zeros" if self.num_features else "none"
        )
        empty = f", {self.empty_features:,} nodes with none" if self.empty_features else ""
        rows = [
            ("nodes", f"{self.num_nodes:,}{_by_name(self.node_types)}"),
            ("edges", f"{self.num_edges:,}{_by_name(self.relations)}"),
            ("features", width + empty),
            ("labels", f"{self.num_classes:,} {kinds[self.task]}" if self.task in kinds else "none"),
        ]
        if self.graphs is not None:
            rows.insert(0, ("graphs", f"{self.graphs:,}"))
        for name, found in (("in-degrees", self.in_degrees), ("out-degrees", self.out_degrees)):
            rows.append((name, f"{found.least} to {found.largest:,}, median {found.median:g}, mean {found.mean:.2f}"))
        back = "" if self.reciprocal is None else f"{100 * self.reciprocal:.1f} % of the edges lead back"
        rows += [
            ("direction", back or "no edges"),
            ("isolated nodes", f"{self.isolated:,}"),
            ("self-loops", f"{self.self_loops:,}"),
            ("duplicate edges", f"{self.duplicates:,}"),
            ("components", f"{self.components:,}, {100 * self.largest_component:.1f} % of the nodes in the largest"),
        ]
        rows += [(f"edge {name}", text) for name, text in self.edge_columns.items()]
        if self.labelled:
            parts = ", ".join(f"{part} {count:,}" for part, count in self.split.items())
            rows.append(("labelled", f"{self.labelled:,} ({parts})"))
        if self.balance:
            shown = [
                f"{one_line(name, 40)} {count:,} ({100 * count / self.labelled:.1f} %)"
                for name, count in self.balance.items()
            ]
            more = f", and {len(shown) - 10} more" if len(shown) > 10 else ""
            rows.append(("balance", ", ".join(shown[:10]) + more))
        if self.homophily is not None:
            above = self.adjusted_homophily
            text = f"{100 * self.homophily:.1f} % of the edges join one class"
            rows.append(("homophily", text if above is None else f"{text}, {above:.3f} adjusted for chance"))
        return rows

    def lines(self) -> list[str]:
        """The lines of the table, and the notes."""
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return [self.name, *[f"  {name:<{width}}  {text}" for name, text in rows], *[f"note: {n}" for n in self.notes]]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return _html.facts(self.name, self.rows())


def inspect(ds: Dataset) -> Inspection:
    """Statistics of ``ds``: sizes, degrees, components, balance of labels, homophily.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> found = inspect(Dataset("ring", Graph([0, 1, 2, 3], [1, 2, 0, 3]), y=[0, 0, 1, 1]))
        >>> found.components, found.self_loops, found.balance
        (2, 1, {'0': 2, '1': 2})
        >>> found.homophily
        0.3333333333333333
    """
    if not hasattr(ds, "num_classes"):
        remedy = "gw.load(name) reads one" if isinstance(ds, str | Path) else "gw.Dataset(name, graph) makes one"
        raise DataError(f"inspect: expected a dataset, got {type(ds).__name__}; {remedy}")
    src, dst = (ends.numpy().astype(np.int64) for ends in ds.graph.edges())
    count, nodes = len(src), ds.num_nodes
    inner = src != dst
    pairs = src * nodes + dst
    kinds = pairs if not ds.graph.is_typed else pairs + nodes * nodes * ds.graph.edge_type().numpy().astype(np.int64)
    touched = np.zeros(nodes, bool)
    touched[src[inner]] = touched[dst[inner]] = True
    adjacency = scipy.sparse.coo_array((np.ones(count, np.int8), (src, dst)), shape=(nodes, nodes))
    components, of_node = scipy.sparse.csgraph.connected_components(adjacency, directed=True, connection="weak")
    back = np.isin(dst[inner] * nodes + src[inner], pairs[inner]).mean() if inner.any() else None
    same, adjusted = _homophily(ds, src[inner], dst[inner])
    layout = ds.graph.layout if ds.graph.is_typed else None
    parts: dict[str, int] = {part: int(ds.labelled(part).numel()) for part in _PARTS} if ds.num_classes else {}
    return Inspection(
        name=ds.name,
        task=ds.task if ds.num_classes else "none",
        num_nodes=nodes,
        num_edges=count,
        num_features=ds.num_features,
        feature_sparsity=ds.feature_sparsity,
        empty_features=_empty_rows(ds),
        num_classes=ds.num_classes,
        graphs=None if ds.graph_ptr is None else ds.num_rows,
        node_types={} if layout is None else {name: len(layout.node_range(name)) for name in layout.node_types},
        relations={} if layout is None else {"-".join(r): len(layout.edge_range(r)) for r in layout.relations},
        in_degrees=_degrees(np.bincount(dst, minlength=nodes)),
        out_degrees=_degrees(np.bincount(src, minlength=nodes)),
        isolated=int(nodes - touched.sum()),
        self_loops=int(count - inner.sum()),
        duplicates=count - len(np.unique(kinds)),
        reciprocal=None if back is None else float(back),
        components=int(components),
        largest_component=float(np.bincount(of_node).max() / nodes),
        labelled=int(_known(ds).sum()),
        split=parts,
        balance=_balance(ds),
        homophily=same,
        adjusted_homophily=adjusted,
        edge_columns=_edge_columns(ds),
        notes=ds.notes,
    )


def _degrees(found: NDArray[np.int64]) -> Degrees:
    return Degrees(int(found.min()), float(np.median(found)), float(found.mean()), int(found.max()))


def _empty_rows(ds: Dataset) -> int:
    """Nodes whose features are all zero."""
    if ds.x is None:
        return 0
    if isinstance(ds.x, SparseFeatures):
        matrix = ds.x.to_scipy().tocsr()
        matrix.eliminate_zeros()
        return int((np.diff(matrix.indptr) == 0).sum())
    return int((ds.x == 0).all(dim=1).sum())


def _known(ds: Dataset) -> NDArray[np.bool_]:
    """Which rows have a label."""
    if ds.num_classes == 0:
        return np.zeros(ds.num_rows, bool)
    y = ds.y.numpy()
    known: NDArray[np.bool_] = y >= 0 if y.dtype.kind == "i" else ~np.isnan(y.reshape(len(y), -1)).all(axis=1)
    return known


def _balance(ds: Dataset) -> dict[str, int]:
    """Rows of each class, or with each label, by name, the most frequent first; empty for values."""
    if ds.num_classes == 0 or ds.task == "regression":
        return {}
    y = ds.y.numpy()
    found = np.bincount(y[y >= 0], minlength=ds.num_classes) if y.ndim == 1 else (np.nan_to_num(y) > 0.5).sum(axis=0)
    names = ds.class_names or tuple(map(str, range(ds.num_classes)))
    order = np.argsort(-found, kind="stable")
    return {names[i]: int(found[i]) for i in order.tolist()}


def _mixing(ds: Dataset, src: NDArray[np.int64], dst: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Edges from class to class, (C, C); None where nodes have no classes."""
    if ds.task != "classification" or ds.num_classes == 0 or not ds.has_node_rows:
        return None
    y = ds.y.numpy()
    known = (y[src] >= 0) & (y[dst] >= 0)
    codes = y[src[known]] * ds.num_classes + y[dst[known]]
    counts = np.bincount(codes, minlength=ds.num_classes**2).astype(np.float64)
    return counts.reshape(ds.num_classes, ds.num_classes) if known.any() else None


def _homophily(ds: Dataset, src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[float | None, float | None]:
    """Share of edges within one class, and the same above chance."""
    counts = _mixing(ds, src, dst)
    if counts is None:
        return None, None
    shares = counts / counts.sum()
    same, chance = float(np.trace(shares)), float((shares.sum(axis=0) * shares.sum(axis=1)).sum())
    return same, None if chance > 1 - 1e-12 else (same - chance) / (1 - chance)


def _edge_columns(ds: Dataset) -> dict[str, str]:
    """Ranges of what is known of the edges."""
    found = {}
    if ds.edge_weight is not None and ds.num_edges:
        low, high = float(ds.edge_weight.min()), float(ds.edge_weight.max())
        found["weights"] = f"{low:g} to {high:g}, mean {float(ds.edge_weight.double().mean()):.4g}"
    if ds.edge_features is not None:
        found["features"] = f"{ds.edge_features.shape[1]} columns"
    if ds.edge_time is not None and ds.num_edges:
        found["times"] = f"{ds.edge_time.min().item()} to {ds.edge_time.max().item()}"
    return found


def _by_name(counts: dict[str, int]) -> str:
    shown = [f"{one_line(name, 60)} {count:,}" for name, count in counts.items()]
    more = f", and {len(shown) - 8} more" if len(shown) > 8 else ""
    return f" ({', '.join(shown[:8])}{more})" if shown else ""


def plot_dataset(ds: Dataset, path: str | Path) -> Path:
    """Writes a picture of ``ds``: degrees, classes by part of the split, edges from class to class.

    Raises: OSError when the folder cannot be written.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else it tells of its font cache on standard error
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    src, dst = (ends.numpy().astype(np.int64) for ends in ds.graph.edges())
    mixing = _mixing(ds, src[src != dst], dst[src != dst])
    panels = 1 + bool(_balance(ds)) + (mixing is not None)
    figure = Figure(figsize=(4.6 * panels, 4.2), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(repr(ds), x=0.02, ha="left", fontsize=10, color=_INK)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    _draw_degrees(axes.pop(0), ds, src, dst)
    if _balance(ds):
        _draw_balance(axes.pop(0), ds)
    if mixing is not None:
        _draw_mixing(axes.pop(0), figure, ds, mixing)
    target = Path(path)
    write_atomic(target, lambda file: figure.savefig(file, format=target.suffix.lstrip(".") or "png"))
    return target


def _draw_degrees(axis: Any, ds: Dataset, src: NDArray[np.int64], dst: NDArray[np.int64]) -> None:
    """Share of the nodes with at least so many edges, on logarithmic axes."""
    into, out = (np.bincount(ends, minlength=ds.num_nodes) for ends in (dst, src))
    curves = [(into, "in", _BLUE), (out, "out", "#e08214")]
    if np.array_equal(into, out):
        curves = [(into, "in and out", _BLUE)]
    for counts, label, color in curves:
        degrees = np.sort(counts)
        degrees = degrees[degrees > 0]
        if degrees.size:
            share = (degrees.size - np.arange(degrees.size)) / ds.num_nodes
            axis.step(degrees, share, where="pre", color=color, linewidth=1.6, label=label, alpha=0.9)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("degree", color=_INK)
    axis.set_ylabel("share of nodes with at least that", color=_INK)
    axis.grid(color=_GRID, linewidth=0.8)
    if axis.lines:
        axis.legend(frameon=False, fontsize=9)


def _draw_balance(axis: Any, ds: Dataset) -> None:
    """Rows of each class by the part of the split that they are in."""
    y, names = ds.y.numpy(), ds.class_names or tuple(map(str, range(ds.num_classes)))
    order = {name: i for i, name in enumerate(names)}
    shown = list(_balance(ds))[:_MOST_CLASSES]
    part_of = np.full(ds.num_rows, 3)
    for index, part in enumerate(_PARTS):
        part_of[ds.idx(part).numpy()] = index
    base = np.zeros(len(shown))
    for index, title in enumerate((*_PARTS, "in no part")):
        rows = part_of == index
        held = [(y[rows] == order[n]).sum() if y.ndim == 1 else (y[rows, order[n]] > 0.5).sum() for n in shown]
        if any(held):
            axis.bar(shown, held, bottom=base, color=_COLORS[title], label=title)
        base += held
    axis.set_ylabel("nodes" if ds.has_node_rows else "edges" if ds.graph_ptr is None else "graphs", color=_INK)
    axis.tick_params(axis="x", rotation=90 if len(shown) > 8 else 0, labelsize=8)
    axis.legend(frameon=False, fontsize=9, loc="upper right")


def _draw_mixing(axis: Any, figure: Any, ds: Dataset, counts: NDArray[np.float64]) -> None:
    """Where the edges of each class lead, as shares."""
    names = ds.class_names or tuple(map(str, range(ds.num_classes)))
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axis.imshow(share, vmin=0, vmax=1, cmap="Blues")
    if len(names) <= _MOST_CLASSES:
        axis.set_xticks(range(len(names)), names, rotation=90 if len(names) > 8 else 0, fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
    if len(names) <= 10:
        for (row, column), value in np.ndenumerate(share):
            color = "white" if value > 0.6 else _INK
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
    axis.set_xlabel("class of the destination", color=_INK)
    axis.set_ylabel("class of the source", color=_INK)
    figure.colorbar(image, ax=axis, shrink=0.8, label="share of the edges")


__all__ = ["Inspection", "inspect"]
