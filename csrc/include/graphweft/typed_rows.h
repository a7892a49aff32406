// What the kernels of typed graphs take: rows by type, the pairs of a typed graph, matrices by type.
#pragma once

#include <cstdint>

extern "C" {

// Rows type after type: chunk c has rows [chunk_begin[c], chunk_begin[c + 1]) of type chunk_type[c]; unit u, whose
// share of a sum over rows is kept apart, has chunks [unit_chunk[u], unit_chunk[u + 1]) of one type.
struct gw_typed_rows {
  int64_t num_types, num_chunks, num_units;
  const int64_t* chunk_begin;
  const int64_t* chunk_type;
  const int64_t* unit_chunk;
  const int64_t* type_unit;  // [num_types + 1]: the units of each type
};

// What a row of the result adds up: pairs of its own (edge -1), and edges to pairs at the other end.
struct gw_typed_sums {
  int64_t num_rows, num_blocks;
  const int64_t* indptr;  // [num_rows + 1]
  const void* pair;
  const void* edge;
  const int64_t* block_row;  // [num_blocks + 1], about equal work
};

struct gw_typed_pairs {
  gw_typed_rows rows;      // pairs, relation after relation
  const int64_t* entries;  // [pairs + 1]: the edges of each pair
  const void* node;        // [pairs]: its end
  const void* other;       // [edges] in the order of pairs: the other end
  const void* edge;        // [edges]: the id
  const uint8_t* on_dst;   // [types]: pairs are destinations
  gw_typed_sums sums[2];   // of destinations, of sources
  int32_t wide;            // 1: node, other, edge and pair are int64, else int32
};

// W[type][heads][in][out], or stored [out][in].
struct gw_typed_weight {
  const float* values;
  int64_t heads, in, out;
  int32_t transposed;
};
}
