"""Fetching one file: resumed where it stopped, checked, and in place only when whole.

Comes in: an address and a path. Goes out: the file at that path, or a DownloadError that says what to fetch by hand.
Called by ``load``; several processes may ask for the same file, one fetches.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import filelock

from graphweft._errors import DataError, DownloadError
from graphweft.data.readers.files import one_line, show

if TYPE_CHECKING:
    import requests

Progress = Callable[[str, int, int | None], None]
_CHUNK = 1 << 18
_TRIES = 4
_LOCK_SECONDS = 3600.0
_MAX_BYTES = 1 << 40
_MAX_MEMBERS = 100_000


def fetch(
    url: str,
    target: Path,
    sha256: str | None = None,
    progress: Progress | None = None,
    *,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """The file at ``url`` as ``target``; does nothing if it is there already.

    Args:
        url: Address of the file.
        target: Where it goes; what has come so far waits beside it as ``<name>.part``.
        sha256: Its checksum, where known.
        progress: Called with the file's name, bytes so far and bytes in all (None if the server does not say).
        timeout: Seconds without a byte after which a connection counts as lost.
        pause: Seconds before the second try; doubled before each further one.

    Raises: DownloadError naming the address and the place, after the last of four tries or at once if no try can help.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(target.with_name(f".{target.name}.lock"), timeout=_LOCK_SECONDS)
        with lock:
            if not target.exists():
                _fetch_locked(_Job(url, target, sha256, progress, timeout), pause)
    except filelock.Timeout as error:
        raise DownloadError(
            f"{show(target)}: expected another process to finish fetching it, got no end in an hour"
        ) from error
    except OSError as error:
        if isinstance(error, DownloadError):
            raise
        raise DownloadError(
            f"{show(target)}: expected a place to write to, got: {one_line(str(error), 120)}"
        ) from error
    return target


