"""Records what a user function does to tensors of symbolic sizes, as ATen operations.

Comes in: a function, the fields it may read, and the tensors it captures. Goes out: a :class:`Traced` graph whose
placeholders are those tensors. Sizes of nodes, edges and messages are symbols, so it serves every graph; sizes of
features are numbers. Whatever would bake a value in (a branch on values or on a symbolic size, a captured tensor that
was not found) stops the recording with an :class:`UnraisableError` that names the user's line. Called by ``udf.py``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from graphweft import _torch_recording as recording
from graphweft._budget import uncounted
from graphweft._errors import FieldError, GraphWeftError
from graphweft._torch_private import pytree
from graphweft._torch_recording import (
    FakeTensorMode,
    Source,
    decomposition_table,
    get_proxy_mode,
    make_fx,
)
from graphweft.frontend import shape_rules, sum_rules  # noqa: F401  they fill the table of rules
from graphweft.frontend.captured import Captured, capture
from graphweft.frontend.elementwise_rules import stop_gradient
from graphweft.frontend.layout import Symbols, UnraisableError
from graphweft.frontend.message_counts import symbolic_math
from graphweft.frontend.numbers import OpenNumbers
from graphweft.frontend.rules import DECOMPOSITIONS, RULES
from graphweft.frontend.shield import READS_VALUES
from graphweft.frontend.side_effects import refusing_changes
from graphweft.frontend.source import UNKNOWN, current_line, first_line, is_user_file, raising_line

if TYPE_CHECKING:
    from graphweft.frontend.symbolic_sizes import Sizes

_ROWS, _MESSAGES = 1013, 37  # hints of the symbolic sizes: unlikely numbers, never 1
# what torch's recorder says of itself: symbols, proxies, stand-ins for tensors
_INTERNAL = re.compile(
    r"[Ss]ymbolic|SymInt|SymFloat|SymBool|prox|[Ff]ake|functorch|functional|dispatch|aten[.:]|\bz?[sfu]\d+\b|\(s\d|data.dependent"
)
_LOG = logging.getLogger(FakeTensorMode.__module__)
_SIZES = "graphweft.frontend.symbolic_sizes"  # imported with the first recording


@dataclass(frozen=True)
class Spec:
    """A field that a function may read: its name, its shape with "n" and "d" for symbolic sizes, its dtype."""

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Traced:
    """A recorded function.

    Attributes:
        graph: ATen operations.
        module: Holds constant tensors of the graph.
        inputs: Placeholders of fields by name.
        captured: Placeholders of captured tensors in order.
        outputs: Fields that the function returned.
        updates: New contents of captured buffers, by position.
        symbols: Reads symbolic sizes.
        check: Raises UnraisableError where the recording, or what was made of it, holds for some sizes only.
    """

    graph: Graph
    module: GraphModule
    inputs: dict[str, Node]
    captured: list[Node]
    outputs: dict[str, Node]
    updates: dict[int, Node]
    symbols: Symbols
    check: Callable[[], None]


class Named(Source):
    """Where a symbolic size comes from."""

    def __init__(self, name: str) -> None:
        self._symbol = name

    @property
    def _name_template(self) -> str:
        return self._symbol

    @property
    def name(self) -> str:
        """As the symbol is called."""
        return self._symbol

    def __hash__(self) -> int:
        return hash(self._symbol)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other._symbol == self._symbol


class _Recorder(TorchFunctionMode):
    """Puts placeholders in the place of captured tensors, notes lines, keeps gradients stopped where the user does."""

    def __init__(self, placeholders: Mapping[int, Tensor], line: str) -> None:
        super().__init__()
        self._placeholders = placeholders
        self._known: Any = WeakTensorKeyDictionary()
        self.line = line
        self.inside: str | None = None  # the function that is being recorded

    def take(self, tensor: Tensor) -> Tensor:
        """Makes a tensor of the recording known."""
        self._known[tensor] = True
        return tensor

    def resolve(self, item: Any) -> Any:
        """The placeholder of a captured tensor."""
        if not isinstance(item, Tensor) or item in self._known:
            return item
        if id(item) in self._placeholders:
            return self.take(self._placeholders[id(item)])
        raise UnraisableError("a tensor that the function neither got nor visibly captures", current_line())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        line = current_line()
        self.line = self.line if line == UNKNOWN else line
        args, kwargs = pytree.tree_map(self.resolve, (args, kwargs or {}))
        if func in READS_VALUES:
            name = getattr(func, "__name__", "")
            what = "branch on" if name.startswith("__") else "use of"
            how = "" if name.startswith("__") else f", by {name}"
            raise UnraisableError(f"a Python {what} tensor values{how}", self.line)
        if func in REFUSED:
            raise UnraisableError(REFUSED[func], self.line)
        graph = _recorded()
        last = graph._root._prev if graph is not None else None
        self.inside = getattr(func, "__name__", None)
        result = IN_PLACE_OF.get(func, func)(*args, **kwargs)
        self.inside = None
        if not torch.is_grad_enabled():
            result = pytree.tree_map(_stopped, result)
        if graph is not None and last is not None:
            node = last._next
            while node is not graph._root:
                node.meta["line"], node.meta["call"] = self.line, getattr(func, "__name__", str(func))
                node = node._next
        for made in pytree.tree_leaves(result):
            if isinstance(made, Tensor):
                self.take(made)
        return result


def _recorded() -> Graph | None:
    mode = get_proxy_mode()
    graph: Graph | None = None if mode is None else mode.tracer.graph
    return graph


def _stopped(item: Any) -> Any:
    """Results of code under no_grad carry no gradient."""
    return stop_gradient(item) if isinstance(item, Tensor) and item.is_floating_point() else item


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    made: Tensor = torch.native_dropout(x, p, training)[0] if training and p else x
    return x.copy_(made) if inplace else made


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's, one product by a weight and one sum: torch's own has no counterpart for a variable number of rows."""
    if torch.is_autocast_enabled("cpu"):  # which decides the dtype of the whole
        return torch.nn.functional.bilinear(x, y, weight, bias)
    outputs, left, right = weight.shape
    rows = torch.matmul(x, weight.permute(1, 0, 2).reshape(left, outputs * right))
    made: Tensor = (rows.reshape(*rows.shape[:-1], outputs, right) * y.unsqueeze(-2)).sum(-1)
    return made if bias is None else made + bias


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's, which would fix symbolic sizes of inputs with three dimensions."""
    if torch.is_autocast_enabled("cpu"):
        return torch.nn.functional.linear(x, weight, bias)
    product = torch.matmul(x, weight.t())
    return product if bias is None else product + bias


