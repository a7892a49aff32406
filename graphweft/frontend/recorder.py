"""Records what a module's forward does, once, without doing the work that depends on features or parameters.

Comes in: a function to run, tensors that stand for features, parameters and buffers, and integer tensors as they are.
Goes out: a :class:`Tape`. Floating tensors are stand-ins without memory. What follows from integers, shapes and
numbers alone is computed: ids of edges with self-loops, degrees, coefficients, masks. So Python code may read it, and
the recording holds for that content alone. Python code that reads values of features or parameters stops the
recording with an :class:`UnraisableError` that names the user's line. Called by ``nn/compiled_call.py``.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from graphweft._torch_private import pytree
from graphweft._torch_recording import (
    FakeTensor,
    FakeTensorMode,
    decomposition_table,
    is_of_stand_ins,
)
from graphweft.frontend import elementwise_forms, loss_forms  # noqa: F401  they fill the table of forms
from graphweft.frontend.aliases import STOPPED, Aliases, put_back
from graphweft.frontend.assignments import assigned
from graphweft.frontend.in_place import RESHAPING, out_of_place, with_defaults
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.made_like import DRAWN_LIKE, LIKE
from graphweft.frontend.operands import leaves, mapped, mapped_tensors
from graphweft.frontend.recording_modes import Calls, Dispatching, GradientsAskedError
from graphweft.frontend.result_shapes import results_of
from graphweft.frontend.row_rules import rule_of
from graphweft.frontend.rules import DECOMPOSITIONS
from graphweft.frontend.saved_tensors import SavedTensors
from graphweft.frontend.source import UNKNOWN, current_line
from graphweft.frontend.sparse_values import SparseValues
from graphweft.frontend.sum_forms import FORMS, is_sparse
from graphweft.frontend.tape import Passed, Step, Tape, Var, graded
from graphweft.frontend.trace import without_log
from graphweft.frontend.unsteady import CALLS, what_is_unsteady

aten = torch.ops.aten

_KEPT_WHOLE = {aten.native_dropout.default, aten._native_batch_norm_legit_functional.default}
_RESULTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, slice)


class Recorder:
    """One recording.

    Args:
        tracked: Whether stand-ins want gradients where what they stand for does, as torch's autograd sees them.

    Attributes:
        tape: What was recorded so far.
    """

    def __init__(self, tracked: bool = False) -> None:
        self.tape = Tape()
        self.fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self.graded, self._tracked = torch.is_grad_enabled(), tracked
        self._vars: Any = WeakTensorKeyDictionary()  # stand-in -> its value now; None where that has to be found
        self._known: Any = WeakTensorKeyDictionary()  # tensors of structure
        self._twins: Any = WeakTensorKeyDictionary()  # structure that was written into -> its stand-in
        self._given: Any = WeakTensorKeyDictionary()  # inputs
        self._woken: Any = WeakTensorKeyDictionary()  # made under enable_grad, where the call has no gradients
        self._aliases = Aliases()
        self.saved = SavedTensors()
        self.matrices = SparseValues(self)
        self._buffers: dict[str, Tensor] = {}
        self.line, self.call = UNKNOWN, "a function"

    # inputs

    def stand_in(self, tensor: Tensor, source: tuple[str, Any]) -> Tensor:
        """A tensor without memory in place of a floating one."""
        if isinstance(tensor, FakeTensor) or type(tensor) not in (Tensor, torch.nn.Parameter):
            raise UnraisableError(f"a tensor of the class {type(tensor).__name__}")
        with self.fakes:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        var = Var(tuple(tensor.shape), tensor.dtype, source, tensor.requires_grad)
        self.tape.inputs.append(var)
        self._vars[made] = var
        self._given[made] = source
        if source[0] == "buffer":
            self._buffers[source[1]] = made
        return made.requires_grad_() if self._tracked and self.graded and var.grad else made

    def structure(self, tensor: Tensor, position: int | None = None) -> Tensor:
        """An integer tensor, taken as it is."""
        made = tensor.detach()
        self._known[made] = position
        self._given[made] = ("arg", position)
        return made

    def constant(self, tensor: Tensor) -> None:
        """Makes a tensor that code may read known."""
        if not tensor.requires_grad:
            self._known[tensor] = None
            self._given[tensor] = ("constant", None)

    # running

    def run(self, function: Callable[[], Any]) -> Tape:
        """Runs ``function`` and returns what it did.

        Raises: UnraisableError for what cannot be recorded; errors of the code itself as they are.
        """
        with self._quiet(), Calls(self), Dispatching(self):
            result = self.matrices.results(function())
        given, spec = pytree.tree_flatten(result)
        self.tape.outputs, self.tape.spec = [self._output(leaf) for leaf in given], spec
        for name, made in self._buffers.items():
            var = self._value(made)
            if var.source is None:
                self.tape.buffers[name] = var
        return self.tape.pruned()

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        before, collecting = sys.getprofile(), gc.isenabled()
        gc.disable()  # its callbacks, and what objects do when they die, are not the user's code
        try:
            with self._watched(before):
                yield
        finally:
            if collecting:
                gc.enable()

    @contextlib.contextmanager
    def _watched(self, before: Any) -> Iterator[None]:
        with warnings.catch_warnings(), without_log(), torch.inference_mode(False):
            warnings.simplefilter("ignore")
            with torch.set_grad_enabled(self.graded):
                if before is not None:  # somebody profiles, and a profiler written in C could not be put back
                    yield
                    return
                sys.setprofile(self._look)
                try:
                    yield
                finally:
                    sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        """Refuses what would happen only while recording, or what differs from call to call."""
        what = what_is_unsteady(frame, event, called) if event in CALLS else None
        if what is not None and not self._is_excused(frame):
            raise UnraisableError(what, current_line())

    def _is_excused(self, frame: FrameType) -> bool:
        """Whether nobody looks at what a frame does."""
        return False

    def _output(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            if not isinstance(leaf, _RESULTS):
                raise UnraisableError(f"a result of the class {type(leaf).__name__}", self.line)
            return leaf
        twin = self._twin(leaf)
        if isinstance(twin, FakeTensor):
            if twin in self._woken:
                raise UnraisableError("a result with gradients where the call has none")
            var = self._value(twin)
            return Passed(var.source[1]) if var.source is not None and var.source[0] == "arg" else var
        position = self._known.get(leaf, _UNKNOWN)
        if position is _UNKNOWN:
            raise UnraisableError("a result that neither is an argument nor follows from one", self.line)
        return leaf if position is None else Passed(position)

    # bookkeeping

    def _value(self, stand_in: Tensor) -> Var:
        """What a stand-in is now."""
        if self._vars[stand_in] is None:  # memory below it was written
            view = self._aliases.view(stand_in)
            assert view is not None  # only views are out of date
            self._vars[stand_in] = self._vars[self._aliases.again(view, view.base, self.dispatch)]
        found: Var = self._vars[stand_in]
        return found

    def _twin(self, tensor: Tensor) -> Tensor:
        """The stand-in of structure that something else was written into."""
        if isinstance(tensor, FakeTensor) or not self.is_moving(tensor):
            return tensor
        if tensor not in self._twins:
            view = self._aliases.view(tensor)
            assert view is not None  # its root was written
            self._twins[tensor] = self._aliases.again(view, self._twin(view.base), self.dispatch)
        found: Tensor = self._twins[tensor]
        return found

    def is_moving(self, tensor: Tensor) -> bool:
        """Whether the numbers of a tensor differ from call to call."""
        if isinstance(tensor, FakeTensor) or tensor in self.matrices:
            return True
        return len(self._twins) > 0 and self._aliases.root(tensor) in self._twins

    def check_known(self, tensor: Tensor) -> None:
        """Refuses a tensor that the function neither got nor made."""
        if not isinstance(tensor, FakeTensor) and tensor not in self._known:
            raise UnraisableError("a tensor that is no argument, parameter or buffer", self.line)

    def know(self, result: Any) -> Any:
        """Results of code on structure are structure."""
        for leaf in leaves(result):
            if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor) and leaf not in self._known:
                self._known[leaf] = None
        return result

    def asked(self) -> None:
        """Code asks which tensors want gradients. Raises: GradientsAskedError, to be recorded again with gradients."""
        if not self._tracked and any(var.grad for var in self.tape.inputs):
            raise GradientsAskedError("code that asks which tensors want gradients", self.line)
        self.tape.asks = True

    def wanted(self, tensor: Tensor, wants: bool) -> None:
        """Code says whether a tensor wants a gradient; an argument that does from now on is noted."""
        source = self._given.get(tensor)
        if source is None:
            return
        if not wants or source[0] != "arg":
            raise UnraisableError("an argument or a parameter whose gradient is switched on or off", self.line)
        self.tape.wanting.append(source[1])

    # operations

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One ATen operation."""
        schema = func._schema
        if schema.is_mutable:
            return self._in_place(func, args, kwargs)
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        if not drawn and not any(map(self.is_moving, tensors)):
            if func is not aten.lift_fresh.default and func is not aten.detach.default:
                for tensor in tensors:
                    self.check_known(tensor)
            made = self.know(func(*args, **kwargs))
            self._aliases.note(func, args, kwargs, made)
            return made
        return self._record(func, args, kwargs)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Notes an operation and gives stand-ins for its results."""
        if func is aten.native_batch_norm.default and args[5]:
            return self._batch_norm(args)
        if func is aten.index.Tensor:
            args = self._of_all_rows(args[0], self._positions(args[1]))
        args, kwargs = mapped_tensors(self._twin, (args, kwargs))
        half = any(map(_is_half, leaves((args, kwargs))))
        form = None if half else FORMS.get(func)
        form = partial(assigned, self.tape, self._vars) if func is aten.index_put.default else form
        if form is not None:
            with Dispatching(self):
                made = form(*args, **kwargs)
            if made is not None:
                return made
        decomposed = DECOMPOSITIONS.get(func) or decomposition_table.get(func)
        if decomposed is not None and rule_of(func) is None and not (half or func in _KEPT_WHOLE):
            for tensor in leaves((args, kwargs)):
                if isinstance(tensor, FakeTensor):
                    self._value(tensor)
            before = len(self.tape.steps)
            with Dispatching(self):
                made = decomposed(*args, **kwargs)
            if func in DECOMPOSITIONS or all(rule_of(step.target) is not None for step in self.tape.steps[before:]):
                return made
            del self.tape.steps[before:]  # it runs as it stands, with a gradient of its own
        made = self._shapes(func, args, kwargs)
        if func in LIKE:
            return self._like(func, made, args)
        if func in DRAWN_LIKE and made.is_contiguous():  # of the shape alone
            func, args, kwargs = DRAWN_LIKE[func], (list(made.shape),), {"dtype": made.dtype}
        self._note(func, args, kwargs, list(made) if isinstance(made, tuple | list) else [made])
        self._aliases.note(func, args, kwargs, made)
        return made

    def _like(self, func: Any, made: Tensor, args: Sequence[Any]) -> Tensor:
        """A tensor made of another's shape and dtype alone."""
        return _tensor(self.know(LIKE[func](made, args)))

    def _shapes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Results without numbers."""
        args, kwargs = mapped_tensors(_apart, (args, kwargs))
        try:
            return results_of(self.fakes, func, args, kwargs)
        except (RuntimeError, NotImplementedError) as failure:
            name = str(func._schema.name).partition("::")[2]
            if name in ("_local_scalar_dense", "item", "equal", "is_nonzero"):
                raise UnraisableError("a Python use of tensor values", self.line) from None
            if is_of_stand_ins(failure):
                raise UnraisableError(f"{name} (its result depends on values)", self.line) from None
            raise

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any]) -> None:
        """Appends the step that gives ``results``."""

        def read(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if isinstance(leaf, FakeTensor):
                return self._value(leaf)
            self.check_known(leaf)
            return leaf

        plain_args, plain_kwargs = mapped(read, (args, kwargs))
        given = {id(leaf) for leaf in leaves((args, kwargs))}
        new = [isinstance(made, Tensor) and id(made) not in given for made in results]  # some give back what they got
        outs = tuple(Var(tuple(t.shape), t.dtype) if own else None for t, own in zip(results, new, strict=True))
        if not any(new):
            return
        stops = self.graded and not torch.is_grad_enabled()
        self.tape.steps.append(Step(func, plain_args, plain_kwargs, outs, self.line, self.call, stops))
        for made, var in zip(results, outs, strict=True):
            if var is not None:
                self._vars[made] = var
                if torch.is_grad_enabled() and not self.graded:
                    self._woken[made] = None

    def _positions(self, indices: Sequence[Any]) -> list[Any]:
        """A mask over rows as the positions that it marks."""
        given = [self._twin(index) if isinstance(index, Tensor) else index for index in indices]
        if any(isinstance(index, FakeTensor) and index.dtype == torch.bool for index in given):
            raise UnraisableError("a mask of values as an index (the number of results depends on values)", self.line)
        made: list[Any] = []
        for index in given:
            if isinstance(index, Tensor) and index.dtype == torch.bool:
                self.check_known(index)
                made.extend(self.know(index.nonzero().unbind(1)))
            else:
                made.append(index)
        return made

    def _of_all_rows(self, rows: Tensor, indices: list[Any]) -> tuple[Tensor, list[Any]]:
        """Rows of a stretch of rows as those of the tensor that it is a part of."""
        index = indices[0] if len(indices) == 1 else None
        if not isinstance(index, Tensor) or isinstance(index, FakeTensor) or index.dtype != torch.int64:
            return rows, indices
        (whole, first), count = self._aliases.stretch(rows), rows.shape[0]
        if whole is rows or not index.numel() or int(index.min()) < -count or int(index.max()) >= count:
            return rows, indices  # torch tells what is wrong
        return whole, [self.know(torch.where(index < 0, index + count, index) + first)]

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation that writes into its first operand, as one that does not."""
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = [a for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        name = str(func._schema.name).partition("::")[2]
        moving = any(map(self.is_moving, tensors)) or torch.Tag.nondeterministic_seeded in func.tags
        if func is aten.native_batch_norm.default:
            return self._batch_norm(args) if moving else func(*args, **kwargs)
        if not moving and func is aten._coalesced_.default:  # a mark on a matrix of this recording
            return self.know(func(*args, **kwargs))
        if not moving:
            return self._structure_written(func, name, written, args, kwargs)
        if not args or len(written) != 1 or (func._schema.arguments[0] is not written[0] and written[0].name != "self"):
            raise UnraisableError(f"{name} (it writes into several tensors)", self.line)
        target = args[0]
        self._check_own(name, target)
        if func in RESHAPING and isinstance(target, FakeTensor) and target not in self._given:
            return self._reshaped(func, name, target, args)
        if self.graded and torch.is_grad_enabled() and self._aliases.is_closed(target):
            values = {self._value(self._twin(leaf)) for leaf in tensors if self.is_moving(leaf)}
            if not values.isdisjoint(graded(self.tape)):  # torch tells what is wrong
                raise UnraisableError(f"{name} (it writes into a view of which autograd keeps no track)", self.line)
        return self._written(func, name, target, args, kwargs)

    def _structure_written(
        self, func: Any, name: str, written: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operation on structure that writes into its operands, ``out=`` among them."""
        places = {argument.name: at for at, argument in enumerate(func._schema.arguments)}
        for argument in written:
            at = places[argument.name]
            given = args[at] if at < len(args) else kwargs.get(argument.name)
            for target in leaves(given):
                if isinstance(target, Tensor):
                    self._check_own(name, target)
        for tensor in leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self.check_known(tensor)
        return func(*args, **kwargs)

    def _check_own(self, name: str, target: Tensor) -> None:
        """Refuses to write into what the caller sees."""
        source = self._given.get(self._aliases.root(target))
        if source is not None and source[0] != "buffer":
            raise UnraisableError(f"{name} (it changes an argument or a parameter in place)", self.line)

    def _written(self, func: Any, name: str, target: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """``target`` after an operation in place that depends on values."""
        fresh = not self.is_moving(target)
        if fresh and self._aliases.view(target) is not None:
            root = self._aliases.root(target)
            self.check_known(root)
            self._twins[root] = self._moving(root)
            fresh = False
        current = target if fresh else self._twin(target)
        made = self._copied(target, args[1]) if func is aten.copy_.default else None
        if made is None:
            if (plain := out_of_place(func, name)) is None:
                raise UnraisableError(f"{name} (it writes in place)", self.line)
            made = self.dispatch(plain, (current, *args[1:]), with_defaults(func, plain, args, kwargs))
        if made.dtype != target.dtype:
            made = self.dispatch(aten._to_copy.default, (made,), {"dtype": target.dtype})
        if made.shape != target.shape:
            raise UnraisableError(f"{name} (it changes a shape in place)", self.line)
        made = made if isinstance(made, FakeTensor) else self._moving(made)
        if fresh:
            self.check_known(target)
            with self.fakes:
                current = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype)
            self._twins[target] = current
        self._set(name, current, made)
        return target

    def _reshaped(self, func: Any, name: str, target: Tensor, args: tuple[Any, ...]) -> Tensor:
        """A stand-in whose own shape changes: it is a view of what it was from then on."""
        with self.fakes:
            before = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype)
        self._vars[before] = self._vars[target]
        self._aliases.put_behind(target, before, out_of_place(func, name), args[1:])
        with self.fakes:
            func(*args)
        self._vars[target] = None
        return target

    def kept_for_backward(self, tensor: Tensor) -> Tensor:
        """A copy of autograd's own, which is the tensor itself to all that reads it."""
        made = self._shapes(aten.detach.default, (self._twin(tensor),), {})
        self._vars[made] = self._value(self._twin(tensor))
        self.saved.copied(tensor, made)
        return _tensor(made)

    def _copied(self, target: Tensor, source: Tensor) -> Tensor:
        """What ``target.copy_(source)`` writes."""
        made: Tensor = self._twin(source)
        if made.dtype != target.dtype:
            made = self.dispatch(aten._to_copy.default, (made,), {"dtype": target.dtype})
        if made.shape != target.shape:
            made = self.dispatch(aten.expand.default, (made, list(target.shape)), {})
        return made

    def _moving(self, tensor: Tensor) -> Tensor:
        """A stand-in that begins as ``tensor``."""
        with self.fakes:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        var = Var(tuple(tensor.shape), tensor.dtype)
        self.tape.steps.append(Step(aten.clone.default, (tensor,), {}, (var,), self.line, self.call))
        self._vars[made] = var
        return made

    def _set(self, name: str, written: Tensor, value: Tensor) -> None:
        """``written`` holds ``value``, and so does all memory that it shares."""
        if self.graded and not torch.is_grad_enabled() and written in self._vars:
            value = self._passing(written, value)
        self._vars[written] = self._value(value)
        for other in self._aliases.others(written):
            if other in self._vars:
                self._vars[other] = None
        while (view := self._aliases.view(written)) is not None:
            below = put_back(view, value, self.dispatch)
            if below is None:
                raise UnraisableError(f"{name} (it writes into a view)", self.line)
            if self.graded and (view.func in STOPPED or not torch.is_grad_enabled()):
                below = self._passing(view.base, below)
            written, value = view.base, below
            self._vars[written] = self._value(value)

    def _passing(self, written: Tensor, value: Tensor) -> Tensor:
        """``value`` with the gradient of what ``written`` holds: what autograd does not see changes no gradient."""
        root = self._given.get(self._aliases.root(written))
        if not written.is_floating_point() or (root is not None and root[0] == "buffer"):
            return value
        run = self.dispatch
        with torch.enable_grad():
            still = run(aten.detach.default, (written,), {})
            zero = run(aten.sub.Tensor, (written, still), {})
            finite = run(aten.lt.Scalar, (run(aten.abs.default, (still,), {}), torch.inf), {})
            zero = run(aten.where.ScalarOther, (finite, zero, 0.0), {})
            still = run(aten.detach.default, (value,), {})
            return _tensor(run(torch.ops.graphweft_trace.with_gradient_of.default, (still, zero), {}))

    def _batch_norm(self, args: tuple[Any, ...]) -> Any:
        """Batch norm in training, which moves its statistics."""
        x, weight, bias, mean, var, training, momentum, eps = (*args, *(None,) * 8)[:8]
        if not training:
            raise UnraisableError("native_batch_norm (it writes in place)", self.line)
        func = aten._native_batch_norm_legit_functional.default
        if mean is None:
            func, given = aten._native_batch_norm_legit.no_stats, (x, weight, bias, training, momentum, eps)
            return self._record(func, given, {})
        made = self._record(func, (x, weight, bias, mean, var, training, momentum, eps), {})
        for old, new in ((mean, made[3]), (var, made[4])):
            if old not in self._given:
                raise UnraisableError("batch_norm (statistics that are no buffers)", self.line)
            self._vars[old] = self._vars[new]
        return made[:3]


_UNKNOWN = object()


def _is_half(leaf: Any) -> bool:
    """Whether numbers are of half precision, which no program has: in parts they would be rounded more often."""
    return isinstance(leaf, Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)


def _tensor(made: Any) -> Tensor:
    result: Tensor = made
    return result


def _apart(tensor: Tensor) -> Tensor:
    """``tensor``; a copy where it is the numbers of a sparse matrix, which stand-ins cannot be made of."""
    base = None if isinstance(tensor, FakeTensor) else tensor._base
    return tensor.clone() if base is not None and is_sparse(base) and not is_sparse(tensor) else tensor


def record(
    function: Callable[..., Any],
    flat: Sequence[Any],
    swap: Callable[[Mapping[tuple[str, Any], Tensor]], contextlib.AbstractContextManager[None]],
    held: Mapping[tuple[str, Any], Tensor],
    constants: Sequence[Tensor] = (),
    left: Callable[[Callable[[Tensor], bool]], Sequence[Tensor]] | None = None,
    recorder: Recorder | None = None,
) -> Tape:
    """Runs ``function(flat arguments)`` on stand-ins.

    Args:
        function: Takes the flat arguments.
        flat: Arguments; floating tensors are replaced by stand-ins, others are structure.
        swap: Puts stand-ins in the place of parameters and buffers while its context lasts.
        held: Parameters and buffers by source.
        constants: More tensors that code may read; their numbers count as structure.
        left: Gives the tensors that the run left in attributes, asked with a test for those that follow from features.
            They come after what the function returns: the tape's results are the pair.
        recorder: Records; None: a new one.

    Raises: UnraisableError with the user's line.
    """
    if recorder is not None:
        return _recorded_by(recorder, function, flat, swap, held, constants, left)
    try:
        return _recorded_by(Recorder(), function, flat, swap, held, constants, left)
    except GradientsAskedError:
        pass
    except RuntimeError as failure:
        if "require grad" not in str(failure):  # a derivative that forward takes by what it was given
            raise
    return _recorded_by(Recorder(tracked=True), function, flat, swap, held, constants, left)


def _recorded_by(
    recorder: Recorder,
    function: Callable[..., Any],
    flat: Sequence[Any],
    swap: Callable[[Mapping[tuple[str, Any], Tensor]], contextlib.AbstractContextManager[None]],
    held: Mapping[tuple[str, Any], Tensor],
    constants: Sequence[Tensor],
    left: Callable[[Callable[[Tensor], bool]], Sequence[Tensor]] | None,
) -> Tape:
    """The tape of one run."""
    for tensor in constants:
        recorder.constant(tensor)
    given = []
    for at, item in enumerate(flat):
        if isinstance(item, Tensor):
            moving = item.is_floating_point() and not is_sparse(item)
            item = recorder.stand_in(item, ("arg", at)) if moving else recorder.structure(item, at)
        given.append(item)
    seen: dict[int, tuple[tuple[str, Any], Tensor]] = {}
    stand_ins = {}
    for source, tensor in held.items():
        if id(tensor) not in seen:
            seen[id(tensor)] = source, recorder.stand_in(tensor, source)
        else:
            recorder.tape.tied.append((seen[id(tensor)][0], source))
        stand_ins[source] = seen[id(tensor)][1]
    with swap(stand_ins):
        try:
            if left is None:
                return recorder.run(lambda: function(given))
            return recorder.run(lambda: (function(given), left(recorder.is_moving)))
        except UnraisableError as failure:
            failure.line = failure.line or recorder.line
            raise


__all__ = ["Passed", "Recorder", "record"]
