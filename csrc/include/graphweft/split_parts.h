// Floats as sums of three bfloat16 numbers, 8 + 8 + 8 bits, and products of such sums by matrix tiles: the six products
// of parts that matter to a float, added up in float. The parts of a product that are left out are below 2^-26 of it.
//
// Nothing else than the order of additions tells such a product from one of floats, but for what bfloat16 products do
// with numbers below 1.2e-38: they are taken as zero, parts among them, so products of numbers below 1e-33 lose digits.
// Numbers that are not finite, or within half a percent of the largest float, have no parts: callers look for them and
// multiply floats.
#pragma once

#include <cstdint>
#include <cstring>

#include "graphweft/gemm.h"
#include "graphweft/half_pack.h"
#include "graphweft/matrix_tiles.h"

namespace gw {

inline constexpr int64_t split_step = 32;                    // of the inner dimension, that one tile holds
inline constexpr int64_t split_words = 6 * 16 * half_panel;  // of 32 rows or columns: two tiles for each part
inline constexpr int64_t split_part = 2 * 16 * half_panel;
inline constexpr int64_t split_depth =
    4;  // steps whose tiles stay in the first cache beside those they are multiplied by

// Whether all numbers that are split are finite, and far enough from the largest float to be split.
class split_check {
 public:
  // What is left of a number when its first two parts are taken off is zero times nothing but zero.
  GW_INLINE void look(half_sums low, half_sums high) {
    low_ += low * 0.0f;
    high_ += high * 0.0f;
  }
  [[nodiscard]] bool holds() const {
    const half_sums both = low_ + high_;
    bool all = true;
    for (int lane = 0; lane < half_panel; ++lane) all = all && both[lane] == 0.0f;
    return all;
  }

 private:
  half_sums low_ = {}, high_ = {};
};

// Parts of `low` in the low halves of words and those of `high` in the high ones, largest first. Their sums are exact.
GW_INLINE void split_lanes(half_sums low, half_sums high, half_words (&parts)[3], split_check& check) {
  constexpr uint32_t half = 0x8000u, upper = 0xffff0000u;
  for (int part = 0; part < 2; ++part) {
    const half_words a = (half_words(low) + half) & upper, b = (half_words(high) + half) & upper;
    parts[part] = (a >> 16) | b;
    low -= half_sums(a);
    high -= half_sums(b);
  }
  parts[2] =
      (half_words(low) >> 16) | (half_words(high) & upper);  // 8 bits are left, but of numbers that count as zero
  check.look(low, high);
}

GW_INLINE void store_parts(const half_words (&parts)[3], uint32_t* out) {
  for (int part = 0; part < 3; ++part) std::memcpy(out + part * split_part, &parts[part], sizeof parts[part]);
}

#if defined(GW_MATRIX_TILES)

// A thread's products are made while this lives.
struct split_session {
  split_session() { begin_tiles(); }
  ~split_session() { end_tiles(); }
  split_session(const split_session&) = delete;
  split_session& operator=(const split_session&) = delete;
};

// Sums of so many steps of 32 rows of A and 16 `Wide` columns of B, `ld` floats from row to row. `look()` is called six
// times a step.
template <int Wide, class Look>
GW_INLINE void multiply_parts(const uint32_t* a, const uint32_t* b, int64_t steps, Look&& look, float* sums,
                              int64_t ld) {
  constexpr int64_t tile = 16 * half_panel, line = 64;
  const int64_t bytes = 4 * ld;
  float* const lower = sums + 16 * ld;
#define GW_SPLIT_A(part)                          \
  GW_TILE_LOAD(4, a + (part) * split_part, line); \
  GW_TILE_LOAD(5, a + (part) * split_part + tile, line)
#define GW_SPLIT_B(part)                          \
  GW_TILE_LOAD(6, b + (part) * split_part, line); \
  if constexpr (Wide == 2) GW_TILE_LOAD(7, b + (part) * split_part + tile, line)
#define GW_SPLIT_ADD()                           \
  GW_TILE_ADD(0, 4, 6);                          \
  if constexpr (Wide == 2) GW_TILE_ADD(1, 4, 7); \
  GW_TILE_ADD(2, 5, 6);                          \
  if constexpr (Wide == 2) GW_TILE_ADD(3, 5, 7)
  GW_TILE_ZERO(0);
  GW_TILE_ZERO(1);
  GW_TILE_ZERO(2);
  GW_TILE_ZERO(3);
  // Small products first: the sum is still small then, so nothing is lost when they are added to it.
  const uint32_t *const first_a = a, *const first_b = b;
  for (int64_t step = 0; step < steps; ++step, a += split_words, b += split_words) {
    look();
    GW_SPLIT_A(2);
    GW_SPLIT_B(0);
    GW_SPLIT_ADD();
    look();
    GW_SPLIT_A(1);
    GW_SPLIT_ADD();
    look();
    GW_SPLIT_B(1);
    GW_SPLIT_ADD();
    look();
    GW_SPLIT_A(0);
    GW_SPLIT_ADD();
    look();
    GW_SPLIT_B(2);
    GW_SPLIT_ADD();
  }
  a = first_a, b = first_b;
  for (int64_t step = 0; step < steps; ++step, a += split_words, b += split_words) {
    look();
    GW_SPLIT_A(0);
    GW_SPLIT_B(0);
    GW_SPLIT_ADD();
  }
  GW_TILE_STORE(0, sums, bytes);
  GW_TILE_STORE(2, lower, bytes);
  if constexpr (Wide == 2) {
    GW_TILE_STORE(1, sums + half_panel, bytes);
    GW_TILE_STORE(3, lower + half_panel, bytes);
  }
#undef GW_SPLIT_A
#undef GW_SPLIT_B
#undef GW_SPLIT_ADD
}

// Sums of 32 rows and 16 `Wide` columns = those that are there if `add`, and the products of up to `split_depth` steps.
template <int Wide, class Look>
inline void multiply_split(const uint32_t* a, const uint32_t* b, int64_t steps, bool add, Look&& look, float* sums,
                           int64_t ld) {
  if (!add) return multiply_parts<Wide>(a, b, steps, look, sums, ld);
  alignas(64) float more[32 * 32];
  multiply_parts<Wide>(a, b, steps, look, more, 32);
  for (int64_t i = 0; i < 32; ++i, sums += ld)
    for (int64_t lane = 0; lane < Wide * half_panel; lane += half_panel) {
      const half_sums total = load_lanes(sums + lane, half_panel) + load_lanes(more + 32 * i + lane, half_panel);
      std::memcpy(sums + lane, &total, sizeof total);
    }
}

#endif

}  // namespace gw
