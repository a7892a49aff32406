// Weights in the safetensors form, in both directions.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace program {

// A named stretch of numbers: float32, or integers of 64 bits that count something.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  void* at;  // null: nobody reads it
  bool counts = false;

  [[nodiscard]] size_t bytes() const;
  [[nodiscard]] const char* dtype() const { return counts ? "I64" : "F32"; }
};

// Writes all tensors and the number of epochs that they were trained.
void save_weights(const std::string& path, const std::vector<Tensor>& tensors, int64_t epochs);

// A sound file of other tensors than those of the model.
struct OtherTensors : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Fills `required`, and of `optional` those that the file has; the number of epochs, 0 where the file does not tell.
// Throws OtherTensors for a file that lacks a required tensor or has one of another shape or name, std::runtime_error
// for one that cannot be read or is damaged.
int64_t load_weights(const std::string& path, const std::vector<Tensor>& required, const std::vector<Tensor>& optional);

}  // namespace program
