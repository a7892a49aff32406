"""The table and the chart of measured ratios in README.md, from the files in benchmarks/results/.

    python -m benchmarks report            # writes docs/images/ratios.svg and the block between the README's markers
    python -m benchmarks report --check    # exit status 1 if the README's block is not what the files say

Comes in: result files, of which the latest row per case counts. Goes out: ratios of peers over GraphWeft, as each run
measured them side by side. There is one reader per set of columns: :func:`read_epochs` for files with ``epoch_ms``,
:func:`read_batches` for files with ``batches_per_s``, :func:`read_pairs` and :func:`read_layers` for files with a peer
in the same row, :func:`read_devices` for files with ``ms`` and ``mb``.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
CHART = ROOT / "docs" / "images" / "ratios.svg"
BEGIN, END = "<!-- report: begin -->", "<!-- report: end -->"
PYG, CSR, DGL = "PyTorch Geometric", "CSR by hand", "DGL"
PEERS = (PYG, CSR, DGL)
_SMALL = 10  # ratios below it are shown with a decimal

Row = Mapping[str, str]


@dataclass(frozen=True)
class Ratio:
    """One peer over GraphWeft on one case, both measured in the same run.

    Attributes:
        part: The heading of the case: full batch, attention, typed, own layer, sampling, epoch or on a GPU.
        case: The model or the work, and the graph.
        peer: One of ``PEERS``.
        times: Time of the peer over ours.
        memory: Peak memory of the peer over ours; None where the file has none.
        bound: The peer did not finish, so that ``times`` is a lower bound.
        row: The peer's row, with the machine's stamp.
    """

    part: str
    case: str
    peer: str
    times: float
    memory: float | None
    bound: bool
    row: Row


@dataclass(frozen=True)
class Source:
    """Which rows of a family of result files are shown, and under which words.

    Attributes:
        part: The heading.
        file: Name of the family: ``<file>.csv``, ``<file>-2.csv`` and so on.
        keys: Columns that tell cases apart, beside ``system``.
        case: The words for a case, a format string over the columns.
        systems: The system that stands for every peer.
        only: Values of columns that a row must have.
    """

    part: str
    file: str
    keys: tuple[str, ...]
    case: str
    systems: Mapping[str, str]
    only: Mapping[str, tuple[str, ...]]


EPOCHS = (
    Source(
        "full batch", "full_batch", ("twin", "scale", "hidden", "layers"), "GCN {layers} x {hidden}, {twin}",
        {"default": PYG, "best": CSR, "dgl": DGL}, {"scale": ("1.0",)},
    ),
    Source(
        "attention", "gat", ("twin", "scale"), "GAT 2 x 64, 8 heads, {twin}",
        {"gat-pyg": PYG, "gat-dgl": DGL}, {"scale": ("1.0",)},
    ),
    Source(
        "typed", "typed", ("graph", "model"), "{MODEL} 2 x 64, {graph}",
        {f"{model}-{peer}": name for model in ("rgcn", "hgt") for peer, name in (("pyg", PYG), ("dgl", DGL))},
        {"graph": ("aifb", "mutag_rdf")},
    ),
    Source(
        "own layer", "user_functions", ("twin", "scale", "model"), "{MODEL} as user functions, {twin}",
        {"gcn-user-dgl": DGL, "gat-user-dgl": DGL}, {"scale": ("1.0",), "twin": ("synthetic:ogbn-arxiv",)},
    ),
)  # fmt: skip
BATCHES = (
    Source(
        "sampling", "neighbor_sampling", ("twin", "scale", "fanouts", "batch_size"),
        "neighbours {fanouts}, batch {batch_size}, {twin}", {"pyg": PYG, "dgl": DGL}, {},
    ),
    Source(
        "sampling", "neighbor_sampling", ("twin", "scale", "fanouts", "batch_size"),
        "the same with features, {twin}", {"pyg+x": PYG, "dgl+x": DGL}, {},
    ),
    Source(
        "sampling", "typed_sampling", ("graph", "scale", "fanouts", "batch_size"),
        "typed neighbours {fanouts}, batch {batch_size}, {graph}", {"dgl": DGL}, {},
    ),
    Source(
        "sampling", "link_batches", ("twin", "scale", "fanouts", "batch_size"),
        "links with negatives, {fanouts}, batch {batch_size}, {twin}", {"dgl": DGL}, {},
    ),
    Source(
        "epoch", "sampling_epoch", ("twin", "scale", "fanouts", "batch_size", "hidden"),
        "SAGE {fanouts}, hidden {hidden}, {twin}", {"dgl": DGL}, {"hidden": ("64", "256")},
    ),
)  # fmt: skip
PAIRS = (
    Source(
        "sampling", "subgraphs", ("twin", "scale", "case"), "{case}, {twin}", {},
        {"case": ("saint-node, 6000 draws", "saint-edge, 3000 draws")},
    ),
)  # fmt: skip
LAYERS = (
    Source(
        "own layer", "user_edges", ("data", "case"), "{case}, {data}", {},
        {"case": ("pairs", "attention, 8 edge features", "attention, 64 edge features")},
    ),
)  # fmt: skip
DEVICES = (
    Source(
        "on a GPU", "device_epochs", ("case", "data", "scale"), "{words}, {data} ({edges})",
        {"pyg edges": PYG, "pyg, our batches": PYG, "pyg csr": CSR}, {"case": ("gcn", "gat", "sage")},
    ),
)  # fmt: skip
_MODELS = {
    "gcn": "GCN 3 x 32",
    "gat": "GAT 2 x 64, 8 heads",
    "sage": "SAGE 15-10-5, hidden 256, on our batches",
}
_WORDS = {"pairs": "EdgeConv (network on pairs, maximum)"}


def rows_of(folder: Path, family: str) -> list[Row]:
    """The rows of ``<family>.csv``, ``<family>-2.csv`` and so on, the oldest first."""
    found: list[Row] = []
    for file in sorted(folder.glob(f"{family}*.csv")):
        suffix = file.stem.removeprefix(family)
        if not suffix or suffix.removeprefix("-").isdecimal():
            with file.open(newline="", encoding="utf-8") as text:
                found += list(csv.DictReader(text))
    return sorted(found, key=lambda row: row["time"])


def _latest(rows: Iterable[Row], source: Source) -> Iterator[Row]:
    """The last row of every case and system that the source shows."""
    last: dict[tuple[str, ...], Row] = {}
    for row in rows:
        if all(row[column] in values for column, values in source.only.items()):
            last[(*(row[key] for key in source.keys), row.get("system", ""))] = row
    yield from last.values()


def _case(source: Source, row: Row) -> str:
    words = {name: value.removeprefix("synthetic:") for name, value in row.items() if value is not None}
    words["MODEL"] = {"rgcn": "R-GCN"}.get(words.get("model", ""), words.get("model", "").upper())
    words["fanouts"] = words.get("fanouts", "").replace(" ", "-")
    words["case"] = _WORDS.get(words.get("case", ""), words.get("case", ""))
    text = source.case.format_map(words)
    if "num_nodes" not in row:  # a real set
        return text
    return f"{text} ({_count(row['num_nodes'])} nodes, {_count(row['num_edges'])} edges)"


def _count(text: str) -> str:
    """A number of nodes or edges in thousands or millions."""
    number = int(text)
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number / 1e3:.0f} k"


def read_epochs(folder: Path, sources: Sequence[Source] = EPOCHS) -> Iterator[Ratio]:
    """Ratios from files with the columns ``system, epoch_ms, times_ours, memory_times_ours, note``."""
    for source in sources:
        for row in _latest(rows_of(folder, source.file), source):
            if row["system"] in source.systems:
                memory = float(row["memory_times_ours"])
                bound = "lower bound" in row["note"]
                peer = source.systems[row["system"]]
                yield Ratio(source.part, _case(source, row), peer, float(row["times_ours"]), memory, bound, row)


def read_batches(folder: Path, sources: Sequence[Source] = BATCHES) -> Iterator[Ratio]:
    """Ratios from files with the columns ``system, batches_per_s, times_slower, peak_mib``.

    The line of the same run with ``times_slower`` 1 is ours.
    """
    for source in sources:
        rows = rows_of(folder, source.file)
        for row in _latest(rows, source):
            if row["system"] not in source.systems or not row["times_slower"]:  # a peer that did not run has no times
                continue
            same = (*source.keys, "time")
            ours = [r for r in rows if r["times_slower"] == "1.0" and all(r[key] == row[key] for key in same)]
            memory = float(row["peak_mib"]) / float(ours[0]["peak_mib"]) if ours else None
            peer = source.systems[row["system"]]
            yield Ratio(source.part, _case(source, row), peer, float(row["times_slower"]), memory, False, row)


def read_pairs(folder: Path, sources: Sequence[Source] = PAIRS) -> Iterator[Ratio]:
    """Ratios from files with the columns ``case, batches_per_s, peer_batches_per_s, times_faster``; the peer is PyG."""
    for source in sources:
        for row in _latest(rows_of(folder, source.file), source):
            yield Ratio(source.part, _case(source, row), PYG, float(row["times_faster"]), None, False, row)


def read_layers(folder: Path, sources: Sequence[Source] = LAYERS) -> Iterator[Ratio]:
    """Ratios from files with the columns ``case, times, pyg_mib, graphweft_mib``; the peer is PyG."""
    for source in sources:
        for row in _latest(rows_of(folder, source.file), source):
            memory = float(row["pyg_mib"]) / float(row["graphweft_mib"])
            yield Ratio(source.part, _case(source, row), PYG, float(row["times"]), memory, False, row)


def read_devices(folder: Path, sources: Sequence[Source] = DEVICES) -> Iterator[Ratio]:
    """Ratios from files with the columns ``case, data, scale, edges, system, ms, mb``.

    The line of the same run with the system "graphweft" is ours.
    """
    for source in sources:
        rows = rows_of(folder, source.file)
        for row in _latest(rows, source):
            if row["system"] not in source.systems:
                continue
            same = (*source.keys, "time")
            ours = next(r for r in rows if r["system"] == "graphweft" and all(r[key] == row[key] for key in same))
            words = {"words": _MODELS[row["case"]], "data": row["data"], "edges": f"{_count(row['edges'])} edges"}
            times, memory = (float(row[column]) / float(ours[column]) for column in ("ms", "mb"))
            peer = source.systems[row["system"]]
            yield Ratio(source.part, source.case.format_map(words), peer, times, memory, False, row)


def ratios(folder: Path = RESULTS) -> list[Ratio]:
    """All ratios that are shown, by part."""
    found = [*read_epochs(folder), *read_layers(folder), *read_batches(folder), *read_pairs(folder)]
    found += read_devices(folder)
    parts = list(dict.fromkeys(source.part for source in (*EPOCHS, *BATCHES, *PAIRS, *DEVICES)))
    return sorted(found, key=lambda ratio: parts.index(ratio.part))


def shown(value: float) -> str:
    """A ratio as people read it.

    Example:
        >>> shown(3.68), shown(72.33)
        ('3.7', '72')
    """
    return f"{value:.1f}" if value < _SMALL else f"{value:.0f}"


def _grouped(found: Sequence[Ratio]) -> dict[tuple[str, str], dict[str, Ratio]]:
    groups: dict[tuple[str, str], dict[str, Ratio]] = {}
    for ratio in found:
        groups.setdefault((ratio.part, ratio.case), {})[ratio.peer] = ratio
    return groups


def _machine(row: Row) -> str:
    device = f", {row['device']}" if row.get("device") else ""
    return (
        f"{row['processor']}, {row['threads']} threads of {row['cores']} cores, {row['level']}, "
        f"{row['memory_gib']} GiB{device}, torch {row['torch']}, Python {row['python']}"
    )


def table(found: Sequence[Ratio]) -> str:
    """The Markdown table: a line per case, time and memory of every peer over ours, and what it was measured on."""
    machines = list(dict.fromkeys(_machine(ratio.row) for ratio in found))
    marks = {machine: "" if len(machines) == 1 else f" {chr(ord('a') + i)}" for i, machine in enumerate(machines)}
    lines = [
        f"| | case | {' | '.join(PEERS)} | memory: {' | memory: '.join((PYG, DGL))} | measured |",
        f"|---|---|{'---:|' * 5}---|",
    ]
    before = ""
    for (part, case), peers in _grouped(found).items():
        times = (_time_cell(peers.get(peer)) for peer in PEERS)
        memory = (_memory_cell(peers.get(peer)) for peer in (PYG, DGL))
        days = sorted({ratio.row["time"][:10] + marks[_machine(ratio.row)] for ratio in peers.values()})
        lines.append(
            f"| {part if part != before else ''} | {case} | {' | '.join((*times, *memory))} | {' to '.join(days)} |"
        )
        before = part
    versions = sorted({note for ratio in found if (note := _version(ratio)) and ratio.peer != CSR})
    on = "; ".join(f"{marks[machine].strip()} {machine}".strip() for machine in machines)
    return "\n".join([*lines, "", f"Measured on: {on}. Peers: {'; '.join(versions)}."])


def _time_cell(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{'> ' if ratio.bound else ''}{shown(ratio.times)}"


def _memory_cell(ratio: Ratio | None) -> str:
    return "" if ratio is None or ratio.memory is None else shown(ratio.memory)


def _version(ratio: Ratio) -> str:
    """The peer's version as its row's note has it."""
    parts = ratio.row.get("note", "").split(", ")
    return " with ".join(part for part in parts if part.startswith(("torch_geometric", "dgl", "torch ")))


_ABOUT = f"""\
Time and peak memory of other libraries over GraphWeft's on the same case: 10 means ten times as long. In every line the
systems took turns in one run, after their losses or samples had been compared. The name of a published set stands for a
synthetic graph with its degrees and sparsity, of the size given. *{PYG}* is the library as its examples use
it, on edge lists; *{CSR}* is the fastest of its layers and hand-written `torch.sparse`, both on CSR tensors. *Own
layer* is against DGL's user-defined functions in Python, where `>` marks a lower bound, as no epoch ended in 40 s, or
against the layer of {PYG} that does the same, on facebook_pages, the set itself."""


def block(found: Sequence[Ratio]) -> str:
    """What stands between the README's markers."""
    image = "![Measured ratios of time and memory](docs/images/ratios.svg)"
    return "\n".join([BEGIN, _ABOUT, "", image, "", table(found), END])


