"""The plan for a store on disk: how many parts make a group, the memory of groups, the bytes that an epoch reads.

Comes in: a model, a store as a dataset, a budget. Goes out: a :class:`Plan`. Called by ``gw.plan``. Seconds are not
predicted: they depend on how reading and training overlap.
"""

from __future__ import annotations

from torch import nn

from graphweft._errors import ConfigError
from graphweft.data.stored import StoredDataset
from graphweft.loader.groups import group_bytes, parts_within
from graphweft.runtime.machine import Machine
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.train.needs import Needs
from graphweft.train.options import MacroText, check_macro, split_macro
from graphweft.train.plan import GraphStatistics, Plan, Way, choose


def stored_plan(
    model: nn.Module,
    ds: StoredDataset,
    memory: int | str | None,
    machine: Machine,
    macro: str | None,
    mode: str,
    ranks: int,
) -> Plan:
    """Groups of parts, as mode "auto" takes them, or another mode that was asked for.

    Raises: ConfigError for a mode that reads no store, or a budget that holds no part.
    """
    if mode == "full":
        raise ConfigError(
            "mode: expected macro, mini or auto for a store, got full; gw.load(path) reads it into memory"
        )
    if ranks > 1:
        raise ConfigError(f"ranks={ranks} cannot be combined with a store; gw.load(path) reads it into memory")
    store, budget = ds.store, memory_bytes(memory)
    item = ds.y.element_size() * (ds.y.shape[1] if ds.y.dim() == 2 else 1)
    stages, pinned, reuse, keep = MacroText(None) if macro is None else split_macro(macro)
    hubs = 0 if pinned is None else memory_bytes(pinned, "hubs")
    count = parts_within(store, budget, item, hubs, keep) if stages is None else check_macro(stages)[1]
    weights = sum(p.nbytes for p in model.parameters())
    groups = Needs(batches=group_bytes(store, count, item, hubs, keep), parameters=6 * weights)
    ways = [
        Way("full", refused="holds the graph in memory; gw.load(path) reads a store into memory"),
        Way(
            "macro",
            f"groups of {count} of {len(store)} parts"
            + (f" and hubs of {shown_bytes(hubs)}" if hubs else "")
            + (f", each gone through {reuse} times" if reuse > 1 else "")
            + (f", {keep} parts kept between epochs" if keep else ""),
            needs=groups,
            disk=store.nbytes,
        ),
        Way("mini", "structure in memory, rows of features from disk"),
    ]
    if mode == "mini":
        ways = [ways[0], Way("macro", ways[1].batches, refused="mode mini was asked for"), ways[2]]
    width, edges = store.num_features, store.manifest.num_edges
    split = (ds.train_idx.numel(), ds.val_idx.numel(), ds.test_idx.numel())
    mean = round(edges / max(store.num_nodes, 1))
    known = GraphStatistics(ds.name, store.num_nodes, edges, (mean,), width, 1.0, ds.num_classes, split)
    return choose(ways, known, budget, str(machine), "gw.explain(model, graph, x) on a part")


__all__ = ["stored_plan"]
