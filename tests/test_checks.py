"""Checks with one wording: a device that is not there."""

from __future__ import annotations

import pytest
import torch

import graphweft as gw
from graphweft.loader.rows import Rows


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "tpu:0", torch.device("cuda:99")])
def test_a_device_that_is_not_there_is_refused_in_one_line(device) -> None:
    for use in (gw.schedule.Tier, Rows().to):
        with pytest.raises(
            gw.errors.ConfigError, match=r"expected a device of this machine \(cpu.*\), got '"
        ) as caught:
            use(device)
        assert "\n" not in str(caught.value)


def test_devices_that_are_there() -> None:
    assert gw.schedule.Tier("cpu").device == torch.device("cpu")
    assert Rows().to(torch.device("cpu")).to("meta").get("y", lambda: torch.ones(2)).device.type == "meta"
