// The processor's matrix tiles (AMX): registers of 16 rows of 64 bytes, and products of two of them that hold bfloat16
// numbers, summed in float. Defined where a processor of the level may have them.
#pragma once

#if defined(__AVX512F__) && defined(__linux__)
#define GW_MATRIX_TILES

#include <cstdint>

// Instructions as text: compilers do not say that tiles are loaded from memory and stored to it.
#define GW_TILE_LOAD(n, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n::"r"(from), "r"(int64_t(stride)) : "memory")
#define GW_TILE_STORE(n, to, stride) \
  __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" ::"r"(to), "r"(int64_t(stride)) : "memory")
#define GW_TILE_ZERO(n) __asm__ volatile("tilezero %tmm" #n)
#define GW_TILE_ADD(c, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)

namespace gw {

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) tile_shape {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void begin_tiles() {
  static const tile_shape shape;
  __asm__ volatile("ldtilecfg %0" ::"m"(shape));
}

inline void end_tiles() { __asm__ volatile("tilerelease"); }

}  // namespace gw

#endif
