// Vectors as wide as the instruction set this translation unit is compiled for, written once with the compiler's vector
// extension. AVX-512: 16 floats, AVX2: 8, else 4.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#if defined(GW_GENERATED) && !defined(__clang__) && __GNUC__ >= 9 && __GNUC__ <= 14
#include "graphweft/builtin_intrinsics.h"
#else
#include <immintrin.h>
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// For functions whose arrays of vectors must stay in the caller's registers.
#define GW_INLINE __attribute__((always_inline)) inline
#define GW_INLINE_LAMBDA __attribute__((always_inline))

namespace gw {

#if defined(__AVX512VL__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif

// Kernels for a library that is at hand but not what this machine runs: fewer shapes of tiles are compiled. Results
// have the same bits, in more time.
#if defined(GW_FEW_SHAPES)
inline constexpr bool few_shapes = true;
#else
inline constexpr bool few_shapes = false;
#endif

template <class T>
struct simd {
  static constexpr int lanes = vector_bytes / int(sizeof(T));
  typedef T vec __attribute__((vector_size(vector_bytes)));
  typedef T unaligned __attribute__((vector_size(vector_bytes), aligned(sizeof(T)), may_alias));

  static inline vec load(const T* p) { return *reinterpret_cast<const unaligned*>(p); }
  static inline void store(T* p, vec v) { *reinterpret_cast<unaligned*>(p) = v; }
  // Nothing is taken away, which costs nothing: a sum with zero would be computed, as it is another number at -0.
  static inline vec splat(T v) { return v - vec{}; }
  // a b + c, rounded once where the instruction set has that, else twice. Written out where bits must not depend on
  // which products and sums a compiler fuses.
  static inline vec fused(vec a, vec b, vec c) {
#if defined(__AVX512VL__)
    if constexpr (sizeof(T) == 4) return vec(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
    if constexpr (sizeof(T) == 8) return vec(_mm512_fmadd_pd(__m512d(a), __m512d(b), __m512d(c)));
#elif defined(__AVX2__) && defined(__FMA__)
    if constexpr (sizeof(T) == 4) return vec(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
    if constexpr (sizeof(T) == 8) return vec(_mm256_fmadd_pd(__m256d(a), __m256d(b), __m256d(c)));
#elif defined(__aarch64__)
    if constexpr (sizeof(T) == 4) return vec(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
    if constexpr (sizeof(T) == 8) return vec(vfmaq_f64(float64x2_t(c), float64x2_t(a), float64x2_t(b)));
#else
    return a * b + c;
#endif
  }
  // The first n lanes of p; the rest are zero and their memory is not touched.
  static inline vec load_part(const T* p, int n) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "masked loads exist for 4 and 8 byte lanes");
#if defined(__AVX512VL__)
    // As few bytes as will do: a masked load that reaches into the next line waits for that line, masked out or not.
    if constexpr (sizeof(T) == 4) {
      const auto mask = __mmask8((1u << n) - 1u);
      if (n <= 4) return vec(_mm512_insertf32x4(_mm512_setzero_ps(), _mm_maskz_loadu_ps(mask, p), 0));
      if (n <= 8) return vec(_mm512_insertf32x8(_mm512_setzero_ps(), _mm256_maskz_loadu_ps(mask, p), 0));
      return vec(_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1u), p));
    }
    if constexpr (sizeof(T) == 8) {
      const auto mask = __mmask8((1u << n) - 1u);
      if (n <= 4)
        return vec(_mm512_maskz_insertf64x4(__mmask8(-1), _mm512_setzero_pd(), _mm256_maskz_loadu_pd(mask, p), 0));
      return vec(_mm512_maskz_loadu_pd(mask, p));
    }
#elif defined(__AVX2__)
    // Masked stores take tens of cycles on some processors, and what they wrote is not forwarded to loads.
    if (__builtin_constant_p(n) && n * sizeof(T) == 16) {
      typedef float low __attribute__((vector_size(16), aligned(4), may_alias));
      return vec(_mm256_insertf128_ps(__m256{}, __m128(*reinterpret_cast<const low*>(p)), 0));
    }
    if (__builtin_constant_p(n) && n == 1) {
      vec v{};
      v[0] = *p;
      return v;
    }
    if constexpr (sizeof(T) == 4) return vec(_mm256_maskload_ps(reinterpret_cast<const float*>(p), lane_mask(n)));
    if constexpr (sizeof(T) == 8) return vec(_mm256_maskload_pd(reinterpret_cast<const double*>(p), lane_mask(n)));
#else
    vec v{};
    for (int lane = 0; lane < lanes; ++lane)
      if (lane < n) v[lane] = p[lane];
    return v;
#endif
  }
  static inline void store_part(T* p, vec v, int n) {
#if defined(__AVX512VL__)
    if (__builtin_constant_p(n) && n * sizeof(T) == 16) {
      std::memcpy(p, &v, 16);  // what a masked store wrote is not always forwarded to loads
      return;
    }
    if constexpr (sizeof(T) == 4) {
      if (n <= 8) {
        __m256 low;
        std::memcpy(&low, &v, sizeof(low));
        _mm256_mask_storeu_ps(p, __mmask8((1u << n) - 1u), low);
      } else {
        _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1u), __m512(v));
      }
    }
    if constexpr (sizeof(T) == 8) {
      if (n <= 4) {
        __m256d low;
        std::memcpy(&low, &v, sizeof(low));
        _mm256_mask_storeu_pd(p, __mmask8((1u << n) - 1u), low);
      } else {
        _mm512_mask_storeu_pd(p, __mmask8((1u << n) - 1u), __m512d(v));
      }
    }
#elif defined(__AVX2__)
    if (__builtin_constant_p(n) && n * sizeof(T) == 16) {
      std::memcpy(p, &v, 16);
      return;
    }
    if (__builtin_constant_p(n) && n == 1) {
      *p = v[0];
      return;
    }
    if constexpr (sizeof(T) == 4) _mm256_maskstore_ps(reinterpret_cast<float*>(p), lane_mask(n), __m256(v));
    if constexpr (sizeof(T) == 8) _mm256_maskstore_pd(reinterpret_cast<double*>(p), lane_mask(n), __m256d(v));
#else
    for (int lane = 0; lane < lanes; ++lane)
      if (lane < n) p[lane] = v[lane];
#endif
  }

#if defined(__AVX2__) && !defined(__AVX512VL__)
 private:
  // All ones in the first n lanes.
  static inline __m256i lane_mask(int n) {
    static constexpr int32_t window[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    __m256i mask;  // copied: no cast to a type whose alignment the compiler could believe
    std::memcpy(&mask, window + 8 - n * int(sizeof(T) / 4), sizeof(mask));
    return mask;
  }
#endif
};

using vf = simd<float>;
using vd = simd<double>;

}  // namespace gw
