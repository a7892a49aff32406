"""Where it is asked for, freed memory stays with the process once a user function has run on large rows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from graphweft import _config, cli, run

CODE = """
import resource, torch
import graphweft as gw

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def fill():
    before = faults()
    torch.empty(12_000_000).fill_(1.0)
    return faults() - before

nodes = 40_000
ends = torch.arange(nodes)
graph, h = gw.Graph(ends, ends.roll(1), num_nodes=nodes), torch.ones(nodes, ROWS)
gw.update_all(graph, lambda e: {"m": e.src["h"]}, lambda n: {"h": n.mailbox["m"].sum(1)}, ndata={"h": h})
for _ in range(3):
    fill()
print(max(fill() for _ in range(3)))
"""


@pytest.mark.parametrize(
    ("width", "keep", "faults"), [(64, "1", False), (64, "0", True), (64, None, True), (1, "1", True)]
)
def test_large_tensors_of_plain_torch_are_faulted_once(width: int, keep: str | None, faults: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRAPHWEFT_KEEP_HEAP"}
    environment |= {} if keep is None else {"GRAPHWEFT_KEEP_HEAP": keep}
    environment = {name: value for name, value in environment.items() if "MALLOC" not in name and "GLIBC" not in name}
    code = CODE.replace("ROWS", str(width))
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (int(ran.stdout) > 1000) is faults, ran.stdout


@pytest.mark.parametrize(("environment", "kept"), [(None, True), ("0", False)])
def test_the_train_command_keeps_it_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, environment: str | None, kept: bool
) -> None:
    seen: list[bool] = []

    def watched(spec: object) -> dict[str, object]:
        seen.append(_config.current().keep_heap)
        raise KeyboardInterrupt

    if environment is None:
        monkeypatch.delenv("GRAPHWEFT_KEEP_HEAP", raising=False)
    else:
        monkeypatch.setenv("GRAPHWEFT_KEEP_HEAP", environment)
    monkeypatch.setattr(run, "run", watched)
    assert not _config.current().keep_heap
    cli.main(["train", "--epochs", "1"])
    assert seen == [kept] and not _config.current().keep_heap
