// Weights in the safetensors form, in both directions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace program {

// A named stretch of float32 numbers.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  float* at;

  [[nodiscard]] int64_t count() const;
};

// Writes all tensors and the number of epochs that they were trained.
void save_weights(const std::string& path, const std::vector<Tensor>& tensors, int64_t epochs);

// Fills `required`, and of `optional` those that the file has; the number of epochs, 0 where the file does not tell.
// Throws std::runtime_error for a file that is damaged or lacks a required tensor.
int64_t load_weights(const std::string& path, const std::vector<Tensor>& required, const std::vector<Tensor>& optional);

}  // namespace program
