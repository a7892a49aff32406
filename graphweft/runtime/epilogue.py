"""What is done to a finished output row before it is stored: the stages shared by the sparse and the dense products.

Comes in: tensors, one per stage. Goes out: the native structure that a kernel reads. Called by the launchers of
:mod:`graphweft.runtime.sparse` and :mod:`graphweft.runtime.dense`, filled by compiled programs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from graphweft import _native
from graphweft._errors import DtypeError, ShapeError


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Stages applied to row i of a product, in this order; None or False leaves a stage out.

    Attributes:
        row_scale: (n,) float32, ``t *= row_scale[i]``.
        bias: (f,) float32, ``t += bias``.
        addend: (n, f) float32 with contiguous rows, ``t += addend[i]``; over edges bfloat16 as well.
        addend_rows: The addend is (addend_rows, f) and the rows from there on add nothing; None: it is (n, f).
        relu: ``t = max(t, 0)``; NaN stays NaN.
        mask: (n, f) float32 with contiguous rows, ``t = where(mask[i] > 0, t, 0)``; over edges bfloat16 as well.
        col_sum: (f,) float32 **output**: column sums of t as it is after the mask.
        post_scale: (n,) float32, ``t *= post_scale[i]``.

    Example:
        >>> Epilogue(bias=torch.zeros(3), relu=True).reference(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0., 0., 2.]])
    """

    row_scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    addend: torch.Tensor | None = None
    relu: bool = False
    mask: torch.Tensor | None = None
    col_sum: torch.Tensor | None = None
    post_scale: torch.Tensor | None = None
    addend_rows: int | None = None

    def native(self) -> _native.Epilogue:
        """The structure a kernel reads. It holds addresses only: this object must outlive the call."""
        row_scale, bias = self.row_scale, self.bias
        addend, half_addend = _by_dtype(None if self.addend_rows == 0 else self.addend)
        mask, half_mask = _by_dtype(self.mask)
        col_sum, post_scale = self.col_sum, self.post_scale
        return _native.Epilogue(
            None if row_scale is None else row_scale.data_ptr(),
            None if bias is None else bias.data_ptr(),
            addend,
            0 if self.addend is None else self.addend.stride(0),
            self.relu,
            mask,
            0 if self.mask is None else self.mask.stride(0),
            None if col_sum is None else col_sum.data_ptr(),
            None if post_scale is None else post_scale.data_ptr(),
            self.addend_rows or 0,
            half_mask,
            half_addend,
        )

    def reference(self, t: torch.Tensor) -> torch.Tensor:
        """The same stages in plain torch on a whole (n, f) matrix, in its dtype; ``col_sum`` is not written."""
        if self.row_scale is not None:
            t = t * self.row_scale.to(t.dtype)[:, None]
        if self.bias is not None:
            t = t + self.bias.to(t.dtype)
        if self.addend is not None and self.addend_rows is None:
            t = t + self.addend.to(t.dtype)
        elif self.addend is not None:
            t = torch.cat([t[: self.addend_rows] + self.addend.to(t.dtype), t[self.addend_rows :]])
        if self.relu:
            t = torch.relu(t)
        if self.mask is not None:
            t = torch.where(self.mask > 0, t, torch.zeros((), dtype=t.dtype))
        if self.post_scale is not None:
            t = t * self.post_scale.to(t.dtype)[:, None]
        return t

    def apply_(self, t: torch.Tensor) -> torch.Tensor:
        """The stages as torch operations, in place on a finished product of a dtype that has no fused epilogue."""
        before = replace(self, post_scale=None).reference(t)
        if self.col_sum is not None:
            torch.sum(before, 0, dtype=self.col_sum.dtype, out=self.col_sum)
        return t.copy_(Epilogue(post_scale=self.post_scale).reference(before))

    def check(self, who: str, rows: int, width: int, half_stages: bool = False) -> None:
        """Every tensor has the shape its stage needs for a (rows, width) product.

        ``half_stages``: addend and mask may be bfloat16.

        Raises: ShapeError or DtypeError naming the stage.
        """
        stages = (
            ("row_scale", self.row_scale, (rows,)),
            ("bias", self.bias, (width,)),
            ("addend", self.addend, (rows if self.addend_rows is None else self.addend_rows, width)),
            ("mask", self.mask, (rows, width)),
            ("col_sum", self.col_sum, (width,)),
            ("post_scale", self.post_scale, (rows,)),
        )
        if self.addend_rows is not None and not 0 <= self.addend_rows <= rows:
            raise ShapeError(f"{who}: expected an addend of at most {rows} rows, got {self.addend_rows}")
        for name, tensor, shape in stages:
            if tensor is None:
                continue
            taken = (torch.float32, torch.bfloat16) if name in ("addend", "mask") and half_stages else (torch.float32,)
            if tensor.dtype not in taken:
                raise DtypeError(f"{who}: expected {name} of dtype torch.float32, got {tensor.dtype}")
            if tensor.shape != shape or (tensor.stride(-1) != 1 and shape[-1] > 1):
                layout = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
                raise ShapeError(f"{who}: expected {name} of shape {shape} with contiguous rows, got {layout}")


def _by_dtype(rows: torch.Tensor | None) -> tuple[int | None, int | None]:
    """Where rows lie, in float32 or in bfloat16."""
    if rows is None:
        return None, None
    return (None, rows.data_ptr()) if rows.dtype is torch.bfloat16 else (rows.data_ptr(), None)
