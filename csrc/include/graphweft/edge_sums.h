// Sums of a table's rows over the edges of a few rows at a time, for products that use them at once. Rows are neither
// cut nor balanced: this is for blocks of mini-batches, where rows have few edges.
#pragma once

#include <cstdint>

#include "graphweft/epilogue.h"
#include "graphweft/reduce.h"
#include "graphweft/row_stream.h"

namespace gw {

struct edge_sums {
  const gw_adjacency& edges;
  const float* x;
  int64_t ldx, width;
  const gw_epilogue_f32& stages;
  float* col_sum;  // partial sums of the caller, or null
  bool fetches;    // whether rows are fetched shortly before their use; else somebody has brought them near
};

template <int V, bool Full, class Index>
void sum_tile(const edge_sums& sums, int64_t row, int64_t end, int64_t col, int tail, float* out, int64_t ldo) {
  constexpr int64_t ahead = 16;
  using io = tile_io<f32, V, Full>;
  const auto* columns = static_cast<const Index*>(sums.edges.indices);
  const int64_t* indptr = sums.edges.indptr;
  const float* x = sums.x + col;
  const int64_t fetched = sums.fetches ? indptr[end] - ahead : 0;
  for (; row < end; ++row, out += ldo) {
    f32::vec sum[V];
    for (int v = 0; v < V; ++v) sum[v] = f32::vec{};
    for (int64_t e = indptr[row]; e < indptr[row + 1]; ++e) {
      if (e < fetched) prefetch_tile<V * f32::lanes * 4, false>(x + int64_t(columns[e + ahead]) * sums.ldx);
      const float* at = x + int64_t(columns[e]) * sums.ldx;
      for (int v = 0; v < V; ++v) sum[v] += io::load(at, v, tail);
    }
    apply_epilogue<V, Full>(sums.stages, row, col, tail, sums.col_sum, sum);
    io::store(out + col, tail, sum);
  }
}

// Rows [row, end) to `out`, where row `row` is.
inline void sum_rows(const edge_sums& sums, int64_t row, int64_t end, float* out, int64_t ldo) {
  for_each_tile<8, f32::lanes>(0, sums.width, [&](auto v, auto full, int64_t col, int tail) {
    constexpr int vectors = decltype(v)::value;
    constexpr bool whole = decltype(full)::value;
    if (sums.edges.wide)
      sum_tile<vectors, whole, int64_t>(sums, row, end, col, tail, out, ldo);
    else
      sum_tile<vectors, whole, int32_t>(sums, row, end, col, tail, out, ldo);
  });
}

}  // namespace gw
