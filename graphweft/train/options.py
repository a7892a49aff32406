"""Checks of options with one wording: ``name: expected ..., got ...``.

Comes in: a value from a user. Goes out: nothing, or a ConfigError. Called by the trainer and
:mod:`graphweft.train.spec`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from graphweft._errors import ConfigError
from graphweft.storage.memory_size import memory_bytes

OPTIMIZERS = ("adam", "adamw", "sgd")
USUAL_RATE = 0.01
DECAY_ON = ("first", "all")
LABELS_OF = {  # all tasks, and what their labels are of; "" for embeddings, which are learned without
    "nodes": "nodes",
    "link": "",
    "graphs": "graphs",  # as their labels are, as "edge"
    "graph_classification": "graphs",
    "graph_regression": "graphs",
    "edge": "edges",
    "edge_classification": "edges",
    "edge_regression": "edges",
    "unsupervised": "",  # any model with a loss of its own; no name of the command
    "gae": "",
    "vgae": "",
    "dgi": "",
    "node2vec": "",
}
TASKS = tuple(name for name in LABELS_OF if name != "unsupervised")
GRAPH_TASKS = ("graph_classification", "graph_regression")
EDGE_TASKS = ("edge_classification", "edge_regression")
EMBEDDING_TASKS = tuple(name for name, rows in LABELS_OF.items() if not rows)
UNSUPERVISED = EMBEDDING_TASKS[1:]  # without "link"
LABEL_TASKS = ("classification", "multilabel", "regression")  # what labels of tables mean
USUAL_BATCH, USUAL_GRAPHS = 1024, 128  # training nodes, or edges, of a step; graphs
MODES = ("full", "mini", "macro", "auto", "mapped")
READOUTS = ("sum", "mean", "max")
STOP_ON = ("accuracy", "loss", "both")
PREPARE = ("whole", "subtasks")
CUDA_GRAPHS = ("auto", "on", "off")
EDGE_DATA = ("use", "ignore")
NODE_ORDERS = ("auto", "given", "neighbours")
RANK_REDUCE = ("any", "ordered")
HALO = ("exact", "bf16", "int8", "stale", "sampled")
LAST = "last.pt"  # the last checkpoint, in a run folder
MOST_NEIGHBOURS = 16  # times a part's nodes
AUTO = "auto"  # as many neighbours as are worth their reading
FIRST = ("group", "whole")  # which in-edges the first layer of groups reads
GROUPS = f"neighbours:{AUTO}"  # how mode "auto" makes groups of a store
MOST_REUSE = 4  # times that a group of parts is gone through; Hanoi's bound
SAMPLERS = ("neighbor", "layer", "shadow", "saint-node", "saint-edge", "saint-walk", "graphs")


def check_readout(text: Any) -> None:
    """Readouts of graphs by name, joined by "+". Raises: ConfigError.

    Example:
        >>> check_readout("sum+mean+max")
    """
    kinds = text.split("+") if isinstance(text, str) else []
    if not kinds or any(kind not in READOUTS for kind in kinds):
        raise ConfigError(f"readout: expected some of {', '.join(READOUTS)}, joined by +, got {text!r}")


def check_integer(name: str, value: Any, least: int, most: int | None = None) -> None:
    """``value`` is an integer in [least, most].

    Raises: ConfigError.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most):
        return
    bounds = f">= {least}" if most is None else f"from {least} to {most}"
    raise ConfigError(f"{name}: expected an integer {bounds}, got {value!r}")


