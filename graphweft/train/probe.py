"""How well a linear classifier reads classes from embeddings: the usual score of embeddings learned without labels.

Comes in: embeddings, labels, rows to fit and rows to score. Goes out: accuracies. Called by the task of embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

_ROUNDS = 200


def probe(z: Tensor, y: Tensor, fit: Tensor, parts: Mapping[str, Tensor], penalty: float = 1.0) -> dict[str, float]:
    """The share of rows of each part whose class a logistic regression on ``z[fit]`` finds.

    The sum of the cross-entropies plus ``penalty / 2`` times the squared weights is minimised (L-BFGS, float64), which
    is scikit-learn's ``LogisticRegression(C=1 / penalty)``. Columns are scaled to deviation 1 over ``fit`` before.

    Shape: z (N, C), y (N,) int64 classes >= 0 at the rows used, fit and the parts int64 rows.

    Example:
        >>> z = torch.tensor([[-1.0], [-2.0], [1.0], [2.0]])
        >>> probe(z, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 2]), {"test": torch.tensor([1, 3])})
        {'test': 1.0}
    """
    rows = z.detach().double()
    scale = rows[fit].std(0, correction=0)
    rows = (rows - rows[fit].mean(0)) / torch.where(scale > 0, scale, torch.ones_like(scale))
    classes = int(y[torch.cat([fit, *parts.values()])].max()) + 1
    weight = torch.zeros(rows.shape[1], classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=_ROUNDS, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        solver.zero_grad()
        loss = functional.cross_entropy(rows[fit] @ weight + bias, y[fit], reduction="sum")
        loss = loss + penalty / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        solver.step(objective)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        found = (rows @ weight + bias).argmax(1)
    return {name: float((found[part] == y[part]).double().mean()) for name, part in parts.items() if part.numel()}
