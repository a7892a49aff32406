"""What ranks do in the tests of this folder: ``python rank_cases.py SIZE CASE FOLDER [OPTION...]`` is a whole group.

The package is read once; every rank is a child of that process, with the environment of a rank that was started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from dist.rank_models import OWN, ByDegree, UserModel
from dist.rank_processes import rank_environment
from torch import Tensor, nn

import graphweft as gw
from graphweft._memory import POOL
from graphweft._trace import Recorder, recording
from graphweft.data.part_dataset import PartDataset
from graphweft.data.part_folder import write_parts
from graphweft.dist import local_part
from graphweft.partitioning import multilevel
from graphweft.partitioning.partition import Partition, partition
from graphweft.runtime import late_rows
from graphweft.train import ranked_full


def typed_dataset() -> gw.Dataset:
    """Two types, three relations, labels that neighbours share; no features."""
    draw = torch.Generator().manual_seed(4)
    sizes = {"paper": 70, "author": 40}
    labels = torch.randint(0, 3, (70,), generator=draw)
    topic = torch.randint(0, 3, (40,), generator=draw)
    pairs = torch.cartesian_prod(torch.arange(70), torch.arange(40))
    near = pairs[(labels[pairs[:, 0]] == topic[pairs[:, 1]]) & (torch.rand(2800, generator=draw) < 0.15)].T
    cited = torch.randint(0, 70, (2, 160), generator=draw)
    edges = {("paper", "by", "author"): near, ("author", "of", "paper"): near.flip(0), ("paper", "to", "paper"): cited}
    every = torch.randperm(70, generator=draw)
    splits = every[:30].sort().values, every[30:50], every[50:]
    labels = torch.cat([labels, torch.full((40,), -1)])
    return gw.Dataset("typed", gw.Graph.hetero(edges, sizes), None, labels, *splits, 3, target_type="paper")


def any_model(name: str, halo: str = "exact", ranks: gw.dist.Ranks | None = None) -> gw.Trainer:
    """A trainer of full batches, of a user's model or of one of ``gw.nn`` by NAME-OPTION=VALUE-...

    WeightedNAME reads weights of edges, and gives features up.
    """
    kind, *words = name.removeprefix("Weighted").split("-")
    options = dict(word.split("=") for word in words)
    ds = typed_dataset() if kind in ("RGCN", "HGT") else dataset()
    torch.manual_seed(0)
    if kind in OWN:
        model = OWN[kind](ds.num_features, ds.num_classes)
    else:
        numbers = {key: int(value) if value.isdigit() else value for key, value in options.items()}
        model = getattr(gw.nn, kind).for_data(ds, hidden=8, **numbers)
    if kind == "attending" or name.startswith("Weighted"):
        weight = torch.rand(ds.num_edges, generator=torch.Generator().manual_seed(2))
        ds = gw.Dataset(**{**{f.name: getattr(ds, f.name) for f in fields(ds) if f.init}, "edge_weight": weight})
    kept = not name.startswith("Weighted")
    return gw.Trainer(model, ds, ranks=ranks, restore_best=False, lr=0.02, seed=3, keep_features=kept)


def anything(folder: Path, *names: str) -> None:
    """Trains every model of :func:`any_model` on full batches; typed graphs in random parts, which mix the types."""
    ranks, owners = gw.dist.Ranks.join(), ranked_full.owners
    draws = torch.randint(ranks.size, (typed_dataset().num_nodes,), generator=torch.Generator().manual_seed(5))
    for name in names:
        is_typed = name.split("-")[0] in ("RGCN", "HGT")
        ranked_full.owners = (lambda ranks, graph, epoch: draws) if is_typed else owners
        trainer = any_model(name, ranks=ranks)
        trainer.fit(10)
        told = {"bytes": trainer.exchanged()["bytes_sent_per_epoch"], "own": trainer._batch.part.own}
        torch.save(state_of(trainer) | told, folder / f"{name}-{ranks.rank}.pt")
    ranks.leave()


def resumed(folder: Path, out: str, *names: str) -> None:
    """Goes on with the runs in ``out``, if they are there, for three epochs."""
    ranks = gw.dist.Ranks.join()
    for name in names:
        trainer = trainer_of(name, ranks, mode="full", fanouts=None, batch_size=1024, out=Path(out) / name)
        trainer.resume()
        trainer.fit(3)
        torch.save(state_of(trainer), folder / f"{name}-{ranks.rank}.pt")
    ranks.leave()


def links(folder: Path, *names: str) -> None:
    """Trains link prediction by NAME:REDUCE."""
    for text in names:
        name, reduce = text.split(":")
        ranks = gw.dist.Ranks.join(reduce)
        trainer = link_trainer(name, ranks)
        trainer.fit(2)
        told = {"bytes": trainer.exchanged()["bytes_sent_per_epoch"], "details": trainer._batch.details}
        torch.save(link_state(trainer) | told, folder / f"{name}-{reduce}-{ranks.rank}.pt")
    ranks.leave()


def link_trainer(name: str, ranks: gw.dist.Ranks | None) -> gw.Trainer:
    return trainer_of(name, ranks, task="link", batch_size=60)


def link_state(trainer: gw.Trainer) -> dict[str, Any]:
    names = ("loss", "val_loss", "test_acc")
    return {"model": dict(trainer.model.state_dict()), **{name: trainer.history[name] for name in names}}


def dataset() -> gw.Dataset:
    ds = gw.synthetic("cora", scale=0.15, seed=0)
    x = torch.randn(ds.num_nodes, 12, generator=torch.Generator().manual_seed(1))
    return gw.Dataset("small", ds.graph, x, ds.y, ds.train_idx, ds.val_idx, ds.test_idx, ds.num_classes)


def model_of(name: str, ds: gw.Dataset, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    if name in ("user", "degree"):
        return (UserModel if name == "user" else ByDegree)(ds.num_features, ds.num_classes)
    return getattr(gw.nn, name)(ds.num_features, 8, ds.num_classes, **options)


def trainer_of(name: str, ranks: gw.dist.Ranks | None, **options: Any) -> gw.Trainer:
    ds = dataset()
    given = {"mode": "mini", "fanouts": (2, 3), "batch_size": 17, "lr": 0.02, "seed": 3, **options}
    model = model_of(name, ds, **({"heads": 2} if name == "GAT" else {}))
    return gw.Trainer(model, ds, ranks=ranks, restore_best=False, **given)


def state_of(trainer: gw.Trainer) -> dict[str, Any]:
    last = trainer.history.last
    assert last is not None
    return {
        "model": dict(trainer.model.state_dict()),
        "losses": trainer.history["loss"],
        "val_loss": trainer.history["val_loss"],
        "test_acc": trainer.history["test_acc"],
        "predicted": trainer.predict(),
    }


def train(folder: Path, *names: str) -> None:
    """Trains every model of NAME:REDUCE and keeps what came out."""
    for text in names:
        name, reduce = text.split(":")
        ranks = gw.dist.Ranks.join(reduce)
        trainer = trainer_of(name, ranks)
        seeds: list[Tensor] = []
        make = trainer._batch.loader.make

        def watched(places: Tensor, epoch: int, make: Any = make, seeds: list[Tensor] = seeds) -> Any:
            batch = make(places, epoch)
            seeds.append(torch.cat([torch.tensor([epoch]), batch.seeds]))
            return batch

        trainer._batch.loader.make = watched  # type: ignore[method-assign]
        trainer.fit(2)
        state = state_of(trainer) | {
            "seeds": sorted(s.tolist() for s in seeds),
            "bytes": trainer.exchanged()["bytes_sent_per_epoch"],
        }
        torch.save(state, folder / f"{name}-{reduce}-{ranks.rank}.pt")


def full(folder: Path, *names: str) -> None:
    """Trains every model on full batches; of three ranks neighbours stand together, as in a large part."""
    ranks = gw.dist.Ranks.join()
    if ranks.size == 3:
        multilevel.WORTH_ORDERING, multilevel.CELL = 0, 16
    for name in names:
        trainer = full_trainer(name, ranks)
        trainer.fit(4)
        told = trainer.exchanged()
        counts = {"bytes": told["bytes_sent_per_epoch"], "ghosts": told["ghosts"], "own": trainer._batch.part.own}
        torch.save(state_of(trainer) | counts, folder / f"{name}-{ranks.rank}.pt")
    ranks.leave()


def logged(events: list[str], name: str, act: Any) -> Any:
    """``act``, whose calls are written down."""
    return lambda *given, **more: (events.append(name), act(*given, **more))[1]


def far(folder: Path, *names: str) -> None:
    """Trains every model as on several hosts, no row of which is computed before others come; a step's events."""
    ranks, events = gw.dist.Ranks.join(), list[str]()
    ranks._near, local_part._WORTH = None, 0

    begin, late_rows.spmm = logged(events, "begin", ranks.begin_exchange), logged(events, "part", late_rows.spmm)
    ranks.begin_exchange = lambda *given, **more: logged(events, "end", begin(*given, **more))
    ranks.begin_add_up = logged(events, "add", ranks.begin_add_up)
    for name in names:
        trainer = uneven_trainer(name, dataset(), ranks, mode="full")
        trainer.fit(4)
        state = state_of(trainer) | {"bytes": trainer.exchanged()["bytes_sent_per_epoch"], "events": events}
        events.clear()
        trainer._batch.step()
        torch.save(state, folder / f"{name}-{ranks.rank}.pt")
    ranks.leave()


