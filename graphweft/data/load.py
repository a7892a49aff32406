"""``load``: a dataset by name or by path.

Comes in: "cora", or a file or folder of any known layout. Goes out: a Dataset. A named set is looked for under the
root first and fetched only when it is not there. Called by users, the run specification and the command line.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from graphweft._config import current
from graphweft._errors import DataError, DownloadError, GraphWeftError
from graphweft._torch_private import hosted
from graphweft.data.catalog import ENTRIES, Entry, find_entry, near_names
from graphweft.data.dataset import Dataset
from graphweft.data.download import FetchError, Progress, fetch, unpack_zip
from graphweft.data.graph_dataset import typed_by_rows
from graphweft.data.readers import registry
from graphweft.data.readers.assemble import ReadOptions
from graphweft.data.readers.files import is_file, one_line, show
from graphweft.data.readers.registry import read_dataset
from graphweft.data.stored import read_store
from graphweft.storage.store import Store, is_partial, is_store

_SUFFIXES = (".npz", ".mtx", ".mtx.gz", ".txt", ".txt.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz")


@hosted
def load(
    name_or_path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    *,
    split: int | str | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """Loads a dataset by name, or from a path in any known layout. Returns a :class:`GraphDataset` for a set of graphs.

    Args:
        name_or_path: A known name such as "cora", the name of a file or folder under ``root``, or a path. A path may be
            an ``.npz`` file, a Planetoid, OGB, GraphSAINT or TU folder, an edge list, a MatrixMarket or RDF file, or a
            store of ``prepare``.
        root: Folder of named sets; ``data_dir`` of the configuration by default.
        seed: Seed of the 60/20/20 split of a source without a split.
        split: The split to use of a source with several: a number from 0, or the source's name for it.
        download: Whether to fetch a named set that is not under ``root``.
        progress: Called during a download with the file's name, the bytes so far, and the total bytes or None.

    Raises:
        DataError: One line: what was expected of the file, what was found.
        DownloadError: One line: what to fetch from where, and where to put it.

    Example:
        >>> load("no such set", root="/nowhere", download=False)
        Traceback (most recent call last):
        graphweft._errors.DataError: no such set: expected a known name or an existing path, got neither; known are ...
    """
    text = os.fspath(name_or_path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise DataError(f"load: expected a name or a path, got {one_line(repr(text), 60)}")
    folder = Path(current().data_dir if root is None else root).expanduser()
    options = ReadOptions(seed=seed, split=split)
    path = Path(text).expanduser()
    bare = os.sep not in text and not text.startswith(("~", "."))
    entry = find_entry(text) if bare else None
    if entry is None and (is_store(path) or is_partial(path)):
        return read_store(Store(path))
    if entry is None and (os.path.lexists(path) or not bare):
        return _as_named(read_dataset(path, options))
    found = find_copy(folder, text, entry)
    if found is not None:
        named = options if entry is None else replace(options, name=entry.name)
        return _as_named(read_dataset(found, named))
    if entry is None:
        raise DataError(_unknown(text))
    if not download:
        raise DownloadError(_by_hand(entry, folder, "not to be fetched"))
    return _as_named(read_dataset(_download(entry, folder, progress), replace(options, name=entry.name)))


def holds_graphs(name_or_path: str, root: str | os.PathLike[str] | None = None) -> bool:
    """Whether :func:`load` would give a set of graphs, as far as names of files tell; False where it would fail."""
    folder = Path(current().data_dir if root is None else root).expanduser()
    bare = os.sep not in name_or_path and not name_or_path.startswith(("~", "."))
    entry = find_entry(name_or_path) if bare else None
    path: Path | None = Path(name_or_path).expanduser()
    if entry is not None or not os.path.lexists(name_or_path):
        path = find_copy(folder, name_or_path, entry) if bare else None
    if path is None:
        return entry is not None and entry.folder == "tu"
    try:
        return registry.holds_graphs(path)
    except (GraphWeftError, OSError):
        return False


def _unknown(text: str) -> str:
    """What a name that is none may have meant; of what looks like a file that there is none."""
    if Path(text).suffix:
        return f"{show(text)}: expected an existing file, got none there"
    near = near_names(text)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(ENTRIES))}"
    return f"{show(text)}: expected a known name or an existing path, got neither; {hint}"


def find_copy(root: Path, name: str, entry: Entry | None) -> Path | None:
    """A copy of a named set under ``root`` in any accepted layout."""
    others = (entry.name, entry.name.replace("-", "_"), *entry.others) if entry else ()
    stems = dict.fromkeys([name, *others])
    places = [root]
    if entry is not None:
        places += [root / entry.folder, root / "raw" / entry.folder, root / entry.name, root / entry.name / "raw"]
        if entry.folder == "planetoid":
            for place in places:
                if (place / entry.target).exists():
                    return place / entry.target
    candidates = [place / stem for place in places for stem in stems]
    for candidate in candidates:
        for path in (candidate, *(candidate.with_name(candidate.name + suffix) for suffix in _SUFFIXES)):
            if is_file(path):
                return path
    return next((path for path in candidates if _holds_something(path)), None)


def _holds_something(path: Path) -> bool:
    """A folder that is more than the place where nothing has been put yet."""
    try:
        with os.scandir(path) as entries:
            return any(not entry.name.startswith(".") for entry in entries)
    except (OSError, ValueError):  # of a name that no path can have
        return False


def _download(entry: Entry, root: Path, progress: Progress | None) -> Path:
    """Fetches a set and gives the path to read."""
    folder = root / entry.folder
    if not entry.files:
        raise DownloadError(_by_hand(entry, root, "it has no address to fetch it from"))
    for remote in entry.files:
        try:
            fetched = fetch(remote.url, folder / remote.file_name, remote.sha256, progress)
        except FetchError as error:
            raise DownloadError(_by_hand(entry, root, f"fetching {remote.file_name} failed: {error.reason}")) from error
        if remote.file_name.endswith(".zip"):
            unpack_zip(fetched, folder, Path(remote.file_name).stem, folder / entry.target)
            fetched.unlink(missing_ok=True)
    return folder / entry.target


def _by_hand(entry: Entry, root: Path, reason: str) -> str:
    place = root / entry.folder
    if entry.files:
        names = ", ".join(remote.file_name for remote in entry.files)
        source = f"{names} from {entry.files[0].url.rsplit('/', 1)[0]}"
    else:
        source = f"it from {entry.homepage}"
    return f"{entry.name}: expected a copy under {show(root)}, got none ({reason}); put {source} in {show(place)}"


def _as_named(ds: Dataset) -> Dataset:
    """A set of graphs as such, with what is known of the classes of a named set."""
    return typed_by_rows(_published_classes(ds))


def _published_classes(ds: Dataset) -> Dataset:
    """The published number of classes, where a set's labels do not reach its last class."""
    entry = find_entry(ds.name)
    if entry is None or entry.num_classes is None or ds.num_nodes != entry.num_nodes or ds.task != "classification":
        return ds
    return replace(ds, num_classes=entry.num_classes) if 0 < ds.num_classes < entry.num_classes else ds
