"""Fetching against a server on this machine that can be told to misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from graphweft._errors import DataError, DownloadError
from graphweft.data.download import fetch, unpack_zip

CONTENT = bytes(range(256)) * 4096  # a mebibyte
SHA = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Behaviour:
    """What the server does, and what it was asked."""

    content: bytes = CONTENT
    cut_after: list[int] = field(default_factory=list)  # bytes after which the next connections end
    ranges: bool = True
    status: list[int] = field(default_factory=list)  # statuses of the next answers
    etag: str = '"one"'
    wrong_range: bool = False
    asked: list[str | None] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self) -> None:
        b = self.behaviour
        asked = self.headers.get("Range")
        b.asked.append(asked)
        if b.status:
            self.send_error(b.status.pop(0))
            return
        start = 0
        if asked and b.ranges and self.headers.get("If-Range") == b.etag:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            if start >= len(b.content):
                self.send_error(416)
                return
        body = b.content[start:]
        self.send_response(206 if start else 200)
        if start:
            shown = 0 if b.wrong_range else start
            self.send_header("Content-Range", f"bytes {shown}-{len(b.content) - 1}/{len(b.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", b.etag)
        self.end_headers()
        end = b.cut_after.pop(0) if b.cut_after else len(body)
        with contextlib.suppress(OSError):
            self.wfile.write(body[:end])
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Behaviour]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    behaviour = Behaviour()
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        behaviour.url = f"http://127.0.0.1:{listening.server_port}/toy.bin"
        yield behaviour
        listening.shutdown()
        thread.join()


def _left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_file_is_fetched_once_with_progress(server: Behaviour, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    target = tmp_path / "deep" / "toy.bin"
    for _ in range(2):
        assert fetch(server.url, target, SHA, lambda *step: seen.append(step)) == target
    assert target.read_bytes() == CONTENT and server.asked == [None]
    assert seen[-1] == ("toy.bin", len(CONTENT), len(CONTENT))
    assert [step[1] for step in seen] == sorted(step[1] for step in seen)
    assert _left_over(target.parent) == ["toy.bin"]


def test_cut_connections_are_resumed_where_they_ended(server: Behaviour, tmp_path: Path) -> None:
    server.cut_after = [300_000, 200_000]
    fetch(server.url, tmp_path / "toy.bin", SHA, pause=0)
    assert (tmp_path / "toy.bin").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=500000-"]


def test_another_process_goes_on_with_what_is_there(server: Behaviour, tmp_path: Path) -> None:
    server.cut_after = [100_000] * 4
    with pytest.raises(DownloadError, match="ended after 400000 of 1048576 bytes"):
        fetch(server.url, tmp_path / "toy.bin", SHA, pause=0)
    assert _left_over(tmp_path) == ["toy.bin.part", "toy.bin.part.json"]
    fetch(server.url, tmp_path / "toy.bin", SHA, pause=0)
    assert (tmp_path / "toy.bin").read_bytes() == CONTENT and server.asked[-1] == "bytes=400000-"


def test_server_without_ranges_starts_anew(server: Behaviour, tmp_path: Path) -> None:
    server.ranges, server.cut_after = False, [300_000]
    fetch(server.url, tmp_path / "toy.bin", SHA, pause=0)
    assert (tmp_path / "toy.bin").read_bytes() == CONTENT


def test_changed_file_is_not_mixed_with_the_old_one(server: Behaviour, tmp_path: Path) -> None:
    server.cut_after = [100_000] * 4
    with pytest.raises(DownloadError):
        fetch(server.url, tmp_path / "toy.bin", pause=0)
    server.content, server.etag = b"new" * 1000, '"two"'
    fetch(server.url, tmp_path / "toy.bin", pause=0)
    assert (tmp_path / "toy.bin").read_bytes() == b"new" * 1000


def test_part_longer_than_the_file_is_dropped(server: Behaviour, tmp_path: Path) -> None:
    server.cut_after = [300_000] + [0] * 3
    with pytest.raises(DownloadError):
        fetch(server.url, tmp_path / "toy.bin", pause=0)
    server.content = b"short"
    fetch(server.url, tmp_path / "toy.bin", pause=0)
    assert (tmp_path / "toy.bin").read_bytes() == b"short"


def test_wrong_range_is_not_trusted(server: Behaviour, tmp_path: Path) -> None:
    server.wrong_range, server.cut_after = True, [300_000]
    fetch(server.url, tmp_path / "toy.bin", SHA, pause=0)
    assert (tmp_path / "toy.bin").read_bytes() == CONTENT


def test_wrong_checksum_leaves_nothing(server: Behaviour, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"x"
    with pytest.raises(DownloadError, match=r"toy\.bin: expected to fetch it, got: checksum \w+\.\.\., expected \w+"):
        fetch(server.url, tmp_path / "toy.bin", SHA, pause=0)
    assert _left_over(tmp_path) == [] and len(server.asked) == 2


def test_missing_file_fails_at_once(server: Behaviour, tmp_path: Path) -> None:
    server.status = [404] * 9
    with pytest.raises(DownloadError, match=r"HTTP status 404; get http://.* by other means and put it in") as caught:
        fetch(server.url, tmp_path / "toy.bin", SHA, pause=0)
    assert len(server.asked) == 1 and "\n" not in str(caught.value)


def test_busy_server_is_asked_again(server: Behaviour, tmp_path: Path) -> None:
    server.status = [503, 429]
    fetch(server.url, tmp_path / "toy.bin", SHA, pause=0)
    assert (tmp_path / "toy.bin").read_bytes() == CONTENT and len(server.asked) == 3


def test_no_server_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        DownloadError, match=r"no connection .*; get http://127\.0\.0\.1:9/toy\.bin by other means"
    ) as caught:
        fetch("http://127.0.0.1:9/toy.bin", tmp_path / "toy.bin", pause=0)
    assert "\n" not in str(caught.value)


def test_place_that_cannot_be_written_to(server: Behaviour, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DownloadError, match="expected a place to write to"):
        fetch(server.url, tmp_path / "file" / "toy.bin", pause=0)


def test_many_askers_fetch_once(server: Behaviour, tmp_path: Path) -> None:
    askers = [threading.Thread(target=fetch, args=(server.url, tmp_path / "toy.bin", SHA)) for _ in range(6)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert server.asked == [None] and (tmp_path / "toy.bin").read_bytes() == CONTENT


def _zip(path: Path, members: dict[str, bytes]) -> Path:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(name, content)
    path.write_bytes(out.getvalue())
    return path


def test_folder_of_an_archive_is_unpacked_whole(tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", {"toy/raw/edge.csv.gz": b"1", "toy/split/t/train.csv.gz": b"2"})
    target = unpack_zip(archive, tmp_path, "toy", tmp_path / "ogbn_toy")
    assert (target / "raw" / "edge.csv.gz").read_bytes() == b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "ogbn_toy"]


@pytest.mark.parametrize("name", ["../out", "/etc/out", "toy/../../out", "toy\\..\\out"])
def test_names_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", {"toy/ok": b"1", name: b"2"})
    with pytest.raises(DataError, match="expected a name inside the archive's folder"):
        unpack_zip(archive, tmp_path, "toy", tmp_path / "toy")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"] and not (tmp_path.parent / "out").exists()


def test_damaged_archive_leaves_nothing(tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", {"toy/ok": CONTENT})
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"a\.zip: expected a zip archive"):
        unpack_zip(archive, tmp_path, "toy", tmp_path / "toy")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
