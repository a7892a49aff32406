"""C++ text of loop nests over edges, over ``edge_nest.h`` and ``lanes.h``.

Comes in: :class:`EdgeNest` descriptions of one program. Goes out: one translation unit with an entry point
``gw_nest_<k>`` for each. Steps over the same dimensions share one loop, where their values are registers; what another
loop reads lies in a small array of the edge. Called by ``runtime/edge_kernels.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from graphweft._errors import IRError
from graphweft.codegen.cpp import expression, number_text
from graphweft.codegen.edge_nest import SIZES, Dims, EdgeNest, Sink, Step, work
from graphweft.codegen.edge_schedule import (
    BOOL,
    LOGICAL,
    VIEWS,
    Item,
    base_of,
    domain_of,
    is_logic,
    operands_of,
    outer_rows,
    schedule,
    squeezed,
)
from graphweft.codegen.loops import Operand, Statement

_START = {"max": "-__builtin_inff()", "min": "__builtin_inff()"}
_IN_FLIGHT = 12 << 10  # bytes of edges' rows that are fetched ahead
_PIECE = 1024  # numbers of a long sum that vectors add up one after the other
_LETTER = {"far": "f", "own": "o", "edge": "e", "shared": "c"}


def render_unit(nests: Sequence[EdgeNest]) -> str:
    """The translation unit of several nests."""
    parts = ['#include "graphweft/edge_nest.h"\n']
    parts += [_Kernel(nest, k).text() for k, nest in enumerate(nests)]
    return "\n".join(parts)


@dataclass(frozen=True)
class _View:
    """Where the elements of a value lie: ``base[offset + sum of index * stride]``; ``whole``: padded behind."""

    base: str
    offset: int
    dims: Dims
    strides: tuple[int, ...]
    whole: bool


class _Kernel:
    """The text of one nest."""

    def __init__(self, nest: EdgeNest, number: int) -> None:
        self.nest, self.number = nest, number
        self.flat_sinks: set[int] = set()  # whose row of sums is met by vectors at its own places only
        self.outer = self._outer_totals()
        self.groups = schedule(nest, self._done_apart())
        self.made_in = {item: k for k, group in enumerate(self.groups) for item in group}
        self.stored = self._stored()

    def text(self) -> str:
        """The structure with its functions, and the entry point."""
        body = [line for group in self.groups for line in self._group(group)]
        body += [line for k in self.outer for line in self._wait(k)]
        rows = [k for k, s in enumerate(self.nest.sinks) if s.kind not in ("edge", "total")]
        sinks = self.nest.sinks
        partial = sum(_padded(sinks[k].dims) for k in rows)
        total = sum(prod(s.dims) for s in sinks if s.kind == "total")
        gathered = sum(prod(s.dims) for s in self.nest.sources if s.kind == "far")
        comment = "".join(f"// {line}\n" for line in str(self.nest).splitlines())
        name = f"nest_{self.number}"
        inner = "\n".join(f"      {line}" for line in body)
        return f"""{comment}struct {name} : gw::nest_memory<{self.nest.real}> {{
  static constexpr int64_t width = {max(work(self.nest), 1)}, gathered = {gathered};
  static constexpr int64_t partial = {partial}, total = {total};
  struct state {{
{self._state(rows)}
  }};
  struct pending {{
{self._pending()}
  }};
  GW_INLINE void clear(state& st) const {{
{self._per_row(rows, "clear")}
  }}
  GW_INLINE void edges(state& st, int64_t row, int64_t begin, int64_t end, const gw::nest_edges& list,
                       real* total, pending& outer) const {{
{self._pointers()}
    for (int64_t p = begin; p < end; ++p) {{
{self._edge_pointers()}
{inner}
    }}
  }}
  GW_INLINE void save(const state& st, real* slot) const {{
{self._per_row(rows, "save")}
  }}
  GW_INLINE void merge(state& st, const real* slot) const {{
{self._per_row(rows, "merge")}
  }}
  GW_INLINE void finish(state& st, int64_t row, int64_t degree) const {{
{self._per_row(rows, "finish")}
  }}
  GW_INLINE void add(pending& outer, real* total) const {{
{self._add_pending()}
  }}
  void keep_total(const real* sum) const {{
{self._totals()}
  }}
}};

