"""What a program is: the model, how it is trained and on which data, in a few lines that can be kept in a file.

Comes in: keyword arguments, or a TOML file whose keys are the names of the options of ``graphweft train``. Goes out: a
frozen :class:`ProgramSpec`. Called by the command ``synth``; ``verbs.py`` makes the same from Morphling's verbs.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import tomllib
from collections.abc import Iterator, Set
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from graphweft._errors import ConfigError, DataError
from graphweft.train.options import check_choice
from graphweft.train.spec import TrainSpec

MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "transformer", "appnp", "gcnii")
KNOWN = f"{', '.join(MODELS[:-1])} or {MODELS[-1]}"
LATER_MODELS = ("cgat", "ngcf", "rgcn", "hgt")
TARGETS = ("openmp", "mpi", "cuda")
WHAT = ("train", "predict")
# The time to choose orders of products grows faster than the square of the layers; kernels are compiled for the heads.
_MOST = {"layers": 64, "hops": 64, "hidden": 65536, "heads": 1024, "out_heads": 1024}
_KEY = re.compile(r"""^\s*(?:"([^"\n]*)"|'([^'\n]*)'|([A-Za-z0-9_-]+))\s*=\s*(.*)$""")
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_AS_TOLD = {"Cannot overwrite a value": "a key that was given before"}  # what tomllib says of it
_MOST_BYTES = 1 << 20
_KINDS: dict[str, tuple[Any, str]] = {
    "int": (int, "an integer"),
    "float": ((int, float), "a number"),
    "str": (str, "a text"),
    "bool": (bool, "true or false"),
}


@dataclass(frozen=True, repr=False)
class ProgramSpec:
    """A model that is trained on all nodes at once. Options have the names, meaning and defaults of
    ``graphweft train``.

    Attributes:
        data: A known name, or a path to a file or folder; "default" is a synthetic graph made on the spot.
        root: Folder of named datasets; None: the configured one.
        scale: Share of the nodes, for a synthetic twin of the named dataset in place of the dataset.
        model: "gcn", "sage", "gin", "gat", "gatv2", "transformer", "appnp" or "gcnii".
        layers: Number of layers.
        hidden: Width of the hidden layers.
        heads: Heads of hidden layers with attention.
        out_heads: Heads of the last layer with attention, averaged.
        attention_dropout: Probability of dropping the softmax weight of an edge; None is ``dropout``.
        value_dropout: For a GAT, probability of dropping a value in the sums of attention.
        hops: Number of propagation steps of an APPNP.
        alpha: Share of a node's own rows in every hop of an APPNP or layer of a GCNII.
        train_eps: Whether a GIN learns the weight of a node's own row.
        reduce: "sum", "mean" or "max" over neighbours; "auto" is the default of the model.
        activation: "relu", "elu" or "leaky_relu" after every layer except the last; "auto" is the default of the model.
        residual: Whether to add a layer's input to its output if the widths are equal.
        dropout: Probability of dropping an input of a layer.
        optimizer: "adam", "adamw" or "sgd".
        lr: Learning rate.
        weight_decay: Strength of the L2 penalty.
        weight_decay_on: "all" parameters, or those of the "first" layer only.
        norm: "batch" or "layer" after every layer except the last; or "none".
        normalize: "row" divides the features of a node by their sum; "none" does not.
        epochs: Default number of epochs of the program.
        eval_every: Number of epochs between evaluations.
        mode: "full".
        seed: Default seed of parameters and dropout of the program.

    Raises: ConfigError for a value out of range.

    Example:
        >>> ProgramSpec(model="sage", layers=3).hidden
        32
        >>> ProgramSpec(mode="mini")
        Traceback (most recent call last):
        graphweft._errors.ConfigError: mode: expected full, got 'mini': programs of other modes come later
    """

    data: str = TrainSpec.data
    root: str | None = TrainSpec.root
    scale: float | None = TrainSpec.scale
    model: str = TrainSpec.model
    layers: int = TrainSpec.layers
    hidden: int = TrainSpec.hidden
    heads: int = TrainSpec.heads
    out_heads: int = TrainSpec.out_heads
    attention_dropout: float | None = TrainSpec.attention_dropout
    value_dropout: float = TrainSpec.value_dropout
    hops: int = TrainSpec.hops
    alpha: float = TrainSpec.alpha
    train_eps: bool = TrainSpec.train_eps
    reduce: str = TrainSpec.reduce
    activation: str = TrainSpec.activation
    residual: bool = TrainSpec.residual
    dropout: float = TrainSpec.dropout
    optimizer: str = TrainSpec.optimizer
    lr: float = TrainSpec.lr
    weight_decay: float = TrainSpec.weight_decay
    weight_decay_on: str = TrainSpec.weight_decay_on
    norm: str = TrainSpec.norm
    normalize: str = TrainSpec.normalize
    epochs: int = TrainSpec.epochs
    eval_every: int = TrainSpec.eval_every
    mode: str = TrainSpec.mode
    seed: int = TrainSpec.seed

    def __post_init__(self) -> None:
        if self.model in LATER_MODELS:
            raise ConfigError(f"model: expected {KNOWN}, got {self.model}: programs of it come later")
        check_choice("model", self.model, MODELS)
        if self.mode != "full":
            raise ConfigError(f"mode: expected full, got {self.mode!r}: programs of other modes come later")
        for name in ("residual", "train_eps"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"{name}: expected true or false, got {value!r}")
        self.to_train()
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise ConfigError(f"{name}: expected at most {most} in a program, got {getattr(self, name)}")

    def __repr__(self) -> str:
        """What is not as usual."""
        return f"ProgramSpec({', '.join(f'{name}={value!r}' for name, value in self._given().items())})"

    def _given(self) -> dict[str, Any]:
        usual = TrainSpec()
        return {name: value for name, value in asdict(self).items() if value != getattr(usual, name)}

    def to_train(self) -> TrainSpec:
        """The same run for ``graphweft train``, with nodes in the order as given. Raises: ConfigError.

        Another order of the nodes has other last bits, and programs do not renumber nodes.
        """
        return TrainSpec(**asdict(self), order="given")

    def to_toml(self) -> str:
        """The text of a TOML file of this spec; defaults are left out.

        Example:
            >>> print(ProgramSpec(model="gin", lr=0.1).to_toml())
            model = "gin"
            lr = 0.1
        """
        return "\n".join(f"{name} = {_as_toml(value)}" for name, value in self._given().items())


