"""What the package relies on of torch's private parts; and that they are used in two modules only."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path

import pytest
import sympy
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook

import graphweft
from graphweft import _torch_private as private
from graphweft import _torch_recording as recording
from graphweft._budget import own_bytes
from graphweft._memory import trim_heap

aten = torch.ops.aten
ROOT = Path(graphweft.__file__).parent
ALLOWED = {"_torch_private.py", "_torch_recording.py"}


def private_uses(text: str) -> list[str]:
    """Private names of torch in a module's text, and its experimental modules."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            parts = _dotted(node)
            if parts[0] in ("torch", "Tensor") and any(map(_is_private, parts)):
                found.append(".".join(parts))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for name in node.names:
                whole = f"{module}.{name.name}".lstrip(".")
                parts = whole.split(".")
                if parts[0] == "torch" and any(_is_private(part) or part == "experimental" for part in parts):
                    found.append(whole)
    return found


def _dotted(node: ast.expr) -> list[str]:
    """The names of ``a.b.c``; of another expression, an empty one first."""
    if isinstance(node, ast.Attribute):
        return [*_dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_uses_are_found() -> None:
    assert private_uses("import torch\ntorch._C.f()") == ["torch._C.f", "torch._C"]
    assert private_uses("from torch.utils import _pytree as p") == ["torch.utils._pytree"]
    assert private_uses("import torch.fx.experimental.proxy_tensor") == ["torch.fx.experimental.proxy_tensor"]
    assert private_uses("from torch import Tensor\ntorch.Tensor.__len__\ntorch.stack(self._x).sum()") == []


def test_other_modules_use_public_torch() -> None:
    paths = [path for path in ROOT.rglob("*.py") if path.name not in ALLOWED]
    found = {path: uses for path in paths if (uses := private_uses(path.read_text()))}
    assert len(paths) > 100
    assert found == {}


def test_every_name_is_there() -> None:
    for module in (private, recording):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_transforms_are_seen() -> None:
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append(private.transforms_are_on())
        return x.sum()

    torch.func.grad(f)(torch.ones(2))
    assert seen == [True]
    assert not private.transforms_are_on()


def test_plain_tensors_are_made_inside_transforms_and_under_default_devices() -> None:
    made = []

    def f(x: Tensor) -> Tensor:
        made.append(private.plainly(torch.zeros)(2, 3))
        return x.sum()

    torch.func.grad(f)(torch.ones(2))
    torch.func.vmap(f)(torch.ones(2, 2))
    with torch.device("meta"):
        f(torch.ones(2))
    assert all(type(tensor) is Tensor and tensor.data_ptr() and tensor.device.type == "cpu" for tensor in made)
    assert not any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in made)


def test_default_devices_are_seen_and_set_aside() -> None:
    assert not private.default_device_is_elsewhere()
    with torch.device("cpu"):
        assert not private.default_device_is_elsewhere()
    with torch.device("meta"):
        assert private.default_device_is_elsewhere()
        with private.on_host():
            assert torch.ones(1).device.type == "cpu" and not private.default_device_is_elsewhere()
        assert private.hosted(torch.ones)(1).device.type == "cpu" and torch.ones(1).device.type == "meta"


def test_tensors_can_be_made_outside_of_transforms() -> None:
    made = []

    def f(x: Tensor) -> Tensor:
        with private.without_transforms():
            made.append(torch.zeros(2))
        return x.sum()

    torch.func.grad(f)(torch.ones(2))
    assert not private.is_wrapped(made[0]) and made[0].data_ptr()


def test_nothing_is_traced_by_default() -> None:
    assert private.eval_frame_callback() is None


def test_forward_ad_is_seen() -> None:
    assert not private.forward_ad_is_on()
    with forward_ad.dual_level():
        assert private.forward_ad_is_on()


def test_hooks_and_profilers_of_steps_are_seen() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    assert not private.step_is_watched(optimizer)
    for made in (optimizer.register_step_pre_hook, register_optimizer_step_post_hook):
        handle = made(lambda *_: None)
        assert private.step_is_watched(optimizer)
        handle.remove()
    with torch.autograd.profiler.profile():
        assert private.step_is_watched(optimizer)


