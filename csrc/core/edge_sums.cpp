// Sums over the edges of a few rows, once for all products that make them on the way.
#include "graphweft/edge_sums.h"

#include "graphweft/epilogue.h"
#include "graphweft/gemm.h"
#include "graphweft/reduce.h"
#include "graphweft/row_stream.h"

namespace gw {
namespace {

template <class E, int V, bool Full, class Index>
void sum_tile(const edge_sums& sums, int64_t row, int64_t end, int64_t col, int tail, float* out, int64_t ldo) {
  constexpr int64_t ahead = 16;
  constexpr int bytes = V * E::lanes * int(sizeof(typename E::stored));
  const auto* columns = static_cast<const Index*>(sums.edges.indices);
  const int64_t* indptr = sums.edges.indptr;
  const auto* x = static_cast<const typename E::stored*>(sums.x) + col;
  const int64_t fetched = sums.fetches ? indptr[end] - ahead : 0;
  for (; row < end; ++row, out += ldo) {
    f32::vec sum[V];
    for (int v = 0; v < V; ++v) sum[v] = f32::vec{};
    for (int64_t e = indptr[row]; e < indptr[row + 1]; ++e) {
      if (sums.ahead) sums.ahead->look();
      if (e < fetched) prefetch_tile<bytes, false>(x + int64_t(columns[e + ahead]) * sums.ldx);
      const auto* at = x + int64_t(columns[e]) * sums.ldx;
      for (int v = 0; v < V; ++v) sum[v] += tile_io<E, V, Full>::load(at, v, tail);
    }
    apply_epilogue<V, Full>(sums.stages, row, col, tail, sums.col_sum, sum);
    tile_io<f32, V, Full>::store(out + col, tail, sum);
  }
}

template <class E>
void sum_tiles(const edge_sums& sums, int64_t row, int64_t end, float* out, int64_t ldo) {
  for_each_tile<edge_sum_vectors, f32::lanes>(0, sums.width, [&](auto v, auto full, int64_t col, int tail) {
    constexpr int vectors = decltype(v)::value;
    constexpr bool whole = decltype(full)::value;
    if (sums.edges.wide)
      sum_tile<E, vectors, whole, int64_t>(sums, row, end, col, tail, out, ldo);
    else
      sum_tile<E, vectors, whole, int32_t>(sums, row, end, col, tail, out, ldo);
  });
}

}  // namespace

void sum_rows(const edge_sums& sums, int64_t row, int64_t end, float* out, int64_t ldo) {
  sums.half ? sum_tiles<bf16>(sums, row, end, out, ldo) : sum_tiles<f32>(sums, row, end, out, ldo);
}

}  // namespace gw
