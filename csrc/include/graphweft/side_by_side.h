// Some of the graphs that lie side by side in one block-diagonal graph, again side by side. The rows of a graph lie
// together, and so do its edges: every array is a shifted copy, nothing is counted or sorted.
#pragma once

#include <cstdint>
#include <cstring>

#include "graphweft/csr.h"

namespace gw {

constexpr int64_t part_grain = 16;

// Offsets of the ranges `ids` of `ptr` one after the other.
inline void part_offsets(const int64_t* ptr, const int64_t* ids, int64_t n, int64_t* out) {
  out[0] = 0;
  for (int64_t i = 0; i < n; ++i) out[i + 1] = out[i] + ptr[ids[i] + 1] - ptr[ids[i]];
}

// The places in `ptr`'s ranges that stand at out_ptr[i] to out_ptr[i + 1], and which range it is that they are in.
inline void part_places(const int64_t* ptr, const int64_t* ids, int64_t n, const int64_t* out_ptr, int64_t* places,
                        int64_t* owners) {
  parallel_ranges(n, part_grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t shift = ptr[ids[i]] - out_ptr[i];
      if (places != nullptr)
        for (int64_t p = out_ptr[i]; p < out_ptr[i + 1]; ++p) places[p] = p + shift;
      if (owners != nullptr)
        for (int64_t p = out_ptr[i]; p < out_ptr[i + 1]; ++p) owners[p] = i;
    }
  });
}

// The rows of the parts `ids` of a table: those of a part lie together, so they are copied as one.
inline void part_rows(const int64_t* ptr, const int64_t* ids, int64_t n, const int64_t* out_ptr, const char* table,
                      int64_t bytes, char* out) {
  parallel_ranges(n, part_grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t size = (out_ptr[i + 1] - out_ptr[i]) * bytes;
      if (size > 0) std::memcpy(out + out_ptr[i] * bytes, table + ptr[ids[i]] * bytes, size_t(size));
    }
  });
}

// The rows of the parts `ids` of a, columns and edge ids counted within what is taken. Part g of a has the rows
// ptr[g] to ptr[g + 1] and the edges, and entries, a.indptr[ptr[g]] to a.indptr[ptr[g + 1]].
template <class I>
void take_parts(const csr_view<I>& a, const int64_t* ptr, const int64_t* ids, int64_t n, const int64_t* out_ptr,
                const int64_t* out_entries, int64_t* indptr, I* indices, I* edge_ids) {
  parallel_ranges(n, part_grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = ptr[ids[i]], rows = out_ptr[i + 1] - out_ptr[i];
      const int64_t from = a.indptr[first], entries = out_entries[i + 1] - out_entries[i];
      const int64_t entry_shift = from - out_entries[i];
      const I column_shift = I(first - out_ptr[i]);
      for (int64_t r = 0; r < rows; ++r) indptr[out_ptr[i] + r] = a.indptr[first + r] - entry_shift;
      for (int64_t p = 0; p < entries; ++p) indices[out_entries[i] + p] = a.indices[from + p] - column_shift;
      if (edge_ids != nullptr)
        for (int64_t p = 0; p < entries; ++p) edge_ids[out_entries[i] + p] = a.edge_ids[from + p] - I(entry_shift);
    }
  });
  indptr[out_ptr[n]] = out_entries[n];
}

}  // namespace gw
