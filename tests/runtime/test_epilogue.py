import ctypes

import pytest
import torch

from graphweft._errors import DtypeError, ShapeError
from graphweft.runtime.epilogue import Epilogue


def test_native_holds_the_addresses_and_strides_of_the_stages():
    wide = torch.zeros(4, 10)
    stages = Epilogue(
        row_scale=torch.ones(4), addend=wide[:, 2:5], relu=True, mask=torch.zeros(4, 3), col_sum=torch.zeros(3)
    )
    native = stages.native()
    assert native.row_scale == stages.row_scale.data_ptr()
    assert (native.addend, native.ld_addend) == (wide.data_ptr() + 8, 10)
    assert (native.mask, native.ld_mask) == (stages.mask.data_ptr(), 3)
    assert native.relu == 1
    assert native.bias is None and native.post_scale is None
    assert ctypes.sizeof(native) == 96  # the layout of gw_epilogue_f32


def test_reference_applies_the_stages_in_order():
    t = torch.tensor([[1.0, -2.0], [3.0, float("nan")]], dtype=torch.float64)
    stages = Epilogue(
        row_scale=torch.tensor([2.0, 1.0]),
        bias=torch.tensor([1.0, 1.0]),
        addend=torch.tensor([[0.0, 10.0], [0.0, 0.0]]),
        relu=True,
        mask=torch.tensor([[1.0, 1.0], [0.0, 1.0]]),
        post_scale=torch.tensor([10.0, 1.0]),
    )
    expected = torch.tensor([[30.0, 70.0], [0.0, float("nan")]], dtype=torch.float64)
    torch.testing.assert_close(stages.reference(t), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("stages", "failure", "text"),
    [
        (Epilogue(bias=torch.zeros(4)), ShapeError, r"spmm: expected bias of shape \(3,\)"),
        (Epilogue(row_scale=torch.zeros(3)), ShapeError, "row_scale"),
        (Epilogue(addend=torch.zeros(3, 5).t()), ShapeError, "contiguous rows"),
        (Epilogue(mask=torch.zeros(5, 3, dtype=torch.bool)), DtypeError, "mask of dtype torch.float32"),
    ],
)
def test_check_names_the_stage(stages, failure, text):
    with pytest.raises(failure, match=text):
        stages.check("spmm", 5, 3)
