// The compressed adjacency that crosses the C ABI. Apart from abi.h, which reads the standard library: kernels compiled
// at run time do without it.
#pragma once

#include <stdint.h>

#define GW_API __attribute__((visibility("default")))

extern "C" {

// Compressed adjacency: row r lists indices[indptr[r] .. indptr[r + 1]).
// Rows are destinations for in-edges (CSC of src -> dst), sources for out-edges.
struct gw_adjacency {
  int64_t num_rows;
  int64_t num_cols;
  int64_t num_edges;
  const int64_t* indptr;  // [num_rows + 1]
  const void* indices;    // [num_edges] int32 or int64 (wide)
  const void* edge_ids;   // [num_edges], as wide as indices; null: position p is edge p
  int32_t wide;           // 1: indices and edge_ids are int64
};
}
