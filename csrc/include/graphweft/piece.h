// Parts of an adjacency, as balance.h cuts it.
#pragma once

#include <stdint.h>

namespace gw {

// Edges [edge_begin, edge_end): whole rows [row_begin, row_end), before them the end of row row_begin - 1 when
// head_slot >= 0, after them the beginning (or a middle part) of row row_end when tail_slot >= 0.
struct piece {
  int64_t row_begin, row_end;
  int64_t edge_begin, edge_end;
  int64_t head_slot, tail_slot;
};

// A row that several pieces share; its partial results lie in the slots [first_slot, last_slot).
struct cut_row {
  int64_t row, first_slot, last_slot;
};

}  // namespace gw
