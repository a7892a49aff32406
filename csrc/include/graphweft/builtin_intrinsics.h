// The few AVX intrinsics of simd.h and lanes.h by the names that GCC itself has for them. Reading <immintrin.h> takes
// half a second, longer than a kernel: units compiled at run time do without it. Not for clang, whose names differ.
#pragma once

namespace gw {

typedef float __m128 __attribute__((vector_size(16), may_alias));
typedef float __m256 __attribute__((vector_size(32), may_alias));
typedef double __m256d __attribute__((vector_size(32), may_alias));
typedef long long __m256i __attribute__((vector_size(32), may_alias));
typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef double __m512d __attribute__((vector_size(64), may_alias));
typedef unsigned char __mmask8;
typedef unsigned short __mmask16;

#define GW_INTRINSIC __attribute__((always_inline, artificial)) static inline

#if defined(__AVX512VL__)
typedef float gw_v4sf __attribute__((vector_size(16)));
typedef float gw_v8sf __attribute__((vector_size(32)));
typedef float gw_v16sf __attribute__((vector_size(64)));
typedef double gw_v4df __attribute__((vector_size(32)));
typedef double gw_v8df __attribute__((vector_size(64)));

GW_INTRINSIC __m512 _mm512_setzero_ps() { return __m512{}; }
GW_INTRINSIC __m128 _mm_maskz_loadu_ps(__mmask8 mask, const float* p) {
  return __m128(__builtin_ia32_loadups128_mask(p, gw_v4sf{}, mask));
}
GW_INTRINSIC __m256 _mm256_maskz_loadu_ps(__mmask8 mask, const float* p) {
  return __m256(__builtin_ia32_loadups256_mask(p, gw_v8sf{}, mask));
}
GW_INTRINSIC __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* p) {
  return __m512(__builtin_ia32_loadups512_mask(p, gw_v16sf{}, mask));
}
GW_INTRINSIC __m512d _mm512_setzero_pd() { return __m512d{}; }
GW_INTRINSIC __m256d _mm256_maskz_loadu_pd(__mmask8 mask, const double* p) {
  return __m256d(__builtin_ia32_loadupd256_mask(p, gw_v4df{}, mask));
}
GW_INTRINSIC __m512d _mm512_maskz_loadu_pd(__mmask8 mask, const double* p) {
  return __m512d(__builtin_ia32_loadupd512_mask(p, gw_v8df{}, mask));
}
// Only ever asked for the lowest part.
GW_INTRINSIC __m512 _mm512_insertf32x4(__m512 a, __m128 b, int) {
  return __m512(__builtin_ia32_insertf32x4_mask(gw_v16sf(a), gw_v4sf(b), 0, gw_v16sf{}, __mmask16(-1)));
}
GW_INTRINSIC __m512 _mm512_insertf32x8(__m512 a, __m256 b, int) {
  return __m512(__builtin_ia32_insertf32x8_mask(gw_v16sf(a), gw_v8sf(b), 0, gw_v16sf{}, __mmask16(-1)));
}
GW_INTRINSIC __m512d _mm512_maskz_insertf64x4(__mmask8 mask, __m512d a, __m256d b, int) {
  return __m512d(__builtin_ia32_insertf64x4_mask(gw_v8df(a), gw_v4df(b), 0, gw_v8df{}, mask));
}
GW_INTRINSIC void _mm256_mask_storeu_ps(float* p, __mmask8 mask, __m256 v) {
  __builtin_ia32_storeups256_mask(p, gw_v8sf(v), mask);
}
GW_INTRINSIC void _mm512_mask_storeu_ps(float* p, __mmask16 mask, __m512 v) {
  __builtin_ia32_storeups512_mask(p, gw_v16sf(v), mask);
}
GW_INTRINSIC void _mm256_mask_storeu_pd(double* p, __mmask8 mask, __m256d v) {
  __builtin_ia32_storeupd256_mask(p, gw_v4df(v), mask);
}
GW_INTRINSIC void _mm512_mask_storeu_pd(double* p, __mmask8 mask, __m512d v) {
  __builtin_ia32_storeupd512_mask(p, gw_v8df(v), mask);
}
GW_INTRINSIC __m512 _mm512_sqrt_ps(__m512 v) {
  return __m512(__builtin_ia32_sqrtps512_mask(gw_v16sf(v), gw_v16sf{}, __mmask16(-1), 4));  // 4: as the mode is set
}
GW_INTRINSIC __m512d _mm512_sqrt_pd(__m512d v) {
  return __m512d(__builtin_ia32_sqrtpd512_mask(gw_v8df(v), gw_v8df{}, __mmask8(-1), 4));
}
GW_INTRINSIC __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return __m512(__builtin_ia32_vfmaddps512_mask(gw_v16sf(a), gw_v16sf(b), gw_v16sf(c), __mmask16(-1), 4));
}
GW_INTRINSIC __m512d _mm512_fmadd_pd(__m512d a, __m512d b, __m512d c) {
  return __m512d(__builtin_ia32_vfmaddpd512_mask(gw_v8df(a), gw_v8df(b), gw_v8df(c), __mmask8(-1), 4));
}
#elif defined(__AVX2__)
typedef float gw_v4sf __attribute__((vector_size(16)));
typedef float gw_v8sf __attribute__((vector_size(32)));
typedef double gw_v4df __attribute__((vector_size(32)));
typedef int gw_v8si __attribute__((vector_size(32)));
typedef long long gw_v4di __attribute__((vector_size(32)));

GW_INTRINSIC __m256 _mm256_insertf128_ps(__m256 a, __m128 b, int) {
  return __m256(__builtin_ia32_vinsertf128_ps256(gw_v8sf(a), gw_v4sf(b), 0));
}
GW_INTRINSIC __m256 _mm256_maskload_ps(const float* p, __m256i mask) {
  return __m256(__builtin_ia32_maskloadps256(reinterpret_cast<const gw_v8sf*>(p), gw_v8si(mask)));
}
GW_INTRINSIC __m256d _mm256_maskload_pd(const double* p, __m256i mask) {
  return __m256d(__builtin_ia32_maskloadpd256(reinterpret_cast<const gw_v4df*>(p), gw_v4di(mask)));
}
GW_INTRINSIC void _mm256_maskstore_ps(float* p, __m256i mask, __m256 v) {
  __builtin_ia32_maskstoreps256(reinterpret_cast<gw_v8sf*>(p), gw_v8si(mask), gw_v8sf(v));
}
GW_INTRINSIC void _mm256_maskstore_pd(double* p, __m256i mask, __m256d v) {
  __builtin_ia32_maskstorepd256(reinterpret_cast<gw_v4df*>(p), gw_v4di(mask), gw_v4df(v));
}
GW_INTRINSIC __m256 _mm256_sqrt_ps(__m256 v) { return __m256(__builtin_ia32_sqrtps256(gw_v8sf(v))); }
GW_INTRINSIC __m256d _mm256_sqrt_pd(__m256d v) { return __m256d(__builtin_ia32_sqrtpd256(gw_v4df(v))); }
#if defined(__FMA__)
GW_INTRINSIC __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c) {
  return __m256(__builtin_ia32_vfmaddps256(gw_v8sf(a), gw_v8sf(b), gw_v8sf(c)));
}
GW_INTRINSIC __m256d _mm256_fmadd_pd(__m256d a, __m256d b, __m256d c) {
  return __m256d(__builtin_ia32_vfmaddpd256(gw_v4df(a), gw_v4df(b), gw_v4df(c)));
}
#endif
#endif

#undef GW_INTRINSIC

}  // namespace gw