def test_hooks_on_saved_tensors_are_seen() -> None:
    assert not private.saved_tensor_hooks_are_on()
    with saved_tensors_hooks(lambda x: x, lambda x: x):
        assert private.saved_tensor_hooks_are_on()


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch has no MKL")
def test_what_products_keep_is_given_back() -> None:
    """A product of float64 leaves megabytes behind that trimming the heap does not find."""
    private.free_product_buffers()
    x = torch.ones(700, 700, dtype=torch.float64)
    trim_heap()
    before = own_bytes()
    assert float((x @ x)[0, 0]) == 700
    trim_heap()
    kept = own_bytes() - before
    private.free_product_buffers()
    trim_heap()
    assert kept > 1 << 20
    assert own_bytes() - before < kept / 2
    assert float((x @ x)[0, 0]) == 700  # the next one takes them again


def test_many_tensors_in_one_are_seen() -> None:
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            seen.append(private.is_wrapped(gradient))
            return 2 * gradient

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(Twice.apply(x), x, torch.eye(3), is_grads_batched=True)
    torch.autograd.grad(Twice.apply(x), x, torch.ones(3))
    assert seen == [True, False]


def test_the_factors_of_a_product_are_found() -> None:
    x, w, bias = torch.randn(5, 3), torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    inner = x.requires_grad_() * 2
    none = lambda node: None  # noqa: E731
    forms = {
        "product": (x @ w, x, None),
        "of rows inside the graph": (inner @ w, inner, None),
        "of rows without gradients": (x.detach() @ w, x, None),
        "seen in another shape": ((x @ w).view(5, 2, 2), x, None),
        "with a bias": (torch.addmm(bias, x, w), x, bias),
        "by a weight that is transposed": (
            torch.nn.functional.linear(x, w.t().detach().clone().requires_grad_()),
            x,
            None,
        ),
    }
    for name, (z, rows, added) in forms.items():
        found = private.multiplied(z, none)
        assert found is not None, name
        assert torch.equal(found.rows, rows), name
        assert found.bias is added, name
        made = found.rows @ found.weight + (0 if found.bias is None else found.bias)
        torch.testing.assert_close(made.view(z.shape), z, msg=name)
        assert found.weight.requires_grad, name
    written = x @ w
    with torch.no_grad():
        written.mul_(2)
    others = (
        x @ w + 1,
        (x @ w).view(5, 2, 2).view(5, 4),
        written,
        x.detach() @ w.detach(),
        torch.addmm(bias, x, w, alpha=2),
    )
    assert [private.multiplied(z, none) for z in others] == [None] * 5


def test_gradients_inside_a_graph_that_somebody_wants_are_seen() -> None:
    x = torch.ones(2, requires_grad=True)
    free, hooked, kept = x * 2, x * 2, x * 2
    hooked.register_hook(lambda g: None)
    kept.retain_grad()
    assert [private.is_watched_tensor(t) for t in (free, hooked, kept)] == [False, True, True]


def test_backward_passes_to_all_leaves_are_told_from_others() -> None:
    seen, leaf = [], torch.zeros(0, requires_grad=True)

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, leaf, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append(private.is_followed_everywhere(leaf))
            return None, 2 * gradient

    x = torch.ones(2, requires_grad=True)
    Asks.apply(leaf, x).sum().backward()
    torch.autograd.grad(Asks.apply(leaf, x).sum(), [x])
    Asks.apply(leaf, x).sum().backward(inputs=[x])
    assert seen == [True, False, False]
    assert leaf.grad is None


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise ValueError("asked")


def test_functions_of_tensors_are_left_out() -> None:
    x = torch.ones(2).as_subclass(Loud)
    with pytest.raises(ValueError, match="asked"):
        torch.sin(x)
    for context in (private.without_subclasses, private.without_functions):
        with context():
            torch.sin(x)


