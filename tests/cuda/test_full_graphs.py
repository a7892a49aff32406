"""Steps of full batches that are recorded and launched again, beside steps that run call by call: the same bits.

Plain torch computes, and ``recorded.py`` stands in for CUDA graphs; the kernels are in a trial of ``trials.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda.recorded import Recorder, fused_updates
from torch import Tensor, nn
from zoo import random_edges

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.runtime.cuda import graphs, streams
from graphweft.runtime.targets import REFERENCE

EVERY = torch.arange(20)


def data(task: str = "classification") -> gw.Dataset:
    ends = random_edges(20, 60, 1)
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    y = {"classification": EVERY % 3, "multilabel": (EVERY[:, None] % torch.tensor([2, 3, 4]) == 0).float()}[task]
    graph = gw.Graph(ends.src, ends.dst, num_nodes=20)
    return gw.Dataset("small", graph, x, y, EVERY[::2], EVERY[1::4], EVERY[3::4], 3, task=task)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device whose recorder writes operations of torch down, with torch's fused optimisers, as on a GPU."""
    monkeypatch.setattr(REFERENCE, "recorder", Recorder)
    Recorder.graphs = Recorder.launched = 0
    with fused_updates(), gw.config(target="reference", certify=False):
        yield


def trainer(graphs: str, ds: gw.Dataset | None = None, net: Any = None, **given: Any) -> gw.Trainer:
    torch.manual_seed(0)
    made = gw.nn.GCN(5, 4, 3) if net is None else net()
    optimizer = given.pop("optimizer", "adam")
    if callable(optimizer):
        given["optimizer"] = optimizer(made.parameters())
    else:
        given |= {"optimizer": optimizer, "lr": 0.05}
    return gw.Trainer(made, ds or data(), cuda_graphs=graphs, **given)


def result(one: gw.Trainer) -> list[Any]:
    """Losses, scores, weights and all that is kept for the next step."""
    state = [[v.tolist() for v in own.values()] for own in one.optimizer.state_dict()["state"].values()]
    lines = [(r.loss, r.val_loss, r.val_acc, r.metrics.get("lr")) for r in one.history]
    return [*lines, *(t.tolist() for t in one.model.state_dict().values()), *state]


@pytest.mark.parametrize(
    ("net", "given"),
    [
        (None, {"scheduler": "exponential:0.8"}),
        (None, {"optimizer": "adamw", "weight_decay": 0.01, "clip": 0.2, "clip_value": 0.1, "ema": 0.9}),
        (None, {"optimizer": lambda p: gw.optim.SGD(p, lr=0.1, momentum=0.9), "warmup": 3}),
        (lambda: gw.nn.SAGE(5, 4, 3, norm="batch"), {"optimizer": lambda p: gw.optim.SGD(p, lr=0.1)}),
        (lambda: gw.nn.GAT(5, 4, 3, heads=2), {"ds": "multilabel"}),
    ],
    ids=["schedule", "clip and averages", "momentum", "batch norm", "several labels"],
)
def test_steps_with_their_update_are_replayed(net: Any, given: dict[str, Any]) -> None:
    """From the second epoch on: two launches a step, one an evaluation, with rates that a schedule changes."""
    ds = data(given.pop("ds", "classification"))
    plain, found = (trainer(graphs, ds, net, **given) for graphs in ("off", "auto"))
    plain.fit(5)
    assert Recorder.graphs == 0 and plain.replays == {}
    found.fit(5)
    assert result(plain) == result(found)
    assert found.replays == {"launches": 2, "replayed": 4, "fallbacks": 0, "evaluation": 1, "updates": True}
    assert Recorder.graphs == 3 and Recorder.launched == 2 * 4 + 4
    assert found.history["replayed"] == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_an_update_that_is_not_recorded_follows_the_graphs() -> None:
    """Of torch's own optimisers, which are no single launch."""
    plain, found = (trainer(g, optimizer=lambda p: torch.optim.Adam(p, lr=0.05)) for g in ("off", "auto"))
    plain.fit(4)
    found.fit(4)
    assert result(plain) == result(found) and found.replays["updates"] is False and found.replays["replayed"] == 3


def test_state_that_lies_elsewhere_is_moved_by_a_step_that_is_not_recorded() -> None:
    """As counts of steps do after a checkpoint was read."""
    found = trainer("auto")
    found.fit(2)
    state = found.optimizer.state[next(found.model.parameters())]
    assert found._update.is_recordable()
    state["step"] = state["step"].to("meta")
    assert not found._update.is_recordable()


def test_what_changes_between_fits_is_recorded_again() -> None:
    """Parameters that move or are frozen, other labels, other settings of the model, another state."""
    plain, found = (trainer(g, net=lambda: gw.nn.GCN(5, 4, 3, norm="batch")) for g in ("off", "auto"))
    for one in (plain, found):
        layer = one.model.layers[0]
        one.fit(3)
        layer.weight.data = layer.weight.data.clone()
        one.fit(3)
        layer.bias.requires_grad_(False)
        one.fit(3)
        one.ds.y[0] = 2
        one.fit(3)
        one.model.norms[0].eps = 0.5
        one.fit(3)
        one.optimizer.load_state_dict(one.optimizer.state_dict())
        one.fit(3)
    assert result(plain) == result(found)
    assert found.replays["replayed"] >= 10 and found.replays["fallbacks"] == 0