def _tensor(data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """As torch's, which would fix a symbolic size."""
    if not isinstance(data, torch.SymInt | torch.SymFloat):
        return torch.tensor(data, dtype=dtype, **options)
    kind = dtype or (torch.int64 if isinstance(data, torch.SymInt) else torch.get_default_dtype())
    return torch.scalar_tensor(data, dtype=kind)  # type: ignore[arg-type]


# what would happen once, while the function is recorded, or tells of the recording
REFUSED: dict[Any, str] = {
    Tensor.register_hook: "a hook",
    Tensor.__repr__: "a tensor that is printed",
    Tensor.__format__: "a tensor that is printed",
}


def _one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """As torch's, which looks at values; a class that does not exist is no row of the table."""
    if num_classes < 0:
        return torch.nn.functional.one_hot(x, num_classes)
    return torch.eye(num_classes, dtype=torch.int64)[x]


# torch functions that are recorded as something else
IN_PLACE_OF: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.dropout: _dropout,
    torch.dropout: lambda input, p, train: _dropout(input, p, train),
    torch.dropout_: lambda input, p, train: _dropout(input, p, train, inplace=True),
    torch.nn.functional.bilinear: _bilinear,
    torch.bilinear: _bilinear,
    torch.nn.functional.linear: _linear,
    torch.nn.functional.one_hot: _one_hot,
    torch.tensor: _tensor,
    torch.detach: stop_gradient,
    Tensor.detach: stop_gradient,
    Tensor.data.__get__: stop_gradient,  # type: ignore[attr-defined]
}


@functools.cache
def kind_of_sizes(name: str = "Sizes") -> Any:
    """A class of symbolic sizes. Their first import and the first object bring 100 MB of torch's compiler and sympy."""
    with uncounted():
        kind = getattr(importlib.import_module(_SIZES), name)
        kind()
    return kind


