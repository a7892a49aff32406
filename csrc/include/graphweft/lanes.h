// Elementwise functions on native vectors of floats and doubles, as kernels compiled at run time use them. No header of
// the standard library is read but small ones: reading them would take longer than compiling a kernel.
#pragma once

#include "graphweft/explog.h"

namespace gw {

// The element of a vector, and integers of its size.
template <class V>
struct lane_of;
template <>
struct lane_of<vf::vec> {
  using real = float;
  using ints = int_lanes;
  static constexpr int32_t all_but_sign = 0x7fffffff;
  static constexpr float smallest = __FLT_MIN__, largest = __FLT_MAX__;
};
template <>
struct lane_of<vd::vec> {
  using real = double;
  using ints = long_lanes;
  static constexpr int64_t all_but_sign = 0x7fffffffffffffff;
  static constexpr double smallest = __DBL_MIN__, largest = __DBL_MAX__;
};
template <class V>
using real_of = typename lane_of<V>::real;
template <class V>
using ints_of = typename lane_of<V>::ints;

template <class V>
inline V lanes_neg(V x) {
  return -x;
}
template <class V>
inline V lanes_reciprocal(V x) {
  return real_of<V>(1) / x;
}
template <class V>
inline V lanes_square(V x) {
  return x * x;
}
template <class V>
inline V lanes_abs(V x) {
  return V(ints_of<V>(x) & lane_of<V>::all_but_sign);
}
template <class V>
inline V lanes_relu(V x) {
  return x < real_of<V>(0) ? V{} : x;
}
template <class V>
inline V lanes_leaky_relu(V x, real_of<V> alpha) {
  return x > real_of<V>(0) ? x : x * alpha;
}
// NaN where either is, as in torch.
template <class V>
inline V lanes_maximum(V x, V y) {
  const V larger = x > y ? x : y;
  return x == x ? larger : x;
}
template <class V>
inline V lanes_minimum(V x, V y) {
  const V smaller = x < y ? x : y;
  return x == x ? smaller : x;
}

// exp over the whole range: infinite above 88.72, in double precision above 709.78.
inline vf::vec lanes_exp(vf::vec x) {
  const float_exp e = exp_parts(x > 89.0f ? vf::splat(89.0f) : x);
  const int_lanes half = e.power >> 1;  // the power of two may be one more than a number has
  const vf::vec scaled = e.part * vf::vec((half + 127) << 23) * vf::vec((e.power - half + 127) << 23);
  return x < -87.33f ? vf::vec{} : scaled;
}
inline vd::vec lanes_exp(vd::vec x) {
  const vd::vec half = exp_lanes((x > 709.0 ? vd::splat(709.0) : x));
  const vd::vec rest = exp_lanes(x > 709.0 ? (x > 710.0 ? vd::splat(1.0) : x - 709.0) : vd::vec{});
  return half * rest;
}

// exp(x) - 1 for |x| <= 0.5, exact to a few units in the last place.
inline vf::vec expm1_near(vf::vec x) {
  vf::vec p = x * (1.0f / 40320.0f) + (1.0f / 5040.0f);
  p = p * x + (1.0f / 720.0f);
  p = p * x + (1.0f / 120.0f);
  p = p * x + (1.0f / 24.0f);
  p = p * x + (1.0f / 6.0f);
  p = p * x + 0.5f;
  p = p * x + 1.0f;
  return p * x;
}
inline vd::vec expm1_near(vd::vec x) { return exp_less_one(x); }

// The same for all x <= 0.
template <class V>
inline V expm1_lanes(V x) {
  const V near = x > real_of<V>(-0.5) ? x : V{};
  return x > real_of<V>(-0.5) ? expm1_near(near) : exp_lanes(x) - real_of<V>(1);
}

// The same for all x; infinite where exp is.
template <class V>
inline V lanes_expm1(V x) {
  const ints_of<V> small = lanes_abs(x) < real_of<V>(0.5);
  return small ? expm1_near(small ? x : V{}) : lanes_exp(x) - real_of<V>(1);
}
template <class V>
inline V lanes_elu(V x, real_of<V> alpha) {
  const V below = expm1_lanes(x < real_of<V>(0) ? x : V{}) * alpha;
  return x > real_of<V>(0) ? x : (x == x ? below : x);
}
template <class V>
inline V lanes_sigmoid(V x) {
  const V e = exp_lanes(lanes_neg(lanes_abs(x))), one = V{} + real_of<V>(1);
  return (x < real_of<V>(0) ? e : one) / (one + e);
}
template <class V>
inline V lanes_tanh(V x) {
  const V size = lanes_abs(x), e = expm1_lanes(real_of<V>(-2) * size);
  const V t = -e / (e + real_of<V>(2));
  return x < real_of<V>(0) ? -t : t;
}

// One lane after the other: functions that have no vector form here.
template <class V, class F>
__attribute__((noinline)) V map_lanes(V x, F f) {
#pragma GCC unroll 1
  for (int lane = 0; lane < int(sizeof(V) / sizeof(real_of<V>)); ++lane) x[lane] = f(x[lane]);
  return x;
}
inline vf::vec lanes_sqrt(vf::vec x) {
#if defined(__AVX512F__)
  return vf::vec(_mm512_sqrt_ps(__m512(x)));
#elif defined(__AVX2__)
  return vf::vec(_mm256_sqrt_ps(__m256(x)));
#else
  return map_lanes(x, [](float v) { return __builtin_sqrtf(v); });
#endif
}
inline vd::vec lanes_sqrt(vd::vec x) {
#if defined(__AVX512F__)
  return vd::vec(_mm512_sqrt_pd(__m512d(x)));
#elif defined(__AVX2__)
  return vd::vec(_mm256_sqrt_pd(__m256d(x)));
#else
  return map_lanes(x, [](double v) { return __builtin_sqrt(v); });
#endif
}
template <class V>
inline V lanes_sqrt0(V x) {
  return lanes_sqrt(x);
}
template <class V>
inline V lanes_rsqrt(V x) {
  return real_of<V>(1) / lanes_sqrt(x);
}
template <class V>
inline V lanes_sign(V x) {
  const V one = V{} + real_of<V>(1), none = V{};
  return x > none ? one : (x < none ? -one : x * real_of<V>(0));
}

// The mathematical library's functions, lane by lane.
#define GW_MAPPED(name, single, twice)                                  \
  inline vf::vec lanes_##name(vf::vec x) {                              \
    return map_lanes(x, [](float v) { return __builtin_##single(v); }); \
  }                                                                     \
  inline vd::vec lanes_##name(vd::vec x) {                              \
    return map_lanes(x, [](double v) { return __builtin_##twice(v); }); \
  }
GW_MAPPED(sin, sinf, sin)
GW_MAPPED(cos, cosf, cos)
GW_MAPPED(erf, erff, erf)
GW_MAPPED(floor, floorf, floor)
GW_MAPPED(ceil, ceilf, ceil)
GW_MAPPED(round, nearbyintf, nearbyint)
#undef GW_MAPPED

// The logarithm y of a number x where it has one: infinite at 0 and infinity, none below 0.
template <class V>
inline V log_or_none(V x, V y) {
  const V infinite = V{} + real_of<V>(__builtin_inf()), zero = V{};
  const V low = x == zero ? -infinite : (x < zero ? infinite - infinite : x);
  return x > zero ? (x > lane_of<V>::largest ? infinite : y) : low;
}
// Subnormal numbers are scaled by 2^54, which leaves all their digits.
template <class V>
inline V lanes_log(V x) {
  constexpr real_of<V> ln2_54 = real_of<V>(37.429947750237047);
  const ints_of<V> tiny = x < lane_of<V>::smallest, normal = (x > V{}) & (x <= lane_of<V>::largest);
  const V near = normal ? (tiny ? x * real_of<V>(0x1p54) : x) : V{} + real_of<V>(1);
  const V y = log_lanes(near);
  return log_or_none(x, tiny ? y - ln2_54 : y);
}
// log(1 + x): what 1 + x loses of x is added to first order.
template <class V>
inline V lanes_log1p(V x) {
  const V one = V{} + real_of<V>(1), u = x + one;
  const ints_of<V> normal = (u > V{}) & (u <= lane_of<V>::largest);
  const V near = normal ? u : one;
  return log_or_none(u, log_lanes(near) + (x - (near - one)) / near);
}
__attribute__((noinline)) inline vf::vec lanes_pow(vf::vec x, vf::vec y) {
#pragma GCC unroll 1
  for (int lane = 0; lane < vf::lanes; ++lane) x[lane] = __builtin_powf(x[lane], y[lane]);
  return x;
}
__attribute__((noinline)) inline vd::vec lanes_pow(vd::vec x, vd::vec y) {
#pragma GCC unroll 1
  for (int lane = 0; lane < vd::lanes; ++lane) x[lane] = __builtin_pow(x[lane], y[lane]);
  return x;
}
__attribute__((noinline)) inline vf::vec lanes_atan2(vf::vec y, vf::vec x) {
#pragma GCC unroll 1
  for (int lane = 0; lane < vf::lanes; ++lane) y[lane] = __builtin_atan2f(y[lane], x[lane]);
  return y;
}
__attribute__((noinline)) inline vd::vec lanes_atan2(vd::vec y, vd::vec x) {
#pragma GCC unroll 1
  for (int lane = 0; lane < vd::lanes; ++lane) y[lane] = __builtin_atan2(y[lane], x[lane]);
  return y;
}

// A whole vector of a matrix, or its last few elements.
template <class T>
struct whole_lanes {
  using io = simd<T>;
  GW_INLINE typename io::vec load(const T* p) const { return io::load(p); }
  GW_INLINE typename io::vec near(const T* p) const { return io::load(p); }
  GW_INLINE void store(T* p, typename io::vec v) const { io::store(p, v); }
  GW_INLINE typename io::vec keep(typename io::vec v) const { return v; }
  GW_INLINE int size() const { return io::lanes; }
};
template <class T>
struct last_lanes {
  using io = simd<T>;
  int count;
  GW_INLINE typename io::vec load(const T* p) const { return io::load_part(p, count); }
  // Where memory follows the elements, which were written just now: a load of more than one store wrote waits for it.
  GW_INLINE typename io::vec near(const T* p) const {
    return vector_bytes == 64 && count * int(sizeof(T)) <= 32 ? io::load_part(p, count) : io::load(p);
  }
  GW_INLINE void store(T* p, typename io::vec v) const { io::store_part(p, v, count); }
  // Zero behind the elements.
  GW_INLINE typename io::vec keep(typename io::vec v) const {
    ints_of<typename io::vec> number;
    for (int lane = 0; lane < io::lanes; ++lane) number[lane] = lane;
    return number < count ? v : typename io::vec{};
  }
  GW_INLINE int size() const { return count; }
};

// body(at, lanes) for the elements [at, end), a vector at a time.
template <class T, class Body>
GW_INLINE void for_each_lanes(int64_t at, int64_t end, Body&& body) {
  for (; at + simd<T>::lanes <= end; at += simd<T>::lanes) body(at, whole_lanes<T>{});
  if (at < end) body(at, last_lanes<T>{int(end - at)});
}

}  // namespace gw