def recorded(folder: Path, *names: str) -> None:
    """Trains every model with steps that are recorded on all ranks, on none, and on the last one alone."""
    ranks = gw.dist.Ranks.join()
    for name in names:
        for way in ("all", "none", "one"):
            trainer = full_trainer(name, ranks)
            called = way == "none" or (way == "one" and ranks.rank < ranks.size - 1)
            with recording(Recorder() if called else None):  # spans are those of calls, one by one
                trainer.fit(5)
            tape = trainer._batch._recording
            told = {"calls": 0 if tape is None else len(tape.calls), "called": called}
            told["bytes"] = trainer.exchanged()["bytes_sent_per_epoch"]
            torch.save(state_of(trainer) | told, folder / f"{name}-{way}-{ranks.rank}.pt")
    ranks.leave()


def dense_trainer(ranks: gw.dist.Ranks | None) -> gw.Trainer:
    """A GCN of three layers on a graph with so many edges that rows are multiplied before they are summed."""
    ds = gw.synthetic("products", scale=0.004, seed=0)
    torch.manual_seed(0)
    model = gw.nn.GCN.for_data(ds, hidden=16, num_layers=3)
    return gw.Trainer(model, ds, mode="full", ranks=ranks, restore_best=False, lr=0.01, seed=3)


