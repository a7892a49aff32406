#include "edge_weights.h"

#include <algorithm>

namespace program {

namespace {

// Nodes of loops by the number of the edge, -1 for other edges.
Numbers<int32_t> loops_of(const Graph& graph) {
  const gw_adjacency edges = graph.in_edges_in_order();
  const auto *columns = static_cast<const int32_t*>(edges.indices), *ids = static_cast<const int32_t*>(edges.edge_ids);
  Numbers<int32_t> found(size_t(edges.num_edges), -1);
  for (int64_t row = 0; row < edges.num_rows; ++row)
    for (int64_t p = edges.indptr[row]; p < edges.indptr[row + 1]; ++p)
      if (columns[p] == row) found[size_t(ids ? ids[p] : p)] = int32_t(row);
  return found;
}

}  // namespace

Numbers<float> weights_without_loops(const Graph& graph, const float* all) {
  const Numbers<int32_t> loops = loops_of(graph);
  Numbers<float> kept;
  for (size_t edge = 0; edge < loops.size(); ++edge)
    if (loops[edge] < 0) kept.push_back(all[edge]);
  return kept;
}

void read_loop_weights(const Graph& graph, const float* all, int64_t nodes, float* out) {
  const Numbers<int32_t> loops = loops_of(graph);
  std::fill_n(out, nodes, 1.0f);
  for (size_t edge = 0; edge < loops.size(); ++edge)
    if (loops[edge] >= 0) out[loops[edge]] = all[edge];
}

}  // namespace program
