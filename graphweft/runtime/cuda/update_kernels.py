"""Steps of Adam, AdamW and SGD in Triton: one launch for all parameters.

Comes in: a table of addresses (``updates.py``). Goes out: parameters and state in their memory. A program computes a
part of one parameter. Arithmetic and its order are those of the native core (``csrc/include/graphweft/optim.h``).
"""
# Triton has types of its own, and Python's are not checked here.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

from graphweft.runtime.cuda.jit import device, kernel

tl: Any = None  # triton.language, once a kernel is asked for


@device
def array_at(words, ALIGNED: tl.constexpr):
    """The float32 array whose address a word holds."""
    array = tl.load(words).to(tl.pointer_type(tl.float32))
    return tl.multiple_of(array, 16) if ALIGNED else array


@device
def real_at(words):
    """The float64 number whose bits a word holds."""
    return tl.load(words).to(tl.float64, bitcast=True)


@device
def whole_power(base, count):
    """``base ** count`` in float64, of a whole number."""
    result = base * 0.0 + 1.0
    while count > 0:
        result = tl.where((count & 1) == 1, result * base, result)
        base = base * base
        count = count >> 1
    return result


@kernel
def adam_step(words, scale, ALIGNED: tl.constexpr, HAS_SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """A step of Adam; with decoupled decay, of AdamW.

    Every program counts the steps itself, as a number that one of them advances could be read by others too late.
    """
    program = tl.program_id(0)
    row = words + tl.load(words + 2 * program)
    part = tl.load(words + 2 * program + 1)
    param, gradient = array_at(row, ALIGNED), array_at(row + 1, ALIGNED)
    mean, square = array_at(row + 6, ALIGNED), array_at(row + 7, ALIGNED)
    counts = array_at(row + 9, False) + part
    knobs = words + tl.load(row + 4)
    rate = tl.load(array_at(row + 3, False)).to(tl.float64)
    beta1, beta2, decay = real_at(knobs), real_at(knobs + 1), real_at(knobs + 3)
    is_decoupled = tl.load(knobs + 4) != 0
    count = tl.load(counts) + 1.0
    taken = count.to(tl.int32)
    pace = (rate / (1.0 - whole_power(beta1, taken))).to(tl.float32)
    correction = tl.sqrt(1.0 - whole_power(beta2, taken)).to(tl.float32)
    shrink = tl.where(is_decoupled, 1.0 - rate * decay, 1.0).to(tl.float32)
    added = tl.where(is_decoupled, 0.0, decay).to(tl.float32)
    factor = tl.where(tl.load(knobs + 5) != 0, -1.0, 1.0)
    if HAS_SCALE:
        factor = factor * tl.load(scale)
    at = part * BLOCK + tl.arange(0, BLOCK)
    here = at < tl.load(row + 2)
    w = tl.load(param + at, mask=here, other=0.0) * shrink
    g = tl.load(gradient + at, mask=here, other=0.0) * factor + added * w
    m = tl.load(mean + at, mask=here, other=0.0)
    m = m + (1.0 - beta1).to(tl.float32) * (g - m)
    v = tl.load(square + at, mask=here, other=0.0)
    v = v * beta2.to(tl.float32) + (1.0 - beta2).to(tl.float32) * g * g
    tl.store(mean + at, m, mask=here)
    tl.store(square + at, v, mask=here)
    low = tl.sqrt_rn(v) / correction + real_at(knobs + 2).to(tl.float32)
    tl.store(param + at, w - pace * tl.div_rn(m, low), mask=here)
    tl.store(counts, count)
    tl.store(array_at(row + 8, False), count, mask=part == 0)


@kernel
def sgd_step(words, scale, ALIGNED: tl.constexpr, HAS_SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """A step of SGD; with momentum where a parameter has a buffer."""
    program = tl.program_id(0)
    row = words + tl.load(words + 2 * program)
    part = tl.load(words + 2 * program + 1)
    param, gradient, buffer = array_at(row, ALIGNED), array_at(row + 1, ALIGNED), array_at(row + 6, ALIGNED)
    knobs = words + tl.load(row + 4)
    rate = tl.load(array_at(row + 3, False))
    momentum, fresh = real_at(knobs).to(tl.float32), (1.0 - real_at(knobs + 1)).to(tl.float32)
    decay, is_nesterov = real_at(knobs + 2).to(tl.float32), tl.load(knobs + 3) != 0
    factor = tl.where(tl.load(knobs + 4) != 0, -1.0, 1.0)
    if HAS_SCALE:
        factor = factor * tl.load(scale)
    is_first, has_buffer = tl.load(row + 5) != 0, tl.load(row + 6) != 0
    size = tl.load(row + 2)
    kept = tl.where(has_buffer, size, 0)
    at = part * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    w = tl.load(param + at, mask=here, other=0.0)
    g = tl.load(gradient + at, mask=here, other=0.0) * factor + decay * w
    b = tl.load(buffer + at, mask=at < tl.where(is_first, 0, kept), other=0.0)
    b = tl.where(is_first, g, b * momentum + fresh * g)
    tl.store(buffer + at, b, mask=at < kept)
    way = tl.where(is_nesterov, g + momentum * b, b)
    tl.store(param + at, w - rate * tl.where(has_buffer, way, g), mask=here)
