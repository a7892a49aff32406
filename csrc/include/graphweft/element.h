// Element types: how a value lies in memory and what it is computed in. float and double are computed as they are,
// bfloat16 is storage only and is computed in float.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "graphweft/simd.h"

namespace gw {

struct f32 {
  using stored = float;
  using real = float;
  static constexpr int lanes = simd<float>::lanes;
  using vec = simd<float>::vec;
  static inline vec load(const float* p) { return simd<float>::load(p); }
  static inline vec load_part(const float* p, int n) { return simd<float>::load_part(p, n); }
  static inline void store(float* p, vec v) { simd<float>::store(p, v); }
  static inline void store_part(float* p, vec v, int n) { simd<float>::store_part(p, v, n); }
  static inline float value(float number) { return number; }
};

struct f64 {
  using stored = double;
  using real = double;
  static constexpr int lanes = simd<double>::lanes;
  using vec = simd<double>::vec;
  static inline vec load(const double* p) { return simd<double>::load(p); }
  static inline vec load_part(const double* p, int n) { return simd<double>::load_part(p, n); }
  static inline void store(double* p, vec v) { simd<double>::store(p, v); }
  static inline void store_part(double* p, vec v, int n) { simd<double>::store_part(p, v, n); }
  static inline double value(double number) { return number; }
};

struct bf16 {
  using stored = uint16_t;
  using real = float;
  static constexpr int lanes = simd<float>::lanes;
  using vec = simd<float>::vec;

  static inline vec load(const uint16_t* p) {
    half h;
    std::memcpy(&h, p, sizeof(h));
    return widen(h);
  }
  static inline vec load_part(const uint16_t* p, int n) {
#if defined(__AVX512VL__) && defined(__AVX512BW__)
    // as few bytes as will do, as simd.h does
    if (n <= 8) return widen(half(_mm256_zextsi128_si256(_mm_maskz_loadu_epi16(__mmask8((1u << n) - 1u), p))));
    return widen(half(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1u), p)));
#else
    uint16_t part[lanes] = {};
    for (int lane = 0; lane < n; ++lane) part[lane] = p[lane];
    return load(part);
#endif
  }
  static inline void store(uint16_t* p, vec v) {
    const half h = narrow(v);
    std::memcpy(p, &h, sizeof(h));
  }
  static inline void store_part(uint16_t* p, vec v, int n) {
#if defined(__AVX512VL__) && defined(__AVX512BW__)
    _mm256_mask_storeu_epi16(p, __mmask16((1u << n) - 1u), __m256i(narrow(v)));
#else
    uint16_t part[lanes];
    store(part, v);
    for (int lane = 0; lane < n; ++lane) p[lane] = part[lane];
#endif
  }
  static inline float value(uint16_t number) {
    const uint32_t bits = uint32_t(number) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
  }

 private:
  typedef uint16_t half __attribute__((vector_size(vector_bytes / 2)));
  typedef uint32_t bits __attribute__((vector_size(vector_bytes)));

  static inline vec widen(half h) {
#if defined(__AVX512VL__) && defined(__AVX512BW__)
    // GCC widens such a vector in halves
    return vec(_mm512_maskz_slli_epi32(__mmask16(-1), _mm512_maskz_cvtepu16_epi32(__mmask16(-1), __m256i(h)), 16));
#else
    return vec(__builtin_convertvector(h, bits) << 16);
#endif
  }
  // To nearest, ties to even; a NaN stays one.
  static inline half narrow(vec v) {
    const bits b = bits(v);
    const bits rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    const bits quiet = (b >> 16) | 0x40u;
    return __builtin_convertvector(v == v ? rounded : quiet, half);
  }
};

// Whether fewer shapes of tiles are compiled: for float64 and ids of 64 bits, too, which few runs have. Results have
// the same bits.
template <class E, class Index>
inline constexpr bool few_for = few_shapes || sizeof(Index) == 8 || std::is_same_v<E, f64>;

// V vectors of one row. `tail`: how many lanes of the last vector lie in the row; ignored when Full (all of them do).
template <class E, int V, bool Full>
struct tile_io {
  using stored = typename E::stored;
  using vec = typename E::vec;

  static inline vec load(const stored* p, int v, int tail) {
    const stored* at = p + v * E::lanes;  // apart: written twice below, g++ 12 at -O2 reads vector 0 in place of 1
    return Full || v < V - 1 ? E::load(at) : E::load_part(at, tail);
  }
  static inline void load(const stored* p, int tail, vec (&t)[V]) {
    for (int v = 0; v < V; ++v) t[v] = load(p, v, tail);
  }
  static inline void store(stored* p, int tail, const vec (&t)[V]) {
    for (int v = 0; v < V - 1; ++v) E::store(p + v * E::lanes, t[v]);
    if constexpr (Full)
      E::store(p + (V - 1) * E::lanes, t[V - 1]);
    else
      E::store_part(p + (V - 1) * E::lanes, t[V - 1], tail);
  }
};

}  // namespace gw
