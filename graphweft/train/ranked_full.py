"""Full batches over ranks: every rank computes the rows of its part and borrows the others' layer by layer.

Comes in: what :class:`FullBatch` takes, and the ranks. Goes out: the same losses and scores. Rows of ghosts are fetched
before every layer but the first, whose features are at hand; their gradients travel back; gradients of weights are
summed. Called by the trainer.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphweft import _config
from graphweft._backward import backward_from
from graphweft._errors import ConfigError, ShapeError
from graphweft._memory import POOL
from graphweft._trace import active, span
from graphweft.data.dataset import Part
from graphweft.data.part_dataset import PartDataset
from graphweft.dist.batch_norm import batch_norms, shared_norms, statistics_bytes
from graphweft.dist.halo import fetched, pieces_over_ranks
from graphweft.dist.halo_forms import Leftovers, settle
from graphweft.dist.local_part import LocalPart
from graphweft.dist.rank_graph import RankGraph
from graphweft.dist.ranks import Ranks
from graphweft.graph.block import Block, with_all_degrees
from graphweft.graph.graph import Graph
from graphweft.interop.pyg_model import PyGModel
from graphweft.nn.module import CompiledModule
from graphweft.nn.stack import Stack
from graphweft.partitioning.partition import check_filled, partition
from graphweft.partitioning.report import Exchange
from graphweft.runtime.constants import Reference, consumed, once, owning
from graphweft.runtime.tape import Tape
from graphweft.storage.feature import SparseFeatures, is_dense
from graphweft.storage.gather import gather_rows
from graphweft.train.full_batch import SPLITS, FullBatch, evaluation, is_hooked, is_plain
from graphweft.train.metrics import Evaluation
from graphweft.train.ranked_gradients import LayerSums, WholeSum
from graphweft.train.ranked_tape import RankedStep
from graphweft.train.row_probe import check_rows_apart
from graphweft.train.target import Cells, Classes

_SCORED = 1 << 14  # rows that are scored at once
_STRIDE = 0x9E3779B97F4A7C15  # between the keys of ranks


class RankedFullBatch(FullBatch):
    """Full batches over ranks; arguments as :class:`FullBatch`, and the ranks first.

    ``together``: whether neighbours among a rank's nodes may stand together, where the part is cut here.

    A stack of layers runs layer by layer, the last for training nodes alone; any other model is called with a
    :class:`RankGraph` in the place of the graph.

    Raises: ConfigError for a model that reads an edge index.
    """

    def __init__(
        self, ranks: Ranks, model: nn.Module, ds: Any, *arguments: Any, together: bool = True, **options: Any
    ) -> None:
        self.ranks = ranks
        self._stack = model if isinstance(model, Stack) else None
        self._norms = batch_norms(model)
        if self._stack is None and (isinstance(model, PyGModel) or ds.graph.is_typed):
            who = type(model.model if isinstance(model, PyGModel) else model).__name__
            raise ConfigError(
                f"mode=full cannot be combined with ranks={ranks.size} for {who}, which reads "
                f"{'types' if ds.graph.is_typed else 'an edge index'}; use a model of gw.nn or gw.MessagePassing"
            )
        for module in model.modules():
            if isinstance(module, CompiledModule) and module.needs_whole_graph():
                who = type(module).__name__
                raise ConfigError(
                    f"mode=full cannot be combined with ranks={ranks.size} for {who}, which reads the whole graph"
                )
        # On one host there is little to hide, and two blocks repeat work on the rows that both read.
        self._splits = not self._norms and not ranks.is_on_one_host
        ranks.at("partitioning")
        self.part, self._ids = _placed(ranks, model, ds, self._splits, together)
        if self.part.is_together:
            self.order_told = "order of nodes: neighbours together within each rank's part"
        own = self.part.own
        self._place = torch.full((ds.graph.num_nodes,), -1)
        self._place[own] = torch.arange(own.numel())
        self.bytes_of_epoch, self.ghosts, self._epoch = 0, self.part.ghosts.numel(), 0
        self._first: tuple[Reference, Any] | None = None
        self._all_ids: Tensor | None = None
        self._own_x: tuple[Any, Any] | None = None
        self._begun: list[Callable[[], None]] = []
        self._left: list[Leftovers] = []
        self._graph = RankGraph.of(self.part, self._splits)
        self._plans: RankedStep | None = None
        self._recording: Tape | None = None
        self._records, self._share = True, 0.0
        self._as_made: tuple[object, ...] = ()
        super().__init__(model, ds, *arguments, **options)
        if not is_plain(model):
            check_rows_apart(ranks, model, self.x, self.edge_data)

    def _take(self, rows: dict[Part, Tensor]) -> None:
        super()._take(rows)
        self._wanted = self._plans = self._recording = None
        self._as_made = ()
        layers = 0 if self._stack is None else len(self._stack.layers)
        self._left = [Leftovers(index, self._begun) for index in range(layers)]
        train, place = rows["train"], self._place
        once = train.numel() == 0 or int(torch.bincount(train).max()) == 1
        places = place[train]
        self._mine = train[places >= 0]
        self._places: Tensor | None = places[places >= 0]
        self._weight = self._total(self.target.weight(self.ds.y[self._mine]))
        # the last layer is computed for training nodes only, where each of them counts once
        few = once and self._stack is not None and self._stack.jumping is None
        self._last = self.part.restricted(train) if self.ranks.agreed(0 if few else 1) == 0 else None
        if self._last is not None:  # its rows are those that count
            self._mine, self._places = self._last.targets, None
        edges = min(part.block.num_edges for part in (self.part, self._last or self.part))
        # where a rank has nothing to compute, some parameters have no gradient there
        misses = self._stack is None or self.ranks.agreed(int(not (edges and self._mine.numel()))) == 1
        groups = by_layer(self.model)
        self._whole = WholeSum(self.ranks, groups, misses) if WholeSum.serves(self.ranks, groups) else None
        self._sums = LayerSums(self.ranks, [list(itertools.chain(*groups))] if misses else groups, misses)

    def _total(self, number: int) -> int:
        """The sum over ranks."""
        return self.ranks.total(number)

    def prepare(self) -> None:
        """Layers are compiled when they first run, but for the first where its features can be given up."""
        model, active = self._stack, _config.current()
        if model is None or self._keep_features or self._released or active.tune or active.opt_level == 0:
            return
        first = self._features()
        if (
            not is_dense(first)
            or first.requires_grad
            or model.runs_apart()
            or self._norms
            or self.edge_data.inputs is not None
        ):
            return  # norms are called between layers, and sums by weights of edges may be taken again
        self.ranks.at("summing features")
        if isinstance(self.ds, PartDataset):
            self.ds.rows.let_go()  # what was looked through
        function, training = model.layer_function(0), model.training
        with owning(first):
            for trains in (False, True):  # the plans of an evaluation and of a step
                given = model.train(trains).layer_arguments(0, self.part.block, first, self.edge_data.inputs)
                with torch.set_grad_enabled(trains):
                    function.ready(replace(given, training=trains))
            columns = self.ds.rows.columns if isinstance(self.ds, PartDataset) and first is self.ds.x else None
            self._released = function.release(replace(given, training=True), columns)
        model.train(training)
        if self._released and first is not self.x:  # else its memory is gone, and its place says which sums are its own
            self.x.data = self.x.new_zeros(()).expand(self.x.shape)  # of all nodes, where this rank has those
        POOL.trim()

    def step(self) -> Tensor:
        """As one process; bytes sent are counted."""
        before = self.ranks.bytes_sent
        loss = super().step()
        self.bytes_of_epoch = self.ranks.bytes_sent - before
        if self._epoch == 1:
            POOL.trim()  # of gaps between what was computed for good, which later steps do not fit into
        return loss

    def pause(self) -> None:
        """As every kind of steps."""
        self._recording = None
        POOL.trim()

    def _gradients(self) -> Tensor:
        self._epoch += 1
        self.ranks.at(f"full batch {self._epoch}: forward and backward")
        self.model.train()
        base = int(torch.randint(2**62, ()))
        torch.default_generator.manual_seed((base + self.ranks.rank * _STRIDE) & (2**63 - 1))
        if self._steps():
            return self._stepped()
        with span("forward", "forward"):
            logits = self._own_logits(self._last)
        gradient: Tensor | None = None
        loss = 0.0
        if self._mine.numel():
            labels, places = self.ds.y[self._mine], self._places
            with span("loss", "loss"):
                found, by_row = self.target.loss(logits.detach() if places is None else logits.detach()[places], labels)
            share = self.target.weight(labels) / max(self._weight, 1)
            gradient = by_row.mul_(share)  # before it travels to other ranks
            if places is not None:
                gradient = torch.zeros_like(logits).index_add_(0, places, gradient)
            loss = float(found) * share
        gradient = torch.zeros_like(logits) if gradient is None else gradient
        begun = self._begin_loss(loss) if self._whole is None else None  # it travels while layers go backward
        with span("backward", "backward"), self._sums.during_backward() if self._whole is None else nullcontext():
            backward_from(logits, gradient)
        settle(self._begun)
        return self._summed(loss, begun)

    def _begin_loss(self, loss: float) -> tuple[Tensor, Callable[[], None]]:
        """The sum of losses, shape (1,), and what waits for it."""
        total = torch.tensor([loss])
        return total, self.ranks.begin_add_up(total)

    def _summed(self, loss: float, begun: tuple[Tensor, Callable[[], None]] | None = None) -> Tensor:
        """The loss of all ranks, shape (), once all gradients are sums. ``begun``: its sum, where it is under way."""
        self.ranks.at(f"full batch {self._epoch}: sum of losses")
        if self._whole is None:
            total, finish = begun or self._begin_loss(loss)
            finish()
            found = total[0]
        else:
            found = self._whole.add(loss)
        self.ranks.let_go()  # all have ended their backward passes
        return found

    def _steps(self) -> bool:
        """Whether this step is one of plans alone; it is made, by all ranks, and recorded before the first."""
        if self._as_made != self._state():
            self._plans = self._recording = None  # give their memory back before there are others
            self._plans, self._as_made, self._records = self._made_step(), self._state(), True
            self._agree()
        return self._plans is not None and not is_hooked(self.model)

    def _agree(self) -> None:
        """All ranks agree on how rows travel, by what the plans of all of them can do."""
        before, plans = self.ranks.bytes_sent, self._plans
        wishes = "" if plans is None else plans.wishes
        said = self.ranks.texts(wishes)
        if plans is not None and wishes and all(text == wishes for text in said):
            plans.multiply_early()
        self.ranks.bytes_sent = before  # bookkeeping, not training

    def _made_step(self) -> RankedStep | None:
        """The step up to the gradients of own rows, where plans can do it."""
        model, last, ranks = self._stack, self._last, self.ranks
        if model is None or last is None or len(model.layers) < 2 or self._norms or not self._mine.numel():
            return None
        if model.out_features != self.ds.num_classes:  # refused where the model is called
            return None
        if ranks.size == 1 or ranks.halo != "exact":
            return None
        if not is_plain(self.model) or _config.current().opt_level == 0:
            return None
        parts = [*[self.part] * (len(model.layers) - 1), last]
        if any(part.outer is not None for part in parts[1:]):  # whole rows are computed while others travel
            return None
        labels = self.ds.y[self._mine]
        self._share = self.target.weight(labels) / max(self._weight, 1)
        loss = self.target.recorded(labels, None, self._share)
        return RankedStep.of(model, parts, self._features(), self.edge_data.inputs, loss)

    def _stepped(self) -> Tensor:
        """Gradients by the tape, or call by call where somebody wants to see the calls; the loss, shape ()."""
        assert self._plans is not None  # as asked before
        if self._whole is None:
            return self._overlapped(self._plans)
        if active() is not None:
            cells, gradients = self._plans.run()
        else:
            if self._recording is not None and not self._recording.is_ready():
                self._recording = None  # an evaluation has computed something for good in its memory
            if self._recording is None and self._records:
                self._recording = self._plans.record()
                self._records = self._recording is not None  # another trial would end alike
            cells, gradients = self._plans.run() if self._recording is None else self._recording.replay()
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients.get(name)
        return self._summed(self._loss_of(cells))

    def _overlapped(self, plans: RankedStep) -> Tensor:
        """Gradients by plans, while sums of what is known of them travel; the loss, shape ()."""
        parameters, begun = dict(self.model.named_parameters()), list[tuple[Tensor, Callable[[], None]]]()
        for parameter in parameters.values():
            parameter.grad = None

        def arrived(gradients: dict[str, Tensor]) -> None:
            for name, gradient in gradients.items():
                parameters[name].grad = gradient
                self._sums.arrived(parameters[name])

        with self._sums.during_backward():
            plans.run(lambda cells: begun.append(self._begin_loss(self._loss_of(cells))), arrived)
        return self._summed(0.0, begun.pop())

    def _loss_of(self, cells: Cells) -> float:
        """What own rows add to the loss."""
        return cells.mean * self._share

    def _own_logits(self, last: LocalPart | None = None) -> Tensor:
        """Logits of this rank's nodes; of the targets of ``last`` alone where that is given."""
        with shared_norms(self.ranks, self._norms):
            rows = self._called() if self._stack is None else self._by_layer(self._stack, last)
        expected = ((self.part.own if last is None else last.targets).numel(), self.ds.num_classes)
        if tuple(rows.shape) != expected:
            raise ShapeError(f"model: expected logits of shape {expected} for own nodes, got {tuple(rows.shape)}")
        return rows

    def _called(self) -> Tensor:
        """The model as it is, called with this rank's graph and the features of own nodes."""
        table, count = self._features(), self.part.own.numel()
        if self._own_x is None or self._own_x[0] is not table:
            own = table[:count] if isinstance(table, Tensor) else gather_rows(table, torch.arange(count))
            self._own_x = table, own
            self._graph.know(own, table)
        rows: Tensor = self.model(self._graph, self._own_x[1], **self.edge_data.keywords())
        return rows

    def _by_layer(self, model: Stack, last: LocalPart | None) -> Tensor:
        """Layer by layer, the last for the targets of ``last`` where that is given."""
        layers, first = len(model.layers), self._features()
        with owning(first), once():
            rows = model.run_layer(0, self.part.block, first, self.edge_data.inputs)
        if layers == 1 and last is not None:
            return rows[self._place[last.targets]]
        kept = [rows] if model.jumping == "cat" else []
        for index in range(1, layers):
            part = self.part if last is None or index < layers - 1 else last
            left = self._left[index] if model.training else None
            run = functools.partial(self._layer, index)
            given = [rows.contiguous()]
            del rows  # the call alone holds them, and lets go of them once they are in the table
            factors = self._plans.factors(index) if model.training and self._plans is not None else None
            pieces = pieces_over_ranks(part, given.pop(), run, left, self._splits, factors)
            rows = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            if not torch.is_grad_enabled():
                self.ranks.let_go()
            if model.jumping == "cat":
                kept.append(rows)
        return torch.cat(kept, 1) if model.jumping == "cat" else rows

    def _features(self) -> Any:
        """Features of own nodes and ghosts, gathered once, so that sums of them are computed once as well."""
        seen = Reference(self.x)
        if self._first is None or (self._first[0] != seen and not self._released):
            here = isinstance(self.ds, PartDataset)  # in this order already
            self._first = seen, self.x if here else gather_rows(self.x, self.part.n_id)
        return self._first[1]

    def _layer(self, index: int, block: Block, rows: Tensor) -> Tensor:
        assert self._stack is not None  # as its layers run
        # in one piece they are a table of their own, which no backward call reads where there is none
        alone = not (self._splits or torch.is_grad_enabled())
        with once(), consumed(rows) if alone else nullcontext():
            return self._stack.run_layer(index, block, rows, self.edge_data.inputs)

    def logits(self) -> Tensor:
        """Logits of all nodes in evaluation mode, by id in the whole graph, each rank computing those of its own."""
        own = self._evaluated()
        if self._all_ids is None:
            ids = self.part.own if self._ids is None else self._ids[self.part.own]
            self._all_ids = self._of_all(ids)
        table = self._of_all(own)
        logits = torch.empty_like(table)
        logits[self._all_ids] = table
        return logits

    def _of_all(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, rank by rank."""
        counts = [int(text) for text in self.ranks.texts(str(rows.shape[0]))]
        ends = [0, *itertools.accumulate(counts)]
        cuts = list(itertools.pairwise(ends))
        table = rows.new_empty(ends[-1], *rows.shape[1:])
        table[slice(*cuts[self.ranks.rank])] = rows
        self.ranks.gather_rows(table, cuts)
        return table

    def evaluate(self) -> Evaluation:
        """As one process. Of classes only counts and losses travel, of other labels the rows of the splits."""
        own = self._evaluated()
        y, place = self.ds.y, self._place
        mine = {name: ids[place[ids] >= 0] for name, ids in self.rows.items()}
        if isinstance(self.target, Classes) and not self.metrics and own.shape[1] != 2:
            return self._counted(own, mine)
        rows: dict[Part, Tensor] = {}
        outputs, labels, end = [], [], 0
        for name in SPLITS:
            outputs.append(self._of_all(own[place[mine[name]]]))
            labels.append(self._of_all(y[mine[name]]))
            rows[name] = torch.arange(end, end + labels[-1].shape[0])
            end += labels[-1].shape[0]
        return evaluation(self.target, torch.cat(outputs), torch.cat(labels), rows, self.metrics)

    def _counted(self, own: Tensor, mine: dict[Part, Tensor]) -> Evaluation:
        """Accuracies and the loss, from what each rank has of them."""
        found = torch.zeros(len(SPLITS), 3, dtype=torch.float64)  # rows, right ones, sum of losses
        labels = gather_rows(self.ds.y, self.part.own)
        assert isinstance(labels, Tensor)  # as they are no features
        for row, name in zip(found, SPLITS, strict=True):
            for places in torch.split(self._place[mine[name]], _SCORED):
                scored = self.target.score(own, labels, places)  # rows are read where they lie
                if scored.score is not None and scored.loss is not None:
                    row += torch.tensor([1.0, scored.score, scored.loss], dtype=torch.float64) * places.numel()
        self.ranks.add_up(found)
        self.ranks.let_go()
        told = {name: row.tolist() for name, row in zip(SPLITS, found, strict=True)}
        scores = {name: round(right) / rows if rows else None for name, (rows, right, _) in told.items()}
        rows, _, loss = told["val"]
        return Evaluation(scores, loss / rows if rows else None)

    def _evaluated(self) -> Tensor:
        """Logits of own nodes in evaluation mode."""
        self.ranks.at(f"full batch {self._epoch}: evaluation")
        self.model.eval()
        arena = None if self._recording is None else self._recording.arena
        with torch.no_grad(), POOL.within(arena, spills=True):
            return self._own_logits()


def by_layer(model: nn.Module) -> list[list[nn.Parameter]]:
    """Parameters of each layer with what follows it, then all others; of a model that is no stack in one group."""
    found: list[list[nn.Parameter]] = []
    known: set[nn.Parameter] = set()
    groups: list[tuple[nn.Module, ...]] = []
    if isinstance(model, Stack):
        groups = [(layer, *model.norms[index : index + 1]) for index, layer in enumerate(model.layers)]
    for modules in (*groups, (model,)):
        own = [p for module in modules for p in module.parameters() if p not in known]
        known |= set(own)
        found += [own] if own else []
    return found


_GUESS = 32  # columns of a layer that nobody can know


def exchange_of(model: nn.Module, train: Tensor, halo: str, x: Any = None) -> Exchange:
    """What an epoch of ``model`` exchanges; ``train`` (n,) ids of the labelled training nodes, ``x`` the features.

    Of a model that is no stack of layers a guess, good enough to choose parts by.
    """
    trained = [group for found in by_layer(model) if (group := [p for p in found if p.requires_grad])]
    sums = tuple(sum(p.nbytes for p in group) for group in trained)
    sums += tuple(size for norm in batch_norms(model) for size in statistics_bytes(norm.num_features))
    marks = tuple(len(group) * group[0].element_size() for group in trained)
    marks += (0,) * (len(sums) + 1 - len(marks))  # none for statistics and the loss
    if not isinstance(model, Stack):
        return Exchange((_GUESS, _GUESS), (_GUESS**2, _GUESS**2), (*sums, 4), None, halo)
    layers = list(model.layers)
    widths = tuple(int(layer.in_features) for layer in layers)  # type: ignore[arg-type]
    products = tuple(a * b for a, b in itertools.pairwise([*widths, model.out_features]))
    if isinstance(x, SparseFeatures) and x.shape[0]:
        products = (-(-x.values.numel() // x.shape[0]) * products[0] // widths[0], *products[1:])
    once = train.numel() == 0 or int(torch.bincount(train).max()) == 1
    rows = train if once and len(layers) > 1 and model.jumping is None else None
    return Exchange(widths, products, (*sums, 4), rows, halo, train, marks)


def owners(ranks: Ranks, graph: Graph, epoch: Exchange) -> Tensor:
    """int64 (num_nodes,): the rank of every node, in the parts that rank 0 predicts the shortest epoch with."""
    check_filled("ranks", ranks.size, graph.num_nodes)

    def make() -> bytes:
        return partition(graph, ranks.size, "auto", epoch=epoch).part.numpy().astype(np.int32).tobytes()

    data = ranks.from_first(make)
    return torch.frombuffer(bytearray(data or b"\0\0\0\0"), dtype=torch.int32)[: graph.num_nodes].long()


def _placed(ranks: Ranks, model: nn.Module, ds: Any, splits: bool, together: bool) -> tuple[LocalPart, Tensor | None]:
    """This rank's part, and the ids in the whole graph of its nodes, where it has that part alone."""
    if isinstance(ds, PartDataset):
        part = LocalPart(ranks, ds.graph, ds.owner, ds.home, splits=splits)
        if ranks.agreed(int(ds.graph.has_self_loops)):
            _exchange_degrees(part, ds.graph)
        return part, ds.ids
    train = ds.labelled("train")
    epoch = exchange_of(model, train, ranks.halo, ds.x)
    owner = owners(ranks, ds.graph, epoch)
    return LocalPart(ranks, ds.graph, owner, splits=splits, first=train, together=together), None


def _exchange_degrees(part: LocalPart, graph: Graph) -> None:
    """Degrees of ghosts with their self-loops, which only their owners have, for layers that count them."""
    degrees = graph.in_degrees().float()
    with torch.no_grad():
        degrees[part.n_id] = fetched(part, degrees[part.own].unsqueeze(1)).squeeze(1)
    with_all_degrees(graph, degrees)
