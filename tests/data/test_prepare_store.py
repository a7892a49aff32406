"""Stores are built from files larger than memory, within it, and builds that die go on."""

from __future__ import annotations

import errno
import gzip
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.stores import kept_pages

import graphweft as gw
from graphweft._memory import POOL
from graphweft.data.graph_files import edge_source
from graphweft.data.store_build import Build, build_bytes
from graphweft.data.stored import read_store


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 200, (2, 1500))
    x, y = rng.normal(size=(200, 6)).astype(np.float32), rng.integers(0, 4, 200)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    every = rng.permutation(200)
    split = {"train_idx": every[:100], "val_idx": every[100:150], "test_mask": np.isin(np.arange(200), every[150:])}
    np.savez(tmp_path / "split.npz", **split)
    np.save(tmp_path / "rows.npy", edges)
    np.save(tmp_path / "columns.npy", edges.T.astype(np.int32))
    np.save(tmp_path / "turned.npy", np.asfortranarray(edges))
    np.savez(tmp_path / "plain.npz", edge_index=edges)
    np.savez_compressed(tmp_path / "columns.npz", edge_index=edges.T)
    np.savez_compressed(tmp_path / "pairs.npz", src=edges[0], dst=edges[1])
    edges.T.astype(np.int64).tofile(tmp_path / "pairs.bin")
    text = "\n".join(f"{a},{b}" for a, b in edges.T)
    (tmp_path / "titled.csv").write_text("source,target\n" + text + "\n")
    (tmp_path / "plain.csv").write_text(text)
    (tmp_path / "blanks.txt").write_text("# made by hand\n" + text.replace(",", " ") + "\n")
    return {"edges": edges, "x": x, "y": y, "every": every, "folder": tmp_path}


NAMES = [
    "rows.npy",
    "columns.npy",
    "turned.npy",
    "plain.npz",
    "columns.npz",
    "pairs.npz",
    "pairs.bin",
    "titled.csv",
    "plain.csv",
    "blanks.txt",
]


def _given(files: dict[str, Any], edges: str, **more: Any) -> gw.macro.GraphFiles:
    folder = files["folder"]
    paths = {"x": folder / "x.npy", "y": folder / "y.npy", "split": folder / "split.npz"}
    return gw.macro.GraphFiles(folder / edges, **{**paths, **more})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bidirected", [False, True])
def test_files_of_every_kind_become_the_store_of_the_dataset(
    name: str, bidirected: bool, files: dict[str, Any], tmp_path: Path
) -> None:
    edges, every = files["edges"], files["every"]
    both = np.concatenate([edges, edges[::-1]], 1) if bidirected else edges
    graph = gw.Graph(*both, num_nodes=200)
    ds = gw.Dataset("g", graph, files["x"], files["y"], every[:100], every[100:150], every[150:])
    given = _given(files, name, bidirected=bidirected, name="g")
    part = np.arange(200) % 7
    from_files = gw.macro.prepare_store(given, tmp_path / "a", parts=7, memory="32MB", part=part)
    from_memory = gw.macro.prepare_store(ds, tmp_path / "b", parts=7, memory="32MB", part=part)
    assert from_files.manifest.parts == from_memory.manifest.parts  # with checksums of all blocks


@pytest.mark.parametrize("method", ["auto", "multilevel", "gap", "random", "range", "hash"])
def test_methods_put_every_node_into_one_part(method: str, files: dict[str, Any], tmp_path: Path) -> None:
    store = gw.macro.prepare_store(_given(files, "rows.npy"), tmp_path / "s", parts=5, method=method)
    ids = torch.cat([store.block(number, "node_ids") for number in range(5)])
    assert sorted(ids.tolist()) == list(range(200))
    assert torch.equal(read_store(store).x, torch.from_numpy(files["x"]))


def test_a_random_split_takes_three_fifths(files: dict[str, Any], tmp_path: Path) -> None:
    store = gw.macro.prepare_store(_given(files, "rows.npy", split=None), tmp_path / "s", parts=2)
    ds = read_store(store)
    counts = [ds.idx(part).numel() for part in ("train", "val", "test")]
    assert sum(counts) == 200
    assert 90 < counts[0] < 150


class _Stop(Exception):
    pass


