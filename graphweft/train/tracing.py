"""The trace of a training run: recorded while it trains, written as one file when it ends.

Comes in: where to. Goes out: a Chrome trace, and the verdict on it; where a store was read also a table of seconds.
Called by the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphweft._errors import ConfigError
from graphweft._trace import Recorder, recording
from graphweft.schedule.chrome import chrome_trace
from graphweft.schedule.seconds import by_second, counters, seconds_table
from graphweft.schedule.verdict import Verdict, verdict
from graphweft.train.atomic import write_atomic


class Tracing:
    """Records to ``path``; without one it does nothing.

    Attributes:
        recorder: Holds the spans of all blocks so far.
        verdict: What bounds the run; None before the first epoch, and without a path.

    Raises: ConfigError for a path that no file can be written to.
    """

    def __init__(self, path: str | Path | None, recorder: Recorder | None = None) -> None:
        self._path = None if path is None else Path(path)
        self.recorder = (recorder or Recorder()) if self._path is not None else None
        self.verdict: Verdict | None = None
        if self._path is not None and (self._path.is_dir() or not self._path.parent.is_dir()):
            raise ConfigError(f"trace: expected a file in a folder that exists, got {str(path)!r}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Records the block, then writes everything recorded so far, whatever ended it."""
        try:
            with recording(self.recorder):
                yield
        finally:
            if self.recorder is not None and self._path is not None:
                self.verdict = verdict(self.recorder.spans)
                about = {"verdict": "" if self.verdict is None else self.verdict.text}
                has_read = any(item.stage == "read" for item in self.recorder.spans)
                rows = by_second(self.recorder.spans) if has_read else []
                text = chrome_trace(self.recorder, about, counters(rows))
                write_atomic(self._path, lambda file: file.write(text.encode()))
                if rows:
                    table = seconds_table(rows)
                    other = self._path.with_suffix(".seconds.csv" if self._path.suffix == ".csv" else ".csv")
                    write_atomic(other, lambda file: file.write(table.encode()))
