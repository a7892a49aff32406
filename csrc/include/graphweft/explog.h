// exp and log on native vectors of floats and doubles. Polynomials of Cephes (S. L. Moshier); floats measured against
// double precision over their whole domain: exp within 1.5 units in the last place, log within 1.5.
#pragma once

#include <cstdint>

#include "graphweft/simd.h"

namespace gw {

typedef int32_t int_lanes __attribute__((vector_size(vector_bytes)));
typedef int64_t long_lanes __attribute__((vector_size(vector_bytes)));

// exp(x) = part * 2^power, for -104 < x < 104.
struct float_exp {
  vf::vec part;
  int_lanes power;
};
inline float_exp exp_parts(vf::vec x) {
  constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const vf::vec shifted = vf::fused(x, vf::splat(1.44269504088896341f), vf::splat(rounder));
  const vf::vec whole = shifted - rounder;
  vf::vec r = vf::fused(whole, vf::splat(-0.693359375f), x);
  r = vf::fused(whole, vf::splat(2.12194440e-4f), r);
  vf::vec p = vf::fused(r, vf::splat(1.9875691500e-4f), vf::splat(1.3981999507e-3f));
  p = vf::fused(p, r, vf::splat(8.3334519073e-3f));
  p = vf::fused(p, r, vf::splat(4.1665795894e-2f));
  p = vf::fused(p, r, vf::splat(1.6666665459e-1f));
  p = vf::fused(p, r, vf::splat(5.0000001201e-1f));
  p = vf::fused(p, r * r, r + 1.0f);
  return {p, int_lanes(shifted) - 0x4B400000};
}

// exp(x) for x <= 88: 0 below -87.33 (no subnormal results), NaN stays NaN.
inline vf::vec exp_lanes(vf::vec x) {
  const float_exp e = exp_parts(x);
  return x < -87.33f ? vf::vec{} : e.part * vf::vec((e.power + 127) << 23);
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

// exp(x) - 1 for |x| <= 0.52.
inline vd::vec exp_less_one(vd::vec x) {
  const vd::vec z = x * x;
  vd::vec p = z * 1.26177193074810590878e-4 + 3.02994407707441961300e-2;
  p = (p * z + 9.99999999999999999910e-1) * x;
  vd::vec q = z * 3.00198505138664455042e-6 + 2.52448340349684104192e-3;
  q = q * z + 2.27265548208155028766e-1;
  q = q * z + 2.0;
  return 2.0 * (p / (q - p));
}

// exp(x) for x <= 709: 0 below -708 (no subnormal results), NaN stays NaN.
inline vd::vec exp_lanes(vd::vec x) {
  constexpr double rounder = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves the nearest integer in the low bits
  const vd::vec near = x < -709.0 ? vd::splat(-709.0) : x;
  const vd::vec shifted = near * 1.4426950408889634073599 + rounder;
  const vd::vec whole = shifted - rounder;
  vd::vec r = near - whole * 6.93145751953125e-1;
  r = r - whole * 1.42860682030941723212e-6;
  const long_lanes power = (long_lanes(shifted) + (1023 - 0x4338000000000000)) << 52;
  return x < -708.0 ? vd::vec{} : (exp_less_one(r) + 1.0) * vd::vec(power);
}

// log(x) for normal positive x; NaN stays NaN.
inline vd::vec log_lanes(vd::vec x) {
  const long_lanes bits = long_lanes(x);
  const long_lanes above = bits - 0x3FE6A09E667F3BCD;  // bits of sqrt(1/2): mantissas land in [sqrt(1/2), sqrt(2))
  const vd::vec e = __builtin_convertvector(above >> 52, vd::vec);
  const vd::vec m = vd::vec((above & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD) - 1.0;
  const vd::vec z = m * m;
  vd::vec p = m * 1.01875663804580931796e-4 + 4.97494994976747001425e-1;
  p = p * m + 4.70579119878881725854;
  p = p * m + 1.44989225341610930846e1;
  p = p * m + 1.79368678507819816313e1;
  p = p * m + 7.70838733755885391666;
  vd::vec q = m + 1.12873587189167450590e1;
  q = q * m + 4.52279145837532221105e1;
  q = q * m + 8.29875266912776603211e1;
  q = q * m + 7.11544750618563894466e1;
  q = q * m + 2.31251620126765340583e1;
  vd::vec y = m * (z * p / q) + e * -2.121944400546905827679e-4;
  y = y - z * 0.5;
  const vd::vec out = m + y + e * 0.693359375;
  return x == x ? out : x;
}

}  // namespace gw