def insert(text: str, new: str) -> str:
    """``text`` with ``new`` between the markers.

    Raises: ValueError where the markers are not there, once each and in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"README.md: expected {BEGIN} and {END}, once each and in this order")
    return text[: text.index(BEGIN)] + new + text[text.index(END) + len(END) :]


def chart(found: Sequence[Ratio]) -> str:
    """The chart as SVG: bars of time and of memory, a group per case, on logarithmic axes. Equal input, equal text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    colors = {PYG: "#c0504d", CSR: "#e0a030", DGL: "#4f81bd"}
    groups = _grouped(found)
    with mpl.rc_context({"svg.hashsalt": "graphweft", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(8.5, 0.33 * len(groups) + 1), facecolor="white", layout="constrained")
        panels = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for panel, title in zip(panels, ("time, GraphWeft = 1", "peak memory, GraphWeft = 1"), strict=True):
            memory = title.startswith("peak")
            for place, peers in enumerate(groups.values()):
                bars = [ratio for peer in PEERS if (ratio := peers.get(peer)) and (ratio.memory or not memory)]
                for i, ratio in enumerate(bars):
                    at = place + (i - (len(bars) - 1) / 2) * 0.27
                    value = (ratio.memory or 0.0) if memory else ratio.times
                    panel.barh(at, value - 1, height=0.25, left=1, color=colors[ratio.peer])
                    label = f"{'> ' if ratio.bound and not memory else ''}{shown(value)}"
                    panel.text(max(value, 1) * 1.06, at, label, va="center", fontsize=6)
            panel.set_xscale("log")
            panel.axvline(1, color="black", linewidth=0.8)
            panel.set_xlim(0.7, 60 if memory else 900)
            ticks = [tick for tick in (1, 3, 10, 30, 100, 300) if not memory or tick < 60]
            panel.set_xticks(ticks, [str(tick) for tick in ticks])
            panel.minorticks_off()
            panel.set_title(title, fontsize=9)
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_yticks(range(len(groups)), [f"{part}: {case.rpartition(' (')[0]}" for part, case in groups])
        panels[0].set_ylim(len(groups) - 0.4, -0.6)
        keys = [mpl.patches.Patch(color=color, label=peer) for peer, color in colors.items()]
        figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def main(given: Sequence[str]) -> int:
    """Writes the README's block and the chart, or compares them; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="write the table and the chart of the README")
    report.add_argument("--check", action="store_true", help="only compare; exit status 1 on a difference")
    report.add_argument("--results", type=Path, default=RESULTS, help="folder of the result files")
    arguments = parser.parse_args(given)
    found = ratios(arguments.results)
    text = README.read_text(encoding="utf-8")
    new = insert(text, block(found))
    if arguments.check:
        if new != text:
            sys.stderr.write("README.md is not what the result files say; run: python -m benchmarks report\n")
        return int(new != text)
    README.write_text(new, encoding="utf-8")
    CHART.parent.mkdir(parents=True, exist_ok=True)
    CHART.write_text(chart(found), encoding="utf-8")
    sys.stdout.write(f"{len(found)} ratios in README.md and {CHART.relative_to(ROOT)}\n")
    return 0
