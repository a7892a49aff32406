// What a generated walk over edges gives the core, and what the core gives it. Plain structures and functions: the core
// cuts the graph, starts the threads and adds up; the unit compiled at run time holds the loops over rows alone.
#pragma once

#include "graphweft/adjacency.h"
#include "graphweft/piece.h"

extern "C" {

// One run of a walk.
struct gw_nest_run {
  const gw_adjacency* adj;
  const void* const* in;
  void* const* out;
  int64_t far;  // how many edges ahead the rows of the far ends are fetched; 0: not at all
};

struct gw_nest {
  int64_t element;          // bytes of a number: 4 or 8
  int64_t width, gathered;  // numbers computed for an edge, and of rows of far ends that are read for it
  int64_t partial, total;   // numbers of a cut row's part, and of the sums over all edges
  // The rows of a piece; parts of cut rows go to the piece's slots, sums over edges are added to `total`.
  void (*rows)(const gw_nest_run*, const gw::piece*, void* slots, void* total);
  // A row that several pieces share, from its parts in order.
  void (*join)(const gw_nest_run*, const gw::cut_row*, const void* slots);
  void (*keep_total)(const gw_nest_run*, const void* total);
};
}
