"""What compiled kernels take and move: bars, and the table of ``tests/golden/cuda_kernels.txt``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

import triton
from cuda import ahead, costs, emulated

from graphweft.runtime.cuda import hubs

GOLDEN = Path(__file__).parents[1] / "golden" / "cuda_kernels.txt"
SPARSE = ("sum", "largest", "gradient of the largest")  # names of launches of products with the graph's matrix
READ = 1.25  # of the least sectors
INSTRUCTIONS = 50  # of a warp, an edge
REGISTERS, SHARED = 64, 48 << 10


@pytest.fixture(scope="module")
def found() -> dict[str, costs.Cost]:
    """Every launch, compiled for every target and counted."""
    torch.manual_seed(0)
    return costs.costs()


def test_kernels_fit_and_read_by_vectors(found: dict[str, costs.Cost]) -> None:
    """Rows are 64 wide, and read 16 bytes a thread; so are heads of 16 channels."""
    assert len(found) >= 15
    for name, cost in found.items():
        for target, code in cost.codes.items():
            assert code.spills == 0 and not code.atomics and code.shared <= SHARED, (name, target, code)
            assert code.registers <= REGISTERS, (name, target, code)
            assert code.widest == 16, (name, target, code.loads)
            if not name.endswith(("gradient_of_targets", "score_rows")):  # which store a number for each head
                assert code.widest_store == 16, (name, target, code.stores)


def test_products_read_little_more_than_they_must(found: dict[str, costs.Cost]) -> None:
    checked = [name for name in found if name.startswith(SPARSE)]
    assert len(checked) == 7
    for name in checked:
        moved = found[name].launch.traffic
        assert found[name].least * 0.99 <= moved.sectors["ld"], name  # else the least is not
        assert moved.sectors["ld"] <= READ * found[name].least, (name, moved)
        assert found[name].instructions <= INSTRUCTIONS, (name, moved)


@pytest.mark.parametrize("width", [4, 20, 32, 100, 128, 256])
def test_every_width_that_is_a_multiple_of_four_is_read_by_vectors(width: int) -> None:
    """And spills nothing up to 256 columns."""
    torch.manual_seed(0)
    for name, (run, _) in costs.runs(width).items():
        if not name.startswith((*SPARSE, "stages")):
            continue
        with emulated.watching(run_it=False) as launches, pytest.MonkeyPatch.context() as patch:
            patch.setattr(hubs, "HUB", costs.EDGES)
            run()
        code = ahead.code_of(launches[-1].code, 90)
        assert code.widest == 16 and code.spills == 0 and code.registers <= REGISTERS, (name, code)


def test_a_width_that_is_no_constant_would_be_seen() -> None:
    """The bar on sectors and on vectors is one that careless text misses: columns read one by one, a row in two."""
    careless = costs.careless()
    assert careless.launch.traffic.sectors["ld"] > READ * careless.least
    assert not any(".v" in load for load in careless.codes[90].loads)


def test_the_table_is_that_of_this_compiler(found: dict[str, costs.Cost]) -> None:
    """Delete the golden file to record it anew; another Triton makes other code, of which the bars above hold."""
    made = costs.table(found)
    if not GOLDEN.exists():
        GOLDEN.write_text(made)
    wanted = GOLDEN.read_text()
    if wanted.splitlines()[0] != made.splitlines()[0]:
        pytest.skip(f"recorded with {wanted.splitlines()[0].split(';')[0]}, here is triton {triton.__version__}")
    assert made.splitlines() == wanted.splitlines()
