"""Training with every sampler: losses fall, bits repeat, factors count, bad options are one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from graphweft._errors import CheckpointError, ConfigError
from graphweft.cli import main
from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.nn.gcn import GCN
from graphweft.nn.sage import SAGE
from graphweft.sample.cluster import ClusterSampler
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.saint import SaintNodeSampler
from graphweft.sample.shadow import ShadowSampler
from graphweft.sample.walk import WalkSampler
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.options import SAMPLERS
from graphweft.train.samplers import sampler_of
from graphweft.train.trainer import Trainer

OF_ONES_OWN: dict[str, Any] = {
    "walk": lambda ds: WalkSampler(ds.graph, 3, 3),
    "cluster": lambda ds: ClusterSampler(ds.graph, torch.arange(ds.num_nodes) % 30),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "layer": {"fanouts": (200, 200)},
    "shadow": {"fanouts": (5, 3)},
    "saint-node": {"batch_size": 400},
    "cluster": {"batch_size": 5},
}


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return synthetic("arxiv", scale=0.005, seed=1)


def made(ds: Dataset, name: str, model: Any = SAGE, **options: Any) -> Trainer:
    torch.manual_seed(5)
    net = model(ds.num_features, 16, ds.num_classes, num_layers=2, dropout=0.2)
    sampler = OF_ONES_OWN[name](ds) if name in OF_ONES_OWN else name
    given = {"batch_size": 100, "seed": 3, **OPTIONS.get(name, {}), **options}
    return Trainer(net, ds, lr=0.01, mode="mini", sampler=sampler, eval_every=100, restore_best=False, **given)


def bits(trainer: Trainer) -> list[torch.Tensor]:
    return [t.clone() for t in trainer.model.state_dict().values()]


OF_ONE_GRAPH = [name for name in SAMPLERS if name != "graphs"]  # of several: test_several_graphs.py
NAMES = [*OF_ONE_GRAPH, *OF_ONES_OWN]


@pytest.mark.parametrize("name", NAMES)
def test_losses_fall_and_bits_do_not_depend_on_threads(ds: Dataset, name: str, threads_restored: None) -> None:
    torch.set_num_threads(1)
    whole = made(ds, name)
    history = whole.fit(8)
    assert history[-1].loss < 0.9 * history[0].loss
    assert whole.evaluate("test") > 2 / ds.num_classes
    torch.set_num_threads(4)
    again = made(ds, name)
    again.fit(8)
    assert all(torch.equal(a, b) for a, b in zip(bits(whole), bits(again), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_state_goes_on_with_the_same_bits(ds: Dataset, name: str) -> None:
    whole, first, again = made(ds, name), made(ds, name), made(ds, name)
    whole.fit(4)
    first.fit(2)
    again.load_state_dict(first.state_dict())
    again.fit(2)
    assert all(torch.equal(a, b) for a, b in zip(bits(whole), bits(again), strict=True))


def test_draws_that_miss_nothing_give_the_loss_of_the_whole_graph(ds: Dataset) -> None:
    """With so many draws that every node is in the subgraph, factors are 1 / T and the loss is the mean."""
    sampler = SaintNodeSampler(ds.graph, "uniform", num_items=100 * ds.num_nodes)
    torch.manual_seed(5)
    model = GCN(ds.num_features, 16, ds.num_classes)
    with torch.no_grad():
        logits = model.train()(ds.graph, ds.x)
    expected = functional.cross_entropy(logits[ds.train_idx], ds.y[ds.train_idx])
    trainer = Trainer(model, ds, mode="mini", sampler=sampler, batch_size=sampler.num_items)
    assert trainer.fit(1)[0].loss == pytest.approx(float(expected), rel=1e-5)


def test_unknown_labels_weigh_nothing_beside_factors(ds: Dataset) -> None:
    """As above with several labels a node: a node's loss is the mean over the labels that are known."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (ds.num_nodes, 4), generator=generator).float()
    y[torch.rand(y.shape, generator=generator) < 0.3] = float("nan")
    several = Dataset("several", ds.graph, ds.x, y, ds.train_idx, ds.val_idx, ds.test_idx, 4, task="multilabel")
    rows = several.labelled("train")
    model = GCN(ds.num_features, 16, 4)
    with torch.no_grad():
        logits = model.train()(ds.graph, ds.x)[rows]
    losses = functional.binary_cross_entropy_with_logits(logits, y[rows].nan_to_num(), reduction="none")
    expected = torch.where(y[rows].isnan(), float("nan"), losses).nanmean(1).mean()
    sampler = SaintNodeSampler(ds.graph, "uniform", num_items=100 * ds.num_nodes)
    trainer = Trainer(model, several, mode="mini", sampler=sampler, batch_size=sampler.num_items)
    assert trainer.fit(1)[0].loss == pytest.approx(float(expected), rel=1e-5)


