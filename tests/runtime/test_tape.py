"""Recorded steps: the same bits as the calls they were recorded from, and given up when anything has moved."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import graphweft
from graphweft import _config
from graphweft._abi import SIGNATURES
from graphweft._memory import POOL, empty
from graphweft.data.synthetic import synthetic
from graphweft.graph.graph import Graph
from graphweft.nn import APPNP, GAT, GCN, GCNII, GIN, SAGE, Transformer
from graphweft.nn.module import CompiledModule
from graphweft.optim import Adam
from graphweft.runtime.tape import Tape
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.pieces import Pieces
from graphweft.sample.segment import SegmentSampler
from graphweft.sample.shadow import ShadowSampler
from graphweft.storage.feature import SparseFeatures
from graphweft.train.full_batch import FullBatch

MIB = 1 << 20
KINDS: list[tuple[type[CompiledModule], dict[str, object]]] = [
    (GCN, {}), (GCN, {"num_layers": 3, "residual": True}), (SAGE, {"reduce": "mean"}),
    (GIN, {}), (APPNP, {"dropout": 0.0}), (GCNII, {"dropout": 0.0}),
    (Transformer, {"dropout": 0.0}),
    (GAT, {"dropout": 0.0, "heads": 2}), (GCN, {"activation": "leaky_relu"}), (GCN, {"activation": "elu"}),
]  # fmt: skip


def _batch(kind: type[CompiledModule] = GCN, sparse: bool = False, **options: object) -> FullBatch:
    ds = synthetic("default", scale=0.3, seed=3)
    torch.manual_seed(0)
    model = kind(ds.num_features, 16, ds.num_classes, **options)  # type: ignore[arg-type]
    assert isinstance(ds.x, torch.Tensor)
    x = SparseFeatures.from_dense(ds.x) if sparse else ds.x
    batch = FullBatch(model, ds, x, Adam(model.parameters(), lr=0.01))
    batch.prepare()
    return batch


def _steps(batch: FullBatch, count: int = 5) -> list[torch.Tensor]:
    losses = [batch.step() for _ in range(count)]
    return [*losses, *(p.detach().clone() for p in batch.model.parameters())]


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _without_tape(batch: FullBatch) -> FullBatch:
    batch._tape = None
    return batch


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_replayed_step_gives_the_bits_of_the_calls(
    kind: type[CompiledModule], options: dict[str, object], sparse: bool
) -> None:
    recorded = _batch(kind, sparse, **options)
    assert recorded._replays()
    assert _same(_steps(recorded), _steps(_without_tape(_batch(kind, sparse, **options))))


def test_replays_map_no_memory_and_follow_the_parameters() -> None:
    batch = _batch()
    assert batch._tape is not None
    before = batch._tape.arena.stats()
    first = _steps(batch, 3)
    assert batch._tape.arena.stats() == before
    assert len({float(loss) for loss in first[:3]}) == 3


def _move_a_parameter(batch: FullBatch) -> None:
    parameter = next(batch.model.parameters())
    parameter.data = parameter.data.clone()


def _freeze_a_parameter(batch: FullBatch) -> None:
    next(batch.model.parameters()).requires_grad_(False)


def _watch_the_model(batch: FullBatch) -> None:
    batch.model.register_forward_hook(lambda *_: None)


def _hold_the_arena(batch: FullBatch) -> None:
    assert batch._tape is not None
    _HELD.append(batch._tape.arena.empty((MIB,)))


_HELD: list[torch.Tensor] = []


@pytest.mark.parametrize("disturb", [_move_a_parameter, _freeze_a_parameter, _watch_the_model, _hold_the_arena])
def test_what_has_moved_is_not_replayed(disturb: Callable[[FullBatch], None]) -> None:
    batch, reference = _batch(), _without_tape(_batch())
    assert batch._tape is not None
    if disturb is _hold_the_arena:
        batch._tape.arena._confined = False  # room for a stranger
    else:
        disturb(reference)
    disturb(batch)
    assert not batch._replays()
    assert _same(_steps(batch), _steps(reference))
    _HELD.clear()


def test_another_configuration_is_not_replayed() -> None:
    batch = _batch()
    with _config.config(opt_level=1):
        assert not batch._replays()
    assert batch._replays()


def test_random_draws_are_not_recorded() -> None:
    batch = _batch(dropout=0.5)
    assert batch._tape is None
    losses = [float(batch.step()) for _ in range(3)]
    assert len(set(losses)) == 3


def test_batch_norms_are_not_recorded() -> None:
    batch = _batch(norm="batch")
    assert batch._tape is None
    before = [b.clone() for b in batch.model.buffers()]
    batch.step()
    assert not _same(before, list(batch.model.buffers()))


def test_what_torch_computes_is_not_recorded() -> None:
    x = torch.ones(3)
    assert Tape.record(lambda: x.cumsum(0), [x], 0) is None
    assert Tape.record(lambda: x[torch.tensor([2, 0])], [x], 0) is None  # a copy, other than a slice
    assert Tape.record(lambda: x.view(3, 1).t().reshape(3, 1), [x], 0) is not None
    wide = torch.ones(3, 2)
    assert Tape.record(lambda: wide.t().reshape(6), [wide], 0) is None


@pytest.mark.parametrize("size", [3, 1 << 19])  # on torch's heap, and in the arena
def test_sums_and_copied_rows_are_computed_again_by_a_replay(size: int) -> None:
    x, y, rows = torch.arange(size).float(), torch.ones(size), torch.tensor([size - 1, 0])

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        scattered = empty((size,)).zero_().index_copy_(0, rows, (x + y)[:2] * 0.5)
        return scattered - x, empty((2,)).fill_(7.0)

    tape = Tape.record(body, [x, y, rows], 16 * size)
    assert tape is not None
    for shift in (1.0, 2.0):
        x.add_(shift), y.mul_(3.0)
        difference, filled = tape.replay()
        wanted = torch.zeros(size)
        wanted[rows] = (x + y)[:2] * 0.5
        assert torch.equal(difference, wanted - x)
        assert filled.tolist() == [7.0, 7.0]
        filled.zero_()


def _holders_of_native_memory(graph: Graph) -> list[object]:
    """Of every kind one that frees native memory when it dies."""
    tape = Tape.record(lambda: _filled(1.0), [], 4 * MIB)
    samplers = [kind(graph, [2]) for kind in (NeighborSampler, ShadowSampler, SegmentSampler)]
    for sampler in samplers:
        sampler.sample([0, 1])
    pieces = Pieces(graph)
    pieces.induced(torch.tensor([0, 1]), 2)
    return [tape, *samplers, pieces]


def _filled(value: float) -> torch.Tensor:
    return empty((MIB // 4,)).fill_(value)


def test_what_dies_while_a_tape_is_recorded_is_not_freed_again_by_replays() -> None:
    nodes = torch.arange(20)
    graph = Graph(nodes, nodes.roll(1))
    waiting = [_holders_of_native_memory(graph) for _ in range(2)]  # one for each run of the body

    def body() -> torch.Tensor:
        if waiting:
            garbage: list[object] = [waiting.pop()]
            garbage.append(garbage)  # dies when the collector comes, wherever that is
            del garbage
            gc.collect()
        return _filled(2.0)

    tape = Tape.record(body, [], 4 * MIB)
    plain = Tape.record(lambda: _filled(2.0), [], 4 * MIB)
    assert tape is not None and plain is not None and not waiting
    assert len(tape.calls) == len(plain.calls) == 1
    later = POOL.empty((MIB,)).fill_(5.0)  # takes the memory that was freed
    for _ in range(2):
        assert float(tape.replay().sum()) == 2.0 * (MIB // 4)
    assert float(later.sum()) == 5.0 * MIB


def test_what_frees_native_memory_is_never_recorded() -> None:
    root = Path(graphweft.__file__).parent
    freeing = re.compile(r'declare\("(gw_\w+_(?:free|unmap|map|trim))"(.*)\)')
    found = [match for path in root.rglob("*.py") for match in freeing.findall(path.read_text(encoding="utf-8"))]
    names = {name for name in SIGNATURES if name.endswith("_free")} & {name for name, _ in found}
    assert len(names) >= 4
    assert [name for name, options in found if "recorded=False" not in options] == []


def test_the_arena_grows_until_the_tensors_fit() -> None:
    def body() -> tuple[torch.Tensor, torch.Tensor]:
        first = empty((3 * MIB // 4,))
        second = empty((3 * MIB // 4,))
        del first
        return second, empty((2 * MIB // 4,))

    tape = Tape.record(body, [], 3 * MIB)
    assert tape is not None
    stats = tape.arena.stats()
    assert stats.maps == 1
    assert 6 * MIB <= stats.mapped <= 10 * MIB


def test_scores_between_replays_take_what_room_the_arena_has() -> None:
    ds = synthetic("products", scale=0.01, seed=0)  # few training rows: scoring all nodes takes more than a step
    torch.manual_seed(0)
    model = GCN(ds.num_features, 32, ds.num_classes, num_layers=3)
    assert isinstance(ds.x, torch.Tensor)
    batch = FullBatch(model, ds, ds.x, Adam(model.parameters(), lr=0.01))
    batch.prepare()
    assert batch._tape is not None
    for _ in range(3):
        batch.step()
        assert set(batch.evaluate().scores) == {"train", "val", "test"}
        assert batch._replays()