def multiplied(folder: Path) -> None:
    """Rows that travel as the next layer multiplies them, to a rank that runs torch's engine, and to another host."""
    ranks = gw.dist.Ranks.join()
    local_part._WORTH = 0  # on several hosts interior rows are not computed apart
    for way in ("plans", "engine", "far"):
        if way == "far":
            ranks._near = None
        trainer = dense_trainer(ranks)
        trainer.fit(1)
        if way == "engine" and ranks.rank == 0:  # after the ranks have agreed
            trainer.model.layers[0].register_forward_hook(lambda *given: None)
        trainer.fit(3)
        batch = trainer._batch
        taken = [batch._plans.factors(layer) is not None for layer in range(3)]
        passes = [getattr(call, "__name__", "") for call, _ in batch._recording.calls] if batch._recording else []
        told: dict[str, Any] = {"bytes": trainer.exchanged()["bytes_sent_per_epoch"]}
        told |= {"multiplied": taken, "passes": passes.count("gw_rows_apply_f32")}
        torch.save(state_of(trainer) | told, folder / f"multiplied-{way}-{ranks.rank}.pt")
    ranks.leave()


def evaluated(folder: Path, *names: str) -> None:
    """Trains every model and keeps the bytes that are in use after every evaluation: the pool's, the messages'."""
    ranks = gw.dist.Ranks.join()
    for name in names:
        ds = gw.synthetic("arxiv", scale=0.05, seed=0)
        torch.manual_seed(0)
        model = getattr(gw.nn, name).for_data(ds, hidden=128)
        trainer = gw.Trainer(model, ds, mode="full", ranks=ranks, restore_best=False, lr=0.01, seed=3)
        batch, found = trainer._batch, []
        evaluate = batch.evaluate

        def watched(evaluate: Any = evaluate, batch: Any = batch, found: list[Any] = found) -> Any:
            told = evaluate()
            pool, tape = POOL.stats(), batch._recording
            messages = sum(rows.nbytes for held in ranks._near._held for _, rows in held)
            found.append([pool.lent, pool.mapped, pool.maps, tape.arena.stats().mapped, tape.is_ready(), messages])
            return told

        batch.evaluate = watched
        trainer.fit(6)
        torch.save(torch.tensor(found), folder / f"{name}-{ranks.rank}.pt")
    ranks.leave()


