// The random numbers of a run, as torch draws them: which weights a seed starts with and which elements are dropped.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

namespace program {

// A 63-bit seed for one epoch (SplitMix64 over both).
inline uint64_t epoch_key(uint64_t seed, uint64_t epoch) {
  uint64_t key = 0;
  for (const uint64_t word : {seed, epoch}) {
    key += word + 0x9E3779B97F4A7C15u;
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
    key ^= key >> 31;
  }
  return key >> 1;
}

// torch's generator on a CPU, a Mersenne twister that takes the low half of its seed.
class Generator {
 public:
  explicit Generator(uint64_t seed) : draw_(uint32_t(seed)) {}

  // Glorot and Bengio (AISTATS 2010), as Tensor.uniform_ draws `count` weights of maps with so many inputs and outputs.
  void glorot(float* weight, int64_t count, int64_t fans) {
    const auto bound = float(std::sqrt(6.0 / double(fans)));
    for (int64_t i = 0; i < count; ++i) {
      const float share = float(uint32_t(draw_()) & 0xFFFFFFu) * 0x1p-24f;
      weight[i] = std::fma(share, bound + bound, -bound);
    }
  }

 private:
  std::mt19937 draw_;
};

}  // namespace program
