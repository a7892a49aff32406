// The model of a library that predicts: model.cpp, the one file that is written for it, defines what is declared here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph.h"
#include "kernels.h"

namespace program {

// What the library was written for. `weights`: numbers in all of them; `columns`: of a row of all buffers together.
struct Serving {
  int64_t features, classes, weights, columns;
  bool reads_edge_weights = false;
};
extern const Serving serving;

// A tensor of the model: where its numbers begin among all weights; negative: it counts something that nobody reads.
struct Place {
  const char* name;
  std::vector<int64_t> shape;
  int64_t at;
};
std::vector<Place> places();

// Buffers that have a row for each node, in one stretch of memory.
class Room {
 public:
  explicit Room(int64_t nodes);
  // The buffer in front of which lie buffers of so many columns.
  [[nodiscard]] float* at(int64_t columns) const { return start_.get() + columns * rows_; }

 private:
  struct freed {
    void operator()(float* start) const;
  };
  int64_t rows_;  // in whole cache lines of each column
  std::unique_ptr<float, freed> start_;
};

// One graph with the forms and factors that the model makes of it alone.
class Pass {
 public:
  // `edge_weights` by number, where the model reads them.
  Pass(const float* weights, const Graph& graph, int64_t nodes, const float* edge_weights);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // Scores of all nodes, [nodes x classes], until the next call.
  Matrix run(const float* x);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace program