def check_target(target: str) -> None:
    """Raises: ConfigError for a target that there is none of."""
    check_choice("target", target, TARGETS)


def check_what(what: str) -> None:
    """Raises: ConfigError for a purpose that programs do not have."""
    check_choice("what", what, WHAT)


def read_spec(path: str | Path) -> ProgramSpec:
    """The spec of a TOML file.

    Raises: ConfigError with line and column of an unknown key or a wrong value.
    """
    return ProgramSpec(**options_of_file(path, ProgramSpec))


def spec_of_toml(text: str, name: str = "spec") -> ProgramSpec:
    r"""The spec of a text in TOML; ``name`` is what errors call it.

    Raises: ConfigError with line and column of an unknown key or a wrong value.

    Example:
        >>> spec_of_toml('model = "gin"').model
        'gin'
        >>> spec_of_toml('model = "gin"\nlayer = 3', "a.toml")
        Traceback (most recent call last):
        graphweft._errors.ConfigError: a.toml:2:1: layer: expected a known key, got an unknown one; did you mean layers?
    """
    return ProgramSpec(**options_of_toml(text, name, ProgramSpec))


def options_of_file(path: str | Path, kind: type[ProgramSpec] | type[TrainSpec]) -> dict[str, Any]:
    """The options of a TOML file, checked by ``kind``. Raises: ConfigError with line and column."""
    return options_of_toml(_text(Path(path)), str(path), kind)


@contextlib.contextmanager
def placing(path: str | Path | None, overridden: Set[str] = frozenset()) -> Iterator[None]:
    """Errors in here about a value of the TOML file ``path`` begin with its line and column.

    What is wrong with the dataset is told of the key ``data``; keys that are ``overridden`` have their values from
    elsewhere.
    """
    try:
        yield
    except (ConfigError, DataError) as failure:
        text = str(failure)
        named = re.match(r"(\w+)(?=[:=])", text)
        key = named[1] if named is not None else ""
        places = {} if path is None else _places(_text(Path(path)))
        if isinstance(failure, DataError) and key not in places:
            key = "data"
        if key in places and key not in overridden:
            line, _, column = places[key]
            failure.args = (f"{path}:{line}:{column}: {text}", *failure.args[1:])
        raise


