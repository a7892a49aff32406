"""Certificates: every rewrite is tried, forward and backward, before a program it changed is ever run.

Comes in: a program before and after a pass. Goes out: nothing, or :class:`Refuted` naming the pass. Both are run by the
interpreter in float64 on the graphs of ``trials.py``, with random inputs and output gradients; what differs by more
than rounding explains (``rounding.py``) is refuted, and the pass is switched off for that program by ``pipeline.py``.
A verdict is remembered in the process, and one in favour also in the user's cache, under the text of both programs and
of the compiler itself, so a program is tried once per machine. Called by ``pipeline.py``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft import _budget, _config
from graphweft._backward import gradients_from
from graphweft._errors import IRError
from graphweft._memory import trim_heap
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Program, Value, topological
from graphweft.passes.groups import Contractions, Group, Products, Term
from graphweft.passes.hoist import constant_values
from graphweft.passes.rounding import RUNS, allowed, is_exact, noise, shaken, shaken_by_place
from graphweft.passes.trials import SQUARE, Doubled, Shape, Trial, elements, narrower, plain_torch, trial_bytes
from graphweft.storage.feature import is_dense

_MOST_NOISE = 1e-7  # of the largest element: what a rewrite's own rounding may excuse where numbers are ordinary
SECONDS = 0.8  # for all trials of one program; those begun are finished
_MOST_ELEMENTS = 1 << 18  # of one value: a program is tried on eight graphs, up to four times each
_NO_ROOM = "a trial takes more memory than the budget leaves"
_NODES = {symbol: 16 for symbol in "VSD"} | {"E": 32}

# what code that meets numbers or shapes it was not made for raises
_FAILURES = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)

# whose results are differences of numbers that nearly agree: not even equal ones are certain to be equal
_CANCELLING = frozenset({Op.BATCH_STATS, Op.BATCH_NORM, Op.BATCH_NORM_DOT, Op.BATCH_NORM_GRAD})

Results = dict[str, Tensor]
Memo = dict[Value, Any]


class Refuted(Exception):
    """A rewrite changed a result."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


@dataclass(frozen=True)
class Certificate:
    """The verdict on one rewrite of one program: ``holds``, ``refuted`` or ``undecided``, and why."""

    name: str
    verdict: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}" + (f" ({self.detail})" if self.detail else "")


class Rewrite(NamedTuple):
    """A forward program before and after a pass."""

    name: str
    before: Program
    after: Program


@dataclass(frozen=True)
class Outcome:
    """What all passes together made of a program.

    Attributes:
        rewrites: Those of the forward program, in order; the first starts from the program as it was described.
        raw: The last forward program with gradients; itself where none are wanted.
        derived: The same cleaned up.
        opened: That with values of edges opened for generated kernels.
        joint: The program that is run.
        groups, hoisted: What one kernel computes each, and what is computed once.
        constants: Names of inputs that keep their value between calls.
    """

    rewrites: tuple[Rewrite, ...]
    raw: Program
    derived: Program
    opened: Program
    joint: Program
    groups: Collection[Group]
    hoisted: Collection[Value]
    constants: Collection[str]

    @property
    def names(self) -> list[str]:
        """Passes that changed something."""
        changed = [name for name, before, after in self.rewrites if before.text != after.text]
        return [
            *dict.fromkeys(changed),
            *(["differentiate"] if self.raw is not self.rewrites[-1].after else []),
            *(["edges"] if self.derived.text != self.opened.text else []),
            *(["slopes"] if self.opened.text != self.joint.text else []),
            "fuse",
        ]


