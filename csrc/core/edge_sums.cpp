// Sums over the edges of a few rows, once for all products that make them on the way.
#include "graphweft/edge_sums.h"

#include "graphweft/epilogue.h"
#include "graphweft/gemm.h"
#include "graphweft/lines.h"
#include "graphweft/reduce.h"
#include "graphweft/row_stream.h"

namespace gw {
namespace {

constexpr int64_t masks_far = 48, masks_near = 8;  // rows of a mask

// Where sums go: floats, or bfloat16 where `half` is not null.
struct sums_target {
  float* out;
  uint16_t* half;
  half_form form;
  int64_t ld;
};

// Rows of a mask that come after row `row`.
template <int Bytes, class T>
GW_INLINE void fetch_mask(const T* mask, int64_t row, int64_t ld) {
  prefetch_tile<Bytes, false>(mask + (row + masks_far) * ld);
  prefetch_tile<Bytes, true>(mask + (row + masks_near) * ld);
}

template <class E, int V, bool Full, class Index>
void sum_tile(const edge_sums& sums, int64_t row, int64_t end, int64_t col, int tail, const sums_target& to) {
  constexpr int bytes = V * E::lanes * int(sizeof(typename E::stored));
  // as in row_stream.h: rows that are far go into the second cache, which has more requests under way
  constexpr int64_t far = rows_ahead(bytes), near = 8;
  const auto* columns = static_cast<const Index*>(sums.edges.indices);
  const int64_t* indptr = sums.edges.indptr;
  const auto* x = static_cast<const typename E::stored*>(sums.x) + col;
  const int64_t fetched = sums.fetches ? indptr[sums.edges.num_rows] : 0;  // rows beyond the last: of the next call
  const gw_epilogue_f32& stages = sums.stages;
  for (int64_t at_row = 0; row < end; ++row, ++at_row) {
    if (stages.half_mask) fetch_mask<V * 32>(stages.half_mask + col, row, stages.ld_mask);
    if (stages.mask) fetch_mask<V * 64>(stages.mask + col, row, stages.ld_mask);
    f32::vec sum[V];
    for (int v = 0; v < V; ++v) sum[v] = f32::vec{};
    for (int64_t e = indptr[row]; e < indptr[row + 1]; ++e) {
      if (sums.ahead) sums.ahead->look();
      if (e + far < fetched) prefetch_tile<bytes, false>(x + int64_t(columns[e + far]) * sums.ldx);
      if (e + near < fetched) prefetch_tile<bytes, true>(x + int64_t(columns[e + near]) * sums.ldx);
      const auto* at = x + int64_t(columns[e]) * sums.ldx;
      for (int v = 0; v < V; ++v) sum[v] += tile_io<E, V, Full>::load(at, v, tail);
    }
    apply_epilogue<V, Full>(stages, row, col, tail, sums.col_sum, sum);
    if (to.half)
      store_rounded<V, Full>(to.form, to.half + at_row * to.ld + col, tail, sum);
    else
      tile_io<f32, V, Full>::store(to.out + at_row * to.ld + col, tail, sum);
  }
}

template <class E>
void sum_tiles(const edge_sums& sums, int64_t row, int64_t end, const sums_target& to) {
  for_each_tile<edge_sum_vectors, f32::lanes>(0, sums.width, [&](auto v, auto full, int64_t col, int tail) {
    constexpr int vectors = decltype(v)::value;
    constexpr bool whole = decltype(full)::value;
    if (sums.edges.wide)
      sum_tile<E, vectors, whole, int64_t>(sums, row, end, col, tail, to);
    else
      sum_tile<E, vectors, whole, int32_t>(sums, row, end, col, tail, to);
  });
}

}  // namespace

void sum_rows(const edge_sums& sums, int64_t row, int64_t end, float* out, int64_t ldo) {
  const sums_target to{out, nullptr, half_form::integers, ldo};
  sums.half ? sum_tiles<bf16>(sums, row, end, to) : sum_tiles<f32>(sums, row, end, to);
}

void sum_rows(const edge_sums& sums, int64_t row, int64_t end, half_form form, uint16_t* out, int64_t ldo) {
  const sums_target to{nullptr, out, form, ldo};
  sums.half ? sum_tiles<bf16>(sums, row, end, to) : sum_tiles<f32>(sums, row, end, to);
}

}  // namespace gw