def options_of_toml(text: str, name: str, kind: type[ProgramSpec] | type[TrainSpec]) -> dict[str, Any]:
    """The options of a text in TOML, checked by ``kind``. Raises: ConfigError with line and column."""
    values = _parsed(text, name)
    known = {field.name: str(field.type).split(" ")[0] for field in fields(kind)}
    for key in values:
        if key not in known:
            line, column, _ = _places(text).get(key, (1, 1, 1))
            shown = key or '""'
            raise ConfigError(f"{name}:{line}:{column}: {shown}: {_unknown(key, tuple(known))}")
    for key, value in values.items():
        values[key] = _of_kind(value, known[key], f"{_of_value(name, text, key)}: {key}")
    try:
        kind(**values)
    except ConfigError as failure:
        key = str(failure).partition(":")[0].partition("=")[0]
        where = _of_value(name, text, key) if key in values else name
        raise ConfigError(f"{where}: {failure}") from None
    return values


def _parsed(text: str, name: str) -> dict[str, Any]:
    """Keys and values of a flat text. Raises: ConfigError with line and column."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as failure:
        place = _PLACE.search(str(failure))
        what = _PLACE.sub("", str(failure))
        told = _AS_TOLD.get(what.strip(), what[:1].lower() + what[1:])
        told = f"{told}, got something else" if told.startswith("expected ") else f"expected TOML, got {told}"
        lines = text.splitlines() or [""]
        where = place.groups() if place is not None and place[1] else (len(lines), len(lines[-1]) + 1)
        raise ConfigError(f"{name}:{where[0]}:{where[1]}: {told}") from None
    except (ValueError, RecursionError) as failure:
        got = "values nested too deeply" if isinstance(failure, RecursionError) else "a number with too many digits"
        raise ConfigError(f"{name}: expected options as TOML, got {got}") from None
    for key, value in found.items():
        if isinstance(value, dict):
            at = re.search(rf"^\s*\[*\s*[\"']?{re.escape(key)}", text, re.M)
            line = 1 if at is None else text.count("\n", 0, at.end()) + 1
            raise ConfigError(f"{name}:{line}:1: {key}: expected keys without tables, got a table")
    return found


def _unknown(key: str, known: tuple[str, ...]) -> str:
    if key in TrainSpec.__dataclass_fields__:
        return "expected an option that programs have, got one of graphweft train alone"
    near = _nearest(key, known)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(known)}"
    return f"expected a known key, got an unknown one; {hint}"


def _of_kind(value: Any, kind: str, where: str) -> Any:
    """``value`` as an option of that kind. Raises: ConfigError."""
    python, wanted = _KINDS[kind]
    if not isinstance(value, python) or (isinstance(value, bool) and kind != "bool"):
        raise ConfigError(f"{where}: expected {wanted}, got {_as_toml(value)}")
    return float(value) if kind == "float" else value


def _of_value(name: str, text: str, key: str) -> str:
    line, _, column = _places(text).get(key, (1, 1, 1))
    return f"{name}:{line}:{column}"


def _places(text: str) -> dict[str, tuple[int, int, int]]:
    """Line of every key, its column, and that of its value; all count from 1."""
    found: dict[str, tuple[int, int, int]] = {}
    for line, row in enumerate(text.splitlines(), 1):
        match = _KEY.match(row)
        if match is not None:
            group = next(i for i in (1, 2, 3) if match[i] is not None)
            quoted = 0 if group == 3 else 1
            found.setdefault(match[group], (line, match.start(group) + 1 - quoted, match.start(4) + 1))
    return found


def _nearest(key: str, known: tuple[str, ...]) -> str:
    """The known key whose letters are most like those of ``key``; empty where none is."""
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, 1)
    return near[0] if near else ""


def _as_toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04X}" for c in escaped) + '"'
    return repr(value)


def _text(path: Path) -> str:
    """The file's text. Raises: ConfigError."""
    try:
        if not path.is_file():
            raise ConfigError(f"spec: expected a TOML file, got {path}, which is not a file")
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8-sig")  # editors of Windows begin files with a mark
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "no UTF-8"
        raise ConfigError(f"spec: expected a readable TOML file, got {path}: {reason}") from None


__all__ = [
    "KNOWN",
    "TARGETS",
    "WHAT",
    "ProgramSpec",
    "check_target",
    "check_what",
    "options_of_file",
    "placing",
    "read_spec",
    "spec_of_toml",
]