class Certifier:
    """Tries the rewrites of one program.

    The first and the last program are compared, values of kernels included; only where they differ is every rewrite
    tried alone, so that the one to blame is found.

    Args:
        program: The program before any pass.
        types: Numbers of node types and relations of the graph at hand.
    """

    def __init__(self, program: Program, types: tuple[int, int] = (1, 1)) -> None:
        self._program, self._types = program, types
        self._doubled = Doubled()

    def certify(self, outcome: Outcome) -> list[Certificate]:
        """A verdict per pass.

        Raises: Refuted naming the pass that changed a result; with an empty name where none alone did.
        """
        if not set(outcome.hoisted) <= constant_values(outcome.joint, outcome.constants):
            raise Refuted("hoist", "a value that is not constant is computed once")
        groups = _shown(outcome)
        key = key_of(self._program.text, outcome.joint.text, groups, str(self._types))
        known = MEMORY.get(key)
        if known is None:
            known = self._whole(outcome)
            if known.verdict == "refuted":
                self._blame(outcome)
                raise Refuted("", known.detail)
            if known.detail != _NO_ROOM:
                MEMORY.put(key, known)
        return [Certificate(name, known.verdict, known.detail) for name in outcome.names]

    def _whole(self, outcome: Outcome) -> Certificate:
        """The verdict on all rewrites together: with narrow inputs where they can be, and at full width otherwise."""
        found = Certificate("", "undecided")
        for widths in narrower(self._program):
            doubled = Doubled(widths)
            with contextlib.suppress(IRError):  # widths that other values depend on
                found = self._tried("", functools.partial(_Bench.whole, outcome=outcome, doubled=doubled), doubled)
                if found.verdict == "holds":
                    break
        return found

    def _blame(self, outcome: Outcome) -> None:
        """Raises: Refuted naming the first rewrite that changes a result by itself."""
        trials: list[tuple[str, Callable[[_Bench], str | None]]] = [
            (name, functools.partial(_Bench.compare, before=self._doubled(before), after=self._doubled(after)))
            for name, before, after in outcome.rewrites
            if before.text != after.text
        ]
        forward, raw, joint = outcome.rewrites[-1].after, outcome.raw, outcome.joint
        if raw is not forward:
            gradients = functools.partial(_Bench.compare_gradients, forward=self._doubled(forward))
            trials.append(("differentiate", functools.partial(gradients, joint=self._doubled(raw))))
            trials.append(("cleanup", self._same(raw, outcome.derived)))
        steps = outcome.derived, outcome.opened, joint
        for name, (one, two) in zip(("edges", "slopes"), pairwise(steps), strict=True):
            if one.text != two.text:
                trials.append((name, self._same(one, two)))
        trials.append(("fuse", lambda bench: bench.compare_groups(outcome, self._doubled)))
        for name, trial in trials:
            found = self._tried(name, trial, self._doubled)
            if found.verdict == "refuted":
                raise Refuted(name, found.detail)

    def _same(self, before: Program, after: Program) -> Callable[[_Bench], str | None]:
        """The trial of a rewrite after the gradients."""
        first, second = self._doubled(before), self._doubled(after)
        return functools.partial(_Bench.compare, before=first, after=second, backward=False)

    def _tried(self, name: str, trial: Callable[[_Bench], str | None], doubled: Doubled) -> Certificate:
        start = time.perf_counter()
        decided, program = 0, doubled(self._program)
        room = _budget.room()
        if room is not None and trial_bytes(program, _NODES, self._types) > room:
            return Certificate(name, "undecided", _NO_ROOM)
        if max(elements(program, _NODES), default=0) > _MOST_ELEMENTS:
            return Certificate(name, "undecided", f"values of more than {_MOST_ELEMENTS:,} elements are not tried")
        with plain_torch():
            for bench in _benches(program, self._types):
                if decided and time.perf_counter() - start > SECONDS:
                    break
                difference = trial(bench)
                # once more with other numbers: rounding may tip a comparison once, a wrong rewrite fails again
                if difference is not None and trial(bench.anew()) is not None:
                    return Certificate(name, "refuted", f"{difference} on the graph {bench.shape.graph!r}")
                decided += 1
                del bench  # the next one is made without the values of this one
        trim_heap()  # in whose gaps what comes next would not fit
        if not decided:
            return Certificate(name, "undecided", "no trial could be run")
        return Certificate(name, "holds")


