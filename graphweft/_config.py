"""One frozen configuration object, one environment prefix (``GRAPHWEFT_``), one ``with gw.config(...)``.

Comes in: environment at import, keyword overrides in a ``with`` block. Goes out: :func:`current`, read by the compiler,
the calibration and the caches. No other module reads the environment for a setting.
"""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import platformdirs

from graphweft._errors import ConfigError

PRECISIONS = ("float32", "bf16", "int8")


@dataclass(frozen=True)
class Config:
    """All settings and their defaults. The environment variable ``GRAPHWEFT_<FIELD>`` sets a field too.

    Attributes:
        opt_level: 0 interpreter, 1 compiled, 2 + reordering and placement, 3 + fusion and hoisting.
        disabled_passes: Names of passes to leave out, comma separated.
        disabled_kernels: Names of kernels to leave out, comma separated. Their calls run in plain torch, or over edges
            as generated kernels.
        cache_dir: Folder of calibration and compiled kernels. Never inside the package.
        data_dir: Folder in which ``gw.load`` looks for named datasets and stores them.
        memory: Most bytes of values that are computed once; 0 means half of the machine's memory. Also the most bytes
            of dense rows that are made from sparse features; 0 means 4 GiB.
        calibrate: Whether to measure this machine once (sparse threshold, cost model) and store the result.
        tune: Whether to fit the cost model to the calls of the first training step and to choose orders by it. Times
            differ between runs, so results may differ in their last bits. The trainer does so once per model, data and
            machine and stores the outcome, so its runs repeat bit for bit.
        verify: Whether to compare every newly compiled user function with its plain execution, forward and backward, on
            its first call. A difference is an error.
        certify: Whether to try every rewrite of a newly compiled program, forward and backward, on small graphs. A
            rewrite that changes a result by more than rounding is left out with a warning. This takes some hundredths
            of a second, once, because verdicts are stored in ``cache_dir``.
        target: What runs the kernel calls: "cpu"; "reference" for plain torch from the definition of every call; or
            "null", which counts calls and bytes and returns zeros. Tensors on a CUDA device use "cuda", unless this is
            "reference".
        keep_heap: Whether the C library keeps freed memory for the next step, after a user function has run on large
            rows, in place of returning it to the system. This changes the allocator of the whole process until it ends,
            so the default is off. ``graphweft train`` turns it on.
        forward_products: Whether products of many float32 rows by a weight in ``forward`` of a :class:`MessagePassing`
            module run on the kernels of compiled programs, which take half the time of torch's. :func:`gw.explain`
            shows how many there are.
        precision: "float32", or "bf16". With "bf16", sums over edges read rows of neighbours rounded to bfloat16, half
            of the bytes. Dense products round both operands to bfloat16 if the processor has matrix tiles. Both add up
            in float32. Features, and in sampled batches the results of such products, are stored in bfloat16 if all
            their readers take such rows. Parameters and all other operations are float32.
        rank_timeout: Seconds that a rank waits for another rank before it ends with an error.
    """

    opt_level: int = 3
    disabled_passes: str = ""
    disabled_kernels: str = ""
    cache_dir: str = platformdirs.user_cache_dir("graphweft")
    data_dir: str = "data"
    memory: int = 0
    calibrate: bool = True
    tune: bool = False
    verify: bool = False
    certify: bool = True
    target: str = "cpu"
    keep_heap: bool = False
    forward_products: bool = True
    precision: str = "float32"
    rank_timeout: int = 300

    def __post_init__(self) -> None:
        if not 0 <= self.opt_level <= 3:
            raise ConfigError(f"opt_level: expected 0, 1, 2 or 3, got {self.opt_level}")
        if self.memory < 0:
            raise ConfigError(f"memory: expected a number of bytes >= 0, got {self.memory}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision: expected one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.rank_timeout < 1:
            raise ConfigError(f"rank_timeout: expected seconds >= 1, got {self.rank_timeout}")

    @property
    def cache_path(self) -> Path:
        """``cache_dir`` as a path."""
        return Path(self.cache_dir).expanduser()


_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _from_environment() -> Config:
    values: dict[str, Any] = {}
    for field in fields(Config):
        name = f"GRAPHWEFT_{field.name.upper()}"
        text = os.environ.get(name)
        if text is None:
            continue
        try:
            kind: Callable[[str], Any] = type(field.default)
            values[field.name] = _TRUTH[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise ConfigError(f"{name}: expected {type(field.default).__name__}, got {text!r}") from None
    return Config(**values)


_INITIAL = _from_environment()
_current: contextvars.ContextVar[Config] = contextvars.ContextVar("graphweft_config", default=_INITIAL)


def current() -> Config:
    """The configuration in force here."""
    return _current.get()


@contextlib.contextmanager
def config(**changes: Any) -> Iterator[Config]:
    """Configuration with ``changes`` for the duration of the block.

    Raises: ConfigError for an unknown field or a value out of range.

    Example:
        >>> with config(opt_level=0) as active:
        ...     active.opt_level
        0
    """
    unknown = set(changes) - {field.name for field in fields(Config)}
    if unknown:
        known = [field.name for field in fields(Config)]
        near = difflib.get_close_matches(min(unknown), known, 1)
        meant = f"; did you mean {near[0]}" if near else f"; they are {', '.join(known)}"
        raise ConfigError(f"config: expected fields of Config, got {', '.join(sorted(unknown))}{meant}")
    token = _current.set(replace(_current.get(), **changes))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def defaults(**changes: Any) -> contextlib.AbstractContextManager[Config]:
    """As :func:`config`, but only for fields that the environment does not set: the defaults of a command.

    Example:
        >>> with defaults(keep_heap=True) as active:
        ...     active.keep_heap
        True
    """
    unset = {name: value for name, value in changes.items() if f"GRAPHWEFT_{name.upper()}" not in os.environ}
    return config(**unset)
