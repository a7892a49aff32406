// Panels: a wide operand of a reduction over edges is copied, some columns at a time, so that the random reads of one
// pass fall into N * 128 bytes that the shared cache can hold, and each of them into whole cache lines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "graphweft/element.h"
#include "graphweft/parallel.h"
#include "graphweft/reduce.h"

namespace gw {

// Columns of a panel: two cache lines of a row; the last one takes up to a line more, as a pass over all edges for the
// few columns of a remainder would cost as much as one for a whole panel.
template <class P>
inline constexpr int panel_width = 128 / int(sizeof(typename P::stored));
template <class P>
inline constexpr int widest_panel = panel_width<P> / 2 * 3;

template <class P>
int64_t next_panel(int64_t rest) {
  return rest <= widest_panel<P> ? rest : panel_width<P>;
}

// The columns [begin, end) of x, times `scale` where there is one, in the panel; returns its elements from row to row.
template <class E, class P>
int64_t fill_panel(const typename E::stored* x, int64_t ldx, int64_t rows, const typename E::real* scale, int64_t begin,
                   int64_t end, typename P::stored* panel) {
  using held = typename P::stored;
  constexpr int64_t line = 64 / int64_t(sizeof(held));
  const int64_t pitch = (end - begin + line - 1) / line * line;
  parallel_ranges(rows, 4096, [&](int64_t row, int64_t last) {
    for (; row < last; ++row) {
      for_each_tile<4, E::lanes>(begin, end, [&](auto v, auto full, int64_t col, int tail) {
        constexpr int vectors = decltype(v)::value;
        constexpr bool whole = decltype(full)::value;
        typename E::vec t[vectors];
        tile_io<E, vectors, whole>::load(x + row * ldx + col, tail, t);
        if (scale)
          for (auto& part : t) part *= scale[row];
        if constexpr (std::is_same_v<E, P>)
          tile_io<E, vectors, whole>::store(panel + row * pitch + (col - begin), tail, t);
        else
          P::store(panel + row * pitch + (col - begin), t);
      });
    }
  });
  return pitch;
}

}  // namespace gw
