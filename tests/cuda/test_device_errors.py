"""One line for every way in which a device cannot be used, each imitated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from zoo import random_edges

import graphweft as gw
from graphweft import cli
from graphweft._checks import check_device
from graphweft._errors import ConfigError, MemoryBudgetError, MissingPackageError
from graphweft.runtime.cuda import jit
from graphweft.train import device, device_batches, device_memory
from graphweft.train.full_batch import FullBatch
from graphweft.train.mini_batch import MiniBatch

OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)
OUT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.25 GiB is "
    "free. Process 7 has 77.86 GiB memory in use.\nOf the allocated memory 70.00 GiB is allocated by PyTorch"
)
CUDA = torch.device("cuda:0")


def raising(failure: BaseException) -> Callable[..., NoReturn]:
    def fail(*given: Any, **named: Any) -> NoReturn:
        raise failure

    return fail


def data() -> gw.Dataset:
    ends, every = random_edges(20, 60, 1), torch.arange(20)
    graph = gw.Graph(ends.src, ends.dst, num_nodes=20)
    return gw.Dataset("small", graph, torch.randn(20, 5), every % 3, every[::2], every[1::4], every[3::4], 3)


@pytest.mark.parametrize(
    ("built", "failure", "line"),
    [
        (
            None,
            AssertionError("Torch not compiled with CUDA enabled"),
            "; this torch is built without CUDA: pip install",
        ),
        ("13.0", RuntimeError(OLD), "; the driver is too old for CUDA 13.0, it has 11.4: update it, or install torch"),
        (
            "13.0",
            RuntimeError("CUDA driver version is insufficient for CUDA runtime version"),
            "; the driver is too old for CUDA 13.0: update it, or install torch for an older CUDA",
        ),
        ("13.0", RuntimeError("Found no NVIDIA driver on your system."), "; there is no NVIDIA driver"),
        (
            "13.0",
            RuntimeError("No CUDA GPUs are available"),
            "; torch is built for CUDA 13.0 and sees no GPU: nvidia-smi",
        ),
        (
            "13.0",
            torch.AcceleratorError("CUDA error: no kernel image is available"),
            "; this torch is built without code",
        ),
        ("13.0", torch.OutOfMemoryError(OUT), "; its memory is taken: nvidia-smi lists the processes that hold it"),
    ],
    ids=["no CUDA", "old driver", "older runtime", "no driver", "no GPU", "other GPU", "taken"],
)
def test_a_device_that_cannot_be_used_says_why(
    built: str | None, failure: Exception, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch, "zeros", raising(failure))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError) as caught:
        check_device("device", "cuda")
    said = str(caught.value)
    assert said.startswith(f"device: expected a device of this machine (cpu), got 'cuda'{line}") and "\n" not in said
    monkeypatch.undo()


def test_another_number_than_those_there_names_those(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "zeros", raising(RuntimeError("CUDA error: invalid device ordinal\nmore")))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        ConfigError, match=r"^device: expected a device of this machine \(cpu, cuda:0, cuda:1\), got 'cuda:7'$"
    ):
        check_device("device", "cuda:7")


def test_a_trainer_on_a_device_asks_for_triton_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in the first step, after the data were sent."""
    jit.find_triton.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(device, "check_device", lambda who, name: torch.device(name))
    with pytest.raises(MissingPackageError) as caught:
        gw.Trainer(gw.nn.GCN(5, 4, 3), data(), device="cuda:0")
    assert str(caught.value).startswith("cuda: expected the package triton, which is not installed")
    jit.find_triton.cache_clear()


def test_triton_without_a_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class There(torch.Tensor):
        device = CUDA

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return raising(RuntimeError("Failed to find C compiler. Please specify via CC environment variable."))

    monkeypatch.setattr(torch.cuda, "device", lambda place: pytest.MonkeyPatch.context())
    with pytest.raises(
        MissingPackageError, match=r"^cuda: expected a C compiler, with which Triton makes .*, or set CC$"
    ):
        jit.launch(Kernel(), (1,), torch.zeros(1).as_subclass(There))


@pytest.mark.parametrize(
    ("mode", "failure", "line"),
    [
        (
            "full",
            torch.OutOfMemoryError(OUT),
            "device: expected room for a step on all nodes in the memory of cuda:0, got none (2.00 GiB more asked for, "
            "79.11 GiB in all, 1.25 GiB free); lower hidden or layers, take precision='bf16', or train batches with "
            "mode='mini'",
        ),
        (
            "mini",
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "device: expected room for batches in the memory of cuda:0, got none; lower batch_size, fanouts or hidden",
        ),
    ],
)
def test_memory_that_is_out_says_what_to_lower(
    mode: str, failure: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_memory, "device_of", lambda model: CUDA)
    monkeypatch.setattr(FullBatch if mode == "full" else MiniBatch, "step", raising(failure))
    trainer = gw.Trainer(gw.nn.GCN(5, 4, 3), data(), mode=mode)
    with pytest.raises(MemoryBudgetError) as caught:
        trainer.fit(1)
    assert str(caught.value) == line
    assert cli._failed(caught.value, ["train"]) == 2
    typed = line.replace("precision='bf16'", "--precision bf16").replace("mode='mini'", "--mode mini")
    assert capsys.readouterr().err == f"graphweft train: --{typed}\n"


def test_other_errors_and_the_memory_of_the_host_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, failure in ((CUDA, RuntimeError("size mismatch")), (torch.device("cpu"), torch.OutOfMemoryError("x"))):
        monkeypatch.setattr(device_memory, "device_of", lambda model, place=place: place)
        with pytest.raises(type(failure), match=str(failure)), device_memory.told_of_memory(None, "full"):
            raise failure


def test_an_evaluation_that_does_not_fit_goes_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ever smaller ones, until they fit; what fitted is remembered."""
    torch.manual_seed(0)
    monkeypatch.setattr(device_batches, "USUAL_TILE", 400)
    with gw.config(target="null"):  # whose batches the CPU draws
        trainer = gw.Trainer(gw.nn.SAGE(5, 4, 3), data(), mode="mini")
    batch = trainer._batch
    batch.__class__ = device_batches.DeviceMiniBatch
    batch.device = torch.device("cpu")
    tiles: list[int] = []
    infer, forward = device_batches.infer, gw.nn.SAGE.forward

    def tiled(model: Any, graph: Any, x: Any, tile: int, **given: Any) -> Any:
        tiles.append(tile)
        if tile > 100:
            raise torch.OutOfMemoryError(OUT)
        monkeypatch.setattr(gw.nn.SAGE, "forward", forward)
        return infer(model, graph, x, tile, **given)

    wanted = trainer.model.eval()(trainer.ds.graph, trainer.ds.x)
    monkeypatch.setattr(device_batches, "infer", tiled)
    monkeypatch.setattr(gw.nn.SAGE, "forward", raising(torch.OutOfMemoryError(OUT)))
    found = batch.logits()
    torch.testing.assert_close(found, wanted)
    assert tiles == [400, 100]
    batch.logits()
    assert tiles == [400, 100, 100]