def memory(folder: Path) -> None:
    """What a recorded step of a GCN of three layers holds, in rows of ``hidden`` columns, and edges of its graphs."""
    ranks = gw.dist.Ranks.join()
    ds = gw.synthetic("products", scale=0.01, seed=0)
    torch.manual_seed(0)
    hidden = 64
    model = gw.nn.GCN.for_data(ds, hidden=hidden, num_layers=3)
    trainer = gw.Trainer(model, ds, mode="full", ranks=ranks, restore_best=False, lr=0.01, seed=3)
    batch = trainer._batch
    trainer.fit(1)
    trainer._refresh()
    batch.step()
    part, arena = batch.part, batch._recording.arena
    bound = [slot for piece in batch._plans._pieces[1:-1] for slot in piece._bound if isinstance(slot, gw.Graph)]
    sizes = {"sources": part.block.num_src, "own": part.own.numel(), "lent": part.all_lent.numel(), "hidden": hidden}
    edges = {graph.csc_structure.num_edges for graph in bound}
    found = {**sizes, "peak": arena.stats().peak_lent, "edges": max(edges), "part_edges": part.block.num_edges}
    del arena
    batch.pause()
    torch.save(found | {"paused": int(batch._recording is not None)}, folder / f"memory-{ranks.rank}.pt")
    ranks.leave()


def parts(folder: Path, where: str, *names: str) -> None:
    """Trains every model on full batches, each rank from its own folder; NAME-released gives features up.

    NormedNAME has a batch norm after the first layer.
    """
    ranks = gw.dist.Ranks.join()
    for text in names:
        name, _, released = text.partition("-")
        whole = dataset()
        ds = PartDataset(where, ranks.rank)
        model = part_model(name, whole)
        trainer = gw.Trainer(
            model, ds, mode="full", ranks=ranks, restore_best=False, lr=0.02, seed=3, keep_features=not released
        )
        trainer.fit(4)
        held = {"held": ds.x.untyped_storage().nbytes()}
        torch.save(state_of(trainer) | held, folder / f"{text}-{ranks.rank}.pt")
    ranks.leave()