def trace(
    function: Callable[..., Any],
    specs: Sequence[Spec],
    view: Callable[[Mapping[str, Tensor], Any], Any],
    captured: Captured,
    params: Sequence[Any] = (),
    rowed: frozenset[int] = frozenset(),
    numbers: tuple[OpenNumbers, int] | None = None,
) -> Traced:
    """Records ``function(view(fields, size of rows), *params)``; captured tensors at ``rowed`` have one row per row.

    ``numbers``: those that are inputs, and which of their roots the function is.

    Raises: UnraisableError for what cannot be recorded; FieldError and other errors of user code as they are.
    """
    sizes: Sizes = kind_of_sizes()()
    fake = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=False)
    rows, messages = _symbol(sizes, "n", _ROWS), _symbol(sizes, "d", _MESSAGES)
    sizes.messages = _expression(messages)
    visited, open_numbers = captured.visited, {}
    if numbers is not None:
        held, stage = numbers
        open_numbers = {at: _number(sizes, at, captured.numbers[at]) for at in sorted(held.positions)}
        roots = held.put_in(open_numbers)
        function, params, visited = roots[stage], roots[-1] if stage == 0 else (), capture(roots).visited
    with fake:
        shapes = [tuple({"n": rows, "d": messages}.get(size, size) for size in spec.shape) for spec in specs]  # type: ignore[arg-type]
        fields = [torch.empty(shape, dtype=spec.dtype) for shape, spec in zip(shapes, specs, strict=True)]
        others = [_stand_in(t, rows if at in rowed else None) for at, t in enumerate(captured.tensors)]
    names: list[str] = []
    recorders: list[_Recorder] = []

    def run(*flat: Tensor) -> tuple[Tensor, ...]:
        placeholders = {id(real): made for real, made in zip(captured.tensors, flat[len(specs) :], strict=False)}
        recorder = _Recorder(placeholders, first_line(function))
        recorders.append(recorder)
        sizes.recorder = recorder
        given = {spec.name: recorder.take(made) for spec, made in zip(specs, flat, strict=False)}
        with recorder:
            result = function(view(given, rows), *params)
        if not isinstance(result, Mapping):
            raise UnraisableError("a result that is not a dict")
        if not all(isinstance(name, str) for name in result):
            raise UnraisableError("a field name that is not a string")
        names[:] = list(result)
        made = tuple(recorder.resolve(value) for value in result.values())
        if not all(isinstance(value, Tensor) for value in made):
            raise UnraisableError("a result that is not a tensor")
        return made

    table = _decompositions() | DECOMPOSITIONS
    try:
        with _recording(captured), refusing_changes(visited, function):
            inputs = (*fields, *others, *open_numbers.values(), rows, messages)
            recording = make_fx(torch.func.functionalize(run), table, tracing_mode="symbolic")(*inputs)
    except (UnraisableError, FieldError):
        raise
    except Exception as failure:  # torch's tracers fail in many ways; the reference executor tells what is wrong
        raise _told(failure, function, recorders) from failure
    check = functools.partial(_check_sizes, sizes, (rows, messages), recorders[-1].line)
    check()
    expressions = {_expression(number): at for at, number in open_numbers.items()}
    symbols = Symbols(_expression(rows), _expression(messages), expressions)
    return _read(recording, specs, captured, names, symbols, check)


@contextlib.contextmanager
def _recording(captured: Captured) -> Iterator[None]:
    """Inside, a function is recorded: no warnings or logs, gradients on, sizes as numbers, nothing printed."""
    with warnings.catch_warnings(), torch.enable_grad(), without_log(), symbolic_math(), _watched(captured):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _watched(captured: Captured) -> Iterator[None]:
    """Inside, user code of this thread that prints or asks for modes is refused: it would do so only once.

    The thread's profiler sees these calls; nothing that other threads could meet is replaced.
    """
    refused = ((print, "printing"), (torch.is_grad_enabled, "code that asks whether gradients are recorded"))
    named = any("print" in name or name == "is_grad_enabled" for name in captured.names)
    if not named and not any(item is function for item in captured.visited for function, _ in refused):
        yield
        return

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or not is_user_file(frame.f_code.co_filename):
            return
        for function, what in refused:
            if called is function:
                raise UnraisableError(what, f"{frame.f_code.co_filename}:{frame.f_lineno}")

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Torch writes the traceback of every operation that fails; user code that does is told in one line."""
    before, _LOG.disabled = _LOG.disabled, True
    try:
        yield
    finally:
        _LOG.disabled = before


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's own decompositions of everything that has no rule here."""
    return {op: code for op, code in decomposition_table.items() if op not in RULES}


