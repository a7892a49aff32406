"""What a mini-batch is priced by: rows that a product sums or takes on its way, the stored entries of the rows that a
batch reads; and which kernels its activations take."""

from __future__ import annotations

import pytest
import torch

import graphweft as gw
from graphweft.cost import Work
from graphweft.data.dataset import Dataset
from graphweft.passes.work import Sizes
from graphweft.runtime.kernel_call import KernelCall
from graphweft.train.mini_batch import MiniBatch

LINE = 64


def _calls(model: gw.nn.CompiledModule, ds: Dataset, size: int) -> tuple[list[KernelCall], Sizes]:
    steps = gw.Trainer(model, ds, mode="mini", batch_size=size)._batch
    steps.prepare()
    assert isinstance(steps, MiniBatch)
    found = steps.staged_plan()
    assert found is not None
    staged, sizes = found
    return [*staged.plan.forward, *staged.plan.backward], sizes


def test_an_elu_and_its_gradient_take_the_kernels_of_the_library() -> None:
    ds = gw.synthetic("flickr", scale=0.02, seed=0)
    calls, _ = _calls(gw.nn.GAT(ds.num_features, 16, ds.num_classes), ds, 64)
    elementwise = [call for call in calls if any(value.get("fn") is not None for value in call.body)]
    assert [call.kernel for call in elementwise] == ["row_nest", "row_nest"]
    assert [[value["fn"] for value in call.body] for call in elementwise] == [["elu"], ["gt", "add", "mul", "where"]]


def test_sums_and_rows_that_a_product_takes_on_its_way_are_priced() -> None:
    ds = gw.synthetic("flickr", scale=0.05, seed=0)
    calls, sizes = _calls(gw.nn.SAGE(ds.num_features, 16, ds.num_classes), ds, 64)
    first = next(call for call in calls if call.label.startswith("matmul of sums and gathered rows"))
    lines = -(-ds.num_features * 4 // LINE)
    product, sums, rows = first.works
    assert product == first.work and product.kind == "product narrow"
    edges = {name: count for name, count in sizes.rows.items() if sums.amount == count * lines}
    assert len(edges) == 1  # those of the outermost block, each a row of all features
    assert rows.kind.startswith("gather") and rows.amount % lines == 0 and rows.amount < sums.amount


def test_entries_of_sparse_features_are_those_of_the_rows_that_a_batch_reads() -> None:
    ds = gw.synthetic("pubmed", scale=0.3, seed=0)
    calls, sizes = _calls(gw.nn.GCN(ds.num_features, 16, ds.num_classes), ds, 8)
    (entries,) = sizes.nonzeros.values()
    sparse: list[Work] = [call.work for call in calls if call.label.startswith("sparse matmul")]
    read = max(count for name, count in sizes.rows.items() if name.startswith("B"))
    assert sparse and all(work.amount == pytest.approx(entries * read / ds.num_nodes, rel=0.01) for work in sparse)


def test_the_last_batch_of_an_epoch_is_priced_by_its_own_size() -> None:
    """Neighbourhoods overlap less in a batch of few seeds: it draws many edges for them."""
    ds = gw.synthetic("flickr", scale=0.02, seed=0)
    steps = gw.Trainer(gw.nn.SAGE(ds.num_features, 16, ds.num_classes), ds, mode="mini", batch_size=400)._batch
    steps.prepare()
    count, seeds = len(steps.loader), steps.loader.seeds
    last = seeds.numel() - 400 * (count - 1)
    assert count > 2 and 0 < last < 200
    drawn = [(work.amount, times) for work, times in steps.works()[0] if work.kind == "draw"]
    assert [times for _, times in drawn] == [count - 1, 1]
    generator = torch.Generator().manual_seed(0)
    for (edges, _), size in zip(drawn, (400, last), strict=True):
        sample = steps.sampler.sample(seeds[torch.randperm(seeds.numel(), generator=generator)[:size]])
        assert edges == pytest.approx(sum(block.num_edges for block in sample.blocks), rel=0.1)
    assert drawn[1][0] > 1.2 * last / 400 * drawn[0][0]


@pytest.mark.parametrize("kind", ["SAGE", "GAT"])
def test_works_at_the_sizes_that_decided_a_plan_are_those_of_its_calls(kind: str) -> None:
    ds = gw.synthetic("flickr", scale=0.02, seed=0)
    steps = gw.Trainer(getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes), ds, mode="mini")._batch
    steps.prepare()
    staged, sizes = steps.staged_plan()
    found = staged.plan.works_at(sizes)
    for call in (*staged.plan.forward, *staged.plan.backward):
        assert [found[slot.value] for slot in call.writes if slot.value in found] == [call.works]


@pytest.mark.parametrize("kind", ["GCN", "SAGE", "GIN"])
def test_rows_of_a_batch_lie_in_the_pool(kind: str) -> None:
    """What torch computes lies on the heap of the C library, whose large blocks cost a batch new pages."""
    ds = gw.synthetic("arxiv", scale=0.02, seed=0)
    steps = gw.Trainer(getattr(gw.nn, kind)(ds.num_features, 32, ds.num_classes), ds, mode="mini")._batch
    steps.prepare()
    plan = steps.staged_plan()[0].plan
    by_torch = [call for call in (*plan.forward, *plan.backward) if plan.interprets(call)]
    assert [call.kernel for call in by_torch if call.value.tensor.rows is not None] == []
