// Sums of products whose rows are much shorter than those of the result: what is kept for a pair is its row, which is
// multiplied where a row of the result adds it up. A few vectors of a matrix in the cache cost less than a long row
// that is written to memory and read again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "graphweft/panels.h"
#include "graphweft/parallel.h"
#include "graphweft/typed_pairs.h"
#include "graphweft/typed_weights.h"

namespace gw {

struct narrow_rows {
  static bool fits(const gw_typed_weight& w) { return w.heads == 1 && w.in <= 8 && w.out >= 16; }
  // Numbers from one pair's row to the next: behind the row stands its type.
  static int64_t stride(int64_t in) { return in < 8 ? 8 : 16; }

  template <class I>
  static void fill(const gw_typed_pairs& pairs, bool turned, const typed_rows& rows, float* t) {
    const pair_view<I> view(pairs);
    const int64_t step = stride(rows.width);
    parallel_chunks(pairs.rows.num_chunks, [&](int64_t c) {
      const int64_t begin = pairs.rows.chunk_begin[c], end = pairs.rows.chunk_begin[c + 1];
      const auto type = int32_t(pairs.rows.chunk_type[c]);
      const float_buffer x = make_buffer((end - begin) * rows.width);
      view.rows(begin, end, (pairs.on_dst[type] != 0) == turned, rows, x.get());
      for (int64_t p = begin; p < end; ++p) {
        std::copy_n(x.get() + (p - begin) * rows.width, rows.width, t + p * step);
        std::memcpy(t + p * step + rows.width, &type, sizeof(type));
      }
    });
  }

  template <class I>
  static void sum_products(const gw_typed_sums& sums, const typed_rows& rows, const packed_weights& w, const float* t,
                           float* y) {
    parallel_chunks(sums.num_blocks, [&](int64_t block) {
      for (const panel& columns : w.panels()) {
        const auto run = [&](auto vectors) {
          constexpr int n = decltype(vectors)::value;
          if constexpr (n <= max_panel_vectors)
            if (columns.vectors == n) sum_panel<I, n, vf::lanes>(sums, block, rows, w, columns, t, y);
        };
        if (columns.lanes < vf::lanes) {
          sum_panel<I, 1, half_lanes>(sums, block, rows, w, columns, t, y);
          continue;
        }
        run(std::integral_constant<int, 1>{});
        run(std::integral_constant<int, 2>{});
        run(std::integral_constant<int, 3>{});
        run(std::integral_constant<int, 4>{});
      }
    });
  }

 private:
  template <class I, int Vectors, int Lanes>
  static void sum_panel(const gw_typed_sums& sums, int64_t block, const typed_rows& rows, const packed_weights& w,
                        const panel& columns, const float* t, float* y) {
    using io = float_lanes<Lanes>;
    const auto* pair = static_cast<const I*>(sums.pair);
    const auto* edge = static_cast<const I*>(sums.edge);
    const int64_t in = rows.width, step = stride(in), begin = sums.block_row[block], end = sums.block_row[block + 1];
    const int64_t last = sums.indptr[end];
    for (int64_t i = begin; i < end; ++i) {
      typename io::vec total[Vectors] = {};
      for (int64_t at = sums.indptr[i]; at < sums.indptr[i + 1]; ++at) {
        if (at + typed_ahead < last) __builtin_prefetch(t + int64_t(pair[at + typed_ahead]) * step);
        const float* x = t + int64_t(pair[at]) * step;
        int32_t type;
        std::memcpy(&type, x + in, sizeof(type));
        const float* matrix = w.at(type) + in * columns.offset;
        const float scale = rows.weight && edge[at] >= 0 ? rows.weight[edge[at]] : 1.0f;
        for (int64_t k = 0; k < in; ++k, matrix += Vectors * Lanes) {
          const float factor = x[k] * scale;
#pragma GCC unroll 4
          for (int v = 0; v < Vectors; ++v) total[v] += factor * io::load(matrix + v * Lanes);
        }
      }
      float* to = y + i * w.out_width() + columns.first;
#pragma GCC unroll 4
      for (int v = 0; v < Vectors - 1; ++v) io::store(to + v * Lanes, total[v]);
      io::store_part(to + (Vectors - 1) * Lanes, total[Vectors - 1], columns.width - (Vectors - 1) * Lanes);
    }
  }
};

}  // namespace gw
