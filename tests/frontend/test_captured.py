"""What user functions read from outside is read at every call, wherever Python keeps it."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import dataclasses
import importlib
import itertools
import os
import random
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from random import uniform
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft.frontend.captured import capture

GRAPH = gw.Graph([0, 1, 2, 3], [1, 1, 2, 2], num_nodes=4)
ONES = torch.ones(4, 1)


class Settings:
    """A class used as a namespace."""

    scale = 2.0
    parts: list[float] = [2.0]


class Meta(type):
    """Attributes of a class by its class."""

    scale = 2.0


class WithMeta(metaclass=Meta):
    """Has none of its own."""


class Slots:
    """No dict."""

    __slots__ = ("scale",)


@dataclasses.dataclass(slots=True)
class Record:
    """No dict either."""

    scale: float = 2.0


class Scaler:
    """Reads a class attribute in a class method and in an operator."""

    scale = 2.0

    @classmethod
    def of(cls, x: Tensor) -> Tensor:
        return x * cls.scale

    def __getitem__(self, x: Tensor) -> Tensor:
        return x * SIMPLE.scale


def scaled(x: Tensor) -> Tensor:
    out: Tensor = x * scaled.scale  # type: ignore[attr-defined]
    return out


scaled.scale = 2.0  # type: ignore[attr-defined]
SIMPLE, PARSED, SLOTS, RECORD = types.SimpleNamespace(scale=2.0), argparse.Namespace(scale=2.0), Slots(), Record()
SCALER, QUEUE, USER_LIST = Scaler(), collections.deque([2.0]), collections.UserList([2.0])
NUMBERS, VARIABLE = array.array("d", [2.0]), contextvars.ContextVar("scale", default=2.0)

READS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], Any]]] = {
    "an attribute of a class": (lambda x: x * Settings.scale, lambda v: setattr(Settings, "scale", v)),
    "a list in a class": (lambda x: x * Settings.parts[0], lambda v: Settings.parts.__setitem__(0, v)),
    "an attribute of a metaclass": (lambda x: x * WithMeta.scale, lambda v: setattr(Meta, "scale", v)),
    "a class method": (lambda x: Scaler.of(x), lambda v: setattr(Scaler, "scale", v)),
    "an operator of a class": (lambda x: SCALER[x], lambda v: setattr(SIMPLE, "scale", v)),
    "an attribute of a function": (lambda x: scaled(x), lambda v: setattr(scaled, "scale", v)),
    "a simple namespace": (lambda x: x * SIMPLE.scale, lambda v: setattr(SIMPLE, "scale", v)),
    "parsed arguments": (lambda x: x * PARSED.scale, lambda v: setattr(PARSED, "scale", v)),
    "slots": (lambda x: x * SLOTS.scale, lambda v: setattr(SLOTS, "scale", v)),
    "a dataclass with slots": (lambda x: x * RECORD.scale, lambda v: setattr(RECORD, "scale", v)),
    "a deque": (lambda x: x * QUEUE[0], lambda v: QUEUE.__setitem__(0, v)),
    "a list of a user's class": (lambda x: x * USER_LIST[0], lambda v: USER_LIST.__setitem__(0, v)),
    "an array": (lambda x: x * NUMBERS[0], lambda v: NUMBERS.__setitem__(0, v)),
    "a context variable": (lambda x: x * VARIABLE.get(), lambda v: VARIABLE.set(v)),
    "the environment": (lambda x: x * float(os.environ["SCALE"]), lambda v: os.environ.__setitem__("SCALE", str(v))),
}


def call(message: Callable[[Any], dict[str, Tensor]], h: Tensor = ONES) -> float:
    """The message of one edge of ones."""
    out = gw.update_all(GRAPH, message, lambda nodes: {"h": nodes.mailbox["m"].mean(1)}, ndata={"h": h})
    return float(out["h"][1, 0])


@pytest.mark.parametrize("name", READS)
def test_a_changed_value_is_read_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE", "2.0")
    read, change = READS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", gw.FallbackWarning)
        for value in (2.0, 3.0, 2.0):
            change(value)
            assert call(lambda edges: {"m": read(edges.src["h"])}) == value


NUMPY_STATE, NUMPY_GENERATOR, STATE = np.random.RandomState(0), np.random.default_rng(0), random.Random(0)
COUNT = itertools.count(2)
DRAWS: dict[str, Callable[[], float]] = {
    "a generator of Python": STATE.random,
    "a generator of NumPy": lambda: float(NUMPY_GENERATOR.normal()),
    "a random state of NumPy": lambda: float(NUMPY_STATE.rand()),
    "a function imported from random": lambda: uniform(0, 1),
    "a clock": lambda: perf_counter() % 1.0,
    "an iterator": lambda: float(next(COUNT)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_differs_in_every_call_is_never_recorded(name: str) -> None:
    draw = DRAWS[name]

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] * draw()}

    with pytest.warns(gw.FallbackWarning, match="it reads .*test_captured.py"):
        first = call(message)
    assert len({first, call(message), call(message)}) == 3


def data() -> float:
    """A global of the name of an attribute that messages read: they do not call it."""
    return float(np.random.rand())


def test_an_attribute_is_no_global_of_its_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", gw.FallbackWarning)
        assert call(lambda edges: {"m": edges.src["h"] * len(edges.data)}) == 0.0
    assert not capture((lambda edges: edges.data,)).refused
    assert capture((lambda edges: data() * edges.data,)).refused == "it reads the module numpy"
    assert capture((lambda edges: (lambda: data())() * edges.data,)).refused == "it reads the module numpy"


def imports_random() -> float:
    import random as drawn

    return drawn.random()


def imports_from_numpy() -> float:
    from numpy.random import rand

    return float(rand())


def imports_numpy() -> float:
    import numpy

    return float(numpy.random.rand())


@pytest.mark.parametrize("draw", [imports_random, imports_from_numpy, imports_numpy])
def test_random_modules_that_code_imports_itself_are_never_recorded(draw: Callable[[], float]) -> None:
    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] * draw()}

    with pytest.warns(gw.FallbackWarning, match=r"it reads the module (random|numpy)"):
        first = call(message)
    assert len({first, call(message), call(message)}) == 3


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A package of the user with a module of settings, which functions import where they run."""
    folder = tmp_path / "own_package" / "inner"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text("from . import settings\n", encoding="utf-8")
    (folder / "settings.py").write_text("scale = 2.0\n", encoding="utf-8")
    (folder / "code.py").write_text(IMPORTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("own_package")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("own_package.inner.code")


IMPORTS = """
import own_package

def outermost(x):
    return x * own_package.inner.settings.scale

def whole(x):
    import own_package.inner.settings
    return x * own_package.inner.settings.scale

def name_of_a_module(x):
    from own_package.inner.settings import scale
    return x * scale

def relative(x):
    from . import settings
    return x * settings.scale

def from_above(x):
    from ..inner.settings import scale as factor
    return x * factor
"""


@pytest.mark.parametrize("name", ["outermost", "whole", "name_of_a_module", "relative", "from_above"])
@pytest.mark.parametrize("form", ["a message", "a compiled module"])
def test_modules_that_code_imports_itself_are_read_again(package: types.ModuleType, name: str, form: str) -> None:
    read = getattr(package, name)

    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return torch.zeros_like(x).index_add(0, edge_index[1], read(x)[edge_index[0]])

    layer, ends = gw.compile(Layer()), torch.tensor([[0], [1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", gw.FallbackWarning)
        for scale in (2.0, 2.0, 3.0, 3.0, 2.0):
            importlib.import_module("own_package.inner.settings").scale = scale  # type: ignore[attr-defined]
            messages = call(lambda edges: {"m": read(edges.src["h"])}) if form == "a message" else layer(ONES, ends)[1]
            assert float(messages) == scale


@pytest.mark.filterwarnings("ignore::graphweft.FallbackWarning")
def test_a_generator_that_only_forward_uses_is_no_obstacle() -> None:
    class Layer(gw.MessagePassing):
        def __init__(self) -> None:
            super().__init__()
            self.generator = random.Random(0)

        def message(self, edges: Any) -> dict[str, Tensor]:
            return {"m": edges.src["h"]}

    with warnings.catch_warnings():
        warnings.simplefilter("error", gw.FallbackWarning)
        assert call(Layer().message) == 1.0


PACKAGE = """
class Registry:
    def __init__(self):
        self.everything = [object() for _ in range(1000)]
        self.scale = 2.0

REGISTRY = Registry()

def twice(x):
    return x * REGISTRY.scale

def message(edges):
    return {"m": edges.src["h"] * REGISTRY.scale}

def decorated(function):
    def call(edges):
        REGISTRY.everything
        return function(edges)
    return call
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A package as pip would install it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "some_package.py").write_text(PACKAGE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "some_package", raising=False)
    return importlib.import_module("some_package")


def test_the_own_objects_of_packages_are_not_searched(installed: types.ModuleType) -> None:
    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": installed.twice(edges.src["h"])}

    assert call(message) == 2.0
    assert len(capture((message,)).visited) < 50


def test_functions_that_are_installed_themselves_read_their_objects_at_every_call(installed: types.ModuleType) -> None:
    for scale in (2.0, 3.0, 2.0):
        installed.REGISTRY.scale = scale
        assert call(installed.message) == scale


def test_code_of_the_user_around_and_inside_of_packages_is_read_at_every_call(installed: types.ModuleType) -> None:
    """A package's object that the user's function reads, whoever else reads it and whoever calls the function."""
    kept = installed.Registry()

    def plain(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] * kept.scale * installed.REGISTRY.scale}

    wrapped = installed.decorated(plain)

    def message(edges: Any) -> dict[str, Tensor]:
        return wrapped(edges)  # type: ignore[no-any-return]

    for own, shared in ((2.0, 1.0), (3.0, 1.0), (3.0, 2.0)):
        kept.scale, installed.REGISTRY.scale = own, shared
        assert call(message) == own * shared
