// Rows of a table that is stored in 8 bits, with a scale and an offset a column, read as float. A scale has at most 16
// significant bits, so its product with a level is exact and the number is rounded once, fused or not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "graphweft/abi.h"
#include "graphweft/lines.h"
#include "graphweft/parallel.h"

namespace gw {

struct int8_table {
  const int8_t* levels;  // [rows, width], ld elements between rows
  int64_t rows, width, ld;
  const float *scale, *offset;  // [width]

  void read(int64_t row, float* out) const {
    const int8_t* const from = levels + row * ld;
    for (int64_t c = 0; c < width; ++c) out[c] = float(from[c]) * scale[c] + offset[c];
  }
};

// out[i] = row ids[i] of the table, or row i where ids is null; rows to come are fetched ahead.
inline void gather_int8_rows(const int8_table& table, const int64_t* ids, int64_t n, float* out) {
  const int64_t bytes = std::max<int64_t>(table.width, 1), ahead = std::clamp<int64_t>(4096 / bytes, 2, 32);
  const auto wrong = [&](int64_t i) { return uint64_t(ids[i]) >= uint64_t(table.rows); };
  parallel_ranges(n, std::max<int64_t>(64, (int64_t{1} << 16) / bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (ids && i + ahead < end && !wrong(i + ahead))
        fetch_row<3>(reinterpret_cast<const char*>(table.levels + ids[i + ahead] * table.ld), bytes);
      if (ids && wrong(i))
        throw error(out_of_range, "gather_rows: expected ids in [0, " + std::to_string(table.rows) + "), got " +
                                      std::to_string(ids[i]) + " at position " + std::to_string(i));
      table.read(ids ? ids[i] : i, out + i * table.width);
    }
  });
}

}  // namespace gw
