// Comparisons of kernels with plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace program {

inline std::mt19937 draws(1);

// Numbers that do not lie in an arena, and the same for a plain loop.
struct Table {
  Numbers<float> numbers;
  int64_t rows, cols;

  Table(int64_t of_rows, int64_t of_cols, bool filled = true)
      : numbers(size_t(of_rows * of_cols)), rows(of_rows), cols(of_cols) {
    for (float& x : numbers) x = filled ? float(draws() % 2001) / 1000.0f - 1.0f : NAN;
  }
  [[nodiscard]] Matrix matrix() { return {numbers.data(), rows, cols}; }
  [[nodiscard]] double at(int64_t row, int64_t col) const { return double(numbers[size_t(row * cols + col)]); }
};

inline int failures = 0;

// Says whether the numbers that a kernel made are those of wanted(row, col).
template <class Wanted>
void compare(const char* name, const Table& found, Wanted&& wanted) {
  finish();
  double most = 0.0;
  for (int64_t row = 0; row < found.rows; ++row)
    for (int64_t col = 0; col < found.cols; ++col) {
      const double exact = wanted(row, col);
      const double off = std::abs(found.at(row, col) - exact) / std::max(std::abs(exact), 1.0);
      most = off <= most ? most : off;  // not a number counts as well
    }
  const bool is_right = most <= 3e-5;
  failures += !is_right;
  std::printf("%-20s %s %.1e\n", name, is_right ? "right" : "WRONG", most);
}

// Tests of kernels that not every program has; each file of some adds its own.
inline std::vector<void (*)()>& more_tests() {
  static std::vector<void (*)()> found;
  return found;
}

}  // namespace program
