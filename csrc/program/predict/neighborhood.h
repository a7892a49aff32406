// A sample of the neighbourhood of some nodes as a graph of its own, drawn as gw.NeighborSampler draws.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "graph.h"

namespace program {

class Neighborhood {
 public:
  // `weights` by place among the in-edges; null: there are none.
  explicit Neighborhood(Form in_edges, const float* weights);
  ~Neighborhood();
  Neighborhood(const Neighborhood&) = delete;
  Neighborhood& operator=(const Neighborhood&) = delete;

  // Seeds come first, in their order. Throws std::runtime_error for ids that are no nodes or come twice.
  void draw(int64_t count, const int64_t* seeds, int64_t hops, const int64_t* fanouts, uint64_t seed);

  [[nodiscard]] int64_t nodes() const { return int64_t(ids_.size()); }
  [[nodiscard]] Form in_edges() const { return drawn_; }
  // Of the edges that were drawn, by place; null where there are none.
  [[nodiscard]] const float* edge_weights() const { return weights_ ? drawn_weights_.data() : nullptr; }
  // Rows of a table over the whole graph, until the next draw.
  const float* rows_of(const float* table, int64_t width);

 private:
  const Form whole_;
  const gw_adjacency native_;
  const float* const weights_;
  void* sampler_ = nullptr;
  std::vector<int64_t> ids_;
  std::vector<float> rows_, drawn_weights_;
  Form drawn_;
};

}  // namespace program
