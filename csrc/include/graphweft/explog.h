// exp and log on native float vectors, as the loss needs them. Polynomials of Cephes (S. L. Moshier); measured against
// double precision over their whole domain: exp within 1.5 units in the last place, log within 1.5.
#pragma once

#include <cstdint>

#include "graphweft/simd.h"

namespace gw {

typedef int32_t int_lanes __attribute__((vector_size(vector_bytes)));

// exp(x) for x <= 88: 0 below -87.33 (no subnormal results), NaN stays NaN.
inline vf::vec exp_lanes(vf::vec x) {
  constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const vf::vec shifted = x * 1.44269504088896341f + rounder;
  const vf::vec whole = shifted - rounder;
  vf::vec r = x - whole * 0.693359375f;
  r = r - whole * -2.12194440e-4f;
  vf::vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const int_lanes power = (int_lanes(shifted) + (127 - 0x4B400000)) << 23;
  return x < -87.33f ? vf::vec{} : p * vf::vec(power);
}

// log(x) for normal positive x; NaN stays NaN.
inline vf::vec log_lanes(vf::vec x) {
  const int_lanes bits = int_lanes(x);
  const int_lanes above = bits - 0x3F3504F3;  // bits of sqrt(1/2): mantissas land in [sqrt(1/2), sqrt(2))
  const vf::vec e = __builtin_convertvector(above >> 23, vf::vec);
  const vf::vec m = vf::vec((above & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
  const vf::vec z = m * m;
  vf::vec p = m * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  vf::vec y = p * m * z + e * -2.12194440e-4f;
  y = y - z * 0.5f;
  const vf::vec out = m + y + e * 0.693359375f;
  return x == x ? out : x;
}

}  // namespace gw
