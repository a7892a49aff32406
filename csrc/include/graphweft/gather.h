// Rows of a table, by id, at the speed of memory: rows to come are fetched ahead in two steps, and what is written
// bypasses the cache where that pays. A core has few fetches into its first cache under way at once, and more than
// twice as many into its second: far rows are fetched into that one, near ones from there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "graphweft/abi.h"
#include "graphweft/lines.h"
#include "graphweft/parallel.h"

namespace gw {

inline void gather_rows(const char* table, int64_t rows, int64_t stride, int64_t bytes, const int64_t* ids, int64_t n,
                        char* out) {
  const int64_t total = checked_mul(n, bytes);
  const int64_t width = std::max<int64_t>(bytes, 1);
  const int64_t far = std::clamp<int64_t>(6144 / width, 4, 64), near = std::clamp<int64_t>(1024 / width, 1, 8);
  const int64_t grain = std::max<int64_t>(64, (int64_t{1} << 18) / width);
  const bool stream = streams_rows(total, bytes) && bytes % 4 == 0 && reinterpret_cast<uintptr_t>(out) % 4 == 0;
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + far < end && uint64_t(ids[i + far]) < uint64_t(rows)) fetch_row<2>(table + ids[i + far] * stride, bytes);
      if (i + near < end && uint64_t(ids[i + near]) < uint64_t(rows))
        fetch_row<3>(table + ids[i + near] * stride, bytes);
      if (uint64_t(ids[i]) >= uint64_t(rows))
        throw error(out_of_range, "gather_rows: expected ids in [0, " + std::to_string(rows) + "), got " +
                                      std::to_string(ids[i]) + " at position " + std::to_string(i));
      const char* const from = table + ids[i] * stride;
      if (stream)
        stream_row(from, bytes, out + i * bytes);
      else if (bytes > 0)
        std::memcpy(out + i * bytes, from, size_t(bytes));
    }
    finish_streams();
  });
}

}  // namespace gw
