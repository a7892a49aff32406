// How a row of columns is cut into panels of whole vectors, and the vector types the dense products' tiles are made of.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "graphweft/kept_buffers.h"
#include "graphweft/simd.h"

namespace gw {

// Float vectors of a given number of lanes: the native width, or half of it for the last few columns.
template <int Lanes>
struct float_lanes {
  typedef float vec __attribute__((vector_size(Lanes * 4)));
  typedef float unaligned __attribute__((vector_size(Lanes * 4), aligned(4), may_alias));
  static inline vec load(const float* p) { return *reinterpret_cast<const unaligned*>(p); }
  static inline void store(float* p, vec v) { *reinterpret_cast<unaligned*>(p) = v; }
  // Past the cache; p is a whole number of vectors into memory.
  static inline void stream(float* p, vec v) {
#if defined(__AVX512F__)
    if constexpr (Lanes == 16) return _mm512_stream_ps(p, __m512(v));
#endif
#if defined(__AVX2__)
    if constexpr (Lanes == 8) return _mm256_stream_ps(p, __m256(v));
#endif
    store(p, v);
  }
  // The first n lanes of p; the rest are zero and their memory is not touched. Half vectors have their own masked
  // instructions: cutting them out of native ones would pass through memory.
  static inline vec load_part(const float* p, int n) {
#if defined(__AVX512F__)
    if constexpr (Lanes < vf::lanes) return vec(_mm256_maskz_loadu_ps(__mmask8((1u << n) - 1u), p));
#elif defined(__AVX2__)
    if constexpr (Lanes < vf::lanes) return vec(_mm_maskload_ps(p, half_mask(n)));
#endif
    if constexpr (Lanes == vf::lanes) return vec(vf::load_part(p, n));
  }
  static inline void store_part(float* p, vec v, int n) {
#if defined(__AVX512F__)
    if constexpr (Lanes < vf::lanes) _mm256_mask_storeu_ps(p, __mmask8((1u << n) - 1u), __m256(v));
#elif defined(__AVX2__)
    if constexpr (Lanes < vf::lanes) _mm_maskstore_ps(p, half_mask(n), __m128(v));
#endif
    if constexpr (Lanes == vf::lanes) vf::store_part(p, vf::vec(v), n);
  }

#if defined(__AVX2__) && !defined(__AVX512F__)
 private:
  static inline __m128i half_mask(int n) { return _mm_cmpgt_epi32(_mm_set1_epi32(n), _mm_setr_epi32(0, 1, 2, 3)); }
#endif
};

// A tile holds tile_rows(vectors) x vectors accumulators: as many as the registers allow beside the operands.
#if defined(__AVX512F__)
inline constexpr int max_panel_vectors = 4;
constexpr int tile_rows(int vectors) { return 24 / vectors; }
#else
inline constexpr int max_panel_vectors = 2;
constexpr int tile_rows(int vectors) { return vectors == 1 ? 8 : 6; }
#endif
inline constexpr int half_lanes = vf::lanes >= 8 ? vf::lanes / 2 : vf::lanes;

// Columns [first, first + width) in `vectors` vectors of `lanes` lanes; the last vector may be padded.
struct panel {
  int64_t first;
  int width;
  int vectors;
  int lanes;
  int64_t offset;  // where the padded panel starts in a padded row
  [[nodiscard]] int padded() const noexcept { return vectors * lanes; }
};

// Cuts `width` columns into panels of nearly equal numbers of vectors; a remainder of at most half a vector gets one.
inline std::vector<panel> cut_panels(int64_t width) {
  const int64_t remainder = width % vf::lanes;
  const bool half = half_lanes < vf::lanes && remainder > 0 && remainder <= half_lanes;
  const int64_t vectors = half ? width / vf::lanes : (width + vf::lanes - 1) / vf::lanes;
  const int64_t count = (vectors + max_panel_vectors - 1) / max_panel_vectors;
  std::vector<panel> panels;
  panels.reserve(size_t(count + 1));
  int64_t first = 0, offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t mine = vectors / count + (i < vectors % count);
    const int64_t span = mine * vf::lanes;
    const int64_t inside = first + span < width ? span : width - first;
    panels.push_back({first, int(inside), int(mine), vf::lanes, offset});
    first += span;
    offset += span;
  }
  if (half) panels.push_back({first, int(width - first), 1, half_lanes, offset});
  return panels;
}

inline int64_t padded_width(const std::vector<panel>& panels) {
  return panels.empty() ? 0 : panels.back().offset + panels.back().padded();
}

}  // namespace gw