def test_shadow_evaluates_every_node_on_its_own_subgraph(ds: Dataset) -> None:
    trainer = made(ds, "shadow")
    trainer.fit(2)  # the same subgraphs in every evaluation
    logits = trainer._batch.logits()
    assert isinstance(trainer._batch, MiniBatch) and isinstance(ds.x, torch.Tensor)
    sampler = ShadowSampler(ds.graph, (5, 3))
    trainer.model.eval()
    for node in (0, 17, ds.num_nodes - 1):
        sample = sampler.sample([node], seed=3, stage=1)
        with torch.no_grad():
            alone = trainer.model(sample.subgraph, ds.x[sample.n_id])[0]
        assert torch.allclose(logits[node], alone, atol=1e-5)


@pytest.mark.parametrize(("layers", "fanouts"), [(1, (15,)), (2, (15, 10)), (3, (15, 10, 5)), (5, (15, 10, 5, 5, 5))])
def test_what_is_usual_follows_from_the_layers(ds: Dataset, layers: int, fanouts: tuple[int, ...]) -> None:
    model = SAGE(ds.num_features, 16, ds.num_classes, num_layers=layers)
    assert sampler_of(model, ds.graph, "neighbor", None).fanouts == fanouts  # type: ignore[union-attr]
    assert sampler_of(model, ds.graph, "layer", None).sizes == (512,) * layers  # type: ignore[union-attr]
    assert sampler_of(model, ds.graph, "saint-walk", None).identity()["length"] == layers


def test_bad_options_are_one_line(ds: Dataset) -> None:
    for options, text in (
        ({"sampler": "best"}, "sampler: expected one of neighbor, layer, shadow"),
        ({"sampler": "saint-node", "fanouts": (5, 5)}, "fanouts=5,5 cannot be combined with sampler=saint-node"),
        ({"sampler": "layer", "fanouts": (5,)}, "fanouts: expected 2 numbers, one per layer, got 5"),
        ({"sampler": LayerSampler(ds.graph, [5])}, "sampler: expected one of 2 hops, one per layer, got 1"),
        ({"sampler": WalkSampler(ds.graph), "fanouts": (5, 5)}, "fanouts cannot be combined with a sampler object"),
    ):
        with pytest.raises(ConfigError) as failure:
            Trainer(SAGE(ds.num_features, 16, ds.num_classes), ds, mode="mini", **options)
        assert text in str(failure.value) and "\n" not in str(failure.value)


def test_no_gradient_waits_beyond_its_epoch(ds: Dataset) -> None:
    """Accumulation ends with the epoch, also where its last batch has no node to train on."""
    part = torch.randint(0, 2, (ds.num_nodes,), generator=torch.Generator().manual_seed(0))
    part[ds.train_idx] = part[ds.train_idx].clamp(max=0)
    part[torch.isin(torch.arange(ds.num_nodes), ds.train_idx, invert=True)] += 1  # parts 1 and 2 train nothing
    model = SAGE(ds.num_features, 8, ds.num_classes)
    trainer = Trainer(
        model, ds, mode="mini", sampler=ClusterSampler(ds.graph, part), batch_size=1, accumulate=2, eval_every=99,
        restore_best=False,
    )  # fmt: skip
    for _ in range(6):
        before = [parameter.clone() for parameter in model.parameters()]
        trainer.fit(1)
        assert trainer._batch._pending == 0
        assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_another_sampler_does_not_go_on(ds: Dataset) -> None:
    state = made(ds, "walk").state_dict()
    with pytest.raises(CheckpointError, match="expected a state"):
        made(ds, "cluster").load_state_dict(state)


COMMAND = "train --data arxiv --scale 0.005 --model sage --mode mini --hidden 8 --epochs 2 --batch-size 100 --quiet"


@pytest.mark.parametrize("name", OF_ONE_GRAPH)
def test_the_command_takes_every_name(name: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*COMMAND.split(), "--sampler", name, "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert main([*arguments, "--epochs", "3", "--resume"]) == 0
    if name != "neighbor":
        assert main([*arguments[:-4], "--out", str(tmp_path), "--sampler", "neighbor", "--resume"]) == 2
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_the_command_refuses_what_does_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    for extra in ("--sampler best", "--sampler saint-edge --fanouts 3,3", "--sampler layer --fanouts 3"):
        assert main([*COMMAND.split(), *extra.split(), "--out", str(tmp_path)]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
