"""The plan of a run over data in memory, without the run.

Comes in: a model, a dataset, a budget, how batches are made. Goes out: a :class:`Plan`. Called by ``gw.plan``, and for
a group of parts of a store, which is such a dataset.
"""

from __future__ import annotations

from contextlib import nullcontext

from torch import nn

from graphweft._config import config
from graphweft.data.dataset import Dataset
from graphweft.dist.ranks import Ranks
from graphweft.runtime.machine import Machine
from graphweft.train.chosen import Chosen, Loop
from graphweft.train.edge_data import edge_data_of
from graphweft.train.int8_rules import check_priced
from graphweft.train.model_input import as_read
from graphweft.train.needs import budget_of
from graphweft.train.optimizer import make_optimizer
from graphweft.train.options import USUAL_RATE
from graphweft.train.plan import Plan
from graphweft.train.setup import Drawn, Given
from graphweft.train.steps import finding_out, planned


def plan_in_memory(
    model: nn.Module,
    ds: Dataset,
    memory: int | str | None,
    machine: Machine,
    drawn: Drawn,
    modes: tuple[str, ...],
    keep_features: bool,
    order: tuple[str, int | None] = ("auto", None),
) -> Plan:
    """The plan that a trainer of the same arguments follows; ``order`` of the nodes, and the epochs to come."""
    ds, ranks = as_read(model, ds, "nodes", memory), Ranks()
    check_priced(ds)
    loop = Loop(Chosen(), ds, "nodes", "accuracy", None)
    optimizer = make_optimizer(model, "adam", USUAL_RATE, 0.0, "all")
    data = (loop.update(model, optimizer), loop, edge_data_of(model, ds, "use"))
    given = Given(model, ds, *data, "nodes", "auto", ranks, drawn, *order, keep_features=keep_features)
    budget = budget_of(memory, ds, "full", "nodes", drawn.macro, ranks)
    asked = given._replace(mode=modes[0] if len(modes) == 1 else "auto")
    # Nothing is trained here: programs are tried for rewrites that go wrong where they are to run.
    with config(certify=False), nullcontext() if budget is None else budget.within(), finding_out(asked, budget):
        return planned(given, budget, machine, modes)[0]


__all__ = ["plan_in_memory"]