class _Bench:
    """One trial's inputs, and the values computed on them so far; run 0 is the plain one, the others are shaken."""

    def __init__(self, program: Program, shape: Shape, types: tuple[int, int], seed: int) -> None:
        self.program, self.shape, self._types, self._seed = program, shape, types, seed
        self._trial = Trial(program, shape, types, seed)
        self._recorded: tuple[Memo, ...] = tuple({} for _ in range(1 + RUNS))  # in torch's graph
        self._plain: tuple[Memo, ...] = tuple({} for _ in range(1 + RUNS))
        self._results: dict[tuple[Program, int], Results] = {}

    def anew(self) -> _Bench:
        """Other numbers on the same graph."""
        return _Bench(self.program, self.shape, self._types, self._seed + 1)

    def usable(self, program: Program) -> bool:
        """Whether ``program`` runs here and all that it gives is finite."""
        try:
            results = self._run(program, backward=True)
        except _FAILURES:
            return False
        return all(bool(x.isfinite().all()) for x in results.values() if x.is_floating_point())

    def whole(self, outcome: Outcome, doubled: Doubled) -> str | None:
        """What differs between the program as it was and what all passes made of it, if anything does."""
        found = self.compare_gradients(self.program, doubled(outcome.joint))
        return self.compare_groups(outcome, doubled) if found is None else found

    def compare(self, before: Program, after: Program, backward: bool = True) -> str | None:
        """The same between two forward programs, or two with gradients when not ``backward``."""
        return self._compare(before, after, (backward, backward))

    def compare_gradients(self, forward: Program, joint: Program) -> str | None:
        """The same between torch's gradients of ``forward`` and those of ``joint``."""
        return self._compare(forward, joint, (True, False))

    def compare_groups(self, outcome: Outcome, doubled: Doubled) -> str | None:
        """The same for every value that a group stores."""
        joint = doubled(outcome.joint)
        with torch.no_grad():
            found = _attempt(lambda: self._filled(joint, False, 0))
            if found is not None:
                return found
            memo = self._plain[0]
            expected = {v: memo[doubled.value(v)] for v in outcome.joint.values}
            env = {v: x for v, x in expected.items() if v.op in LEAVES or v in outcome.hoisted}

            def rounding(value: Value, got: Tensor) -> Tensor:
                own = doubled.value(value)
                return noise(memo[own], [self._filled(joint, False, run)[own] for run in range(1, 1 + RUNS)])

            return _attempt(lambda: _compare_groups(outcome, doubled, env, expected, rounding))

    def _compare(self, before: Program, after: Program, backward: tuple[bool, bool]) -> str | None:
        """What the second program gives otherwise than the first; None too where these numbers make the first fail."""
        try:
            expected = self._run(before, backward[0])
        except _FAILURES:
            return None
        if backward == (True, False):  # gradients that nobody asked for are not among the outputs
            names = {name for name, _ in after.outputs}
            expected = {name: x for name, x in expected.items() if not name.startswith("grad:") or name in names}

        def rounding(name: str, got: Tensor) -> Tensor:
            runs = range(1, 1 + RUNS)
            moved = noise(expected[name], [self._run(before, backward[0], run)[name] for run in runs])
            own = noise(got, [self._run(after, backward[1], run)[name] for run in runs])
            own = torch.where(got.isfinite(), own, 0.0)  # an infinity excuses nothing
            if self.shape.draw != "large":
                own = own.clamp(max=_MOST_NOISE * max(1.0, float(expected[name].abs().max())))
            return torch.maximum(moved, own)

        return _attempt(lambda: _difference(expected, self._run(after, backward[1]), rounding))

    def _run(self, program: Program, backward: bool, run: int = 0) -> Results:
        """Outputs, and if ``backward`` gradients; without, the program is one with gradients among its outputs."""
        if (program, run) not in self._results:
            with torch.set_grad_enabled(backward):
                memo = self._filled(program, backward, run)
            results = {name: memo[value] for name, value in program.outputs if is_dense(memo[value])}
            found = {**results, **(self._gradients(results, run) if backward else {})}
            self._results[program, run] = {name: x.detach() for name, x in found.items()}
        return self._results[program, run]

    def _filled(self, program: Program, backward: bool, run: int) -> Memo:
        """Every value of ``program``."""
        memo = self._recorded[run] if backward else self._plain[run]
        if not backward:
            memo |= self._recorded[run]
        first = [value for name, value in program.outputs if not name.startswith("grad:")]  # they say the seeds' shapes
        for value in (*topological(first), *program.values):
            if value in memo:
                continue
            if value.op not in LEAVES:
                made = evaluate(value, [memo[operand] for operand in value.inputs])
            elif value["name"].startswith("d:"):
                name = value["name"].removeprefix("d:")
                made = self._trial.cotangent(name, memo[program.output(name)].shape)
            else:
                made = self._trial.inputs[value["name"]]
            shake = shaken_by_place if value.op in _CANCELLING else shaken
            memo[value] = shake(made, run) if run else made
        return memo

    def _gradients(self, results: Results, run: int) -> Results:
        leaves = self._trial.leaves()
        given = {n: x for n, x in results.items() if x.requires_grad}
        if not given or not leaves:
            return {}
        seeds = [self._trial.cotangent(name, x.shape) for name, x in given.items()]
        seeds = [shaken(seed, run) if run else seed for seed in seeds]
        found = gradients_from(list(given.values()), list(leaves.values()), seeds, retain_graph=True)
        pairs = zip(leaves.items(), found, strict=True)
        return {f"grad:{n}": torch.zeros_like(leaf) if g is None else g for (n, leaf), g in pairs}


