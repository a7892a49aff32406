"""One epoch over the whole graph: forward, loss, backward, update; and one evaluation.

Comes in: a model called ``model(graph, x)``, an optimiser and the data. Goes out: the loss, or scores by split. Called
by the trainer, which times exactly :meth:`FullBatch.step` as the epoch.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn

from graphweft import _config
from graphweft._errors import DataError, ShapeError
from graphweft._memory import POOL
from graphweft._trace import active, span
from graphweft.data.dataset import Dataset, Part
from graphweft.nn.module import CompiledModule
from graphweft.runtime.dense import LossCells, cross_entropy, cross_entropy_cells
from graphweft.runtime.tape import Tape
from graphweft.storage.feature import SparseFeatures, is_dense
from graphweft.train.metrics import Evaluation, binary_cross_entropy, loss_of, score
from graphweft.train.settle import Features, settle_model

SPLITS: tuple[Part, ...] = ("train", "val", "test")
_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class FullBatch:
    """Trains a model on all nodes at once; only nodes with a known label count.

    Labels of shape (N,) are classes (cross-entropy), of shape (N, C) several per node (binary cross-entropy, entries
    that are not a number left out). A compiled model is asked for the rows of training nodes only, so that its last
    layer computes no others. Without ``keep_features`` the memory of dense features is given up once every step reads
    only what was aggregated from them; ``ds.x`` is empty of numbers then.
    """

    def __init__(
        self,
        model: nn.Module,
        ds: Dataset,
        x: Features,
        optimizer: torch.optim.Optimizer,
        keep_features: bool = True,
    ) -> None:
        self.model, self.ds, self.x, self.optimizer = model, ds, x, optimizer
        self._keep_features = keep_features
        self._tape: Tape | None = None
        self._recorded: tuple[object, ...] = ()
        self._engine = x.requires_grad  # whose gradient is then wanted, too
        self.rows: dict[Part, Tensor] = {name: ds.labelled(name) for name in SPLITS}
        self.labels = {name: ds.y[rows] for name, rows in self.rows.items()}
        train = self.rows["train"]
        few = train.numel() < ds.y.shape[0] and torch.bincount(train).max() == 1
        self._wanted = train if few and isinstance(model, CompiledModule) else None

    def prepare(self) -> None:
        """Settles what is decided by measuring, and shows the data to the compiler, so that every epoch runs alike."""
        if not isinstance(self.model, CompiledModule):
            return
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}

        def first_step() -> None:
            self._backward()
            self.optimizer.zero_grad(set_to_none=True)

        settle_model(self.model, self.ds.graph, self.x, self._wanted, first_step)
        POOL.trim()
        self.logits()  # from now on the features count as constant
        POOL.trim()
        with torch.no_grad():
            self.model.function.ready(self.model.arguments(self.ds.graph, self.x))
        self.model.train()
        arguments = self.model.arguments(self.ds.graph, self.x, self._wanted)
        self.model.function.ready(arguments)
        if not self._keep_features:
            self.model.function.release(arguments)
        POOL.trim()  # what deciding took is not needed again
        self._tape = self._record()
        if self._tape is None:
            first_step()
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers[name])

    def step(self) -> Tensor:
        """One update of the parameters; the training loss before it, shape ()."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward() if self._tape is None or not self._replays() else self._replay(self._tape)
        with span("update", "update"):
            self.optimizer.step()
        return loss

    def logits(self) -> Tensor:
        """Logits of all nodes in evaluation mode, shape (N, C)."""
        self.model.eval()
        with torch.no_grad():
            logits: Tensor = self.model(self.ds.graph, self.x)
        return logits

    def evaluate(self) -> Evaluation:
        """Score of every split and the validation loss after one forward pass."""
        with POOL.within(None if self._tape is None else self._tape.arena, spills=True):
            logits = self.logits()
            found = {name: self._score(logits, name) for name in SPLITS}
            return Evaluation({name: score for name, (score, _) in found.items()}, found["val"][1])

    def _record(self) -> Tape | None:
        """The step up to the gradients as a tape, where the kernels do it all."""
        if self.labels["train"].dim() != 1 or self._engine or not is_plain(self.model):
            return None
        function, arguments = self.model.function, self.model.arguments(self.ds.graph, self.x, self._wanted)
        rows = self.rows["train"] if self._wanted is None else None
        labels = self.ds.y if self._wanted is None else self.labels["train"]
        plan = function.ready(arguments)
        if plan is None or [name for name, _ in plan.outputs] != ["out"] or plan.dtype_of("out") != torch.float32:
            return None
        if "seed" in plan.fixed:  # it is another number in every step
            return None

        hoisted = function.hoist(arguments)
        if isinstance(self.x, SparseFeatures):
            hoisted.append(self.x.transposed)  # made now, outside the arena
        POOL.trim()

        def gradients() -> tuple[LossCells, dict[str, Tensor | None]]:
            outputs, pullback = function.linearize(arguments)
            self._check(outputs["out"])
            cells, gradient = cross_entropy_cells(outputs["out"], labels, rows, True, over=plan.forgets("out"))
            assert gradient is not None  # it was asked for
            return cells, pullback(gradient)

        self._recorded = self._state()
        return Tape.record(gradients, [arguments, labels, rows, hoisted], function.footprint(arguments).peak)

    def _replays(self) -> bool:
        """Whether everything is where it was when the tape was recorded, and nobody wants to see the calls."""
        tape = self._tape
        if active() is not None:
            return False
        return tape is not None and tape.is_ready() and is_plain(self.model) and self._recorded == self._state()

    def _state(self) -> tuple[object, ...]:
        """What a recorded step depends on beside the numbers in its inputs."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        version = self.x._version if is_dense(self.x) else 0
        return (_config.current(), version, *((t.data_ptr(), t.dtype, t.requires_grad) for t in tensors))

    def _replay(self, tape: Tape) -> Tensor:
        """Gradients by the tape; the loss, shape ()."""
        if not self.model.training:
            self.model.train()
        cells, gradients = tape.replay()
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients.get(name)
        return torch.tensor(cells.mean, dtype=torch.float32)

    def _backward(self) -> Tensor:
        """Gradients of the training loss; the loss, shape ()."""
        self.model.train()
        graph, x, wanted = self.ds.graph, self.x, self._wanted
        if not self._engine and is_plain(self.model) and not _config.current().tune:
            with torch.enable_grad(), span("forward", "forward"):
                logits, pullback = self.model.linearize(graph, x, wanted)
            with span("loss", "loss"):
                loss, gradient = self._loss(logits)
            parameters = dict(self.model.named_parameters())
            with span("backward", "backward"):
                for name, found in pullback(gradient).items():
                    if found is not None:
                        parameters[name].grad = found
            return loss
        with span("forward", "forward"):
            logits = self.model(graph, x) if wanted is None else self.model(graph, x, rows=wanted)
        with span("loss", "loss"):
            loss, gradient = self._loss(logits.detach())
        with span("backward", "backward"):
            logits.backward(gradient)
        return loss

    def _loss(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The training loss, shape (), and its gradient by the logits."""
        rows, labels = self.rows["train"], self.labels["train"]
        self._check(logits)
        if labels.dim() == 2:
            with torch.enable_grad():
                leaf = logits.requires_grad_()
                loss = binary_cross_entropy(leaf if self._wanted is not None else leaf[rows], labels)
                return loss.detach(), torch.autograd.grad(loss, leaf)[0]
        if self._wanted is None:
            loss, _, gradient = cross_entropy(logits, self.ds.y, rows)
        else:
            loss, _, gradient = cross_entropy(logits, labels)
        assert gradient is not None  # it was asked for
        return loss, gradient

    def _check(self, logits: Tensor) -> None:
        """One row per node that was asked for, one column per class."""
        rows = self.ds.y.shape[0] if self._wanted is None else self._wanted.numel()
        expected = (rows, self.ds.num_classes)
        if tuple(logits.shape) != expected:
            raise ShapeError(f"model: expected logits of shape {expected}, got {tuple(logits.shape)}")

    def _score(self, logits: Tensor, split: Part) -> tuple[float | None, float | None]:
        """Score and loss of one split."""
        rows, labels = self.rows[split], self.labels[split]
        if labels.dim() == 2 or rows.numel() == 0:
            return score(logits[rows], labels), loss_of(logits[rows], labels) if split == "val" else None
        loss, correct, _ = cross_entropy(logits, self.ds.y, rows, want_grad=False)
        return correct / rows.numel(), float(loss)


def is_plain(model: nn.Module) -> TypeGuard[CompiledModule]:
    """Whether nobody watches or changes the forward or backward pass, so that torch's engine is not needed."""
    return (
        isinstance(model, CompiledModule)
        and type(model).forward is CompiledModule.forward
        and not any(getattr(model, hooks) for hooks in _MODULE_HOOKS)
        and not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters())
    )


def features_of(ds: Dataset) -> Features:
    """The features of ``ds``. Raises: DataError when it has none."""
    if ds.x is None:
        raise DataError(f"{ds.name}: expected node features x, got none")
    return ds.x
