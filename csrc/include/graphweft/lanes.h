// Elementwise functions on native float vectors, as kernels compiled at run time use them, and the loop around them.
#pragma once

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
