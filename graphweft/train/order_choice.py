"""Whether full batches take the nodes in another order: as asked, or where the saving over a run pays for the order.

Comes in: steps, and what was asked. Goes out: steps that are renumbered, what of that a resumed run takes over, and a
line that says so. Called by the trainer before it prepares, and by ``gw.plan``. The choice follows from the graph, the
model and the epochs alone, neither from the machine nor from threads, as another order of sums has other last bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch

from graphweft._errors import ConfigError
from graphweft.cost import nearer_seconds
from graphweft.data.dataset import Dataset
from graphweft.data.part_dataset import PartDataset
from graphweft.dist.ranks import Ranks
from graphweft.graph.adjacency import Adjacency
from graphweft.partitioning.multilevel import NEIGHBOURS, WORTH_ORDERING
from graphweft.runtime.machine import Machine
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.train.durations import duration
from graphweft.train.epoch_steps import Steps
from graphweft.train.full_batch import is_plain
from graphweft.train.needs import Needs
from graphweft.train.node_order import NodeOrder, near_share, order_bytes
from graphweft.train.options import NODE_ORDERS, check_choice
from graphweft.train.promise import Promise
from graphweft.train.setup import Given
from graphweft.train.strategies import seconds_of_epoch

_USUAL_NEAR = 0.7  # share of the edges that an order brings together in graphs with communities
_LEAST_GAIN = 0.1  # of the edges come near, or the order that was found is not taken
_FIND, _MOVE, _COPY = 6.6e-8, 5e-9, 1e-9  # seconds for an edge that is looked at, an edge that moves, a byte of rows
_PAIRS = 256  # edges whose ends are compared
_MOST_COMPARED = 4096  # neighbours of each
_COMMUNITIES = 3.0  # times the common neighbours of ends of edges that degrees alone would give


@dataclass(frozen=True)
class OrderPrice:
    """What an order of the nodes is expected to save and to take, in seconds.

    Attributes:
        saved: Of an epoch.
        found: Once, for finding it and for moving edges and rows.
    """

    saved: float
    found: float

    @property
    def epochs(self) -> int:
        """From how many epochs on it pays.

        Example:
            >>> OrderPrice(0.5, 1.2).epochs
            3
        """
        return ceil(self.found / self.saved)

    def __str__(self) -> str:
        gain = f"{duration(self.saved)} an epoch less, {duration(self.found)} to find it"
        return f"another pays from {self.epochs:,} epochs on ({gain})"

    def told(self, epochs: int | None) -> str:
        """The line for so many epochs; None where they are not known."""
        begun = (
            "" if epochs is None else "as given; " if epochs < self.epochs else f"neighbours, for {epochs:,} epochs; "
        )
        return f"order of nodes: {begun}{self}"


class OrderChoice:
    """The choice for one run.

    Args:
        asked: "auto", "given" or "neighbours".
        steps: The steps of the run.
        obstacle: Why nodes cannot be renumbered, as messages name it; empty where they can.

    Raises: ConfigError for another choice, or one that cannot be.
    """

    def __init__(self, asked: str, steps: Steps, obstacle: str) -> None:
        check_choice("order", asked, NODE_ORDERS)
        if asked == "neighbours" and obstacle:
            raise ConfigError(f"order='neighbours' cannot be combined with {obstacle}")
        self._asked = "given" if obstacle else asked
        self._steps = steps
        self._is_open = True
        self._told = _not_there(asked, steps)

    def __str__(self) -> str:
        """A line; empty where there is nothing to choose."""
        if self._told or not self._is_open:
            return self._told
        return _line(self._asked, price_of(self._steps) if self._asked == "auto" else None, None)

    def settle(self, epochs: int | None, promise: Promise) -> None:
        """Decides once, for so many epochs to come; None: no number is known, and the given order stays."""
        if not self._is_open:
            return
        self._is_open = False
        if self._asked == "neighbours":
            self._take(NodeOrder(self._steps.ds.graph, edge_ids=_reads_edges(self._steps)), promise)
        elif self._asked == "auto":
            self._weigh(epochs, promise)

    def _weigh(self, epochs: int | None, promise: Promise) -> None:
        """Takes the order where that pays."""
        price = price_of(self._steps)
        if price is None:
            return
        if epochs is None or epochs < price.epochs:
            self._told = "" if epochs is None else price.told(epochs)
            return
        order = NodeOrder(self._steps.ds.graph, edge_ids=_reads_edges(self._steps))
        if order.gained < _LEAST_GAIN:
            told = f"neighbours together has {order.near:.0%} of the edges near, the given one {order.near_before:.0%}"
            self._told = f"order of nodes: as given; {told}"
            return
        self._take(order, promise)

    def _take(self, order: NodeOrder, promise: Promise) -> None:
        """Renumbers, and predicts anew what was predicted."""
        self._steps.renumber(order)
        self._told = (
            f"order of nodes: neighbours together, {order.near:.0%} of the edges near, {order.near_before:.0%} before; "
            f"found in {duration(order.seconds)}"
        )
        if promise.plan is not None and promise.plan.epoch_seconds is not None:
            taken = promise.plan.strategy
            needs = None if taken.needs is None else _with_order(taken.needs, self._steps)
            taken = replace(taken, seconds=seconds_of_epoch(self._steps, Machine.here()), needs=needs)
            promise.plan = replace(promise.plan, strategy=taken, order=self._told)

    def identity(self) -> dict[str, Any]:
        """What makes the numbers of a run, for checkpoints: the order, where it is not the given one."""
        taken = self._steps.order is not None
        will = self._asked == "neighbours" and self._is_open
        return {"order": "neighbours"} if taken or will else {}

    def go_on_as(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Takes over what a run with the configuration ``saved`` chose by itself."""
        if self._is_open and self._asked == "auto":
            self._asked = str(saved.get("order", "given"))
        elif "order" in saved and not self.identity():
            return {"order": "given"}
        return self.identity()


