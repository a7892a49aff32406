"""The text of ``elements.cu``: functions of elements as kernels of a device.

Comes in: the :class:`Steps` of a program. Goes out: files by their path. Called by ``kits.py``.
"""

from __future__ import annotations

from graphweft._errors import ConfigError
from graphweft.codegen.cpp import lines as lines_of
from graphweft.synth.layout import function, indented
from graphweft.synth.steps import Steps

# fmt: off
_KNOWN = frozenset((
    "neg", "reciprocal", "square", "abs", "relu", "leaky_relu", "elu", "maximum", "minimum", "exp", "expm1",
    "log", "log1p", "sigmoid", "tanh", "sqrt",
    "add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "copy", "where",
))
# fmt: on
_FILE = "support/elements.cu"


def device_elements(steps: Steps) -> dict[str, str]:
    """``elements.cu``, where the program has functions of elements. Raises: ConfigError for one without a text."""
    if not steps.nests:
        return {}
    parts = ['#include "elements.h"\n\n#include "device.h"\n\nnamespace program {\n']
    for name, nest in steps.nests.items():
        for statement in nest.statements:
            if statement.fn not in _KNOWN:
                raise ConfigError(f"model: expected functions that a device has, got {statement.fn}: it comes later")
        given = [f"x{k}" for k in range(nest.inputs)]
        pointers = "".join(f"const float* {x}, " for x in given)
        body = ["const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;", "if (at >= count) return;"]
        body += [line.replace("gw::lanes_", "device::") for line in lines_of(nest, "x{}[at]", "{}")]
        body.append(f"out[at] = t{len(nest.statements) - 1};")
        kernel = f"run_{name}"
        parts += ["namespace {\n", *(f"// {line}" for line in str(nest).splitlines())]
        parts += [f"__global__ void {kernel}(int64_t count, {pointers}float* out) {{", *indented(body), "}\n"]
        parts.append("}  // namespace\n")
        launched = [f"const float* const {x} = in[{k}];" for k, x in enumerate(given)]
        arguments = ", ".join(["count", *given, "out"])
        launched.append(f"LAUNCH({kernel}, blocks_for(count), wide, {arguments});")
        parts.append(function(f"void {name}(int64_t count, const float* const* in, float* out)", launched))
    return {_FILE: "\n".join([*parts, "}  // namespace program\n"])}


__all__ = ["device_elements"]
