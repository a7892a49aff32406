"""Training through macro-batches: hidden rows of halos, filtering, resume, accumulation, the guard's numbers."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft.data.synthetic import synthetic
from graphweft.nn.stack import Stack
from graphweft.storage.history import HistoryTable
from graphweft.train.historical import Historical
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.quality import assess
from graphweft.train.trainer import Trainer


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return synthetic("arxiv", scale=0.01, seed=1)


def made(ds: gw.Dataset, macro: Any, kind: Any = gw.nn.SAGE, layers: int = 3, dropout: float = 0.3, **options: Any):
    torch.manual_seed(5)
    more = {"heads": 2} if kind is gw.nn.GAT else {}
    model = kind(ds.num_features, 16, ds.num_classes, num_layers=layers, dropout=dropout, **more)
    given = {
        "fanouts": (6, 4, 3)[:layers],
        "batch_size": 100,
        "seed": 3,
        "eval_every": 5,
        "restore_best": False,
        **options,
    }
    return Trainer(model, ds, lr=0.01, mode="mini", macro=macro, **given)


def bits(trainer: Trainer) -> list[Tensor]:
    found = [t.clone() for t in trainer.model.state_dict().values()]
    run = trainer._batch.macro
    if run is not None and run.historical is not None:
        state = run.historical.state_dict()
        found += [t.clone() for t in (*state["rows"], *state["written"])]
    return found


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


MACROS = ["large:1/4", "parts:3/12", gw.macro.Macro("parts:2/8", refresh=1), gw.macro.Macro("parts:3/12", ahead=False)]


@pytest.mark.parametrize("kind", [gw.nn.SAGE, gw.nn.GCN, gw.nn.GIN, gw.nn.GAT])
def test_with_frozen_weights_halos_make_no_difference(ds, kind) -> None:
    """J05: the table equals exact activations, and batches with halos the whole graph's result."""
    torch.manual_seed(0)
    options = {"heads": 2} if kind is gw.nn.GAT else {}
    model = kind(ds.num_features, 16, ds.num_classes, num_layers=3, **options).eval()
    part = gw.partition(ds.graph, 8).part
    loader = gw.macro.MultistageLoader(
        ds, torch.arange(ds.num_nodes), (-1, -1, -1), 64, True, 2, macro=gw.macro.Parts(part, 2), ahead=True
    )
    historical = Historical(model, ds.graph)
    historical.refresh(ds.x)
    exact = copy.deepcopy(historical.state_dict()["rows"])
    with torch.no_grad():
        whole = model(ds.graph, ds.x)
        worst = 0.0
        for batch in loader:
            rows = historical(batch)
            expected = whole[batch.n_id[: batch.batch_size]]
            worst = max(worst, float((rows - expected).abs().max() / expected.abs().max()))
    assert worst < 1e-5
    for mine, theirs in zip(historical.state_dict()["rows"], exact, strict=True):
        assert float((mine - theirs).abs().max()) < 1e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("ahead", [False, True])
def test_rows_are_fresh_after_an_epoch_over_all_nodes_and_age_is_counted(ds, ahead) -> None:
    """Ages and bytes against a book kept by the ids of the batches: who was written when, whose rows are needed."""
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=3).eval()
    part = gw.partition(ds.graph, 8).part
    loader = gw.macro.MultistageLoader(
        ds, torch.arange(ds.num_nodes), (4, 4, 4), 64, macro=gw.macro.Parts(part, 2), ahead=ahead
    )
    batches = list(loader)
    needed: dict[tuple[int, ...], Tensor] = {}
    for batch in batches:
        known = needed.setdefault(batch.path, torch.zeros(ds.num_nodes, dtype=torch.bool))
        if not ahead:
            known[batch.macro.level.n_id[batch.macro.level.halo]] = True
        first = batch.blocks[0].num_dst  # the last hop's nodes have features alone
        known[batch.n_id[:first][batch.halo[:first]]] = True
    historical = Historical(model, ds.graph)
    historical.refresh(ds.x)
    written, ages, pulled, pushed = torch.zeros(2, ds.num_nodes), [], 0, 2 * ds.num_nodes
    seen: set[tuple[int, ...]] = set()
    with torch.no_grad():
        for step, batch in enumerate(batches):
            if batch.path not in seen:
                seen.add(batch.path)
                ages += [float((step - rows[needed[batch.path]]).mean()) for rows in written]
                pulled += 2 * int(needed[batch.path].sum())
            for rows, block in zip(written, batch.blocks, strict=False):
                computed = batch.n_id[: block.num_dst][~batch.halo[: block.num_dst]]
                rows[computed] = step
                pushed += computed.numel()
            historical(batch)
            historical.table.tick()
    table, steps = historical.table, len(batches)
    for layer, rows in enumerate(written):
        assert torch.equal(table.age(layer, torch.arange(ds.num_nodes)).float(), steps - rows)
    assert table.step == steps and historical.ages == pytest.approx(ages) and ages[0] == 0.0 < ages[-1]
    assert (table.bytes_pulled, table.bytes_pushed) == (16 * 4 * pulled, 16 * 4 * pushed)


