// Weights of the edges of a graph by their number, for a model that keeps self-loops apart.
#pragma once

#include "graph.h"
#include "memory.h"

namespace program {

// Those of edges that are no loops, numbered without them.
Numbers<float> weights_without_loops(const Graph& graph, const float* all);
// For each node the weight of its last loop, 1 where it has none.
void read_loop_weights(const Graph& graph, const float* all, int64_t nodes, float* out);

}  // namespace program
