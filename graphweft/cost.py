"""Predicted seconds of a kernel call from sizes, graph statistics and the machine. Pure functions.

Comes in: what a call does (:class:`Work`: kind, floating-point operations, bytes, cache lines gathered) and
coefficients. Goes out: seconds. The model is linear per kind of kernel, so that it can be fitted by least squares to
the calls of the first training step (:meth:`CostModel.fit`); before that it starts from coefficients of this kind of
machine or from a calibration. Source: GraphTensor, section IV-C (cost model of dynamic kernel placement), with
gathers priced by where the gathered rows lie.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphweft.graph.stretches import stretches_of

LINE = 64  # bytes of a cache line

# Where gathered rows lie: share of a gather's price rises with the size of what is gathered from.
_TIERS = ((2 << 20, "near"), (16 << 20, "mid"), (64 << 20, "far"))
_NEARER = 1.0e-9  # seconds less for a line that comes from a core's own cache, on benchmarks/results/node_order.csv
_ROW = 72  # bytes that a row of a sum takes as long as: its offset, and a loop whose end cannot be foreseen
_REUSED = 100  # gathers of a row, in the mean, from which it is mostly found in a cache: such graphs have hubs
_WINNERS_FROM = 48  # edges of a row, in the mean: see winners_pay
_VECTOR = 16  # columns that are computed together
# What attention does once an edge, for a head of a row, and once a row: forward, and backward for those of both ends.
# In weights of edges, fitted to 1,900 random shapes on an AVX-512 machine of two cores.
_EDGE_WEIGHTS, _HEAD_WEIGHTS, _ROW_WEIGHTS, _END_WEIGHTS = 5, 2, 55, 25

# Fitted to 140 graph convolutions of random shapes, calls and whole steps together, on an AVX-512 machine of two cores.
_DEFAULT: dict[str, tuple[float, ...]] = {
    # seconds per gathered line, per byte streamed, per call
    "gather near": (0.37e-9, 8.7e-11, 4e-6),
    "gather mid": (0.50e-9, 8.7e-11, 4e-6),
    "gather far": (0.69e-9, 8.7e-11, 4e-6),
    "gather memory": (1.02e-9, 8.7e-11, 4e-6),
    # seconds per floating-point operation, per byte streamed, per call
    "product": (4.5e-12, 1.35e-11, 9e-6),
    "contraction": (4.6e-12, 1.35e-11, 9e-6),
    # the same of operands that are rounded, on matrix tiles; no order of computation depends on it
    "product bf16": (0.5e-12, 2.7e-11, 1.2e-5),
    "contraction bf16": (0.8e-12, 2.7e-11, 1.2e-5),
    # seconds per weight of an edge, per byte gathered or streamed, per call
    "attention": (3.0e-10, 6.0e-11, 2e-5),
    "attention gradients": (3.0e-10, 6.0e-11, 2e-5),
    # (unused), seconds per byte streamed, per call
    "rows": (0.0, 2.6e-11, 1e-5),
    "plain": (0.0, 6.0e-11, 1e-5),
    # What surrounds the kernels of a step; no order of computation depends on it.
    # seconds per drawn edge, per byte of ids and offsets, per batch
    "draw": (1.2e-8, 2.0e-10, 4e-4),
    "draw in turn": (1.8e-8, 3.0e-10, 6e-4),
    # seconds per logit, per byte streamed, per call
    "loss": (2.0e-9, 6.0e-11, 5e-5),
    # (unused), seconds per byte of parameters, gradients and moments, per update
    "update": (0.0, 1.0e-10, 3e-4),
    # (unused), (unused), per epoch of batches: an order of its seeds, a loader that begins and ends
    "epoch": (0.0, 0.0, 4e-4),
    # (unused), (unused), per call that is not replayed from a recording
    "call": (0.0, 0.0, 8e-6),
    # seconds per in-edge and per byte of parts of a store that are joined to a group, (unused)
    "join": (5e-8, 1.0e-10, 0.0),
    # (unused), seconds per byte that the system maps anew, (unused)
    "pages": (0.0, 3.0e-10, 0.0),
}


# Kinds of their own that cost the same until a machine is measured: rows of one cache line, where an edge costs more
# than its line, and products of as few columns; stored entries of sparse features, each with a row of the weight.
_NARROW = ("gather", "product", "contraction")
_DEFAULT |= {f"{k} narrow": c for k, c in _DEFAULT.items() if k.split()[0] in _NARROW and not k.endswith("bf16")}
_DEFAULT |= {kind.replace("gather", "sparse"): cost for kind, cost in _DEFAULT.items() if kind.startswith("gather")}
_DEFAULT |= {f"{kind} reused": cost for kind, cost in _DEFAULT.items() if kind.startswith("gather")}
# Attention by where the rows lie that it gathers; to be found in profiles of former versions without that.
_NEAR_TO_FAR = (*(name for _, name in _TIERS), "memory")
for _kind in ("attention", "attention gradients"):
    _DEFAULT |= dict.fromkeys((f"{_kind} {tier}" for tier in _NEAR_TO_FAR), _DEFAULT.pop(_kind))


def _and_farther(kind: str) -> tuple[str, ...]:
    """A kind, and the same of what lies farther away.

    Example:
        >>> _and_farther("gather mid narrow")
        ('gather mid narrow', 'gather far narrow', 'gather memory narrow')
    """
    words = kind.split()
    at = next((i for i, word in enumerate(words) if word in _NEAR_TO_FAR), None)
    if at is None:
        return (kind,)
    tiers = _NEAR_TO_FAR[_NEAR_TO_FAR.index(words[at]) :]
    return tuple(" ".join([*words[:at], tier, *words[at + 1 :]]) for tier in tiers)


_FARTHER = {kind: _and_farther(kind) for kind in _DEFAULT}


@dataclass(frozen=True)
class Work:
    """What one kernel call does.

    Attributes:
        kind: Row of the coefficient table.
        amount: Gathered cache lines, floating-point operations, or weights of edges, by kind.
        bytes: Bytes streamed in and out, once each.
    """

    kind: str
    amount: float
    bytes: float

    def rounded(self) -> Work:
        """The same where operands of products are read in bfloat16."""
        base = self.kind.removesuffix(" narrow")
        return replace(self, kind=f"{base} bf16") if base in ("product", "contraction") else self

    def features(self) -> np.ndarray:
        """The regressors: amount, bytes, one."""
        return np.array([self.amount, self.bytes, 1.0])


Works = list[tuple[Work, float]]  # calls, and how often each is made


def gather_work(
    rows: int,
    edges: int,
    width: int,
    source_rows: int,
    item: int = 4,
    is_sparse: bool = False,
    may_order: bool = False,
) -> Work:
    """An aggregation over ``edges`` of rows of ``width`` elements of ``item`` bytes taken from ``source_rows`` rows.

    ``is_sparse``: the edges are the stored entries of sparse features, which rows of a matrix are multiplied by.
    ``may_order``: edges are read by stretches of sources where that pays, so that rows lie in a core's own cache.
    """
    lines = max(1, -(-width * item // LINE))
    tier = _tier(source_rows * width * item)
    kind = f"{'sparse' if is_sparse else 'gather'} {tier}{_narrow(lines == 1)}"
    kind = f"{kind} reused" if edges >= _REUSED * source_rows and not is_sparse else kind
    kind = "gather near" if may_order and stretches_of(rows, edges, source_rows) else kind
    return Work(kind, float(edges) * lines, float(rows) * (width * item + _ROW) + edges * 4.0)


def winners_pay(rows: int, edges: int) -> bool:
    """Whether the gradient of an extremum over ``edges`` into ``rows`` rows reads winners and no edges.

    Winners took as long as edges at some sixteen edges a row, 0.35 to 0.57 of their time at 32 and 0.24 to 0.41 at 48.
    Sizes alone decide, as sums of rows that are cut have another order.

    Example:
        >>> winners_pay(58_241, 28_653_972), winners_pay(169_343, 2_315_598)
        (True, False)
    """
    return edges >= _WINNERS_FROM * rows


def routed_work(rows: int, width: int, source_rows: int, item: int = 4) -> Work:
    """The gradient of an extremum that reads winners: each number of ``rows`` rows is added to that of one source.

    A line of columns at a time, so each number reads a line of its own.
    """
    numbers = float(rows) * width
    return Work(
        f"gather {_tier(source_rows * min(width * item, LINE))}",
        numbers,
        numbers * (item + 4) + source_rows * width * item,
    )


def _tier(nbytes: int) -> str:
    """Where rows of so many bytes in all mostly lie."""
    return next((name for bound, name in _TIERS if nbytes <= bound), "memory")


def _narrow(is_narrow: bool) -> str:
    """The end of a kind's name."""
    return " narrow" if is_narrow else ""