def _symbol(sizes: Sizes, name: str, hint: int) -> Any:
    source = Named(name)
    made = sizes.create_symbol(hint, source=source, dynamic_dim=recording.DimDynamic.DYNAMIC, constraint_dim=None)
    return sizes.create_symintnode(made, hint=hint, source=source)


def _stand_in(tensor: Tensor, rows: Any) -> Tensor:
    """A tensor like a captured one, with ``rows`` rows where it has one for each."""
    if rows is None:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype)


def _number(sizes: Sizes, at: int, number: Any) -> Any:
    """A symbol in place of a Python number."""
    source = Named(f"number{at}")
    kind: type[Any] = float if isinstance(number, float) else int
    made = sizes.create_unspecified_symbol(kind(number), source=source, dynamic_dim=recording.DimDynamic.DYNAMIC)
    node = sizes.create_symfloatnode if kind is float else sizes.create_symintnode
    return node(made, hint=kind(number), source=source)


def _expression(size: Any) -> Any:
    return size.node.expr


def _told(
    failure: Exception, function: Callable[..., Any], recorders: Sequence[_Recorder]
) -> UnraisableError | FieldError:
    """What a failure of the recording is to the user."""
    cause = _cause(failure)
    if cause is not None:
        return cause
    line = raising_line(failure.__traceback__, function)
    if recorders and line == first_line(function):  # no user code was running
        line = recorders[-1].line
    return UnraisableError(_reason(failure, recorders[-1].inside if recorders else None), line)


def _reason(failure: Exception, inside: str | None) -> str:
    """Why a function was not recorded, in words that do not need knowledge of the recorder."""
    text = str(failure).splitlines()[0][:120] if str(failure) else ""
    if isinstance(failure, GraphWeftError):
        return text
    if "autograd.Function" in text:
        return "an autograd.Function (its code is not seen; operators are made known by gw.nn.register_rule)"
    if inside is not None and (_INTERNAL.search(text) or not text):
        return f"{inside} (it cannot be recorded for any number of nodes, edges and messages)"
    if _INTERNAL.search(text):
        return "code that works for fixed numbers of nodes, edges and messages only"
    return f"{inside} ({text})" if inside is not None else f"{type(failure).__name__}: {text}"


def _cause(failure: BaseException | None) -> UnraisableError | FieldError | None:
    """Our own error inside one that torch made of it."""
    while failure is not None:
        if isinstance(failure, UnraisableError | FieldError):
            return failure
        failure = failure.__cause__ or failure.__context__
    return None


def _check_sizes(sizes: Sizes, symbols: Sequence[Any], line: str) -> None:
    """Refuses a recording that holds for some numbers of rows only."""
    if sizes.replacements or any(not str(guard.expr).startswith("Ne(") for guard in sizes.guards):
        inside, line = sizes.culprit or (None, line)
        what = "depends on the number of nodes, edges or messages"
        raise UnraisableError(f"{inside} (it {what})" if inside else f"code that {what}", line)


def _read(
    recording: GraphModule,
    specs: Sequence[Spec],
    captured: Captured,
    names: list[str],
    symbols: Symbols,
    check: Callable[[], None],
) -> Traced:
    nodes = list(recording.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    inputs = {spec.name: node for spec, node in zip(specs, placeholders, strict=False)}
    others = placeholders[len(specs) :][: len(captured.tensors)]
    returned = nodes[-1].args[0]
    outputs = dict(zip(names, returned, strict=True))
    position = {node: at for at, node in enumerate(others)}
    updates: dict[int, Node] = {}
    for node in nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.copy_.default and node.args[0] in position:
            at = position[node.args[0]]
            if id(captured.tensors[at]) in captured.buffers:
                updates[at] = node.args[1]
    return Traced(recording.graph, recording, inputs, others, outputs, updates, symbols, check)
