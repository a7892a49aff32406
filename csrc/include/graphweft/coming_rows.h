// Rows of a table that are read soon: they are fetched into the second cache while products are made, which would leave
// memory idle otherwise.
#pragma once

#include <algorithm>
#include <cstdint>

#include "graphweft/abi.h"
#include "graphweft/lines.h"
#include "graphweft/stored_rows.h"

namespace gw {

class coming_rows {
 public:
  coming_rows() = default;
  // Columns [first, first + width) of rows [begin, end).
  coming_rows(const stored_rows& rows, int64_t first, int64_t width, int64_t begin, int64_t end)
      : table_(static_cast<const char*>(rows.x) + rows.bytes(first)),
        pitch_(rows.bytes(rows.ld)),
        bytes_(rows.bytes(width)),
        wide_(rows.rows),
        at_(begin),
        end_(end) {}
  // The first `width` columns of the rows at edges [begin, end).
  coming_rows(const stored_rows& rows, int64_t width, const gw_adjacency& edges, int64_t begin, int64_t end)
      : coming_rows(rows, 0, width, begin, end) {
    if (edges.wide)
      wide_ = static_cast<const int64_t*>(edges.indices);
    else
      narrow_ = static_cast<const int32_t*>(edges.indices);
  }

  // Fetches the next `lines` lines. A core has few fetches under way, so many at once would make it wait.
  GW_INLINE void fetch(int lines) {
    for (; lines > 0; --lines, line_ += line_bytes) {
      if (line_ >= row_end_) {
        if (at_ >= end_) return;
        const char* const row = table_ + (narrow_ ? int64_t(narrow_[at_]) : wide_ ? wide_[at_] : at_) * pitch_;
        line_ = row - reinterpret_cast<uintptr_t>(row) % line_bytes;
        row_end_ = row + bytes_;
        ++at_;
      }
      __builtin_prefetch(line_, 0, 2);
    }
  }

 private:
  const char* table_ = nullptr;
  int64_t pitch_ = 0, bytes_ = 0;
  const int64_t* wide_ = nullptr;  // row i is row wide_[i] or narrow_[i] of the table
  const int32_t* narrow_ = nullptr;
  int64_t at_ = 0, end_ = 0;
  const char *line_ = nullptr, *row_end_ = nullptr;  // of the row under way
};

}  // namespace gw