extern "C" GW_API const gw_nest* gw_{name}() {{ return &gw::nest_of<{name}>; }}
"""

    # -- what lies where

    def _stored(self) -> set[int]:
        """Steps whose values an array holds: those that another loop reads."""
        found: set[int] = set()
        for item, group in self.made_in.items():
            for operand in operands_of(self.nest, item):
                base, _ = base_of(self.nest, operand)
                if base is not None and self.made_in[("step", base)] != group:
                    found.add(base)
        for rows in self.outer.values():
            found |= {base for row in rows if (base := base_of(self.nest, row)[0]) is not None}
        return found

    # -- totals of outer products

    def _outer_totals(self) -> dict[int, tuple[Operand, Operand]]:
        """Wide totals of outer products of two rows of an edge, by sink: the left row, then the right one."""
        totals = ((k, outer_rows(self.nest, sink)) for k, sink in enumerate(self.nest.sinks) if sink.kind == "total")
        return {k: rows for k, rows in totals if rows is not None}

    def _done_apart(self) -> set[Item]:
        """Sinks of outer products, and the products that nothing else reads."""
        apart: set[Item] = {("sink", k) for k in self.outer}
        read = {o for k in range(len(self.nest.steps)) for o in operands_of(self.nest, ("step", k))}
        read |= {sink.operand for k, sink in enumerate(self.nest.sinks) if k not in self.outer}
        products = {self.nest.sinks[k].operand for k in self.outer}
        return apart | {("step", operand.index) for operand in products - read}

    def _wait(self, k: int) -> list[str]:
        """The two rows of an edge, put beside those of the edges before it."""
        lines = []
        for side, row in zip(("left", "right"), self.outer[k], strict=True):
            view = _flat(self._view(row))
            loop = _Loop(view.dims, (), [view.strides])
            store = f"part.store(outer.r{k}.{side}() + {loop.place(_strides(view.dims))}, {loop.load(view)});"
            lines += loop.wrap([store], {})
        return [*lines, f"outer.r{k}.next(total + {self._total_offset(k)});"]

    def _pending(self) -> str:
        sizes = {k: squeezed(self.nest.sinks[k].dims) for k in self.outer}
        return "\n".join(f"    gw::outer_sums<real, {rows}, {columns}> r{k};" for k, (rows, columns) in sizes.items())

    def _add_pending(self) -> str:
        return "\n".join(f"    outer.r{k}.add(total + {self._total_offset(k)});" for k in self.outer)

    # -- places

    def _view(self, operand: Operand) -> _View:
        if operand.kind == "input":
            source = self.nest.sources[operand.index]
            base = f"{_LETTER[source.kind]}{operand.index}"
            return _View(base, 0, source.dims, _strides(source.dims), False)
        step = self.nest.steps[operand.index]
        if step.kind not in VIEWS:
            return _View(f"t{operand.index}", 0, step.dims, _strides(step.dims), True)
        return _seen(step, self._view(step.operands[0]))

    # -- loops

    def _group(self, group: Sequence[Item]) -> list[str]:
        """The loops of steps and sinks over the same dimensions."""
        nest = self.nest
        if group[0][0] == "step" and nest.steps[group[0][1]].kind in ("cat", "unslice"):
            return self._rearranged(group[0][1])
        dims, axes = domain_of(nest, group[0]), ()
        for kind, k in group:
            if kind == "step" and nest.steps[k].kind == "sum":
                axes = nest.steps[k]["axes"]
        reads = {}
        for item in group:
            for operand in operands_of(nest, item):
                if operand.kind != "number" and operand not in reads:
                    reads[operand] = _aligned(self._view(operand), dims)
        loop = _Loop(dims, axes, [view.strides for view in reads.values()])
        body: list[str] = []
        number = self.made_in[group[0]]
        for item in group:
            body += self._item(item, reads, loop, number)
        sums = [k for kind, k in group if kind == "step" and nest.steps[k].kind == "sum"]
        return self._arrays(group) + loop.wrap(body, {k: nest.steps[k].dims for k in sums})

    def _arrays(self, group: Sequence[Item]) -> list[str]:
        made = [k for kind, k in group if kind == "step" and (k in self.stored or self.nest.steps[k].kind == "sum")]
        return [f"alignas(64) real t{k}[{_padded(self.nest.steps[k].dims)}];" for k in made]

    def _item(self, item: Item, reads: dict[Operand, _View], loop: _Loop, group: int) -> list[str]:
        kind, k = item
        values = [self._value(operand, reads, loop, group) for operand in operands_of(self.nest, item)]
        if kind == "sink":
            return self._feed(k, values[0], loop)
        step = self.nest.steps[k]
        if step.kind == "sum":
            value = values[0]
            if loop.sums_inner:
                piece = [f"if (at % {_PIECE} == 0) {{ w{k} += s{k}; s{k} = lanes{{}}; }}"] if loop.is_long else []
                return [*piece, f"s{k} += part.keep({value});"]
            return [f"s{k}[at] += {value};"]
        attrs = dict(step.attrs)
        if step["fn"] in LOGICAL:
            values = [
                v if is_logic(self.nest, o) else f"({v} != lanes{{}})"
                for v, o in zip(values, step.operands, strict=True)
            ]
        text = expression(Statement(step["fn"], step.operands, attrs.get("alpha", 0.0)), values, self.nest.real)
        lines = [f"const auto v{k} = {text};"]
        if k in self.stored:
            value = f"(v{k} ? io::splat(1) : lanes{{}})" if step["fn"] in BOOL else f"v{k}"
            store = "io::store" if loop.ascends else "part.store"
            lines.append(f"{store}(t{k} + {loop.place_in(step.dims)}, {value});")
        return lines

    def _value(self, operand: Operand, reads: dict[Operand, _View], loop: _Loop, group: int) -> str:
        """A vector of what is read: the register of this loop, or a load."""
        if operand.kind == "number":
            return f"io::splat({number_text(operand.number, self.nest.real)})"
        base, _ = base_of(self.nest, operand)
        if base is not None and self.made_in[("step", base)] == group:
            return f"v{base}"
        text = loop.load(reads[operand])
        return f"({text} != lanes{{}})" if is_logic(self.nest, operand) else text

    def _feed(self, k: int, value: str, loop: _Loop) -> list[str]:
        sink = self.nest.sinks[k]
        place = loop.place_in(sink.dims)
        if sink.kind == "edge":
            return [f"part.store(x{k} + {place}, {value});"]
        if sink.kind == "total":
            at = f"total + {self._total_offset(k)} + {place}"
            return [f"part.store({at}, part.load({at}) + {value});"]
        if loop.single:
            self.flat_sinks.add(k)
            return [f"st.r{k}[at] = {_joined(sink, f'st.r{k}[at]', value)};"]
        here = f"st.r{k} + {place}"
        return [f"part.store({here}, {_joined(sink, f'part.load({here})', value)});"]

    def _rearranged(self, k: int) -> list[str]:
        """Copies of the parts of a joined or spread value."""
        step = self.nest.steps[k]
        lines = [f"alignas(64) real t{k}[{_padded(step.dims)}];"]
        strides = list(_strides(step.dims))
        axis, offset = step["axis"], 0
        if step.kind == "unslice":
            lines.append(f"gw::each_lanes<real, {prod(step.dims)}>([&](auto at, auto) GW_INLINE_LAMBDA {{ "
                         f"io::store(t{k} + at, lanes{{}}); }});")  # fmt: skip
            offset = step["start"] * strides[axis]
            strides[axis] *= step["step"]
        for operand in step.operands:
            view = self._view(operand)
            loop = _Loop(view.dims, (), [view.strides, tuple(strides)])
            target = loop.place(_aligned(_View("", 0, view.dims, tuple(strides), True), view.dims).strides)
            inner = loop.inner_stride(tuple(strides))
            store = "part.store" if inner == 1 else f"gw::store_strided<{inner}>"
            first = f"t{k} + {offset} + {target}"
            value = loop.load(_aligned(view, view.dims))
            call = f"{store}({first}, {value});" if inner == 1 else f"{store}({first}, part, {value});"
            lines += loop.wrap([call], {})
            if step.kind == "cat":
                offset += view.dims[axis] * strides[axis]
        return lines

    # -- rows and pointers

    def _state(self, rows: Sequence[int]) -> str:
        lines = []
        for k in rows:
            dims = self.nest.sinks[k].dims
            flat = f"gw::lane_row<real, {prod(dims)}> r{k};"
            lines.append(f"    {flat if k in self.flat_sinks else f'alignas(64) real r{k}[{_padded(dims)}];'}")
        return "\n".join(lines)

    def _per_row(self, rows: Sequence[int], what: str) -> str:
        lines, offset = [], 0
        for k in rows:
            sink = self.nest.sinks[k]
            flat = k in self.flat_sinks
            mine = f"st.r{k}[at]" if flat else f"io::load(st.r{k} + at)"
            put = f"st.r{k}[at] = {{}};" if flat else f"io::store(st.r{k} + at, {{}});"
            if what == "clear":
                text = put.format(f"io::splat({_START[sink.kind]})" if sink.kind in _START else "lanes{}")
            elif what == "save":
                text = f"io::store(slot + {offset} + at, {mine});"
            elif what == "merge":
                text = put.format(_joined(sink, mine, f"io::load(slot + {offset} + at)"))
            else:
                value = f"{mine} / real(degree)" if sink.kind == "mean" else mine
                if sink.kind != "sum":
                    value = f"degree > 0 ? {value} : lanes{{}}"
                text = f"part.store(write({k}) + row * {prod(sink.dims)} + at, {value});"
            lines.append(
                f"    gw::each_lanes<real, {prod(sink.dims)}>([&](auto at, auto part) GW_INLINE_LAMBDA {{ {text} }});"
            )
            offset += _padded(sink.dims)
        return "\n".join(lines)

    def _pointers(self) -> str:
        lines = []
        for k, source in enumerate(self.nest.sources):
            if source.kind == "own":
                lines.append(f"    const real* __restrict o{k} = read({k}) + row * {prod(source.dims)};")
            elif source.kind == "shared":
                lines.append(f"    const real* __restrict c{k} = read({k});")
            else:
                lines.append(f"    const real* __restrict b{k} = read({k});")
        return "\n".join(lines)

    def _edge_pointers(self) -> str:
        lines, ahead, own = [], [], list[tuple[str, int]]()
        for k, source in enumerate(self.nest.sources):
            if source.kind == "far":
                lines.append(f"const real* __restrict f{k} = b{k} + col * {prod(source.dims)};")
                bytes_ = min(SIZES[self.nest.real] * prod(source.dims), 2048)
                ahead.append(f"gw::fetch<2>(b{k} + list.columns[p + list.far] * {prod(source.dims)}, {bytes_});")
            elif source.kind == "edge":
                lines.append(f"const real* __restrict e{k} = b{k} + id * {prod(source.dims)};")
                own.append((f"b{k}", prod(source.dims)))
        for k, sink in enumerate(self.nest.sinks):
            if sink.kind == "edge":
                lines.append(f"real* x{k} = write({k}) + id * {prod(sink.dims)};")
                own.append((f"write({k})", prod(sink.dims)))
        if ahead:
            lines.insert(0, f"if (list.far > 0 && p + list.far < list.last) {{ {' '.join(ahead)} }}")
            lines.insert(0, "const int64_t col = list.columns[p];")
        if own:  # rows of edges lie in the order of ids; what does not come one after the other is fetched
            lengths = [min(SIZES[self.nest.real] * width, 2048) for _, width in own]
            far = min(max(_IN_FLIGHT // sum(lengths), 8), 64)
            fetches = [f"gw::fetch<2>({rows} + next * {n}, {b});" for (rows, n), b in zip(own, lengths, strict=True)]
            text = f"if (next != id + {far}) {{ {' '.join(fetches)} }}"
            lines.insert(0, f"if (p + {far} < list.last) {{ const int64_t next = list.ids[p + {far}]; {text} }}")
        if any(" id *" in line for line in lines):
            lines.insert(0, "const int64_t id = list.ids[p];")
        return "\n".join(f"      {line}" for line in lines)

    def _total_offset(self, k: int) -> int:
        return sum(prod(s.dims) for s in self.nest.sinks[:k] if s.kind == "total")

    def _totals(self) -> str:
        lines = []
        for k, sink in enumerate(self.nest.sinks):
            if sink.kind == "total":
                start, count = self._total_offset(k), prod(sink.dims)
                lines.append(f"    for (int at = 0; at < {count}; ++at) write({k})[at] = sum[{start} + at];")
        return "\n".join(lines)


class _Loop:
    """Loops over dimensions, neighbours joined where every operand allows it; the last one runs over vectors.

    Args:
        dims: The dimensions.
        axes: Those that are summed over.
        strides: Of everything that is read, in elements, 0 where it repeats.
    """

    def __init__(self, dims: Dims, axes: Sequence[int], strides: Sequence[tuple[int, ...]]) -> None:
        self.given = dims
        summed = [axis in axes for axis in range(len(dims))]
        full = [*strides, _strides(dims)]
        groups: list[list[int]] = []
        for axis, size in enumerate(dims):
            if size == 1:
                continue
            before = groups[-1][-1] if groups else None
            joins = before is not None and summed[axis] == summed[before] and all(
                s[before] == s[axis] * size for s in full
            )  # fmt: skip
            groups[-1].append(axis) if joins else groups.append([axis])
        self.axes = groups or [[]]
        self.sizes = [prod(dims[axis] for axis in group) for group in self.axes]
        self.summed = [bool(group) and summed[group[0]] for group in self.axes]
        if not groups:
            self.summed = [bool(axes)]

    @property
    def sums_inner(self) -> bool:
        """Whether the vectors run along a dimension that is summed over."""
        return self.summed[-1]

    @property
    def single(self) -> bool:
        """Whether one loop over vectors is all."""
        return len(self.axes) == 1

    @property
    def is_long(self) -> bool:
        """Whether so many numbers are summed that sums of pieces are added up, for fewer roundings one on another."""
        return self.sums_inner and self.sizes[-1] > 4 * _PIECE

    @property
    def ascends(self) -> bool:
        """Whether elements are met in the order in which they lie.

        Only then may a vector that is not full be stored whole: the elements behind it are written later.
        """
        outer = self.summed[:-1]
        return outer == sorted(outer)

    def inner_stride(self, strides: tuple[int, ...]) -> int:
        """Elements between neighbours of a vector."""
        return strides[self.axes[-1][-1]] if self.axes[-1] else 1

    def place(self, strides: tuple[int, ...]) -> str:
        """The first element of the vector at hand, as an offset."""
        terms = [f"i{k} * {strides[group[-1]]}" for k, group in enumerate(self.axes[:-1]) if strides[group[-1]] != 0]
        inner = self.inner_stride(strides)
        if inner:
            terms.append("at" if inner == 1 else f"at * {inner}")
        return " + ".join(terms) or "0"

    def place_in(self, dims: Dims) -> str:
        """The vector at hand in an array of ``dims``. Raises: IRError unless the loops meet all its elements once."""
        if dims != self.given:
            raise IRError(f"walk: expected loops over {list(dims)}, got {list(self.given)}")
        return self.place(_strides(dims))

    def load(self, view: _View) -> str:
        """The vector at hand of what is read."""
        at = f"{view.base} + {view.offset} + {self.place(view.strides)}"
        inner = self.inner_stride(view.strides)
        if inner == 0:
            return f"io::splat(*({at}))"
        if inner != 1:
            return f"gw::load_strided<{inner}>({at}, part)"
        return f"part.near({at})" if view.whole else f"part.load({at})"

    def wrap(self, body: Sequence[str], sums: Mapping[int, Dims]) -> list[str]:
        """The loops around ``body``; ``sums`` are begun before the summed ones and stored after them.

        Raises: IRError unless the loops that are not summed over meet all elements of the dimensions of a sum.
        """
        inner = self.sizes[-1]
        outer = list(range(len(self.axes) - 1))
        kept = [k for k in outer if not self.summed[k]]
        rest = [k for k in outer if self.summed[k]]
        lines = [_head(k, self.sizes[k]) for k in kept]
        for k in sums:
            names = f"s{k}{{}}, w{k}{{}}" if self.is_long else f"s{k}{{}}"
            lines.append(f"lanes {names};" if self.sums_inner else f"gw::lane_row<real, {inner}> s{k}{{}};")
        lines += [_head(k, self.sizes[k]) for k in rest]
        lines.append(f"gw::each_lanes<real, {inner}>([&](auto at, auto part) GW_INLINE_LAMBDA {{")
        lines += [f"  {line}" for line in body]
        lines.append("});")
        lines += ["}"] * len(rest)
        written = tuple(self.sizes[k] for k in kept) + (() if self.sums_inner else (inner,))
        strides = _strides(written)
        for dims in sums.values():
            if prod(written) != prod(dims):
                raise IRError(f"walk: expected loops over {list(dims)}, got {list(written)}")
        place = " + ".join(f"i{k} * {stride}" for k, stride in zip(kept, strides, strict=False)) or "0"
        for k in sums:
            if self.sums_inner:
                every = f"w{k} + s{k}" if self.is_long else f"s{k}"
                lines.append(f"t{k}[{place}] = gw::sum_lanes({every});")
            else:
                lines.append(f"gw::each_lanes<real, {inner}>([&](auto at, auto) GW_INLINE_LAMBDA {{ "
                             f"io::store(t{k} + {place} + at, s{k}[at]); }});")  # fmt: skip
        return lines + ["}"] * len(kept)


def _head(k: int, size: int) -> str:
    return f"for (int i{k} = 0; i{k} < {size}; ++i{k}) {{"


def _joined(sink: Sink, a: str, b: str) -> str:
    if sink.kind in _START:
        return f"gw::lanes_{sink.kind}imum({a}, {b})"
    return f"{a} + {b}"


def _strides(dims: Dims) -> tuple[int, ...]:
    """Of elements one after the other."""
    return tuple(prod(dims[axis + 1 :]) for axis in range(len(dims)))


def _padded(dims: Dims) -> int:
    """Numbers that hold the elements and the vector that begins at the last one."""
    return (prod(dims) + 15) // 16 * 16 + 16


def _aligned(view: _View, dims: Dims) -> _View:
    """The view with a stride for every dimension of ``dims``, 0 where it is repeated.

    Raises: IRError where it has elements that ``dims`` do not meet.
    """
    missing = len(dims) - len(view.dims)
    if any(own not in (1, size) for own, size in zip(view.dims, dims[missing:], strict=True)):
        raise IRError(f"walk: expected {list(view.dims)} to repeat to {list(dims)}")
    own = [0 if size == 1 else stride for size, stride in zip(view.dims, view.strides, strict=True)]
    return _View(view.base, view.offset, dims, (*([0] * missing), *own), view.whole)


def _seen(step: Step, x: _View) -> _View:
    """The view that a rearrangement gives."""
    if step.kind == "permute":
        order = step["order"]
        return _View(x.base, x.offset, step.dims, tuple(x.strides[axis] for axis in order), x.whole)
    if step.kind == "slice":
        axis, strides = step["axis"], list(x.strides)
        offset = x.offset + step["start"] * strides[axis]
        strides[axis] *= step["step"]
        return _View(x.base, offset, step.dims, tuple(strides), x.whole)
    if step.kind == "expand":
        return _View(x.base, x.offset, step.dims, _aligned(x, step.dims).strides, x.whole)
    if squeezed(step.dims) == squeezed(x.dims):
        own = iter([stride for size, stride in zip(x.dims, x.strides, strict=True) if size != 1])
        return _View(x.base, x.offset, step.dims, tuple(0 if n == 1 else next(own) for n in step.dims), x.whole)
    return _View(x.base, x.offset, step.dims, _strides(step.dims), x.whole)


def _flat(view: _View) -> _View:
    """The view of a row without its dimensions of one element."""
    kept = [axis for axis, size in enumerate(view.dims) if size != 1]
    dims, strides = (tuple(x[axis] for axis in kept) for x in (view.dims, view.strides))
    return _View(view.base, view.offset, dims, strides, view.whole)