def _benches(program: Program, types: tuple[int, int]) -> Iterator[_Bench]:
    """A bench per graph, with the first kind of numbers on which all that ``program`` gives is finite."""
    soft = program.count(Op.EDGE_SOFTMAX, Op.ATTENTION) > 0
    for seed, graph in enumerate(SQUARE):
        kinds = ("normal", "positive", "large") if graph == "ring" and soft else ("normal", "positive")
        found = 0
        for kind in kinds:
            if found and kind == "positive":
                continue
            try:
                bench = _Bench(program, Shape(graph, kind), types, 2 * seed)
            except (ValueError, KeyError):  # inputs of a kind that trials do not know
                return
            if bench.usable(program):
                found += 1
                yield bench
            del bench  # with all its values, before the next one has some


def _attempt(compare: Callable[[], Any]) -> str | None:
    """A rewritten program that does not even run differs."""
    try:
        found = compare()
        return found if isinstance(found, str) else None
    except _FAILURES as failure:
        return f"it does not run ({str(failure).partition(chr(10))[0][:100]})"


def _difference(
    expected: Mapping[str, Tensor], got: Mapping[str, Tensor], rounding: Callable[[str, Tensor], Tensor]
) -> str | None:
    for name, wanted in expected.items():
        mine = got.get(name)
        if mine is None and name.startswith("grad:") and not wanted.any():
            continue
        found = "it is missing" if mine is None else _apart(wanted, mine, functools.partial(rounding, name, mine))
        if found is not None:
            what = f"the gradient of {name.removeprefix('grad:')}" if name.startswith("grad:") else name
            return f"{what}: {found}"
    return None


