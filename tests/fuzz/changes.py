"""Sequences of (call, change, call) over models, user functions, loaders and trainers, against fresh execution.

``python -m tests.fuzz.changes --seed S --sequences N`` from the checkout. A sequence warms a model up, changes one
thing in one of many ways, some of them invisible to torch, and compares the next results and gradients with those of
the reference executor (``opt_level=0``), which keeps nothing, and with those of a copy, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nn.models import BUILT_IN, HIDDEN, IN, MODELS, OUT, make, random_graph

import graphweft as gw
from graphweft.passes import pipeline

NODES, EDGES = 40, 240


class Sequence:
    """One subject with its inputs, and the random choices of one sequence."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.name = str(self.rng.choice(sorted(MODELS)))
        self.graph = random_graph(int(self.rng.integers(3)), NODES, EDGES)
        self.memory = self.rng.standard_normal((NODES, IN)).astype("f4")
        self.x = torch.from_numpy(self.memory)
        options: dict[str, Any] = {}
        if self.name in BUILT_IN:
            options = {"norm": self._pick(None, "batch", "layer"), "dropout": float(self._pick(0.0, 0.0, 0.4))}
            options["residual"] = bool(self._pick(False, True))
            known = inspect.signature(MODELS[self.name]).parameters
            options = {name: value for name, value in options.items() if name in known}
        torch.manual_seed(seed % 1000)
        self.model = MODELS[self.name](**options) if options else make(self.name)
        self.model.train(bool(self._pick(True, False)))
        self.hooked: list[int] = []

    def _pick(self, *items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def layer(self) -> nn.Module:
        """One of the layers; the model where it has none."""
        layers = getattr(self.model, "layers", [self.model])
        return layers[int(self.rng.integers(len(layers)))]

    def parameter(self) -> nn.Parameter:
        """One of the parameters."""
        return self._pick(*self.model.parameters())


def _numpy(s: Sequence) -> None:
    s.memory *= 2


def _data(s: Sequence) -> None:
    s.x.data.add_(0.5)


def _in_place(s: Sequence) -> None:
    s.x.mul_(-1)


def _one_element(s: Sequence) -> None:
    s.memory[int(s.rng.integers(NODES)), int(s.rng.integers(IN))] += 1


def _inference(s: Sequence) -> None:
    with torch.inference_mode():
        s.x = torch.empty(NODES, IN).normal_(generator=torch.Generator().manual_seed(int(s.rng.integers(100))))


def _other_features(s: Sequence) -> None:
    s.x = torch.from_numpy(s.rng.standard_normal((NODES, IN)).astype("f4"))


def _other_graph(s: Sequence) -> None:
    s.graph = random_graph(int(s.rng.integers(3, 9)), NODES, int(s.rng.integers(1, EDGES)))


def _average(s: Sequence) -> None:
    for p in s.model.parameters():
        p.data.mul_(0.5).add_(0.1)


def _parameter_memory(s: Sequence) -> None:
    s.parameter().detach().numpy()[...] *= 1.5


def _new_parameter(s: Sequence) -> None:
    layer = s.layer()
    named = [n for n, p in layer.named_parameters(recurse=False) if p is not None]
    if named:
        name = s._pick(*named)
        setattr(layer, name, nn.Parameter(torch.randn_like(getattr(layer, name))))


def _frozen(s: Sequence) -> None:
    p = s.parameter()
    p.requires_grad_(not p.requires_grad)


def _update(s: Sequence) -> None:
    with torch.no_grad():
        for p in s.model.parameters():
            p.sub_(0.1)


def _loaded(s: Sequence) -> None:
    s.model.load_state_dict({n: t * 0.5 if t.is_floating_point() else t for n, t in s.model.state_dict().items()})


def _mode(s: Sequence) -> None:
    s._pick(*s.model.modules()).train(bool(s._pick(True, False)))


def _dropout(s: Sequence) -> None:
    for module in s.model.modules():
        if hasattr(module, "dropout"):
            module.dropout = float(s._pick(0.0, 0.3, 0.6))


def _activation(s: Sequence) -> None:
    if hasattr(s.model, "activation"):
        s.model.activation = s._pick("relu", "elu", "leaky_relu")


def _residual(s: Sequence) -> None:
    if hasattr(s.model, "residual"):
        s.model.residual = not s.model.residual


def _reduce(s: Sequence) -> None:
    layer = s.layer()
    if s.name in ("sage", "sage_max", "gcn", "gin"):
        layer.reduce = s._pick("sum", "mean")


def _slope(s: Sequence) -> None:
    layer = s.layer()
    if hasattr(layer, "slope"):
        layer.slope = float(s._pick(0.0, 0.1, 0.5))


def _norm(s: Sequence) -> None:
    for norm in getattr(s.model, "norms", ()):
        if hasattr(norm, "eps"):
            norm.eps = float(s._pick(1e-5, 1e-1))
            norm.train(bool(s._pick(True, False)))
            if hasattr(norm, "momentum"):
                norm.momentum = s._pick(0.1, 0.5, None)


def _other_norm(s: Sequence) -> None:
    if len(getattr(s.model, "norms", ())):
        made = (nn.BatchNorm1d(HIDDEN, affine=False), nn.LayerNorm(HIDDEN), nn.Identity(), nn.GroupNorm(2, HIDDEN))
        s.model.norms[0] = s._pick(*made).to(next(s.model.parameters()).dtype).train(s.model.training)


def _other_layer(s: Sequence) -> None:
    if s.name in ("gcn", "sage", "gin"):
        kind = s._pick(gw.nn.GCNConv, gw.nn.SAGEConv)
        made = kind(HIDDEN, OUT, reduce=s._pick("sum", "mean"))
        s.model.layers[-1] = made.to(next(s.model.parameters()).dtype).train(s.model.training)


def _hook(s: Sequence) -> None:
    s.layer().register_forward_hook(lambda module, given, out: s.hooked.append(1) or out * 2)


def _parametrized(s: Sequence) -> None:
    layer = s.layer()
    named = [n for n, p in layer.named_parameters(recurse=False) if p is not None and p.dim() == 2]
    if named and not nn.utils.parametrize.is_parametrized(layer):
        nn.utils.parametrizations.weight_norm(layer, s._pick(*named))


def _pickled(s: Sequence) -> None:
    if not s.hooked and not s.name.startswith("user") and not any(m._forward_hooks for m in s.model.modules()):
        with contextlib.suppress(RuntimeError):  # torch refuses parametrized modules
            s.model = pickle.loads(pickle.dumps(s.model))


def _double(s: Sequence) -> None:
    s.model.double()
    s.x = s.x.double()


def _threads(s: Sequence) -> None:
    torch.set_num_threads(int(s.rng.integers(1, 4)))


CHANGES: tuple[Callable[[Sequence], None], ...] = (
    *(_numpy, _data, _in_place, _one_element, _inference, _other_features, _other_graph, _average, _parameter_memory),
    *(_new_parameter, _frozen, _update, _loaded, _mode, _dropout, _activation, _residual, _reduce, _slope, _norm),
    *(_other_norm, _other_layer, _hook, _parametrized, _pickled, _double, _threads),
)


def results(model: nn.Module, graph: Any, x: Tensor, how: str) -> dict[str, Tensor]:
    """Output, gradients and buffers of one call, with its draws keyed."""
    torch.manual_seed(7)
    guard = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[how]
    with guard():
        out = model(graph, x)
    found = {"out": out}
    if how == "grad" and out.requires_grad:
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        made = torch.autograd.grad((out * weights).sum(), list(named.values()), allow_unused=True)
        found |= {n: g for n, g in zip(named, made, strict=True) if g is not None}
    found |= {n: b.clone() for n, b in model.named_buffers()}
    return {n: t.detach() for n, t in found.items()}


def compare(s: Sequence, how: str) -> str | None:
    """None where the model, the reference executor and a copy agree."""
    state = {n: t.clone() for n, t in s.model.state_dict().items()}
    twin = None if s.hooked or any(m._forward_hooks for m in s.model.modules()) else copy.deepcopy(s.model)
    got = results(s.model, s.graph, s.x, how)
    after = {n: t.clone() for n, t in s.model.state_dict().items()}
    s.model.load_state_dict(state)
    drops = any(m.training and getattr(m, "dropout", 0.0) for m in s.model.modules())
    fresh = copy.deepcopy(s.model) if drops else s.model  # the oracle draws other masks; a new copy does not
    with contextlib.nullcontext() if drops else gw.config(opt_level=0):
        expected = results(fresh, s.graph, s.x, how)
    s.model.load_state_dict(after)
    if got.keys() != expected.keys():
        return f"{sorted(got.keys() ^ expected.keys())} in one of the two only"
    for name, theirs in expected.items():
        mine = got[name]
        scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return f"{name}: expected {theirs.dtype} {tuple(theirs.shape)}, got {mine.dtype} {tuple(mine.shape)}"
        if not torch.allclose(mine.double(), theirs.double(), rtol=1e-3, atol=1e-3 * scale):
            return f"{name}: differs by {float((mine.double() - theirs.double()).abs().max()):.3g}"
    if twin is not None:
        for name, theirs in results(twin, s.graph, s.x, how).items():
            if not torch.equal(got[name], theirs):
                return f"{name}: a copy gives other bits"
    return None


@contextlib.contextmanager
def everything_is_worth_keeping() -> Iterator[None]:
    """Small inputs are compared and kept, too."""
    before = pipeline._LOOK, pipeline._WORTH_A_LOOK
    pipeline._LOOK, pipeline._WORTH_A_LOOK = -1.0, 0.0
    try:
        yield
    finally:
        pipeline._LOOK, pipeline._WORTH_A_LOOK = before


def run_sequence(seed: int, counts: Counter[str]) -> str | None:
    """A failure in words, or None."""
    s = Sequence(seed)
    how = str(s._pick("grad", "grad", "no_grad", "inference"))
    threads = torch.get_num_threads()
    done = []
    try:
        with gw.config(certify=False), everything_is_worth_keeping():
            for _ in range(int(s.rng.integers(1, 4))):
                results(s.model, s.graph, s.x, how)
            for _ in range(int(s.rng.integers(1, 4))):
                change = CHANGES[int(s.rng.integers(len(CHANGES)))]
                done.append(change.__name__)
                counts[change.__name__] += 1
                if change is _inference and how == "grad":  # torch itself refuses to differentiate over such tensors
                    continue
                if s.x.is_inference() and change in (_in_place, _double):
                    continue
                change(s)
                for _ in range(int(s.rng.integers(1, 3))):
                    failure = compare(s, how)
                    if failure is not None:
                        return f"{seed}: {s.name}, {how}, {' '.join(done)}: {failure}"
    except gw.errors.GraphWeftError as refusal:
        counts["refused"] += 1
        counts[f"refused: {str(refusal)[:90]}"] += 1
    finally:
        torch.set_num_threads(threads)
    return None


def main() -> int:
    """Runs sequences and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sequences", type=int, default=1000)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    failures = [f for i in range(given.sequences) if (f := run_sequence(given.seed * 10**6 + i, counts)) is not None]
    for name, count in counts.most_common():
        print(f"{count:6} {name}")
    for failure in failures[:40]:
        print(failure)
    print(f"{given.sequences} sequences, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
