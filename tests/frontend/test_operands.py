"""Parts of operands are those that torch's trees find."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from graphweft._torch_private import pytree
from graphweft.frontend.operands import leaves, mapped, mapped_tensors

Pair = namedtuple("Pair", ["one", "two"])
X, Y = torch.ones(2), torch.nn.Parameter(torch.zeros(3))
TREES: dict[str, Any] = {
    "operands": ((X, [Y, None, X], 2), {"dim": [0, 1], "dtype": torch.float32, "keepdim": False}),
    "named": (Pair(X, (1, Y)), OrderedDict(b=X, a=[2.5])),
    "sizes": (torch.Size([2, 3]), slice(1, X, None), "sum", torch.device("cpu"), 1j, object),
    "top": torch.max(torch.ones(2, 2), 0),
    "none": ((), [], {}),
}


@pytest.mark.parametrize("name", TREES)
def test_parts_are_those_of_torch(name: str) -> None:
    tree = TREES[name]
    expected = pytree.tree_leaves(tree)
    found = leaves(tree)
    assert len(found) == len(expected)
    assert all(one is other for one, other in zip(found, expected, strict=True))
    assert mapped(id, tree) == pytree.tree_map(id, tree)
    tensors = pytree.tree_leaves(mapped_tensors(lambda tensor: tensor.shape[0] + 0.5, tree))
    assert tensors == [part.shape[0] + 0.5 if isinstance(part, torch.Tensor) else part for part in expected]