def _apart(expected: Tensor, got: Tensor, rounding: Callable[[], Tensor]) -> str | None:
    """How two results differ, where the expected one is finite, by more than ``rounding`` explains."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"expected {tuple(expected.shape)} {expected.dtype}, got {tuple(got.shape)} {got.dtype}"
    if torch.equal(expected, got):
        return None
    if not expected.is_floating_point():
        return "integers differ"
    expected, got = expected.detach(), got.detach()
    finite = expected.isfinite()
    if not bool(finite.any()):
        return None
    if is_exact(expected, got) if bool(finite.all()) else is_exact(expected[finite], got[finite]):
        return None
    apart = torch.where(finite, (expected - got).abs().nan_to_num(torch.inf), 0.0)
    excess = apart > allowed(rounding())
    return f"it differs by {float(apart[excess].max()):.3g}" if bool(excess.any()) else None


def _compare_groups(
    outcome: Outcome,
    doubled: Doubled,
    env: Memo,
    expected: Mapping[Value, Any],
    rounding: Callable[[Value, Tensor], Tensor],
) -> str | None:
    for group in outcome.groups:
        unmade = [v for v in group.operands() if v not in env]
        if unmade:
            return f"{group.result!r} reads {unmade[0]!r} before it is made"
        # the same operations on the same operands; their order is all there is
        if group.inside or group.is_one_operation:
            found = _out_of_order(group)
            if found is not None:
                return found
            env |= {value: expected[value] for value in (group.result, *group.taps)}
            continue
        for value, result in _of_group(group, doubled, env).items():
            env[value] = expected[value]  # every group is compared by itself
            if is_dense(result):
                found = _apart(expected[value], result, functools.partial(rounding, value, result))
                if found is not None:
                    return f"{value!r}: {found}"
    missing = [name for name, value in outcome.joint.outputs if value not in env]
    return f"{missing[0]} is never computed" if missing else None


def _out_of_order(group: Group) -> str | None:
    """A value of a chain that reads one which comes after it."""
    later = set(group.inside)
    for value in group.inside:
        if not later.isdisjoint(value.inputs):
            return f"{value!r} is computed before its operands"
        later.discard(value)
    absent = [v for v in (group.result, *group.taps) if group.inside and v not in group.inside]
    return f"{absent[0]!r} is not computed by its group" if absent else None


@functools.singledispatch
def _of_group(group: Group, doubled: Doubled, env: Mapping[Value, Any]) -> Memo:
    """What one kernel gives: its anchor, then the stages in the kernels' order."""
    local, made = _with_gathered(group, doubled, env), Memo()
    if group.anchor is None:
        x = local[group.source]  # type: ignore[index]  # without anchor it has a source
    else:
        own = [value for value in group.anchor.inputs if value in group.taps]  # operands that the kernel makes
        for value in own:
            made[value] = local[value] = evaluate(doubled.value(value), [local[o] for o in value.inputs])
        given = group.anchor.inputs if own else replace(group, gather=None).operands()[: len(group.anchor.inputs)]
        operands = [local[o] for o in given]
        if group.src_scale is not None:
            operands[1] = _per_row(operands[1], local[group.src_scale])
        x = evaluate(doubled.value(group.anchor), operands)
        if group.self_factor is not None:
            x = x + operands[1] * local[group.self_factor]
    return _finished(group, doubled, local, x, made)


@_of_group.register
def _of_products(group: Products, doubled: Doubled, env: Mapping[Value, Any]) -> Memo:
    """Several products that are added up; sums that are stored beside the result are given as well."""
    made, found = Memo(), list[Tensor]()
    for term in group.terms:
        left, right = term.product.inputs
        x = (_with_gathered(term, doubled, env) if term.made is None else _of_group(term.made, doubled, env))[left]
        if term.made is not None and left in group.taps:
            made[left] = x
        found.append(evaluate(doubled.value(term.product), [x, env[right]]))
    return _finished(group, doubled, dict(env), torch.stack(found).sum(0), made)


@_of_group.register
def _of_contractions(group: Contractions, doubled: Doubled, env: Mapping[Value, Any]) -> Memo:
    """Several products with one second operand that is made on the way."""
    made = _of_group(group.shared, doubled, env)
    right = made.pop(group.shared.result)
    for term in group.terms:
        local = _with_gathered(term, doubled, {**env, group.shared.result: right})
        made[term.product] = evaluate(doubled.value(term.product), [local[o] for o in term.product.inputs])
    return made


