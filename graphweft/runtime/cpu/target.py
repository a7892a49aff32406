"""The CPU's table of launchers.

Comes in: calls of a plan. Goes out: launchers of ahead-of-time kernels and of kernels that are compiled for the plan.
Known to ``gw.config(target=)`` as "cpu", the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor

from graphweft.graph.degrees import float_degrees
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.ir.residency import StructType, TensorType
from graphweft.passes.groups import Group
from graphweft.passes.work import Sizes, stored_entries, turns_rows
from graphweft.runtime.cpu import attention, norms, products
from graphweft.runtime.cpu.buffers import buffers, rounds_contractions
from graphweft.runtime.cpu.functions import SIMPLE, TYPED
from graphweft.runtime.cpu.generated import edge_nests, row_nest
from graphweft.runtime.dense import cross_entropy, rounds_operands
from graphweft.runtime.edge_kernels import start_edge_kernels
from graphweft.runtime.entry_loss import Kind, entry_loss
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.row_kernels import is_built
from graphweft.runtime.sparse import panel_row, rounds_rows, wants_panel
from graphweft.runtime.target import Bound, Launch, Launcher, Target, whole

_HALF = frozenset({torch.bfloat16, torch.float16})
_ID = 4  # bytes of a node in a row that is turned around
_ROUNDED_GRADIENTS = frozenset({("contract", "weight"), ("contract_terms", "x")})  # of contractions that round them


class _Cpu(Target):
    """Walks over edges are compiled together, for all calls of a plan."""

    blocking = keeps = has_all = norms_in_place = True
    rounds = Target.rounds | {"kept"}
    rounds_in_batches = Target.rounds_in_batches | {"results"}
    halves = frozenset(
        {("matmul", "x"), ("contract", "x"), ("matmul_terms", "x"), ("contract_terms", "left"), ("spmm", "x")}
        | {("spmm_self", "x"), ("rows", "x")}
        | {(kernel, role) for kernel in ("spmm", "contract_terms") for role in ("mask", "addend")}
        | _ROUNDED_GRADIENTS
    )

    def launcher(self, call: KernelCall) -> Launcher | None:
        """Of kernels for float32 and float64; plain sums over edges are also there for rows of bfloat16.

        Numbers in half precision come of casts inside user functions: their dtype is that of the program, unlike the
        rows that a plan stores in bfloat16.
        """
        slots = (*call.reads, *call.writes)
        kinds = {slot.value.tensor.dtype for slot in slots if isinstance(slot.value.type, TensorType)} & _HALF
        sums = call.kernel == "spmm" and {slot.role for slot in call.reads} <= {"graph", "x", "weight"}
        return super().launcher(call) if not kinds or (sums and kinds == {torch.bfloat16}) else None

    def prepare(self, groups: Iterable[Group]) -> None:
        """Walks begin to be compiled while the program is worked on."""
        start_edge_kernels(groups)

    def bind(self, calls: Sequence[KernelCall]) -> Bound:
        """A launcher for every call."""
        walks = edge_nests(calls)
        launches = tuple(walks.get(call) or self.launch(call) for call in calls)
        return Bound(launches, frozenset(call.value for call in walks))

    @property
    def writes_walks(self) -> bool:
        """All of a plan at once."""
        return True

    def scratch(self, call: KernelCall, sizes: Sizes) -> int:
        """Sums and extrema over many rows copy part of each row before: of wide ones, and of those that are rounded.

        Those of sparse rows with dropout draw it before, and those by their columns turn the rows of a batch around.
        Gradients of attention keep numbers from walk to walk.
        """
        if call.kernel == "sparse_matmul":
            return _beside_entries(call, sizes)
        kinds = {slot.role: slot.value.type for slot in call.reads}
        if call.kernel == "attention_grad":
            return attention.scratch(call, sizes)
        graph, x = kinds.get("graph"), kinds.get("x")
        reduces = call.kernel in ("spmm", "spmm_self", "spmm_max")
        if not reduces or not isinstance(graph, StructType) or not isinstance(x, TensorType):
            return 0
        columns, row = sizes.rows.get(graph.src, 0), prod(x.dims) * x.dtype.itemsize
        edges = sizes.rows.get(graph.edge, 0)
        if call.get("rows") == "bf16" and rounds_rows(columns, edges, row):
            return columns * panel_row(row // 2)
        copies = wants_panel(columns, edges, row, call.kernel == "spmm_max")
        return columns * panel_row(row) if copies else 0

    def is_built(self, region: Sequence[Value]) -> bool:
        """Activations and their gradients."""
        return is_built(region)

    def makes_half(self, call: KernelCall) -> bool:
        """Products, all of which round their operands on this processor."""
        is_product = call.kernel in ("matmul", "matmul_terms")
        if not is_product or not products.rounds(call) or self.launcher(call) is None:
            return False
        weights = [slot.value.tensor for slot in call.reads if slot.role.startswith("weight")]
        return all(rounds_operands(*weight.dims) for weight in weights)

    def takes_half(self, kernel: str, role: str, call: KernelCall) -> bool:
        """Those of gradients where the contraction rounds them on this processor."""
        taken = super().takes_half(kernel, role, call)
        return taken and ((kernel, role) not in _ROUNDED_GRADIENTS or rounds_contractions(call))

    def buffers(self, call: KernelCall, sizes: Sizes) -> int:
        """Of products."""
        return buffers(call, sizes)


def _beside_entries(call: KernelCall, sizes: Sizes) -> int:
    """What products of sparse rows make of their entries: values after dropout, and the rows turned around."""
    product = next(value for value in call.body if value.op is Op.MATMUL)
    rows, entry = product.inputs[0], product.tensor.dtype.itemsize
    entries = stored_entries(rows, sizes)
    dropped = entry * entries if rows.op is Op.DROPOUT else 0
    return int(dropped + ((entry + _ID) * entries if turns_rows(product) else 0))


def _inverse_degree(call: KernelCall) -> Launch:
    graph, out = call.operand("graph"), call.writes[0].at

    def run(slots: Slots) -> None:
        slots[out] = float_degrees(slots[graph], inverse=True)

    return run


def _class_loss(outputs: Tensor, labels: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    loss, _, gradient = cross_entropy(outputs, labels, rows)
    assert gradient is not None  # it was asked for
    return loss, gradient


def _entry_loss(kind: Kind, outputs: Tensor, labels: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    found = entry_loss(kind, outputs, labels, rows)
    assert found.gradient is not None  # it was asked for
    return found.loss, found.gradient


def _class_score(outputs: Tensor, y: Tensor, rows: Tensor) -> tuple[float, int]:
    loss, correct, _ = cross_entropy(outputs, y, rows, want_grad=False)
    return float(loss), correct


CPU = _Cpu("cpu", device="cpu")
CPU.class_score = _class_score
CPU.losses = {
    "classes": _class_loss,
    "binary": partial(_entry_loss, "binary"),
    "squared": partial(_entry_loss, "squared"),
}
for name, launcher in {
    "rows": products.rows,
    "spmm": products.spmm,
    "spmm_self": products.spmm,
    "spmm_max": products.spmm_max,
    "matmul": products.matmul,
    "contract": products.contract,
    "sparse_matmul": products.sparse_matmul,
    "matmul_terms": products.matmul_terms_of,
    "contract_terms": products.contract_terms_of,
    "dropout_of_rows": products.dropout_of_rows,
    "scale_of_rows": products.scale_of_rows,
    "row_nest": row_nest,
    "inverse_degree": _inverse_degree,
    "einsum": attention.einsum,
}.items():
    CPU.launches(name)(launcher)
for name, launcher in {
    "scale": products.scale,
    "row_scale": products.row_scale,
    "attention": attention.forward,
    "attention_grad": attention.backward,
    "batch_norm": norms.batch_norm,
    "batch_norm_grad": norms.batch_norm_grad,
    "normalise": norms.normalise,
}.items():
    CPU.launches(name, torch.float32)(launcher)
for op, function in SIMPLE.items():
    CPU.launches(op.name.lower())(whole(function))
for op, function in TYPED.items():
    CPU.launches(op.name.lower(), torch.float32)(whole(function, "over" in function.__code__.co_varnames))