def obstacle_to(steps: Steps, ds: Dataset, task: str, mode: str, memory: Any, ranks: Ranks) -> str:
    """Why the nodes of a run cannot be renumbered, as messages name it; empty where they can."""
    if not steps.takes_order:
        return f"task={task!r}" if task != "nodes" else f"mode={mode!r}"
    if not is_plain(steps.model):
        return f"{type(steps.model).__name__}, which is not compiled as a whole"
    own = [*steps.model.parameters(), *steps.model.buffers()]
    reasons = {
        "ranks": ranks.is_shared,
        f"memory={memory!r}": memory is not None,
        f"device={str(steps.device)!r}": steps.device.type != "cpu",
        "data in parts": isinstance(ds, PartDataset),
        "a graph of several types": ds.graph.is_typed,
        "a graph of two sets of nodes": not ds.graph.is_square,
        "features that are trained": steps.x.requires_grad,
        "a parameter with a row for every node": any(t.dim() and t.shape[0] == ds.num_nodes for t in own),
    }
    return next((name for name, is_so in reasons.items() if is_so), "")


def order_planned(given: Given, steps: Steps, memory: Any, needs: Needs | None) -> tuple[str, Needs | None]:
    """What a plan for ``steps`` of what was ``given`` says of the order of the nodes, and ``needs`` with it.

    The line is empty where there is nothing to choose.
    """
    if told := _not_there(given.order, steps):
        return told, needs
    if given.order == "given" or obstacle_to(steps, given.ds, given.task, given.mode, memory, given.ranks):
        return "", needs
    price = price_of(steps) if given.order == "auto" else None
    pays = price is not None and given.epochs is not None and given.epochs >= price.epochs
    if needs is not None and (pays or given.order == "neighbours"):
        needs = _with_order(needs, steps)
    return _line(given.order, price, given.epochs), needs


def _with_order(needs: Needs, steps: Steps) -> Needs:
    """``needs`` of steps in another order: the graph and rows of features in it lie beside those that were given."""
    rows = _row_bytes(steps.x) if steps.keeps_given else 0
    return replace(
        needs,
        data=needs.data + rows,
        structure=needs.structure + order_bytes(steps.ds.graph, _reads_edges(steps)),
    )


def _row_bytes(x: Features) -> int:
    return x.values.nbytes + x.indices.nbytes if isinstance(x, SparseFeatures) else x.nbytes


def _reads_edges(steps: Steps) -> bool:
    """Whether values of edges are read by the numbers of edges."""
    return steps.edge_data.inputs is not None


def _not_there(asked: str, steps: Steps) -> str:
    """The line of steps that have an order of their own, or for which none is looked at on a device; else empty."""
    if not steps.takes_order:
        return ""
    if steps.order_told or asked != "auto" or steps.device.type == "cpu":
        return steps.order_told
    if steps.ds.graph.num_edges < WORTH_ORDERING:
        return ""
    return f"order of nodes: as given; what another saves on {steps.device} is not known"


def _line(asked: str, price: OrderPrice | None, epochs: int | None) -> str:
    """What is chosen, before it is looked for."""
    if asked != "auto":
        return "order of nodes: neighbours together" if asked == "neighbours" else ""
    return "" if price is None else price.told(epochs)


def price_of(steps: Steps) -> OrderPrice | None:
    """What an order is expected to save and to take; None where it is expected to save nothing."""
    if not steps.takes_order:
        return None
    graph, x = steps.ds.graph, steps.x
    if graph.num_edges < WORTH_ORDERING:
        return None
    csc = graph.csc
    nearer = max(_USUAL_NEAR - near_share(csc), 0.0) if has_communities(csc) else 0.0
    if not nearer:
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            found = steps.works()
    except ConfigError:  # no plan runs the model
        return None
    saved = 0.0 if found is None else nearer * nearer_seconds(found[0])
    looked_at = int(csc.degrees().clamp(max=NEIGHBOURS).sum())
    looked_at *= 1 if graph.is_symmetric else 3
    found_in = _FIND * looked_at + _MOVE * graph.num_edges + _COPY * _row_bytes(x)
    return OrderPrice(saved, found_in) if saved > 0 else None


def has_communities(csc: Adjacency) -> bool:
    """Whether ends of edges have more neighbours in common than degrees alone would give; from some hundred edges.

    Source: the expectation is that of the configuration model (Newman, Networks, section 12.4).
    """
    degrees = csc.degrees()
    rows = torch.arange(0, csc.num_rows, max(1, csc.num_rows // _PAIRS))
    common = expected = 0.0
    spread = float((degrees.double() * (degrees.double() - 1)).sum()) / max(csc.num_edges, 1) ** 2
    for row in rows[degrees[rows] > 1].tolist():
        one = _neighbours(csc, row)
        other = int(one[(7919 * row) % one.numel()])
        two = _neighbours(csc, other)
        if other == row or two.numel() < 2 or max(one.numel(), two.numel()) > _MOST_COMPARED:
            continue
        common += int(torch.isin(one, two).sum())
        expected += (one.numel() - 1) * (two.numel() - 1) * spread
    return common > _COMMUNITIES * expected


def _neighbours(csc: Adjacency, row: int) -> torch.Tensor:
    return csc.indices[int(csc.indptr[row]) : int(csc.indptr[row + 1])]


__all__ = ["OrderChoice", "OrderPrice", "has_communities", "obstacle_to", "price_of"]
