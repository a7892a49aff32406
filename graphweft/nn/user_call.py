"""Runs checked message-passing calls: compiled where their functions can be raised, else on the reference executor.

Comes in: a :class:`Call`. Goes out: node tensors by name. Functions are compiled once per code, kinds of fields and
kinds of what they capture, and serve every graph; what recording them came to is kept in the cache folder. Called by
``message_passing.py``.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphweft import _config
from graphweft._draws import call_key
from graphweft._errors import DtypeError, FallbackWarning, ShapeError
from graphweft._memory import keep_heap
from graphweft._torch_private import transforms_are_on, without_modes
from graphweft.frontend.algebra import MESSAGE, UPDATE
from graphweft.frontend.call import Call, Fields, absent
from graphweft.frontend.captured import Captured, capture
from graphweft.frontend.diagnosis import diagnose
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.numbers import blanked, skeleton
from graphweft.frontend.reference import run_message, run_reference, run_update
from graphweft.frontend.rules import DECOMPOSITIONS, RULES
from graphweft.frontend.source import UNKNOWN, first_line, user_depth
from graphweft.frontend.stable_key import stable_text
from graphweft.frontend.stored import StoredCall, load, store
from graphweft.frontend.udf import Given, RaisedCall, raise_call, symbolic_inputs
from graphweft.frontend.views import Edges
from graphweft.graph.degrees import receivers
from graphweft.graph.graph import Graph
from graphweft.ir.ops import SPECS
from graphweft.ir.program import Builder, Value, topological
from graphweft.ir.residency import Movement
from graphweft.nn.call_site import CallSite
from graphweft.nn.factored import Factored, FactoredCall, run_factored
from graphweft.nn.verification import verify
from graphweft.runtime.compile import Arguments, CompiledFunction

_KEPT = 512  # compiled calls kept at a time
_LARGE = 1 << 22  # bytes of a field
_FALLBACK = "runs on the reference executor"


class CompiledCall:
    """A raised call and its compiled forms: with and without nodes that receive nothing.

    Args:
        raised: The call, raised.
        square: Whether it is about one set of nodes.
    """

    def __init__(self, raised: RaisedCall | StoredCall, square: bool) -> None:
        self.raised = raised
        self.verified = False
        self._reads_all: bool | None = None
        self._square = square
        self._written = raised.written
        self._factored = Factored(raised) if self.repeats else None
        self._forms = {
            isolated: CompiledFunction(self._describe(isolated), leaves_out=isolated and raised.risky)
            for isolated in (False, True)
        }

    def _describe(self, isolated: bool) -> Any:
        def describe(builder: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
            return self.raised.write(builder, inputs, isolated, self._square)

        return describe

    @property
    def repeats(self) -> bool:
        """Whether a second run gives the same: it draws nothing and writes no buffer."""
        return not (self.raised.draws or self.raised.writes)

    def reads_all_rows(self, given: Given) -> bool:
        """Whether a value is made of all edges or nodes at once; ``given``: what the program is called with."""
        if self._reads_all is None:
            builder = Builder()
            inputs = symbolic_inputs(builder, given, self._square)
            outputs = self.raised.write(builder, inputs, False, self._square)
            made = (SPECS[value.op].movement for value in topological(outputs.values()))
            self._reads_all = any(movement is Movement.CONTRACT for movement in made)
        return self._reads_all

    def form(self, graph: Graph) -> CompiledFunction:
        """The compiled function for ``graph``."""
        return self._forms[receivers(graph) is not None]

    def arguments(self, call: Call, captured: Captured) -> Arguments:
        """What the compiled function is called with."""
        given = self.raised.given(call, captured)
        for at in self._written:  # the backward pass may read what is there before
            tensor, residency = given[f"cap:{at}"]
            given[f"cap:{at}"] = tensor.clone(), residency
        seed = call_key() if self.raised.draws else 0
        return Arguments(call.graph, None, {}, None, seed, False, given)

    def chosen(self, call: Call, captured: Captured) -> tuple[CompiledFunction, Arguments]:
        """What computes the outputs of ``call``, and what it is called with."""
        arguments = self.arguments(call, captured)
        factored = self._by_factors(call, arguments)
        return (factored.function, factored.arguments) if factored else (self.form(call.graph), arguments)

    def _by_factors(self, call: Call, arguments: Arguments) -> FactoredCall | None:
        """What runs ``call`` with products behind its sums; None where none goes there."""
        return None if self._factored is None else self._factored.choose(call.graph, arguments.fields)

    def __call__(self, call: Call, captured: Captured) -> Fields:
        """Runs the program and stores new contents of buffers."""
        form, arguments = self.form(call.graph), self.arguments(call, captured)
        factored = self._by_factors(call, arguments)
        results = run_factored(factored, arguments.fields, form) if factored else form(arguments)
        outputs: Fields = {}
        for name, tensor in results.items():
            kind, _, rest = name.partition(":")
            if kind == "out":
                outputs[rest] = tensor
            else:
                with torch.no_grad():
                    captured.tensors[int(rest)].copy_(tensor)
        return {name: outputs[name] for name in self.raised.returned}


@dataclass(frozen=True)
class Observed:
    """One call that ran: its compiled form, or why there is none."""

    call: Call
    captured: Captured
    compiled: CompiledCall | None
    failure: UnraisableError | None

    @property
    def reason(self) -> str:
        """Why there is none, and what runs as it stands."""
        assert self.failure is not None  # a call is compiled or has a reason
        line = f"\nat {self.failure.line}" if self.failure.line else ""
        rest = "\nthe other functions: next call" if _is_apart(self.call, self.failure) else ""
        return f"{_what_falls_back(self.call, self.failure)}: {self.failure.what}{line}{rest}"


_CALLS: OrderedDict[Any, CompiledCall | UnraisableError] = OrderedDict()
_SITES: OrderedDict[Any, CallSite] = OrderedDict()
_OBSERVED: contextvars.ContextVar[list[Observed] | None] = contextvars.ContextVar("observed", default=None)
_LOCK = threading.Lock()


@contextlib.contextmanager
def observing() -> Iterator[list[Observed]]:
    """Collects the calls that run inside."""
    seen: list[Observed] = []
    token = _OBSERVED.set(seen)
    try:
        yield seen
    finally:
        _OBSERVED.reset(token)


def execute(call: Call, apart: bool = False) -> Fields:
    """Runs ``call``; warns once where it cannot be compiled. ``apart``: modes of torch are off already."""
    seen = _OBSERVED.get()
    if seen is not None and not apart:  # who observes counts only what runs around the calls
        with without_modes():
            return execute(call, apart=True)
    if _config.current().opt_level == 0 or not call.graph.num_edges or transforms_are_on():
        return run_reference(call)
    captured = capture((call.message, call.reduce, call.update, call.params))
    if captured.unmade:
        return run_reference(call)
    compiled, failure, fresh = compiled_call(call, captured)
    if seen is not None:
        seen.append(Observed(call, captured, compiled, failure))
    if compiled is not None:
        if _config.current().keep_heap and _is_large(call):
            keep_heap()
        try:
            outputs = compiled(call, captured)
        except (IndexError, RuntimeError, ShapeError, DtypeError):
            diagnose(call, captured)  # says which field and where in the user's code
            raise
        if _config.current().verify and not compiled.verified and compiled.repeats:
            verify(call, captured, outputs)
            compiled.verified = True
        return outputs
    assert failure is not None  # a call is compiled or has a reason
    result = _run_as_it_stands(call, failure)  # wrong user code is reported here, before any warning
    if fresh:
        line = f" ({failure.line})" if failure.line else ""
        warnings.warn(f"{failure.what}: {_what_falls_back(call, failure)}{line}", FallbackWarning, user_depth())
    return result


def _run_as_it_stands(call: Call, failure: UnraisableError) -> Fields:
    """``call`` with the function that cannot be compiled as written, and the others compiled.

    Only a reduction needs degree buckets: a message is plain tensor code on all edges, an update on all nodes.
    """
    if _is_apart(call, failure) and failure.stage == MESSAGE:
        return execute(replace(call, message=_sent, edata=run_message(call), params=()))
    if _is_apart(call, failure) and failure.stage == UPDATE:
        return run_update(call, execute(replace(call, update=None)))
    return run_reference(call)


def _is_apart(call: Call, failure: UnraisableError) -> bool:
    """Whether something is left to compile beside the function that cannot be."""
    return failure.stage in (MESSAGE, UPDATE) and call.reduce is not absent and call.message is not _sent


def _what_falls_back(call: Call, failure: UnraisableError) -> str:
    return f"{failure.stage} {_FALLBACK}" if _is_apart(call, failure) else _FALLBACK


def _sent(edges: Edges) -> dict[str, Tensor]:
    """The message function of a call whose messages lie there already."""
    return dict(edges.data)


def _is_large(call: Call) -> bool:
    """Whether some field of nodes or edges is worth keeping its memory."""
    return any(t.nbytes >= _LARGE for part in (call.src, call.dst, call.edata) for t in part.values())


def compiled_call(call: Call, captured: Captured) -> tuple[CompiledCall | None, UnraisableError | None, bool]:
    """The compiled form of ``call``, or None and the reason; and whether this is the first time."""
    key = _key(call, captured)
    with _LOCK:
        if key in _CALLS:
            _CALLS.move_to_end(key)
            known = _CALLS[key]
            return (known, None, False) if isinstance(known, CompiledCall) else (None, known, False)
        site = _SITES.setdefault(skeleton(key), CallSite())
        while len(_SITES) > _KEPT:
            _SITES.popitem(last=False)
        found = _CALLS.get(blanked(key, site.opened)) if site.opened else None
    if isinstance(found, CompiledCall) and site.takes(found.raised, captured):
        _keep(key, found, site)
        return found, None, False
    if isinstance(found, UnraisableError):
        _keep(key, found, site)
        return None, found, False
    return _compile(call, captured, key, site)


def _compile(
    call: Call, captured: Captured, key: Any, site: CallSite
) -> tuple[CompiledCall | None, UnraisableError | None, bool]:
    """The compiled form of a call that is new, or None and the reason; and whether the reason is new, too."""
    opened = site.open(call, captured)
    if opened is not None:
        made = CompiledCall(opened, call.graph.is_square)
        _keep(blanked(key, site.opened), made)
        _keep(key, made, site)
        return made, None, True
    try:
        made = CompiledCall(_raised(call, captured, key), call.graph.is_square)
    except UnraisableError as found:
        failure = found.with_traceback(None)  # its frames would keep the user's tensors
        failure.__cause__ = failure.__context__ = None
        if failure.line in (None, UNKNOWN):
            functions = {MESSAGE: None if call.message is _sent else call.message, UPDATE: call.update}
            failure.line = first_line(functions.get(failure.stage or "") or call.reduce)
        again = site.failed(captured, failure)
        _keep(key, failure)
        if again and site.opened:
            _keep(blanked(key, site.opened), failure)
        return None, failure, not again
    site.compiled(call, captured, made.raised)
    _keep(key, made)
    return made, None, True


def _keep(key: Any, made: CompiledCall | UnraisableError, site: CallSite | None = None) -> None:
    """Remembers what a call came to; of a call whose numbers are inputs only under those of the last time."""
    with _LOCK:
        if site is not None:
            _CALLS.pop(site.alias, None)
            site.alias = key
        _CALLS[key] = made
        while len(_CALLS) > _KEPT:
            _CALLS.popitem(last=False)


def _raised(call: Call, captured: Captured, key: Any) -> RaisedCall | StoredCall:
    """The call raised, or what an earlier process came to."""
    rules = (*RULES.values(), *DECOMPOSITIONS.values())
    own = all(getattr(rule, "__module__", "").startswith("graphweft.") for rule in rules)
    text = stable_text(key) if own and captured.refused is None else None
    stored = None if text is None else load(text)
    if stored is not None:
        return stored
    raised = raise_call(call, captured)
    if text is not None:
        store(text, raised, call, captured)
    return raised


def _key(call: Call, captured: Captured) -> Any:
    """What the recorded program depends on."""
    fields = (call.src, call.dst, call.edata, call.ntype, call.etype)
    kinds = tuple(tuple((name, t.dtype, t.shape[1:]) for name, t in part.items()) for part in fields)
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    state = autocast, len(DECOMPOSITIONS), torch.get_default_dtype()
    return captured.key, captured.refused, kinds, call.graph.is_square, *state


__all__ = ["CompiledCall", "Observed", "compiled_call", "execute", "observing"]
