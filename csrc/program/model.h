// The model of a program: model.cpp, the one file that is written for it, defines what is declared here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dataset.h"
#include "kernels.h"
#include "weights.h"

namespace program {

// What the program was written for.
struct Facts {
  const char* name;          // "gcn"
  const char* data;          // the file that it was written for; empty: none
  const char* feature_path;  // "dense" or "sparse"
  int64_t layers, hidden, num_parameters;
  int64_t epochs, seed, eval_every;  // unless flags say otherwise
  Expected expected;
};
extern const Facts facts;

class Model {
 public:
  // Weights drawn by the seed, and what is computed once.
  Model(const Dataset& data, uint64_t seed);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // One update; the training loss before it.
  float step(uint64_t seed, uint64_t epoch);
  // Logits of all nodes, [nodes x classes], until the next call.
  Matrix evaluate();

  // What is trained, and what the optimiser remembers.
  [[nodiscard]] std::vector<Tensor> weights() const;
  [[nodiscard]] std::vector<Tensor> optimizer_state() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace program
