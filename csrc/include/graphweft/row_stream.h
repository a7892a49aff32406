// Rows of a matrix read in the order of an adjacency's columns, with those to come brought near in time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "graphweft/simd.h"

namespace gw {

// Brings the lines of `Bytes` bytes at p into the first-level cache (Near) or the second. Always inline: as a function
// it has no effect that GCC sees, and calls of it are dropped.
template <int Bytes, bool Near>
GW_INLINE void prefetch_tile(const void* p) {
  for (int at = 0; at < Bytes; at += 64) {
    if constexpr (Near)
      __builtin_prefetch(static_cast<const char*>(p) + at, 0, 3);
    else
      __builtin_prefetch(static_cast<const char*>(p) + at, 0, 2);
  }
}

// How many edges ahead to prefetch: 0 when the rows stay in a core's own cache anyway; a short way when they stay in
// the shared cache; else what keeps some 24 KB in flight, which is what hides a read from memory on current processors.
inline int prefetch_distance(int64_t num_rows, int64_t tile_bytes) {
  constexpr int64_t own_bytes = 5 << 18, shared_bytes = 12 << 20, bytes_in_flight = 24 << 10;
  if (tile_bytes <= 0 || num_rows <= own_bytes / tile_bytes) return 0;
  if (num_rows <= shared_bytes / tile_bytes) return 32;
  return int(std::clamp<int64_t>(bytes_in_flight / tile_bytes, 16, 256));
}

// Tiles of `Bytes` bytes at base + column * row_bytes for the edges of one piece, which ends at `last_edge`.
template <class Index, int Bytes>
class row_stream {
 public:
  row_stream(const void* base, int64_t row_bytes, const Index* columns, int64_t far, int64_t last_edge)
      : base_(static_cast<const char*>(base)),
        row_bytes_(row_bytes),
        columns_(columns),
        far_(far),
        near_(std::min<int64_t>(far, 4)),
        last_edge_(last_edge),
        fetch_end_(far > 0 ? last_edge - far : 0) {}

  // Requests the first rows of the piece.
  void start(int64_t edge) const {
    for (const int64_t end = std::min(last_edge_, edge + far_); edge < end; ++edge)
      prefetch_tile<Bytes, false>(at(columns_[edge]));
  }

  // Calls body(p, address of the tile) for the edges p in [begin, end) in order.
  template <class Body>
  GW_INLINE void visit(int64_t begin, int64_t end, Body&& body) const {
    int64_t p = begin;
    for (const int64_t fetched = std::min(end, fetch_end_); p < fetched; ++p) {
      prefetch_tile<Bytes, false>(at(columns_[p + far_]));
      prefetch_tile<Bytes, true>(at(columns_[p + near_]));
      body(p, at(columns_[p]));
    }
    for (; p < end; ++p) body(p, at(columns_[p]));
  }

  [[nodiscard]] GW_INLINE const char* at(int64_t column) const { return base_ + column * row_bytes_; }
  [[nodiscard]] GW_INLINE const char* after(const char* row, int64_t columns) const {
    return row + columns * row_bytes_;
  }

 private:
  const char* base_;
  int64_t row_bytes_;
  const Index* columns_;
  int64_t far_, near_, last_edge_, fetch_end_;
};

}  // namespace gw
