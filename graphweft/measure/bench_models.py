"""Models whose epochs are timed beside PyTorch Geometric's: built-in ones, and stacks of a layer of the user's.

Comes in: the name of a model, or ``file.py:Layer``. Goes out: for every system a function that makes its epoch; all
begin from the same weights. Called by ``bench.py``.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.nn.compiled import compile as compiled
from graphweft.nn.gat import GAT
from graphweft.nn.gin import GIN
from graphweft.nn.pyg_weights import load_pyg_state_dict
from graphweft.nn.sage import SAGE

Sizes = tuple[int, int, int, int]  # features, hidden, classes, layers
BUILT_IN = ("gcn", "sage", "gin", "gat", "gatv2")


def check_model(model: str) -> str:
    """``model``, a built-in one or ``file.py:Layer``. Raises: ConfigError."""
    if model not in BUILT_IN and ":" not in model:
        known = ", ".join(BUILT_IN)
        raise ConfigError(f"model: expected one of {known}, or a layer as my_layer.py:Layer, got {model!r}")
    return model


def built_in(model: str, sizes: Sizes) -> tuple[nn.Module, nn.Module]:
    """Our model and PyTorch Geometric's of the same weights."""
    from torch_geometric import nn as pyg

    features, hidden, classes, layers = sizes
    given = (features, hidden, layers, classes)
    peers: dict[str, Callable[[], nn.Module]] = {
        "sage": lambda: pyg.GraphSAGE(*given),
        "gin": lambda: pyg.GIN(*given),
        "gat": lambda: pyg.GAT(*given),
        "gatv2": lambda: pyg.GAT(*given, v2=True),
    }
    ours: dict[str, Callable[[], nn.Module]] = {
        "sage": lambda: SAGE(features, hidden, classes, layers),
        "gin": lambda: GIN(features, hidden, classes, layers),
        "gat": lambda: GAT(features, hidden, classes, layers, heads=1, out_heads=1, activation="relu"),
        "gatv2": lambda: GAT(features, hidden, classes, layers, heads=1, out_heads=1, activation="relu", v2=True),
    }
    peer, mine = peers[model](), ours[model]()
    load_pyg_state_dict(mine, peer.state_dict())
    return mine, peer


class Layers(nn.Module):
    """Layers of one class with a relu between them, called as ``model(x, edge_index)``."""

    def __init__(self, layer: Callable[..., nn.Module], sizes: Sizes) -> None:
        super().__init__()
        features, hidden, classes, count = sizes
        widths = [features, *[hidden] * (count - 1), classes]
        self.layers = nn.ModuleList(layer(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Shape: x (N, features), edge_index (2, E) -> (N, classes)."""
        for place, layer in enumerate(self.layers):
            x = layer(x, edge_index)
            x = x.relu() if place + 1 < len(self.layers) else x
        return x


def from_file(text: str, sizes: Sizes) -> tuple[nn.Module, nn.Module]:
    """A stack of the layer that ``file.py:Layer`` names, compiled, and the same as it is written.

    Raises: ConfigError for a file or a class that does not serve.
    """
    kind = layer_class(text)
    try:
        theirs = Layers(kind, sizes)
    except TypeError as failure:
        raise ConfigError(f"{text}: expected a layer made as Layer(in_features, out_features): {failure}") from None
    return compiled(copy.deepcopy(theirs)), theirs


def layer_class(text: str) -> Callable[..., nn.Module]:
    """The class that ``file.py:Layer`` names. Raises: ConfigError."""
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"{text}: expected a file, as in my_layer.py:Layer, got {file!r}, which is not a file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{text}: expected a file of Python, as in my_layer.py:Layer, got {file!r}")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # where PyTorch Geometric looks for it
    try:
        spec.loader.exec_module(module)
    except Exception as failure:  # whatever the user's file raises
        raise ConfigError(f"{file}: it does not run ({type(failure).__name__}: {failure})") from None
    found: Any = getattr(module, name, None)
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        own = [key for key, item in vars(module).items() if inspect.isclass(item) and issubclass(item, nn.Module)]
        raise ConfigError(f"{text}: expected a class of modules in {file} ({', '.join(own) or 'it has none'})")
    try:
        inspect.signature(found.forward).bind(None, None, None)
    except TypeError:
        text_of = f"forward{inspect.signature(found.forward)}"
        raise ConfigError(f"{text}: expected a layer called as layer(x, edge_index), got {text_of}") from None
    return found


__all__ = ["BUILT_IN", "Layers", "built_in", "check_model", "from_file", "layer_class"]
