// The compressed adjacency that crosses the C ABI. Apart from abi.h, which reads the standard library: kernels compiled
// at run time do without it.
#pragma once

#include <stdint.h>

#define GW_API __attribute__((visibility("default")))

extern "C" {

// The entries of an adjacency in the order of stretches.h: stretch of columns by stretch, within one piece of
// balance.h by piece, within one row by row.
struct gw_stretches {
  const int64_t* indptr;  // of the adjacency; one that has other rows does not read these
  int64_t count;          // of stretches
  int64_t columns;        // of a stretch
  int64_t pieces;
  const int64_t* rows;      // [pieces + 1] how many rows, and parts of rows that are cut, the pieces before have
  const int64_t* entries;   // [count, pieces] where those of a stretch and piece begin
  const uint16_t* lengths;  // [count, rows[pieces]] how many a row has
  const int32_t* behind;    // [rows[pieces]] the column of an entry behind all others, as loops are; -1: there is none
  const uint16_t* inside;   // [num_edges] a column less the first of its stretch
};

// Compressed adjacency: row r lists indices[indptr[r] .. indptr[r + 1]).
// Rows are destinations for in-edges (CSC of src -> dst), sources for out-edges.
struct gw_adjacency {
  int64_t num_rows;
  int64_t num_cols;
  int64_t num_edges;
  const int64_t* indptr;                    // [num_rows + 1]
  const void* indices;                      // [num_edges] int32 or int64 (wide)
  const void* edge_ids;                     // [num_edges], as wide as indices; null: position p is edge p
  int32_t wide;                             // 1: indices and edge_ids are int64
  const gw_stretches* stretches = nullptr;  // null: not made; without `indices` they are all there is
};
}