def looped_dataset() -> gw.Dataset:
    """A third of the nodes with an edge to themselves."""
    ds, own = dataset(), torch.arange(0, 400, 3)
    src, dst = ds.graph.edges()
    graph = gw.Graph(torch.cat([src, own]), torch.cat([dst, own]), num_nodes=ds.num_nodes)
    return replace(ds, graph=graph)


def looped_trainer(ds: gw.Dataset, ranks: gw.dist.Ranks | None) -> gw.Trainer:
    torch.manual_seed(0)
    model = gw.nn.GCN(ds.num_features, 8, ds.num_classes, add_self_loops=False)
    return gw.Trainer(model, ds, ranks=ranks, restore_best=False, lr=0.02, seed=3)


def looped(folder: Path, where: str) -> None:
    """Trains a GCN without added self-loops on parts of a graph that has some."""
    ranks = gw.dist.Ranks.join()
    ds = looped_dataset()
    if ranks.is_first:
        write_parts(ds, partition(ds.graph, ranks.size, "random"), where)
    ranks.texts("written")
    trainer = looped_trainer(PartDataset(where, ranks.rank), ranks)
    trainer.fit(4)
    torch.save({"losses": trainer.history["loss"]}, folder / f"looped-{ranks.rank}.pt")
    ranks.leave()


def uneven_dataset() -> tuple[gw.Dataset, Partition]:
    """Training nodes in the first of two parts alone."""
    ds = dataset()
    made = partition(ds.graph, 2, "metis")
    return replace(ds, train_idx=ds.train_idx[made.part[ds.train_idx] == 0]), made


def uneven(folder: Path, where: str, *names: str) -> None:
    """Trains every model on parts, where the second rank has nothing to train on."""
    ranks = gw.dist.Ranks.join()
    if ranks.is_first:
        write_parts(*uneven_dataset(), where)
    ranks.texts("written")
    for name in names:
        trainer = uneven_trainer(name, PartDataset(where, ranks.rank), ranks)
        trainer.fit(4)
        torch.save({"losses": trainer.history["loss"]}, folder / f"{name}-{ranks.rank}.pt")
    ranks.leave()


def uneven_trainer(name: str, ds: gw.Dataset, ranks: gw.dist.Ranks | None, **options: Any) -> gw.Trainer:
    model = model_of(name, dataset(), **({"num_layers": 3} if name != "user" else {}))
    return gw.Trainer(model, ds, ranks=ranks, restore_best=False, lr=0.02, seed=3, **options)


def part_model(name: str, ds: gw.Dataset) -> nn.Module:
    """A model of :func:`parts`."""
    if name.startswith("Normed"):
        return model_of(name.removeprefix("Normed"), ds, norm="batch", bias=False)
    return model_of(name, ds, **({"heads": 2} if name == "GAT" else {}))


def halved(folder: Path, *forms: str) -> None:
    """Trains on full batches with rows of ghosts in fewer bytes."""
    for halo in forms:
        ranks = gw.dist.Ranks.join(halo=halo)
        trainer = full_trainer("SAGE", ranks)
        trainer.fit(4)
        counts = {"bytes": trainer.exchanged()["bytes_sent_per_epoch"], "own": trainer._batch.part.own}
        torch.save(state_of(trainer) | counts, folder / f"{halo}-{ranks.rank}.pt")
    ranks.leave()


def order(folder: Path) -> None:
    """Trains one step and keeps the order in which layers are computed and rows travel."""
    ranks = gw.dist.Ranks.join()
    ranks._near = None  # as on several hosts
    trainer, events = full_trainer("GCN", ranks), list[str]()
    trainer._batch._steps()  # once, ranks agree on how rows travel
    part, layer = trainer._batch._last, trainer._batch._layer
    begin, add_up = (logged(events, *act) for act in (("begin", ranks.begin_exchange), ("sum", ranks.begin_add_up)))
    ranks.begin_exchange = lambda *given, **more: logged(events, "end", begin(*given, **more))
    ranks.begin_add_up = lambda *given: logged(events, "summed", add_up(*given))

    def computed(index: int, block: Any, rows: Tensor) -> Tensor:
        name = "inner" if block is part.inner else "outer" if block is part.outer else "all"
        events.append(name)
        out = layer(index, block, rows)
        if out.requires_grad:
            out.register_hook(lambda _: events.append(f"d{name}"))
        return out

    trainer._batch._layer = computed
    trainer._batch.step()
    told = {"events": list(events), "edges": [part.inner.num_edges, part.outer.num_edges]}
    torch.save(told, folder / f"order-{ranks.rank}.pt")
    ranks.leave()


