// The units that multiply bfloat16 numbers, and which of them this processor has.
#include "graphweft/half_unit.h"

#include <atomic>

#include "graphweft/cpu_level.h"

#if defined(__AVX512F__)
#define GW_HALF_INSTRUCTIONS
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(GW_HALF_INSTRUCTIONS) && defined(__linux__)
#define GW_HALF_TILES
#include <sys/syscall.h>
#include <unistd.h>
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

// Word `reg` of cpuid's leaf 7, as eax, ebx, ecx, edx.
uint32_t feature_word(unsigned sub, int reg) {
  unsigned words[4] = {};
  if (!__get_cpuid_count(7, sub, &words[0], &words[1], &words[2], &words[3])) return 0;
  return words[reg];
}

bool has_pairs() { return cpu_level() == 2 && (feature_word(1, 0) >> 5 & 1u) != 0; }

#endif
#if defined(GW_HALF_TILES)

// Instructions as text: compilers do not say that tiles are loaded from memory and stored to it.
#define GW_TILE_LOAD(n, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n::"r"(from), "r"(int64_t(stride)) : "memory")
#define GW_TILE_STORE(n, to, stride) \
  __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" ::"r"(to), "r"(int64_t(stride)) : "memory")
#define GW_TILE_ZERO(n) __asm__ volatile("tilezero %tmm" #n)
#define GW_TILE_ADD(c, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) tile_shape {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void begin_tiles() {
  static const tile_shape shape;
  __asm__ volatile("ldtilecfg %0" ::"m"(shape));
}

void end_tiles() { __asm__ volatile("tilerelease"); }

constexpr int lines_a_step = 8;  // that come from memory in the time of four products of tiles

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
    tile.coming->fetch(lines_a_step);
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

// The system gives a process the tiles' registers when it asks for them.
bool has_tiles() {
  constexpr long ask = 0x1023, tile_data = 18;
  const uint32_t features = feature_word(0, 3);
  if (!has_pairs() || (features >> 22 & 1u) == 0 || (features >> 24 & 1u) == 0) return false;
  return syscall(SYS_arch_prctl, ask, tile_data) == 0;
}

#endif

constexpr half_unit by_vectors{half_unit::vectors, nothing, nothing, multiply_by_vectors};
#if defined(GW_HALF_INSTRUCTIONS)
constexpr half_unit by_pairs{half_unit::pairs, nothing, nothing, multiply_by_pairs};
#endif
#if defined(GW_HALF_TILES)
constexpr half_unit by_tiles{half_unit::tiles, begin_tiles, end_tiles, multiply_by_tiles};
#endif

std::atomic<int32_t> highest{half_unit::tiles};

}  // namespace

const half_unit& find_half_unit() {
  [[maybe_unused]] const int32_t most = highest.load(std::memory_order_relaxed);
#if defined(GW_HALF_TILES)
  static const bool tiles = has_tiles();
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
