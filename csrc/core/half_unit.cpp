// The units that multiply bfloat16 numbers, and which of them this processor has.
#include "graphweft/half_unit.h"

#include <atomic>

#include "graphweft/cpu_level.h"
#include "graphweft/matrix_tiles.h"

#if defined(__AVX512F__)
#define GW_HALF_INSTRUCTIONS
#include <immintrin.h>
#endif

namespace gw {
namespace {

void nothing() {}

// Word `p` of row `row` of A; that of the next row of its block is lda words behind it.
GW_INLINE const uint32_t* words_of(const half_tile& tile, int row, int64_t p) {
  return tile.a + row / 16 * tile.lower + row % 16 * tile.lda + p / 16 * tile.next + p % 16;
}

// Words widen to two floats by a shift and a mask.
template <int Rows>
GW_INLINE void multiply_rows(const half_tile& tile, int row, int panel) {
  half_sums sums[Rows];
  for (int r = 0; r < Rows; ++r) {
    sums[r] = half_sums{};
    if (tile.add) std::memcpy(&sums[r], tile.c + (row + r) * tile.ldc + panel * half_panel, sizeof(half_sums));
  }
  const uint32_t* b = tile.b + panel * tile.ldb;
  for (int64_t p = 0; p < tile.pairs; ++p) {
    const uint32_t* const a = words_of(tile, row, p);
    half_words both;
    std::memcpy(&both, b + p * half_panel, sizeof both);
    const half_sums first = half_sums(both << 16), second = half_sums(both & 0xffff0000u);
    for (int r = 0; r < Rows; ++r) {
      const uint32_t word = a[r * tile.lda], upper = word & 0xffff0000u, lower = word << 16;
      float x, y;
      std::memcpy(&x, &lower, sizeof x);
      std::memcpy(&y, &upper, sizeof y);
      sums[r] += x * first;
      sums[r] += y * second;
    }
  }
  for (int r = 0; r < Rows; ++r)
    std::memcpy(tile.c + (row + r) * tile.ldc + panel * half_panel, &sums[r], sizeof(half_sums));
}

void multiply_by_vectors(const half_tile& tile) {
  for (int panel = 0; panel < tile.wide; ++panel)
    for (int row = 0; row < 16 * tile.tall; row += 2) multiply_rows<2>(tile, row, panel);
}

#if defined(GW_HALF_INSTRUCTIONS)

template <int Rows, int Wide>
__attribute__((target("avx512bf16"))) inline void multiply_pairs(const half_tile& tile, int row) {
  __m512 sums[Rows][Wide];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Wide; ++v)
      sums[r][v] = tile.add ? _mm512_loadu_ps(tile.c + (row + r) * tile.ldc + v * half_panel) : _mm512_setzero_ps();
  const uint32_t* b = tile.b;
  for (int64_t p = 0; p < tile.pairs; ++p, b += half_panel) {
    const uint32_t* const a = words_of(tile, row, p);
    __m512bh w[Wide];
#pragma GCC unroll 2
    for (int v = 0; v < Wide; ++v) w[v] = (__m512bh)_mm512_loadu_si512(b + v * tile.ldb);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const __m512bh x = (__m512bh)_mm512_set1_epi32(int(a[r * tile.lda]));
#pragma GCC unroll 2
      for (int v = 0; v < Wide; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, w[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Wide; ++v) _mm512_storeu_ps(tile.c + (row + r) * tile.ldc + v * half_panel, sums[r][v]);
}

__attribute__((target("avx512bf16"))) void multiply_by_pairs(const half_tile& tile) {
  for (int row = 0; row < 16 * tile.tall; row += 8)
    tile.wide == 2 ? multiply_pairs<8, 2>(tile, row) : multiply_pairs<8, 1>(tile, row);
}

bool has_pairs() { return cpu_level() == 2 && (cpu_feature_word(1, 0) >> 5 & 1u) != 0; }

#endif
#if defined(GW_MATRIX_TILES)

// Tiles 0 to 3 are C, 4 and 5 A, 6 and 7 B.
template <int Tall, int Wide>
void multiply_tiles(const half_tile& tile) {
  const int64_t lda = 4 * tile.lda, ldc = 4 * tile.ldc;
  float* const lower = tile.c + 16 * tile.ldc;
  if (tile.add) {
    GW_TILE_LOAD(0, tile.c, ldc);
    if constexpr (Wide == 2) GW_TILE_LOAD(1, tile.c + 16, ldc);
    if constexpr (Tall == 2) GW_TILE_LOAD(2, lower, ldc);
    if constexpr (Tall == 2 && Wide == 2) GW_TILE_LOAD(3, lower + 16, ldc);
  } else {
    GW_TILE_ZERO(0);
    if constexpr (Wide == 2) GW_TILE_ZERO(1);
    if constexpr (Tall == 2) GW_TILE_ZERO(2);
    if constexpr (Tall == 2 && Wide == 2) GW_TILE_ZERO(3);
  }
  const uint32_t *a = tile.a, *b = tile.b;
  for (int64_t p = 0; p < tile.pairs; p += 16, a += tile.next, b += 16 * half_panel) {
    GW_TILE_LOAD(6, b, 64);
    GW_TILE_LOAD(4, a, lda);
    GW_TILE_ADD(0, 4, 6);
    if constexpr (Wide == 2) {
      GW_TILE_LOAD(7, b + tile.ldb, 64);
      GW_TILE_ADD(1, 4, 7);
    }
    if constexpr (Tall == 2) {
      GW_TILE_LOAD(5, a + tile.lower, lda);
      GW_TILE_ADD(2, 5, 6);
    }
    if constexpr (Tall == 2 && Wide == 2) GW_TILE_ADD(3, 5, 7);
  }
  GW_TILE_STORE(0, tile.c, ldc);
  if constexpr (Wide == 2) GW_TILE_STORE(1, tile.c + 16, ldc);
  if constexpr (Tall == 2) GW_TILE_STORE(2, lower, ldc);
  if constexpr (Tall == 2 && Wide == 2) GW_TILE_STORE(3, lower + 16, ldc);
}

void multiply_by_tiles(const half_tile& tile) {
  if (tile.tall == 2) return tile.wide == 2 ? multiply_tiles<2, 2>(tile) : multiply_tiles<2, 1>(tile);
  tile.wide == 2 ? multiply_tiles<1, 2>(tile) : multiply_tiles<1, 1>(tile);
}

#endif

constexpr half_unit by_vectors{half_unit::vectors, nothing, nothing, multiply_by_vectors};
#if defined(GW_HALF_INSTRUCTIONS)
constexpr half_unit by_pairs{half_unit::pairs, nothing, nothing, multiply_by_pairs};
#endif
#if defined(GW_MATRIX_TILES)
constexpr half_unit by_tiles{half_unit::tiles, begin_tiles, end_tiles, multiply_by_tiles};
#endif

std::atomic<int32_t> highest{half_unit::tiles};

}  // namespace

const half_unit& find_half_unit() {
  [[maybe_unused]] const int32_t most = highest.load(std::memory_order_relaxed);
#if defined(GW_MATRIX_TILES)
  static const bool tiles = has_pairs() && cpu_has_tiles();
  if (tiles && most >= half_unit::tiles) return by_tiles;
#endif
#if defined(GW_HALF_INSTRUCTIONS)
  static const bool pairs = has_pairs();
  if (pairs && most >= half_unit::pairs) return by_pairs;
#endif
  return by_vectors;
}

void limit_half_unit(int32_t most) { highest.store(most, std::memory_order_relaxed); }

}  // namespace gw