def check_number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> None:
    """``value`` is a finite number within the bounds given: least and most may be taken, above and below may not.

    Raises: ConfigError.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        fits = (
            (least is None or value >= least)
            and (above is None or value > above)
            and (below is None or value < below)
            and (most is None or value <= most)
        )
        if fits:
            return
    bounds = ((">=", least), (">", above), ("<", below), ("<=", most))
    words = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
    raise ConfigError(f"{name}: expected a finite number {words}, got {value!r}")


def check_stop_on(value: Any) -> None:
    """What becoming better means. Raises: ConfigError."""
    if value not in STOP_ON:
        raise ConfigError(f"stop_on: expected one of {', '.join(STOP_ON)}, got {value!r}; best= names a metric")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """``value`` is one of ``choices``.

    Raises: ConfigError.
    """
    if value not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def check_mode(mode: str) -> str:
    """``mode``, and for "auto" what it is before a plan decides: "full" for a graph in memory.

    Raises: ConfigError for another mode.
    """
    check_choice("mode", mode, MODES)
    return "full" if mode == "auto" else mode


def check_task(task: Any, mode: str) -> str:
    """``task``, one that ``mode`` can train.

    Raises: ConfigError.
    """
    if task in LABEL_TASKS:
        kind = f"gw.Dataset(..., task={task!r})"
        raise ConfigError(f"task: expected nodes, and {kind} where the labels do not tell their kind, got {task!r}")
    if task != "unsupervised":  # which follows from a model
        check_choice("task", task, TASKS)
    if task == "link" and check_mode(mode) not in ("mini", "mapped", "macro"):
        raise ConfigError(f"mode: expected mini for the task link, got {mode!r}")
    return str(task)


def check_fanouts(fanouts: Any) -> tuple[int, ...] | None:
    """Fan-outs as numbers, from a text such as "15,10,5" or a sequence; None for None.

    Raises: ConfigError for anything but numbers >= 1 or -1.

    Example:
        >>> check_fanouts("15, -1")
        (15, -1)
    """
    if fanouts is None:
        return None
    parts = fanouts.split(",") if isinstance(fanouts, str) else fanouts
    try:
        numbers = tuple(int(part) for part in parts if not isinstance(part, bool | float))
        fits = 0 < len(numbers) == len(parts) and all(number == -1 or 0 < number < 2**31 for number in numbers)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ConfigError(f"fanouts: expected numbers >= 1, or -1 for all, one a layer, got {fanouts!r}")
    return numbers


def check_quality(value: Any) -> None:
    """An error above 0 to keep to; infinite: it is only measured. Raises: ConfigError."""
    if value != math.inf:
        check_number("quality", value, above=0.0)


class MacroText(NamedTuple):
    """A text of macro-batches in its parts.

    Attributes:
        stages: What they are made of, or None.
        hubs: Bytes of the nodes that are in all of them, or None.
        reuse: How often each is gone through.
        keep: Parts that stay in memory from an epoch to the next.
        neighbours: Share of a part's nodes of which as many others come with it; "auto": as many as are worth it.
        first: Which in-edges the first layer reads: those in the "group", or of the "whole" graph.
    """

    stages: str | None
    hubs: str | None = None
    reuse: int = 1
    keep: int = 0
    neighbours: float | str = 0.0
    first: str = FIRST[0]

    def given(self) -> list[str]:
        """What was asked for besides stages."""
        return [name for name, value in self._asdict().items() if name != "stages" and value != _UNASKED[name]]


_UNASKED = MacroText._field_defaults


def split_macro(text: str) -> MacroText:
    """The parts of a text. Raises: ConfigError.

    Example:
        >>> tuple(split_macro("parts:2/8+hubs:64MB")), tuple(split_macro("hubs:1GB+reuse:2"))
        (('parts:2/8', '64MB', 1, 0, 0.0, 'group'), (None, '1GB', 2, 0, 0.0, 'group'))
    """
    found: dict[str, str] = {}
    stages: list[str] = []
    for piece in text.split("+"):
        name, colon, value = piece.partition(":")
        if name in _UNASKED and colon and name not in found:
            found[name] = value
        else:
            stages.append(piece)
    reuse, keep, share = found.get("reuse", "1"), found.get("keep", "0"), found.get("neighbours", "0")
    if not (reuse.isascii() and reuse.isdigit()):
        raise ConfigError(f"macro: expected reuse:N with N from 1 to {MOST_REUSE}, got {text!r}")
    if not (keep.isascii() and keep.isdigit()):
        raise ConfigError(f"macro: expected keep:N with a number of parts, got {text!r}")
    if share != AUTO and not re.fullmatch(r"[0-9]+(\.[0-9]*)?", share, re.ASCII):
        raise ConfigError(f"macro: expected neighbours:SHARE with a share of a part's nodes or auto, got {text!r}")
    first = found.get("first", FIRST[0])
    check_choice("macro: first", first, FIRST)
    given = (found.get("hubs"), int(reuse[:10]), int(keep[:10]), share if share == AUTO else float(share[:40]))
    return MacroText("+".join(stages) if stages else None, *given, first)


def check_macro_text(text: Any) -> None:
    """Macro-batches as text, of some mode. Raises: ConfigError."""
    if not isinstance(text, str):
        check_macro(text)


def check_macro_of(mode: str, text: str) -> None:
    """Macro-batches as text are those of a mode. Raises: ConfigError."""
    told = split_macro(text)
    stages, hubs, reuse, *_ = told
    if stages is not None and check_macro(stages)[0] != "parts" and mode == "macro":
        raise ConfigError(f"macro: expected parts:A/B with mode macro, got {text!r}; large:A/B goes with mode mini")
    check_integer("reuse", reuse, 1, MOST_REUSE)
    for name in told.given() if mode != "macro" else ():
        raise ConfigError(f"macro: {name} cannot be combined with mode={mode}; it is for groups of mode macro")
    check_neighbours(told.neighbours, hubs, stages)
    check_whole_first(told.first, told.keep)
    if hubs is not None:
        memory_bytes(hubs, "hubs")


def check_neighbours(share: Any, hubs: Any, stages: Any) -> None:
    """A share of a part's nodes that come with it, or "auto", which finds the parts as well; hubs are in every group.

    Raises: ConfigError.
    """
    told = share
    if share != AUTO:
        check_number("neighbours", share, least=0.0, most=MOST_NEIGHBOURS)
        told = f"{share:g}"
    elif stages is not None:
        given = stages if isinstance(stages, str) else "stages"
        raise ConfigError(f"macro: {given} cannot be combined with neighbours=auto, which finds the parts of a group")
    if share and hubs is not None:
        raise ConfigError(f"macro: hubs={hubs} cannot be combined with neighbours={told}")


def check_whole_first(first: Any, keep: int) -> None:
    """Raises: ConfigError for parts that stay in memory, which are kept as they lie in the store."""
    check_choice("macro: first", first, FIRST)
    if first != FIRST[0] and keep:
        raise ConfigError(f"macro: keep={keep} cannot be combined with first={first}")


def check_macro(text: Any) -> tuple[str, int, int]:
    """A kind of macro-batches and its share: "large" with a share of the seeds, or "parts" with so many of all parts.

    Raises: ConfigError.

    Example:
        >>> check_macro("large:1/8"), check_macro("parts:16/128")
        (('large', 1, 8), ('parts', 16, 128))
    """
    kind, _, share = text.partition(":") if isinstance(text, str) else ("", "", "")
    one, _, of = share.partition("/")
    if kind in ("large", "parts") and one.isascii() and one.isdigit() and of.isascii() and of.isdigit():
        numbers = int(one[:10]), int(of[:10])
        if 1 <= numbers[0] <= numbers[1] < 2**30:
            return kind, *numbers
    raise ConfigError(f"macro: expected large:A/B or parts:A/B with 1 <= A <= B, got {text!r}")
