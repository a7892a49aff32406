"""Weights of PyTorch Geometric's layers put into ours.

Comes in: a model or layer of ours and the ``state_dict()`` of its peer. Goes out: the same model with the peer's
parameters. Nothing of PyTorch Geometric is imported: names and shapes tell. Called by users.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.nn.gat import GATConv, GATv2Conv
from graphweft.nn.gcn import GCNConv
from graphweft.nn.gin import GINConv
from graphweft.nn.sage import SAGEConv

_EDGE = {"lin_edge.weight": "edge_projection"}
# For every layer the peer's names and ours. Its matrices are (out, in), ours (in, out).
_NAMES: dict[type[nn.Module], dict[str, str]] = {
    GCNConv: {"lin.weight": "weight", "bias": "bias"},
    SAGEConv: {"lin_l.weight": "neighbor_weight", "lin_l.bias": "bias", "lin_r.weight": "self_weight"},
    GINConv: {
        f"nn.{place}.{kind}": f"{kind}{number}"
        for number, places in ((1, ("0", "lins.0")), (2, ("2", "lins.1")))
        for place in places
        for kind in ("weight", "bias")
    }
    | {"eps": "eps"},
    GATConv: {"lin.weight": "weight", "lin_src.weight": "weight", "bias": "bias"}
    | {name: name for name in ("att_src", "att_dst", "att_edge")}
    | _EDGE,
    GATv2Conv: {
        "lin_l.weight": "weight",
        "lin_l.bias": "src_bias",
        "lin_r.weight": "dst_weight",
        "lin_r.bias": "dst_bias",
        "att": "att",
        "bias": "bias",
    }
    | _EDGE,
}
_NORM = "module."  # within a batch norm of PyTorch Geometric


def load_pyg_state_dict(model: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Copies parameters of PyTorch Geometric's layers into ``model``, which then computes the same results.

    Layers are matched by their order in ``state_dict``; their names do not matter: ``convs.0``, ``convs.1`` of
    ``torch_geometric.nn.GCN``, or ``conv1``, ``conv2`` of a module written by hand. GIN's perceptron is
    ``Sequential(Linear, ReLU, Linear)`` or an ``MLP`` without norm. Batch norms between layers are copied with their
    running statistics. Sizes have to be equal. So do settings that a state dict does not contain: reducer, activation
    (``torch_geometric.nn.GAT`` has ``"relu"``), self-loops, eps of norms.

    Args:
        model: A ``GCN``, ``SAGE``, ``GIN`` or ``GAT`` (``v2=True``: GATv2), or one layer of these.
        state_dict: ``state_dict()`` of the model or layer of PyTorch Geometric.

    Raises: ConfigError for another kind of model, for names that are missing or not known, and for other shapes.
    ``model`` is then unchanged.

    Example:
        >>> layer = GCNConv(2, 3)
        >>> load_pyg_state_dict(layer, {"lin.weight": torch.ones(3, 2), "bias": torch.zeros(3)})
        >>> layer.weight.sum().item()
        6.0
    """
    layers = _layers(model)
    kind = type(layers[0])
    groups, norms = _grouped(kind, state_dict)
    if len(groups) != len(layers):
        found = ", ".join(repr(prefix) for prefix in groups) or "none"
        raise _wrong(f"expected weights of {len(layers)} {kind.__name__} layers, got {len(groups)} ({found})")
    inner = getattr(model, "norms", None)
    if len(norms) != (len(inner) if inner is not None else 0):
        raise _wrong(f"expected {len(inner) if inner is not None else 0} batch norms between layers, got {len(norms)}")
    pairs: list[tuple[Tensor, Tensor]] = []
    for layer, (prefix, theirs) in zip(layers, groups.items(), strict=True):
        pairs += _pairs(layer, prefix, {_NAMES[kind][name]: tensor for name, tensor in theirs.items()})
    for norm, (prefix, theirs) in zip(inner or (), norms.items(), strict=True):
        pairs += _pairs(norm, prefix, theirs)
    with torch.no_grad():
        for mine, tensor in pairs:
            mine.copy_(tensor)


def _layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model, or the one layer itself."""
    layers = [model] if type(model) in _NAMES else list(getattr(model, "layers", ()))
    kinds = {type(layer) for layer in layers}
    if len(kinds) != 1 or not kinds <= _NAMES.keys():
        raise _wrong(f"expected a GCN, SAGE, GIN or GAT, or a layer of one, got {type(model).__name__}")
    return layers


def _grouped(
    kind: type[nn.Module], state_dict: Mapping[str, Tensor]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, Tensor]]]:
    """Tensors by layer, and by batch norm, in the order of ``state_dict``."""
    known = sorted(_NAMES[kind], key=len, reverse=True)  # 'lin_l.bias' before 'bias'
    groups: dict[str, dict[str, Tensor]] = {}
    norms: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state_dict.items():
        before, module, rest = name.rpartition(_NORM)
        if module and "norm" in before:
            norms.setdefault(before.rstrip("."), {})[rest] = tensor
            continue
        suffix = next((end for end in known if name == end or name.endswith(f".{end}")), None)
        if suffix is None:
            raise _wrong(f"expected names such as {', '.join(_NAMES[kind])}, got {name!r}")
        groups.setdefault(name.removesuffix(suffix).rstrip("."), {})[suffix] = tensor
    return groups, norms


def _pairs(mine: nn.Module, prefix: str, theirs: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Our tensors with theirs in our shapes."""
    own = mine.state_dict(keep_vars=True)
    where = f" of {prefix}" if prefix else ""
    if own.keys() != theirs.keys():
        raise _wrong(f"expected {', '.join(sorted(own))}{where}, got {', '.join(sorted(theirs))}; set bias or edge_dim")
    found = []
    for name, tensor in own.items():
        other = theirs[name].T if theirs[name].dim() == 2 else theirs[name]
        if other.numel() != tensor.numel() or (other.dim() == 2 and other.shape != tensor.shape):
            raise _wrong(f"expected {name}{where} of shape {tuple(tensor.shape)}, got {tuple(other.shape)}")
        found.append((tensor, other.reshape(tensor.shape)))
    return found


def _wrong(text: str) -> ConfigError:
    return ConfigError(f"load_pyg_state_dict: {text}")