@pytest.mark.parametrize("step", ["assigning nodes to parts", "copying features", "sorting edges", "writing parts"])
def test_a_build_that_stops_goes_on_and_gives_the_same_store(step: str, files: dict[str, Any], tmp_path: Path) -> None:
    given = _given(files, "rows.npy")
    whole = _prepared(given, tmp_path / "whole")
    told: list[str] = []

    def stop(what: str, done: int, total: int | None) -> None:
        told.append(what)
        if what == step and told.count(step) == 2 - (step in ("copying features", "sorting edges")):
            raise _Stop

    with pytest.raises(_Stop):
        gw.macro.prepare_store(given, tmp_path / "s", parts=6, method="hash", memory="32MB", progress=stop)
    assert not (tmp_path / "s").exists()
    with pytest.raises(gw.errors.DataError, match="preparation was interrupted"):
        gw.macro.Store(tmp_path / "s")
    again: list[tuple[str, int]] = []
    store = gw.macro.prepare_store(
        given,
        tmp_path / "s",
        parts=6,
        method="hash",
        memory="32MB",
        progress=lambda what, done, _: again.append((what, done)),
    )
    assert store.manifest == whole.manifest
    assert store.verify() == whole.verify()
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == sorted(
        ["manifest.json", *(entry.file for entry in store.manifest.parts)]
    )
    if step == "writing parts":
        assert all(what == "writing parts" for what, _ in again)  # nothing before was done twice


def _prepared(given: Any, out: Path, **more: Any) -> gw.macro.Store:
    options = {"parts": 6, "memory": "32MB", **({} if "part" in more else {"method": "hash"}), **more}
    return gw.macro.prepare_store(given, out, **options)


def _interrupted(given: Any, out: Path, **more: Any) -> Path:
    """A preparation that ends before the first part is whole; its folder."""

    def stop(what: str, done: int, total: int | None) -> None:
        if what == "writing parts":
            raise _Stop

    with pytest.raises(_Stop):
        _prepared(given, out, progress=stop, **more)
    return out.with_name(f".{out.name}.partial")


def test_another_preparation_starts_anew(files: dict[str, Any], tmp_path: Path) -> None:
    given = _given(files, "rows.npy")
    _interrupted(given, tmp_path / "s")
    store = _prepared(given, tmp_path / "s", parts=3)
    assert len(store) == 3
    assert store.verify() > 0


def test_labels_of_another_kind_start_anew(files: dict[str, Any], tmp_path: Path) -> None:
    _interrupted(_given(files, "rows.npy"), tmp_path / "s")
    store = _prepared(_given(files, "rows.npy", regression=True), tmp_path / "s")
    assert store.verify() > 0
    assert torch.equal(read_store(store).y, torch.from_numpy(files["y"]).float())


def test_another_assignment_starts_anew(tmp_path: Path) -> None:
    nodes = 65_600
    ds = gw.Dataset("many", gw.Graph([0], [1], num_nodes=nodes), None, np.zeros(nodes, np.int64))
    part = np.arange(nodes) % 2
    part[0], part[65_521] = 0, 1
    other = part.copy()
    other[0], other[65_521] = 1, 0
    _interrupted(ds, tmp_path / "s", parts=2, part=part)
    store = _prepared(ds, tmp_path / "s", parts=2, part=other)
    assert 0 in store.block(1, "node_ids") and 65_521 in store.block(0, "node_ids")


def test_an_assignment_keeps_its_name_whatever_the_memory(files: dict[str, Any], tmp_path: Path) -> None:
    given = _given(files, "rows.npy")
    _interrupted(given, tmp_path / "s", method="auto")
    folder = tmp_path / ".s.partial"
    (folder / "assignment-multilevel.npy").rename(folder / "assignment-hash.npy")  # as if there had been less memory
    assert _prepared(given, tmp_path / "s", method="auto").manifest.method == "hash"


@pytest.mark.parametrize("name", ["edges.runs", "assignment-hash.npy", "build.json", "key.json"])
def test_a_build_whose_files_were_cut_short_starts_them_anew(name: str, files: dict[str, Any], tmp_path: Path) -> None:
    given = _given(files, "rows.npy")
    whole = _prepared(given, tmp_path / "whole")
    file = _interrupted(given, tmp_path / "s") / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert _prepared(given, tmp_path / "s").manifest == whole.manifest


