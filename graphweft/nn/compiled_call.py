"""Calls of a module that was compiled by ``gw.compile``: recorded once per content of its integer tensors, then run.

Comes in: a module and the arguments of its forward. Goes out: what forward returns. A recording serves as long as
integer tensors, shapes, attributes of modules and modes are the same, which is compared in every call; several are
kept. What cannot be recorded runs as it stands, the modules inside it compiled one by one. Called by ``compiled.py``.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from graphweft import _config
from graphweft._errors import FallbackWarning
from graphweft._torch_private import pytree, trace_state, transforms_are_on
from graphweft.frontend.captured import all_are_watched
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.recorder import Recorder, record
from graphweft.frontend.regions import AHEAD, PLAIN_TORCH
from graphweft.frontend.source import line_of, raising_line, user_depth
from graphweft.frontend.tape import Tape
from graphweft.graph.graph import Graph
from graphweft.nn.batch_call import Batch, BatchCalls, Contents, drawn_batch, one_of_many
from graphweft.nn.call_form import ORDINARY, flattened, restored
from graphweft.nn.data_arguments import Opened, has_data
from graphweft.nn.edge_arguments import as_tensors, parts_of, with_edge_index
from graphweft.nn.guards import Attributes, Guard, tensors_in
from graphweft.nn.left_attributes import LEFT, NOW, Place, Unreadable, checked
from graphweft.nn.recorded import Env, Recorded
from graphweft.nn.settings import is_watched
from graphweft.nn.stand_ins import StandIns
from graphweft.runtime.compile import Arguments, CompiledFunction
from graphweft.runtime.constants import is_declared
from graphweft.storage.fingerprint import fingerprint

_KEPT = 16  # recordings of a module
_SETTINGS = 256  # descriptions of attributes that are numbered
_TRIED = 3  # graphs, before arguments of one kind are taken to fail on all
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, slice)
_FLOATS = (torch.float32, torch.float64)
Forward = Callable[..., Any]


_OF_SEEDS: contextvars.ContextVar[Any] = contextvars.ContextVar("of_seeds", default=None)
ORIGINALS: dict[type, type[nn.Module]] = {}  # classes of compiled modules, and those of the modules as written


class Refused(Exception):
    """Arguments with which a call runs as it stands; ``inside``: modules inside may get others, and are compiled."""

    def __init__(self, reason: str, inside: bool = False) -> None:
        super().__init__(reason)
        self.inside = inside


class CompiledCalls:
    """Calls of one module.

    Args:
        module: The module.
        forward: Its forward, or another of its methods, as the user wrote it.
        lock: Held while the module records; None: one of its own.

    Attributes:
        last: The recording that ran last, None where the call ran as it stands.
        reason: Why it did.
        seeds_only: Whether calls on drawn batches give the rows of the seeds alone.
        seen: A list that receives the compiled functions that run, with their arguments; None for nobody watching.
    """

    def __init__(self, module: nn.Module, forward: Forward, lock: Any = None) -> None:
        self._module = weakref.ref(module)
        self._forward = forward
        self._guard = Guard(module)
        self._recorded: OrderedDict[Hashable, Recorded] = OrderedDict()
        self._failed: dict[Hashable, dict[Hashable, UnraisableError]] = {}
        self._inside: weakref.WeakKeyDictionary[nn.Module, CompiledCalls] = weakref.WeakKeyDictionary()
        self._places: dict[tuple[str, Any], tuple[dict[str, Any], str]] = {}
        self._structure = list(_structure_buffers(module))
        self._settings: tuple[Hashable, int] = (None, 0)
        self._numbers: dict[Hashable, int] = {}
        self._next = itertools.count(1)
        self._before: tuple[Hashable, Recorded] | None = None
        self._lock = threading.RLock() if lock is None else lock
        self._batches, self._contents = BatchCalls(), Contents()
        self._methods: dict[Forward, CompiledCalls] = {}
        self._told: set[str] = set()
        self.last: Recorded | None = None
        self.reason: str | None = None
        self.seeds_only = False
        self.seen: list[tuple[CompiledFunction, Arguments]] | None = None

    @property
    def module(self) -> nn.Module:
        """The module."""
        found = self._module()
        assert found is not None  # it calls
        return found

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module's forward returns."""
        if getattr(NOW, "recording", False):  # as a part of what is recorded
            return self._forward(self.module, *args, **kwargs)
        if not (self.seeds_only or _OF_SEEDS.get() is self):
            return self._result(args, kwargs, False)
        batch = drawn_batch(pytree.tree_leaves((args, kwargs)))
        if batch is None:
            return self._result(args, kwargs, False)
        return pytree.tree_map(batch.rows_of_seeds, self._result(args, kwargs, True))

    @contextlib.contextmanager
    def of_seeds(self) -> Iterator[None]:
        """Inside, calls on drawn batches give the rows of the seeds alone."""
        token = _OF_SEEDS.set(self)
        try:
            yield
        finally:
            _OF_SEEDS.reset(token)

    def _result(self, args: tuple[Any, ...], kwargs: dict[str, Any], seeds: bool) -> Any:
        """What forward returns; with ``seeds`` the rows of other nodes may be left out."""
        try:
            flat, spec = flattened(args, kwargs)
            opened = None
            if not ORDINARY.issuperset(map(type, flat)):
                if any(isinstance(item, Graph) for item in flat):
                    flat = with_edge_index(flat, self.module)
                    args, kwargs = restored(flat, spec)
                flat = as_tensors(flat)
                opened = Opened(flat) if has_data(flat) else None
                flat = flat if opened is None else opened.flat
            drawn = drawn_batch(flat)
            kinds, content = self._kinds(flat, drawn is None)
        except Refused as refusal:
            return self._as_it_stands(args, kwargs, refusal)
        settings = self._guard.read()
        known, number = self._settings
        kind = (
            number if settings is known else self._renew(settings),
            spec,
            None if opened is None else opened.key,
            kinds,
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            all_are_watched(),
        )
        batch = drawn if drawn is not None or not self._contents.many else self._changing(kind, content, flat)
        if batch is not None:
            made = self._of_batch(kind, batch, spec, opened, seeds)
            if made is not None:
                return made[0]
            content = self._kinds(flat)[1] if drawn is not None else content
        with self._lock:  # stand-ins are in the place of parameters while another thread records
            found, env = self._find(kind, content, flat, spec, opened)
        if isinstance(found, UnraisableError) or env is None:
            failure = found if isinstance(found, UnraisableError) else UnraisableError(_NO_SUMS)
            return self._in_parts(args, kwargs, failure)
        result = self._run(found, env, flat)
        if isinstance(result, UnraisableError):
            with self._lock:
                self._recorded.pop((kind, content), None)
                self._before = None
                self._failed.setdefault(kind, {})[content] = result
            return self._in_parts(args, kwargs, result)
        self.last, self.reason = found, None
        for path, name, value in found.assigned:
            setattr(self.module.get_submodule(path), name, value)
        result, tensors = result
        for (path, name), tensor in zip(found.left, tensors, strict=True):
            setattr(self.module.get_submodule(path), name, tensor)
        return result

    def _of_batch(self, kind: Hashable, batch: Batch, spec: Any, opened: Opened | None, seeds: bool) -> Any:
        """The result, by a recording that serves batches of any size; None where there is none."""
        flat = batch.flat
        if self._structure:  # edges of the module's own, whose content is part of a recording
            return None

        def by(recorder: Recorder) -> Tape:
            self._check_module(self.module)
            run, held = self._runner(spec, opened)
            tape, assigned, left = self._recorded_once(run, flat, held, recorder)
            if assigned or left or tape.replaced:
                raise UnraisableError(LEFT)
            return tape

        with self._lock:
            found = self._batches.get(kind, batch, seeds, by)
            env = None if found is None else found.inputs(flat, self._held)
        if found is None or env is None:
            return None
        result = self._run(found, env, flat)
        if isinstance(result, UnraisableError):
            self._batches.forget(kind)
            return None
        self.last, self.reason = found, None
        return result

    def _changing(self, kind: Hashable, content: Hashable, flat: Sequence[Any]) -> Batch | None:
        """A call without a recording of its content, which is one of many, as a batch."""
        if (kind, content) in self._recorded or not self._contents.change(kind, content):
            return None
        return one_of_many(flat)

    def know(self, other: CompiledCalls) -> None:
        """Takes over which attributes calls of another such module leave behind."""
        self._guard.leave(other._guard.left)

    def of_method(self, method: Forward) -> CompiledCalls:
        """Calls of another method of the module."""
        found = self._methods.get(method)
        if found is None:
            found = self._methods.setdefault(method, CompiledCalls(self.module, method, self._lock))
        return found

    def _renew(self, settings: Hashable) -> int:
        """Takes notice of modules or attributes that were replaced. Equal settings have equal numbers."""
        with self._lock:
            self._places.clear()
            self._structure = list(_structure_buffers(self.module))
            if len(self._numbers) > _SETTINGS:
                self._numbers.clear()
            number = self._numbers.setdefault(settings, next(self._next))
            self._settings = settings, number
        return number

    def _run(self, found: Recorded, env: Env, flat: Sequence[Any]) -> Any:
        """What a recording gives; why it cannot run, where its first run fails."""
        if found.has_run:
            return found(env, flat, self._held, self.seen)
        drawn = torch.get_rng_state()
        try:
            return found(env, flat, self._held, self.seen)
        except Exception as failure:  # the module itself runs then, and tells what is wrong with its arguments
            torch.set_rng_state(drawn)
            return UnraisableError(f"{type(failure).__name__}: {(str(failure) or ' ').splitlines()[0][:120]}")

    def _find(
        self, kind: Hashable, content: Hashable, flat: list[Any], spec: Any, opened: Opened | None
    ) -> tuple[Recorded | UnraisableError, Env | None]:
        """The recording for such arguments and its inputs; it is made where there is none."""
        key = (kind, content)
        if self._before is not None and self._before[0] == key:
            env = self._before[1].inputs(flat, self._held)
            if env is not None:
                return self._before[1], env
        known = self._recorded.get(key)
        env = None if known is None else known.inputs(flat, self._held)
        if known is not None and env is not None:
            self._recorded.move_to_end(key)
            self._before = key, known
            return known, env
        self._before = None
        failed = self._failed.setdefault(kind, {})
        if known is None and (content in failed or len(failed) >= _TRIED):
            return failed.get(content) or next(iter(failed.values())), None
        found = self._record(flat, spec, opened)
        if isinstance(found, UnraisableError):
            failed[content] = found
            while len(self._failed) > _KEPT:
                del self._failed[next(iter(self._failed))]
            return found, None
        del self._failed[kind]
        self._contents.recorded(kind)
        self._recorded[key] = found
        while len(self._recorded) > _KEPT:
            self._recorded.popitem(last=False)
        return found, found.inputs(flat, self._held)

    # arguments

    def _kinds(self, flat: Sequence[Any], read: bool = True) -> tuple[Hashable, Hashable]:
        """What recordings depend on: kinds of the arguments, and shapes and contents of structure.

        ``read``: whether anybody asks for contents.

        Raises: Refused for arguments that no recording serves.
        """
        if _config.current().opt_level == 0:
            raise Refused("opt_level=0")
        if torch.is_autocast_enabled("cpu") or transforms_are_on() or trace_state() is not None:
            raise Refused("autocast, a function transform or a trace")
        kinds: list[Hashable] = []
        content: list[Hashable] = [_mark_of(slots.get(name)) for _, slots, name in self._structure]
        edges = bool(content)
        for item in flat:
            kind = type(item)
            if kind is Tensor and item.dtype in _FLOATS and item.layout is torch.strided and item.is_cpu:
                kinds.append((item.dtype, item.dim()))
                content.append(item.shape)
            elif isinstance(item, Tensor):
                if kind not in (Tensor, nn.Parameter) or item.device.type != "cpu":
                    if type(item).__name__ == "EdgeIndex":
                        self._tell(_SIZED)
                    raise Refused(f"an argument of the class {type(item).__name__}, on {item.device.type}")
                if (item.is_floating_point() and item.dtype not in _FLOATS) or item.is_complex():
                    raise Refused(f"an argument of {item.dtype}")
                if item.layout != torch.strided:
                    kinds.append((item.dtype, item.layout))
                    content.append(self._matrix(item))
                    edges = True
                    continue
                kinds.append((item.dtype, item.dim()))
                content.append(item.shape)
                if not item.is_floating_point():
                    edges = edges or item.shape[-1:].numel() > 1
                    content.append(_mark(item) if read else None)
            elif isinstance(item, _PLAIN):
                kinds.append((type(item), repr(item) if isinstance(item, float | slice) else item))
            else:
                raise Refused(f"an argument of the class {type(item).__name__}", inside=True)
        if not edges:
            raise Refused("no edges among the arguments", inside=True)
        return tuple(kinds), tuple(content)

    def _matrix(self, item: Tensor) -> Hashable:
        """What a sparse matrix is compared by: it is structure, its numbers, too."""
        parts = None if item.requires_grad else parts_of(item)
        if parts is None:
            self._tell(_SPARSE)
            raise Refused(_SPARSE)
        return (item.shape, item.layout == torch.sparse_coo and item.is_coalesced(), *map(_mark, parts))

    # recording

    def _record(self, flat: list[Any], spec: Any, opened: Opened | None) -> Recorded | UnraisableError:
        module = self.module
        try:
            self._check_module(module)
            run, held = self._runner(spec, opened)
            once = functools.partial(self._recorded_once, run, flat, held)
            tape, assigned, left = checked(module, self._guard.left, once)
            if not all(_can_be_repeated(value) for _, _, value in assigned):
                raise UnraisableError(_CHANGES.format(type(module).__name__))
            own = (slots[name] for _, slots, name in self._structure)
            made = Recorded(tape, assigned, left, lent=[*flat, *own])
        except UnraisableError as failure:
            found = failure.with_traceback(None)
            found.__cause__ = found.__context__ = None
            return found
        except Exception as failure:  # what is wrong with the user's code is told when it runs as it stands
            text = str(failure).splitlines()[0][:120] if str(failure) else ""
            return UnraisableError(
                f"{type(failure).__name__}: {text}", raising_line(failure.__traceback__, self._forward)
            )
        if not made.regions:
            return UnraisableError(_NO_SUMS)
        self._guard.leave(left)
        for step, reason in made.planned.apart:
            if reason not in (PLAIN_TORCH, AHEAD):
                self._tell(f"{step.name} ({reason}): runs as it stands, the rest is compiled ({step.line})")
        return made

    def _runner(self, spec: Any, opened: Opened | None) -> tuple[Forward, dict[tuple[str, Any], Tensor]]:
        """Forward over flat arguments; parameters and buffers by source."""
        module = self.module
        held: dict[tuple[str, Any], Tensor] = {
            ("parameter", name): tensor for name, tensor in module.named_parameters(remove_duplicate=False)
        }
        structure = {path for path, _, _ in self._structure}
        held |= {("buffer", name): tensor for name, tensor in _buffers_of(module) if name not in structure}

        def run(given: list[Any]) -> Any:
            closed = given if opened is None else opened.closed(given)
            args, kwargs = restored(closed, spec)
            result = self._forward(module, *args, **kwargs)
            after = pytree.tree_leaves((args, kwargs))
            if len(after) != len(closed) or not all(map(is_, after, closed)):
                raise UnraisableError("forward, which changes a list or dict among its arguments")
            if opened is not None:
                opened.check()
            return result

        return run, held

    def _recorded_once(
        self,
        run: Callable[[list[Any]], Any],
        flat: Sequence[Any],
        held: Mapping[tuple[str, Any], Tensor],
        recorder: Recorder | None = None,
    ) -> tuple[Tape, list[tuple[str, str, Any]], list[Place]]:
        """The tape, attributes that the run set, and those whose tensors follow from features: its last results."""
        module = self.module
        attributes, places = Attributes(module), list[Place]()
        stand_ins = StandIns(module, self._place)

        def left(moving: Callable[[Tensor], bool]) -> list[Tensor]:
            found = attributes.values_set()
            places.extend(sorted(place for place, value in found.items() if any(map(moving, tensors_in(value)))))
            if not all(isinstance(found[place], Tensor) for place in places):
                raise UnraisableError(LEFT)
            return [*stand_ins.values(moving), *(found[place] for place in places)]

        constants = [
            tensor
            for inner in module.modules()
            for tensor in tensors_in(list(vars(inner).values()))
            if not isinstance(tensor, Unreadable)
        ]
        constants += [slots[name] for _, slots, name in self._structure]
        NOW.recording = True
        try:
            tape = record(run, flat, stand_ins.held, held, constants, left, recorder)
            tape.replaced = stand_ins.replaced
        finally:
            NOW.recording = False
            assigned = attributes.put_back()
        if assigned is None:
            raise UnraisableError(_CHANGES.format(type(module).__name__))
        return tape, assigned, places

    def _check_module(self, module: nn.Module) -> None:
        """Raises: UnraisableError for modules that are never recorded."""
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            raise UnraisableError(_UNMADE)
        if is_watched(module) or any(_asks_to_be_told(inner) for inner in module.modules()):
            raise UnraisableError("hooks on modules inside")
        if self._guard.unsteady is not None:
            raise UnraisableError(self._guard.unsteady)
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
                raise UnraisableError(f"parameters of {tensor.dtype}")

    def _place(self, kind: str, name: str) -> tuple[dict[str, Any], str]:
        path, _, last = name.rpartition(".")
        owner: Any = self.module.get_submodule(path)
        return (owner._parameters if kind == "parameter" else owner._buffers), last

    def _held(self, source: tuple[str, Any]) -> Tensor:
        if source not in self._places:
            self._places[source] = self._place(*source)
        holder, last = self._places[source]
        found: Tensor = holder[last]
        return found

    # as it stands

    def _as_it_stands(self, args: tuple[Any, ...], kwargs: dict[str, Any], refusal: Refused) -> Any:
        self.last, self.reason = None, str(refusal)
        if not refusal.inside:
            return self._forward(self.module, *args, **kwargs)
        return self._with_inner(args, kwargs)

    def _with_inner(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward as it stands; the modules right inside run compiled meanwhile."""
        inner = [] if is_watched(self.module) else self._to_compile()
        if not inner:
            return self._forward(self.module, *args, **kwargs)
        with self._lock, self._inner_compiled(inner):
            return self._forward(self.module, *args, **kwargs)

    def _in_parts(self, args: tuple[Any, ...], kwargs: dict[str, Any], failure: UnraisableError) -> Any:
        """Forward as it stands, with the modules right inside it compiled."""
        self.last, self.reason = None, failure.what
        result = self._with_inner(args, kwargs)
        if failure.what not in (_NO_SUMS, _UNMADE):  # errors of the user's code come before
            where = f" ({failure.line or line_of(self._forward)})"
            rest = "runs as it stands, modules inside are compiled"
            self._tell(f"{failure.what}: {type(self.module).__name__} {rest}{where}")
        return result

    def _to_compile(self) -> list[nn.Module]:
        """Modules right inside that may have sums over edges."""
        return [
            inner
            for inner in _right_inside(self.module)
            if type(inner) not in ORIGINALS and "forward" not in inner.__dict__ and _may_have_edges(inner)
        ]

    @contextlib.contextmanager
    def _inner_compiled(self, modules: Sequence[nn.Module]) -> Iterator[None]:
        """Inside, ``modules`` run compiled."""
        for inner in modules:
            inner.__dict__["forward"] = _Inner(self._calls_of(inner))
        try:
            yield
        finally:
            for inner in modules:
                inner.__dict__.pop("forward", None)

    def _calls_of(self, inner: nn.Module) -> CompiledCalls:
        found = self._inside.get(inner)
        if found is None:
            found = self._inside[inner] = CompiledCalls(inner, type(inner).forward)
        found.seen = self.seen
        return found

    def inside(self) -> list[CompiledCalls]:
        """Calls of the modules inside that ran on their own."""
        return [calls for calls in self._inside.values() if calls.last is not None or calls.reason is not None]

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, FallbackWarning, user_depth())


class _Inner:
    """The forward of a module inside one that runs as it stands."""

    def __init__(self, calls: CompiledCalls) -> None:
        self._calls = calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._calls.module
        mine = module.__dict__.pop("forward")
        try:
            return self._calls(args, kwargs)
        finally:
            module.__dict__["forward"] = mine


_CHANGES = "forward of {}, which changes attributes or variables"
_UNMADE = "parameters that this call makes"
_NO_SUMS = "no sums over edges"
_SPARSE = (
    "a sparse matrix with a gradient or in blocks: the call runs as it stands; edge_index and weights are compiled"
)
_SIZED = "an EdgeIndex with sizes of its own: the call runs as it stands; an edge_index and a size are compiled"


def _mark(item: Tensor) -> Hashable:
    """What an integer tensor is compared by: itself where it is declared constant, else its bytes."""
    return (id(item), item._version) if is_declared(item) else fingerprint(item)


def _mark_of(item: Any) -> Hashable:
    """What a buffer of integers is compared by; nothing where something else stands in its place."""
    return (item.shape, item.dtype, _mark(item)) if _is_structure(item) else None


def _is_structure(item: Any) -> bool:
    """Whether a buffer is read as structure: several integers, such as an ``edge_index``."""
    if type(item) is not Tensor or item.is_floating_point() or item.is_complex() or not item.is_cpu:
        return False
    return item.layout == torch.strided and item.dim() > 0 and item.numel() > 1


def _buffers_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return module.named_buffers(remove_duplicate=False)


def _structure_buffers(module: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Buffers of integers: their path, where they are held, and their name there."""
    for path, tensor in _buffers_of(module):
        if _is_structure(tensor):
            owner, _, name = path.rpartition(".")
            yield path, module.get_submodule(owner)._buffers, name


def _right_inside(module: nn.Module) -> Iterator[nn.Module]:
    """Modules that ``module`` may call itself."""
    for inner in module._modules.values():
        if isinstance(inner, nn.ModuleList | nn.ModuleDict):
            yield from _right_inside(inner)
        elif inner is not None:
            yield inner


def _may_have_edges(module: nn.Module) -> bool:
    """Whether a module is more than layers of torch."""
    return any(not type(inner).__module__.startswith("torch.nn.") for inner in module.modules())


def _asks_to_be_told(module: nn.Module) -> bool:
    """Whether hooks of another kind than torch's are set, as those of PyTorch Geometric's ``propagate``."""
    own = vars(nn.Module()).keys()
    return any(name.endswith("_hooks") and name not in own and value for name, value in vars(module).items())


def _can_be_repeated(value: Any) -> bool:
    """Whether a run may set an attribute to ``value`` again: it holds nothing that differs from call to call."""
    if isinstance(value, list | tuple):
        return all(map(_can_be_repeated, value))
    return isinstance(value, _PLAIN) or (type(value) is Tensor and not value.requires_grad)


__all__ = ["ORIGINALS", "CompiledCalls"]