def test_modes_over_functions_are_left_out() -> None:
    class Refuses(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise ValueError("asked")

    with Refuses(), private.without_functions():
        torch.sin(torch.ones(2))


def test_dispatch_modes_see_operations_and_are_left_out() -> None:
    seen = []

    class Watch(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.sin(torch.ones(2))
        before = len(seen)
        with private.without_modes():
            torch.cos(torch.ones(2))
    assert aten.sin.default in seen
    assert len(seen) == before


def test_trees_are_taken_apart_and_put_together() -> None:
    leaves, spec = private.pytree.tree_flatten({"a": [1, (2,)], "b": 3})
    assert leaves == [1, 2, 3]
    assert private.pytree.tree_unflatten([4, 5, 6], spec) == {"a": [4, (5,)], "b": 6}
    assert private.pytree.tree_leaves((1, [2])) == [1, 2]
    assert private.pytree.tree_map_only(int, str, [1, "x"]) == ["1", "x"]


def test_arguments_of_to() -> None:
    assert private.parse_to(torch.float64) == (None, torch.float64)
    assert private.parse_to("cpu", torch.float16) == (torch.device("cpu"), torch.float16)
    assert private.parse_to(torch.ones(1, dtype=torch.float64)) == (torch.device("cpu"), torch.float64)


def test_tensors_without_memory() -> None:
    class Empty(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise ValueError("asked")

    made = private.wrapper_subclass(Empty, (3, 2), dtype=torch.float64)
    assert (type(made), made.shape, made.dtype) == (Empty, (3, 2), torch.float64)
    with pytest.raises(ValueError, match="asked"):
        made + 1


def test_foreach_lerp() -> None:
    moved = [torch.zeros(2), torch.ones(1)]
    private.foreach_lerp(moved, [torch.full((2,), 4.0), torch.zeros(1)], 0.25)
    assert [tensor.tolist() for tensor in moved] == [[1.0, 1.0], [0.75]]


def test_stored_entries() -> None:
    assert private.stored_entries(torch.eye(3).to_sparse()) == 3


def test_native_functions_say_where_they_live() -> None:
    assert private.NATIVE_FUNCTIONS.gelu is torch.nn.functional.gelu
    assert private.NATIVE_FUNCTIONS.gelu.__module__ == "torch._C._nn"


def test_stand_ins_have_shapes_and_no_numbers() -> None:
    with recording.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = mode.from_tensor(torch.ones(4, 3))
        y = torch.relu(x @ torch.ones(3, 2))
    assert isinstance(y, recording.FakeTensor)
    assert y.shape == (4, 2)
    with mode, pytest.raises(RuntimeError) as failure:
        torch.nonzero(x)
    assert recording.is_of_stand_ins(failure.value)
    assert not recording.is_of_stand_ins(RuntimeError())


def test_functions_are_recorded_over_symbolic_sizes() -> None:
    def f(x: Tensor) -> Tensor:
        assert recording.get_proxy_mode() is not None
        return (x + 1).mul_(x.shape[0])

    table = {aten.mse_loss.default: recording.decomposition_table[aten.mse_loss.default]}
    graph = recording.make_fx(torch.func.functionalize(f), table, tracing_mode="symbolic")(torch.ones(5, 2))
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert aten.add.Tensor in targets
    assert aten.mul.Tensor in targets
    assert graph(torch.ones(7, 2)).tolist() == [[14.0, 14.0]] * 7
    assert recording.get_proxy_mode() is None


def test_symbolic_numbers() -> None:
    sizes = recording.ShapeEnv()

    class Where(recording.Source):
        @property
        def name(self) -> str:
            return "n"

    size = sizes.create_symbol(9, Where(), dynamic_dim=recording.DimDynamic.DYNAMIC)
    number = sizes.create_symintnode(size, hint=9)
    assert isinstance(recording.SYMBOLIC["sqrt"](number), torch.SymFloat)
    for name, function in recording.SYMBOLIC.items():
        assert float(function(number)) == pytest.approx(getattr(math, name)(9))
    expression = recording.SYMBOLIC["log2"](number).node.expr
    found = recording.sympy_interp(recording.PythonReferenceAnalysis, {size: 8.0}, expression)
    assert float(found) == pytest.approx(3.0)
    assert isinstance(expression, sympy.Basic)


def test_custom_functions_are_seen_when_they_are_applied() -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

    seen = []

    def look(frame, event, called):
        found = event == "call" and recording.applies_function(frame.f_code)
        seen.append(found or (event == "c_call" and recording.applies_function(called)))

    def run(function):
        seen.clear()
        sys.setprofile(look)
        try:
            function(torch.ones(2))
        finally:
            sys.setprofile(None)
        return any(seen)

    assert run(Same.apply)
    assert not run(torch.sin)


def test_a_scheduler_sees_that_a_copy_of_its_optimiser_stepped() -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    steps = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    private.mark_stepped(optimizer)
    steps.step()  # a warning otherwise, which is an error here
    assert optimizer.param_groups[0]["lr"] == 0.5