def test_a_store_that_is_whole_needs_its_name_alone(
    files: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process killed after the last block and before the folder has its name has nothing to do again."""

    def stop(*_: Any) -> None:
        raise _Stop

    given, told = _given(files, "rows.npy"), list[str]()
    with monkeypatch.context() as patched, pytest.raises(_Stop):
        patched.setattr(Path, "rename", stop)
        _prepared(given, tmp_path / "s")
    store = _prepared(given, tmp_path / "s", progress=lambda what, *_: told.append(what))
    assert told == [] and store.verify() > 0
    assert {path.suffix for path in (tmp_path / "s").iterdir()} == {".bin", ".json"}
    assert not (tmp_path / "s" / "key.json").exists()


def test_two_preparations_do_not_write_one_folder(files: dict[str, Any], tmp_path: Path) -> None:
    given, told = _given(files, "rows.npy"), list[str]()

    def again(what: str, done: int, total: int | None) -> None:
        told.append(what)
        if len(told) == 1:
            with pytest.raises(
                gw.errors.DataError, match="expected one preparation at a time, got another one under way"
            ):
                _prepared(given, tmp_path / "s")

    assert _prepared(given, tmp_path / "s", progress=again).verify() > 0


def test_reads_that_give_less_than_asked_go_on(
    files: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, read = _prepared(_given(files, "rows.npy"), tmp_path / "whole"), os.preadv
    monkeypatch.setattr(os, "preadv", lambda handle, into, at: read(handle, [into[0][:1000]], at))
    assert _prepared(_given(files, "rows.npy"), tmp_path / "s").manifest == whole.manifest


@pytest.mark.parametrize("call", ["fdatasync", "ftruncate", "open"])
def test_whatever_fails_on_a_full_disk_is_one_line(
    call: str, files: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = getattr(os, call)

    def fail(path: Any, *rest: Any) -> Any:
        if call == "open" and not str(path).endswith(".bin"):
            return held(path, *rest)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        monkeypatch.context() as patched,
        pytest.raises(gw.errors.DataError, match=r"writing failed: No space.*goes on"),
    ):
        patched.setattr(os, call, fail)
        _prepared(_given(files, "rows.npy"), tmp_path / "s")
    assert _prepared(_given(files, "rows.npy"), tmp_path / "s").verify() > 0


@pytest.mark.parametrize("kind", ["columns.npz", "titled.csv.gz"])
def test_damaged_archives_are_one_line(kind: str, files: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / kind
    if kind.endswith("gz"):
        file.write_bytes(gzip.compress((tmp_path / "titled.csv").read_bytes()))
    held = bytearray(file.read_bytes())
    for at in range(len(held) // 2, len(held) // 2 + 40):
        held[at] ^= 0xFF
    for content in (held, held[: len(held) // 3]):
        file.write_bytes(content)
        with pytest.raises(gw.errors.DataError, match=r"expected a readable file of edges|expected lines of node"):
            _prepared(_given(files, kind), tmp_path / "s")


def test_values_of_edges_in_files_are_left_out_with_a_warning(files: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "weighted.npz", edge_index=files["edges"], edge_weight=np.ones(1500))
    (tmp_path / "weighted.csv").write_text("source,target,weight\n0,1,0.5\n")
    for name in ("weighted.npz", "weighted.csv"):
        with pytest.warns(gw.errors.DataWarning, match="edge_weight are not kept in a store"):
            store = _prepared(_given(files, name), tmp_path / name.replace(".", "-"))
        assert store.manifest.notes == ("edge_weight are not kept in a store",)


def test_two_edges_in_any_layout(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", [0, 1, 1])
    for name, layout in (("a", np.ascontiguousarray), ("b", np.asfortranarray)):
        np.save(tmp_path / f"{name}.npy", layout([[0, 1], [2, 2]]))  # rows of sources and destinations
        store = gw.macro.prepare_store(
            gw.macro.GraphFiles(tmp_path / f"{name}.npy", None, tmp_path / "y.npy"), tmp_path / name, 1
        )
        assert store.structure(0)[0].tolist() == [0, 0, 0, 2]


def test_text_gives_no_more_edges_than_were_asked_for(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("1 2\n" * 5000)
    assert max(len(src) for src, _ in edge_source(tmp_path / "short.txt").chunks(1024)) <= 1026


def test_features_that_few_bits_cannot_hold_are_refused(files: dict[str, Any], tmp_path: Path) -> None:
    x = files["x"].copy()
    x[7, 3] = 1e5
    np.save(tmp_path / "large.npy", x)
    given = _given(files, "rows.npy", x=tmp_path / "large.npy")
    with pytest.raises(
        gw.errors.DataError, match=r"expected features that float16 can hold, got 100000 in row 7; dtype="
    ):
        _prepared(given, tmp_path / "s", dtype="float16")
    assert float(read_store(_prepared(given, tmp_path / "t", dtype="bfloat16")).x[7, 3]) == pytest.approx(1e5, rel=0.01)


def test_offsets_of_large_parts_count_in_the_budget() -> None:
    assert build_bytes(10**6, 1) - build_bytes(10**6, 100) > 15 * 10**6


def test_a_killed_process_leaves_a_build_that_goes_on(files: dict[str, Any], tmp_path: Path) -> None:
    """Killed again and again, at the steps that it tells of, in children of one process."""
    program = textwrap.dedent(
        """
        import os, signal, sys
        import graphweft as gw
        folder, out = sys.argv[1:]
        gw.macro.prepare_store
        at = 0
        while not os.path.exists(out):
            at += 1
            child = os.fork()
            if child == 0:
                break
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status not in (0, -signal.SIGKILL):
                sys.exit(1)
        else:
            print(at)
            sys.exit()
        seen = 0
        def told(what, done, total):
            global seen
            seen += 1
            if seen == (at - 1) % 3 + 1 and at <= 12:
                os.kill(os.getpid(), signal.SIGKILL)
        files = gw.macro.GraphFiles(f"{folder}/rows.npy", f"{folder}/x.npy", f"{folder}/y.npy", f"{folder}/split.npz")
        gw.macro.prepare_store(files, out, parts=4, method="hash", memory="32MB", progress=told)
        """
    )
    whole = _prepared(_given(files, "rows.npy"), tmp_path / "whole", parts=4)
    command = [sys.executable, "-c", program, str(files["folder"]), str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 4
    assert gw.macro.Store(tmp_path / "s").manifest == whole.manifest


_PEAK = textwrap.dedent(
    """
    import sys, threading, time
    import numpy as np
    import graphweft as gw
    from graphweft._memory import POOL, trim_heap
    import torch
    folder, budget = sys.argv[1], int(sys.argv[2])
    def anonymous():
        for line in open("/proc/self/status"):
            if line.startswith("RssAnon"):
                return 1024 * int(line.split()[1])
    torch.zeros(8)[torch.arange(4)]
    def peak_of(step):
        POOL.trim(); trim_heap()
        base = peak = anonymous()
        done = False
        def watch():
            nonlocal peak
            while not done:
                peak = max(peak, anonymous())
                time.sleep(0.001)
        thread = threading.Thread(target=watch); thread.start()
        store = step()
        done = True; thread.join()
        print(store.manifest.method, peak - base, store.verify())
    """
)  # prints the method and the peak above the base


def test_files_larger_than_the_budget_are_stored_within_it(tmp_path: Path) -> None:
    program = _PEAK + textwrap.dedent(
        """
        files = gw.macro.GraphFiles(f"{folder}/edges.npy", f"{folder}/x.npy", f"{folder}/y.npy")
        peak_of(lambda: gw.macro.prepare_store(files, f"{folder}/s", parts=16, memory=budget))
        """
    )
    budget, nodes = 24 << 20, 60_000
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (nodes, 640))
    for first in range(0, nodes, 10_000):
        x[first : first + 10_000] = rng.random((10_000, 640), np.float32)
    x.flush()
    edges = rng.integers(0, nodes, (2, 3_000_000))
    np.save(tmp_path / "edges.npy", edges)
    np.save(tmp_path / "y.npy", rng.integers(0, 5, nodes))
    assert x.nbytes + edges.nbytes > 8 * budget
    command = [sys.executable, "-c", program, str(tmp_path), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    method, peak, _ = done.stdout.split()
    assert method == "hash"  # the structure does not fit
    assert int(peak) <= budget
    store = gw.macro.Store(tmp_path / "s")
    part = store.part(3)
    assert torch.equal(part.x, torch.from_numpy(np.asarray(x[part.node_ids.numpy()])))
    ids = torch.cat([store.block(number, "node_ids") for number in range(16)]).numpy()
    node = int(part.node_ids[5])
    row = part.indices[int(part.indptr[5]) : int(part.indptr[6])].numpy()
    assert sorted(ids[row]) == sorted(edges[0][edges[1] == node])


def test_the_least_has_room_for_the_numbers_of_many_nodes(tmp_path: Path) -> None:
    """What is made of nodes at a time is as small as the budget, however many there are."""
    program = _PEAK + textwrap.dedent(
        """
        files = gw.macro.GraphFiles(f"{folder}/edges.npy", None, f"{folder}/y.npy")
        peak_of(lambda: gw.macro.prepare_store(files, f"{folder}/s", parts=64, memory=budget, method="hash"))
        """
    )
    nodes, budget = 1_000_000, 14_000_000
    rng = np.random.default_rng(0)
    np.save(tmp_path / "edges.npy", rng.integers(0, nodes, (2, nodes)))
    np.save(tmp_path / "y.npy", rng.integers(0, 5, nodes))
    files = gw.macro.GraphFiles(tmp_path / "edges.npy", None, tmp_path / "y.npy")
    with pytest.raises(gw.errors.ConfigError, match="memory: expected at least 14 MB"):
        gw.macro.prepare_store(files, tmp_path / "s", parts=64, memory=budget - 1_000_000, method="hash")
    command = [sys.executable, "-c", program, str(tmp_path), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) <= budget


def test_a_typed_graph_with_weights_is_stored_within_the_budget(tmp_path: Path) -> None:
    """Edges are sorted with their relation and weight, beside a dataset that is in memory already."""
    program = _PEAK + textwrap.dedent(
        """
        rng, half, count = np.random.default_rng(0), 30_000, 500_000
        edges = {
            ("a", "to", "b"): rng.integers(0, half, (2, count)), ("b", "back", "a"): rng.integers(0, half, (2, count)),
        }
        y = np.concatenate([np.full(half, -1), rng.integers(0, 5, half)])
        x = {"a": rng.random((half, 128), np.float32), "b": rng.random((half, 64), np.float32)}
        given = {"features": x, "target_type": "b", "edge_weight": rng.random(2 * count, np.float32)}
        ds = gw.Dataset("typed", gw.Graph.hetero(edges, {"a": half, "b": half}), None, y, **given)
        ds.graph.csc
        peak_of(lambda: gw.macro.prepare_store(ds, f"{folder}/s", parts=16, memory=budget, method="hash"))
        """
    )
    budget = 16 << 20
    command = [sys.executable, "-c", program, str(tmp_path), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) <= budget
    assert gw.macro.Store(tmp_path / "s").nbytes > 2 * budget  # features and edges are larger


def test_the_system_keeps_few_pages_of_what_is_written(tmp_path: Path) -> None:
    nodes, width, budget = 60_000, 256, 24 << 20
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.random((nodes, width), np.float32))
    np.save(tmp_path / "edges.npy", rng.integers(0, nodes, (2, 1_000_000)))
    np.save(tmp_path / "y.npy", rng.integers(0, 5, nodes))
    (tmp_path / "work").mkdir()
    seen: list[int] = []
    files = gw.macro.GraphFiles(*(tmp_path / f"{name}.npy" for name in ("edges", "x", "y")))
    given = {"parts": 64, "memory": budget, "method": "hash"}
    # rows reach every part in small pieces, none of which is worth a write of its own
    gw.macro.prepare_store(
        files, tmp_path / "work" / "s", progress=lambda *_: seen.append(kept_pages(tmp_path / "work")), **given
    )
    assert sum(path.stat().st_size for path in (tmp_path / "work" / "s").iterdir()) > 2 * budget
    assert max(seen) < budget // 3


def test_bad_input_is_told_in_one_line(files: dict[str, Any], tmp_path: Path) -> None:
    folder, given = files["folder"], _given(files, "rows.npy")
    out = tmp_path / "s"
    out_of_range = np.array([[0, 200], [1, 2]])
    np.save(folder / "wide.npy", out_of_range)
    np.save(folder / "short.npy", files["x"][:5])
    holes = files["x"].copy()
    holes[7, 2] = np.nan
    np.save(folder / "holes.npy", holes)
    np.savez(folder / "again.npz", train_idx=np.array([4, 0, 4]))
    for more, error, text in (
        ({"memory": "1MB"}, gw.errors.ConfigError, r"memory: expected at least 9 MB for 200 nodes, got 1 MB"),
        ({"memory": "much"}, gw.errors.ConfigError, "memory: expected a size such as 8GB"),
        ({"parts": 0}, gw.errors.ConfigError, "parts: expected an integer from 1 to the 200 nodes, got 0"),
        ({"parts": 2, "part": [0] * 199}, gw.errors.ConfigError, "part: expected 200 integers"),
        ({"parts": 2, "part": [2] * 200}, gw.errors.ConfigError, r"part: expected numbers in \[0, 2\), got 2"),
        ({"method": "gap", "part": [0] * 200}, gw.errors.ConfigError, "method=gap cannot be combined with part"),
        ({"method": "best"}, gw.errors.ConfigError, "method: expected one of auto"),
        ({"dtype": "int8"}, gw.errors.ConfigError, "dtype: expected one of float32"),
    ):
        with pytest.raises(error, match=text):
            gw.macro.prepare_store(given, out, **{"parts": 4, **more})
    for bad, text in (
        (_given(files, "wide.npy"), r"expected ids in \[0, 200\), got 200"),
        (_given(files, "rows.npy", x=folder / "short.npy"), "expected 200 rows|expected 5 rows"),
        (_given(files, "rows.npy", x=folder / "holes.npy"), "expected finite features, got others in row 7"),
        (_given(files, "none.npy"), "none.npy"),
        (
            _given(files, "rows.npy", split=folder / "again.npz"),
            "again.npz: train_idx: expected each id once, got 4 again",
        ),
        (_given(files, "split.npz"), "expected edge_index, or src and dst"),
    ):
        with pytest.raises(gw.errors.DataError, match=text):
            gw.macro.prepare_store(bad, out, parts=4, method="hash")
    out.mkdir()
    with pytest.raises(gw.errors.ConfigError, match="out: expected a folder that does not exist yet"):
        gw.macro.prepare_store(given, out, parts=4)


def test_graphs_that_no_store_holds_are_refused(tmp_path: Path) -> None:
    several = gw.Dataset("two", gw.Graph([0], [1]), np.eye(2), [0, 1], graph_ptr=[0, 1, 2])
    with pytest.raises(gw.errors.ConfigError, match="got a set of 2 graphs"):
        gw.macro.prepare_store(several, tmp_path / "s", parts=1)
    described = gw.Dataset("described", gw.Graph([0], [1]), np.eye(2), [0, 1], edge_features=[[2.0]])
    with pytest.warns(gw.errors.DataWarning, match="edge_features are not kept"):
        gw.macro.prepare_store(described, tmp_path / "s", parts=1)


def test_a_full_disk_is_one_line_and_the_build_goes_on(files: dict[str, Any], tmp_path: Path) -> None:
    given, former = _given(files, "rows.npy"), resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (2048, 6000, 14_000):  # features, edges, the structure of a part
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, former[1]))
        try:
            with pytest.raises(gw.errors.DataError, match=r"^[^\n]*writing failed at byte[^\n]*goes on[^\n]*$"):
                _prepared(given, tmp_path / "s", parts=4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, former)
    store = _prepared(given, tmp_path / "s", parts=4)
    assert store.manifest == _prepared(given, tmp_path / "whole", parts=4).manifest


@pytest.mark.parametrize(("budget", "expected"), [(8_900_000, "hash"), (16_400_000, "multilevel")])
def test_parts_are_found_in_memory_where_the_program_has_room_too(budget: int, expected: str, tmp_path: Path) -> None:
    program = _PEAK + textwrap.dedent(
        """
        files = gw.macro.GraphFiles(f"{folder}/edges.npy", f"{folder}/x.npy", f"{folder}/y.npy")
        given = {"parts": 16, "memory": budget, "dtype": "float16"}
        peak_of(lambda: gw.macro.prepare_store(files, f"{folder}/s", **given))
        """
    )
    nodes, edges = 12_000, 72_000
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.random((nodes, 128), np.float32))
    np.save(tmp_path / "edges.npy", rng.integers(0, nodes, (2, edges)))
    np.save(tmp_path / "y.npy", rng.integers(0, 5, nodes))
    command = [sys.executable, "-c", program, str(tmp_path), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    method, peak, _ = done.stdout.split()
    assert method == expected
    assert int(peak) <= budget


@pytest.mark.parametrize("memory", [None, "64MB"])
def test_what_a_partitioner_freed_does_not_lie_beside_the_rows(
    memory: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a budget the system has it back before rows are copied; without one the pool keeps it."""
    nodes, edges, free = 2000, 40_000, list[int]()

    class Watched(Build):
        def run(self, method: str) -> Any:
            assert method == "multilevel"  # whose graph was in memory
            stats = POOL.stats()
            free.append(stats.mapped - stats.lent)
            return super().run(method)

    monkeypatch.setattr("graphweft.data.prepare_store.Build", Watched)
    rng = np.random.default_rng(0)
    np.save(tmp_path / "edges.npy", rng.integers(0, nodes, (2, edges)))
    np.save(tmp_path / "x.npy", rng.random((nodes, 8), np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 5, nodes))
    files = gw.macro.GraphFiles(*(tmp_path / f"{name}.npy" for name in ("edges", "x", "y")))
    _prepared(files, tmp_path / "s", memory=memory, method="auto")
    assert [count > 0 for count in free] == [memory is None]