def nearer_seconds(works: Works) -> float:
    """Seconds that gathers would take less if all of their rows came from a core's own cache.

    Of constants, not of a machine's profile: what follows from it changes the order of sums.

    Example:
        >>> gathers = [(gather_work(9, 10**6, 16, 10**6), 2.0), (gather_work(9, 10**6, 16, 100), 1.0)]
        >>> nearer_seconds(gathers)
        0.002
    """
    far = (count * work.amount for work, count in works if _is_far(work))
    return _NEARER * sum(far)


def moved_nearer(works: Works, share: float) -> Works:
    """The same where this share of the gathered rows comes from a core's own cache."""
    found: Works = []
    for work, count in works:
        if not _is_far(work):
            found.append((work, count))
            continue
        what, _, *more = work.kind.split()
        found += [(work, (1 - share) * count), (replace(work, kind=" ".join((what, "near", *more))), share * count)]
    return found


def _is_far(work: Work) -> bool:
    """Whether rows are gathered from more than a core's own cache holds."""
    what, *more = work.kind.split()
    return what in ("gather", "sparse") and more[0] != "near"


def product_work(n: int, k: int, m: int, item: int = 4) -> Work:
    """``n x k`` rows times a ``k x m`` weight."""
    return _dense_work("product", n, k, m, item)


