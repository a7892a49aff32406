"""Random user functions as text: a grammar of what people write in message, reduce and update.

``draw(rng, kind)`` gives a :class:`Source`: the text of the functions and what they read. Every rule of the grammar has
its trailing dimensions known, and keeps numbers near one: what overflows is not what the fuzz is about.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Dims = tuple[int, ...]
WIDE, HEADS, SCALAR = (6,), (2, 3), (1,)
SHAPES = (WIDE, WIDE, HEADS, SCALAR)


@dataclass
class Source:
    """Functions and what they read.

    Attributes:
        text: Python source of ``message``, ``reduce`` and perhaps ``update``.
        kind: ``square``, ``bipartite`` or ``typed``.
        node, edge, ntype, etype, captured: Trailing (captured: all) dimensions of what is read, by name.
        tables: Captured tensors with a row per edge type, read by ``edges.type["id"]``.
        updates: Whether there is an ``update``.
    """

    text: str
    kind: str
    node: dict[str, Dims] = field(default_factory=dict)
    edge: dict[str, Dims] = field(default_factory=dict)
    ntype: dict[str, Dims] = field(default_factory=dict)
    etype: dict[str, Dims] = field(default_factory=dict)
    captured: dict[str, Dims] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    updates: bool = False


class _Writer:
    """One drawing; ``rows`` is the prefix of row axes of the stage at hand: 1 on edges and nodes, 2 in a mailbox."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        self.rng, self.source, self.rows = rng, Source("", kind), 1

    def param(self, *shape: int) -> str:
        """A captured parameter, at times one that is there already."""
        same = [name for name, dims in self.source.captured.items() if dims == shape and name not in self.source.tables]
        if same and self.rng.random() < 0.3:
            return self.rng.choice(same)
        name = f"P{len(self.source.captured)}"
        self.source.captured[name] = shape
        return name

    def fields(self, where: dict[str, Dims], prefix: str, dims: Dims) -> str:
        """A field with ``dims``."""
        name = f"{prefix}{''.join(map(str, dims))}"
        where[name] = dims
        return name

    def edge_leaf(self, dims: Dims) -> str:
        s, draw = self.source, self.rng.random()
        if draw < 0.4:
            return f'edges.src["{self.fields(s.node, "h", dims)}"]'
        if draw < 0.7:
            return f'edges.dst["{self.fields(s.node, "h", dims)}"]'
        if draw < 0.9 or s.kind != "typed":
            return f'edges.data["{self.fields(s.edge, "w", dims)}"]'
        if draw < 0.94:
            return f'edges.type["{self.fields(s.etype, "r", dims)}"]'
        if draw < 0.97:
            return f'edges.srctype["{self.fields(s.ntype, "t", dims)}"]'
        table = f"T{''.join(map(str, dims))}"
        s.captured[table] = (4, *dims)
        s.tables.append(table)
        return f'{table}[edges.type["id"]]'

    def node_leaf(self, dims: Dims) -> str:
        s = self.source
        if s.kind == "typed" and self.rng.random() < 0.15:
            return f'nodes.type["{self.fields(s.ntype, "t", dims)}"]'
        return f'nodes.data["{self.fields(s.node, "h", dims)}"]'

    def expression(self, dims: Dims, depth: int, leaf: Callable[[Dims], str]) -> str:
        """Text of rows with trailing ``dims``."""
        if depth <= 0:
            return leaf(dims)
        grow = lambda d=dims: self.expression(d, depth - 1, leaf)  # noqa: E731
        rules = [self._unary, self._unary, self._binary, self._binary, self._binary, self._matmul, self._joined]
        rules += [self._shared, self._where, self._reshaped, self._along, leaf_of(leaf)]
        return self.rng.choice(rules)(dims, grow)

    def _unary(self, dims: Dims, grow: Callable[..., str]) -> str:
        x = grow()
        return self.rng.choice(
            [
                f"torch.tanh({x})",
                f"torch.sigmoid({x})",
                f"torch.relu({x})",
                f"F.leaky_relu({x}, 0.2)",
                f"F.elu({x})",
                f"F.softplus({x})",
                f"F.gelu({x})",
                f"F.silu({x})",
                f"torch.exp(-({x}).abs())",
                f"torch.sin({x})",
                f"({x}).clamp(-1.0, 1.5)",
                f"torch.sqrt(({x}) ** 2 + 0.5)",
                f"torch.log1p(({x}).square())",
                f"(1.0 - {x})",
                f"({x}).mul(0.5).add(0.25)",
                f"({x}) * 1",
                f"F.dropout({x}, 0.3, training=False)",
            ]
        )

    def _binary(self, dims: Dims, grow: Callable[..., str]) -> str:
        x, y = grow(), grow()
        return self.rng.choice(
            [
                f"({x} + {y})",
                f"({x} - {y})",
                f"(torch.tanh({x}) * {y})",
                f"({x}) * torch.sigmoid({y})",
                f"torch.maximum({x}, {y})",
                f"torch.minimum({x}, 0.5 * {y})",
                f"({x}) / (1.0 + ({y}).abs())",
                f"torch.addcmul({x}, {y}, {y}, value=0.1)",
                f"torch.lerp({x}, {y}, 0.25)",
            ]
        )

    def _shared(self, dims: Dims, grow: Callable[..., str]) -> str:
        """With a captured vector, or a factor per row."""
        if self.rng.random() < 0.5:
            return f"({grow()} * {self.param(*dims)})"
        factor = grow((*dims[:-1], 1) if len(dims) > 1 else SCALAR)
        return f"({grow()} * {factor})" if dims != SCALAR and len(dims) == 1 else f"({grow()} + {self.param(*dims)})"

    def _matmul(self, dims: Dims, grow: Callable[..., str]) -> str:
        if dims == HEADS:
            return self.rng.choice(
                [
                    lambda: f"({grow(WIDE)} @ {self.param(6, 6)}).unflatten(-1, (2, 3))",
                    lambda: f"{grow(HEADS)} @ {self.param(3, 3)}",
                    lambda: f"torch.einsum('...hd,hdk->...hk', {grow(HEADS)}, {self.param(2, 3, 3)})",
                ]
            )()
        size = dims[0]
        return self.rng.choice(
            [
                lambda: f"({grow(WIDE)} @ {self.param(6, size)})",
                lambda: f"F.linear({grow(WIDE)}, {self.param(size, 6)}, {self.param(size)})",
                lambda: f"torch.matmul(torch.cat([{grow(WIDE)}, {grow(WIDE)}], -1), {self.param(12, size)})",
            ]
        )()

    def _joined(self, dims: Dims, grow: Callable[..., str]) -> str:
        if dims == WIDE:
            return self.rng.choice(
                [
                    lambda: f"torch.cat([{grow(SCALAR)}, ({grow(WIDE)})[..., 1:]], -1)",
                    lambda: f"torch.cat([({grow(WIDE)})[..., :3], ({grow(WIDE)})[..., 3:]], -1)",
                    lambda: f"torch.cat(({grow(WIDE)}).chunk(2, -1)[::-1], -1)",
                ]
            )()
        if dims == HEADS:
            return f"torch.stack([({grow(HEADS)})[..., 0, :], ({grow(HEADS)})[..., 1, :]], -2)"
        return f"({grow(WIDE)})[..., 2:3]"

    def _where(self, dims: Dims, grow: Callable[..., str]) -> str:
        x, y = grow(), grow()
        return f"torch.where({x} > 0.1, {y}, 0.3 * {x})"

    def _reshaped(self, dims: Dims, grow: Callable[..., str]) -> str:
        if dims == WIDE:
            return self.rng.choice(
                [
                    lambda: f"({grow(HEADS)}).flatten(-2)",
                    lambda: f"({grow(HEADS)}).transpose(-1, -2).flatten(-2)",
                    lambda: f"({grow(SCALAR)}).expand({'-1, ' * self.rows}6)",
                ]
            )()
        if dims == HEADS:
            return self.rng.choice(
                [lambda: f"({grow(WIDE)}).unflatten(-1, (2, 3))", lambda: f"({grow(HEADS)}).flip(-1)"]
            )()
        return f"({grow(HEADS)}).sum(-1).mean(-1, keepdim=True)"

    def _along(self, dims: Dims, grow: Callable[..., str]) -> str:
        """Functions along the features."""
        if dims == SCALAR:
            x, y = grow(WIDE), grow(WIDE)
            return self.rng.choice(
                [
                    f"({x} * {y}).sum(-1, keepdim=True)",
                    f"({x}).mean(-1, keepdim=True)",
                    f"({x}).amax(-1, keepdim=True)",
                    f"torch.logsumexp({x}, -1, keepdim=True)",
                    f"torch.sqrt(({x}).square().sum(-1, keepdim=True) + 0.1)",
                    f"({x}).var(-1, keepdim=True)",
                ]
            )
        x = grow()
        return self.rng.choice(
            [
                f"torch.softmax({x}, -1)",
                f"F.log_softmax({x}, dim=-1)",
                f"F.layer_norm({x}, ({dims[-1]},), {self.param(dims[-1])}, {self.param(dims[-1])})",
                f"F.normalize({x}, dim=-1, eps=0.1)",
                f"({x} - ({x}).mean(-1, keepdim=True))",
            ]
        )

    def message(self) -> tuple[str, dict[str, Dims]]:
        """The text of message, and the fields it sends."""
        rng = self.rng
        sent = {f"m{i}": rng.choice(SHAPES) for i in range(rng.choice([1, 1, 2, 3]))}
        lines, parts = [], []
        shared: dict[Dims, str] = {}

        def leaf(dims: Dims) -> str:
            return shared[dims] if dims in shared and rng.random() < 0.3 else self.edge_leaf(dims)

        for name, dims in sent.items():
            text = self.expression(dims, rng.choice([0, 1, 2, 2, 3]), leaf)
            if rng.random() < 0.3:
                lines.append(f"    x_{name} = {text}")
                shared[dims] = text = f"x_{name}"
                if rng.random() < 0.3:
                    lines.append(f"    {text} = {text}.clone()")
                    lines.append(f"    {text}{rng.choice(['.add_(0.1)', ' *= 0.7', '.relu_()', '[..., :1] += 0.2'])}")
            parts.append(f'"{name}": {text}')
        return "\n".join(["def message(edges):", *lines, f"    return {{{', '.join(parts)}}}"]), sent

    def reduction(self, sent: dict[str, Dims]) -> tuple[str, Dims]:
        """Text of one reduced field, and its dimensions."""
        rng = self.rng
        self.rows = 2
        name, dims = rng.choice(sorted(sent.items()))
        box = f'nodes.mailbox["{name}"]'

        def leaf(wanted: Dims) -> str:
            own = [f'nodes.mailbox["{n}"]' for n, d in sent.items() if d == wanted]
            if own and rng.random() < 0.8:
                return rng.choice(own)
            return (
                f"{self.node_leaf(wanted)}.unsqueeze(1).expand(-1, {box}.shape[1], {', '.join(['-1'] * len(wanted))})"
            )

        x = box if rng.random() < 0.5 else f"({self.expression(dims, rng.choice([1, 1, 2]), leaf)})"
        scores = f"({self.expression(rng.choice([dims, SCALAR]) if len(dims) == 1 else dims, 1, leaf)})"
        text = rng.choice(
            [
                f"{x}.sum(1)",
                f"{x}.sum(1)",
                f"{x}.sum(dim=1)",
                f"torch.sum({x}, 1)",
                f"{x}.mean(1)",
                f"{x}.mean(dim=1)",
                f"{x}.max(1)[0]",
                f"{x}.max(dim=1).values",
                f"{x}.amax(1)",
                f"{x}.min(1)[0]",
                f"torch.sqrt({x}.var(1, unbiased=False) + 0.1)",
                f"torch.logsumexp({x}, 1)",
                f"(torch.softmax({scores}, 1) * {x}).sum(1)",
                f"(torch.softmax({scores}, dim=1) * {x}).sum(dim=1)",
                f"(F.log_softmax({x}, 1) * 0.1).mean(1)",
                f"({x} - {x}.mean(1, keepdim=True)).square().sum(1)",
                f"(torch.sigmoid({scores}) * {x}).mean(1)",
            ]
        )
        self.rows = 1
        if rng.random() < 0.2:
            size = f"{box}.shape[1]"
            scaled = [
                f"/ {size}",
                f"/ max({size}, 1)",
                f"* {size} ** -0.5",
                f"/ math.sqrt({size})",
                f"* math.log({size} + 1)",
            ]
            text = f"({text}) {rng.choice(scaled)}"
        return text, dims

    def functions(self) -> Source:
        """All functions of one case."""
        rng = self.rng
        message, sent = self.message()
        reduced: dict[str, Dims] = {}
        parts = []
        for i in range(rng.choice([1, 1, 2])):
            text, dims = self.reduction(sent)
            if rng.random() < 0.25:
                inner = text
                text = self.expression(dims, 1, lambda d, t=inner, own=dims: t if d == own else self.node_leaf(d))
            reduced[f"o{i}"] = dims
            parts.append(f'"o{i}": {text}')
        reduce = f"def reduce(nodes):\n    return {{{', '.join(parts)}}}"
        texts = [message, reduce]
        if rng.random() < 0.45:
            self.source.updates = True

            def leaf(dims: Dims) -> str:
                own = [f'nodes.data["{n}"]' for n, d in reduced.items() if d == dims]
                return rng.choice(own) if own and rng.random() < 0.7 else self.node_leaf(dims)

            dims = rng.choice(SHAPES)
            out = self.expression(dims, rng.choice([1, 2, 2, 3]), leaf)
            texts.append(f'def update(nodes):\n    return {{"z": {out}}}')
        self.source.text = "\n\n".join(texts) + "\n"
        return self.source


def leaf_of(leaf: Callable[[Dims], str]) -> Callable[[Dims, Callable[..., str]], str]:
    """A leaf as a rule."""
    return lambda dims, grow: leaf(dims)


def draw(rng: random.Random, kind: str) -> Source:
    """Random functions for a graph of ``kind``: ``square``, ``bipartite`` or ``typed``."""
    return _Writer(rng, kind).functions()
