// Rows of a table that is stored in float or in bfloat16, read as float.
#pragma once

#include <cstdint>
#include <cstring>

#include "graphweft/element.h"

namespace gw {

struct stored_rows {
  const void* x;
  int64_t ld;                     // elements between rows
  bool half;                      // bfloat16
  const int64_t* rows = nullptr;  // row i is row rows[i] of x; null: row i

  [[nodiscard]] int64_t bytes(int64_t count) const noexcept {
    return count * int64_t(half ? sizeof(uint16_t) : sizeof(float));
  }
  // Row i from column `first` on.
  [[nodiscard]] const char* at(int64_t i, int64_t first = 0) const noexcept {
    return static_cast<const char*>(x) + bytes((rows ? rows[i] : i) * ld + first);
  }
  // `count` columns of row i, from `first` on.
  void read(int64_t i, int64_t first, int64_t count, float* out) const {
    if (!half) {
      std::memcpy(out, at(i, first), size_t(count) * sizeof(float));
      return;
    }
    const auto* from = reinterpret_cast<const uint16_t*>(at(i, first));
    int64_t col = 0;
    for (; col + bf16::lanes <= count; col += bf16::lanes) f32::store(out + col, bf16::load(from + col));
    for (; col < count; ++col) {
      const uint32_t bits = uint32_t(from[col]) << 16;
      std::memcpy(out + col, &bits, sizeof bits);
    }
  }
  // Columns [first, first + width) of rows [begin, begin + count), side by side.
  void pick(int64_t begin, int64_t count, int64_t first, int64_t width, float* out) const {
    for (int64_t i = begin; i < begin + count; ++i, out += width) read(i, first, width, out);
  }
};

}  // namespace gw