@pytest.mark.parametrize(("refresh", "due"), [(0, [0]), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3])])
def test_hidden_rows_are_computed_anew_when_that_is_due(ds, monkeypatch, refresh, due) -> None:
    trainer = made(ds, gw.macro.Macro("parts:2/8", refresh=refresh), layers=2, batch_size=400)
    seen: list[int] = []
    whole = Historical.refresh
    monkeypatch.setattr(
        Historical, "refresh", lambda self, x: (seen.append(trainer._batch.loader.epoch), whole(self, x))[1]
    )
    trainer.fit(5)
    assert seen == due


def test_table_by_hand() -> None:
    table = HistoryTable(3, [2, 1])
    assert table.age(1, torch.tensor([2])).tolist() == [1]
    table.push(0, torch.tensor([2, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    table.tick(), table.tick()
    table.push(0, torch.tensor([0]), torch.tensor([[5.0, 6.0]]))
    assert table.pull(0, torch.tensor([0, 1, 2])).tolist() == [[5.0, 6.0], [0.0, 0.0], [1.0, 2.0]]
    assert table.age(0, torch.tensor([0, 1, 2])).tolist() == [0, 3, 2]
    other = HistoryTable(3, [2, 1])
    other.load_state_dict(copy.deepcopy(table.state_dict()))
    assert same(other.state_dict()["rows"], table.state_dict()["rows"]) and other.step == 2
    assert other.age(0, torch.tensor([0, 1, 2])).tolist() == [0, 3, 2]
    with pytest.raises(gw.errors.CheckpointError):
        HistoryTable(4, [2, 1]).load_state_dict(table.state_dict())
    with pytest.raises(gw.errors.IndexRangeError):
        table.push(0, torch.tensor([3]), torch.ones(1, 2))
    with pytest.raises(gw.errors.ShapeError):
        table.push(0, torch.tensor([0]), torch.ones(1, 3))


def test_filtering_changes_no_loss(ds) -> None:
    """J06."""
    plain, ahead = (made(ds, gw.macro.Macro("parts:3/12", ahead=ahead)) for ahead in (False, True))
    one, other = plain.fit(3), ahead.fit(3)
    assert one["loss"] == other["loss"]
    assert same(bits(plain), bits(ahead))
    assert ahead._batch.loader.traffic[0].total < plain._batch.loader.traffic[0].total


def test_an_identity_macro_trains_as_none(ds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer, as macro-batches are not compiled together with their sampler."""
    monkeypatch.setattr(Stack, "is_staged", lambda self: False)
    assert same(bits(_fit(made(ds, None), 2)), bits(_fit(made(ds, gw.macro.Whole()), 2)))


def _fit(trainer: Trainer, epochs: int) -> Trainer:
    trainer.fit(epochs)
    return trainer


@pytest.mark.parametrize("macro", MACROS, ids=str)
def test_it_learns(ds, macro) -> None:
    history = _fit(made(ds, macro), 8).history
    assert history[-1].loss < 0.85 * history[0].loss


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("macro", [None, *MACROS[:3], gw.macro.Macro("parts:2/8", quality=0.05)], ids=str)
def test_a_stopped_run_goes_on_bit_for_bit(ds, macro, accumulate) -> None:
    options = {"accumulate": accumulate}
    straight = _fit(made(ds, macro, **options), 3)
    for stop in (1, 2, 4):
        first = made(ds, macro, **options)
        first.fit(1)
        first.prepare()
        states: list[dict] = []

        def after(done, total, loss, trainer=first, states=states, stop=stop):
            if done == min(stop, total - 1):
                states.append(copy.deepcopy(trainer.state_dict()))

        batch = first._batch
        assert isinstance(batch, MiniBatch)
        batch.after_batch = after
        batch.step()
        again = made(ds, macro, **options)
        again.load_state_dict(states[0])
        again.fit(2)
        assert same(bits(again), bits(straight))
        for name in ("loss", "gradient_error", "sampling_error", "staleness_error", "neighbor_loss", "history_age"):
            assert again.history[name] == straight.history[name], name


@pytest.mark.parametrize("kind", [gw.nn.SAGE, gw.nn.GAT])
@pytest.mark.parametrize("macro", [None, "large:1/4", "parts:3/12"])
def test_the_same_for_any_number_of_threads(ds, macro, kind, threads_restored) -> None:
    found = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        found.append(bits(_fit(made(ds, macro, kind, batch_size=300), 2)))
    assert all(same(found[0], other) for other in found[1:])


def test_accumulated_gradients_are_those_of_one_large_batch(ds) -> None:
    small = made(ds, None, dropout=0.0, fanouts=(-1, -1, -1), batch_size=50, accumulate=4, optimizer="sgd")
    large = made(ds, None, dropout=0.0, fanouts=(-1, -1, -1), batch_size=200, optimizer="sgd")
    small.fit(2), large.fit(2)
    for a, b in zip(small.model.parameters(), large.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("macro", ["large:1/4", "parts:3/12"])
def test_the_guard_reports_and_keeps_to_its_bound(ds, macro) -> None:
    loose, tight = (made(ds, gw.macro.Macro(macro, quality=bound)) for bound in (float("inf"), 0.02))
    loose.fit(4), tight.fit(4)
    record = loose.history[-1]
    assert record.gradient_error > 0 and 0 <= record.neighbor_loss < 1
    assert (record.staleness_error > 0) == (record.history_age > 0) == macro.startswith("parts")
    assert loose._batch.macro.setting.fanouts == (6, 4, 3)
    assert tight._batch.macro.setting != loose._batch.macro.setting
    assert '"gradient_error"' in record.to_json()
    errors = [one.gradient_error for one in tight.history]
    assert errors[-1] < errors[0]


def test_measuring_does_not_change_training(ds) -> None:
    silent, watched = made(ds, "parts:3/12"), made(ds, gw.macro.Macro("parts:3/12", quality=float("inf")))
    assert same(bits(_fit(silent, 2)), bits(_fit(watched, 2)))
    assert watched._batch.macro.historical.take_ages() == []  # those of the probes' rows are no epoch's


def test_probes_are_of_the_epoch_that_was_done(ds, monkeypatch) -> None:
    trainer, probed = made(ds, gw.macro.Macro("large:1/4", quality=float("inf")), layers=2, batch_size=400), []
    probe = gw.macro.MultistageLoader.probe
    monkeypatch.setattr(
        gw.macro.MultistageLoader,
        "probe",
        lambda self, epoch, *rest: (probed.append(epoch), probe(self, epoch, *rest))[1],
    )
    trainer.fit(3)
    assert probed == [0, 0, 1, 1, 2, 2]


def test_what_is_reported_is_the_mean_over_probes_of_different_batches(ds, monkeypatch) -> None:
    found: list[Any] = []

    def watched(model, probe, loss, age):
        found.append((probe.drawn.input_id.tolist(), assess(model, probe, loss, age)))
        return found[-1][1]

    monkeypatch.setattr("graphweft.train.macro.assess", watched)
    trainer = made(ds, gw.macro.Macro("parts:2/8", quality=float("inf")))
    history = trainer.fit(1)
    assert len({tuple(seeds) for seeds, _ in found}) == len(found) == 2
    for name, reported in {"error": "gradient_error", "neighbor_loss": "neighbor_loss"}.items():
        values = [getattr(one, name) for _, one in found]
        assert getattr(history[-1], reported) == pytest.approx(sum(values) / 2)
        assert values[0] != values[1]


def test_after_a_refresh_the_halo_has_the_new_rows(ds) -> None:
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=2).eval()
    part = gw.partition(ds.graph, 8).part
    batch = next(
        iter(gw.macro.MultistageLoader(ds, torch.arange(ds.num_nodes), (-1, -1), 64, macro=gw.macro.Parts(part, 2)))
    )
    historical = Historical(model, ds.graph)
    with torch.no_grad():
        historical.refresh(torch.zeros_like(ds.x))
        historical(batch, write=False)
        historical.refresh(ds.x)
        rows, expected = historical(batch, write=False), model(ds.graph, ds.x)[batch.n_id[: batch.batch_size]]
    assert float((rows - expected).abs().max()) < 1e-5 * float(expected.abs().max())


def test_an_exact_macro_has_no_error(ds) -> None:
    trainer = made(ds, gw.macro.Macro(gw.macro.Whole(), quality=float("inf")), fanouts=(-1, -1, -1))
    trainer.fit(1)
    assert trainer.history[-1].gradient_error < 1e-5 and trainer.history[-1].neighbor_loss == 0.0


def test_parts_balance_the_classes_of_the_training_nodes(ds) -> None:
    (stage,) = gw.macro.Macro("parts:2/8").made(ds)
    labels = torch.full((ds.num_nodes,), -1)
    labels[ds.train_idx] = ds.y[ds.train_idx]
    assert torch.equal(stage.part, gw.partition(ds.graph, 8, labels=labels).part)
    assert not torch.equal(stage.part, gw.partition(ds.graph, 8).part)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"macro": gw.macro.Macro("parts:2/8")}, {"macro": gw.macro.Macro("parts:2/8", refresh=2)}),
        ({"macro": gw.macro.Macro("parts:2/8")}, {"macro": gw.macro.Macro("parts:2/8", ahead=False)}),
        ({"macro": gw.macro.Macro("large:1/4")}, {"macro": gw.macro.Macro("large:1/4", quality=0.1)}),
        ({"macro": "large:1/4"}, {"macro": "large:1/2"}),
        ({"macro": "large:1/4"}, {"macro": None}),
        ({"macro": None}, {"macro": "large:1/4"}),
        ({"macro": None, "accumulate": 2}, {"macro": None, "accumulate": 3}),
        ({"macro": None, "accumulate": 2}, {"macro": None}),
    ],
    ids=["refresh", "ahead", "quality", "stages", "without macro", "with macro", "accumulate", "without accumulate"],
)
def test_a_run_does_not_go_on_under_other_settings(ds, tmp_path, one, other) -> None:
    small = {"layers": 2, "batch_size": 400, "out": tmp_path}
    made(ds, **one, **small).fit(1)
    assert made(ds, **one, **small).resume()
    with pytest.raises(gw.errors.CheckpointError):
        made(ds, **other, **small).resume()


@pytest.mark.parametrize("macro", ["large", "large:0/4", "parts:5/4", "parts:a/b", 3, "other:1/2", "large:1/²"])
def test_bad_macros_are_one_clear_error(ds, macro) -> None:
    with pytest.raises(gw.errors.ConfigError, match="macro: expected"):
        made(ds, macro)


def test_models_that_cannot_take_halos_are_refused(ds) -> None:
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=2, norm="batch")
    with pytest.raises(gw.errors.ConfigError, match="batch norm"):
        Trainer(model, ds, mode="mini", macro="parts:2/8", fanouts=(4, 4))
    with pytest.raises(gw.errors.ConfigError, match="stacked layers"):
        Trainer(gw.nn.SAGEConv(ds.num_features, ds.num_classes), ds, mode="mini", macro="parts:2/8", fanouts=(4,))


def test_the_table_is_read_less_where_batches_are_drawn_ahead(ds) -> None:
    pulled = []
    for ahead in (False, True):
        trainer = _fit(made(ds, gw.macro.Macro("parts:3/12", ahead=ahead)), 1)
        pulled.append(trainer._batch.macro.historical.table.bytes_pulled)
    assert all(later < earlier for earlier, later in itertools.pairwise(pulled))


@pytest.mark.parametrize("stages", [3, ["x"], [], [gw.macro.LargeBatch(0.5), "parts:1/2"]])
def test_what_is_no_stage_is_told_at_once(stages: Any) -> None:
    with pytest.raises(gw.errors.ConfigError, match=r"^macro: expected a text or stages, got"):
        gw.macro.Macro(stages)
