// Sums of a table's rows over the edges of a few rows at a time, for products that use them at once. Rows are neither
// cut nor balanced: this is for blocks of mini-batches, where rows have few edges.
#pragma once

#include <cstdint>

#include "graphweft/abi.h"
#include "graphweft/element.h"
#include "graphweft/half_pack.h"

namespace gw {

class row_queue;

struct edge_sums {
  const gw_adjacency& edges;
  const void* x;  // float, or bfloat16
  int64_t ldx, width;
  const gw_epilogue_f32& stages;
  float* col_sum;  // partial sums of the caller, or null
  bool fetches;    // whether rows are fetched shortly before their use; else somebody has brought them near
  bool half = false;
  row_queue* ahead = nullptr;  // looked at once for an edge and a tile of columns, or null
};

// Vectors of a row that are summed at once, and how many such tiles of columns a row has.
constexpr int edge_sum_vectors = 8;

inline int64_t edge_sum_tiles(int64_t width) {
  constexpr int64_t tile = edge_sum_vectors * int64_t(f32::lanes);
  return (width + tile - 1) / tile;
}

// Rows [row, end) to `out`, where row `row` is.
void sum_rows(const edge_sums& sums, int64_t row, int64_t end, float* out, int64_t ldo);

// The same, rounded to bfloat16.
void sum_rows(const edge_sums& sums, int64_t row, int64_t end, half_form form, uint16_t* out, int64_t ldo);

}  // namespace gw
