// Row-by-row products with one vector per head: a number per row and head from its channels, and back.
#pragma once

#include "graphweft/epilogue.h"
#include "graphweft/heads.h"
#include "graphweft/rows.h"

namespace gw {

// out[i][h] = <x[i], a>_h
inline void head_dots(int64_t n, int64_t heads, int64_t channels, const float* x, const float* a, float* out) {
  const int64_t width = heads * channels;
  parallel_ranges(n, row_grain(n), [&](int64_t begin, int64_t end) {
    for_each_head_tile(heads, channels, [&](auto tile) {
      using T = decltype(tile);
      typename T::vec v[T::vectors];
      tile.load(a + tile.first(), v);
      for (int64_t i = begin; i < end; ++i) {
        typename T::vec t[T::sums] = {};
        tile.each(x + i * width + tile.first(), [&](int k, const float* at) GW_INLINE_LAMBDA {
          T::add_product(t, k, v[k], tile.load_vector(k, at));
        });
        T::sum(t, out + i * heads + tile.h0, tile.c0 > 0);
      }
    });
  });
}

// y[i] = s[i][h] a[h] (+ x[i], which may be y)
inline void head_products(int64_t n, int64_t heads, int64_t channels, const float* s, const float* a, const float* x,
                          float* y) {
  const int64_t width = heads * channels;
  parallel_ranges(n, row_grain(n), [&](int64_t begin, int64_t end) {
    for_each_head_tile(heads, channels, [&](auto tile) {
      using T = decltype(tile);
      typename T::vec v[T::vectors];
      tile.load(a + tile.first(), v);
      for (int64_t i = begin; i < end; ++i) {
        const typename T::weights w(s + i * heads + tile.h0);
        typename T::vec t[T::vectors];
        if (x)
          tile.load(x + i * width + tile.first(), t);
        else
          for (auto& part : t) part = typename T::vec{};
#pragma GCC unroll 8
        for (int k = 0; k < T::vectors; ++k) t[k] = vf::fused(w[k], v[k], t[k]);
        tile.store(y + i * width + tile.first(), t);
      }
    });
  });
}

// out[h] = sum over rows of s[i][h] x[i], per channel
inline void head_sums(int64_t n, int64_t heads, int64_t channels, const float* s, const float* x, float* out) {
  const int64_t width = heads * channels, grain = row_grain(n), chunks = row_chunks(n);
  column_sums sums(true, chunks, width);
  parallel_chunks(chunks, [&](int64_t chunk) {
    float* sum = sums.row(chunk);
    for_each_head_tile(heads, channels, [&](auto tile) {
      using T = decltype(tile);
      typename T::vec t[T::vectors];
      for (auto& part : t) part = typename T::vec{};
      for (int64_t i = chunk * grain; i < std::min(n, (chunk + 1) * grain); ++i) {
        const typename T::weights w(s + i * heads + tile.h0);
        tile.each(x + i * width + tile.first(), [&](int k, const float* at) GW_INLINE_LAMBDA {
          t[k] = vf::fused(w[k], tile.load_vector(k, at), t[k]);
        });
      }
      tile.store(sum + tile.first(), t);
    });
  });
  sums.finish(out);
}

}  // namespace gw
