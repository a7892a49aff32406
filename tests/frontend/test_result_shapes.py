"""Shapes and strides that stand-ins get at once are those of tensors with numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from graphweft._torch_private import pytree
from graphweft._torch_recording import FakeTensor, FakeTensorMode
from graphweft.frontend.result_shapes import _AT_ONCE, results_of

aten = torch.ops.aten


def rows() -> dict[str, Tensor]:
    """Rows as code makes them: as they are, turned, expanded, with gaps, none."""
    x = torch.rand(6, 4) + 0.5
    return {"rows": x, "turned": torch.rand(4, 6).t() + 0.5, "wide": torch.rand(1, 4).expand(6, 4), "gaps": x[:, :4:2],
            "none": torch.rand(0, 4), "half": x.half(), "double": x.double()}  # fmt: skip


def arguments(func: Any, x: Tensor) -> list[tuple[Any, ...]]:
    """Operands of ``func``, with ``x`` among them."""
    count, width = x.shape
    ids, few = torch.arange(count) % 3, torch.randint(0, max(count, 1), (5 if count else 0,))
    weight = torch.rand(width, 3, dtype=x.dtype)
    name = func._schema.name.partition("::")[2]
    of_name: dict[str, list[tuple[Any, ...]]] = {
        "mm": [(x, weight), (x.t(), x)],
        "bmm": [(x[None], weight[None])],
        "addmm": [(torch.rand(3, dtype=x.dtype), x, weight)],
        "index_select": [(x, 0, few), (x, 1, torch.tensor([1, 0]))],
        "index_add": [(torch.zeros(3, width, dtype=x.dtype), 0, ids, x)],
        "scatter_add": [(torch.zeros(3, width, dtype=x.dtype), 0, ids[:, None].expand(count, width), x)],
        "scatter_reduce": [(torch.zeros(3, width, dtype=x.dtype), 0, ids[:, None].expand(count, width), x, "amax")],
        "cat": [([x, x],), ([x, x], 1), ([x, x[:1]], 0)],
        "stack": [([x, x],), ([x, x], -1)],
        "where": [(x > 0, x, torch.zeros((), dtype=x.dtype)), (x.t() > 0, x.t(), x.t())],
        "expand": [(x[:, None], [count, 3, width]), (x[None], [2, -1, -1])],
        "permute": [(x, [1, 0])],
        "unsqueeze": [(x, 0), (x, -1)],
        "squeeze": [(x[:, None], 1), (x, 0)],
        "select": [(x, 1, 0)],
        "slice": [(x, 0, 1, 4), (x, 1, 0, 3, 2)],
        "transpose": [(x, 0, 1)],
        "clamp": [(x, 0.6), (x, 0.6, 0.8)],
        "clamp_min": [(x, 0.6)],
        "pow": [(x, 2), (x, 0.5)],
        "leaky_relu": [(x, 0.2)],
        "sum": [(x, [0]), (x, [-1], True)],
        "mean": [(x, [0]), (x, [1], True)],
        "amax": [(x, [1]), (x.t(), [0], True)],
        "amin": [(x, [1])],
    }
    if count == 0 and name in ("amax", "amin"):
        return [(x, [1])]
    if name in of_name:
        return of_name[name]
    if func._schema.name.endswith(("eq", "ne", "lt", "le", "gt", "ge")) and func._overloadname == "Scalar":
        return [(x, 0.5)]
    if len([a for a in func._schema.arguments if str(a.type) == "Tensor"]) > 1:
        return [(x, x), (x, x[:, :1]), (x, torch.tensor(2.0)), (x.t(), x[:, 0])]
    return [(x,), (x.t(),)] if name == "t" else [(x,), (x.t(),), (x[:, None],)]


@pytest.mark.parametrize("func", sorted(_AT_ONCE, key=str), ids=str)
def test_stand_ins_have_the_shapes_of_numbers(func: Any) -> None:
    for form, x in rows().items():
        for given in arguments(func, x):
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            stand_ins = pytree.tree_map_only(Tensor, mode.from_tensor, given)
            expected, found = func(*given), results_of(mode, func, stand_ins, {})
            assert isinstance(found, FakeTensor), form
            mine, theirs = ((t.shape, t.stride() if t.numel() else (), t.dtype, t.device) for t in (found, expected))
            assert mine == theirs, (form, [getattr(item, "shape", item) for item in given])


def test_structure_beside_stand_ins() -> None:
    mode, index = FakeTensorMode(allow_non_fake_inputs=True), torch.tensor([2, 0, 2, 1])
    x = mode.from_tensor(torch.rand(3, 5))
    assert results_of(mode, aten.index_select.default, (x, 0, index), {}).shape == (4, 5)
    with pytest.raises(RuntimeError, match="reduction dim"):
        results_of(mode, aten.mm.default, (x, torch.rand(3, 5)), {})