def test_a_run_that_is_taken_up_is_the_run(tmp_path: Any) -> None:
    whole, first, rest = (trainer("auto", out=tmp_path / part) for part in ("whole", "part", "part"))
    whole.fit(5)
    first.fit(2)
    assert rest.resume()
    rest.fit(3)
    assert result(whole) == result(rest)


def cumulative() -> nn.Module:
    made = gw.nn.GCN(5, 4, 3, norm="batch")
    made.norms[0].momentum = None  # the mean over all batches, whose number is read
    return made


@pytest.mark.parametrize(
    ("net", "given", "why"),
    [
        (cumulative, {}, "it cannot be recorded: .*_local_scalar_dense"),
        (lambda: gw.nn.GCN(5, 4, 3, dropout=0.5), {}, "its draws have no kernel of their own"),
        (None, {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "its loss is computed in Python"),
    ],
    ids=["waits", "draws", "loss"],
)
def test_what_cannot_be_recorded_runs_as_it_comes(net: Any, given: dict[str, Any], why: str) -> None:
    plain, found = (trainer(graphs, net=net, **given) for graphs in ("off", "auto"))
    plain.fit(4)
    found.fit(4)
    assert result(plain) == result(found)
    report = found.replays
    assert report["replayed"] == 0 and report["fallbacks"] >= 3
    assert re.match(why, report["refused"]), report
    assert "steps run call by call: " in gw.explain(found)


def test_asked_for_it_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^cuda_graphs='on' cannot be combined with GCN: its draws have no kernel"):
        trainer("on", net=lambda: gw.nn.GCN(5, 4, 3, dropout=0.5)).fit(1)


@pytest.mark.parametrize("what", ["memory", "result"])
def test_a_recording_that_fails_changes_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is out while it is recorded, and a replay that leaves the update out."""
    record = Recorder.record

    def failing(self: Recorder, body: Any) -> Any:
        if what == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        launch, made = record(self, body)
        return (lambda: None) if isinstance(made, dict) else launch, made  # the graph backward does nothing

    plain, found = (trainer(graphs) for graphs in ("off", "auto"))
    plain.fit(4)
    monkeypatch.setattr(Recorder, "record", failing)
    found.fit(4)
    assert result(plain) == result(found) and found.replays["replayed"] == 0
    why = {"memory": "cpu has no memory for what is recorded", "result": "a replay did not give the same"}[what]
    assert found.replays["refused"].startswith(why)


def test_explain_says_what_is_replayed() -> None:
    found = trainer("auto")
    assert "steps are recorded as graphs from the second on" in gw.explain(found)
    found.fit(3)
    line = "steps are 2 launches of recorded graphs, with the update; 2 were replayed, 0 ran call by call"
    assert line in gw.explain(found)
    assert "call by call" not in gw.explain(trainer("off"))


def test_numbers_of_a_replay_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that were handed out stay as they were."""
    found = trainer("auto")
    found.fit(3)
    given: Tensor = found._batch.logits()
    before = given.clone()
    found.fit(2)
    found._batch.logits()
    assert torch.equal(given, before)


@pytest.mark.parametrize("fails", ["body", "end", "wait", ""])
def test_a_recorder_leaves_streams_and_settings_as_they_were(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the calls of torch that it makes, where a body, a wait for the device or the end of a recording fails."""
    done: list[Any] = []

    class Stream:
        def __init__(self, name: Any = "aside") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            done.append((self.name, "waits", other.name))

    @contextmanager
    def recording(graph: Any, **given: Any) -> Iterator[None]:
        assert given["capture_error_mode"] == "thread_local"
        yield
        if fails == "end":
            raise RuntimeError("capture failed")

    here = Stream("here")
    replaced = {
        "graph_pool_handle": lambda: (0, 1),
        "Stream": lambda device: Stream(),
        "current_stream": lambda device: here,
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
        "CUDAGraph": lambda: SimpleNamespace(replay="replay"),
        "graph": recording,
        "set_stream": lambda stream: done.append(("back on", stream.name)),
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": done.append,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(streams, "_free", defaultdict(list))
    recorder = graphs.Recorder(torch.device("cuda:0"))

    def body() -> int:
        if fails == "body" or (fails == "wait" and done and done[-1] == "error"):
            raise RuntimeError("no")
        return 7

    wanted = [("aside", "waits", "here"), *([] if fails == "body" else ["error", 0]), ("here", "waits", "aside")]
    with pytest.raises(RuntimeError, match="no") if fails in ("body", "wait") else nullcontext():
        recorder.warm(body, alone=True)
    assert done == wanted
    done.clear()
    with pytest.raises(RuntimeError) if fails in ("body", "end") else nullcontext():
        assert recorder.record(body) == ("replay", 7)
    assert done == ([("back on", "here")] if fails in ("body", "end") else [])
