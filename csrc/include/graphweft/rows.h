// Element-wise work on the rows of a matrix: an epilogue without a product, column sums, dropout.
#pragma once

#include <algorithm>
#include <cstdint>

#include "graphweft/epilogue.h"
#include "graphweft/parallel.h"
#include "graphweft/rng.h"

namespace gw {

// Rows per chunk: at most 512 chunks, none below 256 rows, whatever the number of threads.
inline int64_t row_grain(int64_t n) { return std::max<int64_t>(256, (n + 511) / 512); }
inline int64_t row_chunks(int64_t n) { return (n + row_grain(n) - 1) / row_grain(n); }

// sums[j .. j + V vectors) += the values of `count` rows there.
template <int V, bool Full>
inline void add_row_tile(const float* rows, int64_t ld, int64_t count, int tail, float* sums) {
  using io = tile_io<f32, V, Full>;
  vf::vec total[V], t[V];
  for (int v = 0; v < V; ++v) total[v] = vf::vec{};
  for (int64_t i = 0; i < count; ++i) {
    io::load(rows + i * ld, tail, t);
    for (int v = 0; v < V; ++v) total[v] += t[v];
  }
  io::load(sums, tail, t);
  for (int v = 0; v < V; ++v) t[v] += total[v];
  io::store(sums, tail, t);
}

// sums[j] += the values of `count` rows in column j, for all `width` columns.
inline void add_rows(const float* rows, int64_t ld, int64_t count, int64_t width, float* sums) {
  constexpr int64_t wide = 4 * vf::lanes;
  int64_t j = 0;
  for (; j + wide <= width; j += wide) add_row_tile<4, true>(rows + j, ld, count, 0, sums + j);
  for (; j + vf::lanes <= width; j += vf::lanes) add_row_tile<1, true>(rows + j, ld, count, 0, sums + j);
  if (j < width) add_row_tile<1, false>(rows + j, ld, count, int(width - j), sums + j);
}

// out[j] = sum of column j.
inline void sum_columns(int64_t n, int64_t f, const float* x, int64_t ldx, float* out) {
  const int64_t grain = row_grain(n), chunks = row_chunks(n);
  column_sums sums(true, chunks, f);
  parallel_chunks(chunks, [&](int64_t chunk) {
    add_rows(x + chunk * grain * ldx, ldx, std::min(grain, n - chunk * grain), f, sums.row(chunk));
  });
  sums.finish(out);
}

// <x, y> over so many elements: chunks of fixed size in float, their sums in order in double.
inline float dot_elements(int64_t count, const float* x, const float* y) {
  constexpr int64_t grain = 16384, wide = 4 * vf::lanes;
  std::vector<double> sums(size_t((count + grain - 1) / grain));
  parallel_chunks(int64_t(sums.size()), [&](int64_t chunk) {
    const float *a = x + chunk * grain, *b = y + chunk * grain;
    const int64_t size = std::min(grain, count - chunk * grain);
    vf::vec total[4] = {};
    int64_t j = 0;
    for (; j + wide <= size; j += wide)
      for (int v = 0; v < 4; ++v) total[v] += vf::load(a + j + v * vf::lanes) * vf::load(b + j + v * vf::lanes);
    for (; j + vf::lanes <= size; j += vf::lanes) total[0] += vf::load(a + j) * vf::load(b + j);
    if (j < size) total[0] += vf::load_part(a + j, int(size - j)) * vf::load_part(b + j, int(size - j));
    const vf::vec all = (total[0] + total[1]) + (total[2] + total[3]);
    for (int lane = 0; lane < vf::lanes; ++lane) sums[size_t(chunk)] += double(all[lane]);
  });
  double sum = 0.0;
  for (const double one : sums) sum += one;
  return float(sum);
}

template <int V, bool Full, class E>
inline void apply_row_tile(const gw_epilogue_f32& stages, int64_t row, int64_t col, int tail,
                           const typename E::stored* x, float* y, float* col_sum) {
  vf::vec t[V];
  tile_io<E, V, Full>::load(x, tail, t);
  apply_epilogue<V, Full>(stages, row, col, tail, col_sum, t);
  tile_io<f32, V, Full>::store(y, tail, t);
}

// y = epilogue(x), row by row; y may be x. With `rows`, row i of x is row rows[i] of a table. Rows of x are of element
// E.
template <class E>
void apply_rows(int64_t n, int64_t f, const typename E::stored* x, int64_t ldx, const gw_epilogue_f32& stages, float* y,
                int64_t ldy, const int64_t* rows = nullptr) {
  constexpr int64_t wide = 2 * vf::lanes;
  const int64_t grain = row_grain(n), chunks = row_chunks(n);
  column_sums sums(stages.col_sum != nullptr, chunks, f);
  parallel_chunks(chunks, [&](int64_t chunk) {
    float* partial = sums.row(chunk);
    for (int64_t i = chunk * grain; i < std::min(n, (chunk + 1) * grain); ++i) {
      const auto* in = x + (rows ? rows[i] : i) * ldx;
      float* out = y + i * ldy;
      int64_t j = 0;
      for (; j + wide <= f; j += wide) apply_row_tile<2, true, E>(stages, i, j, vf::lanes, in + j, out + j, partial);
      if (j + vf::lanes <= f) {
        apply_row_tile<1, true, E>(stages, i, j, vf::lanes, in + j, out + j, partial);
        j += vf::lanes;
      }
      if (j < f) apply_row_tile<1, false, E>(stages, i, j, int(f - j), in + j, out + j, partial);
    }
  });
  if (stages.col_sum) sums.finish(stages.col_sum);
}

// 64 draws of 16 bits, those of elements [64 group, 64 group + 64): the Philox blocks 8 group .. 8 group + 7 of the
// stream. Draw r of the group is the 16-bit piece r % 4 of words (2 (r / 32), 2 (r / 32) + 1) of block (r % 32) / 4.
inline void random_group(uint64_t seed, uint64_t stream, uint64_t group, uint16_t* out) {
  constexpr u64x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
  u64x8 low, high;
  random_blocks(seed, stream, lane + group * 8, low, high);
  std::memcpy(out, &low, sizeof low);
  std::memcpy(out + 32, &high, sizeof high);
}

// The draws of eight single elements, in 64-bit lanes.
inline u64x8 random_draws(uint64_t seed, uint64_t stream, u64x8 element) {
  u64x8 low, high;
  random_blocks(seed, stream, (element / 64) * 8 + (element % 32) / 4, low, high);
  const u64x8 words = (element & 32) != 0 ? high : low;
  return (words >> ((element % 4) * 16)) & 0xFFFFu;
}

// y = x / (1 - p) where the element is kept, 0 where it is dropped (whatever x is there). Element (i, j) is kept when
// its draw number i f + j, 16 bits, is at least `threshold`. With `rows`, row i of x is row rows[i] of a table.
inline void drop_elements(int64_t n, int64_t f, const float* x, int64_t ldx, uint32_t threshold, float scale,
                          uint64_t seed, uint64_t stream, float* y, int64_t ldy, const int64_t* rows = nullptr) {
  constexpr int64_t grain = 8192;  // elements, a multiple of a group
  const int64_t total = checked_mul(n, f);
  const bool flat = ldx == f && ldy == f && !rows;
  parallel_ranges(total, grain, [&](int64_t begin, int64_t end) {
    uint16_t draws[grain];
    for (int64_t at = begin; at < end; at += 64) random_group(seed, stream, uint64_t(at / 64), draws + (at - begin));
    for (int64_t at = begin; at < end;) {
      const int64_t row = flat ? 0 : at / f, col = flat ? at : at % f;
      const int64_t count = flat ? end - at : std::min(end - at, f - col);
      const float* in = x + (rows ? rows[row] : row) * ldx + col;
      float* out = y + row * ldy + col;
      const uint16_t* draw = draws + (at - begin);
      for (int64_t e = 0; e < count; ++e) {
        const float kept = in[e] * scale;
        out[e] = draw[e] >= threshold ? kept : 0.0f;
      }
      at += count;
    }
  });
}

}  // namespace gw