def contraction_work(n: int, k: int, m: int, item: int = 4) -> Work:
    """``k x n`` times ``n x m``, summed over the rows."""
    return _dense_work("contraction", n, k, m, item)


def _dense_work(kind: str, n: int, k: int, m: int, item: int) -> Work:
    """Columns are paid in whole vectors."""
    kind = f"{kind}{_narrow(m <= _VECTOR)}"
    return Work(kind, 2.0 * n * k * (-(-m // _VECTOR) * _VECTOR), float(n) * (k + m) * item)


def attention_work(
    rows: int, edges: int, heads: int, channels: int, source_rows: int, shared: bool = False, backward: bool = False
) -> Work:
    """Attention of ``heads`` heads over ``edges``, or its gradients; ``shared`` values are read once for all heads.

    Forward reads source rows and writes destinations' twice, for the backward pass too; backward reads destinations'
    rows at the edges and writes sources'. What is computed with a row goes with its bytes; the amount is that of the
    weights of edges, an exponential each, and of what is done once an edge, a row and head, and a row, so that narrow
    and wide rows, few and many heads, and rows of few edges can be told apart.
    """
    width, value = heads * channels, channels if shared else heads * channels
    amount = float(edges) * (heads + _EDGE_WEIGHTS) + rows * heads * _HEAD_WEIGHTS
    amount += (rows + source_rows) * _END_WEIGHTS if backward else rows * _ROW_WEIGHTS
    if backward:
        moved = edges * width + source_rows * (2 * value + heads) + rows * 3 * width
        return Work(f"attention gradients {_tier(4 * rows * width)}", amount, 4.0 * moved)
    moved = edges * value + source_rows * heads + rows * 2 * width
    return Work(f"attention {_tier(4 * source_rows * value)}", amount, 4.0 * moved)


def rows_work(elements: float, passes: int = 2, item: int = 4, plain: bool = False) -> Work:
    """An element-wise pass that reads and writes ``passes`` arrays of ``elements``."""
    return Work("plain" if plain else "rows", 0.0, float(elements) * passes * item)


def draw_work(edges: int, nodes: int, item: int = 4, in_turn: bool = False) -> Work:
    """A sampled neighbourhood of ``nodes`` nodes, seeds included, and ``edges`` drawn edges.

    ``in_turn``: by all threads before the step, none beside it.
    """
    return Work("draw in turn" if in_turn else "draw", float(edges), float(item) * (edges + 2 * nodes))


def loss_work(rows: int, columns: int, item: int = 4) -> Work:
    """A loss over logits and its gradient by them."""
    return Work("loss", float(rows) * columns, 2.0 * rows * columns * item)


def update_work(parameters: int, item: int = 4) -> Work:
    """One update of ``parameters`` numbers: those, their gradients and two moments, of which three are written."""
    return Work("update", 0.0, 7.0 * parameters * item)


def call_work() -> Work:
    """What surrounds a kernel call that is made by Python, not replayed from a recording."""
    return Work("call", 0.0, 0.0)


def epoch_work() -> Work:
    """What begins and ends an epoch of batches, however many they are."""
    return Work("epoch", 0.0, 0.0)


def join_work(edges: int, nbytes: float) -> Work:
    """Parts of a store with so many in-edges that are joined to groups: sources are looked up, rows copied."""
    return Work("join", float(edges), float(nbytes))


def pages_work(nbytes: float) -> Work:
    """Memory that is mapped anew and touched, as after it was given back."""
    return Work("pages", 0.0, float(nbytes))


@dataclass(frozen=True)
class CostModel:
    """Coefficients per kind of kernel; seconds are their product with :meth:`Work.features`.

    Example:
        >>> model = CostModel()
        >>> model.seconds(product_work(1000, 64, 32)) > model.seconds(product_work(1000, 32, 32))
        True
    """

    coefficients: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: dict(_DEFAULT))

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.coefficients.items())))

    def seconds(self, work: Work) -> float:
        """Predicted seconds of one call: what lies near takes at most as long as the same from farther away.

        Tiers are measured apart, each with its own noise.
        """
        features = work.features()
        return min(float(np.dot(self.coefficients[kind], features)) for kind in _FARTHER.get(work.kind, (work.kind,)))

    def fit(self, samples: Iterable[tuple[Work, float]], weight: float = 0.3) -> CostModel:
        """Least squares on relative errors, held near the present coefficients where the samples say little.

        Args:
            samples: Calls and their measured seconds.
            weight: How strongly a coefficient that no sample determines stays what it is.
        """
        grouped: dict[str, list[tuple[Work, float]]] = {}
        for work, seconds in samples:
            if seconds > 0:
                grouped.setdefault(work.kind, []).append((work, seconds))
        fitted = dict(self.coefficients)
        for kind, calls in grouped.items():
            prior = np.array(self.coefficients[kind])
            rows = np.array([work.features() * prior / seconds for work, seconds in calls])
            system = np.vstack([rows, weight * np.eye(len(prior))])
            target = np.concatenate([np.ones(len(calls)), np.full(len(prior), weight)])
            scale = np.linalg.lstsq(system, target, rcond=None)[0]
            fitted[kind] = tuple(float(v) for v in prior * np.clip(scale, 0.05, 20.0))
        return CostModel(fitted)

    def spread(self, measured: Iterable[str]) -> CostModel:
        """Kinds that were not ``measured`` are to those of the tier before as they were to them by default."""
        known, found = set(measured), dict(self.coefficients)
        for kind in _DEFAULT:
            words = kind.split()
            at = next((i for i, word in enumerate(words) if word in _NEAR_TO_FAR[1:]), None)
            if at is None or kind in known:
                continue
            words[at] = _NEAR_TO_FAR[_NEAR_TO_FAR.index(words[at]) - 1]
            before = " ".join(words)
            found[kind] = tuple(
                new * usual / old
                for new, usual, old in zip(found[before], _DEFAULT[kind], _DEFAULT[before], strict=True)
            )
        return CostModel(found)

    def fit_sums(self, samples: Sequence[tuple[Sequence[tuple[Work, float]], float]], weight: float = 0.3) -> CostModel:
        """As :meth:`fit`, from the seconds of several calls together, as those of an epoch.

        Args:
            samples: (calls and how often each is made, measured seconds of all).
            weight: As for :meth:`fit`.
        """
        kinds = sorted({work.kind for calls, _ in samples for work, _ in calls})
        prior = np.concatenate([self.coefficients[kind] for kind in kinds])
        place = {kind: 3 * at for at, kind in enumerate(kinds)}
        rows = np.zeros((len(samples), len(prior)))
        for row, (calls, seconds) in zip(rows, samples, strict=True):
            for work, count in calls:
                row[place[work.kind] : place[work.kind] + 3] += count * work.features() / seconds
        system = np.vstack([rows * prior, weight * np.eye(len(prior))])
        target = np.concatenate([np.ones(len(samples)), np.full(len(prior), weight)])
        scale = np.clip(np.linalg.lstsq(system, target, rcond=None)[0], 0.1, 10.0)
        fitted = {kind: tuple(float(v) for v in (scale * prior)[at : at + 3]) for kind, at in place.items()}
        return CostModel({**self.coefficients, **fitted})

    def error(self, samples: Iterable[tuple[Work, float]]) -> float:
        """Mean relative error over measured calls."""
        errors = [abs(self.seconds(work) - seconds) / seconds for work, seconds in samples if seconds > 0]
        return float(np.mean(errors)) if errors else 0.0

    def to_json(self) -> str:
        """Text that :meth:`from_json` reads."""
        return json.dumps({kind: list(values) for kind, values in self.coefficients.items()})

    @classmethod
    def from_json(cls, text: str) -> CostModel:
        """The model that :meth:`to_json` wrote. Raises: ValueError.

        Kinds it lacks are as those that they were a part of when it was written, or keep their defaults.
        """
        read = {kind: tuple(float(v) for v in values) for kind, values in json.loads(text).items()}
        known = {kind: read.get(kind, read.get(_before(kind), usual)) for kind, usual in _DEFAULT.items()}
        return cls({kind: known[kind] if len(known[kind]) == len(usual) else usual for kind, usual in _DEFAULT.items()})


def _before(kind: str) -> str:
    """The kind that ``kind`` was a part of in profiles of former versions."""
    if kind.startswith("attention"):
        return kind.rpartition(" ")[0]
    return kind.replace("sparse", "gather").replace(" narrow", "")
