"""GraphSAGE of PyTorch Geometric on batches of our loader: as it stands, under ``gw.compile``, and our own SAGE.

Compiled it runs twice: ``seeds`` with ``seeds_only=True``, so that rows the seeds' do not follow from are left out, as
our own SAGE leaves them out; ``compiled`` with all rows.

    python benchmarks/models/compiled_batches.py --write        # products twin at 0.25, (15, 10, 5), batch 1000

A step is the next batch, forward, loss, backward and Adam; every batch is a new graph to ``gw.compile``. All forms take
turns in one process, on the same batches, after their losses on the first one have been compared (the last form has
other initial weights, and is not). Times are medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from harness import RESULTS, BenchError, write_csv
from torch.nn import functional
from torch_geometric.nn import GraphSAGE

import graphweft as gw
from graphweft.measure.bench import machine_stamp

TOLERANCE = 1e-4
TURN = 4  # steps in a row


class Form:
    """A model on its own copy of the loader's batches."""

    def __init__(self, model: Any, call: Callable[[Any, Any], Any], batches: Iterator[Any]) -> None:
        self.model, self._call, self._batches, self.seconds = model, call, batches, list[float]()
        self._optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def step(self) -> float:
        """The loss of one batch."""
        began = time.perf_counter()
        batch = next(self._batches)
        loss = functional.cross_entropy(self._call(self.model, batch)[: batch.batch_size], batch.y[: batch.batch_size])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.seconds.append(time.perf_counter() - began)
        return float(loss.detach())


def forms(ds: Any, arguments: argparse.Namespace) -> dict[str, Form]:
    """All that take turns."""
    width = arguments.hidden

    def batches() -> Iterator[Any]:
        return iter(gw.Loader(ds, ds.train_idx, arguments.fanouts, arguments.batch_size, shuffle=True, seed=0))

    def theirs() -> GraphSAGE:
        torch.manual_seed(0)
        return GraphSAGE(ds.num_features, width, len(arguments.fanouts), ds.num_classes)

    def on_edges(model: Any, batch: Any) -> Any:
        return model(batch.x, batch.edge_index)

    own = gw.nn.SAGE(ds.num_features, width, ds.num_classes, num_layers=len(arguments.fanouts))
    return {
        "eager": Form(theirs(), on_edges, batches()),
        "compiled": Form(gw.compile(theirs()), on_edges, batches()),
        "seeds": Form(gw.compile(theirs(), seeds_only=True), on_edges, batches()),
        "own": Form(own, lambda model, batch: model(batch.blocks, batch.x), batches()),
    }


def main() -> int:
    """Measures one data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.25, help="of ogbn-products")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--fanouts", type=lambda text: [int(k) for k in text.split(",")], default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3, help="of four steps each, after one that does not count")
    parser.add_argument("--write", action="store_true", help="append to results/compiled_batches.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    ds = gw.synthetic("products", scale=arguments.scale, seed=0)
    all_forms = forms(ds, arguments)
    first = {name: form.step() for name, form in all_forms.items()}
    if max(abs(first[name] - first["eager"]) for name in ("compiled", "seeds")) > TOLERANCE * first["eager"]:
        raise BenchError(f"losses of the first batch differ: {first}")
    for _ in range(arguments.turns):
        for form in all_forms.values():
            for _ in range(TURN):
                form.step()
    median = {name: 1e3 * statistics.median(form.seconds[1:]) for name, form in all_forms.items()}
    row = {"graph": "ogbn-products", "scale": arguments.scale, "hidden": arguments.hidden}
    row |= {"fanouts": " ".join(map(str, arguments.fanouts)), "batch_size": arguments.batch_size}
    row |= {f"{name}_ms": round(ms, 1) for name, ms in median.items()}
    for name in ("compiled", "seeds"):
        row |= {f"{name}_times_eager": round(median["eager"] / median[name], 2)}
        row |= {f"{name}_times_own": round(median["own"] / median[name], 3)}
        row |= {f"{name}_first_step_s": round(all_forms[name].seconds[0], 2)}
    row |= {"steps": TURN * arguments.turns}
    print(*(f"{key} {value}" for key, value in row.items()), sep="  ")
    if arguments.write:
        write_csv(RESULTS / "compiled_batches.csv", [{**row, **machine_stamp()}])
    return 0


if __name__ == "__main__":
    sys.exit(main())
