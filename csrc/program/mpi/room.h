// Buffers that have a row for each own node, and room behind them for the rows of ghosts, in one stretch of memory.
#pragma once

#include <cstdint>

#include "memory.h"

namespace program {

class Room {
 public:
  Room(int64_t rows, int64_t columns) : rows_((rows + line - 1) / line * line), arena_(4 * rows_ * columns) {}
  // The buffer in front of which lie buffers of so many columns.
  template <class T = float>
  [[nodiscard]] T* at(int64_t columns) const {
    static_assert(sizeof(T) == 4, "columns of numbers of four bytes");
    return arena_.at<T>(4 * rows_ * columns);
  }

 private:
  static constexpr int64_t line = 16;  // floats of a cache line
  const int64_t rows_;
  const Arena arena_;
};

}  // namespace program
