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
    """All settings and their defaults. Each field is also ``GRAPHWEFT_<FIELD>`` in the environment.

    Attributes:
        opt_level: 0 interpreter, 1 compiled, 2 + reordering and placement, 3 + fusion and hoisting.
        disabled_passes: Names of passes to leave out, comma separated.
        disabled_kernels: Names of kernels that are not used, comma separated. Their calls run in plain torch, those
            over edges as generated kernels.
        cache_dir: Where calibration and compiled kernels are kept. Never inside the package.
        data_dir: Where ``gw.load`` looks for and stores named datasets.
        memory: Bytes that values computed once may take; 0 means half of the machine's memory. Also the most bytes
            of dense rows that are made from sparse features for a function that needs them; 0 means 4 GiB.
        calibrate: Measure this machine once (sparse threshold, cost model) and remember it.
        tune: Fit the cost model to the calls of the first training step and choose orders by it from then on. Times
            differ from run to run, so results may then differ in their last bits between runs. The trainer does it
            once per model, data and machine and remembers the outcome, so its runs repeat bit for bit.
        verify: Compare every newly compiled user function with its plain execution, forward and backward, on its first
            call; a difference is an error.
        certify: Try every rewrite of a newly compiled program, forward and backward, on small graphs, and leave out
            one that changes a result by more than rounding, with a warning. It takes some hundredths of a second, once:
            verdicts are remembered in ``cache_dir``.
        target: Who runs the kernel calls: "cpu"; "reference", plain torch from the definition of every call; or
            "null", which counts calls and bytes and returns zeros. Tensors on a CUDA device use "cuda", unless this
            is "reference".
        keep_heap: Once a user function has run on large rows, the C library keeps the memory that tensors free for the
            next step of training, instead of giving it back to the system. This changes the allocator of the whole
            process, to its end, so it is off unless it is asked for; the command ``graphweft train`` turns it on.
        forward_products: Products of many float32 rows by a weight in ``forward`` of a :class:`MessagePassing` module
            run on the kernels of compiled programs, which take half as long as torch's; False leaves them to torch.
            :func:`gw.explain` says how many there are.
        precision: "float32", or "bf16": sums over edges read their neighbours' rows rounded to bfloat16, which is half
            of the bytes, and dense products round both operands to bfloat16 where the processor has matrix tiles for
            that. Both add up in float32. Features, and in sampled batches what such products make and keep, are stored
            in bfloat16 where all that reads them takes such rows; parameters and all other operations are float32.
        rank_timeout: Seconds that a rank waits for another one before it gives up.
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