def _finished(group: Group, doubled: Doubled, local: Memo, x: Tensor, made: Memo) -> Memo:
    """The stages over the rows ``x``, and all that comes out beside the result."""
    for stage, operand in group.stages.items():
        if stage == "col_sum":
            made[group.taps[0]] = x.sum(0)
        elif stage == "addend" and group.padded is not None:
            x = x + evaluate(doubled.value(group.padded), [local[o] for o in group.padded.inputs])
        else:
            x = _STAGE[stage](x, None if operand is None else local[operand])
    made[group.result] = x
    for tap in group.taps:
        if tap not in made:
            made[tap] = evaluate(doubled.value(tap), [{**local, **made}[o] for o in tap.inputs])
    return made


def _with_gathered(kernel: Group | Term, doubled: Doubled, env: Mapping[Value, Any]) -> Memo:
    """``env`` with the rows that the kernel fetches by index."""
    rows = kernel.gather
    return dict(env) if rows is None else {**env, rows: evaluate(doubled.value(rows), [env[o] for o in rows.inputs])}


def _per_row(x: Tensor, s: Tensor) -> Tensor:
    return x * s.view(-1, *([1] * (x.dim() - 1)))


_STAGE: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "row_scale": _per_row,
    "bias": lambda x, b: x + b,
    "addend": lambda x, a: x + a,
    "relu": lambda x, _: torch.relu(x),
    "mask": lambda x, y: torch.where(y > 0, x, x.new_zeros(())),
    "post_scale": _per_row,
}


def _shown(outcome: Outcome) -> str:
    """A text of all groups."""
    at = {value: str(i) for i, value in enumerate(outcome.joint.values)}
    parts = [",".join(sorted(at[v] for v in outcome.hoisted))]
    for group in outcome.groups:
        stages = [f"{name}={'' if v is None else at[v]}" for name, v in group.stages.items()]
        operands = [at[v] for v in (*group.operands(), group.result, *group.taps, *group.inside)]
        made = [f"{at[g.result]}{list(g.stages)}" for g in group.sums()]
        absent = group.anchor, group.src_scale, group.self_factor, group.padded
        kinds = [type(group).__name__, *(str(value is None) for value in absent)]
        parts.append(" ".join([*operands, *stages, *(at[t.product] for t in group.as_terms()), *made, *kinds]))
    return "\n".join(parts)


def key_of(*parts: str) -> str:
    """The key of a verdict on what ``parts`` say."""
    return hashlib.sha256("\0".join((_compiler(), *parts)).encode()).hexdigest()[:32]


@functools.cache
def _compiler() -> str:
    """A digest of everything that decides what a rewrite does: this package's passes and IR, and torch's version."""
    digest = hashlib.sha256(torch.__version__.encode())
    rooms = Path(__file__).parents[1]
    for room in ("ir", "passes"):
        for path in sorted((rooms / room).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class _Memory:
    """Verdicts by key: all of this process, and from the cache folder those in favour."""

    def __init__(self) -> None:
        self._known: dict[str, Certificate] = {}
        self._files: dict[Path, set[str]] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> Certificate | None:
        """The verdict under ``key``."""
        known = self._known.get(key)
        if known is None and key in self._stored(_file()):
            known = Certificate("", "holds")
        return known

    def put(self, key: str, certificate: Certificate) -> None:
        """Remembers a verdict."""
        with self._lock:
            self._known[key] = certificate
        if certificate.verdict == "holds":
            path = _file()
            self._stored(path).add(key)
            with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                try:
                    os.write(handle, f"{key}\n".encode())  # one short write: processes do not tear each other's lines
                finally:
                    os.close(handle)

    def clear(self) -> None:
        """Forgets what this process knows."""
        with self._lock:
            self._known.clear()
            self._files.clear()

    def _stored(self, path: Path) -> set[str]:
        with self._lock:
            if path not in self._files:
                try:
                    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
                except OSError:
                    lines = []
                self._files[path] = {line for line in lines if len(line) == 32}
            return self._files[path]


def _file() -> Path:
    return _config.current().cache_path / "certificates" / f"{_compiler()}.txt"


MEMORY = _Memory()

__all__ = ["MEMORY", "Certificate", "Certifier", "Refuted", "key_of"]