class FetchError(DownloadError):
    """One file could not be fetched; ``reason`` is why, without the advice."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Broken(Exception):
    """The transfer stopped; what came is kept, and another try may help."""


class _Job:
    """One file to fetch and what is known of it."""

    def __init__(self, url: str, target: Path, sha256: str | None, progress: Progress | None, timeout: float) -> None:
        self.url, self.target, self.sha256, self.progress, self.timeout = url, target, sha256, progress, timeout
        self.part = target.with_name(f"{target.name}.part")
        self.tag = target.with_name(f"{target.name}.part.json")

    def forget(self) -> None:
        """Drops what has come so far."""
        self.part.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)

    def fail(self, reason: str) -> FetchError:
        """The error to raise, with the way out."""
        reason = one_line(reason, 120)
        return FetchError(
            f"{self.target.name}: expected to fetch it, got: {reason}; "
            f"get {self.url} by other means and put it in {show(self.target.parent)}",
            reason,
        )


def _fetch_locked(job: _Job, pause: float) -> None:
    """Tries until the file is whole; a second wrong checksum, or no connection twice, ends it."""
    import requests

    reason, mismatches, unreached = "", 0, 0
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(pause * 2 ** (attempt - 1))
        try:
            _transfer(job)
        except (_Broken, requests.Timeout) as error:
            reason = _reason(error)
            continue
        except requests.ConnectionError as error:
            reason = _reason(error)
            unreached += 1
            if unreached == 2:
                break
            continue
        except requests.RequestException as error:
            raise job.fail(_reason(error)) from error
        digest = _sha256(job.part)
        if job.sha256 is None or digest == job.sha256:
            _finish(job)
            return
        job.forget()
        reason = f"checksum {digest[:12]}..., expected {job.sha256[:12]}..."
        mismatches += 1
        if mismatches == 2:  # not an accident of the line: another file lies there
            break
    raise job.fail(reason)


def _reason(error: Exception) -> str:
    import requests

    text = str(error)
    for known in ("Name or service not known", "Temporary failure in name resolution", "Failed to resolve"):
        if known in text:
            return "no connection to the network (the name of the server is not found)"
    if "Max retries exceeded" in text or isinstance(error, requests.ConnectionError):
        return f"no connection ({text.rsplit(': ', 1)[-1].strip(')>( ')})"
    return text or type(error).__name__


def _transfer(job: _Job) -> None:
    """One request, from where the last one stopped if the server can and the file there is still the same."""
    import requests

    have, validator = _resume_point(job)
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        headers["If-Range"] = validator
    with requests.get(job.url, headers=headers, stream=True, timeout=job.timeout) as response:
        if job.url.startswith("https:") and not response.url.startswith("https:"):
            raise job.fail(f"a redirect to an unprotected address, {response.url}")
        if response.status_code == 416:
            job.forget()
            raise _Broken("the server has fewer bytes than were fetched before")
        if response.status_code >= 500 or response.status_code == 429:
            raise _Broken(f"HTTP status {response.status_code}")
        if response.status_code not in (200, 206):
            raise job.fail(f"HTTP status {response.status_code}")
        resumed = response.status_code == 206 and _starts_at(response, have)
        if response.status_code == 206 and not resumed:
            job.forget()
            raise _Broken("the server sent another range than asked for")
        if not resumed:
            have = 0
            _remember(job, response)
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        if total is not None and total > _MAX_BYTES:
            raise job.fail(f"a file of {total} bytes")
        _write(job, response, have, total)


def _resume_point(job: _Job) -> tuple[int, str]:
    """Bytes already there and the mark of the version they belong to; (0, "") to start anew."""
    try:
        known = json.loads(job.tag.read_text())
        size = job.part.stat().st_size
        if known["url"] == job.url and isinstance(known["validator"], str) and known["validator"] and size:
            return size, known["validator"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, ""


def _remember(job: _Job, response: requests.Response) -> None:
    etag = response.headers.get("ETag", "")
    validator = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", "")
    job.tag.write_text(json.dumps({"url": job.url, "validator": validator}))


def _starts_at(response: requests.Response, have: int) -> bool:
    return response.headers.get("Content-Range", "").strip().startswith(f"bytes {have}-")


def _write(job: _Job, response: requests.Response, have: int, total: int | None) -> None:
    response.raw.enforce_content_length = False  # what came before a cut is kept; the length is compared below
    with job.part.open("ab" if have else "wb") as out:
        for chunk in _chunks(response):
            have += len(chunk)
            if have > (_MAX_BYTES if total is None else total):
                raise job.fail("more bytes than announced")
            out.write(chunk)
            if job.progress is not None:
                job.progress(job.target.name, have, total)
        out.flush()
        os.fsync(out.fileno())
    if total is not None and have != total:
        raise _Broken(f"the connection ended after {have} of {total} bytes")


def _chunks(response: requests.Response) -> Iterator[bytes]:
    """The body as it comes; a lost connection is an end that another try may move."""
    import urllib3

    try:
        yield from response.raw.stream(_CHUNK, decode_content=False)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _Broken(f"the connection was lost ({one_line(str(error), 80)})") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _finish(job: _Job) -> None:
    job.part.replace(job.target)
    job.tag.unlink(missing_ok=True)


def unpack_zip(archive: Path, folder: Path, inside: str, target: Path) -> Path:
    """Folder ``inside`` of a zip archive as ``target``, in place only when whole.

    Raises: DataError for names that lead out of the folder, links, or sizes beyond what the archive can hold.
    """
    if target.exists():
        return target
    staging = folder / f".{target.name}.{os.getpid()}.unpack"
    try:
        with zipfile.ZipFile(archive) as source:
            infos = source.infolist()
            limit = max(1 << 30, 128 * archive.stat().st_size)
            if len(infos) > _MAX_MEMBERS or sum(info.file_size for info in infos) > limit:
                raise DataError(f"{archive.name}: expected a dataset of at most {limit} bytes, got a larger one")
            for info in infos:
                _unpack_member(source, info, staging)
        found = staging / inside if (staging / inside).is_dir() else staging
        with contextlib.suppress(FileExistsError):
            found.replace(target)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise DataError(f"{archive.name}: expected a zip archive, got: {one_line(str(error), 80)}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _unpack_member(source: zipfile.ZipFile, info: zipfile.ZipInfo, staging: Path) -> None:
    path = PurePosixPath(info.filename)
    mode = info.external_attr >> 16
    if path.is_absolute() or ".." in path.parts or "\\" in info.filename or stat.S_ISLNK(mode):
        raise DataError(f"{one_line(info.filename, 60)!r}: expected a name inside the archive's folder, got another")
    place = staging.joinpath(*path.parts)
    if info.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    left = info.file_size
    with source.open(info) as data, place.open("xb") as out:
        while chunk := data.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise DataError(f"{one_line(info.filename, 60)}: expected {info.file_size} bytes, got more")
            out.write(chunk)
