"""Comparing what two runs left on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


def values(path: Path) -> dict[str, Any]:
    """Everything in a checkpoint by its path in the nested dicts, without measured times."""

    def walk(value: Any, name: str) -> Iterator[tuple[str, Any]]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
        if items is None:
            yield name, value
            return
        for key, item in items:
            if "seconds" not in str(key):
                yield from walk(item, f"{name}.{key}")

    return dict(walk(torch.load(path, weights_only=True), ""))


def lines(folder: Path) -> list[dict[str, Any]]:
    """The records of ``metrics.jsonl`` without measured times."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if "seconds" not in name} for record in records]


def assert_same_run(a: Path, b: Path) -> None:
    """Both checkpoints and the metrics are equal bit for bit."""
    for name in ("last.pt", "best.pt"):
        left, right = values(a / name), values(b / name)
        assert left.keys() == right.keys()
        assert any(isinstance(value, torch.Tensor) for value in left.values())
        for key, value in left.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(value, right[key], rtol=0, atol=0, equal_nan=True, msg=f"{name}: {key}")
            else:
                assert value == right[key], f"{name}: {key}"
    assert lines(a) == lines(b)
    assert [record["epoch"] for record in lines(a)] == list(range(1, len(lines(a)) + 1))
