// Rows of float rounded to bfloat16 for a copy that only this program reads: two vectors lie in one, element by
// element, the first in the low halves and the second in the high ones, so that a shift and a mask widen them. The last
// vector of an odd number has zeros beside it.
#pragma once

#include <cstdint>
#include <cstring>

#include "graphweft/simd.h"

namespace gw {

struct bf16_pairs {
  using stored = uint16_t;
  static constexpr int lanes = simd<float>::lanes;
  using vec = simd<float>::vec;

  template <int V>
  static GW_INLINE void load(const uint16_t* p, vec (&t)[V]) {
    for (int v = 0; v < V; v += 2, p += 2 * lanes) {
      bits both;
      std::memcpy(&both, p, sizeof(both));
      t[v] = vec(both << 16);
      if (v + 1 < V) t[v + 1] = vec(both & 0xffff0000u);
    }
  }
  template <int V>
  static inline void store(uint16_t* p, const vec (&t)[V]) {
    for (int v = 0; v < V; v += 2, p += 2 * lanes) {
      const bits both = (round(t[v]) >> 16) | (v + 1 < V ? round(t[v + 1]) & 0xffff0000u : bits{});
      std::memcpy(p, &both, sizeof(both));
    }
  }

 private:
  typedef uint32_t bits __attribute__((vector_size(vector_bytes)));

  // The high half is the bfloat16 nearest to v, ties to even; a NaN stays one.
  static inline bits round(vec v) {
    const bits b = bits(v);
    return v == v ? b + 0x7fffu + ((b >> 16) & 1u) : b | 0x400000u;
  }
};

}  // namespace gw
