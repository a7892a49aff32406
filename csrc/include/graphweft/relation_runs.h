// Stretches of a row that are of one relation: edges are numbered relation after relation, and lie in a row in that
// order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/parallel.h"

namespace gw {

// `count` edges of a row, following those of the run before.
struct relation_run {
  uint32_t relation, count;
};

// Runs [begin[row], begin[row + 1]) are those of a row; null: every row is one run.
struct row_cuts {
  const int64_t* begin;
  const relation_run* runs;
};

// body(relation, count) for the runs of one row; relation r has the edge ids [bounds[r], bounds[r + 1]).
template <class I, class Body>
void each_run(const csr_view<I>& graph, const std::vector<int64_t>& bounds, int64_t row, Body&& body) {
  const int64_t end = graph.indptr[row + 1];
  for (int64_t at = graph.indptr[row]; at < end;) {
    const auto next = std::upper_bound(bounds.begin(), bounds.end(), graph.id(at));
    int64_t stop = std::clamp(*next, at, end);
    if (graph.edge_ids != nullptr)
      stop = std::lower_bound(graph.edge_ids + at, graph.edge_ids + end, *next,
                              [](I id, int64_t limit) { return int64_t(id) < limit; }) -
             graph.edge_ids;
    body(uint32_t(next - bounds.begin() - 1), uint32_t(stop - at));
    at = stop;
  }
}

// begin [num_rows + 1]: the first run of every row.
template <class I>
void count_runs(const csr_view<I>& graph, const std::vector<int64_t>& bounds, int64_t* begin) {
  parallel_ranges(graph.num_rows, 1024, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      int64_t count = 0;
      each_run(graph, bounds, row, [&](uint32_t, uint32_t) { ++count; });
      begin[row + 1] = count;
    }
  });
  begin[0] = 0;
  for (int64_t row = 0; row < graph.num_rows; ++row) begin[row + 1] += begin[row];
}

template <class I>
void write_runs(const csr_view<I>& graph, const std::vector<int64_t>& bounds, const int64_t* begin,
                relation_run* runs) {
  parallel_ranges(graph.num_rows, 1024, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      relation_run* out = runs + begin[row];
      each_run(graph, bounds, row, [&](uint32_t relation, uint32_t count) { *out++ = {relation, count}; });
    }
  });
}

}  // namespace gw
