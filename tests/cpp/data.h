// Numbers and graphs for the tests. Arrays are exactly as long as they must be, so that a read beyond them is seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/rng.h"

namespace data {

// Uniform in [-1, 1).
inline std::vector<float> floats(int64_t n, uint64_t seed) {
  std::vector<float> out(size_t(n), 0.0f);
  for (int64_t i = 0; i < n; ++i) out[size_t(i)] = float(2.0 * gw::to_unit(gw::random_u64(seed, 0, uint64_t(i))) - 1.0);
  return out;
}

template <class I>
std::vector<I> ids(int64_t n, int64_t bound, uint64_t seed) {
  std::vector<I> out(size_t(n), 0);
  for (int64_t i = 0; i < n; ++i)
    out[size_t(i)] = I(gw::to_below(gw::random_u64(seed, 1, uint64_t(i)), uint64_t(bound)));
  return out;
}

// Null for an empty array, as a caller may pass it.
template <class T>
T* pointer(std::vector<T>& v) {
  return v.empty() ? nullptr : v.data();
}

// A compressed random graph with loops and multi-edges; `skew` sends most edges into few rows.
struct graph {
  int64_t num_rows, num_cols, num_edges;
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;

  graph(int64_t rows, int64_t cols, int64_t edges, uint64_t seed, bool skew = false)
      : num_rows(rows), num_cols(cols), num_edges(edges), indptr(size_t(rows + 1), 0) {
    std::vector<int64_t> row = ids<int64_t>(edges, std::max<int64_t>(rows, 1), seed);
    if (skew)
      for (int64_t& r : row) r = r % 10 == 0 ? r : r % std::min<int64_t>(rows, 3);
    std::sort(row.begin(), row.end());
    for (const int64_t r : row) ++indptr[size_t(r + 1)];
    for (int64_t r = 0; r < rows; ++r) indptr[size_t(r + 1)] += indptr[size_t(r)];
    indices = ids<int32_t>(edges, std::max<int64_t>(cols, 1), seed + 1);
  }

  gw_adjacency view() { return {num_rows, num_cols, num_edges, indptr.data(), pointer(indices), nullptr, 0}; }
};

}  // namespace data
