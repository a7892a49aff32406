"""What all passes made of a program, kept in the cache folder for the next process.

Comes in: a program, a request, and sizes that stand for all graphs of their class. Goes out: a :class:`Compiled`
program, read from the folder or made by ``pipeline.py``. Passes are a pure function of the program's text, the request
and the sizes: these, and a digest of the code that the result follows from, are a file's name. A file that is missing
or damaged counts as nothing, and a program of which a rewrite was refuted or could not be tried is made anew in every
process. Called by ``runtime/compile.py``.
"""

from __future__ import annotations

import base64
import enum
import functools
import hashlib
import io
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from graphweft._decisions import keep, known
from graphweft.cost import CostModel
from graphweft.ir.program import Program, Value, topological
from graphweft.passes.certificate import key_of
from graphweft.passes.pipeline import Compiled, Request, run_passes
from graphweft.passes.work import Sizes

_FEWEST_ROWS = 4096  # nodes and edges of a graph from which on a file is worth its place
_BEYOND = ("cost.py", "codegen", "runtime/row_kernels.py")  # what passes ask beside their own room and the IR
_ROOMS = ("graphweft.", "collections")


def kept_passes(program: Program, request: Request, sizes: Sizes | None, target: str) -> Compiled:
    """The same as ``run_passes(program, request)``.

    Args:
        program: As it was described.
        request: What to compile it for.
        sizes: Of the structures that ``program`` is given; all that ``request.sizes`` says follows from them. None
            where they are those of one graph.
        target: Names what ``request.is_built`` and ``request.prepare`` are of.

    Raises: as ``run_passes``.
    """
    usual = request.model == CostModel() and request.orders is None
    if sizes is None or not usual or sum(sizes.rows.values()) < _FEWEST_ROWS:
        return run_passes(program, request)
    name = f"plans/{_key(program, request, sizes, target)}.txt"
    found = _loaded(known(name))
    if found is not None:
        request.prepare(found.groups)
        return found
    made = run_passes(program, request)
    if all(certificate.verdict == "holds" for certificate in made.certificates):
        keep(name, _stored(made))
    return made


def _key(program: Program, request: Request, sizes: Sizes, target: str) -> str:
    of_request = (
        request.level, request.wanted, request.constants, request.checked, request.hoists_from, request.edges_from,
        request.certify, request.place, request.worth, request.joins,
        sorted(request.disabled), sorted(request.rounds),
    )  # fmt: skip
    of_sizes = sorted(sizes.rows.items()), sorted(sizes.nonzeros.items()), sizes.memory
    return key_of(_beyond(), program.text, repr(of_request), repr(of_sizes), target)


@functools.cache
def _beyond() -> str:
    """A digest of code that passes ask, and that ``key_of`` does not know of."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for place in _BEYOND:
        path = package / place
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _stored(compiled: Compiled) -> str:
    """The text of a file: a digest, and all values before what refers to them, so that none nests in another."""
    written = io.BytesIO()
    _Writer(written, pickle.HIGHEST_PROTOCOL).dump(([*_values(compiled)], compiled))
    body = zlib.compress(written.getvalue(), 1)
    return f"{hashlib.sha256(body).hexdigest()} {base64.b85encode(body).decode()}"


def _loaded(text: str | None) -> Compiled | None:
    """The program that a file holds; None for one that is missing or damaged."""
    digest, _, rest = (text or "").partition(" ")
    try:
        body = base64.b85decode(rest)
        if hashlib.sha256(body).hexdigest() != digest:
            return None
        _, found = _Reader(io.BytesIO(zlib.decompress(body))).load()
    except (ValueError, zlib.error, pickle.UnpicklingError, AttributeError, ImportError, EOFError):
        return None
    return found if isinstance(found, Compiled) else None


def _values(compiled: Compiled) -> Iterator[Value]:
    """All values that a compiled program names, operands first."""
    steps = compiled.steps
    programs = steps.staged, steps.raw, steps.derived, steps.opened, compiled.program
    outputs = [value for program in programs for _, value in program.outputs]
    of_groups = [value for group in compiled.groups for value in (*group.operands(), group.result, *group.inside)]
    inputs = [value for program in programs for value in program.inputs]
    yield from topological([*inputs, *outputs, *of_groups, *compiled.hoisted, *compiled.phase])


class _Writer(pickle.Pickler):
    """Writes members of enumerations by their values: Python 3.11.0 to 3.11.3 asks ``getattr`` for them by name."""

    def reducer_override(self, item: Any) -> Any:
        return (type(item), (item.value,)) if isinstance(item, enum.Enum) else NotImplemented


class _Reader(pickle.Unpickler):
    """Makes nothing but what programs consist of."""

    def find_class(self, module: str, name: str) -> Any:
        """A class of this package, a dtype, or a set."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if module.startswith(_ROOMS) or is_dtype or (module, name) in _BUILTIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"plans: expected a part of a program, got {module}.{name}")


_BUILTIN = {("builtins", "set"), ("builtins", "frozenset")}

__all__ = ["kept_passes"]
