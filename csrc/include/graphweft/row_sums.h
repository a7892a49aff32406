// Sums within rows, and negative powers of elements, as layer norms and averages over heads use them. Each result is
// the work of one thread, so the bits do not depend on their number.
#pragma once

#include <cmath>
#include <cstdint>

#include "graphweft/rows.h"

namespace gw {

// out[i] = sum of row i of x[n, f].
inline void sum_rows(int64_t n, int64_t f, const float* x, int64_t ldx, float* out) {
  parallel_ranges(n, row_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* row = x + i * ldx;
      vf::vec lanes = {};
      int64_t j = 0;
      for (; j + vf::lanes <= f; j += vf::lanes) lanes += vf::load(row + j);
      if (j < f) lanes += vf::load_part(row + j, int(f - j));
      float total = 0.0f;
      for (int lane = 0; lane < vf::lanes; ++lane) total += lanes[lane];
      out[i] = total;
    }
  });
}

// y[i, f] = sum of the `parts` stretches of `f` columns that row i of x has, in order.
inline void sum_parts(int64_t n, int64_t parts, int64_t f, const float* x, float* y) {
  parallel_ranges(n, row_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* row = x + i * parts * f;
      float* out = y + i * f;
      for (int64_t j = 0; j < f; ++j) out[j] = parts ? row[j] : 0.0f;
      for (int64_t part = 1; part < parts; ++part)
        for (int64_t j = 0; j < f; ++j) out[j] += row[part * f + j];
    }
  });
}

// y = (x + shift)^(-halves / 2) for 1, 2 or 3 halves, and 0 where x + shift is 0; y may be x.
inline void negative_power(int64_t count, const float* x, float shift, int halves, float* y) {
  parallel_ranges(count, int64_t{1} << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float t = x[i] + shift;
      const float inverse = 1.0f / (halves == 2 ? t : std::sqrt(t));
      y[i] = t == 0.0f ? 0.0f : halves == 3 ? inverse * inverse * inverse : inverse;
    }
  });
}

}  // namespace gw