def full_trainer(name: str, ranks: gw.dist.Ranks | None) -> gw.Trainer:
    return trainer_of(name, ranks, mode="full", fanouts=None, batch_size=1024)


def tell(folder: Path) -> None:
    """Everything that ranks tell each other; raises where it is not what plain torch says."""
    ranks = gw.dist.Ranks.join("ordered")
    rank, size = ranks.rank, ranks.size
    assert ranks.texts(f"hello {rank}" * (rank + 1)) == [f"hello {r}" * (r + 1) for r in range(size)]
    assert (ranks.agreed(rank), ranks.total(rank + 1)) == (size - 1, size * (size + 1) // 2)
    assert ranks.from_first(lambda: b"x" * 70_000) == b"x" * 70_000
    assert ranks.from_first(lambda: None) is None
    rows = torch.randn(ranks.slices, 1001, generator=torch.Generator().manual_seed(0))
    wanted = torch.zeros(1001)
    for row in rows:
        wanted += row
    mine = rows[ranks.own_slices.start : ranks.own_slices.stop]
    assert torch.equal(ranks.sum_slices(mine), wanted)
    total = torch.full((5,), float(rank + 1))
    ranks.add_up(total)
    assert total.tolist() == [size * (size + 1) / 2] * 5
    near = ranks._near
    for way in (near, None):  # out of memory where the system lets us, and through sockets
        ranks._near = way
        sent = [torch.full((rank + 2 * r,), 10.0 * rank + r) for r in range(size)]
        got = [torch.empty(r + 2 * rank) for r in range(size)]
        before = ranks.bytes_sent
        ranks.exchange(sent, got)
        assert ranks.bytes_sent - before == sum(4 * (rank + 2 * r) for r in range(size) if r != rank)
        for r, row in enumerate(got):
            assert row.tolist() == [10.0 * r + rank] * (r + 2 * rank)
    ranks._near = near
    cuts = ranks.cuts(7)
    table = torch.zeros(7, 3)
    table[slice(*cuts[rank])] = rank + 1.0
    ranks.gather_rows(table, cuts)
    assert table[:, 0].tolist() == [r + 1.0 for r, (a, b) in enumerate(cuts) for _ in range(b - a)]
    ranks.leave()
    (folder / f"done-{rank}").touch()


CASES: dict[str, Callable[..., None]] = {
    "train": train,
    "full": full,
    "far": far,
    "recorded": recorded,
    "multiplied": multiplied,
    "evaluated": evaluated,
    "memory": memory,
    "parts": parts,
    "looped": looped,
    "uneven": uneven,
    "tell": tell,
    "halved": halved,
    "order": order,
    "anything": anything,
    "links": links,
    "resumed": resumed,
}


def as_ranks(size: int, folder: Path, act: Callable[[], None]) -> int:
    """``act`` in a child a rank; 0 where all succeed."""
    children = []
    for rank in range(size):
        environment = rank_environment(folder, rank, size)
        child = os.fork()
        if child == 0:
            os.environ.update(environment)
            act()
            sys.exit(0)
        children.append(child)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children)


if __name__ == "__main__":
    torch.set_num_threads(1)
    size, case, folder, *options = sys.argv[1:]
    sys.exit(as_ranks(int(size), Path(folder), lambda: CASES[case](Path(folder), *options)))
