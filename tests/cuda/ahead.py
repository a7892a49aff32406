"""Compiles kernels for devices that are not here, and says what their machine code takes."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

TARGETS = (80, 90, 100)


@dataclass(frozen=True)
class Code:
    """What a compiled kernel takes.

    Attributes:
        registers: Of a thread.
        spills: Bytes that do not fit into registers.
        shared: Bytes of shared memory.
        loads, stores: Instructions on global memory, as PTX names them.
        atomics: Atomic instructions.
    """

    registers: int
    spills: int
    shared: int
    loads: tuple[str, ...]
    stores: tuple[str, ...]
    atomics: tuple[str, ...]

    @property
    def widest(self) -> int:
        """Bytes of the widest load."""
        return max(_width(load) for load in self.loads)

    @property
    def widest_store(self) -> int:
        """Bytes of the widest store."""
        return max(_width(store) for store in self.stores)


def _width(instruction: str) -> int:
    lanes = re.search(r"\.v(\d)", instruction)
    return int(instruction.split(".")[-1][1:]) // 8 * (int(lanes[1]) if lanes else 1)


def compiled(
    fn: Any, types: dict[str, str], fixed: dict[str, Any], target: int, warps: int, fusion: bool = True
) -> Code:
    """A kernel for sm_``target``; pointers are aligned to 16 bytes, as torch's are."""
    names = fn.arg_names
    signature = {name: "constexpr" if name in fixed else types[name] for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    constants = {(names.index(name),): item for name, item in fixed.items()}
    source = ASTSource(fn, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(
        source, target=GPUTarget("cuda", target, 32), options={"num_warps": warps, "enable_fp_fusion": fusion}
    )
    return code_of(made, target)


def code_of(made: Any, target: int) -> Code:
    """What a kernel compiled for sm_``target`` takes."""
    ptx = made.asm["ptx"]
    program = get_ptxas(target).path
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        arch = re.search(r"\.target (\w+)", ptx)[1]
        command = [program, "-v", "--regAllocOptLevel=2", f"-arch={arch}", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True).stderr
    assert "Used" in said, said
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    return Code(
        int(re.search(r"Used (\d+) registers", said)[1]),
        sum(map(int, spills)),
        int(made.metadata.shared),
        tuple(re.findall(r"ld\.global[\w.:]*\.[bfus]\d+", ptx)),
        tuple(re.findall(r"st\.global[\w.:]*\.[bfus]\d+", ptx)),
        tuple(re.findall(r"\b(?:atom|red)\.[\w.:]+", ptx)),
    )
