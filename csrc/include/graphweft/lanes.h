// Elementwise functions on native float vectors, as kernels compiled at run time use them, and the loop around them.
#pragma once

#include <cmath>
#include <limits>

#include "graphweft/explog.h"
#include "graphweft/parallel.h"

namespace gw {

using lanes_t = vf::vec;

inline lanes_t lanes_neg(lanes_t x) { return -x; }
inline lanes_t lanes_reciprocal(lanes_t x) { return 1.0f / x; }
inline lanes_t lanes_square(lanes_t x) { return x * x; }
inline lanes_t lanes_abs(lanes_t x) { return lanes_t(int_lanes(x) & 0x7fffffff); }
inline lanes_t lanes_relu(lanes_t x) { return x < 0.0f ? lanes_t{} : x; }
inline lanes_t lanes_leaky_relu(lanes_t x, float alpha) { return x > 0.0f ? x : x * alpha; }
// NaN where either is, as in torch.
inline lanes_t lanes_maximum(lanes_t x, lanes_t y) {
  const lanes_t larger = x > y ? x : y;
  return x == x ? larger : x;
}
inline lanes_t lanes_minimum(lanes_t x, lanes_t y) {
  const lanes_t smaller = x < y ? x : y;
  return x == x ? smaller : x;
}

// exp over the whole range: infinite above 88.72.
inline lanes_t lanes_exp(lanes_t x) {
  const lanes_t half = exp_lanes((x > 88.0f ? vf::splat(88.0f) : x));
  const lanes_t rest = exp_lanes(x > 88.0f ? (x > 89.0f ? vf::splat(1.0f) : x - 88.0f) : lanes_t{});
  return half * rest;
}

// exp(x) - 1 for x <= 0, exact to a few units in the last place near 0 as well.
inline lanes_t expm1_lanes(lanes_t x) {
  lanes_t p = x * (1.0f / 40320.0f) + (1.0f / 5040.0f);
  p = p * x + (1.0f / 720.0f);
  p = p * x + (1.0f / 120.0f);
  p = p * x + (1.0f / 24.0f);
  p = p * x + (1.0f / 6.0f);
  p = p * x + 0.5f;
  p = p * x + 1.0f;
  return x > -0.5f ? p * x : exp_lanes(x) - 1.0f;
}
inline lanes_t lanes_elu(lanes_t x, float alpha) {
  const lanes_t below = expm1_lanes(x < 0.0f ? x : lanes_t{}) * alpha;
  return x > 0.0f ? x : (x == x ? below : x);
}
inline lanes_t lanes_sigmoid(lanes_t x) {
  const lanes_t e = exp_lanes(lanes_neg(lanes_abs(x)));
  return (x < 0.0f ? e : vf::splat(1.0f)) / (1.0f + e);
}
inline lanes_t lanes_tanh(lanes_t x) {
  const lanes_t size = lanes_abs(x), e = expm1_lanes(-2.0f * size);
  const lanes_t t = -e / (e + 2.0f);
  return x < 0.0f ? -t : t;
}

// One lane after the other: functions that have no vector form here.
template <class F>
__attribute__((noinline)) lanes_t map_lanes(lanes_t x, F f) {
#pragma GCC unroll 1
  for (int lane = 0; lane < vf::lanes; ++lane) x[lane] = f(x[lane]);
  return x;
}
inline lanes_t lanes_sqrt(lanes_t x) {
#if defined(__AVX512F__)
  return lanes_t(_mm512_sqrt_ps(__m512(x)));
#elif defined(__AVX2__)
  return lanes_t(_mm256_sqrt_ps(__m256(x)));
#else
  return map_lanes(x, [](float v) { return std::sqrt(v); });
#endif
}
inline lanes_t lanes_sqrt0(lanes_t x) { return lanes_sqrt(x); }
inline lanes_t lanes_rsqrt(lanes_t x) { return 1.0f / lanes_sqrt(x); }
inline lanes_t lanes_sign(lanes_t x) {
  const lanes_t one = vf::splat(1.0f);
  return x > 0.0f ? one : (x < 0.0f ? -one : x * 0.0f);
}
// Normal positive numbers by the polynomial, the rest as the mathematical library has it.
inline lanes_t lanes_log(lanes_t x) {
  const int_lanes normal = (x >= std::numeric_limits<float>::min()) & (x <= std::numeric_limits<float>::max());
  const lanes_t y = log_lanes(normal ? x : vf::splat(1.0f));
  bool all = true;
  for (int lane = 0; lane < vf::lanes; ++lane) all &= normal[lane] != 0;
  return all ? y : (normal ? y : map_lanes(x, [](float v) { return std::log(v); }));
}
inline lanes_t lanes_log1p(lanes_t x) {
  return map_lanes(x, [](float v) { return std::log1p(v); });
}
inline lanes_t lanes_expm1(lanes_t x) {
  return map_lanes(x, [](float v) { return std::expm1(v); });
}
inline lanes_t lanes_sin(lanes_t x) {
  return map_lanes(x, [](float v) { return std::sin(v); });
}
inline lanes_t lanes_cos(lanes_t x) {
  return map_lanes(x, [](float v) { return std::cos(v); });
}
inline lanes_t lanes_erf(lanes_t x) {
  return map_lanes(x, [](float v) { return std::erf(v); });
}
inline lanes_t lanes_floor(lanes_t x) {
  return map_lanes(x, [](float v) { return std::floor(v); });
}
inline lanes_t lanes_ceil(lanes_t x) {
  return map_lanes(x, [](float v) { return std::ceil(v); });
}
inline lanes_t lanes_round(lanes_t x) {
  return map_lanes(x, [](float v) { return std::nearbyint(v); });
}
__attribute__((noinline)) inline lanes_t lanes_pow(lanes_t x, lanes_t y) {
#pragma GCC unroll 1
  for (int lane = 0; lane < vf::lanes; ++lane) x[lane] = std::pow(x[lane], y[lane]);
  return x;
}

// A whole vector of a matrix, or its last few elements.
struct whole_lanes {
  GW_INLINE lanes_t load(const float* p) const { return vf::load(p); }
  GW_INLINE void store(float* p, lanes_t v) const { vf::store(p, v); }
};
struct last_lanes {
  int count;
  GW_INLINE lanes_t load(const float* p) const { return vf::load_part(p, count); }
  GW_INLINE void store(float* p, lanes_t v) const { vf::store_part(p, v, count); }
};

// body(at, lanes) for the elements [0, count), a vector at a time.
template <class Body>
void for_each_lanes(int64_t count, Body&& body) {
  parallel_ranges(count, 16384, [&](int64_t at, int64_t end) {
    for (; at + vf::lanes <= end; at += vf::lanes) body(at, whole_lanes{});
    if (at < end) body(at, last_lanes{int(end - at)});
  });
}

}  // namespace gw
